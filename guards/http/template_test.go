package http

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/upstream"
)

const origin = "https://api.example"

func TestOperationsThatAreNone(t *testing.T) {
	t.Parallel()
	_, err := compileOperation(payment(origin), "Authorization")
	require.NoError(t, err)
	for says, change := range map[string]func(o *Operation){
		`"note" is sent nowhere`: func(o *Operation) {
			o.Request.Headers, o.Request.Body = nil, json.RawMessage(`{"a":"{cents}{to}","b":"{tags}"}`)
		},
		`"to" is sent nowhere`:                   func(o *Operation) { o.Request.Body = json.RawMessage(`{"a":"{cents}","b":"{tags}"}`) },
		"{other} is not a parameter":             func(o *Operation) { o.Request.Query["a"] = "{other}" },
		"{another} is not a parameter":           func(o *Operation) { o.Request.Body = json.RawMessage(`{"a":["{another}"]}`) },
		"{tags} is not a string":                 func(o *Operation) { o.Request.Query["a"] = "{tags}" },
		"{note} is optional":                     func(o *Operation) { o.Request.Query["a"] = "x {note}" },
		"{urgent} is optional":                   func(o *Operation) { o.Request.Body = json.RawMessage(`{"a":"x {urgent}"}`) },
		"url: {note} is optional":                func(o *Operation) { o.Request.URL += "/{note}" },
		"a brace stands alone":                   func(o *Operation) { o.Request.Query["a"] = "{to" },
		"a brace stands":                         func(o *Operation) { o.Request.Query["a"] = "to}" },
		"a brace":                                func(o *Operation) { o.Request.Body = json.RawMessage(`{"a":"{}"}`) },
		"it must be the resource":                func(o *Operation) { o.Request.URL = "https://evil.example/accounts/{account}/payments" },
		"it must be the resource, or":            func(o *Operation) { o.Request.URL = origin + "/accounts/{account}x" },
		"the resource, or the resource and more": func(o *Operation) { o.Request.URL = origin + "/accounts" },
		"or the resource and more segments":      func(o *Operation) { o.Request.URL += "?a=b" },
		"each segment must be plain":             func(o *Operation) { o.Request.URL += "/.." },
		"each segment must be":                   func(o *Operation) { o.Request.URL += "//x" },
		"each segment":                           func(o *Operation) { o.Request.URL += "/x{to}" },
		"segment must be plain":                  func(o *Operation) { o.Request.URL += "/%2e%2e" },
		"plain, or one parameter":                func(o *Operation) { o.Request.URL += "/" },
		"method: it must be":                     func(o *Operation) { o.Request.Method = "TRACE" },
		"method: it must":                        func(o *Operation) { o.Request.Method = "post" },
		"method:":                                func(o *Operation) { o.Request.Method = "GET x\r\n" },
		"none with GET":                          func(o *Operation) { o.Request.Method = "GET" },
		"at most one of them":                    func(o *Operation) { o.Request.Form = map[string]string{} },
		"Host":                                   func(o *Operation) { o.Request.Headers["Host"] = "evil.example" },
		"cookie":                                 func(o *Operation) { o.Request.Headers["cookie"] = "a=b" },
		"content-length":                         func(o *Operation) { o.Request.Headers["content-length"] = "1" },
		"X-HTTP-Method-Override":                 func(o *Operation) { o.Request.Headers["X-HTTP-Method-Override"] = "DELETE" },
		`"a b" is not a template's`:              func(o *Operation) { o.Request.Headers["a b"] = "x" },
		`"authorization" is not a template's`:    func(o *Operation) { o.Request.Headers["authorization"] = "x" },
		`"idempotency-key" is not a template's`:  func(o *Operation) { o.Request.Headers["idempotency-key"] = "{note}" },
		"body: ":                                 func(o *Operation) { o.Request.Body = json.RawMessage(`{"a":1,"a":2}`) },
		"timeout: it must be between":            func(o *Operation) { o.Timeout = time.Hour },
		"timeout:":                               func(o *Operation) { o.Timeout = -1 },
		"302 is not the status of a success":     func(o *Operation) { o.Answer.Success = []int{302} },
		"500 is not the status of a refusal":     func(o *Operation) { o.Answer.Refused = []int{500} },
		"408 is not the status of a refusal":     func(o *Operation) { o.Answer.Refused = []int{408} },
		"200 is not the status of a refusal":     func(o *Operation) { o.Answer.Refused = []int{200} },
		`"" is not a field`:                      func(o *Operation) { o.Answer.Fields = []string{""} },
		`"a..b" is not a field`:                  func(o *Operation) { o.Answer.Fields = []string{"a..b"} },
		`"a[0]" is not a field`:                  func(o *Operation) { o.Answer.Fields = []string{"a[0]"} },
		`"*" is not a field`:                     func(o *Operation) { o.Answer.Fields = []string{"*"} },
		"is too deep":                            func(o *Operation) { o.Answer.Fields = []string{strings.Repeat("a.", 9) + "a"} },
		"inspect: it shows no fields":            func(o *Operation) { o.Inspect.Fields = nil },
		"inspect: url":                           func(o *Operation) { o.Inspect.URL = "https://evil.example/" },
		"inspect: query":                         func(o *Operation) { o.Inspect.Query["a"] = "{other}" },
		"inspect: answer":                        func(o *Operation) { o.Inspect.Fields = []string{"a."} },
		"cannot be the name of an operation":     func(o *Operation) { o.Action = "Pay" },
		"resource":                               func(o *Operation) { o.Resource = origin + "/{account}x" },
		"parameters":                             func(o *Operation) { o.Parameters = json.RawMessage(`{"type":"object"}`) },
	} {
		o := payment(origin)
		change(&o)
		_, err := compileOperation(o, "Authorization")
		require.ErrorContains(t, err, says)
		require.Less(t, len(err.Error()), 300)
	}
}

