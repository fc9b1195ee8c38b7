package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/openapi"
)

// answer is the one error mapper. Unknown errors leave without detail; their
// cause goes to the operators' log.
func (s *Server) answer(w *recorder, r *http.Request, route string, err error) api.Code {
	refusal := refusalOf(err)
	if cause := authority.Cause(err); cause != nil && refusal.Code.Status() >= http.StatusInternalServerError { // a caller's fault is no line in our log
		s.log.LogAttrs(r.Context(), slog.LevelError, "a request failed", slog.String("route", route), slog.String("code", string(refusal.Code)), slog.Any("cause", cause))
	}
	if !authority.Audited(err) {
		s.authority.CountRefusal(refusal.Code)
	}
	if w.wrote {
		return refusal.Code
	}
	status := openapi.StatusOf(route, refusal.Code)
	head := w.Header()
	if status == http.StatusUnauthorized {
		head.Set("WWW-Authenticate", challenge(refusal))
	}
	if wait := refusal.Wait(); wait > 0 {
		head.Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	head.Set("Content-Type", openapi.MediaOf(route))
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(refusal.Problem(status)) // the caller may be gone; there is nobody else to tell
	return refusal.Code
}

func refusalOf(err error) *api.Refusal {
	var r *api.Refusal
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &r):
		return r
	case errors.As(err, &large):
		return api.Refuse(api.PayloadTooLarge)
	}
	return api.Refuse(api.Internal)
}

// challenge is exactly one, spelled DPoP, with error first (dpop-cases I-1).
func challenge(r *api.Refusal) string {
	return fmt.Sprintf(`DPoP error=%q, error_description=%q, algs="ES256"`, r.Code.OAuthError(), r.Text())
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the caller may be gone
	return nil
}
