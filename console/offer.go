package console

import (
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// offers are the member's; one only when reference is given.
func (v *visit) offers(reference string) ([]api.Offer, error) {
	m, err := v.actor()
	if err != nil {
		return nil, err
	}
	return v.c.Authority.Offers(v.r.Context(), m, reference)
}

func (v *visit) offerLine(o api.Offer, zone *time.Location) offerLine {
	l := offerLine{Offer: o.Offer, Expires: v.at(o.ExpiresAt, zone)}
	if d, err := document.ParseConsent(o.Document); err == nil {
		l.Title, l.Client, l.Rhythm = theirs(d.Client, d.Title), d.Client, rhythm(d.Schedule)
	}
	return l
}

// offerPage is the consent page: everything that a yes binds, in the order of its parts.
type offerPage struct {
	Offer, Digest string
	State         string
	terms
	Fires    []moment
	Clocks   string // a change of clocks before the last of them
	Closed   closed
	AnswerBy moment
}

// closed is why nothing can be agreed to now; the zero value is that it can.
type closed struct {
	Is  bool
	Why string
}

// terms are a consent document in the words of the page.
type terms struct {
	Title        foreign
	Client, Role string
	RoleRevision int64
	Rhythm       string
	Grants       []grant
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

type verb struct {
	Does   string
	Most   string
	Asks   string
	Except []foreign // keys that need no question
}

func (v *visit) termsOf(d document.Consent, zone *time.Location) terms {
	t := terms{Title: theirs(d.Client, d.Title), Client: d.Client, Role: d.WorkloadRole, RoleRevision: d.RoleRevision, Rhythm: rhythm(d.Schedule),
		Grants: grantsOf(d), Limits: limitsOf(d), More: more(d), From: v.at(d.NotBefore.Time(), zone), Until: v.at(d.Expires.Time(), zone),
		UntilDay: day(d.Expires.Time(), zone), Lasts: lasting(d.Expires.Time().Sub(d.NotBefore.Time())), Policy: d.Policy, PolicyRev: d.PolicyRevision,
		Task: d.Task, Revision: d.TaskRevision}
	return t
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
		for _, a := range catalogue.Actions(catalogue.Postgres) {
			if catalogue.CheckResource(catalogue.Postgres, out[i].Resource) == nil && !can[i][a.Name] {
				out[i].Cannot = append(out[i].Cannot, a.Title)
			}
		}
	}
	return out
}

func verbOf(g document.ConsentGrant, dial catalogue.Risk) verb {
	o := verb{Does: g.Does, Asks: "It does this by itself."}
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
	window := lasting(time.Duration(d.DecisionWindowS) * time.Second)
	if d.WhenMoreIsNeeded == document.MoreWaits {
		return "The run waits and nothing of it goes on. You are asked on the page Decisions, and told where you receive notices. Without your answer it ends when its longest time is over."
	}
	return "The run waits for up to " + window + ". You are asked on the page Decisions, and told where you receive notices. Without your answer it stops then."
}

// clocks says when clocks change between now and the last of the times shown.
func clocks(d timetable.Document, from time.Time, fires []time.Time, zone *time.Location) string {
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

// gate says whether a yes can be taken now, from this replica's copy of the decision; the verb decides.
func (c *Console) gate() closed {
	d := c.Authority.Gate.Known()
	if d.Open {
		return closed{}
	}
	why := "Not everything that must be well has said so yet."
	switch {
	case d.Held:
		why = "An operator is holding everything closed."
	case d.Family != "":
		why = "This is not well right now: " + d.Family + "."
	}
	return closed{true, why}
}

func (c *Console) offer(v *visit) error {
	all, err := v.offers(v.reference())
	if err != nil {
		return err
	}
	o := all[0]
	d, err := document.ParseConsent(o.Document)
	if err != nil {
		return fmt.Errorf("a stored consent document does not parse: %w", err)
	}
	zone := v.in(d.Schedule)
	p := offerPage{Offer: o.Offer, Digest: o.Digest, State: o.State, terms: v.termsOf(d, zone), Clocks: clocks(d.Schedule, v.now, o.NextFires, zone),
		Closed: c.gate(), AnswerBy: v.at(o.ExpiresAt, zone)}
	for _, at := range o.NextFires {
		p.Fires = append(p.Fires, v.at(at, zone))
	}
	return v.show(sheet{Name: "offer", Title: "May this run?", Here: "tasks", Main: p}, zone)
}

// consent records a yes to exactly what was shown, and shows its receipt.
func (c *Console) consent(v *visit) error {
	answer, err := v.answer()
	if err != nil {
		return err
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	given, err := c.Authority.GiveConsent(v.r.Context(), m, v.reference(), answer)
	if err != nil {
		return err
	}
	return v.see("/receipts/%s", given.Consent)
}

// decline records a no. It costs as much as a yes: one click.
func (c *Console) decline(v *visit) error {
	answer, err := v.answer()
	if err != nil {
		return err
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	if err := c.Authority.Decline(v.r.Context(), m, v.reference(), answer); err != nil {
		return err
	}
	v.tell("declined")
	return v.see("/")
}