func spelled(t require.TestingT, o Operation, params any) (*upstream.Request, error) {
	compiled, err := compileOperation(o, "Authorization")
	require.NoError(t, err)
	text, err := canonical.CanonicalizeValue(params)
	require.NoError(t, err)
	_, r, err := compiled.spell(text)
	return r, err
}

func TestSpelling(t *testing.T) {
	t.Parallel()
	r, err := spelled(t, payment(origin), map[string]any{"account": "a b/ä", "cents": 5, "to": `x"\{y}`, "note": "hello", "urgent": false, "tags": []string{"a", "{to}"}})
	require.NoError(t, err)
	require.Equal(t, origin+"/accounts/a%20b%2F%C3%A4/payments?source=night&urgent=false", r.URL.String())
	require.JSONEq(t, `{"amount":{"cents":5,"currency":"EUR"},"kind":"{payment}","note":"hello","steps":[1,true,"hello"],"tags":["a","{to}"],"to":"acct:x\"\\{y}"}`, string(r.Body))
	require.Equal(t, "hello", r.Header.Get("X-Note"))

	form := payment(origin)
	form.Request.Body, form.Request.Method = nil, "PUT"
	form.Request.Form = map[string]string{"cents": "{cents}", "to": "a={to}&", "tags": "none"}
	form.Parameters = json.RawMessage(strings.Replace(string(form.Parameters), `"tags":{"type":"array","maxItems":5,"items":{"type":"string","maxLength":20}}`, `"tags":{"type":"string"}`, 1))
	form.Request.Form["tags"] = "{tags}"
	r, err = spelled(t, form, map[string]any{"account": "a", "cents": 5, "to": "b&cents=6"})
	require.NoError(t, err)
	require.Equal(t, "PUT", r.Method)
	require.Equal(t, "cents=5&to=a%3Db%26cents%3D6%26", string(r.Body))
	require.Equal(t, "application/x-www-form-urlencoded", r.Header.Get("Content-Type"))

	bare := payment(origin)
	bare.Request = Request{Method: "DELETE", Query: map[string]string{"c": "{cents}", "t": "{to}", "n": "{note}", "u": "{urgent}"}, Headers: map[string]string{"Accept": "text/plain"}}
	bare.Parameters = json.RawMessage(strings.Replace(string(bare.Parameters), `,"tags":{"type":"array","maxItems":5,"items":{"type":"string","maxLength":20}}`, ``, 1))
	r, err = spelled(t, bare, map[string]any{"account": "a", "cents": 5, "to": ""})
	require.NoError(t, err)
	require.Equal(t, origin+"/accounts/a?c=5&t=", r.URL.String())
	require.Empty(t, r.Body)
	require.Equal(t, http.Header{"Accept": {"text/plain"}}, r.Header)
}

