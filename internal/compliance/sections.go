package compliance

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/fips"
)

// How old evidence may be.
const (
	keyAge       = 365 * 24 * time.Hour // of a generation that signs
	recordAge    = 30 * 24 * time.Hour  // of a check of provenance, as of a snapshot of the CMVP
	selfAuditAge = 30 * 24 * time.Hour
	logAge       = 24 * time.Hour // of the newest checkpoint in an exported log
)

// with is a line with its verdict.
func (l Line) with(ok bool, good, bad string) Line {
	l.State, l.Found = Satisfied, good
	if !ok {
		l.State, l.Found = Open, bad
	}
	return l
}

func (l Line) about(subject string) Line { l.Subject = subject; return l }

func (l Line) stated(found string) Line { l.State, l.Found = Stated, found; return l }

const selfReport = "More than the process's own word: another program with its credentials could say the same. Nor how the executable was built."

func modules(e Evidence) (lines []Line) {
	l := Line{Section: Modules, Controls: []string{"C5"}, Subject: "processes", Method: Interview, Unproven: selfReport}
	if e.FIPS {
		l.Controls = append(l.Controls, "A13")
	}
	if lacks(e.Deployment, &l, "The authority was not asked.") {
		return append(lines, l, beyond())
	}
	running := map[string]bool{}
	for _, r := range e.Deployment.Body.Replicas {
		if !r.Live {
			continue
		}
		running[r.Kind] = true
		of := l.about(processName(r)).build(r.Build, e.FIPS)
		of.Beyond = r.Kind != "authority" && r.Kind != "scheduler" && r.Kind != "guard" // others have no way to say it
		lines = append(lines, of)
	}
	for _, kind := range []string{"authority", "scheduler"} {
		if !running[kind] {
			lines = append(lines, l.about(kind).with(false, "", "No such process reports now."))
		}
	}
	return append(lines, l.oneBuild(e), l.released(e), beyond())
}

func processName(r api.Replica) string {
	name := r.Kind
	if r.Component != "" {
		name += " " + r.Component
	}
	return fmt.Sprintf("%s, instance %s", name, r.Instance)
}

// build judges what a process said of itself.
func (l Line) build(b *api.Build, inFIPS bool) Line {
	if b == nil {
		l.State, l.Found = NotObserved, "It has not said what it runs."
		return l
	}
	release, module, enabled := b.Go, b.Module, "enabled"
	if release == "" {
		release = "no release of Go"
	}
	if module == "" {
		module = "off"
	}
	if !b.FIPS {
		enabled = "not enabled"
	}
	found := fmt.Sprintf("Executable SHA-256 %s, built with %s and GOFIPS140 %s; FIPS mode %s.", hexOf(b.BinarySHA256), release, module, enabled)
	refusal := fips.Module{Enabled: b.FIPS, Build: b.Module}.Refusal()
	return l.with(!inFIPS || refusal == "", found, found+" The FIPS profile refuses it: "+refusal+".")
}

func hexOf(base64url string) string {
	b, err := base64.RawURLEncoding.DecodeString(base64url)
	if err != nil {
		return "unreadable"
	}
	return hex.EncodeToString(b)
}

// served are the executables of the authority's own live processes.
func served(e Evidence) map[string]bool {
	out := map[string]bool{}
	for _, r := range e.Deployment.Body.Replicas {
		if r.Live && r.Build != nil && (r.Kind == "authority" || r.Kind == "scheduler") {
			out[hexOf(r.Build.BinarySHA256)] = true
		}
	}
	return out
}

func (l Line) oneBuild(e Evidence) Line {
	all := slices.Sorted(maps.Keys(served(e)))
	return l.about("authority and scheduler together").with(len(all) == 1, "All that said so run one executable.",
		fmt.Sprintf("They run %d executables, as during an upgrade.", len(all)))
}

