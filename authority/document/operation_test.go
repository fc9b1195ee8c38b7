package document

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/catalogue"
)

// shop is a guard before an HTTP API.
const shop = `{"kind":"Guard","name":"shop","title":"The shop","catalogue":"http","uri":"https://guard.example/shop","profile":"cluster-a","provable":false,"max_call_ms":5000,
	"operations":[{"action":"order.ship","title":"Ship an order","resource":"https://api.example/orders/{order}/shipments",
		"parameters":{"type":"object","properties":{"order":{"type":"string"},"parcels":{"type":"array","items":{"type":"integer"}},"total":{"type":"integer"}},
			"required":["order","total"],"additionalProperties":false},"key":["order"],"amount":"total","currency":"JPY"},
		{"action":"mail","title":"Write to customers","resource":"https://mail.example/send","parameters":{"type":"object","properties":{},"additionalProperties":false}}]}`

func TestOperationIsRefused(t *testing.T) {
	t.Parallel()
	type object = map[string]any
	closed := func(more object) object {
		made := object{"type": "object", "properties": object{}, "additionalProperties": false}
		for k, v := range more {
			made[k] = v
		}
		return made
	}
	property := func(p object) object {
		return closed(object{"properties": object{"order": object{"type": "string"}, "total": object{"type": "integer"}, "x": p}, "required": []any{"order", "total"}})
	}
	operation := func(name string) object {
		return object{"action": name, "title": "A", "resource": "https://a.example/b", "parameters": closed(nil)}
	}
	var many []any
	for i := range 65 {
		many = append(many, operation(fmt.Sprintf("op_%d", i)))
	}
	cases := []struct {
		field, says string
		values      []any
	}{
		{"operations", "operations must list what this guard can do", []any{absent{}, []any{}}},
		{"operations", "operations must list at most 64 operations", []any{many}},
		{"operations", "operations[1].action repeats mail", []any{[]any{operation("mail"), operation("mail")}}},
		{"operations.0", "operations[0] must be an object", []any{"order.ship", 1, []any{}}},
		{"operations.0.risk", "operations[0].risk is not a known field", []any{"read"}},
		{"operations.0.url", "operations[0].url is not a known field", []any{"https://api.example"}},
		{"operations.0.action", "operations[0].action must be one exact action", []any{"", "*", "order.*", "Order.ship", "order ship", "order-ship", "a.b.c.d.e", "mail\n", absent{}}},
		{"operations.0.title", "operations[0].title must", []any{"", " Ship", "Sh\u202eip", "\u200d", strings.Repeat("a", 121), absent{}}},
		{"operations.0.parameters", "operations[0].parameters must be an object", []any{"{}", []any{}, true}},
		{"operations.0.parameters", "operations[0] does not hold: catalogue: order.ship: parameters: must", []any{
			absent{}, object{}, object{"type": "object"}, closed(object{"additionalProperties": true}), closed(object{"additionalProperties": object{}}), closed(object{"type": "array"}),
			closed(object{"$ref": "https://evil.example/schema"}), closed(object{"anyOf": []any{}}), closed(object{"$schema": "http://json-schema.org/draft-07/schema#"}),
			property(object{}), property(object{"type": "number"}), property(object{"type": []any{"string", "integer"}}), property(object{"type": "object"}), property(object{"type": "array"}),
			property(object{"type": "string", "description": strings.Repeat("a", 16<<10)}),
		}},
		{"operations.0.parameters", "parameters: has a pattern that cannot be read", []any{property(object{"type": "string", "pattern": "("})}},
		{"operations.0.parameters", "parameters: is not a JSON Schema", []any{property(object{"type": "string", "minLength": -1}), property(object{"type": "integer", "enum": 5})}},
		{"operations.0.parameters", "resource: {order} must be a required parameter", []any{closed(nil), closed(object{"properties": object{"order": object{"type": "string"}}})}},
		{"operations.0.resource", "resource:", []any{
			"", "table:orders", "http:", "https://", "https://api.example/{nothing}", "https://{order}.example/a", "https://api.example/orders-{order}", "https://api.example/{order}?all=1", "https://api.example/{order}#a",
			"https://u:p@api.example/{order}", "https://API.example/{order}", "https://api.example/../{order}", "https://api.example//{order}", "https://api.example:443/{order}", "https://api.example/{order", "ftp://api.example/{order}",
			"https://api.example/*", "https://api.example/" + strings.Repeat("a", 255), absent{},
		}},
		{"operations.0.key", `key: "parcels" must be a required parameter`, []any{[]any{"parcels"}, []any{"order", "parcels"}}},
		{"operations.0.key", "operations[0].key must be a list", []any{"order", true}},
		{"operations.0.amount", "amount", []any{"", "order", "parcels", "nothing", absent{}}},
		{"operations.0.currency", "amount and currency are given both or neither", []any{"", "eur", "EURO", absent{}}},
	}
	for _, c := range cases {
		for _, value := range c.values {
			d, err := ParseJSON([]byte(edited(t, shop, c.field, value)))
			if assert.ErrorContains(t, err, c.says, "%s: %v", c.field, value) {
				assert.ErrorContains(t, err, "Guard shop ")
				oneSentence(t, err)
				assert.Nil(t, d)
			}
		}
	}
}

