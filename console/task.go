package console

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// taskPage is one task: whether it may run, how to stop it, what it did, and what it rests on.
type taskPage struct {
	Task      string
	Title     foreign
	Client    string
	Rhythm    string
	State     state
	Offer     string
	Until     moment
	Epoch     int64
	Stop      *stopping // what ends; nil: there is nothing to stop
	Ended     *ended
	Now       dryRun
	Fires     []moment
	Clocks    string
	Runs      []runLine
	NextRuns  string
	Consents  []consentLine
	Revisions []revision
	Rests     []named
}

// stopping is what a stop ends, shown before.
type stopping struct {
	Consent  string
	Runs     []runLine
	InFlight int64
	Minted   int64
	Cards    int64
	Next     moment
}

// ended is the last time that the task's authority ended, and how fast.
type ended struct {
	Epoch    int64
	Advanced moment
	Last     moment // effect that was admitted before
	LagMS    int64
}

// dryRun is what would happen now.
type dryRun struct {
	Would   bool
	Reasons []string
}

type revision struct {
	Number  int64
	Entered moment
	Changes []change // from the one before; none for the first
	First   bool
}

// named is something that the task rests on.
type named struct {
	Kind, Name string
	Title      string
	Revision   int64
	Active     bool
}

// detail is one task with all that it rests on.
func (v *visit) detail(reference string) (api.TaskDetail, error) {
	m, err := v.actor()
	if err != nil {
		return api.TaskDetail{}, err
	}
	return v.c.Authority.Task(v.r.Context(), m, reference)
}

// zoneOf is the zone of a page about one task: the chosen one, else the task's.
func (v *visit) zoneOf(task string) (*time.Location, error) {
	if v.zone != nil {
		return v.zone, nil
	}
	t, err := v.detail(task)
	return v.in(taskOf(t.Document).Schedule), err
}

func (c *Console) task(v *visit) error {
	t, err := v.detail(v.reference())
	if err != nil {
		return err
	}
	d := taskOf(t.Document)
	zone := v.in(d.Schedule)
	p := taskPage{Task: t.Task.Task, Title: theirs(d.Client, d.Title), Client: d.Client, Rhythm: rhythm(d.Schedule), Offer: t.Offer, Epoch: t.ActivationEpoch,
		State: state{"no", "Not allowed", "calm"}, Ended: v.endedOf(t, zone), Revisions: v.revisionsOf(t, zone), Rests: restsOf(t)}
	if t.Consented {
		p.State = state{"yes", "Allowed", "good"}
		if t.ConsentUntil != nil {
			p.Until = v.at(*t.ConsentUntil, zone)
		}
		if p.Stop, err = v.stopping(t.Task.Task, zone); err != nil {
			return err
		}
		p.addFires(v, t.NextFires, zone)
	}
	for _, one := range t.Consents {
		p.Consents = append(p.Consents, v.consentLine(one, zone))
	}
	if p.Now, err = v.dryRun(t.Task.Task); err != nil {
		return err
	}
	if p.Runs, p.NextRuns, err = v.runLines(t.Task.Task, v.r.URL.Query().Get("cursor"), zone); err != nil {
		return err
	}
	return v.show(sheet{Name: "task", Title: "A task", Here: "tasks", Every: 5, Main: p}, zone)
}

func (p *taskPage) addFires(v *visit, fires []api.Fire, zone *time.Location) {
	var at []time.Time
	for _, f := range fires {
		at = append(at, f.At)
		p.Fires = append(p.Fires, v.at(f.At, zone))
	}
	p.Clocks = clocks(v.now, at, zone)
}

// stopping asks what would end; nil when nothing would.
func (v *visit) stopping(task string, zone *time.Location) (*stopping, error) {
	m, err := v.actor()
	if err != nil {
		return nil, err
	}
	s, err := v.c.Authority.RevocationScope(v.r.Context(), m, task)
	if err != nil || s.Consent == "" {
		return nil, err
	}
	out := &stopping{Consent: s.Consent, InFlight: s.InFlight, Minted: s.Minted, Cards: s.Cards}
	for _, r := range s.Runs {
		out.Runs = append(out.Runs, runLine{Run: r.Run, State: stateOf(runStates, r.State), For: v.at(r.NominalAt, zone)})
	}
	if s.NextAt != nil {
		out.Next = v.at(*s.NextAt, zone)
	}
	return out, nil
}

