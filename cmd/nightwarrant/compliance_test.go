package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sumnote "golang.org/x/mod/sumdb/note"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/compliance"
	"github.com/nightwarrant/nightwarrant/keys"
)

// oscalLines are the observations of a report, by their titles.
func oscalLines(t *testing.T, text string) map[string]string {
	t.Helper()
	var d struct {
		Results struct {
			Results []struct {
				Observations []struct {
					Title, Description string
					Props              []struct{ Name, Value string }
				}
			}
		} `json:"assessment-results"`
	}
	require.NoError(t, json.Unmarshal([]byte(text), &d))
	require.Len(t, d.Results.Results, 1)
	out := map[string]string{}
	for _, o := range d.Results.Results[0].Observations {
		for _, p := range o.Props {
			if p.Name == "state" {
				out[o.Title] = p.Value
			}
		}
	}
	return out
}

// An auditor reads a deployment through the API and has the report in each form. What is not there is open.
func TestComplianceReport(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Open()
	auditor, dir := signIn(t, h, authoritytest.AuditorName), t.TempDir()
	audited := write(t, dir, "tripwire.json", `{"target":"`+h.Authority.Issuer+`","binary_sha256":"`+strings.Repeat("0", 64)+`","started_at":"`+time.Now().UTC().Format(time.RFC3339)+
		`","lines":[{"id":"a16.1","title":"Never granted","verdict":"pass","evidence":"refused","requirements":["A16"]}]}`)
	page, file := filepath.Join(dir, "page.html"), filepath.Join(dir, "report.json")
	r := auditor.run(t, "compliance", "report", "--json", "--tripwire", audited, "--release", write(t, dir, "SUMS", "junk"), "--provenance", filepath.Join(dir, "none"),
		"--bundle", write(t, dir, "log", "junk"), "--audit-key", auditKeyOf(t, h), "--html", page, "--oscal", file)
	assert.Equal(t, exitFailed, r.code)
	assert.Regexp(t, `^nightwarrant: \d+ of \d+ lines are open\n$`, r.err)

	lines := oscalLines(t, r.out)
	for title, want := range map[string]compliance.State{
		"registered key": compliance.Satisfied, "generation 1": compliance.Satisfied, "served key set": compliance.Satisfied, "decision": compliance.Satisfied, "family store": compliance.Satisfied,
		"profile bookkeeper": compliance.Satisfied, "exact set": compliance.Stated, "effects without a finding": compliance.Satisfied, "assumption 1": compliance.Stated,
		"build that was audited": compliance.Open, "deployment that was audited": compliance.Satisfied, "1 a16.1: Never granted": compliance.NotObserved,
		"comparison with a release": compliance.Open, "provenance": compliance.Open, "exported log": compliance.Open, "workers, members' programs and the key host": compliance.NotObserved,
	} {
		assert.Equal(t, string(want), lines[title], title)
	}
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, r.out, string(written))
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Contains(t, string(html), "profile bookkeeper")
	for _, secret := range []string{auditor[envEnvelope], auditor[envKey]} {
		text, err := os.ReadFile(secret)
		require.NoError(t, err)
		for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
			assert.NotContains(t, string(html)+string(written), line)
		}
	}

	auditor.run(t, "compliance", "report", "--html", page).bad(t, exitFailed, "exists")
	auditor.run(t, "compliance", "report", "--bundle", file).bad(t, exitFailed, "audit-key")
	auditor.run(t, "compliance", "report", "--bundle", file, "--audit-key", "x+1+y").bad(t, exitMisconfigured, "--audit-key")
	out := auditor.run(t, "compliance", "report")
	assert.Equal(t, exitFailed, out.code)
	assert.Contains(t, out.out, "Self-audit: self-audit, not observed: No result of a self-audit was given (--tripwire).\n")
}

// Who may not read it gets a report of which nothing is good, and an authority that is away is no good one either.
func TestAReportOfNothing(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	nobody := signIn(t, h, "member-2")
	for _, r := range []result{nobody.run(t, "compliance", "report", "--json"), nobody.run(t, "compliance", "report", "--json", "--authority", "http://127.0.0.1:1")} {
		assert.Equal(t, exitFailed, r.code)
		for title, state := range oscalLines(t, r.out) {
			if title != "served key set" {
				assert.NotEqual(t, string(compliance.Satisfied), state, title)
			}
		}
	}
}

// auditKeyOf is the key of a house's log, as `nightwarrant audit key` prints it.
func auditKeyOf(t *testing.T, h *authoritytest.House) string {
	t.Helper()
	id := h.Authority.Keys().Identity()
	text, err := sumnote.NewEd25519VerifierKey(keys.AuditOrigin(id.ClusterID), id.AuditKey[:])
	require.NoError(t, err)
	return text
}

// complies: the report checks an exported log as `nightwarrant audit verify` does, and says with which key.
func (l *logged) complies(file string) {
	l.Helper()
	f := complianceFlags{bundle: file, auditKey: l.key, anchors: []string{l.anchors}, witnesses: []string{l.witness}}
	key, by, err := f.logKeys()
	require.NoError(l, err)
	checked, err := f.checkLog(key, by)
	require.NoError(l, err)
	assert.True(l, checked.Report.OK() && checked.Report.Anchors > 0 && len(checked.Report.Witnessed) == 1)
	var registered []byte
	require.NoError(l, l.super.QueryRow(l.Context(), `SELECT audit_key FROM nw.authority_identity`).Scan(&registered))
	assert.Equal(l, base64.RawURLEncoding.EncodeToString(registered), checked.Key)
}
