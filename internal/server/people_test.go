package server_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/server"
)

// filled is a route's path with something in it for each parameter.
func filled(path, reference string) string {
	return strings.NewReplacer("{reference}", reference, "{kind}", "Client", "{name}", "books", "{family}", "guards").Replace(path)
}

// people are the routes that an envelope opens.
func people(h *authoritytest.House) (out []server.Route) {
	for _, r := range h.Server.Routes() {
		if r.Access.Personal() {
			out = append(out, r)
		}
	}
	return out
}

// hostile bodies are JSON for somebody who reads generously, or would cost much to read.
func hostile() map[string]string {
	digest := strings.Repeat("A", 43)
	return map[string]string{
		"a member twice":             `{"digest":"` + digest + `","digest":"` + digest + `"}`,
		"a member in another case":   `{"Digest":"` + digest + `"}`,
		"both cases":                 `{"digest":"` + digest + `","DIGEST":"` + digest + `"}`,
		"a member that is unknown":   `{"digest":"` + digest + `","$schema":"https://evil.example/x.json"}`,
		"data behind it":             `{"digest":"` + digest + `"} {}`,
		"a list":                     `[]`,
		"a text":                     `"` + digest + `"`,
		"null":                       `null`,
		"null for a member":          `{"digest":null}`,
		"a number for a text":        `{"digest":1}`,
		"no JSON":                    `{"digest":`,
		"a comment":                  "{/* yes */}",
		"a byte order mark":          "\ufeff{}",
		"half a surrogate":           `{"digest":"\ud800"}`,
		"bytes that are no UTF-8":    "{\"digest\":\"\xff\xfe\"}",
		"nesting":                    strings.Repeat(`{"digest":`, 30_000/10) + "1" + strings.Repeat("}", 3_000),
		"nesting of lists":           `{"digest":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`,
		"a number that is very long": `{"digest":` + strings.Repeat("9", 30_000) + `}`,
		"YAML":                       "digest: " + digest,
		"white space":                "   ",
	}
}

// Whatever is wrong with a body, the answer is one sentence of ours that repeats nothing of it, and nothing has happened.
func TestHostileBodiesOfPeople(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	operator := h.Person(authoritytest.OperatorName)
	before, tried := h.Consumed(), 0
	for _, r := range people(h) {
		if r.Method == "GET" || r.Path == api.PathRegistry || strings.HasSuffix(r.Path, "/revoke") || strings.HasSuffix(r.Path, "/cut-off") && r.Path != api.PathCutOff {
			continue // have no JSON body
		}
		path := filled(r.Path, task)
		for name, body := range hostile() {
			a := h.Send(operator.Request(r.Method, path, "application/json", []byte(body)))
			assert.Equal(t, http.StatusBadRequest, a.Status, "%s %s: %s", r.Method, path, name)
			assert.Equal(t, api.InvalidRequest, a.Problem().Code, "%s %s: %s", r.Method, path, name)
			assert.Less(t, len(a.Body), 600, "%s: an answer repeats what was sent", name)
			assert.NotContains(t, string(a.Body), "evil.example")
			tried++
		}
		for _, kind := range []string{"", "text/plain", "application/x+json", "application/json+x", "application/cbor", "application/json, text/html", "application/*"} {
			a := h.Send(operator.Request(r.Method, path, kind, []byte(`{}`)))
			assert.Equal(t, api.UnsupportedMediaType, a.Problem().Code, "%s %s: %q", r.Method, path, kind)
		}
		a := h.Send(operator.Request(r.Method, path, "application/json", append([]byte(`{"digest":"`), bytes.Repeat([]byte("A"), 70<<10)...)))
		assert.Equal(t, api.PayloadTooLarge, a.Problem().Code, "%s %s", r.Method, path)
	}
	assert.Greater(t, tried, 100)
	assert.Equal(t, before, h.Consumed())
}

