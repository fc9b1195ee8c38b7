package postgres

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
)

// TestParametersOutsideTheAllowListAreRefusedBeforeAnythingIsConsumed: by the operation's target, which the guard asks first.
func TestParametersOutsideTheAllowListAreRefusedBeforeAnythingIsConsumed(t *testing.T) {
	t.Parallel()
	l, err := New(Config{Pool: lazyPool(t), Tables: map[string]Table{
		"orders": {Columns: []string{"id", "line", "paid"}, Key: []string{"id", "line"}},
		"log":    {Columns: []string{"text"}},
	}})
	require.NoError(t, err)
	for _, c := range []struct{ action, params string }{
		{"row.append", `{"table":"wages","values":{"id":"1"}}`},
		{"row.append", `{"table":"orders","values":{"id":"1","secret":"x"}}`},
		{"row.append", `{"table":"orders","values":{}}`},
		{"row.append", `{"table":"orders","values":{"id":"1"},"returning":"*"}`},
		{"row.append", `{"table":"orders\"; DROP TABLE orders; --","values":{"id":"1"}}`},
		{"row.append", `{"table":"public.orders","values":{"id":"1"}}`},
		{"row.append", `{"table":"orders","values":{"id\" = '1'; --":"1"}}`},
		{"row.append", `{"table":"orders","values":{"id":null}}`},
		{"row.append", `{"table":"orders","values":{"id":["1"]}}`},
		{"row.append", `{"table":"orders","values":{"id":1.5}}`},
		{"row.read", `{"table":"orders","key":{"id":"1"}}`},                        // a part of the key reaches more than one row
		{"row.read", `{"table":"orders","key":{"id":"1","paid":true}}`},            // paid is no key
		{"row.read", `{"table":"orders","key":{"id":"1","line":"1","paid":true}}`}, // and not beside the key either
		{"row.read", `{"table":"orders","key":{}}`},
		{"row.read", `{"table":"log","key":{"text":"x"}}`}, // append only
		{"row.delete", `{"table":"orders","key":{"line":"1"}}`},
		{"row.update", `{"table":"orders","key":{"id":"1","line":"1"},"values":{"secret":true}}`},
		{"row.update", `{"table":"orders","key":{"id":"1","line":"1"},"values":{"line":"2"}}`},
		{"row.update", `{"table":"orders","key":{"id":"1"},"values":{"paid":true}}`},
		{"row.update", `{"table":"orders","values":{"paid":true}}`},
	} {
		_, err := l.Operations()[c.action](json.RawMessage(c.params))
		require.Error(t, err, "%s %s", c.action, c.params)
	}
	target, err := l.Operations()["row.update"](json.RawMessage(`{"table":"orders","key":{"id":"1","line":"1"},"values":{"paid":true}}`))
	require.NoError(t, err)
	require.Equal(t, guards.Target{Resource: "table:orders"}, target)
}

func TestConfigurationThatIsRefused(t *testing.T) {
	t.Parallel()
	pool := lazyPool(t)
	operation := doing(appendOrder("1"))["custom"]
	for name, c := range map[string]Config{
		"no pool":                     {Tables: orders},
		"no columns":                  {Pool: pool, Tables: map[string]Table{"orders": {}}},
		"a key that is no column":     {Pool: pool, Tables: map[string]Table{"orders": {Columns: []string{"id"}, Key: []string{"no"}}}},
		"a table in capitals":         {Pool: pool, Tables: map[string]Table{"Orders": {Columns: []string{"id"}}}},
		"a column with a quote":       {Pool: pool, Tables: map[string]Table{"orders": {Columns: []string{`id"`}}}},
		"an action of the catalogue":  {Pool: pool, Operations: map[string]Operation{"row.append": operation}},
		"an operation without target": {Pool: pool, Operations: map[string]Operation{"x": {Do: operation.Do}}},
		"an operation without deed":   {Pool: pool, Operations: map[string]Operation{"x": {Target: operation.Target}}},
	} {
		_, err := New(c)
		require.Error(t, err, name)
	}
	l, err := New(Config{Pool: pool, Operations: map[string]Operation{"x": operation}})
	require.NoError(t, err)
	require.Len(t, l.Operations(), 1, "without tables there are no row actions")
}

