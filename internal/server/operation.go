package server

import (
	"context"
	"net/http"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/openapi"
)

// ByReference is the input of an operation on one thing.
type ByReference struct {
	Reference string `path:"reference"`
}

// Shown is ByReference for a change of what was shown.
type Shown struct {
	Reference string `path:"reference"`
	IfMatch   string `header:"If-Match"`
}

// Listing is the input of a list.
type Listing struct {
	Cursor string `query:"cursor"`
}

// With is the input of an operation on one thing, with a body.
type With[T any] struct {
	Reference string `path:"reference"`
	Body      T
}

// Only is a body and nothing else.
type Only[T any] struct{ Body T }

// answered is the output of an operation.
type answered[T any] struct{ Body T }

// tagged is an answer that a later change may be made conditional on.
type tagged[T any] struct {
	ETag string `header:"ETag"`
	Body T
}

type actorKey struct{}

// personal registers an operation of people. Who asks is established before
// anything of the request is read but its head.
func personal[In, Out any](s *Server, op openapi.Operation, act func(context.Context, authority.Actor, *In) (Out, error)) {
	openapi.Register(s.api, op, func(ctx context.Context, in *In) (*answered[Out], error) {
		out, err := act(ctx, ctx.Value(actorKey{}).(authority.Actor), in)
		return &answered[Out]{out}, err
	})
}

// single is personal for one thing that is shown, with the tag of its state.
func single[Out any](s *Server, op openapi.Operation, state func(Out) any, act func(context.Context, authority.Actor, string) (Out, error)) {
	openapi.Register(s.api, op, func(ctx context.Context, in *ByReference) (*tagged[Out], error) {
		out, err := act(ctx, ctx.Value(actorKey{}).(authority.Actor), in.Reference)
		return &tagged[Out]{openapi.Tag(state(out)), out}, err
	})
}

// enter lists an operation as a route of ours.
func (s *Server) enter(op openapi.Operation, h handler) {
	route := Route{Method: op.Method, Path: op.Path, Gated: op.Gated, Access: op.Access, handle: h}
	if op.Access.Personal() {
		route.handle = func(w http.ResponseWriter, r *http.Request) error {
			m, err := s.actor(r)
			if err != nil {
				return err
			}
			return h(w, r.WithContext(context.WithValue(r.Context(), actorKey{}, m)))
		}
	}
	s.routes = append(s.routes, route)
}

// actor is who makes a personal call.
func (s *Server) actor(r *http.Request) (authority.Actor, error) {
	c, envelope, err := s.envelope(r)
	if err != nil {
		return authority.Actor{}, err
	}
	return s.authority.FromCall(r.Context(), c, envelope)
}

// described answers with the description of everything here.
func (s *Server) described(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(s.Description()) // the caller may be gone
	return nil
}

// Description is the OpenAPI 3.1 document of the authority.
func (s *Server) Description() []byte { return s.api.JSON(s.origin) }

// Operations lists what the document describes.
func (s *Server) Operations() []openapi.Operation { return s.api.Operations() }

// agreed refuses a change of something else than what was shown. A star says
// that whatever it is now is meant, so that stopping something never has to wait
// for reading it (RFC 9110 §13.1.1).
func agreed(ifMatch, tag string) error {
	if ifMatch == "" {
		return api.Refuse(api.PreconditionRequired)
	}
	for one := range strings.SplitSeq(ifMatch, ",") {
		if one = strings.TrimSpace(one); one == "*" || one == tag {
			return nil
		}
	}
	return api.Refuse(api.Stale)
}
