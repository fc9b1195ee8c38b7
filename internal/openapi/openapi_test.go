package openapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/openapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type in struct {
	Reference string `path:"reference"`
	Cursor    string `query:"cursor"`
	Body      api.Answer
}

type out struct {
	ETag string `header:"ETag"`
	Body api.Consent
}

var operation = openapi.Operation{Method: "POST", Path: "/v1/things/{reference}", ID: "thing", Summary: "A thing", Tag: "members", Access: openapi.Member, In: api.Answer{}, Out: api.Consent{}}

// thing is an API with one typed operation.
func thing(act func(context.Context, *in) (*out, error)) openapi.Handler {
	var handle openapi.Handler
	openapi.Register(openapi.New("1", func(_ openapi.Operation, h openapi.Handler) { handle = h }), operation, act)
	return handle
}

func ask(kind, query, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/things/x", strings.NewReader(body))
	r.URL.RawQuery = query
	r.SetPathValue("reference", "x")
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	return r
}

// What huma would answer by itself is a refusal of ours, before the operation and with nothing sent.
func TestNothingReachesAnOperationThatIsNotDescribed(t *testing.T) {
	t.Parallel()
	handle := thing(func(context.Context, *in) (*out, error) { panic("it was reached") })
	for name, c := range map[string]struct {
		kind, query, body string
		code              api.Code
	}{
		"no body":           {"application/json", "", "", api.InvalidRequest},
		"an unknown member": {"application/json", "", `{"digest":"a","x":1}`, api.InvalidRequest},
		"a member twice":    {"application/json", "", `{"digest":"a","digest":"b"}`, api.InvalidRequest},
		"another case":      {"application/json", "", `{"Digest":"a"}`, api.InvalidRequest},
		"a schema":          {"application/json", "", `{"$schema":"x","digest":"a"}`, api.InvalidRequest},
		"another type":      {"application/cbor", "", "\xa1", api.UnsupportedMediaType},
		"no type":           {"", "", `{"digest":"a"}`, api.UnsupportedMediaType},
		"a parameter more":  {"application/json", "limit=9", `{"digest":"a"}`, api.InvalidRequest},
		"a parameter twice": {"application/json", "cursor=a&cursor=b", `{"digest":"a"}`, api.InvalidRequest},
		"no query":          {"application/json", "%zz", `{"digest":"a"}`, api.InvalidRequest},
	} {
		w := httptest.NewRecorder()
		var r *api.Refusal
		require.ErrorAs(t, handle(w, ask(c.kind, c.query, c.body)), &r, name)
		assert.Equal(t, c.code, r.Code, name)
		assert.Empty(t, w.Body.String(), name)
		assert.Empty(t, w.Header(), name)
	}
}

// A body that is too large, or breaks off, is told apart from one that is wrong.
func TestBodiesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	handle := thing(func(context.Context, *in) (*out, error) { panic("it was reached") })
	r := ask("application/json", "", strings.Repeat("x", 100))
	r.Body = http.MaxBytesReader(nil, r.Body, 10)
	var large *http.MaxBytesError
	require.ErrorAs(t, handle(httptest.NewRecorder(), r), &large)
}

// An operation that refuses has sent nothing, and its own error comes back as it is.
func TestARefusalReplacesEverything(t *testing.T) {
	t.Parallel()
	own := errors.New("a cause for the log")
	for _, err := range []error{own, api.Refuse(api.Stale), context.Canceled} {
		w := httptest.NewRecorder()
		handle := thing(func(context.Context, *in) (*out, error) { return &out{ETag: `"x"`}, err })
		assert.Equal(t, err, handle(w, ask("application/json", "", `{"digest":"a"}`)))
		assert.Empty(t, w.Header())
		assert.Empty(t, w.Body.String())
	}
}

// What cannot be written is no answer: who asked is told that something failed, and nothing else was sent.
func TestAnAnswerThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	type broken struct {
		Body struct{ Document json.RawMessage }
	}
	var handle openapi.Handler
	openapi.Register(openapi.New("1", func(_ openapi.Operation, h openapi.Handler) { handle = h }), operation, func(context.Context, *in) (*broken, error) {
		b := &broken{}
		b.Body.Document = json.RawMessage(`{`)
		return b, nil
	})
	w := httptest.NewRecorder()
	assert.Panics(t, func() { _ = handle(w, ask("application/json", "", `{"digest":"a"}`)) }, "the envelope around it answers")
	assert.Empty(t, w.Body.String())
}

func TestGoodAnswers(t *testing.T) {
	t.Parallel()
	handle := thing(func(_ context.Context, i *in) (*out, error) {
		return &out{ETag: openapi.Tag(i.Body), Body: api.Consent{Consent: i.Reference, Digest: i.Body.Digest, Task: i.Cursor}}, nil
	})
	w := httptest.NewRecorder()
	require.NoError(t, handle(w, ask("application/json; charset=utf-8", "cursor=c", `{"digest":"a"}`)))
	assert.Equal(t, http.StatusOK, w.Code)
	assert.Equal(t, openapi.Tag(api.Answer{Digest: "a"}), w.Header().Get("ETag"))
	assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
	assert.Contains(t, w.Body.String(), `"consent":"x","task":"c","digest":"a"`)
	assert.NotContains(t, w.Body.String(), "$schema")
	assert.NotEqual(t, openapi.Tag(api.Answer{Digest: "a"}), openapi.Tag(api.Answer{Digest: "b"}))
	assert.Empty(t, openapi.Tag(json.RawMessage("{")))
}

// Two operations of one name would be one method of every client that is made from the description.
func TestAnIDStandsOnce(t *testing.T) {
	t.Parallel()
	a := openapi.New("1", func(openapi.Operation, openapi.Handler) {})
	openapi.Hand(a, operation, nil)
	assert.Panics(t, func() { openapi.Hand(a, operation, nil) })
}

// Whatever is sent, it is read strictly or refused by us, and a refusal has sent nothing.
func FuzzRequests(f *testing.F) {
	f.Add("application/json", "cursor=c", `{"digest":"a"}`)
	f.Add("application/json", "", `{"digest":"a","digest":"b"}`)
	f.Add("application/problem+json", "a=b&a=c", `{`)
	f.Add("multipart/form-data; boundary=x", "cursor[]=c", "--x--")
	f.Fuzz(func(t *testing.T, kind, query, body string) {
		handle := thing(func(_ context.Context, i *in) (*out, error) {
			return &out{Body: api.Consent{Digest: i.Body.Digest}}, nil
		})
		w := httptest.NewRecorder()
		err := handle(w, ask(kind, query, body))
		if err != nil {
			var r *api.Refusal
			if !errors.As(err, &r) || w.Body.Len() != 0 {
				t.Fatalf("%v, after %d bytes", err, w.Body.Len())
			}
			return
		}
		var members map[string]string
		if json.Unmarshal([]byte(body), &members) != nil || len(members) > 1 {
			t.Fatalf("something else than one member was taken: %q", body)
		}
		if q, err := url.ParseQuery(query); err != nil || len(q) > 1 || len(q["cursor"]) != len(q) {
			t.Fatalf("another query was taken: %q", query)
		}
	})
}
