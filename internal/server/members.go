package server

import (
	"context"
	"io"
	"net/http"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
)

// reading makes the answer of a member's call without a body.
func reading[Out any](s *Server, w http.ResponseWriter, r *http.Request, act func(context.Context, authority.Actor) (Out, error)) error {
	c, envelope, err := s.envelope(r)
	if err != nil {
		return err
	}
	m, err := s.authority.FromCall(r.Context(), c, envelope)
	if err != nil {
		return err
	}
	out, err := act(r.Context(), m)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, out)
}

// acting is reading for a call with a JSON body.
func acting[In, Out any](s *Server, w http.ResponseWriter, r *http.Request, act func(context.Context, authority.Actor, In) (Out, error)) error {
	return reading(s, w, r, func(ctx context.Context, m authority.Actor) (out Out, err error) {
		var in In
		if err := readJSON(r, &in); err != nil {
			return out, err
		}
		return act(ctx, m, in)
	})
}

func (s *Server) offers(w http.ResponseWriter, r *http.Request) error {
	return reading(s, w, r, func(ctx context.Context, m authority.Actor) (api.Page[api.Offer], error) {
		all, err := s.authority.Offers(ctx, m, "")
		return api.Page[api.Offer]{Items: all}, err
	})
}

func (s *Server) offer(w http.ResponseWriter, r *http.Request) error {
	return reading(s, w, r, func(ctx context.Context, m authority.Actor) (one api.Offer, err error) {
		all, err := s.authority.Offers(ctx, m, r.PathValue("reference"))
		if err == nil {
			one = all[0]
		}
		return one, err
	})
}

func (s *Server) consent(w http.ResponseWriter, r *http.Request) error {
	return acting(s, w, r, func(ctx context.Context, m authority.Actor, in api.Answer) (api.Consent, error) {
		return s.authority.GiveConsent(ctx, m, r.PathValue("reference"), in)
	})
}

func (s *Server) decline(w http.ResponseWriter, r *http.Request) error {
	return acting(s, w, r, func(ctx context.Context, m authority.Actor, in api.Answer) (struct{}, error) {
		return struct{}{}, s.authority.Decline(ctx, m, r.PathValue("reference"), in)
	})
}

func (s *Server) tasks(w http.ResponseWriter, r *http.Request) error {
	return reading(s, w, r, func(ctx context.Context, m authority.Actor) (api.Page[api.Task], error) {
		all, err := s.authority.Tasks(ctx, m)
		return api.Page[api.Task]{Items: all}, err
	})
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) error {
	return reading(s, w, r, func(ctx context.Context, m authority.Actor) (api.Epoch, error) {
		return s.authority.Revoke(ctx, m, r.PathValue("reference"))
	})
}

func (s *Server) cutOff(w http.ResponseWriter, r *http.Request) error {
	return reading(s, w, r, func(ctx context.Context, m authority.Actor) (api.Epoch, error) {
		return s.authority.CutOff(ctx, m, r.PathValue("reference"))
	})
}

func (s *Server) runs(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	return reading(s, w, r, func(ctx context.Context, m authority.Actor) (api.Page[api.Run], error) {
		return s.authority.Runs(ctx, m, q.Get("task"), q.Get("cursor"))
	})
}

func (s *Server) decisions(w http.ResponseWriter, r *http.Request) error {
	return reading(s, w, r, func(ctx context.Context, m authority.Actor) (api.Page[api.OwnerDecision], error) {
		all, err := s.authority.Decisions(ctx, m, "")
		return api.Page[api.OwnerDecision]{Items: all}, err
	})
}

func (s *Server) decision(w http.ResponseWriter, r *http.Request) error {
	return reading(s, w, r, func(ctx context.Context, m authority.Actor) (one api.OwnerDecision, err error) {
		all, err := s.authority.Decisions(ctx, m, r.PathValue("reference"))
		if err == nil {
			one = all[0]
		}
		return one, err
	})
}

func (s *Server) approve(w http.ResponseWriter, r *http.Request) error {
	return acting(s, w, r, func(ctx context.Context, m authority.Actor, in api.Answer) (struct{}, error) {
		return struct{}{}, s.authority.Approve(ctx, m, r.PathValue("reference"), in)
	})
}

func (s *Server) deny(w http.ResponseWriter, r *http.Request) error {
	return acting(s, w, r, func(ctx context.Context, m authority.Actor, in api.Answer) (struct{}, error) {
		return struct{}{}, s.authority.Deny(ctx, m, r.PathValue("reference"), in)
	})
}

func (s *Server) ambiguous(w http.ResponseWriter, r *http.Request) error {
	return reading(s, w, r, func(ctx context.Context, m authority.Actor) (api.Page[api.AmbiguousEffect], error) {
		all, err := s.authority.Ambiguous(ctx, m)
		return api.Page[api.AmbiguousEffect]{Items: all}, err
	})
}

func (s *Server) finding(w http.ResponseWriter, r *http.Request) error {
	return acting(s, w, r, func(ctx context.Context, m authority.Actor, in api.Finding) (api.Finding, error) {
		return in, s.authority.RecordFinding(ctx, m, in)
	})
}

func (s *Server) apply(w http.ResponseWriter, r *http.Request) error {
	return reading(s, w, r, func(ctx context.Context, m authority.Actor) (api.Applied, error) {
		file, err := io.ReadAll(r.Body)
		if err != nil {
			return api.Applied{}, refusalOrBad(err)
		}
		return s.authority.Apply(ctx, m, file)
	})
}

func (s *Server) retire(w http.ResponseWriter, r *http.Request) error {
	return acting(s, w, r, func(ctx context.Context, m authority.Actor, in api.RetireRequest) (api.Retirement, error) {
		return s.authority.Retire(ctx, m, in)
	})
}

func (s *Server) withdraw(w http.ResponseWriter, r *http.Request) error {
	return acting(s, w, r, func(ctx context.Context, m authority.Actor, in api.WithdrawRequest) (api.Epoch, error) {
		return s.authority.Withdraw(ctx, m, in)
	})
}
