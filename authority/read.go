package authority

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// seen is what a reading may see: what is the member's own or, where an operator
// or auditor names one thing, that one.
type seen struct {
	member [32]byte
	all    bool
}

func own(m Actor) seen     { return seen{m.Member(), false} }
func anyones(m Actor) seen { return seen{m.Member(), m.Auditor()} }

// Tasks lists a member's tasks, newest first. cursor is what the page before gave.
func (a *Authority) Tasks(ctx context.Context, m Actor, cursor string) (api.Page[api.Task], error) {
	return a.taskPage(ctx, m, own(m), a.paging(m, "tasks"), cursor)
}

// AllTasks lists everybody's tasks, for operators and auditors.
func (a *Authority) AllTasks(ctx context.Context, m Actor, cursor string) (api.Page[api.Task], error) {
	if err := m.auditing(); err != nil {
		return api.Page[api.Task]{}, err
	}
	return a.taskPage(ctx, m, anyones(m), a.paging(m, "all tasks"), cursor)
}

func (a *Authority) taskPage(ctx context.Context, m Actor, who seen, p paging, cursor string) (api.Page[api.Task], error) {
	from, err := p.open(cursor)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return api.Page[api.Task]{}, err
	}
	rows, err := a.tasks(ctx, who, nil, from.id)
	return pageOf(p, rows), err
}

// Task is one task with all that it rests on.
func (a *Authority) Task(ctx context.Context, m Actor, reference string) (t api.TaskDetail, err error) {
	ref, err := named(reference)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return t, err
	}
	who := anyones(m)
	tasks, err := a.tasks(ctx, who, ref, top.id)
	if err != nil {
		return t, err
	}
	if len(tasks) == 0 {
		return t, api.Refuse(api.NotFound)
	}
	t.Task = tasks[0].item
	if t.Revisions, err = a.revisions(ctx, who, ref); err != nil {
		return t, err
	}
	consents, err := a.consents(ctx, who, consentsOf{task: ref}, top.id, pageRows)
	if err != nil {
		return t, err
	}
	t.Consents = items(consents)
	if t.CutOff, err = a.epoch(ctx, who, ref); err != nil {
		return t, err
	}
	a.restsOn(&t)
	return t, nil
}

// restsOn adds what the task's document names, as it is registered now, and when
// the task fires next.
func (a *Authority) restsOn(t *api.TaskDetail) {
	var d struct {
		Client, Role, Policy string
		RoleRevision         int64 `json:"role_revision"`
		PolicyRevision       int64 `json:"policy_revision"`
		Schedule             timetable.Document
	}
	if json.Unmarshal(t.Document, &d) != nil {
		return
	}
	s := a.registry.now()
	t.Client, t.Policy = s.named(document.KindClient, d.Client, 1), s.named(document.KindPolicy, d.Policy, d.PolicyRevision)
	t.Role = s.named(document.KindRole, d.Role, d.RoleRevision)
	if role, ok := s.entries[key{document.KindRole, d.Role, d.RoleRevision}].doc.(*document.WorkloadRole); ok {
		for _, name := range role.Profiles {
			t.Profiles = append(t.Profiles, s.named(document.KindProfile, name, 1))
		}
	}
	t.Zone = d.Schedule.Zone
	from, until := a.Now(), time.Time{}
	if t.ConsentUntil != nil {
		from, until = later(from, t.Consents[0].NotBefore.Add(-time.Second)), *t.ConsentUntil
	}
	t.NextFires = fires(d.Schedule, from, until, 3)
}

// named is a registered thing as people read of it.
func (s *snapshot) named(kind, name string, revision int64) api.Named {
	n := api.Named{Name: name, Revision: revision, State: "retired"}
	e, ok := s.entries[key{kind, name, revision}]
	if ok && e.active {
		n.State = "active"
	}
	switch d := e.doc.(type) {
	case *document.Client:
		n.Title = d.Title
	case *document.Guard:
		n.Title = d.Title
	}
	return n
}

// fires are the first n nominal times after an instant, up to another one if that is
// given, in the schedule's zone.
func fires(d timetable.Document, after, until time.Time, n int) (out []api.Fire) {
	s, err := timetable.Parse(d)
	if err != nil {
		return nil
	}
	for len(out) < n {
		at, ok := s.Next(after)
		if !ok || (!until.IsZero() && !at.Before(until)) {
			break
		}
		_, change := timetable.NextClockChange(s.Zone(), after, at)
		out = append(out, api.Fire{At: at, ClocksChange: change})
		after = at
	}
	return out
}

// Runs lists runs that acted as a member, newest first; of one task when it is given.
// Operators and auditors see any task's.
func (a *Authority) Runs(ctx context.Context, m Actor, task, cursor string) (none api.Page[api.Run], err error) {
	var one []byte
	who := own(m)
	if task != "" {
		if one, err = named(task); err != nil {
			return none, err
		}
		who = anyones(m)
	}
	p := a.paging(m, "runs", task)
	from, err := p.open(cursor)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return none, err
	}
	rows, err := a.runs(ctx, who, one, nil, from.id)
	out := make([]row[api.Run], len(rows))
	for i, r := range rows {
		out[i] = row[api.Run]{r.id, r.item.Run}
	}
	return pageOf(p, out), err
}

