package compliance

import (
	"fmt"
	"time"
)

// selfAudit holds a self-audit against what runs: a check stays open until it was run on that very build (B15).
func selfAudit(e Evidence) []Line {
	l := Line{Section: SelfAudit, Controls: []string{"A16", "B15", "B16"}, Subject: "self-audit", Method: Test,
		Unproven: "Attacks that it does not try, and that its report was not changed: the file is not signed."}
	if lacks(e.SelfAudit, &l, "No result of a self-audit was given (--tripwire).") {
		return []Line{l}
	}
	s := e.SelfAudit.Body
	l.At = s.StartedAt
	build := l.about("build that was audited").onBuild(e, s)
	lines := []Line{
		build,
		l.about("deployment that was audited").with(s.Target == e.Authority, "It is this one.", "It is another one: "+s.Target+"."),
		l.about("age of the self-audit").with(within(e.End, s.StartedAt, selfAuditAge), "Begun on "+day(s.StartedAt)+".", "Begun on "+day(s.StartedAt)+": run it again."),
	}
	good := true
	for _, of := range lines {
		good = good && of.State == Satisfied
	}
	for n, tried := range s.Lines {
		lines = append(lines, l.tried(n, tried, good))
	}
	return lines
}

// onBuild: the executable that audited is the one that every process runs, and one of them ran it already when the audit began.
func (l Line) onBuild(e Evidence, s SelfAudited) Line {
	l.Controls = []string{"B15", "B16"}
	running := served(e)
	var since *time.Time
	for _, r := range e.Deployment.Body.Replicas {
		if r.Live && r.Kind == "authority" && r.BuildSince != nil && (since == nil || r.BuildSince.Before(*since)) {
			since = r.BuildSince
		}
	}
	switch {
	case s.BinarySHA256 == "":
		return l.with(false, "", "It does not say on which executable it was run.")
	case len(running) != 1 || !running[s.BinarySHA256]:
		return l.with(false, "", fmt.Sprintf("It was run with the executable %s, which is not the one that runs: run it again.", s.BinarySHA256))
	case since == nil || s.StartedAt.Before(*since):
		return l.with(false, "", "It was begun before any replica ran this executable: run it again.")
	}
	return l.with(true, "Run with the very executable that the authority and the scheduler run.", "")
}

// tried is one attack. What passed on another build, elsewhere or too long ago is as good as not tried.
func (l Line) tried(n int, t SelfAuditOf, good bool) Line {
	l.Subject, l.Controls = fmt.Sprintf("%d %s: %s", n+1, t.ID, t.Title), nil
	for _, id := range t.Requirements {
		if isControl(id) {
			l.Controls = append(l.Controls, id)
		}
	}
	if len(l.Controls) == 0 {
		l.Controls = []string{"B16"}
	}
	l.Found = t.Evidence
	switch {
	case t.Verdict == "pass" && good:
		l.State = Satisfied
	case t.Verdict == "pass":
		l.State, l.Found = NotObserved, "It passed, but not on this deployment as it is now."
	case t.Verdict == "not_applicable":
		l.State, l.Beyond = NotObserved, true
	default:
		l.State = Open
	}
	return l
}

// auditLog holds an exported log against its key and what anchors have kept.
func auditLog(e Evidence) []Line {
	l := Line{Section: Audit, Controls: []string{"B14"}, Subject: "exported log", Method: Test,
		Unproven: "Anything about records that no checkpoint covers, and that what was noted is all that happened."}
	if lacks(e.Log, &l, "No exported log was checked (--bundle, with --audit-key and --anchors).") {
		return []Line{l}
	}
	r := e.Log.Body.Report
	lines := []Line{
		l.with(r.OK(), fmt.Sprintf("Nothing is wrong with %d records and %d checkpoints of %s.", r.Records, r.Checkpoints, r.Origin), fmt.Sprintf("%d findings; an anchor knows more: %t.", len(r.Findings), r.ExportAgain)),
		l.about("log's key").with(e.Deployment.Body.Identity.AuditKey != "" && e.Log.Body.Key == e.Deployment.Body.Identity.AuditKey, "The log was checked with the key that is registered.", "The log was checked with another key than is registered."),
		l.about("anchors").with(r.Anchors > 0, fmt.Sprintf("%d kept checkpoints agree.", r.Anchors), "No anchor was given: a log that was cut short looks whole."),
		l.about("coverage").with(r.Covered > 0 && within(e.End, r.At, logAge), fmt.Sprintf("%d of %d records are under the checkpoint of %s.", r.Covered, r.Records, r.At.UTC().Format(time.RFC3339)),
			fmt.Sprintf("%d of %d records are under a checkpoint, the last of %s: export it again.", r.Covered, r.Records, r.At.UTC().Format(time.RFC3339))),
	}
	for n, f := range r.Findings {
		if n == maxItems {
			break
		}
		lines = append(lines, l.about(fmt.Sprintf("finding %d", n+1)).with(false, "", fmt.Sprintf("%s, records %d to %d: %s.", f.Tamper, f.From, f.Through, f.Why)))
	}
	for _, w := range r.Witnessed {
		lines = append(lines, l.about("witness "+w.Witness).with(w.Records > 0, fmt.Sprintf("It has signed %d records, last on %s.", w.Records, day(w.At)), "It has signed nothing."))
	}
	if r.Gone > 0 {
		lines = append(lines, l.about("retention").stated(fmt.Sprintf("%d records have lost their bodies, and keep their digests.", r.Gone)))
	}
	return lines
}
