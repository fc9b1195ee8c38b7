package openapidraft

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/catalogue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const payments = `openapi: 3.0.3
info: {title: Payments, version: "1"}
servers: [{url: https://api.example/v1/}]
components:
  securitySchemes:
    key: {type: apiKey, in: header, name: X-Api-Key}
  parameters:
    account: {name: account-id, in: path, required: true, schema: {type: string, minLength: 1, maxLength: 40, pattern: "^[a-z0-9-]+$"}}
  schemas:
    Money: {type: object, required: [cents], properties: {cents: {type: integer, minimum: 1, maximum: 100000}, currency: {type: string, enum: [EUR, USD]}}}
    Payment:
      allOf:
        - {type: object, required: [to], properties: {id: {type: string, readOnly: true}, to: {type: string}}}
        - type: object
          required: [money]
          properties:
            money: {$ref: "#/components/schemas/Money"}
            tags: {type: array, items: {type: string, maxLength: 10}, maxItems: 3}
            rate: {type: number}
            note: {type: string, nullable: true}
            parent: {$ref: "#/components/schemas/Payment"}
            any: {oneOf: [{type: string}, {type: integer}]}
            anything: {type: object}
paths:
  /accounts/{account-id}/payments:
    parameters: [{$ref: "#/components/parameters/account"}]
    post:
      operationId: createPayment
      summary: "Pay: from an account\nnow"
      parameters:
        - {name: Idempotency-Key, in: header, schema: {type: string}}
        - {name: X-Trace, in: header, schema: {type: string, maxLength: 20}}
        - {name: dry run, in: query, schema: {type: boolean}}
        - {name: expand, in: query, schema: {type: array, items: {type: string}}}
        - {name: session, in: cookie, schema: {type: string}}
      requestBody: {required: true, content: {application/json: {schema: {$ref: "#/components/schemas/Payment"}}}}
      responses:
        "201": {description: done, content: {application/json: {schema: {$ref: "#/components/schemas/Payment"}}}}
        default: {description: other}
    get:
      responses: {"200": {description: all, content: {application/json: {schema: {type: array, items: {$ref: "#/components/schemas/Money"}}}}}}
  /forms:
    post:
      operationId: Post-Form
      requestBody: {content: {application/x-www-form-urlencoded: {schema: {type: object, required: [a], properties: {a: {type: string}, b: {type: integer}, c: {type: object, properties: {d: {type: string}}}}}}}}
      responses: {"204": {description: done}}
  /list:
    put:
      operationId: 7up
      requestBody: {content: {application/json: {schema: {type: array, items: {type: integer}}}}}
      responses: {"2XX": {description: done}}
  /rates:
    post:
      operationId: rate
      requestBody: {content: {application/json: {schema: {type: object, required: [rate], properties: {rate: {type: number}}}}}}
      responses: {"200": {description: done}}
  /files/{name}.pdf:
    get: {operationId: file, parameters: [{name: name, in: path, required: true, schema: {type: string}}], responses: {"200": {description: done}}}
  /upload:
    post: {operationId: upload, requestBody: {required: true, content: {multipart/form-data: {schema: {type: object}}}}, responses: {"200": {description: done}}}
  /cookie:
    get: {operationId: cookie, parameters: [{name: s, in: cookie, required: true, schema: {type: string}}], responses: {"200": {description: done}}}
`

func drafted(t *testing.T, o Options) *Draft {
	t.Helper()
	d, err := Read([]byte(payments), o)
	require.NoError(t, err)
	return d
}