// What is compiled in is not an operator's to say again, or to say for a kind
// that has no operations.
func TestCompiledInActionsAreNobodysToWrite(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"row.read", "row.append", "row.update", "row.delete"} {
		_, err := ParseJSON([]byte(edited(t, good[KindGuard], "operations.0.action", name)))
		require.ErrorContains(t, err, `operations[0] does not hold: catalogue: "`+name+`" cannot be the name of an operation`)
	}
	_, err := ParseJSON([]byte(edited(t, shop, "catalogue", "model")))
	require.ErrorContains(t, err, "operations cannot be written for a model")
	_, err = ParseJSON([]byte(edited(t, good[KindGuard], "operations.0.resource", "https://api.example/refunds")))
	require.ErrorContains(t, err, "operations[0] does not hold")
}

func TestActionsAreTheCatalogueAndTheOperations(t *testing.T) {
	t.Parallel()
	model := of[*Guard](t, KindGuard)
	model.Catalogue, model.Operations = catalogue.Model, nil
	http, err := ParseJSON([]byte(shop))
	require.NoError(t, err)
	for want, g := range map[string]*Guard{
		"order.refund row.append row.delete row.read row.update": of[*Guard](t, KindGuard),
		"mail order.ship":               http.(*Guard),
		"chat.complete response.create": model,
	} {
		actions, err := g.Actions()
		require.NoError(t, err)
		assert.Len(t, actions, len(strings.Fields(want)))
		for _, name := range strings.Fields(want) {
			assert.Equal(t, name, actions[name].Name)
		}
	}
	broken := of[*Guard](t, KindGuard)
	broken.Operations[0].Parameters = []byte(`{}`)
	actions, err := broken.Actions()
	assert.Error(t, err)
	assert.Nil(t, actions)
}

// A digest of a guard covers all that is said of an operation.
func TestEveryPartOfAnOperationCounts(t *testing.T) {
	t.Parallel()
	seen := map[Digest]string{}
	add := func(what, text string) {
		d, err := ParseJSON([]byte(text))
		require.NoError(t, err, what)
		digest, err := DigestOf(d)
		require.NoError(t, err)
		assert.Empty(t, seen[digest], what)
		seen[digest] = what
	}
	add("base", shop)
	for field, value := range map[string]any{
		"action": "order.send", "title": "Send an order", "resource": "https://api.example/order/{order}/shipments", "key": []any{"total"}, "currency": "EUR",
		"parameters.required": []any{"order", "total", "parcels"}, "parameters.properties.order.maxLength": 8, "parameters.properties.parcels.items.minimum": 1,
	} {
		add(field, edited(t, shop, "operations.0."+field, value))
	}
	add("no key", edited(t, shop, "operations.0.key", absent{}))
	add("no amount", edited(t, edited(t, shop, "operations.0.amount", absent{}), "operations.0.currency", absent{}))
}

const shopFile = `kind: Guard
name: shop
title: The shop
catalogue: http
uri: https://guard.example/shop
profile: cluster-a
operations:
  - action: order.ship
    title: Ship an order
    resource: "https://api.example/orders/{order}"
    parameters:
      type: object
      required: [order]
      additionalProperties: false
      properties:
        order: {type: string, maxLength: 36}
        parcels:
          type: array
          items:
            type: integer
            minimum: 1
    key: [order]
`

func TestOperationsAreWrittenInYAML(t *testing.T) {
	t.Parallel()
	found, err := ParseYAML([]byte(shopFile))
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, []catalogue.Operation{{
		Action: "order.ship", Title: "Ship an order", Resource: "https://api.example/orders/{order}", Key: []string{"order"},
		Parameters: []byte(`{"additionalProperties":false,"properties":{"order":{"maxLength":36,"type":"string"},"parcels":{"items":{"minimum":1,"type":"integer"},"type":"array"}},"required":["order"],"type":"object"}`),
	}}, found[0].(*Guard).Operations)
}