// A stranger learns nothing from what is wrong with the rest of a request: who asks comes first.
func TestStrangersAreToldNothingOfTheirBody(t *testing.T) {
	t.Parallel()
	h := authoritytest.Bare(t)
	for _, r := range people(h) {
		for _, body := range []string{`{`, `{"digest":1}`, strings.Repeat("x", 1000)} {
			a := h.Send(h.Request(r.Method, filled(r.Path, authoritytest.NewAttempt())+"?nonsense=1", "text/html", []byte(body)))
			assert.Equal(t, api.InvalidEnvelope, a.Problem().Code, "%s %s", r.Method, r.Path)
			assert.Len(t, a.Header.Values("WWW-Authenticate"), 1)
			assert.Equal(t, "no-store", a.Header.Get("Cache-Control"))
		}
	}
}

// A filter that is misspelled must not widen what is answered, and one that stands twice must not mean the first.
func TestQueriesAreStrict(t *testing.T) {
	t.Parallel()
	h := authoritytest.Bare(t)
	member := h.Person(authoritytest.MemberName)
	for _, query := range []string{"tasks=x", "Task=x", "task=a&task=b", "cursor=&cursor=", "task[]=x", "%zz", "task=%zz", "a;b", "limit=1000000"} {
		a := h.Send(member.Request("GET", api.PathRuns+"?"+query, "", nil))
		assert.Equal(t, api.InvalidRequest, a.Problem().Code, query)
	}
	for _, cursor := range []string{"x", "MQ", strings.Repeat("A", 5000), "0", "-1", "'; DROP TABLE nw.runs; --", "%00"} {
		r := member.Request("GET", api.PathRuns, "", nil)
		r.URL.RawQuery = "cursor=" + strings.NewReplacer("'", "%27", " ", "%20", ";", "%3b").Replace(cursor)
		assert.Equal(t, api.InvalidRequest, h.Send(r).Problem().Code, cursor)
	}
	operator := h.Person(authoritytest.OperatorName)
	for _, since := range []string{"yesterday", "2026-12-01", "0", "2026-13-01T00:00:00Z"} {
		assert.Equal(t, api.InvalidRequest, h.Send(operator.Request("GET", api.PathAudit+"?since="+since, "", nil)).Problem().Code, since)
		assert.Equal(t, api.InvalidRequest, h.Send(operator.Request("GET", api.PathAuditExport+"?until="+since, "", nil)).Problem().Code, since)
	}
	for _, in := range []api.CutOffRequest{{}, {Client: "books", All: true}} {
		assert.Equal(t, api.InvalidRequest, codeOf(operator.JSON("POST", api.PathCutOff, in, nil)))
	}
}

// What ends authority is held to what was shown: nothing said is refused, something else is stale, and a star is always possible.
func TestChangesAreHeldToWhatWasShown(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	member, operator := h.Person(authoritytest.MemberName), h.Person(authoritytest.OperatorName)
	tag := func() string {
		a := h.Send(member.Request("GET", api.PathTasks+"/"+task, "", nil))
		scope := h.Send(member.Request("GET", api.PathTasks+"/"+task+"/revocation", "", nil))
		require.Equal(t, http.StatusOK, scope.Status)
		assert.Equal(t, a.Header.Get("ETag"), scope.Header.Get("ETag"))
		return a.Header.Get("ETag")
	}
	change := func(p *authoritytest.Person, verb, ifMatch string) authoritytest.Answer {
		r := p.Request("POST", api.PathTasks+"/"+task+"/"+verb, "", nil)
		r.Header.Del("If-Match")
		if ifMatch != "" {
			r.Header.Set("If-Match", ifMatch)
		}
		return h.Send(r)
	}
	first := tag()
	require.NotEmpty(t, first)
	for verb, p := range map[string]*authoritytest.Person{"revoke": member, "cut-off": operator} {
		for ifMatch, want := range map[string]api.Code{"": api.PreconditionRequired, `"0"`: api.Stale, `W/` + first: api.Stale, strings.Trim(first, `"`): api.Stale, first + ", " + first: api.Stale,
			`"*"`: api.Stale, `""`: api.Stale, `"99999999999999999999"`: api.Stale, `"+1"`: api.Stale, `"01"`: api.Stale, `"' OR true"`: api.Stale} {
			before := h.Consumed()
			a := change(p, verb, ifMatch)
			assert.Equal(t, want, a.Problem().Code, "%s: %s", verb, ifMatch)
			assert.Equal(t, before, h.Consumed(), "%s: %s", verb, ifMatch)
		}
	}
	assert.Equal(t, api.Forbidden, change(member, "cut-off", first).Problem().Code)
	require.Equal(t, http.StatusOK, change(operator, "cut-off", first).Status)
	second := tag()
	assert.NotEqual(t, first, second)
	assert.Equal(t, http.StatusPreconditionFailed, change(member, "revoke", first).Status, "it has been cut off since")
	require.Equal(t, http.StatusOK, change(member, "revoke", second).Status)
	assert.Equal(t, api.ConsentEnded, change(member, "revoke", "*").Problem().Code)
	require.Equal(t, http.StatusOK, change(operator, "cut-off", "*").Status, "stopping never has to wait for reading")
}

