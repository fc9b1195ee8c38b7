package console

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// terms are a consent document in the words of a page.
type terms struct {
	Title        foreign
	Client, Role string
	RoleRevision int64
	Rhythm       string
	Grants       []grant
	Goes         []string // where what it does and learns goes
	Limits       []line
	More         string
	From, Until  moment
	UntilDay     string
	Lasts        string
	Policy       string
	PolicyRev    int64
	Task         string
	Revision     int64
}

// grant is what may be done at one resource.
type grant struct {
	Guard, Resource string
	Can             []verb
	Cannot          []string
}

// verb is one thing that may be done there.
type verb struct {
	Does     string
	Most     string
	Asks     string
	Optional bool
	Except   []foreign // keys that need no question
}

func (v *visit) termsOf(d document.Consent, zone *time.Location) terms {
	return terms{Title: theirs(d.Client, d.Title), Client: d.Client, Role: d.WorkloadRole, RoleRevision: d.RoleRevision, Rhythm: rhythm(d.Schedule),
		Grants: grantsOf(d), Goes: goes(d), Limits: limitsOf(d), More: more(d), From: v.at(d.NotBefore.Time(), zone), Until: v.at(d.Expires.Time(), zone),
		UntilDay: day(d.Expires.Time(), zone), Lasts: lasting(d.Expires.Time().Sub(d.NotBefore.Time())), Policy: d.Policy, PolicyRev: d.PolicyRevision,
		Task: d.Task, Revision: d.TaskRevision}
}

// grantsOf puts what may be done together by resource, and says what may not.
func grantsOf(d document.Consent) (out []grant) {
	at := map[[2]string]int{}
	can := map[int]map[string]bool{}
	for _, g := range d.Grants {
		key := [2]string{g.Guard, g.Resource}
		i, ok := at[key]
		if !ok {
			i = len(out)
			at[key], can[i] = i, map[string]bool{}
			out = append(out, grant{Guard: g.Guard, Resource: g.Resource})
		}
		can[i][g.Action] = true
		out[i].Can = append(out[i].Can, verbOf(g, d.Dial))
	}
	for i := range out {
		if catalogue.CheckResource(catalogue.Postgres, out[i].Resource) != nil {
			continue // only of tables it is known what else there is
		}
		for _, a := range catalogue.Actions(catalogue.Postgres) {
			if !can[i][a.Name] {
				out[i].Cannot = append(out[i].Cannot, a.Title)
			}
		}
	}
	return out
}

func verbOf(g document.ConsentGrant, dial catalogue.Risk) verb {
	o := verb{Does: g.Does, Asks: "It does this by itself.", Optional: g.Optional}
	if g.MaxAmount > 0 {
		o.Most = "for at most " + money(g.MaxAmount, g.Currency) + " each time"
	}
	if g.Risk > dial {
		o.Asks = "It asks you each time before it does this."
		for _, key := range g.PreApproved {
			o.Except = append(o.Except, data("", key))
		}
	}
	return o
}