// A schema is written in the file like everything else: as strictly, and with
// the line of what is wrong.
func TestSchemaInAFileIsRefused(t *testing.T) {
	t.Parallel()
	nested := func(n int) string {
		return strings.Repeat(`{"type":"array","items":`, n) + `{"type":"string"}` + strings.Repeat("}", n)
	}
	for name, c := range map[string]struct{ from, to, says string }{
		"null":           {"maxLength: 36", "maxLength: null", "line 16: operations[0].parameters.properties.order.maxLength has no value"},
		"nothing":        {"minimum: 1\n", "minimum:\n", "line 21: operations[0].parameters.properties.parcels.items.minimum has no value"},
		"fraction":       {"minimum: 1\n", "minimum: 0.5\n", "line 21: operations[0].parameters.properties.parcels.items.minimum must be"},
		"octal":          {"minimum: 1\n", "minimum: 01\n", "line 21: operations[0].parameters.properties.parcels.items.minimum must be a plain integer"},
		"unsafe integer": {"minimum: 1\n", "minimum: 9007199254740993\n", "line 11: Guard shop operations[0].parameters does not hold"},
		"twice":          {"minimum: 1\n", "minimum: 1\n            minimum: 2\n", "line 22: operations[0].parameters.properties.parcels.items.minimum stands twice"},
		"anchor":         {"order: {", "order: &o {", "line 16: must not have an anchor"},
		"tag":            {"type: array", "type: !!str array", "line 18: must not have a tag"},
		"number as key":  {"minimum: 1\n", "1: 1\n", "line 21: operations[0].parameters.properties.parcels.items has a key that is not text"},
		"a list":         {"    parameters:\n", "    parameters: []\n    parameter:\n", "line 11: Guard shop operations[0].parameters must be an object, not a list"},
		"open":           {"additionalProperties: false", "additionalProperties: true", "line 8: Guard shop operations[0] does not hold: catalogue: order.ship: parameters: must describe one object"},
		"open, as text":  {"additionalProperties: false", `additionalProperties: "false"`, "line 8: Guard shop operations[0] does not hold"},
		"another member": {"minimum: 1\n", "multipleOf: 2\n", `line 8: Guard shop operations[0] does not hold: catalogue: order.ship: parameters: must not use "multipleOf"`},
		"large":          {"maxLength: 36", "description: " + strings.Repeat("a", 16<<10), "parameters: must be at most 16384 bytes"},
		"larger":         {"maxLength: 36", "description: " + strings.Repeat("a", maxDocument), "line 1: a document must have at most 32768 bytes"},
		"deep":           {"{type: string, maxLength: 36}", nested(maxNesting), "line 16: is nested too deeply"},
		"far right":      {"minimum: 1\n", "enum:\n" + strings.Repeat(" ", maxIndent) + "- 1\n", "line 22: is indented too far"},
		"no parameters":  {"{order}", "{basket}", "line 8: Guard shop operations[0] does not hold: catalogue: order.ship: resource: {basket}"},
		"not the key":    {"key: [order]", "key: [parcels]", `line 8: Guard shop operations[0] does not hold: catalogue: order.ship: key: "parcels"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, 1, strings.Count(shopFile, c.from))
			found, err := ParseYAML([]byte(strings.Replace(shopFile, c.from, c.to, 1)))
			require.ErrorContains(t, err, c.says)
			oneSentence(t, err)
			assert.Nil(t, found)
		})
	}
}

// What is bounded for a file is bounded for JSON too.
func TestDeepSchemaIsRefused(t *testing.T) {
	t.Parallel()
	var deep any = map[string]any{"type": "string"}
	for range 20 {
		deep = map[string]any{"type": "array", "items": deep}
	}
	_, err := ParseJSON([]byte(edited(t, shop, "operations.0.parameters.properties.parcels", deep)))
	require.NoError(t, err, "canonical JSON may be 32 deep")
	for range 20 {
		deep = map[string]any{"type": "array", "items": deep}
	}
	text := edited(t, shop, "operations.0.parameters.properties.parcels", deep)
	_, err = ParseJSON([]byte(text))
	require.Error(t, err)
	oneSentence(t, err)
	block, err := yaml.JSONToYAML([]byte(text))
	require.NoError(t, err)
	_, err = ParseYAML(block)
	require.Error(t, err)
	oneSentence(t, err)
}