// Whatever the parameters are, they come out where they belong and nowhere else.
func TestSpellingProperties(t *testing.T) {
	t.Parallel()
	o := payment(origin)
	compiled, err := compileOperation(o, "Authorization")
	require.NoError(t, err)
	text := rapid.StringMatching(`[ -~äé\n\r\x00]{0,30}`)
	rapid.Check(t, func(t *rapid.T) {
		account, to, note := text.Draw(t, "account"), text.Draw(t, "to"), text.Draw(t, "note")
		params, err := canonical.CanonicalizeValue(map[string]any{"account": account, "cents": 7, "to": to, "note": note})
		if err != nil {
			t.Skip(err)
		}
		target, r, err := compiled.spell(params)
		if err != nil {
			return
		}
		if strings.ContainsAny(note, "\r\n\x00ä") || account == "" || account == "." || account == ".." {
			t.Fatalf("%q and %q were spelled", account, note)
		}
		u, err := url.Parse(r.URL.String())
		if err != nil || u.Scheme+"://"+u.Host != origin || u.RawQuery != "source=night" || u.Fragment != "" {
			t.Fatalf("%s leads elsewhere", r.URL)
		}
		segments := strings.Split(u.EscapedPath(), "/")
		if plain, err := url.PathUnescape(segments[2]); err != nil || plain != account || len(segments) != 4 || !strings.HasPrefix(r.URL.String(), target.Resource+"/") {
			t.Fatalf("%q became %s", account, u)
		}
		var body struct{ To, Note string }
		if err := json.Unmarshal(r.Body, &body); err != nil || body.To != "acct:"+to || body.Note != note || r.Header.Get("X-Note") != note {
			t.Fatalf("%q became %s", to, r.Body)
		}
	})
}

func TestFields(t *testing.T) {
	t.Parallel()
	const text = `{"id":7,"big":12345678901234567890,"none":null,"owner":{"name":"Bob","iban":"x"},"lines":[{"id":1,"x":1},{"x":2},"odd",{"id":{"deep":1}}],"tags":["a",{"b":1},3]}`
	for paths, want := range map[string]string{
		"id":             `{"id":7}`,
		"big":            `{"big":12345678901234567890}`,
		"none":           `{"none":null}`,
		"owner":          `{}`,
		"owner.name":     `{"owner":{"name":"Bob"}}`,
		"owner.name.x":   `{"owner":{}}`,
		"lines":          `{}`,
		"lines[]":        `{"lines":["odd"]}`,
		"lines[].id":     `{"lines":[{"id":1},{},{}]}`,
		"tags[]":         `{"tags":["a",3]}`,
		"missing":        `{}`,
		"missing.deeper": `{}`,
		"id owner.name":  `{"id":7,"owner":{"name":"Bob"}}`,
	} {
		f := &fields{}
		for path := range strings.FieldsSeq(paths) {
			require.NoError(t, f.add(path))
		}
		got, err := f.of([]byte(text))
		require.NoError(t, err, paths)
		require.JSONEq(t, want, string(got), paths)
	}
	list := &fields{}
	require.NoError(t, list.add("[].id"))
	got, err := list.of([]byte(`[{"id":1,"x":2},{"id":2}]`))
	require.NoError(t, err)
	require.JSONEq(t, `{"items":[{"id":1},{"id":2}]}`, string(got))
	for _, bad := range []string{``, `{`, `{}`, `"x"`, `null`, `[1`, `[] []`, "\x00", `[{}]x`} {
		_, err := list.of([]byte(bad))
		require.Error(t, err, bad)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{"", "{to}", "a {to} b", "{{to}}", "{{{to}}}", "}", "{", "{to", "{}", "{{}}"} {
		f.Add(seed, "value")
	}
	f.Fuzz(func(t *testing.T, s, value string) {
		parsed, err := parseText(s)
		if err != nil {
			return
		}
		raw, _ := json.Marshal(value)
		v := values{}
		for _, p := range parsed {
			if p.name != "" {
				v[p.name] = raw
			}
		}
		out, _, err := parsed.expand(v)
		if err != nil {
			return
		}
		if len(v) == 0 && out != strings.NewReplacer("{{", "{", "}}", "}").Replace(s) {
			t.Fatalf("%q became %q", s, out)
		}
	})
}

func FuzzFields(f *testing.F) {
	for _, seed := range []string{`{"id":1}`, `[{"id":1}]`, `{"items":[{"id":"x"}]}`, `{"id":{"id":1}}`, `null`} {
		f.Add([]byte(seed))
	}
	allowed := &fields{}
	for _, path := range []string{"id", "items[].id"} {
		require.NoError(f, allowed.add(path))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := allowed.of(text)
		if err != nil {
			return
		}
		var out struct {
			ID    any
			Items []struct{ ID any }
		}
		d := json.NewDecoder(strings.NewReader(string(got)))
		d.DisallowUnknownFields()
		if err := d.Decode(&out); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
	})
}