// TestRowActions: what they do, and that nothing but the named rows and columns changes.
func TestRowActions(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	l := r.ledger(t, r.pool(t), nil)
	r.exec(t, `ALTER TABLE orders ADD COLUMN hidden text DEFAULT 'secret'`)
	apply := func(action, params string) guards.Ending {
		t.Helper()
		_, err := l.Operations()[action](json.RawMessage(params))
		require.NoError(t, err)
		ending, err := l.Apply(t.Context(), goAhead(action, 1, params))
		require.NoError(t, err)
		return ending
	}
	require.JSONEq(t, `{"rows":1}`, string(apply("row.append", `{"table":"orders","values":{"id":"1","order":"first","cents":5}}`).Result))
	require.JSONEq(t, `{"rows":1}`, string(apply("row.append", `{"table":"orders","values":{"id":"2","paid":true}}`).Result))
	require.JSONEq(t, `{"rows":[{"id":"1","paid":false,"cents":5,"order":"first"}]}`, string(apply("row.read", `{"table":"orders","key":{"id":"1"}}`).Result))
	require.JSONEq(t, `{"rows":[]}`, string(apply("row.read", `{"table":"orders","key":{"id":"3"}}`).Result))
	require.JSONEq(t, `{"rows":1}`, string(apply("row.update", `{"table":"orders","key":{"id":"1"},"values":{"paid":true,"order":"x"}}`).Result))
	require.JSONEq(t, `{"rows":0}`, string(apply("row.update", `{"table":"orders","key":{"id":"3"},"values":{"paid":true}}`).Result))
	require.Equal(t, 1, r.count(t, `orders WHERE id = '1' AND paid AND "order" = 'x' AND cents = 5 AND hidden = 'secret'`))
	require.JSONEq(t, `{"rows":1}`, string(apply("row.delete", `{"table":"orders","key":{"id":"1"}}`).Result))
	require.Equal(t, 1, r.count(t, `orders WHERE id = '2'`))

	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.InvalidRequest}, apply("row.append", `{"table":"orders","values":{"id":"2"}}`), "a duplicate")
	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.InvalidRequest}, apply("row.append", `{"table":"orders","values":{"id":"4","cents":"many"}}`))
	require.Equal(t, guards.NotApplied, apply("row.append", `{"table":"orders","values":{"id":true}}`).Outcome, "a bool is no text")
	require.Equal(t, guards.NotApplied, apply("row.append", `{"table":"orders","values":{"id":"4","cents":9007199254740991}}`).Outcome, "out of range")
	require.Equal(t, 1, r.count(t, "orders"))
}

