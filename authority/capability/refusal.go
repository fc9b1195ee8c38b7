package capability

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
)

// The wire's error codes (RFC 6749 §5.2, RFC 6750 §3.1, RFC 9449 §5, §8).
const (
	CodeInvalidProof   = "invalid_dpop_proof"
	CodeUseNonce       = "use_dpop_nonce"
	CodeInvalidToken   = "invalid_token"
	CodeInvalidRequest = "invalid_request"
)

// ProofError is a refusal of a proof or a capability: a code of the wire and one clause for people. It never repeats
// what was sent.
type ProofError struct {
	Code   string
	Reason string
}

func (e *ProofError) Error() string { return e.Code + ": " + e.Reason }

// Nothing was sent, which is another answer than something wrong was sent (RFC 6750 §3.1). Compare with errors.Is.
var (
	ErrNoProof = &ProofError{CodeInvalidProof, "there is no DPoP header"}
	ErrNoToken = &ProofError{CodeInvalidToken, "there is no Authorization header"}
)

func badProof(reason string) error { return &ProofError{CodeInvalidProof, reason} }
func badToken(reason string) error { return &ProofError{CodeInvalidToken, reason} }

// HeaderProof is the value of the one DPoP header line (RFC 9449 §4.3 check 1).
func HeaderProof(h http.Header) (string, error) {
	lines := h.Values("DPoP")
	switch {
	case len(lines) == 0:
		return "", ErrNoProof
	case len(lines) > 1 || strings.Contains(lines[0], ","):
		return "", badProof("there must be exactly one proof")
	case lines[0] == "":
		return "", badProof("the DPoP header is empty")
	}
	return lines[0], nil
}

// HeaderToken is the credential of the one Authorization line, whose scheme must be DPoP in any letter case
// (RFC 9449 §7.1, RFC 9110 §11.4).
func HeaderToken(h http.Header) (Token, error) {
	lines := h.Values("Authorization")
	if len(lines) == 0 {
		return "", ErrNoToken
	}
	if len(lines) > 1 {
		return "", &ProofError{CodeInvalidRequest, "there must be exactly one Authorization header"}
	}
	scheme, token, _ := strings.Cut(lines[0], " ")
	if !strings.EqualFold(scheme, "DPoP") {
		return "", badToken("the authorization scheme must be DPoP")
	}
	token = strings.TrimLeft(token, " ")
	if !isToken68(token) {
		return "", &ProofError{CodeInvalidRequest, "the credential is not a token"}
	}
	return Token(token), nil
}

func isToken68(s string) bool {
	body := strings.TrimRight(s, "=")
	for i := range len(body) {
		if class[body[i]]&classToken68 == 0 {
			return false
		}
	}
	return body != "" && len(s) <= maxToken
}

// Token is a bearer of authority: a capability as it travels. It does not print, log or marshal; Reveal is the only way
// to its text. Keep it in exported fields or variables: fmt cannot be kept from the fields that it may not call methods on.
type Token string

const redacted = "[redacted]"

// Reveal gives the text, for a header or a response body.
func (t Token) Reveal() string { return string(t) }

// IsZero tells that there is no token.
func (t Token) IsZero() bool { return t == "" }

func (t Token) String() string { return redacted }

// Format redacts under every verb.
func (t Token) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue redacts.
func (t Token) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText redacts.
func (t Token) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Character classes of the header grammars.
const (
	classBase64  = 1 << iota // base64url
	classToken68             // RFC 9110 §11.2, without "="
	classUnreserved
	classPath // RFC 3986 §3.3: pchar and "/", without "%"
)

var class = func() (t [256]byte) {
	mark := func(set string, bits byte) {
		for i := range len(set) {
			t[set[i]] |= bits
		}
	}
	const alnum = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	mark(alnum, classBase64|classToken68|classUnreserved|classPath)
	mark("-_", classBase64|classToken68|classUnreserved|classPath)
	mark(".~", classToken68|classUnreserved|classPath)
	mark("+/", classToken68|classPath)
	mark("!$&'()*,;=:@", classPath)
	return t
}()
