package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

var runStates = map[string]state{
	"queued":           {"wait", "Queued", "calm"},
	"claimed":          {"run", "Running", "calm"},
	"waiting":          {"wait", "Waits for you", "ask"},
	"ending":           {"wait", "Ending", "calm"},
	"succeeded":        {"yes", "Succeeded", "good"},
	"failed":           {"no", "Failed", "bad"},
	"stopped_by_limit": {"no", "Stopped by a limit", "bad"},
	"expired":          {"no", "Ran out of time", "bad"},
	"revoked":          {"no", "Stopped", "bad"},
	"ambiguous":        {"ask", "Unclear", "ask"},
}

// runLine is a run in a list.
type runLine struct {
	Run    string
	Task   string
	State  state
	For    moment // its nominal time
	Ended  moment
	Did    string
	Spent  string
	Unsure bool
}

func (v *visit) runLines(task, cursor string, zone *time.Location) (out []runLine, next string, err error) {
	m, err := v.actor()
	if err != nil {
		return nil, "", err
	}
	page, err := v.c.Authority.Runs(v.r.Context(), m, task, cursor)
	for _, r := range page.Items {
		out = append(out, v.runLine(r, zone))
	}
	return out, page.Next, err
}

func (v *visit) runLine(r api.Run, zone *time.Location) runLine {
	l := runLine{Run: r.Run, Task: r.Task, State: stateOf(runStates, r.State), For: v.at(r.NominalAt, zone), Did: didOf(r), Unsure: r.Ambiguous > 0}
	if r.EndedAt != nil {
		l.Ended = v.at(*r.EndedAt, zone)
	}
	if r.Spent > 0 {
		l.Spent = money(r.Spent, r.Currency)
	}
	return l
}

// didOf counts what became of a run's effects.
func didOf(r api.Run) string {
	text := count(r.Committed, "change")
	if r.MoreEffects {
		text = "more than " + text
	}
	if r.NotApplied > 0 {
		text += fmt.Sprintf(", %d not made", r.NotApplied)
	}
	if r.Ambiguous > 0 {
		text += fmt.Sprintf(", %d unclear", r.Ambiguous)
	}
	return text
}

// runsPage is every run that acted as the member.
type runsPage struct {
	Runs []runLine
	Next string
}

func (c *Console) runs(v *visit) error {
	zone := v.in()
	lines, next, err := v.runLines("", v.r.URL.Query().Get("cursor"), zone)
	if err != nil {
		return err
	}
	return v.show(sheet{Name: "runs", Title: "Runs", Here: "tasks", Every: 5, Main: runsPage{lines, next}}, zone)
}

// runPage is what happened to one run, oldest first.
type runPage struct {
	runLine
	Title    foreign
	Fence    int64
	Deadline moment
	Short    string
	Stands   []moment // other times that it stands for
	Entries  []entry
	Next     string
}

// entry is one step of it.
type entry struct {
	At     moment
	What   string
	Where  string
	Amount string
	State  state
	Why    string
	Fence  int64
	Open   string // a decision, to be read
	Digest string
}

func (c *Console) run(v *visit) error {
	t, err := v.timeline(v.r.URL.Query().Get("cursor"))
	if err != nil {
		return err
	}
	detail, err := v.detail(t.Run.Task)
	if err != nil {
		return err
	}
	d := taskOf(detail.Document)
	zone := v.in(d.Schedule)
	p := runPage{runLine: v.runLine(t.Run, zone), Title: theirs(d.Client, d.Title), Fence: t.Run.Fence, Deadline: v.at(t.Deadline, zone), Short: shortfalls[t.Shortfall], Next: t.Next}
	for _, at := range t.Coalesced {
		p.Stands = append(p.Stands, v.at(at, zone))
	}
	for _, e := range t.Entries {
		p.Entries = append(p.Entries, v.entryOf(e, zone))
	}
	return v.show(sheet{Name: "run", Title: "A run", Here: "tasks", Every: 5, Main: p}, zone)
}

var shortfalls = map[string]string{
	"approval": "It needed your decision and did not get it, so it does not count as a success.",
	"limit":    "It needed more than its limits allow, so it does not count as a success.",
}

