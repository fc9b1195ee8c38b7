package model

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/guards"
)

// TestCostIsNeverLessThanWhatWasUsed: the charge is the smallest whole number that is not less than the exact cost.
func TestCostIsNeverLessThanWhatWasUsed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := Price{rapid.Int64Range(0, maxPrice).Draw(t, "input price"), rapid.Int64Range(0, maxPrice).Draw(t, "output price")}
		u := usage{rapid.Int64Range(1, maxReported).Draw(t, "input"), rapid.Int64Range(0, maxReported).Draw(t, "output")}
		exact := new(big.Rat).SetFrac(new(big.Int).Add(new(big.Int).Mul(big.NewInt(p.Input), big.NewInt(u.input)),
			new(big.Int).Mul(big.NewInt(p.Output), big.NewInt(u.output))), big.NewInt(million))
		charge := new(big.Rat).SetInt64(p.cost(u))
		if charge.Cmp(exact) < 0 || new(big.Rat).Sub(charge, exact).Cmp(big.NewRat(1, 1)) >= 0 {
			t.Fatalf("%v is charged for %v", charge, exact)
		}
		if p.cost(u) < 0 || p.cost(u) > 1_000_000_000_000 {
			t.Fatalf("%d is no amount", p.cost(u))
		}
	})
}

// TestReservationCoversEveryHonestCall: as many tokens as there are bytes, and as many out as were asked for, never cost more
// than the worst case; and two calls never cost less than both.
func TestReservationCoversEveryHonestCall(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &served{Model: Model{Price: Price{rapid.Int64Range(0, maxPrice).Draw(t, "in"), rapid.Int64Range(0, maxPrice).Draw(t, "out")},
			Overhead: rapid.Int64Range(0, maxOverhead).Draw(t, "overhead")}}
		c := &call{model: m, body: make([]byte, rapid.IntRange(1, 4096).Draw(t, "bytes")), asked: asked{output: rapid.Int64Range(1, million).Draw(t, "bound")}}
		honest := usage{rapid.Int64Range(1, int64(len(c.body))+m.Overhead).Draw(t, "input"), rapid.Int64Range(0, c.output).Draw(t, "output")}
		if m.Price.cost(honest) > c.worst() {
			t.Fatalf("%d is more than %d", m.Price.cost(honest), c.worst())
		}
		twice := usage{2 * honest.input, 2 * honest.output}
		if m.Price.cost(twice) > 2*m.Price.cost(honest) {
			t.Fatal("two calls cost less than one of both")
		}
	})
}

func TestCosts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p    Price
		u    usage
		want int64
	}{
		{Price{0, 0}, usage{100, 100}, 0},
		{Price{1, 1}, usage{1, 0}, 1},
		{Price{million, 0}, usage{1, 0}, 1},
		{Price{250, 1000}, usage{4000, 0}, 1},
		{Price{250, 1000}, usage{4001, 0}, 2},
		{Price{maxPrice, maxPrice}, usage{maxReported, maxReported}, 200_000_000_000},
	} {
		require.Equal(t, c.want, c.p.cost(c.u), "%v %v", c.p, c.u)
	}
}

