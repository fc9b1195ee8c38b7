// Package openapi registers JSON operations as this project means them: strict
// in, one kind of refusal out, and described, each with who may call it and what
// it may refuse (OpenAPI 3.1). It makes huma do the describing and the reading
// of typed operations; those with a form of their own are described beside them.
package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Access is what a caller must prove.
type Access string

// Who may call. An operator is a member whom the configuration names; the
// document describes both by the envelope that they bring.
const (
	Anybody   Access = "anybody"
	Workload  Access = "workload"  // the token endpoint: an assertion or a capability in the form, and a proof
	Holder    Access = "holder"    // a run capability and a proof
	Component Access = "component" // a component capability and a proof
	Member    Access = "member"    // an envelope and a proof
	Auditor   Access = "auditor"   // a member who may read what operators read
	Operator  Access = "operator"  // a member who operates
)

// Personal tells whether an envelope is what opens an operation.
func (a Access) Personal() bool { return a == Member || a == Auditor || a == Operator }

// Operation describes one entry.
type Operation struct {
	Method, Path string
	ID           string // stable: clients that are made from the document name their methods by it
	Summary      string
	Text         string // more, where the summary does not say it all
	Tag          string
	Access       Access
	Gated        bool        // refused while the readiness decision is closed
	Refusals     []api.Code  // beyond those that every entry of this access may answer
	In, Out      any         // an example of each; nil: there is no body
	Query        []Parameter // of an operation that is not typed
	Media        string      // of a request body; JSON
	Answer       string      // media type of an answer; JSON
	Status       int         // of a good answer; 200
	Conditional  bool        // needs If-Match
}

// Parameter is one of the query.
type Parameter struct{ Name, Text string }

// Handler answers one request or refuses it with an error.
type Handler func(http.ResponseWriter, *http.Request) error

// API collects operations and describes them.
type API struct {
	huma    huma.API
	add     func(Operation, Handler)
	ops     map[string]Operation
	current Operation // while it is being registered
	once    sync.Once
	text    []byte
}

// New makes an API that hands each operation to add.
func New(version string, add func(Operation, Handler)) *API {
	a := &API{add: add, ops: map[string]Operation{}}
	strict := huma.Format{Marshal: marshal, Unmarshal: unmarshal}
	a.huma = huma.NewAPI(huma.Config{
		OpenAPI: &huma.OpenAPI{OpenAPI: "3.1.0", Info: info(version), Components: &huma.Components{SecuritySchemes: schemes()}},
		Formats: map[string]huma.Format{"application/json": strict}, DefaultFormat: "application/json",
	}, (*adapter)(a))
	a.huma.OpenAPI().Components.Schemas.RegisterTypeAlias(reflect.TypeFor[json.RawMessage](), reflect.TypeFor[map[string]any]())
	return a
}

// Register adds a typed operation. In has members for parameters (tags path,
// query, header) and Body for a strict JSON body; Out has Body and headers.
func Register[In, Out any](a *API, op Operation, act func(context.Context, *In) (*Out, error)) {
	a.remember(op)
	huma.Register(a.huma, huma.Operation{
		Method: op.Method, Path: op.Path, OperationID: op.ID, MaxBodyBytes: -1, SkipValidateParams: true, SkipValidateBody: true, DefaultStatus: op.Status,
	}, func(ctx context.Context, in *In) (*Out, error) {
		out, err := act(ctx, in)
		if err != nil {
			exchangeOf(ctx).err = err
		}
		return out, err
	})
}

// Hand adds an operation that reads and answers by itself; its examples say
// what it is given and what it answers.
func Hand(a *API, op Operation, h Handler) {
	a.remember(op)
	described := &huma.Operation{Method: op.Method, Path: op.Path, OperationID: op.ID, Responses: map[string]*huma.Response{}}
	schemas := a.huma.OpenAPI().Components.Schemas
	described.Parameters = parameters(op)
	if op.In != nil {
		described.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{or(op.Media, "application/json"): {Schema: schemaOf(schemas, op.In, op.ID)}}}
	}
	good := &huma.Response{}
	if op.Out != nil {
		good.Content = map[string]*huma.MediaType{or(op.Answer, "application/json"): {Schema: schemaOf(schemas, op.Out, op.ID)}}
	}
	described.Responses[code(op.Status)] = good
	a.huma.OpenAPI().AddOperation(described)
	a.add(op, h)
}

func (a *API) remember(op Operation) {
	if _, twice := a.ops[op.ID]; twice {
		panic("the operation " + op.ID + " is registered twice")
	}
	a.ops[op.ID], a.current = op, op
}

func schemaOf(r huma.Registry, example any, id string) *huma.Schema {
	if text, is := example.(string); is && text != "" {
		return &huma.Schema{Type: huma.TypeString}
	}
	return r.Schema(reflect.TypeOf(example), true, id)
}

// adapter is what huma thinks of as a router.
type adapter API

func (a *adapter) Handle(op *huma.Operation, h func(huma.Context)) {
	a.add(a.current, func(w http.ResponseWriter, r *http.Request) error { return serve(op, h, w, r) })
}

func (a *adapter) ServeHTTP(http.ResponseWriter, *http.Request) {
	panic("huma is not asked to route")
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// parameters are those of the path and of the query.
func parameters(op Operation) (out []*huma.Param) {
	for part := range strings.SplitSeq(op.Path, "/") {
		if name, is := strings.CutPrefix(part, "{"); is {
			out = append(out, &huma.Param{Name: strings.TrimSuffix(name, "}"), In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}})
		}
	}
	for _, q := range op.Query {
		out = append(out, &huma.Param{Name: q.Name, In: "query", Description: q.Text, Schema: &huma.Schema{Type: huma.TypeString}})
	}
	return out
}

var errNoExchange = errors.New("an operation was called without its exchange")
