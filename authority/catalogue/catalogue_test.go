package catalogue

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWhatIsUnknownIsHigh(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"", ""}, {"postgres", ""}, {"postgres", "row.read "}, {"postgres", "row.Read"}, {"postgres", "row"}, {"postgres", "row.rea"},
		{"postgres", "row.*"}, {"postgres", "*"}, {"Postgres", "row.read"}, {"http", "row.read"}, {"model", "chat"}, {"postgres", "row.read\x00"},
	} {
		assert.Equal(t, High, RiskOf(c[0], c[1]), c)
		_, ok := Lookup(c[0], c[1])
		assert.False(t, ok, c)
	}
}

func TestNoMutationIsRead(t *testing.T) {
	t.Parallel()
	for _, a := range compiled {
		assert.Contains(t, []Risk{Read, Low, High}, a.Risk, a.Name)
		if a.Risk == Read {
			assert.True(t, strings.HasSuffix(a.Name, ".read"), "%s changes something", a.Name)
		}
	}
	for name, risk := range map[string]Risk{"row.read": Read, "row.append": Low, "row.update": High, "row.delete": High} {
		assert.Equal(t, risk, RiskOf(Postgres, name), name)
	}
}

func TestActionsAreDistinctAndTitled(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, a := range Actions(Postgres) {
		assert.False(t, seen[a.Name])
		seen[a.Name] = true
		assert.Greater(t, len(strings.Fields(a.Title)), 3, "a title is a verb and an object")
		found, ok := Lookup(a.Kind, a.Name)
		assert.True(t, ok)
		assert.Equal(t, a.Title, found.Title)
	}
	assert.Len(t, seen, 4)
	assert.Len(t, Actions(Model), 2)
	assert.Empty(t, Actions("http"))
	assert.Empty(t, Actions(""))
}

// A build that gives an action another risk or another schema must not be
// taken for this one: whoever changes the catalogue changes this digest.
func TestDigestIsThatOfThisCatalogue(t *testing.T) {
	t.Parallel()
	d := Digest()
	assert.Equal(t, "6248f3ad7b50bc9f8781fb7db13866d366b7eee81a37e40a6bbf511ccf750ff7", hex.EncodeToString(d[:]))
}

func TestRiskWords(t *testing.T) {
	t.Parallel()
	for i, word := range []string{"none", "read", "low", "high"} {
		r, err := ParseRisk(word)
		require.NoError(t, err)
		assert.Equal(t, Risk(i), r)
		assert.Equal(t, word, r.String())
		text, err := json.Marshal(r)
		require.NoError(t, err)
		assert.Equal(t, `"`+word+`"`, string(text))
		var back Risk
		require.NoError(t, json.Unmarshal(text, &back))
		assert.Equal(t, r, back)
	}
	for _, word := range []string{"", "None", "HIGH", "low ", "medium", "2", strings.Repeat("x", 1000)} {
		r, err := ParseRisk(word)
		assert.Equal(t, High, r)
		if assert.Error(t, err, word) {
			assert.Less(t, len(err.Error()), 100)
		}
		kept := Read
		assert.Error(t, kept.UnmarshalText([]byte(word)))
		assert.Equal(t, Read, kept)
	}
	for _, r := range []Risk{-1, 4, 1 << 14} {
		assert.Equal(t, "high", r.String())
		assert.False(t, r.Valid())
		_, err := r.MarshalText()
		assert.Error(t, err)
	}
	assert.True(t, None < Read && Read < Low && Low < High)
}

func TestResourceIsRefused(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{
		"", "orders", "table:", ":orders", "table:*", "*", "table:ord*", "table:orders ", " table:orders", "table:or ders", "table:orders\n",
		"table:\u202eorders", "table:órders", "Table:orders", "table:orders%", "table:orders?x", "table:{orders}", "table:" + strings.Repeat("a", 200),
	} {
		assert.Error(t, CheckResource("", resource), "%q", resource)
		assert.Error(t, CheckResource(HTTP, resource), "%q", resource)
		assert.Error(t, CheckResource(Postgres, resource), "%q", resource)
	}
	for _, resource := range []string{"operation:create-issue", "table:Orders", "table:public.orders", "table:1a", "table:" + strings.Repeat("a", 64)} {
		assert.NoError(t, CheckResource("", resource), resource)
		assert.Error(t, CheckResource(Postgres, resource), resource)
	}
	assert.NoError(t, CheckResource(Postgres, "table:orders_2026"))
}

