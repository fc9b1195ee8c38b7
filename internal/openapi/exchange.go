package openapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// exchange is one request of a typed operation. Nothing is sent before the
// operation has ended, so that a refusal replaces whatever there was.
type exchange struct {
	humaContext
	ctx    context.Context
	header http.Header
	body   bytes.Buffer
	status int
	err    error
}

type humaContext huma.Context // embedded under a name of ours, because it has a method of its own name

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, ok := ctx.Value(exchangeKey{}).(*exchange)
	if !ok {
		panic(errNoExchange)
	}
	return x
}

func (x *exchange) Context() context.Context        { return x.ctx }
func (x *exchange) SetStatus(status int)            { x.status = status }
func (x *exchange) Status() int                     { return x.status }
func (x *exchange) SetHeader(name, value string)    { x.header.Set(name, value) }
func (x *exchange) AppendHeader(name, value string) { x.header.Add(name, value) }
func (x *exchange) BodyWriter() io.Writer           { return &x.body }
func (x *exchange) SetReadDeadline(time.Time) error { return nil } // the server's own holds

// serve answers one request of a typed operation.
func serve(op *huma.Operation, h func(huma.Context), w http.ResponseWriter, r *http.Request) error {
	if err := acceptable(op, r); err != nil {
		return err
	}
	x := &exchange{humaContext: humago.NewContext(op, r, w), header: http.Header{}, status: http.StatusOK}
	x.ctx = context.WithValue(r.Context(), exchangeKey{}, x)
	h(x)
	if x.err != nil {
		return x.err
	}
	for name, values := range x.header {
		w.Header()[name] = values
	}
	w.WriteHeader(x.status)
	_, _ = w.Write(x.body.Bytes()) // the caller may be gone
	return nil
}

// acceptable refuses what huma would overlook: parameters that are not
// described, or stand twice, and bodies of another type.
func acceptable(op *huma.Operation, r *http.Request) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return api.Refusef(api.InvalidRequest, "The query cannot be read.")
	}
	for name, values := range query {
		if !described(op, name) || len(values) != 1 {
			return api.Refusef(api.InvalidRequest, "The query must have each parameter at most once, and none that the API reference does not name.")
		}
	}
	if op.RequestBody == nil || r.ContentLength == 0 {
		return nil
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || op.RequestBody.Content[media] == nil {
		return api.Refuse(api.UnsupportedMediaType)
	}
	return nil
}

func described(op *huma.Operation, name string) bool {
	for _, p := range op.Parameters {
		if p.In == "query" && p.Name == name {
			return true
		}
	}
	return false
}

func marshal(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = w.Write(text)
	}
	return err
}

// unmarshal is the strict reading of every body (see package canonical).
func unmarshal(text []byte, v any) error { return canonical.Decode(text, v) }

// problem is how huma is told that it has nothing to say: the refusal is kept in
// the exchange and answered by who asked for it.
type problem struct{ status int }

func (p *problem) Error() string  { return http.StatusText(p.status) }
func (p *problem) GetStatus() int { return p.status }

// Schema lets what huma describes be what we answer.
func (*problem) Schema(r huma.Registry) *huma.Schema { return problemSchema(r) }

// huma's own bodies of errors repeat what a caller sent. Its only way to have
// others is these two variables.
var _ = func() struct{} {
	huma.NewError = func(status int, _ string, _ ...error) huma.StatusError { return &problem{status} }
	huma.NewErrorWithContext = func(ctx huma.Context, status int, _ string, errs ...error) huma.StatusError {
		if x, ok := ctx.(*exchange); ok && x.err == nil {
			x.err = badInput(errs)
		}
		return &problem{status}
	}
	return struct{}{}
}()

// badInput is what a request is refused with that never reached its operation.
func badInput(errs []error) error {
	var large *http.MaxBytesError
	if err := errors.Join(errs...); errors.As(err, &large) {
		return fmt.Errorf("a body is too large: %w", large)
	}
	return api.Refusef(api.InvalidRequest, "The body must be one JSON object with exactly the members that the API reference names.")
}