// goes says where it works, and names whoever else is there.
func goes(d document.Consent) (out []string) {
	for _, g := range d.Grants {
		text := "Stays at " + g.Guard + ", in " + g.Resource + "."
		if at, err := url.Parse(g.Resource); err == nil && at.Host != "" {
			text = "Goes to " + at.Host + ", through the guard " + g.Guard + "."
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

func limitsOf(d document.Consent) []line {
	l := d.Limits
	out := []line{
		{"Runs", "one at a time; a run that would start while another is open becomes part of it"},
		{"Longest run", lasting(time.Duration(l.RuntimeS) * time.Second)},
		{"Changes in a run", fmt.Sprint(l.Effects)},
		{"Steps in a run", fmt.Sprint(l.Steps)},
		{"The same change in a run", count(l.Repeats, "time")},
	}
	add := func(name string, value int64, text string) {
		if value > 0 {
			out = append(out, line{name, text})
		}
	}
	add("Changes in a day", l.EffectsDay, fmt.Sprint(l.EffectsDay))
	add("Changes in a month", l.EffectsMonth, fmt.Sprint(l.EffectsMonth))
	if l.Spend == 0 {
		return append(out, line{"Spend", "nothing"})
	}
	out = append(out, line{"Spend in a run", money(l.Spend, l.Currency)})
	add("Spend in a day", l.SpendDay, money(l.SpendDay, l.Currency))
	add("Spend in a month", l.SpendMonth, money(l.SpendMonth, l.Currency))
	add("Spend of all your tasks in a day", d.MemberSpendDay, money(d.MemberSpendDay, l.Currency))
	add("Spend of all your tasks in a month", d.MemberSpendMonth, money(d.MemberSpendMonth, l.Currency))
	return out
}

// more says what happens when a run needs more than it may do by itself.
func more(d document.Consent) string {
	asked := " You are asked on the page Decisions, and told where you receive notices."
	if d.WhenMoreIsNeeded == document.MoreWaits {
		return "The run waits and does nothing else." + asked + " Without your answer it ends when its longest time is over."
	}
	return "The run waits for up to " + lasting(time.Duration(d.DecisionWindowS)*time.Second) + "." + asked + " Without your answer it stops then."
}

// linesOf are a consent's terms one by one, for comparing.
func linesOf(d document.Consent, zone *time.Location) (out []line) {
	for _, g := range d.Grants {
		o := verbOf(g, d.Dial)
		out = append(out, line{o.Does + " — " + g.Resource + " at " + g.Guard, strings.TrimSpace(upper(o.Most) + " " + o.Asks)})
	}
	out = append(out, line{"When", rhythm(d.Schedule) + ", " + d.Schedule.Zone}, line{"Who", fmt.Sprintf("%s of %s, revision %d", d.WorkloadRole, d.Client, d.RoleRevision)})
	out = append(out, limitsOf(d)...)
	return append(out, line{"When it needs more", more(d)}, line{"Until", day(d.Expires.Time(), zone)}, line{"Policy", fmt.Sprintf("%s, revision %d", d.Policy, d.PolicyRevision)})
}

// does says what an action does, in the catalogue's words where it has some.
func does(action string) string {
	for _, kind := range []string{catalogue.Postgres, catalogue.Model} {
		if a, ok := catalogue.Lookup(kind, action); ok {
			return a.Title
		}
	}
	return action
}

// change is one line that differs.
type change struct {
	Kind          string // new, other, gone
	Name, Is, Was string
}

// changes compares what was and what is, additions first.
func changes(was, is []line) (out []change) {
	old, now := map[string]string{}, map[string]string{}
	for _, l := range was {
		old[l.Name] = l.Value
	}
	for _, l := range is {
		now[l.Name] = l.Value
		if before, ok := old[l.Name]; !ok {
			out = append(out, change{"new", l.Name, l.Value, ""})
		} else if before != l.Value {
			out = append(out, change{"other", l.Name, l.Value, before})
		}
	}
	for _, l := range was {
		if _, ok := now[l.Name]; !ok {
			out = append(out, change{"gone", l.Name, "", l.Value})
		}
	}
	order := map[string]int{"new": 0, "other": 1, "gone": 2}
	slices.SortStableFunc(out, func(a, b change) int { return order[a.Kind] - order[b.Kind] })
	return out
}

// clocks says when clocks change between now and the last of the times shown.
func clocks(from time.Time, fires []time.Time, zone *time.Location) string {
	if len(fires) == 0 {
		return ""
	}
	for _, z := range []*time.Location{zone, fires[0].Location()} {
		if at, ok := timetable.NextClockChange(z, from, fires[len(fires)-1]); ok {
			return fmt.Sprintf("Clocks in %s change on %s, before the last of these.", z, at.In(z).Format("2 January 2006"))
		}
	}
	return ""
}
