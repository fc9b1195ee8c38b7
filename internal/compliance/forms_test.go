package compliance

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/docs"
	"github.com/nightwarrant/nightwarrant/internal/tripwire"
	"github.com/nightwarrant/nightwarrant/keys/provenance"
)

// plain is good evidence beside a threat model that stays as it is.
func plain() Evidence {
	e := good()
	e.Model = ReadModel("Dated 2026-11-30,\n\n| A13 | holds | `x` | `y` |\n\n## Assumptions\n\n* One that\n  takes two lines.\n\n## Residuals\n\n* **A thing** that stays.\n")
	return e
}

// The shape that others read. UPDATE_DOCS=1 writes it anew.
func TestTheFormOfAReport(t *testing.T) {
	t.Parallel()
	e := plain()
	e.Provenance, e.Board, e.SelfAudit = Given[provenance.Report]{}, Given[api.Board]{}, Given[SelfAudited]{}
	b := assertSchema(t, New(e))
	path := filepath.Join("testdata", "report.json")
	if os.Getenv("UPDATE_DOCS") != "" {
		require.NoError(t, os.WriteFile(path, append(b, '\n'), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(b)+"\n")
}

// The schema is really applied: each of these is refused.
func TestAFormThatIsNone(t *testing.T) {
	t.Parallel()
	good := string(assertSchema(t, New(plain())))
	for name, edit := range map[string][2]string{
		"a version of our own":  {`"observation-uuid": "`, `"observation-uuid": "x`},
		"another state":         {`"state": "satisfied"`, `"state": "fine"`},
		"no start":              {`"start":`, `"begin":`},
		"a time without a zone": {`"start": "2026-12-01T02:59:59Z"`, `"start": "2026-12-01T02:59:59"`},
		"text that is empty":    {`"value": "https://authority.example"`, `"value": ""`},
	} {
		bad := strings.Replace(good, edit[0], edit[1], 1)
		require.NotEqual(t, good, bad, name)
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(bad))
		require.NoError(t, err)
		assert.Error(t, compiled(t).Validate(v), name)
	}
}

var aUUID = regexp.MustCompile(`"uuid": "([^"]+)"`)

// The same evidence makes the same report, and later evidence that says the same makes observations of the same names.
func TestReportsCanBeCompared(t *testing.T) {
	t.Parallel()
	names := func(e Evidence) (document string, observations []string) {
		b := assertSchema(t, New(e))
		var d oscal
		require.NoError(t, json.Unmarshal(b, &d))
		seen := map[string]bool{}
		for _, u := range aUUID.FindAllStringSubmatch(string(b), -1) {
			require.False(t, seen[u[1]], "two things have one name")
			seen[u[1]] = true
		}
		for _, o := range d.Results.Results[0].Observations {
			observations = append(observations, o.UUID)
		}
		return d.Results.UUID, observations
	}
	first, of := names(plain())
	again, ofAgain := names(plain())
	assert.Equal(t, first, again)
	assert.Equal(t, of, ofAgain)

	later := plain()
	later.Start, later.End = later.Start.Add(time.Hour), later.End.Add(time.Hour)
	later.Deployment.At, later.Board.At, later.Board.Body.At = later.End, later.End, later.End
	other, ofLater := names(later)
	assert.NotEqual(t, first, other, "it is another document")
	assert.Equal(t, of, ofLater)

	changed := plain()
	changed.Deployment.Body.Uncertain.Effects = 1
	_, ofChanged := names(changed)
	different := 0
	for n := range of {
		if of[n] != ofChanged[n] {
			different++
		}
	}
	assert.Equal(t, 1, different, "one line says something else")
}

const hostile = "</td><script>alert(1)</script> {{.}} \x00\x1b[2J\u202e\n\"'`"

// Text from outside is text, bounded, in both forms.
func TestHostileText(t *testing.T) {
	t.Parallel()
	e := good()
	e.SelfAudit.Body.Lines[0] = SelfAuditOf{ID: hostile, Title: hostile, Verdict: hostile, Evidence: strings.Repeat(hostile, 1000), Requirements: []string{hostile, "A16"}}
	e.Deployment.Body.Replicas[2].Component, e.Deployment.Body.Replicas[2].Build = hostile, &api.Build{BinarySHA256: hostile, Go: hostile, Module: hostile}
	e.Board.Body.Rows = append(e.Board.Body.Rows, api.BoardRow{Family: hostile, Reason: hostile})
	e.Profiles.Source, e.Authority, e.Tool = hostile, hostile, hostile
	r := New(e)
	b := assertSchema(t, r)
	assert.Less(t, len(b), 200_000)
	var page bytes.Buffer
	require.NoError(t, r.HTML(&page))
	text := page.String()
	assert.NotContains(t, text, "<script")
	assert.NotContains(t, text, "\x1b")
	assert.NotContains(t, text, "\u202e")
	assert.NotRegexp(t, `(?i)<[^>]+\s(on[a-z]+|src|href)=`, text, "a page for paper loads and runs nothing")
}

func TestThePageSaysWhatIsOpen(t *testing.T) {
	t.Parallel()
	show := func(e Evidence) string {
		var page bytes.Buffer
		require.NoError(t, New(e).HTML(&page))
		return page.String()
	}
	text := show(good())
	assert.Contains(t, text, "Nothing is open.")
	for _, s := range Sections {
		assert.Equal(t, s != Exceptions, strings.Contains(text, "<h2>"+string(s)+"</h2>"), s)
	}
	for _, residual := range ReadModel(docs.ThreatModel).Residuals {
		assert.Contains(t, text, strings.Fields(residual)[0])
	}
	e := good()
	e.SelfAudit = Given[SelfAudited]{}
	assert.Contains(t, show(e), "1 line is open.")
	assert.Contains(t, show(Evidence{Start: now, End: now}), "lines are open.")
}

func TestFilesOfEvidence(t *testing.T) {
	t.Parallel()
	digest := strings.Repeat("ab", 32)
	release, err := ReadRelease([]byte(digest + "  nightwarrant\n\n" + strings.Repeat("01", 32) + " *nightwarrant-keyhost\n"))
	require.NoError(t, err)
	assert.Len(t, release, 2)
	for _, bad := range []string{"", "\n", "abc  x", digest, digest + "00  x", digest + "  x\nnone"} {
		_, err := ReadRelease([]byte(bad))
		assert.Error(t, err, bad)
	}
	line := `{"id":"x","verdict":"pass"}`
	whole := `{"target":"t","started_at":"2026-12-01T00:00:00Z","lines":[` + line + `]}`
	_, err = ReadSelfAudit([]byte(whole))
	require.NoError(t, err)
	for _, bad := range []string{"", "null", "[]", "{}", whole + whole, `{"started_at":"2026-12-01T00:00:00Z","lines":[]}`, `{"lines":[` + line + `]}`, strings.Replace(whole, line, line+strings.Repeat(","+line, maxItems), 1),
		whole + strings.Repeat(" ", MaxFile)} {
		_, err := ReadSelfAudit([]byte(bad))
		assert.Error(t, err, bad[:min(len(bad), 80)])
	}
	for _, bad := range []string{"", "{}", `{"steps":[]}`, `{"digest":"zz","steps":[{}]}`, `{"steps":[` + strings.Repeat("{},", 9) + `{}]}`} {
		_, err := ReadProvenance([]byte(bad))
		assert.Error(t, err, bad)
	}
}

// What `nightwarrant tripwire --json` writes is what is read.
func TestASelfAuditIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(tripwire.Report{Target: "t", Build: "b", Binary: "07", StartedAt: now, Lines: []tripwire.Line{{ID: "i", Title: "l", Verdict: tripwire.NotApplicable, Evidence: "e", Requirements: []string{"A16"}}}})
	require.NoError(t, err)
	read, err := ReadSelfAudit(b)
	require.NoError(t, err)
	assert.Equal(t, SelfAudited{Target: "t", Build: "b", BinarySHA256: "07", StartedAt: now, Lines: []SelfAuditOf{{ID: "i", Title: "l", Verdict: "not_applicable", Evidence: "e", Requirements: []string{"A16"}}}}, read)
	assert.Equal(t, []tripwire.Verdict{"pass", "fail"}, []tripwire.Verdict{tripwire.Pass, tripwire.Fail})
}

