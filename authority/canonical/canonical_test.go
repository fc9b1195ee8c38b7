package canonical

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gowebpki/jcs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// vectors is the folder of public test vectors. A developer may lack it, CI may not.
func vectors(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("NIGHTWARRANT_VECTORS")
	if dir == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("NIGHTWARRANT_VECTORS must be set in CI")
		}
		t.Skip("NIGHTWARRANT_VECTORS is not set")
	}
	return dir
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

var refused = map[string]string{
	"nothing":                       ``,
	"white space only":              " \n",
	"top level array":               `[]`,
	"top level string":              `"a"`,
	"top level number":              `1`,
	"byte order mark":               "\xef\xbb\xbf{}",
	"trailing bytes":                `{} x`,
	"two documents":                 `{}{}`,
	"not ended":                     `{"a":1`,
	"no colon":                      `{"a" 1}`,
	"no value":                      `{"a":}`,
	"no comma":                      `{"a":1 "b":2}`,
	"trailing comma in an object":   `{"a":1,}`,
	"trailing comma in an array":    `{"a":[1,]}`,
	"leading comma":                 `{,"a":1}`,
	"name without quotes":           `{a:1}`,
	"single quotes":                 `{'a':1}`,
	"comment":                       `{/**/}`,
	"capital literal":               `{"a":True}`,
	"literal with a tail":           `{"a":truely}`,
	"vertical tab as white space":   "{\v}",
	"no-break space as white space": "{\u00a0}",
	"NUL byte":                      "{\x00}",

	"name twice":                    `{"a":1,"a":2}`,
	"name twice, not side by side":  `{"a":1,"b":1,"a":1}`,
	"name twice, one escaped":       `{"alg":1,"\u0061lg":2}`,
	"name twice, slash escaped":     `{"a/b":1,"a\/b":2}`,
	"name twice, pair against text": `{"😀":1,"\ud83d\ude00":2}`,
	"name twice, nested":            `{"a":{"b":1,"b":1}}`,
	"name twice, in an array":       `{"a":[{"b":1,"b":1}]}`,
	"empty name twice":              `{"":1,"":2}`,

	"lone high surrogate":           `{"a":"\ud83d"}`,
	"lone low surrogate":            `{"a":"\ude00"}`,
	"reversed pair (jcs#5)":         `{"a":"\ude00\ud83d"}`,
	"high surrogate, then text":     `{"a":"\ud83dabcdef"}`,
	"high surrogate, then escape":   `{"a":"\ud83d\n12345"}`,
	"two high surrogates":           `{"a":"\ud83d\ud83d"}`,
	"lone surrogate in a name":      `{"\ud83d":1}`,
	"surrogate in UTF-8":            "{\"a\":\"\xed\xa0\xbd\"}",
	"bad UTF-8 (jcs#5)":             "{\"a\":\"\xff\"}",
	"overlong UTF-8":                "{\"a\":\"\xc0\xaf\"}",
	"cut UTF-8":                     "{\"a\":\"\xe2\x82\"}",
	"noncharacter":                  "{\"a\":\"\uffff\"}",
	"noncharacter of another plane": "{\"a\":\"\U0001fffe\"}",
	"escaped noncharacter":          `{"a":"\ufdd0"}`,
	"control character":             "{\"a\":\"\n\"}",
	"unknown escape":                `{"a":"\x41"}`,
	"short escape":                  `{"a":"\u00"}`,
	"escape with a sign":            `{"a":"\u+041"}`,
	"escape at the end":             `{"a":"\`,

	"null":             `{"a":null}`,
	"fraction":         `{"a":1.5}`,
	"whole fraction":   `{"a":1.0}`,
	"exponent":         `{"a":1e2}`,
	"huge exponent":    `{"a":1e400}`,
	"minus zero":       `{"a":-0}`,
	"leading zero":     `{"a":01}`,
	"plus":             `{"a":+1}`,
	"only a minus":     `{"a":-}`,
	"hexadecimal":      `{"a":0x10}`,
	"NaN":              `{"a":NaN}`,
	"past the safe":    `{"a":9007199254740992}`,
	"below the safe":   `{"a":-9007199254740992}`,
	"past 64 bits":     `{"a":18446744073709551617}`,
	"too deep":         `{"a":` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `}`,
	"too deep, open":   strings.Repeat(`{"a":`, MaxSize/5),
	"too deep, arrays": `{"a":` + strings.Repeat("[", MaxSize-5),
	"too large":        `{"a":"` + strings.Repeat("x", MaxSize) + `"}`,
}

func TestRefusedDocuments(t *testing.T) {
	t.Parallel()
	for name, in := range refused {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := Canonicalize([]byte(in))
			require.Error(t, err)
			require.Nil(t, out)
			var typed *Error
			require.True(t, errors.As(err, &typed))
			assert.LessOrEqual(t, typed.Offset, len(in))
			assert.Less(t, len(err.Error()), 100)
		})
	}
}

func TestErrorsDoNotRepeatTheDocument(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, in := range []string{
		`{"hunter2":1,"hunter2":2}`, `{"a":hunter2}`, `{"a":"hunter2\x"}`, `{"hunter2":null}`, `{"a":1}hunter2`, `hunter2`,
	} {
		_, err := Canonicalize([]byte(in))
		require.Error(t, err)
		assert.NotContains(t, err.Error(), secret)
	}
	_, err := CanonicalizeValue(map[string]any{secret: func() {}})
	require.Error(t, err)
	assert.NotContains(t, err.Error(), secret)
}

func TestCanonicalSpelling(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		" { } ":                         `{}`,
		`{"b":1,"a":2}`:                 `{"a":2,"b":1}`,
		`{"a": [ true, false, "x" ] }`:  `{"a":[true,false,"x"]}`,
		`{"a":9007199254740991}`:        `{"a":9007199254740991}`,
		`{"a":-9007199254740991,"b":0}`: `{"a":-9007199254740991,"b":0}`,
		`{"\u0061":"\u0041\/\u000a"}`:   `{"a":"A/\n"}`,
		`{"a":"\u001f\u007f"}`:          "{\"a\":\"\\u001f\u007f\"}",
		`{"a":"\ud83d\ude00"}`:          `{"a":"😀"}`,
		// UTF-16 order: U+1F600 (D83D …) stands before U+FB33, although its code point is higher.
		"{\"\ufb33\":1,\"😀\":2,\"a\":3}": "{\"a\":3,\"😀\":2,\"\ufb33\":1}",
		`{"a":` + strings.Repeat("[", MaxDepth-1) + strings.Repeat("]", MaxDepth-1) + `}`: `{"a":` +
			strings.Repeat("[", MaxDepth-1) + strings.Repeat("]", MaxDepth-1) + `}`,
	} {
		out, err := Canonicalize([]byte(in))
		require.NoError(t, err, in)
		assert.Equal(t, want, string(out))
	}
}

// The vectors hold fractions and nulls, which our own function refuses: they run against the library, and ours must
// agree wherever it accepts.
func TestVectorsJCS(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(vectors(t), "jcs")
	names, err := filepath.Glob(filepath.Join(dir, "input", "*.json"))
	require.NoError(t, err)
	require.Len(t, names, 6)
	accepted := 0
	for _, name := range names {
		base := strings.TrimSuffix(filepath.Base(name), ".json")
		in, err := os.ReadFile(name)
		require.NoError(t, err)
		text, err := os.ReadFile(filepath.Join(dir, "outhex", base+".txt"))
		require.NoError(t, err)
		want := unhex(t, string(text))
		spelled, err := os.ReadFile(filepath.Join(dir, "output", base+".json"))
		require.NoError(t, err)
		require.Equal(t, want, spelled, base)
		out, err := jcs.Transform(in)
		require.NoError(t, err, base)
		assert.Equal(t, want, out, base)
		if ours, err := Canonicalize(in); err == nil {
			accepted++
			assert.Equal(t, want, ours, base)
		}
	}
	assert.Equal(t, 3, accepted, "french, unicode and weird hold nothing but strings")
}

// Both inputs are accepted by some versions of the library and by other implementations, which then give two documents
// one spelling (gowebpki/jcs#5).
func TestVectorsThatLibrariesAccept(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"5b225c75646530305c7564383364225d", "5b22ff225d"} {
		in := slicesConcat([]byte(`{"a":`), unhex(t, text), []byte(`}`))
		_, err := Canonicalize(in)
		require.Error(t, err, text)
		require.Error(t, Members(in, ignore), text)
	}
}

func slicesConcat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func ignore([]byte, Value) error { return nil }

func TestDigest(t *testing.T) {
	t.Parallel()
	want := sha256.Sum256([]byte("nightwarrant/member/v1\x00iss\x00sub"))
	assert.Equal(t, want, Digest(DomainMember, []byte("iss"), []byte("sub")))
	assert.Equal(t, sha256.Sum256([]byte("d\x00")), Digest("d"))
	assert.Equal(t, Digest("d"), Digest("d", nil), "one empty part is no part")
	assert.NotEqual(t, Digest("d", nil), Digest("d", nil, nil))
	assert.NotEqual(t, Digest("d", []byte("a"), []byte("b")), Digest("d", []byte("ab")))
	assert.NotEqual(t, Digest(DomainEffect, []byte("x")), Digest(DomainParams, []byte("x")))
	long := bytes.Repeat([]byte("x"), 2000)
	assert.Equal(t, sha256.Sum256(append([]byte("d\x00"), long...)), Digest("d", long))
}

func TestDecode(t *testing.T) {
	t.Parallel()
	type inner struct {
		JKT string `json:"jkt"`
	}
	type outer struct {
		Iss   string `json:"iss"`
		Fence int64  `json:"fence"`
		Cnf   inner  `json:"cnf"`
	}
	var got outer
	require.NoError(t, Decode([]byte(`{"iss":"a","fence":7,"cnf":{"jkt":"x"}}`), &got))
	assert.Equal(t, outer{"a", 7, inner{"x"}}, got)
	for name, in := range map[string]string{
		"unknown":              `{"iss":"a","more":1}`,
		"unknown, nested":      `{"cnf":{"jkt":"x","x5t#S256":"y"}}`,
		"other case":           `{"Iss":"a"}`,
		"other case, nested":   `{"cnf":{"JKT":"a"}}`,
		"folds to s":           `{"i\u017f\u017f":"a"}`,
		"folds to k":           `{"cnf":{"j\u212at":"a"}}`,
		"twice":                `{"iss":"a","iss":"a"}`,
		"null":                 `{"iss":null}`,
		"number for string":    `{"iss":1}`,
		"string for number":    `{"fence":"1"}`,
		"fraction":             `{"fence":1.0}`,
		"array for object":     `{"cnf":[]}`,
		"something after":      `{"iss":"a"}{}`,
		"name of no character": `{"":"a"}`,
	} {
		var typed *Error
		require.ErrorAs(t, Decode([]byte(in), &outer{}), &typed, name)
	}
}

func TestMembers(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	err := Members([]byte(` { "\u0061" : 1 , "b":{"a":[1,{"a":null}]}, "c":"x\ty", "d":-1.5e3 } `), func(name []byte, v Value) error {
		got[string(name)] = string(v.Raw)
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a": "1", "b": `{"a":[1,{"a":null}]}`, "c": `"x\ty"`, "d": "-1.5e3"}, got)

	stop := errors.New("stop")
	assert.Equal(t, stop, Members([]byte(`{"a":1,!`), func([]byte, Value) error { return stop }))
	require.Error(t, Members([]byte(`{"a":1,"a":2}`), ignore), "a name given twice is seen although both were visited")
	require.Error(t, Members([]byte(`{"b":{"a":1,"a":2}}`), ignore))
	require.Error(t, Members([]byte(`[]`), ignore))
}

func TestValues(t *testing.T) {
	t.Parallel()
	value := func(raw string) Value { return Value{Raw: []byte(raw)} }
	text, ok := value(`"a\u00e9\"\\\/\b\f\n\r\t\ud83d\ude00é"`).Text()
	assert.True(t, ok)
	assert.Equal(t, "aé\"\\/\b\f\n\r\t😀é", text)
	assert.True(t, value(`"\u0045S256"`).Is("ES256"))
	assert.False(t, value(`"ES257"`).Is("ES256"))
	for _, raw := range []string{`1`, `null`, `{}`, `[]`, `true`} {
		_, ok = value(raw).Text()
		assert.False(t, ok, raw)
		assert.False(t, value(raw).Is(""), raw)
	}
	n, ok := value(`-12`).Int()
	assert.True(t, ok)
	assert.EqualValues(t, -12, n)
	for _, raw := range []string{`1.0`, `1e3`, `-0`, `9007199254740992`, `"1"`, `null`, `true`, `[1]`} {
		_, ok = value(raw).Int()
		assert.False(t, ok, raw)
	}
}

func TestElements(t *testing.T) {
	t.Parallel()
	var got []string
	collect := func(v Value) error {
		got = append(got, string(v.Raw))
		return nil
	}
	require.NoError(t, Elements(Value{Raw: []byte(`[1,[2,3],{"a":[4]}]`)}, collect))
	assert.Equal(t, []string{"1", "[2,3]", `{"a":[4]}`}, got)
	require.Error(t, Elements(Value{Raw: []byte(`{"a":1}`)}, collect))
	stop := errors.New("stop")
	assert.Equal(t, stop, Elements(Value{Raw: []byte(`[1]`)}, func(Value) error { return stop }))
}

// character drops the noncharacters, which a document may not hold.
func character(r rune) rune {
	if (&scanner{plain: true}).character(r) != nil {
		return -1
	}
	return r
}

// A document of any allowed values, built from nothing but them.
func documents() *rapid.Generator[map[string]any] {
	leaf := rapid.OneOf(
		rapid.Map(rapid.String(), func(s string) any { return strings.Map(character, s) }),
		rapid.Map(rapid.Int64Range(-MaxInt, MaxInt), func(n int64) any { return n }),
		rapid.Map(rapid.Bool(), func(b bool) any { return b }),
	)
	names := rapid.StringMatching(`[a-z"\\é😀\x00-\x1f]{0,4}`)
	array := rapid.Map(rapid.SliceOfN(leaf, 0, 4), func(v []any) any { return v })
	object := rapid.Map(rapid.MapOfN(names, leaf, 0, 4), func(v map[string]any) any { return v })
	return rapid.MapOfN(names, rapid.OneOf(leaf, array, object), 0, 6)
}

func TestCanonicalizeProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		doc := documents().Draw(t, "document")
		once, err := CanonicalizeValue(doc)
		require.NoError(t, err)
		twice, err := Canonicalize(once)
		require.NoError(t, err)
		require.Equal(t, once, twice, "idempotent")

		spaced, err := json.MarshalIndent(doc, " ", "\t")
		require.NoError(t, err)
		again, err := Canonicalize(spaced)
		require.NoError(t, err)
		require.Equal(t, once, again, "white space and escapes do not matter")
	})
}

func TestOrderOfMembersDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zé]{1,6}`), 1, 40, rapid.ID).Draw(t, "names")
		spell := func(order []string) []byte {
			parts := make([]string, len(order))
			for i, name := range order {
				parts[i] = `"` + name + `":"` + name + `"`
			}
			return []byte("{" + strings.Join(parts, ",") + "}")
		}
		want, err := Canonicalize(spell(names))
		require.NoError(t, err)
		got, err := Canonicalize(spell(rapid.Permutation(names).Draw(t, "order")))
		require.NoError(t, err)
		require.Equal(t, want, got)

		twice := append(names, rapid.SampledFrom(names).Draw(t, "twice"))
		_, err = Canonicalize(spell(twice))
		require.Error(t, err)
	})
}

// Whatever is accepted has one spelling, is JSON for everybody else, and says the same to encoding/json before and after.
func FuzzCanonicalize(f *testing.F) {
	for _, in := range refused {
		f.Add([]byte(in))
	}
	f.Add([]byte(`{"b":[1,-2,true,false,"\u00e9\ud83d\ude00"],"a":{"x":{}}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := Canonicalize(in)
		if err != nil {
			require.Nil(t, out)
			return
		}
		require.True(t, json.Valid(in))
		require.True(t, json.Valid(out))
		require.NoError(t, Members(in, ignore))
		again, err := Canonicalize(out)
		require.NoError(t, err)
		require.Equal(t, out, again)
		require.Equal(t, plain(t, in), plain(t, out))
	})
}

func plain(t *testing.T, in []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(in))
	d.UseNumber()
	require.NoError(t, d.Decode(&v))
	return v
}