func TestDraft(t *testing.T) {
	t.Parallel()
	d := drafted(t, Options{})
	assert.Equal(t, Credential{Header: "X-Api-Key", File: "/etc/nightwarrant/credential"}, d.Credential)
	assert.Equal(t, []string{
		"GET /cookie: parameter \"s\": cookies are not sent",
		"GET /files/{name}.pdf: catalogue: file: resource: a {parameter} must be a whole segment of the path",
		"POST /rates: body: \"rate\": fractions have no canonical form; an API that takes them as text can be used",
		"POST /upload: body: it is neither JSON nor a form",
	}, d.Skipped)
	byAction := map[string]Operation{}
	for _, o := range d.Operations {
		byAction[o.Action] = o
	}
	require.Len(t, byAction, 4)
	pay := byAction["create_payment"]
	assert.Equal(t, "Pay: from an account now", pay.Title)
	assert.Equal(t, "https://api.example/v1/accounts/{account_id}/payments", pay.Resource)
	assert.Equal(t, Request{Method: "POST", Query: map[string]string{"dry run": "{dry_run}"}, Headers: map[string]string{"X-Trace": "{X_Trace}"}, IdempotencyHeader: "Idempotency-Key",
		Body: map[string]any{"to": "{to}", "money": "{money}", "tags": "{tags}", "note": "{note}"}}, pay.Request)
	assert.Equal(t, []int{201}, pay.Answer.Success)
	assert.Equal(t, []string{"id", "note", "rate", "to", "money.cents", "money.currency", "parent.id", "parent.note", "parent.rate", "parent.to", "tags[]"}, pay.Answer.Fields)
	assert.Equal(t, &Inspect{Fields: []string{"[].cents", "[].currency"}}, pay.Inspect)
	schema, err := json.Marshal(pay.Parameters)
	require.NoError(t, err)
	assert.JSONEq(t, `{"type":"object","additionalProperties":false,"required":["account_id","money","to"],"properties":{
		"account_id":{"type":"string","minLength":1,"maxLength":40,"pattern":"^[a-z0-9-]+$"},"X_Trace":{"type":"string","maxLength":20},"dry_run":{"type":"boolean"},
		"to":{"type":"string","maxLength":500},"note":{"type":"string","maxLength":500},"tags":{"type":"array","maxItems":3,"items":{"type":"string","maxLength":10}},
		"money":{"type":"object","additionalProperties":false,"required":["cents"],"properties":{"cents":{"type":"integer","minimum":1,"maximum":100000},"currency":{"type":"string","enum":["EUR","USD"]}}}}}`, string(schema))
	assert.Equal(t, map[string]string{"a": "{a}", "b": "{b}"}, byAction["post_form"].Request.Form)
	assert.Equal(t, "{body}", byAction["op_7up"].Request.Body)
	assert.Empty(t, byAction["op_7up"].Answer.Success)
	assert.Contains(t, byAction, "get_v1_accounts_account_id_payme")
}

func TestDraftIsNarrowed(t *testing.T) {
	t.Parallel()
	d := drafted(t, Options{Only: []string{"createPayment", "PUT /list"}, Server: "https://other.example"})
	require.Len(t, d.Operations, 2)
	assert.Empty(t, d.Skipped)
	assert.Equal(t, "https://other.example/list", d.Operations[1].Resource)
}

// What is written is read again as it was meant, and both parts agree.
func TestWritten(t *testing.T) {
	t.Parallel()
	d := drafted(t, Options{})
	var out bytes.Buffer
	_, err := d.WriteTo(&out)
	require.NoError(t, err)
	assert.Contains(t, out.String(), "# not drafted: POST /upload: ")
	parts := strings.Split(out.String(), "---\n")
	require.Len(t, parts, 2)
	var guard, registry struct {
		Operations []struct {
			Action, Title, Resource string
			Parameters              any
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(parts[0]), &guard))
	require.NoError(t, yaml.Unmarshal([]byte(parts[1]), &registry))
	require.Equal(t, guard, registry)
	for i, o := range guard.Operations {
		parameters, err := json.Marshal(o.Parameters)
		require.NoError(t, err)
		_, err = catalogue.Compile(catalogue.HTTP, catalogue.Operation{Action: o.Action, Title: o.Title, Resource: o.Resource, Parameters: parameters})
		require.NoError(t, err, d.Operations[i].Action)
	}
	var again bytes.Buffer
	_, err = drafted(t, Options{}).WriteTo(&again)
	require.NoError(t, err)
	require.Equal(t, out.String(), again.String())
}

func TestWhatIsNoSpecification(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"":                            "OpenAPI 3 document",
		"a: b":                        "OpenAPI 3 document",
		"[]":                          "OpenAPI 3 document",
		"\x00":                        "OpenAPI 3 document",
		`swagger: "2.0"`:              "OpenAPI 3 document",
		strings.Repeat(" ", 16<<20+1): "at most",
		"openapi: 3.0.3\npaths: {}":   "--server",
		"openapi: 3.0.3\npaths: {}\nservers: [{url: /v1}]":                                                                      "--server",
		"openapi: 3.0.3\npaths: {}\nservers: [{url: \"https://{host}/\"}]":                                                      "--server",
		"openapi: 3.0.3\nservers: [{url: https://a.example}]\npaths: {/a: {$ref: \"/etc/passwd\"}}":                             "it refers to others",
		"openapi: 3.0.3\nservers: [{url: https://a.example}]\npaths: {/a: {$ref: \"http://169.254.169.254/latest/meta-data\"}}": "it refers to others",
	} {
		_, err := Read([]byte(text), Options{})
		require.ErrorContains(t, err, says, "%.100q", text)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(payments))
	f.Add([]byte(`{"openapi":"3.1.0","servers":[{"url":"https://a.example"}],"paths":{"/a/{b}":{"put":{"parameters":[{"name":"b","in":"path","schema":{"type":["string","null"]}}]}}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Read(text, Options{Server: "https://a.example"})
		if err != nil {
			return
		}
		var out bytes.Buffer
		if _, err := d.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		for _, o := range d.Operations {
			if err := compiles(o); err != nil {
				t.Fatal(err)
			}
		}
	})
}