// TestValuesStayOutOfLogs: what a worker writes may be a person's.
func TestValuesStayOutOfLogs(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	var log bytes.Buffer
	l, err := New(Config{Pool: r.pool(t), Tables: orders, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	for _, values := range []string{`{"id":"1","cents":"private"}`, `{"id":"private","cents":-1}`} {
		ending, err := l.Apply(t.Context(), goAhead("row.append", 1, `{"table":"orders","values":`+values+`}`))
		require.NoError(t, err)
		require.Equal(t, guards.NotApplied, ending.Outcome)
	}
	require.Contains(t, log.String(), "SQLSTATE 22P02")
	require.Contains(t, log.String(), "SQLSTATE 23514")
	require.NotContains(t, log.String(), "private")
}

// TestValuesAreNeverSQL: whatever a value holds, it is read back as it was.
func TestValuesAreNeverSQL(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	l := r.ledger(t, r.pool(t), nil)
	seeds := rapid.SampledFrom([]string{`'; DROP TABLE orders; --`, `$1`, `"`, `\`, `'||pg_sleep(9)||'`, "\u2028", "E'\\x00'", "{{}}", "%s"})
	rapid.Check(t, func(rt *rapid.T) {
		id := fmt.Sprintf("%d-%s", r.count(t, "orders"), rapid.OneOf(seeds, rapid.StringOf(rapid.RuneFrom([]rune(`'"\;-$%aé `)))).Draw(rt, "value"))
		params, err := json.Marshal(map[string]any{"table": "orders", "values": map[string]any{"id": id}})
		require.NoError(rt, err)
		ending, err := l.Apply(t.Context(), goAhead("row.append", 1, string(params)))
		require.NoError(rt, err)
		require.Equal(rt, guards.Committed, ending.Outcome)
		params, _ = json.Marshal(map[string]any{"table": "orders", "key": map[string]any{"id": id}})
		ending, err = l.Apply(t.Context(), goAhead("row.read", 1, string(params)))
		require.NoError(rt, err)
		var result struct{ Rows []struct{ ID string } }
		require.NoError(rt, json.Unmarshal(ending.Result, &result))
		require.Len(rt, result.Rows, 1)
		require.Equal(rt, id, result.Rows[0].ID)
	})
}

// TestManyRowsAreNone: a key that is not unique cannot reach further than the bound.
func TestManyRowsAreNone(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	r.exec(t, `CREATE SCHEMA shop`)
	r.exec(t, `CREATE TABLE shop.lines (id text, n integer)`)
	r.exec(t, `GRANT USAGE ON SCHEMA shop TO PUBLIC`)
	r.exec(t, `GRANT ALL ON shop.lines TO PUBLIC`)
	r.exec(t, `INSERT INTO shop.lines SELECT 'few', n FROM generate_series(1, 100) n UNION ALL SELECT 'many', n FROM generate_series(1, 101) n`)
	l, err := New(Config{Pool: r.pool(t), Tables: map[string]Table{"lines": {Schema: "shop", Columns: []string{"id", "n"}, Key: []string{"id"}}}})
	require.NoError(t, err)
	for action, values := range map[string]string{"row.read": ``, "row.update": `,"values":{"n":0}`, "row.delete": ``} {
		ending, err := l.Apply(t.Context(), goAhead(action, 1, `{"table":"lines","key":{"id":"many"}`+values+`}`))
		require.NoError(t, err)
		require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.InvalidRequest}, ending, action)
	}
	require.Equal(t, 101, r.count(t, "shop.lines WHERE id = 'many' AND n > 0"))
	ending, err := l.Apply(t.Context(), goAhead("row.delete", 1, `{"table":"lines","key":{"id":"few"}}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"rows":100}`, string(ending.Result))
	require.Equal(t, 101, r.count(t, "shop.lines"))
}

func FuzzRowParameters(f *testing.F) {
	f.Add("row.append", []byte(`{"table":"orders","values":{"id":"1","paid":true,"cents":5}}`))
	f.Add("row.update", []byte(`{"table":"orders","key":{"id":"1"},"values":{"paid":true}}`))
	f.Add("row.read", []byte(`{"table":"orders","key":{"id":"1"}}`))
	f.Add("row.delete", []byte(`{"table":"wages","key":{"id":1}}`))
	f.Add("row.append", []byte(`{"table":"orders","values":{"ID":"1"}}`))
	allowed := tables(orders)
	operations, err := rowOperations(allowed)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, action string, params []byte) {
		operation, ok := operations[action]
		if !ok {
			return
		}
		target, err := operation.target(params)
		if err != nil {
			require.Empty(t, target)
			return
		}
		require.Equal(t, "table:orders", target.Resource)
		table, r, err := allowed.parse(params)
		require.NoError(t, err)
		for column := range r.Values {
			require.Contains(t, table.Columns, column)
			require.NotContains(t, r.Key, column)
		}
		s := new(statement)
		s.pairs(r.Key, " AND ")
		s.pairs(r.Values, ", ")
		require.Len(t, s.args, len(r.Key)+len(r.Values))
		require.NotContains(t, s.String(), `''`)
		_ = pgx.Identifier{r.Table}.Sanitize()
	})
}
