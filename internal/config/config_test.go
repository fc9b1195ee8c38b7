package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func noEnv(string) string { return "" }

// sample has one field of each kind.
type sample struct {
	Text   string            `yaml:"text"`
	Number int64             `yaml:"number"`
	Flag   bool              `yaml:"flag"`
	Wait   Duration          `yaml:"wait"`
	Secret Secret            `yaml:"secret"`
	List   []string          `yaml:"list"`
	Inner  inner             `yaml:"inner"`
	Table  map[string]inner  `yaml:"table"`
	Many   []inner           `yaml:"many"`
	Words  map[string]string `yaml:"words"`
}

type inner struct {
	A string `yaml:"a"`
	B int64  `yaml:"b"`
}

func (s *sample) Check(func(string) string) error {
	if s.Inner.B > 9 {
		return Wrong("inner.b", "is too much")
	}
	if s.Number < 0 {
		return Wrong("absent.key", "is missing")
	}
	return nil
}

func TestParseFillsEveryKind(t *testing.T) {
	t.Parallel()
	var s sample
	require.NoError(t, Parse("f", []byte(`
text: "one"   # a remark
number: 12
flag: true
wait: 1m30s
secret: hush
list: [a, "b"]
inner:
  a: |
    two
    lines
  b: 3
table: {x: {a: y}}
many:
  - a: p
  - b: 7
words: {k: v}
`), &s, noEnv))
	assert.Equal(t, sample{
		Text: "one", Number: 12, Flag: true, Wait: Duration(90 * time.Second), Secret: "hush", List: []string{"a", "b"},
		Inner: inner{"two\nlines\n", 3}, Table: map[string]inner{"x": {A: "y"}}, Many: []inner{{A: "p"}, {B: 7}}, Words: map[string]string{"k": "v"},
	}, s)
}

// Each wrong file gets one sentence that names the file, the line and the key.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                               "f: the file must hold exactly one document",
		"# nothing\n":                    "f: the file must hold exactly one document",
		"text: a\n---\ntext: b\n":        "f: the file must hold exactly one document",
		"- a\n":                          "f line 1: must be an object of keys",
		"text: \xff\n":                   "f: the file is not UTF-8",
		"unknown: 1\n":                   "f line 1: unknown is not a known key",
		"Text: a\n":                      "f line 1: Text is not a known key",
		"\"\": a\n":                      "f line 1: \"\" is not a known key",
		"\"-\": a\n":                     "f line 1: - is not a known key",
		"text: a\ntext: b\n":             "f line 2: text stands twice",
		"inner: {a: x, b: 1, a: y}\n":    "f line 1: inner.a stands twice",
		"words:\n  k: a\n  k: b\n":       "f line 3: words.k stands twice",
		"inner:\n  a: b\n  z: c\n":       "f line 3: inner.z is not a known key",
		"table:\n  x:\n    z: c\n":       "f line 3: table.x.z is not a known key",
		"many:\n  - a: p\n  - q: 7\n":    "f line 3: many[1].q is not a known key",
		"text: 5\n":                      "f line 1: text must be text; put a number or a word such as true in quotes",
		"text: true\n":                   "f line 1: text must be text; put a number or a word such as true in quotes",
		"text: [a]\n":                    "f line 1: text must be text; put a number or a word such as true in quotes",
		"text:\n":                        "f line 1: text has no value",
		"text: null\n":                   "f line 1: text has no value",
		"list: [a, 1]\n":                 "f line 1: list[1] must be text; put a number or a word such as true in quotes",
		"list: a\n":                      "f line 1: list must be a list",
		"inner: 5\n":                     "f line 1: inner must be an object of keys",
		"number: 1.5\n":                  "f line 1: number must be a plain integer",
		"number: 0x10\n":                 "f line 1: number must be a plain integer",
		"number: 1_000\n":                "f line 1: number must be a plain integer",
		"number: +1\n":                   "f line 1: number must be a plain integer",
		"number: \"1\"\n":                "f line 1: number must be a plain integer",
		"number: 99999999999999999999\n": "f line 1: number must be a plain integer",
		"flag: yes\n":                    "f line 1: flag must be true or false",
		"wait: 5\n":                      "f line 1: wait must be text",
		"wait: soon\n":                   "f line 1: wait must be a length of time such as 500ms, 30s or 1h30m",
		"text: &x a\n":                   "f line 1: an anchor is not allowed",
		"text: *x\n":                     "f line 1: an alias is not allowed",
		"text: !!str a\n":                "f line 1: a tag is not allowed",
		"text: a\n<<: {text: b}\n":       "f line 2: a merge key is not allowed",
		"%YAML 1.2\n---\ntext: a\n":      "f line 1: a directive is not allowed",
		"? text\n: a\n":                  "f line 1: a complex key is not allowed",
		"{{{{{{{{{":                      "f line 1: is nested too deeply",
		"- - - - - - - - - a":            "f line 1: is nested too deeply",
		"inner: {a: b":                   "f line 1: cannot be read: \"could not find flow mapping end token '}'\"",
		"inner:\n  a: x\n  b: 12\n":      "f line 3: inner.b is too much",
		"number: -1\n":                   "f: absent.key is missing",
	} {
		t.Run(fmt.Sprintf("%.30q", text), func(t *testing.T) {
			t.Parallel()
			err := Parse("f", []byte(text), &sample{}, noEnv)
			require.EqualError(t, err, want)
		})
	}
}

