package server

import (
	"log/slog"
	"net/http"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Questions about readiness that a replica answers in a second: each costs one signature, and anybody may ask.
const questions = 1000

// readiness answers with the complete decision, signed over the caller's challenge. It asks nobody, and it fails closed and
// not otherwise: whatever is wrong with this replica, the answer is a decision that is not open (see [authority.Authority.Readiness]).
// Too many questions are told to come again: who has no answer is closed too.
func (s *Server) readiness(w http.ResponseWriter, r *http.Request) error {
	if !s.questions.Allow() {
		return api.Refuse(api.TooManyRequests)
	}
	query := r.URL.Query()
	challenge := query.Get("challenge")
	if len(query["challenge"]) > 1 || len(challenge) > 128 || !visible(challenge) {
		return api.Refusef(api.InvalidRequest, "challenge must be one of at most 128 visible ASCII characters.")
	}
	d, err := s.authority.Readiness(challenge)
	if err != nil {
		s.unsigned.Do(func() {
			s.log.LogAttrs(r.Context(), slog.LevelError, "readiness is answered closed and unsigned", slog.Any("error", err))
		})
	}
	return writeJSON(w, http.StatusOK, d)
}

func visible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// Three questions that are kept apart (design.md §5). healthz is the process and nothing else: it says yes while everything
// is closed, or who restarts what is not alive would make an outage of a decision.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"process": "alive"})
}

// readyz is "route to me": a closed gate is no reason to send revocations elsewhere, an unreachable database is.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) error {
	if !s.gate.Fresh() {
		return api.Refuse(api.Unavailable)
	}
	return writeJSON(w, http.StatusOK, map[string]string{"route": "here"})
}