// The tag of what is shown changes with it, and not with time that only passes.
func TestTags(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Apply(h.Task("close-the-day"))
	member := h.Person(authoritytest.MemberName)
	var offers api.Page[api.Offer]
	h.Into(h.Send(member.Request("GET", api.PathOffers, "", nil)), &offers)
	require.Len(t, offers.Items, 1)
	path := api.PathOffers + "/" + offers.Items[0].Offer
	tag := func() string {
		a := h.Send(member.Request("GET", path, "", nil))
		require.Regexp(t, `^"[A-Za-z0-9_-]{22}"$`, a.Header.Get("ETag"))
		return a.Header.Get("ETag")
	}
	open := tag()
	assert.Equal(t, open, tag())
	require.NoError(t, member.JSON("POST", path+"/decline", api.Answer{Digest: offers.Items[0].Digest}, nil))
	assert.NotEqual(t, open, tag(), "it is declined now")
}

// What is foreign, what is unknown and what is no reference look the same, at every route.
func TestForeignAndUnknownLookTheSame(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	run := h.Plan(task)
	other := h.Person("member-2")
	body, err := json.Marshal(api.Answer{Digest: strings.Repeat("A", 43)})
	require.NoError(t, err)
	seen := 0
	for _, r := range people(h) {
		if r.Access != "member" || !strings.Contains(r.Path, "{reference}") {
			continue
		}
		sent := body
		if r.Method == "GET" {
			sent = nil
		}
		if strings.HasSuffix(r.Path, "/narrow") {
			sent = []byte(`{}`)
		}
		var want []byte
		for _, reference := range []string{authoritytest.NewAttempt(), task, run, "x", strings.Repeat("A", 23), "..%2f..", "%00"} {
			a := h.Send(other.Request(r.Method, filled(r.Path, reference), "application/json", sent))
			assert.Equal(t, api.NotFound, a.Problem().Code, "%s %s with %s: %s", r.Method, r.Path, reference, a.Body)
			if want == nil {
				want = a.Body
			}
			assert.Equal(t, string(want), string(a.Body), r.Path)
		}
		seen++
	}
	assert.Greater(t, seen, 8)
}

// The export of the audit log is JSON lines whose last one says that it is whole, and nobody's but an operator's or auditor's.
func TestAuditIsExported(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Consent(h.Task("close-the-day"))
	assert.Equal(t, api.Forbidden, h.Send(h.Person(authoritytest.MemberName).Request("GET", api.PathAuditExport, "", nil)).Problem().Code)
	a := h.Send(h.Person(authoritytest.OperatorName).Request("GET", api.PathAuditExport, "", nil))
	require.Equal(t, http.StatusOK, a.Status, string(a.Body))
	lines := strings.Split(strings.TrimSpace(string(a.Body)), "\n")
	var end api.AuditEnd
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &end))
	assert.True(t, end.End)
	assert.EqualValues(t, len(lines)-1, end.Lines)
	var found api.AuditPage
	h.Into(h.Send(h.Person(authoritytest.OperatorName).Request("GET", api.PathAudit+"?verb=consent&verdict=ok", "", nil)), &found)
	require.Len(t, found.Items, 1)
	assert.Equal(t, "consent", found.Items[0].Verb)
}