func TestParametersAreRefused(t *testing.T) {
	t.Parallel()
	many := make([]string, 33)
	for i := range many {
		many[i] = fmt.Sprintf(`"c%d":1`, i)
	}
	text := func(n int) string { return `{"table":"t","values":{"a":"` + strings.Repeat("x", n) + `"}}` }
	cases := []struct{ action, params, says string }{
		{"row.append", ``, "parameters"},
		{"row.append", `null`, "parameters"},
		{"row.append", `[]`, "parameters"},
		{"row.append", `{"table":"t","values":{"a":1}} {}`, "parameters"},
		{"row.append", `{}`, "is missing"},
		{"row.append", `{"table":"t"}`, `"values" is missing`},
		{"row.append", `{"values":{"a":1}}`, `"table" is missing`},
		{"row.append", `{"table":"t","values":{"a":1},"key":{"a":1}}`, `"key" is not a parameter`},
		{"row.append", `{"table":"t","Table":"t","values":{"a":1}}`, `"Table" is not a parameter`},
		{"row.append", `{"TABLE":"t","values":{"a":1}}`, `"TABLE" is not a parameter`},
		{"row.append", `{"table":"t","table":"u","values":{"a":1}}`, "parameters"},
		{"row.append", `{"table":"t","values":{"a":1,"a":2}}`, "parameters"},
		{"row.append", `{"table":1,"values":{"a":1}}`, `"table" must be`},
		{"row.append", `{"table":["t"],"values":{"a":1}}`, `"table" must be`},
		{"row.append", `{"table":"","values":{"a":1}}`, `"table" must be`},
		{"row.append", `{"table":"T","values":{"a":1}}`, `"table" must be`},
		{"row.append", `{"table":"t;drop","values":{"a":1}}`, `"table" must be`},
		{"row.append", `{"table":"t\"","values":{"a":1}}`, `"table" must be`},
		{"row.append", `{"table":"public.t","values":{"a":1}}`, `"table" must be`},
		{"row.append", `{"table":"t\n","values":{"a":1}}`, `"table" must be`},
		{"row.append", `{"table":"*","values":{"a":1}}`, `"table" must be`},
		{"row.append", `{"table":"` + strings.Repeat("t", 64) + `","values":{"a":1}}`, `"table" must be`},
		{"row.append", `{"table":"t","values":{}}`, "between 1 and 32"},
		{"row.append", `{"table":"t","values":{` + strings.Join(many, ",") + `}}`, "between 1 and 32"},
		{"row.append", `{"table":"t","values":[]}`, `"values" must be an object`},
		{"row.append", `{"table":"t","values":"a"}`, `"values" must be an object`},
		{"row.append", `{"table":"t","values":null}`, "parameters"},
		{"row.append", `{"table":"t","values":{"A":1}}`, "not a name in lower case"},
		{"row.append", `{"table":"t","values":{"a b":1}}`, "not a name in lower case"},
		{"row.append", `{"table":"t","values":{"":1}}`, "not a name in lower case"},
		{"row.append", `{"table":"t","values":{"a":null}}`, "parameters"},
		{"row.append", `{"table":"t","values":{"a":1.5}}`, "parameters"},
		{"row.append", `{"table":"t","values":{"a":1e3}}`, "parameters"},
		{"row.append", `{"table":"t","values":{"a":9007199254740992}}`, "parameters"},
		{"row.append", `{"table":"t","values":{"a":[1]}}`, "must be a string"},
		{"row.append", `{"table":"t","values":{"a":{"b":1}}}`, "must be a string"},
		{"row.append", `{"table":"t","values":{"a":"\u0000"}}`, "NUL"},
		{"row.append", "{\"table\":\"t\",\"values\":{\"a\":\"\xff\"}}", "parameters"},
		{"row.append", `{"table":"t","values":{"a":"\ud800"}}`, "parameters"},
		{"row.append", text(4097), "longer than 4096 bytes"},
		{"row.append", text(70000), "parameters"},
		{"row.update", `{"table":"t","key":{"a":1}}`, `"values" is missing`},
		{"row.update", `{"table":"t","values":{"a":1}}`, `"key" is missing`},
		{"row.update", `{"table":"t","key":{},"values":{"a":1}}`, "between 1 and 32"},
		{"row.update", `{"table":"t","key":{"a":1},"values":{"a":2}}`, "both key and values"},
		{"row.delete", `{"table":"t"}`, `"key" is missing`},
		{"row.delete", `{"table":"t","key":{}}`, "between 1 and 32"},
		{"row.delete", `{"table":"t","key":{"a":1},"values":{"b":1}}`, `"values" is not a parameter`},
		{"row.read", `{"table":"t","key":{"a":1},"limit":1}`, `"limit" is not a parameter`},
	}
	for _, c := range cases {
		a, ok := Lookup(Postgres, c.action)
		require.True(t, ok)
		target, err := a.Target(json.RawMessage(c.params))
		if assert.ErrorContains(t, err, c.says, "%.200s", c.params) {
			assert.Less(t, len(err.Error()), 300)
			assert.NotContains(t, err.Error(), "\n")
		}
		assert.Zero(t, target)
		_, ok = a.Key(json.RawMessage(c.params))
		assert.False(t, ok)
	}
}