func TestRequestIsRefused(t *testing.T) {
	t.Parallel()
	message := func(content string) string {
		return `{"model":"little","max_tokens":5,"messages":[{"role":"user","content":` + content + `}]}`
	}
	more := func(member string) string { return `{"model":"little","max_tokens":5,"messages":[],` + member + `}` }
	item := func(item string) string { return `{"model":"little","max_output_tokens":5,"input":[` + item + `]}` }
	for _, c := range []struct{ action, body, says string }{
		{ChatComplete, ``, "not one JSON object"},
		{ChatComplete, `[]`, "not one JSON object"},
		{ChatComplete, `{"model":"little"} {}`, "not one JSON object"},
		{ChatComplete, `{"model":"little","model":"large","max_tokens":5}`, "not one JSON object"},
		{ChatComplete, `{"model":"little","messages":[{"role":"user","role":"system"}],"max_tokens":5}`, "not one JSON object"},
		{ChatComplete, `{"model":"little","max_tokens":5,"messages":[` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `]}`, "not one JSON object"},
		{ChatComplete, `{"model":"little","messages":[]}`, "must bound its output"},
		{ChatComplete, `{"model":"little","max_tokens":5,"max_completion_tokens":5}`, "must bound its output"},
		{ChatComplete, `{"model":"little","max_output_tokens":5}`, "does not pass on"},
		{ChatComplete, more(`"max_completion_tokens":5`), "must bound its output"},
		{ChatComplete, `{"model":"little","max_tokens":0}`, "1 to 1,000,000"},
		{ChatComplete, `{"model":"little","max_tokens":-1}`, "1 to 1,000,000"},
		{ChatComplete, `{"model":"little","max_tokens":1000001}`, "1 to 1,000,000"},
		{ChatComplete, `{"model":"little","max_tokens":5.5}`, `"max_tokens" has a value`},
		{ChatComplete, `{"model":"little","max_tokens":5e1}`, `"max_tokens" has a value`},
		{ChatComplete, `{"model":"little","max_tokens":"5"}`, `"max_tokens" has a value`},
		{ChatComplete, `{"model":"little","max_tokens":null}`, `"max_tokens" has a value`},
		{ChatComplete, `{"model":7,"max_tokens":5}`, `"model" has a value`},
		{ChatComplete, `{"Model":"little","max_tokens":5}`, "does not pass on."},
		{ChatComplete, more(`"n":2`), `"n" has a value`},
		{ChatComplete, more(`"n":1.0`), `"n" has a value`},
		{ChatComplete, more(`"stream":1`), `"stream" has a value`},
		{ChatComplete, more(`"stream":true`), "must tell its usage"},
		{ChatComplete, more(`"stream":true,"stream_options":{"include_usage":false}`), "must tell its usage"},
		{ChatComplete, more(`"stream":true,"stream_options":{"include_usage":true,"elsewhere":1}`), `"stream_options" has a value`},
		{ChatComplete, more(`"stream_options":{"include_usage":true}`), "Only a stream"},
		{ChatComplete, more(`"tools":[{"type":"web_search"}]`), `"tools" has a value`},
		{ChatComplete, more(`"tools":[{"function":{}}]`), `"tools" has a value`},
		{ChatComplete, more(`"tools":{"type":"function"}`), `"tools" has a value`},
		{ChatComplete, more(`"modalities":["audio"]`), "does not pass on: modalities"},
		{ChatComplete, more(`"prediction":{}`), "does not pass on: prediction"},
		{ChatComplete, more(`"service_tier":"priority"`), "does not pass on: service_tier"},
		{ChatComplete, more(`"x_secret_of_mine":1`), "does not pass on."},
		{ChatComplete, message(`[{"type":"image_url","image_url":{"url":"https://169.254.169.254/"}}]`), `"messages" has a value`},
		{ChatComplete, message(`[{"type":"file","file":{"file_id":"f"}}]`), `"messages" has a value`},
		{ChatComplete, message(`[{"type":"text","text":"a","image_url":"b"}]`), `"messages" has a value`},
		{ChatComplete, message(`{"type":"text","text":"a"}`), `"messages" has a value`},
		{ChatComplete, message(`7`), `"messages" has a value`},
		{ChatComplete, `{"model":"little","max_tokens":5,"messages":["hello"]}`, `"messages" has a value`},
		{ChatComplete, `{"model":"little","max_tokens":5,"messages":[{"role":"assistant","audio":{"id":"a"}}]}`, `"messages" has a value`},
		{ResponseCreate, `{"model":"little","max_tokens":5,"input":"a"}`, "does not pass on"},
		{ResponseCreate, `{"model":"little","max_output_tokens":5,"input":"a","previous_response_id":"r"}`, "previous_response_id"},
		{ResponseCreate, `{"model":"little","max_output_tokens":5,"input":"a","conversation":"c"}`, "conversation"},
		{ResponseCreate, `{"model":"little","max_output_tokens":5,"input":"a","background":true}`, "background"},
		{ResponseCreate, `{"model":"little","max_output_tokens":5,"input":"a","prompt":{"id":"p"}}`, "prompt"},
		{ResponseCreate, `{"model":"little","max_output_tokens":5,"input":"a","tools":[{"type":"code_interpreter"}]}`, `"tools" has a value`},
		{ResponseCreate, item(`{"type":"item_reference","id":"i"}`), `"input" has a value`},
		{ResponseCreate, item(`{"role":"user","content":[{"type":"input_image","image_url":"https://a"}]}`), `"input" has a value`},
		{ResponseCreate, item(`{"role":"user","content":[{"type":"input_file","file_id":"f"}]}`), `"input" has a value`},
		{ResponseCreate, item(`{"type":"reasoning","id":"r"}`), `"input" has a value`},
		{ResponseCreate, item(`{"type":"computer_call_output","output":{"type":"a"}}`), `"input" has a value`},
		{ResponseCreate, item(`"hello"`), `"input" has a value`},
	} {
		_, err := dialects[c.action].read([]byte(c.body))
		var refusal *api.Refusal
		require.ErrorAs(t, err, &refusal, c.body)
		require.Contains(t, refusal.Text(), c.says, c.body)
		require.NotContains(t, refusal.Text(), "secret")
	}
}

func TestRequestIsRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		action, body string
		want         asked
	}{
		{ChatComplete, `{"model":"little","max_tokens":5,"messages":[]}`, asked{model: "little", output: 5}},
		{ChatComplete, `{"model":"a/b","max_completion_tokens":1000000,"n":1,"temperature":0.5,"logit_bias":{"5":-1.5},"stop":null,"messages":[
			{"role":"system","content":"x"},{"role":"user","content":[{"type":"text","text":"a"}],"name":"b"},
			{"role":"assistant","content":null,"audio":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
			{"role":"tool","tool_call_id":"1","content":"y"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}]}`,
			asked{model: "a/b", output: 1000000}},
		{ChatComplete, `{"model":"little","max_tokens":5,"stream":true,"stream_options":{"include_usage":true}}`, asked{"little", 5, true, true}},
		{ResponseCreate, `{"model":"little","max_output_tokens":5,"input":"a","stream":true,"store":false}`, asked{model: "little", output: 5, stream: true}},
		{ResponseCreate, `{"model":"little","max_output_tokens":5,"input":[{"role":"user","content":"a"},{"type":"message","role":"assistant","id":"m","status":"completed",
			"content":[{"type":"output_text","text":"b","annotations":[]}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
			{"type":"function_call_output","call_id":"1","output":"7"},{"type":"reasoning","id":"r","summary":[],"encrypted_content":"abc"}]}`, asked{model: "little", output: 5}},
	} {
		got, err := dialects[c.action].read([]byte(c.body))
		require.NoError(t, err, c.body)
		require.Equal(t, c.want, got)
	}
}

func TestHeadersOfARequest(t *testing.T) {
	t.Parallel()
	body := []byte(`{"model":"little","max_tokens":5,"messages":[]}`)
	for _, c := range []struct {
		cost, form []string
		says       string
	}{
		{nil, nil, "what the call may cost"},
		{[]string{"5"}, nil, "what the call may cost"},
		{[]string{"0 EUR"}, nil, "what the call may cost"},
		{[]string{"-5 EUR"}, nil, "what the call may cost"},
		{[]string{"5.5 EUR"}, nil, "what the call may cost"},
		{[]string{"5 eur"}, nil, "what the call may cost"},
		{[]string{"5  EUR"}, nil, "what the call may cost"},
		{[]string{"99999999999999999999 EUR"}, nil, "what the call may cost"},
		{[]string{"5 EUR", "6 EUR"}, nil, "what the call may cost"},
		{[]string{"5 EUR"}, []string{"Text"}, "text or digest"},
		{[]string{"5 EUR"}, []string{""}, "text or digest"},
		{[]string{"5 EUR"}, []string{"text", "digest"}, "text or digest"},
	} {
		_, err := parameters("https://a/v1", dialects[ChatComplete], http.Header{HeaderMaxCost: c.cost, HeaderRequest: c.form}, body)
		require.ErrorContains(t, err, c.says, "%v", c)
	}
	large := fmt.Appendf(nil, `{"model":"little","max_tokens":5,"messages":[{"content":%q}]}`, strings.Repeat("x", MaxShown))
	_, err := parameters("https://a/v1", dialects[ChatComplete], http.Header{HeaderMaxCost: {"5 EUR"}, HeaderRequest: {"text"}}, large)
	require.ErrorContains(t, err, "at most 48 KiB")
	params, err := parameters("https://a/v1", dialects[ChatComplete], http.Header{HeaderMaxCost: {"5 EUR"}}, large)
	require.NoError(t, err)
	require.Contains(t, string(params), fmt.Sprintf(`"request_bytes":%d`, len(large)))
}