// released compares with the list of a release.
func (l Line) released(e Evidence) Line {
	l = l.about("comparison with a release")
	l.Controls, l.Method, l.Unproven = []string{"C5", "B16"}, Examine, "That the list is the one that was released: hold its own signature or source against it."
	if lacks(e.Release, &l, "No list of released executables was given (--release).") {
		return l
	}
	var foreign []string
	for digest := range served(e) {
		raw, _ := hex.DecodeString(digest)
		if len(raw) != 32 || e.Release.Body[[32]byte(raw)] == "" {
			foreign = append(foreign, digest)
		}
	}
	slices.Sort(foreign)
	return l.with(len(foreign) == 0 && len(served(e)) > 0, "Every executable of the authority and the scheduler is on the list.", "Not on the list: "+strings.Join(foreign, ", ")+".")
}

// beyond is what no report of ours can see.
func beyond() Line {
	return Line{Section: Modules, Controls: []string{"C5"}, Subject: "workers, members' programs and the key host", State: NotObserved, Beyond: true, Method: Interview, Source: "nobody",
		Found:    "Nothing was observed: they report no build. Their executables and modules are for whoever runs them to show.",
		Unproven: "Anything about what they run, or in which module."}
}

func current(e Evidence) (api.Generation, bool) {
	for _, g := range e.Deployment.Body.Identity.Generations {
		if g.State == "current" {
			return g, true
		}
	}
	return api.Generation{}, false
}

func keys(e Evidence) []Line {
	l := Line{Section: Keys, Controls: []string{"A11"}, Subject: "registered key", Method: Examine, Unproven: "Where the private key is, and who else has it."}
	if lacks(e.Deployment, &l, "The authority was not asked.") {
		return append([]Line{l}, record(e)...)
	}
	g, ok := current(e)
	registered := l.with(ok, fmt.Sprintf("Cluster %s signs with generation %d, key %s.", e.Deployment.Body.Identity.Cluster, g.Generation, g.KeyID), "No generation of keys is current.")
	held := l.about("replicas that hold it").with(ok && g.Replicas > 0 && g.Lacking == 0, fmt.Sprintf("All %d replicas that report have proved it to themselves.", g.Replicas),
		fmt.Sprintf("%d of %d replicas that report have not proved that they hold it.", g.Lacking, g.Replicas))
	held.Method, held.Unproven = Interview, "More than each replica's own word."
	return append([]Line{registered, held, keySet(e, l)}, record(e)...)
}

// keySet compares what is served with what is registered.
func keySet(e Evidence, l Line) Line {
	l = l.about("served key set")
	l.Unproven = "That every replica serves this set: one answered."
	if lacks(e.KeySet, &l, "The key set was not read.") {
		return l
	}
	var want []string
	for _, g := range e.Deployment.Body.Identity.Generations {
		if g.State == "next" || g.State == "current" || g.State == "previous" {
			want = append(want, g.KeyID)
		}
	}
	have := slices.Sorted(slices.Values(e.KeySet.Body))
	slices.Sort(want)
	return l.with(len(want) > 0 && slices.Equal(have, want), fmt.Sprintf("It has exactly the %d keys that are in force.", len(want)),
		"It has the keys "+strings.Join(have, ", ")+", and in force are "+strings.Join(want, ", ")+".")
}

// record is the provenance of the key: every step of its check.
func record(e Evidence) (lines []Line) {
	l := Line{Section: Keys, Controls: []string{"A13"}, Subject: "provenance", Method: Examine, Beyond: !e.FIPS,
		Unproven: "That the check was made honestly: its report is a file that is not signed. Verify the record itself where there is doubt."}
	if lacks(e.Provenance, &l, "No report of a provenance check was given (--provenance): nothing says where the key comes from.") {
		return append(lines, l)
	}
	p := e.Provenance.Body
	g, known := current(e)
	digest := base64.RawURLEncoding.EncodeToString(p.Digest[:])
	l.At = p.CheckedAt
	lines = append(lines,
		l.about("provenance record "+p.RecordID).with(known && digest == g.Provenance, "It is the record of the key that signs.", "It is not the record of the key that signs, which is "+g.Provenance+"."),
		l.about("age of the provenance check").with(within(e.End, p.CheckedAt, recordAge) && p.GoodUntil.After(e.End), "Checked on "+day(p.CheckedAt)+", good until "+day(p.GoodUntil)+".",
			"Checked on "+day(p.CheckedAt)+", good until "+day(p.GoodUntil)+": check it again."))
	for n := range 9 {
		s := l.about(fmt.Sprintf("step %d", n+1))
		if n >= len(p.Steps) || p.Steps[n].Number != n+1 {
			lines = append(lines, s.with(false, "", "This step was not taken."))
			continue
		}
		s.Subject += ", " + p.Steps[n].Name
		lines = append(lines, s.with(p.Steps[n].OK && p.Refusal == nil, p.Steps[n].Detail, string(p.Steps[n].Code)+" "+p.Steps[n].Detail))
	}
	classes := "none"
	if len(p.EvidenceClasses) > 0 {
		classes = strings.Join(p.EvidenceClasses, ", ")
	}
	return append(lines, l.about("evidence").stated("Classes of evidence: "+classes+" (A attestation, B ceremony, C live token)."))
}

