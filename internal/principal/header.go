package principal

import (
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// Header says where a proxy in front of us puts the envelope, and how.
type Header struct {
	Name   string // in its canonical form
	Scheme string // that stands before the token, such as Bearer; none when empty
	Unique string // the claim by which no two of its envelopes are alike
}

// DefaultHeader is where the envelope is unless something else is configured.
const DefaultHeader = "Nightwarrant-Envelope"

// proxies are the headers in which common proxies assert who is asking, as far
// as what they hold can be an envelope (docs/how-to/sign-in.md).
var proxies = []Header{
	{Name: DefaultHeader, Unique: "jti"},
	{Name: "Cf-Access-Jwt-Assertion", Unique: "identity_nonce"}, // Cloudflare Access
	{Name: "X-Goog-Iap-Jwt-Assertion", Unique: "iat"},           // Google IAP, which has no claim of its own for it
	{Name: "X-Pomerium-Jwt-Assertion", Unique: "jti"},           // Pomerium
	{Name: "Authorization", Scheme: "Bearer", Unique: "iat"},    // oauth2-proxy's ID token
}

// misfits assert an identity too, but never as an envelope: an AWS load
// balancer's token names no audience.
var misfits = []Header{{Name: "X-Amzn-Oidc-Data"}}

// never carry an identity, whatever an operator writes.
var never = []string{"Cookie", "Dpop", "Host", "Origin", "Referer", "Forwarded", "User-Agent", "Content-Type", "Accept"}

// HeaderNamed returns the header of that name, in any letter case. A name that
// is not known is taken for one that carries the bare envelope. Its error is a misconfiguration.
func HeaderNamed(name string) (Header, error) {
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	for _, h := range proxies {
		if h.Name == canonical {
			return h, nil
		}
	}
	switch {
	case !isToken(name):
		return Header{}, fmt.Errorf("%.60q is not the name of a header", name)
	case canonical == misfits[0].Name:
		return Header{}, fmt.Errorf("%s carries no audience, so anybody's token of that load balancer would be an envelope", canonical)
	case slices.Contains(never, canonical) || strings.HasPrefix(canonical, "X-Forwarded-") || strings.HasPrefix(canonical, "Sec-"):
		return Header{}, fmt.Errorf("%s is a header that carries no identity", canonical)
	}
	return Header{Name: canonical, Unique: "jti"}, nil
}

// isToken is RFC 9110 §5.6.2.
func isToken(s string) bool {
	other := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	}
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, other)
}

// Take returns the one envelope that came in this header. A second line, or an
// identity in another proxy's header beside it, is refused: nobody can tell
// which of them whoever sent them meant. Its error is a *Refusal.
func (h Header) Take(from http.Header) (string, error) {
	for _, other := range slices.Concat(proxies, misfits) {
		if other.Name != h.Name && other.in(from) {
			return "", &Refusal{Reason: Several}
		}
	}
	switch lines := from.Values(h.Name); {
	case len(lines) > 1:
		return "", &Refusal{Reason: Several}
	case len(lines) == 0 || lines[0] == "":
		return "", &Refusal{Reason: Missing}
	case h.Scheme == "":
		return lines[0], nil
	default:
		scheme, token, found := strings.Cut(lines[0], " ")
		if !found || !strings.EqualFold(scheme, h.Scheme) {
			return "", &Refusal{Reason: Missing}
		}
		return token, nil
	}
}

// in tells whether a request asserts an identity in this header.
func (h Header) in(from http.Header) bool {
	return slices.ContainsFunc(from.Values(h.Name), func(line string) bool {
		scheme, _, _ := strings.Cut(line, " ")
		return line != "" && (h.Scheme == "" || strings.EqualFold(scheme, h.Scheme))
	})
}
