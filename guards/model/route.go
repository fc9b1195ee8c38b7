package model

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/guards"
)

// Headers with which a client says what its request does not.
const (
	HeaderMaxCost = "Nightwarrant-Max-Cost" // what is reserved: "12 EUR", minor units and their currency
	HeaderRequest = "Nightwarrant-Request"  // how the parameters hold the request: "text", which its owner can read, or "digest", also when absent
)

// routes are the paths of a stock client whose base URL is the guard's URI and /v1.
func (l *Ledger) routes() map[string]guards.Route {
	all := map[string]guards.Route{}
	for action, d := range dialects {
		all["/v1"+d.path] = guards.Route{
			Action: action, MaxBody: l.config.MaxRequest, Refusal: refusal,
			Header: http.Header{"X-Should-Retry": {"false"}}, // stock clients: an effect is not tried again by itself
			Read: func(h http.Header, body []byte) (json.RawMessage, error) {
				return parameters(l.config.BaseURL, d, h, body)
			},
		}
	}
	return all
}

// parameters are the canonical ones of a request.
func parameters(baseURL string, d dialect, h http.Header, body []byte) (json.RawMessage, error) {
	a, err := d.read(body)
	if err != nil {
		return nil, err
	}
	call := catalogue.ModelCall{Model: URL(baseURL, a.model), MaxOutputTokens: a.output}
	if call.MaxCost, call.Currency, err = maxCost(h); err != nil {
		return nil, err
	}
	switch form := h.Values(HeaderRequest); {
	case len(form) == 0 || len(form) == 1 && form[0] == "digest":
		sum := sha256.Sum256(body)
		call.RequestSHA256, call.RequestBytes = base64.RawURLEncoding.EncodeToString(sum[:]), int64(len(body))
	case len(form) > 1 || form[0] != "text":
		return nil, refusef("%s is text or digest.", HeaderRequest)
	case len(body) > MaxShown:
		return nil, refusef("A request that is shown has at most 48 KiB; send it by its digest.")
	default:
		call.Request = string(body)
	}
	return json.Marshal(call)
}

var costForm = regexp.MustCompile(`^[1-9][0-9]{0,12} [A-Z]{3}$`)

func maxCost(h http.Header) (int64, string, error) {
	values := h.Values(HeaderMaxCost)
	if len(values) != 1 || !costForm.MatchString(values[0]) {
		return 0, "", refusef(`%s says what the call may cost, in minor units: "12 EUR".`, HeaderMaxCost)
	}
	amount, currency, _ := strings.Cut(values[0], " ")
	n, err := strconv.ParseInt(amount, 10, 64)
	return n, currency, err
}

// refusal is the error of this protocol, with our code in it.
func refusal(p api.Problem) any {
	type body struct {
		Message      string    `json:"message"`
		Type         string    `json:"type"`
		Param        *string   `json:"param"`
		Code         api.Code  `json:"code"`
		Retry        api.Retry `json:"retry"`
		RetryAfterMS int64     `json:"retry_after_ms,omitempty"`
	}
	return map[string]body{"error": {Message: p.ErrorDescription, Type: kindOf(p.Status), Code: p.Code, Retry: p.Retry, RetryAfterMS: p.RetryAfterMS}}
}

func kindOf(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "authentication_error"
	case status == http.StatusForbidden:
		return "permission_error"
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status >= http.StatusInternalServerError:
		return "server_error"
	}
	return "invalid_request_error"
}
