package document

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const file = `# What the ledger may do at night.
---
kind: Client
name: ledger
title: Ledger   # as members read it
---
kind: WorkloadRole
name: sweeper
client: ledger
revision: 3
profiles: [cluster-a]
actions:
  - {guard: orders-db, action: row.read}
  - guard: orders-db
    action: row.append
limits:
  max_runtime_s: 900
  max_effects: 50
---
---
# the end
kind: Policy
name: 'standard'
revision: 2
dial_max: "low"
retired: true
limits: {"max_runtime_s": 3600, "max_effects": 100, "max_consent_days": 90}
---
`

func TestFileOfDocuments(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"as written": file, "from elsewhere": strings.ReplaceAll(file, "\n", "\r\n"), "no last line": strings.TrimSuffix(file, "---\n")} {
		found, err := ParseYAML([]byte(text))
		require.NoError(t, err, name)
		require.Len(t, found, 3)
		assert.Equal(t, &Client{Header{KindClient, "ledger"}, "Ledger"}, found[0])
		assert.Equal(t, &WorkloadRole{
			Header: Header{KindRole, "sweeper"}, Client: "ledger", Revision: 3, Profiles: []string{"cluster-a"},
			Actions: []Allowed{{"orders-db", "row.read"}, {"orders-db", "row.append"}}, Limits: RoleLimits{MaxRuntimeS: 900, MaxEffects: 50, MaxSteps: 10_000},
		}, found[1])
		assert.Equal(t, &Policy{Header: Header{KindPolicy, "standard"}, Revision: 2, DialMax: 2, Limits: PolicyLimits{MaxRuntimeS: 3600, MaxEffects: 100, MaxSteps: 10_000, MaxConsentDays: 90}, Retired: true}, found[2])
	}
}

func TestNothingIsNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", "---", "---\n---\n", "# only a comment\n", "--- # a comment\n", " \n\t\n"} {
		found, err := ParseYAML([]byte(text))
		assert.NoError(t, err, "%q", text)
		assert.Empty(t, found)
	}
}

