package dpopclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Unknown tells whether an error of a call leaves open whether the request took
// effect. It is false for nil and for a refusal, after which nothing happened.
func Unknown(err error) bool {
	if err == nil {
		return false
	}
	refusal, ok := errors.AsType[*api.Refusal](err)
	return !ok || refusal.Code == api.OutcomeUnknown || refusal.Code == api.Internal
}

// Refused tells whether the server refused with one of the codes.
func Refused(err error, codes ...api.Code) bool {
	refusal, ok := errors.AsType[*api.Refusal](err)
	return ok && slices.Contains(codes, refusal.Code)
}

// refusalOf reads a problem document, which token endpoints call JSON (RFC 6749 §5.2). Its text is never repeated, only its code and its waiting time; a code that is
// not known here says nothing about what happened.
func refusalOf(resp *http.Response, body []byte) error {
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var p api.Problem
	if mediaType != "application/problem+json" && mediaType != "application/json" || json.Unmarshal(body, &p) != nil || !known(p.Code) {
		return fmt.Errorf("%w: status %d without a known refusal", ErrNoAnswer, resp.StatusCode)
	}
	return &api.Refusal{Code: p.Code, RetryAfter: wait(resp, p)}
}

var codes = func() map[api.Code]bool {
	m := map[api.Code]bool{}
	for _, c := range api.Codes() {
		m[c] = true
	}
	return m
}()

func known(c api.Code) bool { return codes[c] }

const maxWait = time.Hour

func wait(resp *http.Response, p api.Problem) time.Duration {
	d := time.Duration(p.RetryAfterMS) * time.Millisecond
	if p.RetryAfterMS <= 0 {
		seconds, _ := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16)
		d = time.Duration(seconds) * time.Second
	}
	if d < 0 || d > maxWait {
		return maxWait
	}
	return d
}

// isChallenge: 400 at the token endpoint (RFC 9449 §8), 401 with a challenge of the DPoP scheme elsewhere (§9), and in
// both cases a nonce to go on with.
func isChallenge(r request, resp *http.Response, refusal error) bool {
	if !Refused(refusal, api.UseDPoPNonce) || resp.Header.Get(api.HeaderNonce) == "" {
		return false
	}
	if r.token.IsZero() {
		return resp.StatusCode == http.StatusBadRequest
	}
	return resp.StatusCode == http.StatusUnauthorized && slices.ContainsFunc(resp.Header.Values("WWW-Authenticate"), isNonceChallenge)
}

func isNonceChallenge(challenge string) bool {
	scheme, parameters, _ := strings.Cut(challenge, " ")
	return strings.EqualFold(scheme, "DPoP") && strings.Contains(parameters, `error="use_dpop_nonce"`)
}