// A value of a secret never comes back in an error.
func TestErrorsDoNotRepeatSecrets(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"secret: [hunter2]\n", "secret: {hunter2: a}\n", "wait: hunter2\n", "number: hunter2\n"} {
		err := Parse("f", []byte(text), &sample{}, noEnv)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestAnErrorIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 5000)
	err := Parse("f", []byte(long+": a\n"), &sample{}, noEnv)
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 200)
	err = &Error{Sentence: long}
	assert.Less(t, len(err.Error()), 300)
}

func TestLoadRefusesFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	require.NoError(t, os.WriteFile(large, []byte("text: "+strings.Repeat("a", maxFile)), 0o600))
	for path, want := range map[string]string{
		filepath.Join(dir, "absent"): "cannot be opened: no such file or directory",
		dir:                          "is not a regular file",
		"/dev/null":                  "is not a regular file",
		large:                        "is larger than 65536 bytes",
	} {
		err := Load(path, &sample{}, noEnv)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
		var e *Error
		require.ErrorAs(t, err, &e)
	}
}

func TestLoadFindsTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f.yaml")
	require.NoError(t, os.WriteFile(path, []byte("text: a\nnope: b\n"), 0o644))
	require.EqualError(t, Load(path, &sample{}, noEnv), path+" line 2: nope is not a known key")
}

func TestReadSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	for name, text := range map[string]string{"plain": "hush", "unix": "hush\n", "dos": "hush\r\n"} {
		for _, mode := range []os.FileMode{0o600, 0o400} {
			s, err := ReadSecret(write(fmt.Sprint(name, mode), text, mode))
			require.NoError(t, err)
			require.Equal(t, "hush", s.Reveal())
		}
	}
	for _, mode := range []os.FileMode{0o644, 0o640, 0o660, 0o604, 0o700, 0o200, 0o602} {
		_, err := ReadSecret(write(fmt.Sprint("mode", mode), "hush", mode))
		require.Error(t, err, "%04o", mode)
		require.NotContains(t, err.Error(), "hush")
	}
	for name, text := range map[string]string{"empty": "", "newline": "\n", "two": "a\nb\n", "nul": "a\x00", "large": strings.Repeat("a", maxSecret+1)} {
		_, err := ReadSecret(write(name, text, 0o600))
		require.Error(t, err, name)
	}
	_, err := ReadSecret(filepath.Join(dir, "absent"))
	require.ErrorContains(t, err, "no such file")
}

func TestASecretDoesNotPrint(t *testing.T) {
	t.Parallel()
	s := Secret("hunter2")
	text, err := json.Marshal(map[string]any{"s": s})
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "s", s, "d", Database{DatabaseURL: s})
	for _, shown := range []string{
		fmt.Sprint(s), fmt.Sprintf("%s %v %+v %#v %q %x %d", s, s, s, s, s, s, s), fmt.Sprintf("%+v", Database{DatabaseURL: s}),
		fmt.Sprintf("%#v", &Scheduler{NATS: NATS{Password: s}}), s.String(), string(text), log.String(),
	} {
		assert.NotContains(t, shown, "hunter2")
		assert.NotContains(t, shown, fmt.Sprintf("%x", "hunter2"))
	}
	assert.Equal(t, "hunter2", s.Reveal())
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"text: a\nnumber: 5\n", "many:\n- a: x\n", "table: {x: {a: y}}\n", "inner:\n  a: |\n    x\n", "wait: 5s", "? a\n: b", "text: &a b", "{[", "text: \"\\x00\"\n", goodAuthority, goodGuard, goodHTTPGuard} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, fresh := range []func() Document{func() Document { return &sample{} }, func() Document { return &Authority{} }, func() Document { return &PostgresGuard{} }, func() Document { return &HTTPGuard{} }} {
			one, two := fresh(), fresh()
			err, again := Parse("f", text, one, noEnv), Parse("f", text, two, noEnv)
			if err == nil {
				require.NoError(t, again)
				require.Equal(t, one, two)
				continue
			}
			var e *Error
			require.True(t, errors.As(err, &e))
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, len(err.Error()), 600)
			require.Error(t, again)
		}
	})
}