func (v *visit) timeline(cursor string) (api.Timeline, error) {
	m, err := v.actor()
	if err != nil {
		return api.Timeline{}, err
	}
	return v.c.Authority.TimelineAfter(v.r.Context(), m, v.reference(), cursor)
}

// kinds are the verbs of a timeline in the words of a page.
var kinds = map[string]string{
	"plan": "Planned", "claim": "A worker took it", "renew": "The worker went on", "mint": "It asked to do something", "ask": "You were asked", "decide": "You decided",
	"admit": "Let through, once", "settle_effect": "What became of it was recorded", "late_evidence": "Something was learnt later", "evidence": "What the destination shows was recorded",
	"expire_effect": "Its time passed unused", "finding": "You recorded what you found", "requeue": "It went back to the queue", "settle_run": "The worker ended it", "end_run": "It was ended",
	"notice": "You were told",
}

var outcomes = map[string]state{
	"committed":   {"yes", "Done", "good"},
	"not_applied": {"no", "Not done", "calm"},
	"ambiguous":   {"ask", "Unclear", "ask"},
	"approved":    {"yes", "Yes", "good"},
	"used":        {"yes", "Yes, used", "good"},
	"denied":      {"no", "No", "calm"},
	"happened":    {"yes", "It happened", "good"},
	"did_not":     {"no", "It did not happen", "calm"},
	"unknown":     {"ask", "Not known", "ask"},
}

func (v *visit) entryOf(e api.TimelineEntry, zone *time.Location) entry {
	out := entry{At: v.at(e.At, zone), What: kinds[e.Kind], Fence: e.Fence, Digest: e.Digest, Open: e.Decision}
	if out.What == "" {
		out.What = upper(e.Kind)
	}
	if e.Action != "" {
		out.Where = does(e.Action) + " — " + e.Resource
	}
	switch {
	case e.Spent > 0:
		out.Amount = money(e.Spent, e.Currency)
	case e.Amount > 0:
		out.Amount = "at most " + money(e.Amount, e.Currency)
	}
	switch {
	case e.Code != "" && e.Code != "ok":
		out.State, out.Why = state{"no", "Refused", "bad"}, api.Code(e.Code).Sentence()
		if api.Code(e.Code) == api.ApprovalRequired {
			out.State, out.Why = state{"wait", "Waits for you", "ask"}, ""
		}
	case e.Outcome != "":
		out.State = outcomeOf(e.Outcome)
	}
	return out
}

func outcomeOf(word string) state {
	if s, ok := outcomes[word]; ok {
		return s
	}
	return stateOf(runStates, word)
}

// maxExport bounds how many pages of a timeline are exported at once; a longer one says that it is not whole.
const maxExport = 50

// export is a run's timeline as JSON, to be kept.
func (c *Console) export(v *visit) error {
	all, err := v.timeline("")
	for pages := 1; err == nil && all.Next != "" && pages < maxExport; pages++ {
		var more api.Timeline
		more, err = v.timeline(all.Next)
		all.Entries, all.Next = append(all.Entries, more.Entries...), more.Next
	}
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	v.w.Header().Set("Content-Type", "application/json")
	v.w.Header().Set("Content-Disposition", `attachment; filename="run-`+all.Run.Run+`.json"`)
	v.w.WriteHeader(http.StatusOK)
	_, _ = v.w.Write(text) // the caller may be gone
	return nil
}

// runReceipt is a run's receipt, to be kept and checked elsewhere.
func (c *Console) runReceipt(v *visit) error {
	m, err := v.actor()
	if err != nil {
		return err
	}
	r, err := v.c.Authority.RunReceipt(v.r.Context(), m, v.reference())
	if err != nil {
		return err
	}
	v.w.Header().Set("Content-Type", "application/jwt")
	v.w.Header().Set("Content-Disposition", `attachment; filename="run-`+r.Run+`.jwt"`)
	v.w.WriteHeader(http.StatusOK)
	_, _ = v.w.Write([]byte(r.Receipt)) // the caller may be gone
	return nil
}

// schedulesOf are those of consents.
func schedulesOf(all []api.ConsentRecord) (out []timetable.Document) {
	for _, c := range all {
		var d struct{ Schedule timetable.Document }
		if json.Unmarshal(c.Document, &d) == nil {
			out = append(out, d.Schedule)
		}
	}
	return out
}