// TestParametersAreTheCatalogues: whatever a route reads, the catalogue takes, and aims at the model.
func TestParametersAreTheCatalogues(t *testing.T) {
	t.Parallel()
	target, err := guards.Catalogued("model", ChatComplete)
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.StringMatching(`[a-zA-Z0-9][a-zA-Z0-9._:/-]{0,30}`).Draw(t, "id")
		body, err := json.Marshal(map[string]any{"model": id, "max_tokens": rapid.Int64Range(1, million).Draw(t, "n"),
			"messages": []any{map[string]any{"role": "user", "content": rapid.String().Draw(t, "content")}}})
		require.NoError(t, err)
		cost := rapid.Int64Range(1, 1_000_000_000_000).Draw(t, "cost")
		form := rapid.SampledFrom([]string{"text", "digest"}).Draw(t, "form")
		params, err := parameters("https://api.example/v1", dialects[ChatComplete], http.Header{HeaderMaxCost: {fmt.Sprintf("%d EUR", cost)}, HeaderRequest: {form}}, body)
		require.NoError(t, err)
		aim, err := target(params)
		require.NoError(t, err)
		require.Equal(t, guards.Target{Resource: URL("https://api.example/v1", id), Amount: cost, Currency: "EUR"}, aim)
	})
}

func FuzzRequest(f *testing.F) {
	for _, seed := range []string{`{"model":"little","max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`,
		`{"model":"little","max_output_tokens":5,"input":[{"type":"reasoning","encrypted_content":"x"}],"stream":true}`, `{`, `[]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, d := range dialects {
			a, err := d.read(body)
			if err == nil {
				require.True(t, json.Valid(body))
				require.True(t, a.output >= 1 && a.output <= million)
			}
		}
	})
}

func TestConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	good := func() Config {
		return Config{BaseURL: "https://api.example/v1", Currency: "EUR", Models: map[string]Model{"m": {Version: "1", Price: price}}, Credential: CredentialEnv("X"),
			Dir: t.TempDir() + "/journal"}
	}
	for says, change := range map[string]func(*Config){
		"base URL":            func(c *Config) { c.BaseURL += "/" },
		"has no URL":          func(c *Config) { c.BaseURL = "api.example/v1" },
		"has no URL at":       func(c *Config) { c.BaseURL = "https://user@api.example/v1" },
		"credential and":      func(c *Config) { c.Credential = nil },
		"at least one model":  func(c *Config) { c.Models = nil },
		"currency":            func(c *Config) { c.Currency = "eur" },
		"at most 16 MiB":      func(c *Config) { c.MaxRequest = MaxRequest + 1 },
		"between 1 s":         func(c *Config) { c.Timeout = 1 },
		"not the status":      func(c *Config) { c.Refused = []int{200} },
		"version":             func(c *Config) { c.Models["m"] = Model{Price: price} },
		"a price":             func(c *Config) { c.Models["m"] = Model{Version: "1", Price: Price{Input: -1}} },
		"overhead":            func(c *Config) { c.Models["m"] = Model{Version: "1", Overhead: -1} },
		"neither a range":     func(c *Config) { c.Private = []string{"everything"} },
		"there is no journal": func(c *Config) { require.NoError(t, os.RemoveAll(c.Dir)); require.NoError(t, os.Mkdir(c.Dir, 0o700)) },
		`the model "" has`:    func(c *Config) { c.Models = map[string]Model{"": {Version: "1"}} },
	} {
		c := good()
		require.NoError(t, Init(c.Dir))
		change(&c)
		_, err := New(c)
		require.ErrorContains(t, err, says)
	}
	c := good()
	require.NoError(t, Init(c.Dir))
	require.NoError(t, Init(c.Dir), "again changes nothing")
	l, err := New(c)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.Equal(t, [][32]byte{Digest("https://api.example/v1", "m", "1")}, l.Digests())
}

// TestParametersOfACall is the agreement with the worker's library, which has the same test.
func TestParametersOfACall(t *testing.T) {
	t.Parallel()
	const body = `{"model":"little","max_tokens":5,"temperature":0.7,"messages":[{"role":"user","content":"Good morning."}]}`
	for form, want := range map[string]string{
		"digest": `{"currency":"EUR","max_cost":50,"max_output_tokens":5,"model":"https://api.example.com/v1/models/little","request_bytes":106,` +
			`"request_sha256":"1elOdzqeJ4Syc579VNnAjtzHnVodaDG9tF8Zh7TTaIQ"}`,
		"text": `{"currency":"EUR","max_cost":50,"max_output_tokens":5,"model":"https://api.example.com/v1/models/little","request":` +
			`"{\"model\":\"little\",\"max_tokens\":5,\"temperature\":0.7,\"messages\":[{\"role\":\"user\",\"content\":\"Good morning.\"}]}"}`,
	} {
		got, err := parameters("https://api.example.com/v1", dialects[ChatComplete], http.Header{HeaderMaxCost: {"50 EUR"}, HeaderRequest: {form}}, []byte(body))
		require.NoError(t, err)
		clean, err := canonical.Canonicalize(got)
		require.NoError(t, err)
		require.Equal(t, want, string(clean))
	}
}
