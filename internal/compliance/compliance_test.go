package compliance

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/docs"
	"github.com/nightwarrant/nightwarrant/keys/provenance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	now    = time.Date(2026, 12, 1, 3, 0, 0, 0, time.UTC)
	binary = [32]byte{7}
)

func wire(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func given[T any](source string, body T) Given[T] {
	return Given[T]{Source: source, At: now, Body: body}
}

func replica(kind string) api.Replica {
	since := now.Add(-48 * time.Hour)
	return api.Replica{Kind: kind, Instance: wire([]byte(kind)), Boot: 2, Since: now.Add(-time.Hour), Seen: now, Live: true, BuildSince: &since,
		Build: &api.Build{BinarySHA256: wire(binary[:]), Go: "go1.26.3", Module: "v1.0.0-c2097c7c", FIPS: true}}
}

// good is evidence of a FIPS deployment about which nothing is open.
func good() Evidence {
	since := now.Add(-90 * 24 * time.Hour)
	record := [32]byte{3}
	guard := replica("guard")
	guard.Component, guard.Build = "ledger", &api.Build{BinarySHA256: wire(make([]byte, 32)), Go: "go1.26.3", Module: "v1.0.0-c2097c7c", FIPS: true}
	silent := replica("authority")
	silent.Live, silent.Build = false, nil
	steps := make([]provenance.Step, 9)
	for n := range steps {
		steps[n] = provenance.Step{Number: n + 1, Name: "step", OK: true, Detail: "as it must be"}
	}
	return Evidence{
		Authority: "https://authority.example", Tool: "v1.0.0", FIPS: true, Start: now.Add(-time.Second), End: now, Model: ReadModel(docs.ThreatModel),
		Deployment: given("/v1/operate/deployment", api.Deployment{At: now, Replicas: []api.Replica{replica("authority"), replica("scheduler"), guard, silent},
			Identity: api.Identity{Cluster: "AAECAwQFBgcICQoLDA0ODw", AuditKey: "audit-key", Generations: []api.Generation{
				{Generation: 2, State: "current", KeyID: "two", Provenance: wire(record[:]), PublishedAt: since, ActivatedAt: &since, Replicas: 2},
				{Generation: 1, State: "previous", KeyID: "one", PublishedAt: since, ActivatedAt: &since, Replicas: 2}}}}),
		Board:       given("/v1/operate/board", boardOf(required)),
		KeySet:      given("/v1/jwks", []string{"one", "two"}),
		Profiles:    given("/v1/registry/AttestationProfile", []api.Entry{profile("ledger", "first_key")}),
		Requirement: given("/v1/operate/requirements", []string{"ledger"}),
		Provenance: given("provenance.json", provenance.Report{RecordID: "r-1", Digest: record, Steps: steps, EvidenceClasses: []string{"B", "C"}, CheckedAt: now.Add(-time.Hour),
			GoodUntil: now.Add(24 * time.Hour)}),
		SelfAudit: given("tripwire.json", SelfAudited{Target: "https://authority.example", BinarySHA256: hex.EncodeToString(binary[:]), StartedAt: now.Add(-time.Hour), Lines: []SelfAuditOf{
			{ID: "a16.4", Title: "A stolen bearer value", Verdict: "pass", Evidence: "refused", Requirements: []string{"A16", "A3"}}}}),
		Log:     given("log.jsonl", Log{Key: "audit-key", Report: audit.Report{Origin: "log", Records: 12, Checkpoints: 3, Anchors: 3, Covered: 10, At: now.Add(-time.Hour)}}),
		Release: given("SHA256SUMS", map[[32]byte]string{binary: "nightwarrant"}),
	}
}

func boardOf(families []string) (b api.Board) {
	b = api.Board{Open: true, Epoch: 4, Incarnation: 1, Requirement: 2, At: now}
	for _, f := range families {
		b.Rows = append(b.Rows, api.BoardRow{Family: f, Good: true, Instances: 1, Required: 1})
	}
	return b
}

func profile(name, binding string) api.Entry {
	return api.Entry{Kind: "AttestationProfile", Name: name, State: "active", Digest: "digest",
		Document: json.RawMessage(`{"issuer":"https://issuer.example","subject":"` + name + `","binding":"` + binding + `","max_lifetime_s":600}`)}
}

func subjects(lines []Line) (out []string) {
	for _, l := range lines {
		out = append(out, l.Subject+": "+l.Found)
	}
	return out
}

func TestNothingIsOpenAboutAGoodDeployment(t *testing.T) {
	t.Parallel()
	r := New(good())
	assert.Empty(t, subjects(r.Open()))
	for id, want := range map[string]State{"A3": Satisfied, "A10": Satisfied, "A11": Satisfied, "A13": Satisfied, "A14": Satisfied, "A16": Satisfied, "A17": Satisfied, "B14": Satisfied, "B15": Satisfied,
		"B16": Satisfied, "C5": Satisfied, "A1": NotObserved, "B2": NotObserved} {
		assert.Equal(t, want, r.Of(id), id)
	}
}

// What nobody gave is not observed, and there is no line that says that something is good.
func TestWithoutEvidenceNothingPasses(t *testing.T) {
	t.Parallel()
	for _, inFIPS := range []bool{true, false} {
		r := New(Evidence{FIPS: inFIPS, Start: now, End: now, Model: ReadModel(docs.ThreatModel)})
		for _, s := range Sections {
			open := slices.ContainsFunc(r.In(s), Line.Open)
			assert.Equal(t, s != Exceptions && s != Assumptions, open, s)
		}
		for _, l := range r.Lines {
			assert.NotEqual(t, Satisfied, l.State, l.Subject)
		}
		for _, c := range r.Model.Controls {
			assert.NotEqual(t, Satisfied, r.Of(c.ID), c.ID)
		}
		assertSchema(t, r)
	}
}

// Each of these is one thing that is wrong, and the section that has to say so.
func TestWhatIsWrongIsOpen(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	for name, c := range map[string]struct {
		section Section
		spoil   func(*Evidence)
	}{
		"a replica that says nothing":         {Modules, func(e *Evidence) { e.Deployment.Body.Replicas[0].Build = nil }},
		"a module that is switched off":       {Modules, func(e *Evidence) { e.Deployment.Body.Replicas[0].Build.FIPS = false }},
		"a module that is not pinned":         {Modules, func(e *Evidence) { e.Deployment.Body.Replicas[2].Build.Module = "latest" }},
		"no module":                           {Modules, func(e *Evidence) { e.Deployment.Body.Replicas[1].Build.Module = "" }},
		"two executables":                     {Modules, func(e *Evidence) { e.Deployment.Body.Replicas[1].Build.BinarySHA256 = wire(make([]byte, 32)) }},
		"no scheduler":                        {Modules, func(e *Evidence) { e.Deployment.Body.Replicas[1].Live = false }},
		"no authority":                        {Modules, func(e *Evidence) { e.Deployment.Body.Replicas[0].Live = false }},
		"an executable that was not released": {Modules, func(e *Evidence) { e.Release.Body = map[[32]byte]string{{1}: "nightwarrant"} }},
		"no release to compare with":          {Modules, func(e *Evidence) { e.Release = Given[map[[32]byte]string]{} }},
		"a release that cannot be read":       {Modules, func(e *Evidence) { e.Release = Read("f", now, []byte("junk"), ReadRelease) }},
		"no current generation":               {Keys, func(e *Evidence) { e.Deployment.Body.Identity.Generations[0].State = "retired" }},
		"a replica without the key":           {Keys, func(e *Evidence) { e.Deployment.Body.Identity.Generations[0].Lacking = 1 }},
		"another key is served":               {Keys, func(e *Evidence) { e.KeySet.Body = []string{"one", "two", "three"} }},
		"a key is not served":                 {Keys, func(e *Evidence) { e.KeySet.Body = []string{"one"} }},
		"the key set was not read":            {Keys, func(e *Evidence) { e.KeySet.Wrong = "no answer" }},
		"no provenance":                       {Keys, func(e *Evidence) { e.Provenance = Given[provenance.Report]{} }},
		"provenance that cannot be read":      {Keys, func(e *Evidence) { e.Provenance = Read("f", now, []byte("{}"), ReadProvenance) }},
		"provenance of another key":           {Keys, func(e *Evidence) { e.Provenance.Body.Digest[0]++ }},
		"a step that was refused":             {Keys, func(e *Evidence) { e.Provenance.Body.Steps[4].OK = false }},
		"a step that was not taken":           {Keys, func(e *Evidence) { e.Provenance.Body.Steps = e.Provenance.Body.Steps[:8] }},
		"a step that was left out":            {Keys, func(e *Evidence) { e.Provenance.Body.Steps = slices.Delete(e.Provenance.Body.Steps, 3, 4) }},
		"a refusal beside good steps":         {Keys, func(e *Evidence) { e.Provenance.Body.Refusal = &provenance.Refusal{Code: "X"} }},
		"provenance checked long ago":         {Keys, func(e *Evidence) { e.Provenance.Body.CheckedAt = now.Add(-31 * 24 * time.Hour) }},
		"provenance checked tomorrow":         {Keys, func(e *Evidence) { e.Provenance.Body.CheckedAt = now.Add(time.Hour) }},
		"provenance that is over":             {Keys, func(e *Evidence) { e.Provenance.Body.GoodUntil = now }},
		"an old key":                          {Rotation, func(e *Evidence) { e.Deployment.Body.Identity.Generations[0].ActivatedAt = ago(366 * 24 * time.Hour) }},
		"no generation at all":                {Rotation, func(e *Evidence) { e.Deployment.Body.Identity.Generations = nil }},
		"no profile":                          {Profiles, func(e *Evidence) { e.Profiles.Body = nil }},
		"a profile that is retired only":      {Profiles, func(e *Evidence) { e.Profiles.Body[0].State = "retired" }},
		"a profile that nobody required":      {Profiles, func(e *Evidence) { e.Profiles.Body = append(e.Profiles.Body, profile("other", "cnf")) }},
		"a profile that cannot be read":       {Profiles, func(e *Evidence) { e.Profiles.Body[0].Document = json.RawMessage(`[]`) }},
		"a registry that was not read":        {Profiles, func(e *Evidence) { e.Profiles.Wrong = "no answer" }},
		"admission is closed":                 {Families, func(e *Evidence) { e.Board.Body.Open = false }},
		"admission is held":                   {Families, func(e *Evidence) { e.Board.Body.Held = true }},
		"a family that is bad":                {Families, func(e *Evidence) { e.Board.Body.Rows[3].Good = false }},
		"a family that is not required":       {Families, func(e *Evidence) { e.Board.Body = boardOf(required[1:]) }},
		"no self-audit":                       {SelfAudit, func(e *Evidence) { e.SelfAudit = Given[SelfAudited]{} }},
		"a self-audit that cannot be read":    {SelfAudit, func(e *Evidence) { e.SelfAudit = Read("f", now, []byte(`{"lines":[]}`), ReadSelfAudit) }},
		"an attack that got through":          {SelfAudit, func(e *Evidence) { e.SelfAudit.Body.Lines[0].Verdict = "fail" }},
		"a verdict that is none":              {SelfAudit, func(e *Evidence) { e.SelfAudit.Body.Lines[0].Verdict = "PASS" }},
		"a self-audit on another build":       {SelfAudit, func(e *Evidence) { e.SelfAudit.Body.BinarySHA256 = strings.Repeat("0", 64) }},
		"a self-audit on an unknown build":    {SelfAudit, func(e *Evidence) { e.SelfAudit.Body.BinarySHA256 = "" }},
		"a self-audit while builds differ":    {SelfAudit, func(e *Evidence) { e.Deployment.Body.Replicas[1].Build.BinarySHA256 = wire(make([]byte, 32)) }},
		"a self-audit before that build ran":  {SelfAudit, func(e *Evidence) { e.Deployment.Body.Replicas[0].BuildSince = ago(time.Minute) }},
		"a self-audit elsewhere":              {SelfAudit, func(e *Evidence) { e.SelfAudit.Body.Target = "https://other.example" }},
		"a self-audit long ago": {SelfAudit, func(e *Evidence) {
			e.SelfAudit.Body.StartedAt, e.Deployment.Body.Replicas[0].BuildSince = now.Add(-31*24*time.Hour), ago(40*24*time.Hour)
		}},
		"no log":                    {Audit, func(e *Evidence) { e.Log = Given[Log]{} }},
		"a log that cannot be read": {Audit, func(e *Evidence) { e.Log.Wrong = "it is cut short" }},
		"a log that was tampered with": {Audit, func(e *Evidence) {
			e.Log.Body.Report.Findings = []audit.Finding{{Tamper: audit.Edited, From: 3, Through: 3, Why: "its digest is another"}}
		}},
		"an anchor that knows more":         {Audit, func(e *Evidence) { e.Log.Body.Report.ExportAgain = true }},
		"a log without anchors":             {Audit, func(e *Evidence) { e.Log.Body.Report.Anchors = 0 }},
		"a log with another key":            {Audit, func(e *Evidence) { e.Log.Body.Key = "another" }},
		"a log of the day before yesterday": {Audit, func(e *Evidence) { e.Log.Body.Report.At = now.Add(-25 * time.Hour) }},
		"a log that nothing covers":         {Audit, func(e *Evidence) { e.Log.Body.Report.Covered = 0 }},
		"a witness that has signed nothing": {Audit, func(e *Evidence) { e.Log.Body.Report.Witnessed = []audit.Seen{{Witness: "w"}} }},
		"an ambiguous effect":               {Ambiguous, func(e *Evidence) { e.Deployment.Body.Uncertain.Effects = 1 }},
		"an authority that did not answer":  {Ambiguous, func(e *Evidence) { e.Deployment.Wrong = "no answer" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := good()
			c.spoil(&e)
			r := New(e)
			assert.True(t, slices.ContainsFunc(r.In(c.section), Line.Open), "%q", subjects(r.In(c.section)))
			for _, l := range r.In(c.section) {
				for _, id := range l.Controls {
					assert.True(t, !l.Open() || r.Of(id) == Open, id)
				}
			}
		})
	}
}

// What passed on another build counts as not tried: every line of it is open.
func TestAPassOnAnotherBuildIsNone(t *testing.T) {
	t.Parallel()
	e := good()
	e.SelfAudit.Body.BinarySHA256 = strings.Repeat("0", 64)
	for _, l := range New(e).In(SelfAudit) {
		if strings.Contains(l.Subject, "stolen") {
			assert.Equal(t, NotObserved, l.State)
			assert.True(t, l.Open())
			return
		}
	}
	t.Fatal("the attack has no line")
}

// What is weaker than the rule and registered as that is said, and not called good; what nothing can see is not observed, and not open.
func TestExceptionsAreSaid(t *testing.T) {
	t.Parallel()
	e := good()
	e.FIPS, e.Provenance, e.Requirement.Body = false, Given[provenance.Report]{}, nil
	e.Profiles.Body = []api.Entry{profile("shared", "none")}
	e.SelfAudit.Body.Lines[0].Verdict = "not_applicable"
	reporter := replica("reporter")
	reporter.Build = nil
	e.Deployment.Body.Replicas = append(e.Deployment.Body.Replicas, reporter)
	e.Log.Body.Report.Resumed = []audit.Resumed{{Incarnation: 2, From: 5, Lost: 9}}
	r := New(e)
	assert.Empty(t, subjects(r.Open()))
	assert.Equal(t, []string{"profile shared", "incarnation 2", "FIPS profile"}, func() (out []string) {
		for _, l := range r.In(Exceptions) {
			assert.Equal(t, Stated, l.State)
			out = append(out, l.Subject)
		}
		return out
	}())
	assert.True(t, slices.ContainsFunc(r.In(Modules), func(l Line) bool { return strings.HasPrefix(l.Subject, "reporter") && l.State == NotObserved }))
	assert.Equal(t, NotObserved, r.Of("A13"))
	assert.Equal(t, NotObserved, r.Of("A3"), "an attack that was not tried proves nothing")
}

func TestTheThreatModelIsQuotedWhole(t *testing.T) {
	t.Parallel()
	m := ReadModel(docs.ThreatModel)
	assert.NotEqual(t, "an unknown day", m.Dated)
	assert.Greater(t, len(m.Assumptions), 4)
	assert.Greater(t, len(m.Residuals), 15)
	require.Len(t, m.Controls, 37)
	for _, c := range m.Controls {
		assert.Equal(t, c.ID == "C5", c.Stated == "has no row", c.ID)
	}
	for _, text := range slices.Concat(m.Assumptions, m.Residuals) {
		assert.NotContains(t, text, "**")
		assert.NotContains(t, text, "](")
		assert.NotContains(t, text, "…", "longer than a report quotes")
	}
	assert.Equal(t, Model{Dated: "an unknown day", Controls: ReadModel("").Controls}, ReadModel(""))
}

// assertSchema holds a report against NIST's own schema of the model, which is in the public domain.
func assertSchema(t *testing.T, r Report) []byte {
	t.Helper()
	b, err := r.OSCAL(File{"a file [1].json", [32]byte{1}})
	require.NoError(t, err)
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	require.NoError(t, err)
	require.NoError(t, compiled(t).Validate(v))
	return b
}

func compiled(t testing.TB) *jsonschema.Schema {
	t.Helper()
	s, err := schema()
	require.NoError(t, err)
	return s
}

var schema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	text, err := os.ReadFile(filepath.Join("testdata", "oscal_assessment-results_schema.json"))
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("oscal.json", doc); err != nil {
		return nil, err
	}
	return c.Compile("oscal.json")
})
