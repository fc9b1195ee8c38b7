package catalogue

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const refundSchema = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","additionalProperties":false,
 "required":["order","amount","tags"],"properties":{"order":{"type":"string","maxLength":40},"amount":{"type":"integer"},
 "tags":{"type":"array","maxItems":3,"items":{"type":"string","enum":["late","broken"]}},"note":{"type":"string","maxLength":10}}}`

func refund() Operation {
	return Operation{Action: "refund.create", Title: "Refund one order", Parameters: json.RawMessage(refundSchema),
		Resource: "https://api.example.com/orders/{order}/refunds", Key: []string{"order", "amount"}, Amount: "amount", Currency: "EUR"}
}

func TestAnOperatorsOperationIsHigh(t *testing.T) {
	t.Parallel()
	a, err := Compile(HTTP, refund())
	require.NoError(t, err)
	assert.Equal(t, High, a.Risk)
	target, err := a.Target(json.RawMessage(`{"order":"7 a","amount":1250,"tags":["late"]}`))
	require.NoError(t, err)
	assert.Equal(t, Target{"https://api.example.com/orders/7%20a/refunds", 1250, "EUR"}, target)
	key, ok := a.Key(json.RawMessage(`{"tags":[],"amount":1250,"order":"7 a"}`))
	require.True(t, ok)
	assert.Equal(t, `{"amount":1250,"order":"7 a"}`, string(key), "what is not of the key is the run's to choose")
	free, err := a.Target(json.RawMessage(`{"order":"7","amount":0,"tags":[]}`))
	require.NoError(t, err)
	assert.Equal(t, Target{Resource: "https://api.example.com/orders/7/refunds"}, free)
}

func TestOperationIsRefused(t *testing.T) {
	t.Parallel()
	object := func(rest string) json.RawMessage {
		return json.RawMessage(`{"type":"object","additionalProperties":false,` + rest + `}`)
	}
	for name, change := range map[string]func(*Operation){
		"no name":            func(o *Operation) { o.Action = "" },
		"an unreadable name": func(o *Operation) { o.Action = "Refund" },
		"no schema":          func(o *Operation) { o.Parameters = nil },
		"another draft": func(o *Operation) {
			o.Parameters = object(`"$schema":"http://json-schema.org/draft-07/schema#","properties":{}`)
		},
		"an open object":       func(o *Operation) { o.Parameters = json.RawMessage(`{"type":"object","properties":{}}`) },
		"an open object below": func(o *Operation) { o.Parameters = object(`"properties":{"a":{"type":"object"}}`) },
		"an open list":         func(o *Operation) { o.Parameters = object(`"properties":{"a":{"type":"array"}}`) },
		"no type":              func(o *Operation) { o.Parameters = object(`"properties":{"a":{}}`) },
		"a list of types":      func(o *Operation) { o.Parameters = object(`"properties":{"a":{"type":["string","object"]}}`) },
		"a number":             func(o *Operation) { o.Parameters = object(`"properties":{"a":{"type":"number"}}`) },
		"a reference":          func(o *Operation) { o.Parameters = object(`"properties":{"a":{"$ref":"file:///etc/passwd"}}`) },
		"a reference within":   func(o *Operation) { o.Parameters = object(`"$defs":{"x":{}},"properties":{"a":{"$ref":"#/$defs/x"}}`) },
		"anyOf": func(o *Operation) {
			o.Parameters = object(`"properties":{},"anyOf":[{"properties":{"x":{"type":"string"}}}]`)
		},
		"patternProperties": func(o *Operation) {
			o.Parameters = object(`"properties":{},"patternProperties":{".*":{"type":"string"}}`)
		},
		"propertyNames":             func(o *Operation) { o.Parameters = object(`"properties":{},"propertyNames":{"type":"string"}`) },
		"an unreadable pattern":     func(o *Operation) { o.Parameters = object(`"properties":{"a":{"type":"string","pattern":"(?<=x)"}}`) },
		"a keyword of a wrong kind": func(o *Operation) { o.Parameters = object(`"properties":{"a":{"type":"string","maxLength":"10"}}`) },
		"a large schema": func(o *Operation) {
			o.Parameters = object(`"properties":{},"title":"` + strings.Repeat("x", maxSchema) + `"`)
		},
		"a list":                   func(o *Operation) { o.Parameters = json.RawMessage(`[]`) },
		"an optional segment":      func(o *Operation) { o.Resource = "https://api.example.com/{note}" },
		"an unknown segment":       func(o *Operation) { o.Resource = "https://api.example.com/{other}" },
		"a list as a segment":      func(o *Operation) { o.Resource = "https://api.example.com/{tags}" },
		"half a segment":           func(o *Operation) { o.Resource = "https://api.example.com/x-{order}" },
		"a chosen host":            func(o *Operation) { o.Resource = "https://{order}/x" },
		"a chosen port":            func(o *Operation) { o.Resource = "https://api.example.com:{amount}/x" },
		"a query":                  func(o *Operation) { o.Resource = "https://api.example.com/x?order={order}" },
		"a user":                   func(o *Operation) { o.Resource = "https://me@api.example.com/x" },
		"another scheme":           func(o *Operation) { o.Resource = "file:///x" },
		"an unreadable brace":      func(o *Operation) { o.Resource = "https://api.example.com/{or der}" },
		"a key that may be absent": func(o *Operation) { o.Key = []string{"note"} },
		"an amount without money":  func(o *Operation) { o.Currency = "" },
		"money without an amount":  func(o *Operation) { o.Amount = "" },
		"an amount that is a text": func(o *Operation) { o.Amount = "order" },
		"a currency of four":       func(o *Operation) { o.Currency = "EURO" },
	} {
		o := refund()
		change(&o)
		_, err := Compile(HTTP, o)
		if assert.Error(t, err, name) {
			assert.Less(t, len(err.Error()), 300, name)
		}
	}
	taken := refund()
	taken.Action, taken.Resource, taken.Amount, taken.Currency = "row.delete", "table:orders", "", ""
	_, err := Compile(Postgres, taken)
	assert.Error(t, err, "the names of the compiled-in catalogue are taken")
}

func TestOperationsParametersAreRefused(t *testing.T) {
	t.Parallel()
	a, err := Compile(HTTP, refund())
	require.NoError(t, err)
	for _, params := range []string{
		``, `null`, `[]`, `{}`, `{"order":"7","amount":1}`, `{"order":7,"amount":1,"tags":[]}`, `{"order":"7","amount":"1","tags":[]}`,
		`{"order":"7","amount":1.5,"tags":[]}`, `{"order":"7","amount":1e3,"tags":[]}`, `{"order":"7","amount":-1,"tags":[]}`,
		`{"order":"7","amount":1000000000001,"tags":[]}`, `{"order":"7","amount":9007199254740993,"tags":[]}`, `{"order":"7","amount":1,"tags":["other"]}`,
		`{"order":"7","amount":1,"tags":["late","late","late","late"]}`, `{"order":"7","amount":1,"tags":[],"Order":"8"}`, `{"order":"7","order":"8","amount":1,"tags":[]}`,
		`{"order":"7","amount":1,"tags":[],"url":"https://evil.example"}`, `{"order":"7","amount":1,"tags":[],"note":"longer than ten"}`,
		`{"order":"","amount":1,"tags":[]}`, `{"order":".","amount":1,"tags":[]}`, `{"order":"..","amount":1,"tags":[]}`, `{"order":"\ud800","amount":1,"tags":[]}`,
		`{"order":"` + strings.Repeat("x", 41) + `","amount":1,"tags":[]}`,
	} {
		target, err := a.Target(json.RawMessage(params))
		assert.Error(t, err, params)
		assert.Zero(t, target, params)
		if err != nil {
			assert.Less(t, len(err.Error()), 200, params)
		}
	}
}

// Whatever a run writes into a segment, the destination keeps its origin and its
// shape.
func TestAParameterNeverMovesTheDestination(t *testing.T) {
	t.Parallel()
	a, err := Compile(HTTP, refund())
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"../x", "%2e%2e", "a/b", "a?b", "a#b", "a%2Fb", "@evil", "\\x", "a;b", "a\r\nb"})).Draw(t, "order")
		params, err := json.Marshal(map[string]any{"order": order, "amount": 1, "tags": []string{}})
		if err != nil {
			t.Fatal(err)
		}
		target, err := a.Target(params)
		if err != nil {
			return
		}
		u, err := url.Parse(target.Resource)
		if err != nil || u.Host != "api.example.com" || strings.Count(u.EscapedPath(), "/") != 3 || u.RawQuery != "" || u.Fragment != "" {
			t.Fatalf("%q gives %q", order, target.Resource)
		}
		if got := strings.Split(u.EscapedPath(), "/")[2]; got != url.PathEscape(order) {
			t.Fatalf("%q gives %q", order, got)
		}
	})
}

func TestDestinationsHaveOneSpelling(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{
		"", "https://", "https:///x", "//api.example.com/x", "HTTPS://api.example.com", "https://API.example.com", "https://api.example.com/", "https://api.example.com//x",
		"https://api.example.com/a/../b", "https://api.example.com/./b", "https://api.example.com/x/", "https://api.example.com:443/x", "http://api.example.com:80/x",
		"https://api.example.com:/x", "https://u:p@api.example.com/x", "https://api.example.com/x?a=b", "https://api.example.com/x#f", "https://api.example.com/x?",
		"https://api.example.com/%2e%2e", "https://api.example.com/%41", "https://api.example.com/a%2fb", "https://api.example.com/*", "ftp://api.example.com/x",
		"https://api.example.com/" + strings.Repeat("x", 255), "https://api.example.com/a b", "table:orders", "javascript:alert(1)",
	} {
		assert.Error(t, CheckResource(HTTP, resource), resource)
		assert.Error(t, CheckResource(Model, resource), resource)
	}
	for _, resource := range []string{
		"https://api.example.com", "http://127.0.0.1:9001/v1/models/small-1", "https://api.example.com:8443/a/b%20c", "https://[::1]:8443/x", "https://api.example.com/a%2Fb",
	} {
		assert.NoError(t, CheckResource(HTTP, resource), resource)
	}
}

func TestModelCalls(t *testing.T) {
	t.Parallel()
	a, ok := Lookup(Model, "chat.complete")
	require.True(t, ok)
	assert.Equal(t, Low, a.Risk)
	assert.False(t, a.Approvable())
	const model = `"model":"https://api.example.com/v1/models/small","max_output_tokens":10,"currency":"EUR",`
	digest := `"request_sha256":"` + strings.Repeat("A", 43) + `","request_bytes":7`
	for _, params := range []string{model + `"max_cost":12,"request":"{}"`, model + `"max_cost":12,` + digest} {
		target, err := a.Target(json.RawMessage("{" + params + "}"))
		require.NoError(t, err)
		assert.Equal(t, Target{"https://api.example.com/v1/models/small", 12, "EUR"}, target)
	}
	for _, params := range []string{
		model + `"max_cost":12`, model + `"max_cost":12,"request":"{}",` + digest, model + `"max_cost":0,"request":"{}"`, model + `"max_cost":-1,"request":"{}"`,
		model + `"max_cost":1.5,"request":"{}"`, model + `"max_cost":1000000000001,"request":"{}"`, model + `"max_cost":12,"request":""`,
		model + `"max_cost":12,"request":"{}","request_bytes":7`, model + `"max_cost":12,"request_sha256":"x","request_bytes":7`,
		model + `"max_cost":12,"request":"{}","url":"x"`, `"model":"small","max_output_tokens":10,"currency":"EUR","max_cost":12,"request":"{}"`,
		`"model":"https://api.example.com/v1/models/small","max_output_tokens":0,"currency":"EUR","max_cost":12,"request":"{}"`,
		`"model":"https://api.example.com/v1/models/small","max_output_tokens":1,"currency":"eur","max_cost":12,"request":"{}"`,
		model + `"max_cost":12,"request":"` + strings.Repeat("x", maxRequest+1) + `"`,
	} {
		_, err := a.Target(json.RawMessage("{" + params + "}"))
		assert.Error(t, err, "%.200s", params)
	}
}

func TestKeysOfRows(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"row.update", `{"table":"t","values":{"b":1,"a":2},"key":{"id":7}}`, `{"columns":["a","b"],"key":{"id":7}}`},
		{"row.delete", `{"table":"t","key":{"id":"7"}}`, `{"key":{"id":"7"}}`},
		{"row.append", `{"table":"t","values":{"b":9007199254740991}}`, `{"columns":["b"]}`},
	} {
		a, _ := Lookup(Postgres, c[0])
		key, ok := a.Key(json.RawMessage(c[1]))
		require.True(t, ok)
		assert.Equal(t, c[2], string(key))
	}
}

func TestDigestsTellActionsApart(t *testing.T) {
	t.Parallel()
	one, err := Compile(HTTP, refund())
	require.NoError(t, err)
	seen := map[[32]byte]bool{DigestOf(one): true}
	for _, change := range []func(*Operation){
		func(o *Operation) { o.Key = o.Key[:1] },
		func(o *Operation) { o.Currency = "USD" },
		func(o *Operation) { o.Resource = "https://api.example.com/orders/{order}" },
		func(o *Operation) { o.Parameters = json.RawMessage(strings.Replace(refundSchema, "40", "41", 1)) },
		func(o *Operation) { o.Action = "refund.make" },
	} {
		o := refund()
		change(&o)
		other, err := Compile(HTTP, o)
		require.NoError(t, err)
		assert.False(t, seen[DigestOf(other)])
		seen[DigestOf(other)] = true
		assert.Equal(t, DigestOf(one, other), DigestOf(other, one), "order is nothing")
	}
	again := refund()
	again.Title, again.Parameters = "In other words", json.RawMessage(strings.ReplaceAll(refundSchema, "\n", " "))
	same, err := Compile(HTTP, again)
	require.NoError(t, err)
	assert.Equal(t, DigestOf(one), DigestOf(same), "spelling is nothing")
}

func FuzzOperation(f *testing.F) {
	f.Add([]byte(refundSchema), "https://api.example.com/orders/{order}/refunds", []byte(`{"order":"7","amount":1,"tags":[]}`))
	f.Add([]byte(`{"type":"object","additionalProperties":false,"properties":{}}`), "https://a.example", []byte(`{}`))
	f.Add([]byte(`{"type":"object","$ref":"#"}`), "https://{a}", []byte(`{"a":"b"}`))
	f.Fuzz(func(t *testing.T, schema []byte, resource string, params []byte) {
		a, err := Compile(HTTP, Operation{Action: "x", Parameters: schema, Resource: resource})
		if err != nil {
			return
		}
		if target, err := a.Target(params); err == nil && CheckResource(HTTP, target.Resource) != nil {
			t.Fatalf("%q is no resource", target.Resource)
		}
	})
}
