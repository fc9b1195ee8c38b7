package console

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
)

// cards are the member's decisions; one only when reference is given.
func (v *visit) cards(reference string) ([]api.OwnerDecision, error) {
	m, err := v.actor()
	if err != nil {
		return nil, err
	}
	return v.c.Authority.Decisions(v.r.Context(), m, reference)
}

// decisionsPage is the inbox: what waits, and what has been decided.
type decisionsPage struct {
	Open, Past []decisionLine
}

type decisionLine struct {
	Decision string
	Task     string
	Title    foreign
	Action   string
	Resource string
	Most     string
	State    state
	Asked    moment
	Expires  moment
	Decided  moment
}

// argued is what a workload wants to do, as it wrote it.
type argued struct {
	Guard      string          `json:"guard"`
	Action     string          `json:"action"`
	Resource   string          `json:"resource"`
	Parameters json.RawMessage `json:"parameters"`
	Amount     int64           `json:"amount"`
	Currency   string          `json:"currency"`
}

func arguedOf(effect []byte) (a argued) {
	_ = json.Unmarshal(effect, &a) // what cannot be read is shown whole, below
	return a
}

func (a argued) most() string {
	if a.Amount == 0 {
		return ""
	}
	return money(a.Amount, a.Currency)
}

// decisionLines are the cards in some states; in all when none is given.
func (v *visit) decisionLines(cards []api.OwnerDecision, zone *time.Location, only string) (out []decisionLine) {
	for _, d := range cards {
		if only != "" && d.State != only {
			continue
		}
		a := arguedOf(d.Effect)
		l := decisionLine{Decision: d.Decision, Task: d.Task, Title: theirs("the operator", d.Title), Action: does(a.Action), Resource: a.Resource, Most: a.most(),
			State: stateOf(decisionStates, d.State), Asked: v.at(d.AskedAt, zone), Expires: v.at(d.ExpiresAt, zone)}
		if d.DecidedAt != nil {
			l.Decided = v.at(*d.DecidedAt, zone)
		}
		out = append(out, l)
	}
	return out
}

func (c *Console) decisions(v *visit) error {
	cards, err := v.cards("")
	if err != nil {
		return err
	}
	zone := v.in()
	p := decisionsPage{}
	for _, l := range v.decisionLines(cards, zone, "") {
		if l.State == decisionStates["pending"] {
			p.Open = append(p.Open, l)
		} else {
			p.Past = append(p.Past, l)
		}
	}
	return v.show(sheet{Name: "decisions", Title: "Decisions", Here: "decisions", Every: 5, Main: p}, zone)
}

// decisionPage is one card: the exact effect, and what happens without an answer.
type decisionPage struct {
	decisionLine
	Run       string
	Digest    string
	Pending   bool
	Risk      string
	Silence   string
	Guard     string
	Arguments foreign
	Closed    closed
}

func (c *Console) decision(v *visit) error {
	cards, err := v.cards(v.reference())
	if err != nil {
		return err
	}
	d := cards[0]
	zone, err := v.zoneOf(d.Task)
	if err != nil {
		return err
	}
	a := arguedOf(d.Effect)
	shown := a.Parameters
	if len(shown) == 0 {
		shown = d.Effect
	}
	p := decisionPage{decisionLine: v.decisionLines(cards[:1], zone, "")[0], Run: d.Run, Digest: d.Digest, Pending: d.State == "pending", Risk: d.Risk,
		Silence: silences[d.Silence], Guard: a.Guard, Arguments: data("the workload", shown), Closed: c.gate()}
	return v.show(sheet{Name: "decision", Title: "A decision", Here: "decisions", Every: 5, Main: p}, zone)
}

var silences = map[string]string{
	"wait": "the run goes on waiting, and ends when its longest time is over",
	"stop": "the run stops",
}

// approve is a yes to the one effect that was shown, once.
func (c *Console) approve(v *visit) error { return v.decide("approved", c.Authority.Approve) }

// deny is a no. It is always possible.
func (c *Console) deny(v *visit) error { return v.decide("denied", c.Authority.Deny) }

func (v *visit) decide(word string, verb func(context.Context, authority.Actor, string, api.Answer) error) error {
	answer, err := v.answer()
	if err != nil {
		return err
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	if err := verb(v.r.Context(), m, v.reference(), answer); err != nil {
		return err
	}
	v.tell(word)
	return v.see("/decisions/%s", v.reference())
}
