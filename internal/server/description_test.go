package server_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/openapi/openapitest"
	"github.com/nightwarrant/nightwarrant/internal/server"
)

// The description names every route and no other; each with who may call it, what it may refuse and an example of what goes in and comes out.
func TestEveryRouteIsDescribed(t *testing.T) {
	t.Parallel()
	s := server.New(&authority.Authority{}, nil, nil)
	c, err := openapitest.New(s.Description())
	require.NoError(t, err)
	described := 0
	for _, item := range c.Doc.Paths.Map() {
		described += len(item.Operations())
	}
	assert.Equal(t, len(s.Routes()), described)
	ids := map[string]bool{}
	for _, r := range s.Routes() {
		name := r.Method + " " + r.Path
		item := c.Doc.Paths.Value(r.Path)
		require.NotNil(t, item, name)
		op := item.GetOperation(r.Method)
		require.NotNil(t, op, name)
		assert.False(t, ids[op.OperationID], "%s: its id stands twice", name)
		ids[op.OperationID] = true
		assert.NotEmpty(t, op.Summary, name)
		assert.Len(t, op.Tags, 1, name)
		assert.Equal(t, string(r.Access), op.Extensions["x-access"], name)
		assert.Equal(t, r.Gated, op.Extensions["x-gated"], name)
		security(t, name, op, r)
		examples(t, name, op)
		refusals(t, name, op, r)
		assert.Equal(t, strings.Contains(r.Path, "{"), slices.ContainsFunc(op.Parameters, func(p *openapi3.ParameterRef) bool { return p.Value.In == "path" }), name)
		for _, p := range op.Parameters {
			assert.NotEmpty(t, p.Value.Description, "%s: %s", name, p.Value.Name)
		}
	}
}

func security(t *testing.T, name string, op *openapi3.Operation, r server.Route) {
	t.Helper()
	require.NotNil(t, op.Security, name)
	if r.Access == "anybody" {
		assert.Empty(t, *op.Security, name)
		return
	}
	require.Len(t, *op.Security, 1, name)
	schemes := (*op.Security)[0]
	assert.Contains(t, schemes, "proof", name)
	assert.Equal(t, r.Access.Personal(), has(schemes, "envelope"), name)
	assert.Equal(t, r.Access == "holder" || r.Access == "component", has(schemes, "capability"), name)
}

func has[K comparable, V any](m map[K]V, key K) bool {
	_, ok := m[key]
	return ok
}

func examples(t *testing.T, name string, op *openapi3.Operation) {
	t.Helper()
	if op.RequestBody != nil {
		for media, c := range op.RequestBody.Value.Content {
			assert.NotNil(t, c.Example, "%s: no example of a request, %s", name, media)
		}
	}
	for status, r := range op.Responses.Map() {
		assert.NotEmpty(t, *r.Value.Description, name)
		for media, c := range r.Value.Content {
			assert.NotNil(t, c.Example, "%s: no example of %s %s", name, status, media)
		}
	}
}

// refusals: each code stands at its own status; a gated route says that it may be closed, and nobody else does.
func refusals(t *testing.T, name string, op *openapi3.Operation, r server.Route) {
	t.Helper()
	listed := map[api.Code]string{}
	for status, response := range op.Responses.Map() {
		if status < "400" {
			continue
		}
		all, _ := response.Value.Extensions["x-codes"].([]any)
		require.NotEmpty(t, all, "%s: %s names no code", name, status)
		for _, c := range all {
			listed[api.Code(c.(string))] = status
		}
	}
	for code := range listed {
		assert.Contains(t, api.Codes(), code, name)
	}
	assert.Contains(t, listed, api.Internal, name)
	assert.Equal(t, r.Gated, has(listed, api.AdmissionClosed), name)
	assert.Equal(t, r.Access.Personal(), has(listed, api.InvalidEnvelope), name)
	if strings.Contains(r.Path, "{") {
		assert.True(t, has(listed, api.NotFound) || has(listed, api.UnknownFamily), name)
	}
}