func TestFileIsRefused(t *testing.T) {
	t.Parallel()
	const head = "kind: Client\nname: ledger\n"
	cases := map[string]struct{ text, says string }{
		"unknown field":         {head + "title: a\ntilte: b\n", "line 4: Client ledger tilte is not a known field"},
		"unknown field inside":  {strings.Replace(file, "  max_effects", "  max_effect", 1), "line 18: WorkloadRole sweeper limits.max_effect is not a known field"},
		"unknown field in list": {strings.Replace(file, "    action", "    akshun", 1), "line 15: WorkloadRole sweeper actions[1].akshun is not a known field"},
		"missing field":         {head, "line 1: Client ledger title must be text"},
		"missing field in list": {strings.Replace(file, ", action: row.read", "", 1), "line 13: WorkloadRole sweeper actions[0].action must be"},
		"wrong value":           {strings.Replace(file, "revision: 2", "revision: 0", 1), "line 24: Policy standard revision must be between"},
		"wrong type":            {strings.Replace(file, "revision: 2", "revision: two", 1), "line 24: Policy standard revision must be an integer, not a string"},
		"quoted integer":        {strings.Replace(file, "revision: 2", `revision: "2"`, 1), "line 24: Policy standard revision must be an integer, not a string"},
		"unquoted text":         {head + "title: 2026\n", "line 3: Client ledger title must be a string, not an integer"},
		"another yes":           {strings.Replace(file, "retired: true", "retired: yes", 1), "line 26: Policy standard retired must be true or false"},
		"twice":                 {head + "title: a\ntitle: b\n", "line 4: title stands twice"},
		"twice in flow":         {"{kind: Client, name: a, name: b, title: c}\n", "line 1: name stands twice"},
		"twice, once in quotes": {head + "title: a\n\"title\": b\n", "line 4: title stands twice"},
		"twice inside":          {strings.Replace(file, "  max_effects: 50", "  max_effects: 50\n  max_effects: 51", 1), "line 19: limits.max_effects stands twice"},
		"document twice":        {head + "title: a\n---\n" + head + "title: b\n", "line 5: Client ledger stands twice in this file"},
		"no value":              {head + "title:\n", "line 3: title has no value"},
		"null":                  {head + "title: null\n", "line 3: title has no value"},
		"tilde":                 {head + "title: ~\n", "line 3: title has no value"},
		"null in a list":        {"kind: Reporter\nname: a\nfamilies:\n  - clock\n  -\n", "line 5: families[1] has no value"},
		"fraction":              {strings.Replace(file, "revision: 2", "revision: 2.0", 1), "line 24: revision must be"},
		"exponent":              {strings.Replace(file, "revision: 2", "revision: 2e0", 1), "line 24: "},
		"hexadecimal":           {strings.Replace(file, "revision: 2", "revision: 0x2", 1), "line 24: revision must be a plain integer"},
		"octal":                 {strings.Replace(file, "revision: 2", "revision: 02", 1), "line 24: revision must be a plain integer"},
		"new octal":             {strings.Replace(file, "revision: 2", "revision: 0o2", 1), "line 24: revision must be a plain integer"},
		"binary":                {strings.Replace(file, "revision: 2", "revision: 0b1", 1), "line 24: revision must be a plain integer"},
		"grouped":               {strings.Replace(file, "revision: 2", "revision: 1_0", 1), "line 24: revision must be a plain integer"},
		"signed":                {strings.Replace(file, "revision: 2", "revision: +2", 1), "line 24: revision must be a plain integer"},
		"too large":             {strings.Replace(file, "revision: 2", "revision: 99999999999999999999", 1), "line 24: Policy standard revision must be an integer"},
		"infinity":              {strings.Replace(file, "revision: 2", "revision: .inf", 1), "line 24: revision must be text in quotes, an integer"},
		"not a number":          {strings.Replace(file, "revision: 2", "revision: .nan", 1), "line 24: revision must be text in quotes, an integer"},
		"anchor":                {"kind: &k Client\nname: a\ntitle: b\n", "line 1: must not have an anchor"},
		"alias":                 {head + "title: *t\n", "line 3: must not have an alias"},
		"merge key":             {head + "<<: {title: b}\n", "line 3: must not have a merge key"},
		"tag":                   {head + "title: !!str 5\n", "line 3: must not have a tag"},
		"own tag":               {head + "title: !secret a\n", "line 3: must not have a tag"},
		"directive":             {"%YAML 1.1\n---\n" + head + "title: a\n", "line 1: must not have a directive"},
		"complex key":           {"? kind\n: Client\n", "line 1: must not have a complex key"},
		"end marker":            {head + "title: a\n...\n", "line 4: must not have an end marker"},
		"text on the separator": {"--- {kind: Client, name: a, title: b}\n", "line 1: must not have text beside a separator"},
		"number as key":         {"1: a\n", "line 1: has a key that is not text"},
		"null as key":           {"null: a\n", "line 1: has a key that is not text"},
		"list as document":      {"- a\n", "line 1: must be an object, not a list"},
		"text as document":      {"Client\n", "line 1: must be an object, not a string"},
		"no kind":               {"name: a\n", "line 1: kind must be one of the registry's kinds"},
		"unknown kind":          {"kind: Consent\nname: a\n", "line 1: kind must be one of the registry's kinds"},
		"broken":                {head + "title: [a\n", "cannot be read as YAML"},
		"broken further down":   {file + "kind: Client\n name: a\n", "line "},
		"tab as indent":         {"kind: WorkloadRole\nlimits:\n\tmax_effects: 5\n", "line 3: "},
		"not UTF-8":             {head + "title: \xff\n", "a file must be UTF-8"},
		"byte order mark":       {"\ufeff" + head + "title: a\n", "line 1: must not contain control characters or a byte order mark"},
		"control character":     {head + "title: a\x1b[0m\n", "line 3: must not contain control characters"},
		"NUL":                   {head + "title: a\x00\n", "line 3: must not contain control characters"},
		"escaped control":       {head + "title: \"a\\e[0m\"\n", "line 3: Client ledger title must not contain the control or invisible character U+001B"},
		"escaped turn":          {head + "title: \"a\\u202Eb\"\n", "line 3: Client ledger title must not contain the control or invisible character U+202E"},
		"two lines":             {head + "title: |\n  a\n  b\n", "line 3: Client ledger title must be"},
		"deep flow":             {head + "title: " + strings.Repeat("[", 17), "line 3: is nested too deeply"},
		"deep flow over lines":  {strings.Repeat("[\n", 17), "line 17: is nested too deeply"},
		"deep list":             {strings.Repeat("- ", 17) + "a\n", "line 1: is nested too deeply"},
		"far right":             {strings.Repeat(" ", 64) + "kind: Client\n", "line 1: is indented too far"},
		"blank lines":           {head + "title: |" + strings.Repeat("\n \t", 40), "line 36: must not have more than 32 blank lines in a row"},
		"large document":        {head + "title: " + strings.Repeat("a", maxDocument), "line 1: a document must have at most 32768 bytes"},
		"large second document": {file + head + "title: " + strings.Repeat("a", maxDocument), "line 29: a document must have at most 32768 bytes"},
		"large file":            {strings.Repeat("# a comment\n---\n", 1<<16+1), "a file must have at most 1048576 bytes"},
		"many documents":        {strings.Repeat("---\n", 1001), "a file must have at most 1000 documents"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, err := ParseYAML([]byte(c.text))
			require.ErrorContains(t, err, c.says)
			oneSentence(t, err)
			assert.Nil(t, found)
		})
	}
}