func (v *visit) endedOf(t api.TaskDetail, zone *time.Location) *ended {
	if t.CutOff == nil {
		return nil
	}
	e := &ended{Epoch: t.CutOff.ActivationEpoch, Advanced: v.at(t.CutOff.AdvancedAt, zone), LagMS: t.CutOff.LagMS}
	if t.CutOff.LastAdmittedAt != nil {
		e.Last = v.at(*t.CutOff.LastAdmittedAt, zone)
	}
	return e
}

// revisionsOf are a task's revisions, newest first, each with what changed in it.
func (v *visit) revisionsOf(t api.TaskDetail, zone *time.Location) (out []revision) {
	for i, r := range t.Revisions {
		one := revision{Number: r.Revision, Entered: v.at(r.EnteredAt, zone), First: i+1 == len(t.Revisions)}
		if !one.First {
			one.Changes = changes(linesOfTask(taskOf(t.Revisions[i+1].Document)), linesOfTask(taskOf(r.Document)))
		}
		out = append(out, one)
	}
	return out
}

func restsOf(t api.TaskDetail) []named {
	of := func(kind string, n api.Named) named {
		return named{kind, n.Name, n.Title, n.Revision, n.State == "active"}
	}
	out := []named{of("Client", t.Client), of("Role", t.Role), of("Policy", t.Policy)}
	for _, p := range t.Profiles {
		out = append(out, of("Proof of the workload", p))
	}
	return out
}

func (v *visit) dryRun(task string) (out dryRun, err error) {
	m, err := v.actor()
	if err != nil {
		return out, err
	}
	d, err := v.c.Authority.DryRun(v.r.Context(), m, task)
	out.Would = d.WouldRun
	for _, r := range d.Reasons {
		text := api.WhyNot(r)
		if text == "" {
			text = upper(r)
		}
		out.Reasons = append(out.Reasons, text)
	}
	return out, err
}

// revoke ends what was shown. Its answer comes when the new epoch is committed,
// and the page that follows says how fast that was.
func (c *Console) revoke(v *visit) error {
	f, err := v.form("epoch")
	if err != nil {
		return err
	}
	shown, err := strconv.ParseInt(f.Get("epoch"), 10, 64)
	if err != nil {
		return api.Refuse(api.InvalidRequest)
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	if _, err := c.Authority.RevokeShown(v.r.Context(), m, v.reference(), shown); err != nil {
		return err
	}
	v.tell("stopped")
	return v.see("/tasks/%s", v.reference())
}

// linesOfTask are a task revision's terms one by one.
func linesOfTask(d *document.Task) (out []line) {
	for _, g := range d.Grants {
		value := "required"
		if g.Optional {
			value = "optional"
		}
		if g.MaxAmount > 0 {
			value += ", for at most " + money(g.MaxAmount, g.Currency) + " each time"
		}
		out = append(out, line{does(g.Action) + " — " + g.Resource + " at " + g.Guard, value})
	}
	out = append(out, line{"Name", theirs("", d.Title).String()}, line{"When", rhythm(d.Schedule) + ", " + d.Schedule.Zone},
		line{"Who", fmt.Sprintf("%s of %s, revision %d", d.Role, d.Client, d.RoleRevision)}, line{"It asks you before", asksBefore(d.Dial.String())})
	c := document.Consent{Limits: d.Limits, WhenMoreIsNeeded: d.WhenMoreIsNeeded, DecisionWindowS: d.DecisionWindowS}
	out = append(out, limitsOf(c)...)
	return append(out, line{"When it needs more", more(c)}, line{"A consent lasts", count(d.Consent.Days, "day")}, line{"Policy", fmt.Sprintf("%s, revision %d", d.Policy, d.PolicyRevision)})
}

func asksBefore(dial string) string {
	for _, d := range dials {
		if d.Value == dial {
			return d.Text
		}
	}
	return dial
}
