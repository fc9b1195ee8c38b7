package principal

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeaderNamed(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Header{
		"nightwarrant-envelope":    {Name: "Nightwarrant-Envelope", Unique: "jti"},
		"Cf-Access-Jwt-Assertion":  {Name: "Cf-Access-Jwt-Assertion", Unique: "identity_nonce"},
		"x-goog-iap-jwt-assertion": {Name: "X-Goog-Iap-Jwt-Assertion", Unique: "iat"},
		"X-Pomerium-Jwt-Assertion": {Name: "X-Pomerium-Jwt-Assertion", Unique: "jti"},
		"authorization":            {Name: "Authorization", Scheme: "Bearer", Unique: "iat"},
		"x-platform-envelope":      {Name: "X-Platform-Envelope", Unique: "jti"},
	} {
		h, err := HeaderNamed(name)
		require.NoError(t, err, name)
		require.Equal(t, want, h)
	}
	for _, name := range []string{"", " ", "a b", "a:b", "ä", "Cookie", "cookie", "DPoP", "Host", "X-Forwarded-User", "Sec-Fetch-Site",
		"x-amzn-oidc-data", "Forwarded", strings.Repeat("x", 65), "Nightwarrant-Envelope\r\n"} {
		_, err := HeaderNamed(name)
		require.Error(t, err, "%q", name)
		require.Less(t, len(err.Error()), 160)
	}
}

func TestTake(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header string
		lines  [][2]string
		want   string
		reason Reason
	}{
		"one":                 {"Nightwarrant-Envelope", [][2]string{{"Nightwarrant-Envelope", "e"}}, "e", ""},
		"none":                {"Nightwarrant-Envelope", nil, "", Missing},
		"an empty one":        {"Nightwarrant-Envelope", [][2]string{{"Nightwarrant-Envelope", ""}}, "", Missing},
		"two":                 {"Nightwarrant-Envelope", [][2]string{{"Nightwarrant-Envelope", "e"}, {"Nightwarrant-Envelope", "e"}}, "", Several},
		"one and an empty":    {"Nightwarrant-Envelope", [][2]string{{"Nightwarrant-Envelope", ""}, {"nightwarrant-envelope", "e"}}, "", Several},
		"two proxies":         {"Cf-Access-Jwt-Assertion", [][2]string{{"Cf-Access-Jwt-Assertion", "e"}, {"Nightwarrant-Envelope", "f"}}, "", Several},
		"a proxy and a token": {"Cf-Access-Jwt-Assertion", [][2]string{{"Cf-Access-Jwt-Assertion", "e"}, {"Authorization", "bearer f"}}, "", Several},
		"a load balancer too": {"Cf-Access-Jwt-Assertion", [][2]string{{"Cf-Access-Jwt-Assertion", "e"}, {"X-Amzn-Oidc-Data", "f"}}, "", Several},
		"only another's":      {"Cf-Access-Jwt-Assertion", [][2]string{{"X-Pomerium-Jwt-Assertion", "f"}}, "", Several},
		"a password beside":   {"Cf-Access-Jwt-Assertion", [][2]string{{"Cf-Access-Jwt-Assertion", "e"}, {"Authorization", "Basic f"}}, "e", ""},
		"an empty one beside": {"Cf-Access-Jwt-Assertion", [][2]string{{"Cf-Access-Jwt-Assertion", "e"}, {"Nightwarrant-Envelope", ""}}, "e", ""},
		"names and addresses": {"Cf-Access-Jwt-Assertion", [][2]string{{"Cf-Access-Jwt-Assertion", "e"}, {"X-Forwarded-User", "root"}, {"X-Auth-Request-Email", "root@x"}}, "e", ""},
		"bearer":              {"Authorization", [][2]string{{"Authorization", "Bearer e"}}, "e", ""},
		"bearer in lower":     {"Authorization", [][2]string{{"Authorization", "bearer e"}}, "e", ""},
		"not bearer":          {"Authorization", [][2]string{{"Authorization", "DPoP e"}}, "", Missing},
		"bare":                {"Authorization", [][2]string{{"Authorization", "e"}}, "", Missing},
		"two bearers":         {"Authorization", [][2]string{{"Authorization", "Bearer e"}, {"Authorization", "Bearer e"}}, "", Several},
		"one of their own":    {"X-Platform", [][2]string{{"X-Platform", "e"}}, "e", ""},
		"of their own, two":   {"X-Platform", [][2]string{{"X-Platform", "e"}, {"Nightwarrant-Envelope", "e"}}, "", Several},
	} {
		h, err := HeaderNamed(c.header)
		require.NoError(t, err, name)
		from := http.Header{}
		for _, line := range c.lines {
			from.Add(line[0], line[1])
		}
		got, err := h.Take(from)
		require.Equal(t, c.want, got, name)
		if c.reason == "" {
			require.NoError(t, err, name)
			continue
		}
		var r *Refusal
		require.ErrorAs(t, err, &r, name)
		require.Equal(t, c.reason, r.Reason, name)
	}
}
