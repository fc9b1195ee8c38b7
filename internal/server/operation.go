package server

import (
	"context"
	"net/http"
	"strconv"
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
func single[Out any](s *Server, op openapi.Operation, tag func(Out) string, act func(context.Context, authority.Actor, string) (Out, error)) {
	openapi.Register(s.api, op, func(ctx context.Context, in *ByReference) (*tagged[Out], error) {
		out, err := act(ctx, ctx.Value(actorKey{}).(authority.Actor), in.Reference)
		return &tagged[Out]{tag(out), out}, err
	})
}

// changing is personal for a change of a task that is held to what was shown.
func changing(s *Server, op openapi.Operation, now func(context.Context, authority.Actor, string) (api.Epoch, error), at func(context.Context, authority.Actor, string, int64) (api.Epoch, error)) {
	op.Conditional = true
	personal(s, op, func(ctx context.Context, m authority.Actor, in *Shown) (api.Epoch, error) {
		epoch, err := shown(in.IfMatch)
		switch {
		case err != nil:
			return api.Epoch{}, err
		case epoch == nil:
			return now(ctx, m, in.Reference)
		}
		return at(ctx, m, in.Reference, *epoch)
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

// epochTag is the tag of a task's authority: its activation epoch, which advances
// with every change of it. What else is shown beside it only passes, such as the
// next time, so it would be wrong to stop a revocation.
func epochTag(epoch int64) string { return `"` + strconv.FormatInt(epoch, 10) + `"` }

// shown reads the epoch that a change is held to. A star says that whatever it is
// now is meant, so that stopping something never has to wait for reading it
// (RFC 9110 §13.1.1, RFC 6585 §3).
func shown(ifMatch string) (epoch *int64, err error) {
	switch ifMatch {
	case "":
		return nil, api.Refuse(api.PreconditionRequired)
	case "*":
		return nil, nil
	}
	n, err := strconv.ParseInt(strings.Trim(ifMatch, `"`), 10, 64)
	if err != nil || epochTag(n) != ifMatch {
		return nil, api.Refuse(api.Stale)
	}
	return &n, nil
}
