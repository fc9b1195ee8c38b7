package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const reviewed = `      roots_file: /etc/nightwarrant/ca.pem
      token_review:
        url: https://kubernetes.example:6443
        token_file: /var/run/secrets/reviewer
`

func TestTokenReview(t *testing.T) {
	t.Parallel()
	good := strings.Replace(goodAuthority, "      roots_file: /etc/nightwarrant/ca.pem\n", reviewed, 1)
	var a Authority
	require.NoError(t, Parse("f", []byte(good), &a, noEnv))
	require.Equal(t, TokenReview{"https://kubernetes.example:6443", "/var/run/secrets/reviewer", ""}, a.Assertion.Issuers[0].TokenReview)
	for line, wrong := range map[string]map[string]string{
		"        url: https://kubernetes.example:6443": {
			"": "token_review.url is missing",
			"        url: https://kubernetes.example/api": "token_review.url must be an origin",
			"        url: http://kubernetes.example":      "token_review.url must be https",
		},
		"        token_file: /var/run/secrets/reviewer": {
			"":                             "token_review.token_file must be an absolute path",
			"        token_file: reviewer": "token_review.token_file must be an absolute path",
			"        token: hush":          "token_review.token is not a known key",
		},
	} {
		for instead, want := range wrong {
			err := Parse("f", []byte(strings.Replace(good, line, instead, 1)), &Authority{}, noEnv)
			require.ErrorContains(t, err, "assertion.issuers[0]."+want, instead)
			require.NotContains(t, err.Error(), "hush")
		}
	}
	people := strings.Replace(goodAuthority, "    url: https://idp.example\n", "    url: https://idp.example\n    token_review: {url: \"https://a\"}\n", 1)
	require.ErrorContains(t, Parse("f", []byte(people), &Authority{}, noEnv), "envelope.issuer.token_review is not a known key")
}