// Consents lists everything that can act as a member, newest first, and after it what
// could within the last two years.
func (a *Authority) Consents(ctx context.Context, m Actor, cursor string) (none api.Page[api.ConsentRecord], err error) {
	p := a.paging(m, "consents")
	from, err := p.open(cursor)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return none, err
	}
	return inParts(p, from, func(part, before int64, limit int) ([]row[api.ConsentRecord], error) {
		return a.consents(ctx, own(m), consentsOf{ended: part == 1}, before, limit)
	})
}

// Consent is one consent: the receipt again.
func (a *Authority) Consent(ctx context.Context, m Actor, reference string) (none api.ConsentRecord, err error) {
	ref, err := named(reference)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return none, err
	}
	rows, err := a.consents(ctx, anyones(m), consentsOf{consent: ref}, top.id, 1)
	if err != nil {
		return none, err
	}
	if len(rows) == 0 {
		return none, api.Refuse(api.NotFound)
	}
	return rows[0].item, nil
}

// Decisions lists a member's cards, those that wait for an answer first; one only when
// reference is given.
func (a *Authority) Decisions(ctx context.Context, m Actor, reference string) ([]api.OwnerDecision, error) {
	if reference == "" {
		page, err := a.Inbox(ctx, m, "")
		return page.Items, err
	}
	one, err := named(reference)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return nil, err
	}
	rows, err := a.decisions(ctx, m.Member(), one, false, top.id, 1)
	if err == nil && len(rows) == 0 {
		err = api.Refuse(api.NotFound)
	}
	return items(rows), err
}

// Inbox lists a member's cards, newest first: those that wait for an answer, and after
// them the others.
func (a *Authority) Inbox(ctx context.Context, m Actor, cursor string) (none api.Page[api.OwnerDecision], err error) {
	p := a.paging(m, "decisions")
	from, err := p.open(cursor)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return none, err
	}
	return inParts(p, from, func(part, before int64, limit int) ([]row[api.OwnerDecision], error) {
		return a.decisions(ctx, m.Member(), nil, part == 0, before, limit)
	})
}

// Ambiguous lists a member's ambiguous effects, newest first, with what is known of each.
func (a *Authority) Ambiguous(ctx context.Context, m Actor, cursor string) (none api.Page[api.AmbiguousEffect], err error) {
	p := a.paging(m, "ambiguous")
	from, err := p.open(cursor)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return none, err
	}
	rows, err := a.ambiguous(ctx, m.Member(), from.id)
	return pageOf(p, rows), err
}

// Timeline is what happened to a run, oldest first, and goes on with TimelineAfter.
func (a *Authority) Timeline(ctx context.Context, m Actor, run string) (api.Timeline, error) {
	return a.TimelineAfter(ctx, m, run, "")
}

// TimelineAfter goes on with a run's timeline. It is a page like others, but oldest first.
func (a *Authority) TimelineAfter(ctx context.Context, m Actor, run, cursor string) (t api.Timeline, err error) {
	ref, err := named(run)
	if err != nil {
		return t, err
	}
	p := a.paging(m, "timeline", run)
	from, err := p.open(cursor)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return t, err
	}
	if from == top {
		from.id = 0
	}
	who := anyones(m)
	runs, err := a.runs(ctx, who, nil, ref, top.id)
	if err != nil {
		return t, err
	}
	if len(runs) == 0 {
		return t, api.Refuse(api.NotFound)
	}
	t.Run, t.Deadline, t.Shortfall = runs[0].item.Run, runs[0].item.deadline, runs[0].item.shortfall
	if t.Coalesced, err = a.coalesced(ctx, who, ref); err != nil {
		return t, err
	}
	rows, err := a.timeline(ctx, who, ref, from.id)
	t.Entries = items(rows)
	if len(rows) == timelineRows {
		t.Next = p.seal(place{id: rows[len(rows)-1].id})
	}
	return t, err
}

// DryRun says what would happen if the task fired now, and why not.
func (a *Authority) DryRun(ctx context.Context, m Actor, reference string) (d api.DryRun, err error) {
	ref, err := named(reference)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return d, err
	}
	d, q, found, err := a.wouldRun(ctx, anyones(m), ref)
	if err == nil && !found {
		err = api.Refuse(api.NotFound)
	}
	if err != nil {
		return api.DryRun{}, err
	}
	if reason := a.whyNoMember(ctx, q, d.At); reason != "" {
		d.Reasons = append(d.Reasons, reason)
	}
	d.WouldRun = len(d.Reasons) == 0
	return d, nil
}

// whyNoMember asks the directory, as an admission would, and ends nothing.
func (a *Authority) whyNoMember(ctx context.Context, q question, at time.Time) string {
	who, err := q.owner()
	if err != nil {
		return string(api.DirectoryUnavailable)
	}
	told, err := a.members.ask(ctx, who, at)
	switch {
	case err == nil && told.Answer == directory.Present:
		return ""
	case err == nil && told.Answer == directory.Absent:
		return string(api.NotAMember)
	}
	return string(api.DirectoryUnavailable)
}

// RevocationScope says what ends when a task's consent is revoked.
func (a *Authority) RevocationScope(ctx context.Context, m Actor, reference string) (s api.RevocationScope, err error) {
	ref, err := named(reference)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return s, err
	}
	s, found, err := a.revocationScope(ctx, anyones(m), ref)
	if err == nil && !found {
		err = api.Refuse(api.NotFound)
	}
	if err != nil {
		return api.RevocationScope{}, err
	}
	s.Task = reference
	return s, nil
}