// assertReadable: every text is one bounded line, as OSCAL wants it, and names controls that there are.
func assertReadable(t *testing.T, r Report) {
	t.Helper()
	for _, l := range r.Lines {
		for _, text := range []string{l.Subject, l.Found, l.Source, l.Unproven} {
			if text != "" && !oscalString.MatchString(text) || len([]rune(text)) > most+1 {
				t.Errorf("%q", text)
			}
		}
		if !slices.ContainsFunc(l.Controls, isControl) {
			t.Errorf("%q is about nothing", l.Subject)
		}
	}
}

var oscalString = regexp.MustCompile(`^\S(.*\S)?$`) // StringDatatype of the schema

func FuzzReadSelfAudit(f *testing.F) {
	f.Add([]byte(`{"target":"https://authority.example","binary_sha256":"07","started_at":"2026-12-01T00:00:00Z","lines":[{"id":"a","title":"b","verdict":"pass","requirements":["A16"]}]}`))
	f.Add([]byte(`{"started_at":"2026-12-01T00:00:00Z","lines":[{}]}`))
	given := plain()
	f.Fuzz(func(t *testing.T, b []byte) {
		e := given
		e.SelfAudit = Read("f", now, b, ReadSelfAudit)
		r := New(e)
		if r.Of("B16") == Satisfied {
			t.Error("a self-audit of another build passes")
		}
		assertReadable(t, r)
	})
}

func FuzzReadProvenance(f *testing.F) {
	f.Add([]byte(`{"record_id":"r","digest":"","steps":[{"number":1,"name":"n","ok":true,"detail":"d"}],"checked_at":"2026-12-01T00:00:00Z"}`))
	given := plain()
	f.Fuzz(func(t *testing.T, b []byte) {
		e := given
		e.Provenance = Read("f", now, b, ReadProvenance)
		r := New(e)
		if r.Of("A13") == Satisfied && e.Provenance.Body.Digest != [32]byte{3} {
			t.Error("provenance of another key passes")
		}
		assertReadable(t, r)
	})
}

func FuzzReadRelease(f *testing.F) {
	f.Add([]byte(strings.Repeat("ab", 32) + "  nightwarrant\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if out, err := ReadRelease(b); err == nil && (len(out) == 0 || len(out) > maxItems) {
			t.Errorf("%d executables", len(out))
		}
	})
}
