package canonical

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What Members lets stand that Check does not: values of foreign objects, never their form.
func TestMembersAreLaxOnValuesOnly(t *testing.T) {
	t.Parallel()
	lax := map[string]bool{
		"null": true, "fraction": true, "whole fraction": true, "exponent": true, "minus zero": true, "past the safe": true,
		"below the safe": true, "past 64 bits": true, "noncharacter": true, "noncharacter of another plane": true, "escaped noncharacter": true,
	}
	for name, in := range refused {
		err := Members([]byte(in), ignore)
		assert.Equal(t, lax[name], err == nil, "%s: %v", name, err)
	}
}

// Members agrees with encoding/json about every value that encoding/json writes.
func TestMembersAgreesWithEncodingJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		doc := documents().Draw(t, "document")
		doc["float"] = rapid.Float64Range(-1e300, 1e300).Draw(t, "float")
		doc["null"] = nil
		in, err := json.Marshal(doc)
		require.NoError(t, err)
		got := map[string]json.RawMessage{}
		require.NoError(t, Members(in, func(name []byte, v Value) error {
			got[string(name)] = v.Raw
			return nil
		}))
		want := map[string]json.RawMessage{}
		require.NoError(t, json.Unmarshal(in, &want))
		require.Equal(t, want, got)
	})
}

// Text agrees with encoding/json about every string.
func TestTextAgreesWithEncodingJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.String().Draw(t, "text")
		raw, err := json.Marshal(want)
		require.NoError(t, err)
		got, ok := Value{Raw: raw}.Text()
		require.True(t, ok)
		require.Equal(t, want, got)
		require.True(t, Value{Raw: raw}.Is(want))
	})
}

// A reader is told of a wrong document before, never instead of, the end of its input: work is bounded by size.
func TestManyMembersAndMuchNesting(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	many.WriteString(`{"":0`)
	for i := range 5000 {
		many.WriteString(`,"` + strings.Repeat("k", 1+i%3) + string(rune('a'+i%26)) + strings.Repeat("v", i%7) + `":0`)
	}
	many.WriteString("}")
	require.Less(t, many.Len(), MaxSize)
	var refusal *Error
	require.ErrorAs(t, Check([]byte(many.String())), &refusal)
	assert.Equal(t, "a member name is given twice", refusal.Reason)
	assert.Equal(t, many.Len(), refusal.Offset)

	nested := strings.Repeat(`{"a":`, MaxDepth) + "1" + strings.Repeat("}", MaxDepth)
	assert.NoError(t, Check([]byte(nested)))
	assert.Error(t, Check([]byte(`{"a":`+nested+`}`)))
}

func TestSizeIsCheckedFirst(t *testing.T) {
	t.Parallel()
	head, tail := `{"a":"`, `"}`
	fits := head + strings.Repeat("x", MaxSize-len(head)-len(tail)) + tail
	require.NoError(t, Check([]byte(fits)))
	var refusal *Error
	require.ErrorAs(t, Check([]byte("\xff"+fits)), &refusal)
	assert.Equal(t, "the document is too large", refusal.Reason)
	require.ErrorAs(t, Decode([]byte(fits+" "), &struct{}{}), &refusal)
	assert.Equal(t, "the document is too large", refusal.Reason)
	require.ErrorAs(t, Members([]byte(fits+" "), ignore), &refusal)
}

func TestCanonicalizeValue(t *testing.T) {
	t.Parallel()
	out, err := CanonicalizeValue(struct {
		B int64  `json:"b"`
		A string `json:"a"`
	}{7, "<&>"})
	require.NoError(t, err)
	assert.Equal(t, `{"a":"<&>","b":7}`, string(out))
	for _, v := range []any{nil, 1, "x", []int{1}, 1.5, map[string]any{"a": nil}, map[string]any{"a": 1.5}, map[string]float64{"a": 1e30}, make(chan int)} {
		out, err := CanonicalizeValue(v)
		assert.Error(t, err, "%v", v)
		assert.Nil(t, out)
	}
}

// FuzzMembers: whatever is accepted is JSON, and encoding/json finds the same members in it.
func FuzzMembers(f *testing.F) {
	for _, in := range refused {
		f.Add([]byte(in))
	}
	f.Add([]byte(`{"a":[1,{"b":null}],"c":"\ud83d\ude00","d":-0.5e-7}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		got := map[string]json.RawMessage{}
		err := Members(in, func(name []byte, v Value) error {
			got[string(name)] = v.Raw
			_, _ = v.Text()
			_, _ = v.Int()
			return nil
		})
		if err != nil {
			require.Less(t, len(err.Error()), 100)
			return
		}
		want := map[string]json.RawMessage{}
		require.NoError(t, json.Unmarshal(in, &want))
		require.Equal(t, want, got)
	})
}