// A schema says exactly which members there are: nothing in it may be anything, but for documents and parameters that others write.
func TestSchemasAreClosed(t *testing.T) {
	t.Parallel()
	c, err := openapitest.New(server.New(&authority.Authority{}, nil, nil).Description())
	require.NoError(t, err)
	assert.Greater(t, len(c.Doc.Components.Schemas), 30)
	for name, s := range c.Doc.Components.Schemas {
		assert.Equal(t, "object", s.Value.Type.Slice()[0], name)
		require.NotNil(t, s.Value.AdditionalProperties.Has, name)
		assert.False(t, *s.Value.AdditionalProperties.Has, name)
		for member, m := range s.Value.Properties {
			assert.False(t, m.Value.IsEmpty(), "%s.%s may be anything", name, member)
			assert.False(t, m.Value.Nullable, "%s.%s", name, member)
		}
	}
}

// The checker finds what is not as described, or it would prove nothing.
func TestTheCheckerFindsDifferences(t *testing.T) {
	t.Parallel()
	c, err := openapitest.New(server.New(&authority.Authority{}, nil, nil).Description())
	require.NoError(t, err)
	ask := func(method, path string) *http.Request {
		r, err := http.NewRequest(method, "https://authority.example"+path, nil)
		require.NoError(t, err)
		return r
	}
	good := http.Header{"Content-Type": {"application/json"}, "Dpop-Nonce": {"n"}}
	bad := http.Header{"Content-Type": {"application/problem+json"}, "Dpop-Nonce": {"n"}, "Www-Authenticate": {"DPoP"}}
	without := func(h http.Header, name string) http.Header {
		h = h.Clone()
		h.Del(name)
		return h
	}
	problem := func(code api.Code, status int) []byte {
		text, err := json.Marshal(api.Refuse(code).Problem(status))
		require.NoError(t, err)
		return text
	}
	tasks := []byte(`{"items":[]}`)
	require.NoError(t, c.Check(ask("GET", api.PathTasks), 200, good, tasks))
	require.NoError(t, c.Check(ask("GET", api.PathTasks), 401, bad, problem(api.InvalidEnvelope, 401)))
	require.NoError(t, c.Check(ask("GET", "/v1/other"), 404, bad, problem(api.NotFound, 404)))
	for name, check := range map[string]error{
		"another status":          c.Check(ask("GET", api.PathTasks), 201, good, tasks),
		"a missing member":        c.Check(ask("GET", api.PathTasks), 200, good, []byte(`{}`)),
		"null for a list":         c.Check(ask("GET", api.PathTasks), 200, good, []byte(`{"items":null}`)),
		"one member more":         c.Check(ask("GET", api.PathTasks), 200, good, []byte(`{"items":[],"count":0}`)),
		"another type":            c.Check(ask("GET", api.PathTasks), 200, good, []byte(`{"items":{}}`)),
		"no JSON":                 c.Check(ask("GET", api.PathTasks), 200, good, []byte(`{"items"`)),
		"another media type":      c.Check(ask("GET", api.PathTasks), 200, http.Header{"Content-Type": {"text/html"}, "Dpop-Nonce": {"n"}}, tasks),
		"no nonce":                c.Check(ask("GET", api.PathTasks), 200, without(good, "Dpop-Nonce"), tasks),
		"no challenge":            c.Check(ask("GET", api.PathTasks), 401, without(bad, "Www-Authenticate"), problem(api.InvalidEnvelope, 401)),
		"a code of another route": c.Check(ask("GET", api.PathTasks), 401, bad, problem(api.InvalidClient, 401)),
		"a page for nobody":       c.Check(ask("GET", "/v1/other"), 200, good, tasks),
		"a bare 404":              c.Check(ask("GET", "/v1/other"), 404, good, []byte("404 page not found")),
	} {
		assert.Error(t, check, name)
	}
	_, err = openapitest.New(bytes.Replace(server.New(&authority.Authority{}, nil, nil).Description(), []byte(`"3.1.0"`), []byte(`"3.0.3"`), 1))
	assert.Error(t, err)
}