// A panic or a quadratic time in the lexer or the parser is not ours to mend,
// but ours to bound.
func TestHostileFileIsJudgedInTime(t *testing.T) {
	t.Parallel()
	pieces := []string{
		"a: |\n", "a: |+\n", "- |\n", "  x\n", "\n", " \n", "   ", "a: ", "b", "- ", "[", "]", "{", "}", ",", "\"", "'", "\\n", "\\", "#", "? ", ": ", ":", "&a ",
		"*a ", "!t ", "...\n", "%Y\n", "1", "_", "\t", "\r", "<<: ", "|2\n", ">-\n", "ä", "~", "@", "`", "!<", "x\n\n  ", "---\n",
	}
	rapid.Check(t, func(t *rapid.T) {
		some := func(least, most int) string {
			return strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), least, most).Draw(t, "pieces"), "")
		}
		head, again, tail := some(0, 2), some(1, 4), some(0, 2)
		text := head + strings.Repeat(again, maxDocument/8/len(again)) + tail
		began := time.Now()
		found, err := ParseYAML([]byte(text))
		if took := time.Since(began); took > 10*time.Second {
			t.Fatalf("took %s", took)
		}
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("%v", err)
		}
		if len(found) > 0 {
			t.Fatalf("found %v", found)
		}
	})
}

// anyDocument draws one of the good documents with other words and numbers.
func anyDocument(t *rapid.T) string {
	name := rapid.StringMatching(`[a-z0-9]([a-z0-9.-]{0,30}[a-z0-9])?`)
	words := rapid.StringMatching(`[\p{L}\p{Nd}][\p{L}\p{Nd}'":{}\[\],&*#?|<>=!%@\x60\\ -]{0,50}[\p{L}\p{Nd}.]`).Filter(func(s string) bool { return title("", s) == nil })
	var d map[string]any
	if err := json.Unmarshal([]byte(good[rapid.SampledFrom([]string{KindClient, KindGuard, KindRole, KindPolicy, KindTask, KindProfile}).Draw(t, "kind")]), &d); err != nil {
		t.Fatal(err)
	}
	for key, value := range d {
		switch value.(type) {
		case bool:
			d[key] = rapid.Bool().Draw(t, key)
		case float64:
			d[key] = rapid.IntRange(60, 86400).Draw(t, key)
		}
		switch key {
		case "name", "client", "profile", "role", "policy":
			d[key] = name.Draw(t, key)
		case "title":
			d[key] = words.Draw(t, key)
		}
	}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEveryWayOfWritingReadsTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := anyDocument(t)
		first, err := ParseJSON([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		canonical, err := Canonical(first)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseJSON(canonical)
		if err != nil || fmt.Sprintf("%#v", again) != fmt.Sprintf("%#v", first) {
			t.Fatalf("%s reads as %#v, %v", canonical, again, err)
		}
		block, err := yaml.JSONToYAML(canonical)
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range [][]byte{block, canonical} { // JSON is YAML
			found, err := ParseYAML(in)
			if err != nil || len(found) != 1 {
				t.Fatalf("%s\n%v", in, err)
			}
			if other, _ := Canonical(found[0]); string(other) != string(canonical) {
				t.Fatalf("%s\nreads as %s", in, other)
			}
		}
	})
}

func FuzzYAML(f *testing.F) {
	f.Add([]byte(file))
	f.Add([]byte(shopFile))
	f.Add([]byte(strings.Replace(shopFile, "minimum: 1", "minimum: 9007199254740993", 1)))
	for _, text := range good {
		f.Add([]byte(text))
		if block, err := yaml.JSONToYAML([]byte(text)); err == nil {
			f.Add(block)
		}
	}
	for _, seed := range []string{"a: &a [*a]", "- - - a", "? a", "<<: b", "%YAML 1.2\n---", "a: |\n\n\n", "{a: [b, {c: d}]}", "!!binary x", "\"\\x00\"", "'a\n\nb'", "a: b: c", "\xef\xbb\xbf"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		found, err := ParseYAML(in)
		if err != nil {
			oneSentence(t, err)
			return
		}
		for _, d := range found {
			readsAgain(t, d)
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(shop))
	for _, text := range good {
		f.Add([]byte(text))
	}
	for _, seed := range []string{`{"kind":"Product","name":"a","title":"A","profile":"b","families":[]}`, `{"kind":"Guard","operations":[{"parameters":{"a":{"b":[1,true,"\u0000"]}}}]}`, `{"kind":"Task","grants":[{"pre_approved":[{},{"key":-0}]}]}`, `[]`, `{"kind":"Policy","limits":{"max_spend":1e3}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		d, err := ParseJSON(in)
		if err != nil {
			oneSentence(t, err)
			return
		}
		readsAgain(t, d)
	})
}

// readsAgain: the canonical form of what was read is the same document.
func readsAgain(t *testing.T, d Document) {
	t.Helper()
	canonical, err := Canonical(d)
	if err != nil {
		t.Fatalf("read a document that does not hold: %v", err)
	}
	again, err := ParseJSON(canonical)
	if err != nil {
		t.Fatalf("%s: %v", canonical, err)
	}
	if other, err := Canonical(again); err != nil || string(other) != string(canonical) {
		t.Fatalf("%s reads as %s, %v", canonical, other, err)
	}
}
