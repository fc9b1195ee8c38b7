package console

import (
	"encoding/json"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// tasksPage is where a member begins: what waits for an answer, and what may run.
type tasksPage struct {
	Offers    []offerLine
	Decisions []decisionLine
	Tasks     []taskLine
	Next      string
}

type offerLine struct {
	Offer   string
	Title   foreign
	Client  string
	Rhythm  string
	Expires moment
}

type taskLine struct {
	Task     string
	Title    foreign
	Client   string
	Rhythm   string
	State    state
	Next     moment
	Last     *runLine
	Revision int64
}

func (c *Console) tasks(v *visit) error {
	m, err := v.actor()
	if err != nil {
		return err
	}
	page, err := c.Authority.Tasks(v.r.Context(), m, v.r.URL.Query().Get("cursor"))
	if err != nil {
		return err
	}
	tasks := page.Items
	offers, err := v.offers("")
	if err != nil {
		return err
	}
	cards, err := v.cards("")
	if err != nil {
		return err
	}
	documents := make([]*document.Task, len(tasks))
	var schedules []timetable.Document
	for i, t := range tasks {
		documents[i] = taskOf(t.Document)
		schedules = append(schedules, documents[i].Schedule)
	}
	zone := v.in(schedules...)
	p := tasksPage{Decisions: v.decisionLines(cards, zone, "pending"), Next: page.Next}
	for _, o := range offers {
		if o.State == "open" {
			p.Offers = append(p.Offers, v.offerLine(o, zone))
		}
	}
	for i, t := range tasks {
		p.Tasks = append(p.Tasks, v.taskLine(t, documents[i], zone))
	}
	return v.show(sheet{Name: "tasks", Title: "Your tasks", Here: "tasks", Every: 5, Main: p}, zone)
}

// taskOf reads a stored task, which was held against every rule when it was entered: a page of them
// needs no more than the words. One that cannot be read has no title and says so by that.
func taskOf(body []byte) *document.Task {
	var t document.Task
	if err := json.Unmarshal(body, &t); err != nil {
		return &document.Task{}
	}
	return &t
}

func (v *visit) taskLine(t api.Task, d *document.Task, zone *time.Location) taskLine {
	l := taskLine{Task: t.Task, Title: theirs(d.Client, d.Title), Client: d.Client, Rhythm: rhythm(d.Schedule), Revision: t.Revision,
		State: state{"no", "Not allowed", "calm"}}
	if t.Consented {
		l.State = state{"yes", "Allowed", "good"}
		if t.NextAt != nil {
			l.Next = v.at(*t.NextAt, zone)
		}
	}
	if t.LastRun != nil {
		l.Last = &runLine{Run: t.LastRun.Run, State: stateOf(runStates, t.LastRun.State), For: v.at(t.LastRun.NominalAt, zone)}
	}
	return l
}