func TestParametersName(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("t", 63)
	for _, c := range [][3]string{
		{"row.append", `{"table":"orders","values":{"id":1,"paid":false,"note":"ä \u202e ' ; --"}}`, "table:orders"},
		{"row.append", ` { "values" : { "_a1" : -9007199254740991 } , "table" : "` + longest + `" } `, "table:" + longest},
		{"row.append", `{"table":"t","values":{"a":"` + strings.Repeat("x", 4096) + `"}}`, "table:t"},
		{"row.update", `{"table":"orders","key":{"id":1},"values":{"paid":true}}`, "table:orders"},
		{"row.delete", `{"table":"orders","key":{"id":1}}`, "table:orders"},
		{"row.read", `{"table":"orders","key":{"id":"1"}}`, "table:orders"},
	} {
		a, ok := Lookup(Postgres, c[0])
		require.True(t, ok)
		target, err := a.Target(json.RawMessage(c[1]))
		require.NoError(t, err)
		assert.Equal(t, Target{Resource: c[2]}, target)
		assert.NoError(t, CheckResource(Postgres, target.Resource))
		assert.NoError(t, compileConstant(a.Schema).check(json.RawMessage(c[1])), "the published schema says the same")
	}
}

func TestAnActionOutsideTheCatalogueValidatesNothing(t *testing.T) {
	t.Parallel()
	forged := Action{Kind: Postgres, Name: "row.read", Risk: Read}
	_, err := forged.Target(json.RawMessage(`{"table":"t","key":{"a":1}}`))
	assert.Error(t, err)
}

func TestResourceIsAlwaysTheTable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		column := rapid.StringMatching(`[a-z_][a-z0-9_]{0,62}`)
		value := rapid.OneOf(
			rapid.Map(rapid.StringMatching(`[\x01-\x{d7ff}]{0,100}`), func(s string) any { return s }),
			rapid.Map(rapid.Bool(), func(b bool) any { return b }),
			rapid.Map(rapid.Int64Range(-1<<53+1, 1<<53-1), func(i int64) any { return i }),
		)
		table := column.Draw(t, "table")
		params, err := json.Marshal(map[string]any{
			"table": table, "values": rapid.MapOfN(column, value, 1, 32).Draw(t, "values"),
		})
		if err != nil {
			t.Fatal(err)
		}
		a, _ := Lookup(Postgres, "row.append")
		target, err := a.Target(params)
		if err != nil || target.Resource != "table:"+table {
			t.Fatalf("%s: %v, %v", params, target, err)
		}
	})
}

func FuzzParameters(f *testing.F) {
	for _, seed := range []string{
		`{"table":"orders","values":{"id":1}}`, `{"table":"orders","key":{"id":1}}`, `{"table":"orders","key":{"id":1},"values":{"a":"b"}}`,
		`{"table":"t","values":{"a":null}}`, `{"table":"t","table":"u"}`, `{"Table":"t"}`, `[]`, `{"table":"t\u0000"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, params []byte) {
		for _, a := range rows {
			target, err := a.Target(params)
			resource := target.Resource
			if err != nil {
				if resource != "" || strings.Contains(err.Error(), "\n") {
					t.Fatalf("%q, %v", resource, err)
				}
				continue
			}
			var loose struct {
				Table       string
				Key, Values map[string]any
			}
			if json.Unmarshal(params, &loose) != nil || "table:"+loose.Table != resource || len(loose.Key)+len(loose.Values) == 0 {
				t.Fatalf("%s reads %q differently", params, resource)
			}
		}
	})
}