// within tells that something is no older than it may be, and not of the future.
func within(now, at time.Time, age time.Duration) bool {
	return now.Sub(at) <= age && at.Sub(now) <= time.Minute
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

func rotation(e Evidence) (lines []Line) {
	l := Line{Section: Rotation, Controls: []string{"A11"}, Subject: "generations", Method: Examine, Unproven: "That copies of older private keys were destroyed."}
	if lacks(e.Deployment, &l, "The authority was not asked.") {
		return append(lines, l)
	}
	if len(e.Deployment.Body.Identity.Generations) == 0 {
		return append(lines, l.with(false, "", "No generation is registered."))
	}
	for _, g := range e.Deployment.Body.Identity.Generations {
		s := l.about(fmt.Sprintf("generation %d", g.Generation))
		text := fmt.Sprintf("%s; published on %s", strings.ReplaceAll(g.State, "_", " "), day(g.PublishedAt))
		if g.ActivatedAt != nil {
			text += ", signing since " + day(*g.ActivatedAt)
		}
		if g.EndedAt != nil {
			text += ", over since " + day(*g.EndedAt)
		}
		switch {
		case g.State != "current" || g.ActivatedAt == nil:
			lines = append(lines, s.stated(text+"."))
		default:
			lines = append(lines, s.with(within(e.End, *g.ActivatedAt, keyAge), text+".", text+": it is older than a year, or of the future. Rotate it."))
		}
	}
	return lines
}

// profileOf reads a registered profile.
func profileOf(e api.Entry) (p document.AttestationProfile) {
	_ = json.Unmarshal(e.Document, &p) // the authority's own; what cannot be read is shown empty
	return p
}

func activeProfiles(e Evidence) (active []api.Entry) {
	for _, entry := range e.Profiles.Body {
		if entry.State == "active" {
			active = append(active, entry)
		}
	}
	return active
}

func profiles(e Evidence) (lines []Line) {
	l := Line{Section: Profiles, Controls: []string{"A2", "A15"}, Subject: "profiles", Method: Examine, Unproven: "That the issuer gives this token to this workload only."}
	if lacks(e.Profiles, &l, "The registry was not read.") {
		return append(lines, l)
	}
	active := activeProfiles(e)
	var names []string
	for _, entry := range active {
		p := profileOf(entry)
		who := p.Subject
		if who == "" {
			who = "service account " + p.ServiceAccount.Namespace + "/" + p.ServiceAccount.Name
		}
		names = append(names, entry.Name)
		lines = append(lines, l.about("profile "+entry.Name).with(p.Issuer != "", fmt.Sprintf("Issuer %s, %s, tied to a key by %s, at most %d s; document %s.", p.Issuer, who, p.Binding, p.MaxLifetimeS, entry.Digest),
			"Its document cannot be read."))
	}
	if len(active) == 0 {
		lines = append(lines, l.with(false, "", "No attestation profile is registered."))
	}
	return append(lines, l.exactSet(e, names))
}

// exactSet compares the registered profiles with those that the requirement names.
func (l Line) exactSet(e Evidence, active []string) Line {
	l = l.about("exact set")
	l.Controls, l.Unproven = []string{"A15"}, "That these are the profiles that somebody meant."
	if lacks(e.Requirement, &l, "The requirement in force was not read.") {
		return l
	}
	if len(e.Requirement.Body) == 0 {
		return l.stated("The requirement in force names no set: every registered profile is accepted.")
	}
	want := slices.Sorted(slices.Values(e.Requirement.Body))
	slices.Sort(active)
	return l.with(slices.Equal(want, active), "Registered are exactly the profiles that the requirement in force names.", "The requirement in force names "+strings.Join(want, ", ")+".")
}

// required in code, whatever is configured (A17).
var required = []string{"store", "signing", "nonces", "queue", "clock", "audit", "attestation", "directory", "approvals", "guards"}

func families(e Evidence) (lines []Line) {
	l := Line{Section: Families, Controls: []string{"A14"}, Subject: "decision", Method: Examine,
		Unproven: "Anything about another moment. A family is as good as the look that its process takes at it."}
	if lacks(e.Board, &l, "The board was not read.") {
		return append(lines, l)
	}
	b := e.Board.Body
	l.At = b.At
	lines = append(lines, l.with(b.Open && !b.Held, fmt.Sprintf("Admission is open, epoch %d, incarnation %d, requirement %d.", b.Epoch, b.Incarnation, b.Requirement),
		fmt.Sprintf("Admission is closed: %s %s.", b.Family, b.Reason)))
	l.Controls = []string{"A14", "A17"}
	there := map[string]bool{}
	for _, r := range b.Rows {
		there[r.Family] = true
		name := "family " + r.Family
		if r.Component != "" {
			name += " of " + r.Component
		}
		lines = append(lines, l.about(name).with(r.Good, fmt.Sprintf("Good: %d instances, %d needed.", r.Instances, r.Required), fmt.Sprintf("%s: %d instances are good, %d needed.", r.Reason, r.Instances, r.Required)))
	}
	for _, family := range required {
		if !there[family] {
			lines = append(lines, l.about("family "+family).with(false, "", "It is not required, and must be."))
		}
	}
	return lines
}

func ambiguous(e Evidence) []Line {
	l := Line{Section: Ambiguous, Controls: []string{"A10"}, Subject: "effects without a finding", Method: Examine, Unproven: "That what owners have recorded is what happened."}
	if lacks(e.Deployment, &l, "The authority was not asked.") {
		return []Line{l}
	}
	u := e.Deployment.Body.Uncertain
	since := "an unknown day"
	if u.Oldest != nil {
		since = day(*u.Oldest)
	}
	return []Line{l.with(u.Effects == 0, "There is none.", fmt.Sprintf("Of %d ambiguous effects, the first of %s, nobody has recorded what was found.", u.Effects, since))}
}

// exceptions are weaker than the rule, and registered as that.
func exceptions(e Evidence) (lines []Line) {
	l := Line{Section: Exceptions, Method: Examine, Source: e.Profiles.Source, At: e.Profiles.At, Controls: []string{"A3"}, Unproven: "That nobody else has the same token."}
	for _, entry := range activeProfiles(e) {
		if profileOf(entry).Binding == document.BindNone {
			lines = append(lines, l.about("profile "+entry.Name).stated("It waives that an assertion is tied to the first key that uses it."))
		}
	}
	for _, d := range e.Log.Body.Report.Resumed {
		r := l.about(fmt.Sprintf("incarnation %d", d.Incarnation)).stated(fmt.Sprintf("By an operator's decision the audit log goes on from record %d, and %d were signed before.", d.From, d.Lost))
		r.Controls, r.Source, r.At, r.Unproven = []string{"B14"}, e.Log.Source, e.Log.At, "What stood in the records that were lost."
		lines = append(lines, r)
	}
	if !e.FIPS {
		f := l.about("FIPS profile").stated("This report does not hold the deployment against the FIPS profile (--fips).")
		f.Controls, f.Method, f.Source, f.Unproven = []string{"A13"}, Interview, "the command line", "Anything about modules and external keys."
		lines = append(lines, f)
	}
	return lines
}

// assumptions are said by whoever made this, and nobody looks at them here.
func assumptions(e Evidence) (lines []Line) {
	for n, text := range e.Model.Assumptions {
		lines = append(lines, Line{Section: Assumptions, Controls: []string{"B15"}, Subject: fmt.Sprintf("assumption %d", n+1), State: Stated, Found: text, Method: Interview,
			Source: "docs/threat-model.md of this build, dated " + e.Model.Dated, At: e.Start, Unproven: "That it is so here."})
	}
	return lines
}