// ownWork is everything that the guard does for an effect, but for the connection and what its destination does.
func (l *Ledger) ownWork(b *testing.B, answer string) {
	o := l.operations["payment.create"]
	_, request, err := o.spell(json.RawMessage(params)) // as guards do before the capability is compared
	if err != nil {
		b.Error(err)
		return
	}
	a := goAhead(b, l, params)
	_, _, _ = o.spell(a.Params)
	s, _ := l.sender.credential(b.Context())
	l.sender.sign(request, s, a.Effect, o.idempotency)
	ending, err := l.journal.Once(a, func() guards.Ending {
		found, err := o.answer.judge(201, strings.NewReader(answer))
		if err != nil {
			b.Error(err)
		}
		return l.clear(a, found, s)
	})
	if err != nil || ending.Outcome != guards.Committed {
		b.Error(ending, err)
	}
}

// What the guard itself does for one effect. cpu-µs/op is that of this process.
func BenchmarkOwnWork(b *testing.B) {
	answer := `{"id":"p-1","state":"paid","owner":{"name":"` + strings.Repeat("Bob ", 100) + `"},"lines":[{"id":1},{"id":2}]}`
	c := config(b, origin+":8443")
	c.Logger = slog.New(slog.DiscardHandler)
	l := newLedger(b, c)
	o := l.operations["payment.create"]
	b.Run("template", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _, _ = o.spell(json.RawMessage(params))
		}
	})
	b.Run("credential", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = l.sender.credential(b.Context())
		}
	})
	b.Run("answer and scrubber", func(b *testing.B) {
		b.ReportAllocs()
		s, _ := l.sender.credential(b.Context())
		for b.Loop() {
			found, _ := o.answer.judge(201, strings.NewReader(answer))
			_, _ = s.Set().Bytes(found.fields)
		}
	})
	for name, callers := range map[string]int{"all, alone": 1, "all, 64 at once": 64} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(max(1, callers/runtime.GOMAXPROCS(0)))
			before := cpu(b)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					l.ownWork(b, answer)
				}
			})
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
	server := httptest.NewServer(saying(201, answer))
	b.Cleanup(server.Close)
	whole := newLedger(b, config(b, server.URL))
	b.Run("with connection and destination", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			a := goAhead(b, whole, params)
			ending, err := whole.Apply(b.Context(), a)
			require.NoError(b, err)
			require.EqualValues(b, "committed", ending.Outcome)
		}
	})
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
