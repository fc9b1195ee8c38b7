package console

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// ambiguousPage is every effect of which nobody knows whether it happened.
type ambiguousPage struct {
	Open, Found []unclear
	Next        string
	Cursor      string
}

// unclear is one of them, with what is known.
type unclear struct {
	Effect, Run, Task string
	Does              string
	Resource, Guard   string
	Admitted, Sent    moment
	Told              string
	Late              string
	Arguments, Shows  *foreign
	Finding           state
	Shown             string // digest of all this, which the finding carries
}

func (v *visit) ambiguousEffects(cursor string) (api.Page[api.AmbiguousEffect], error) {
	m, err := v.actor()
	if err != nil {
		return api.Page[api.AmbiguousEffect]{}, err
	}
	return v.c.Authority.Ambiguous(v.r.Context(), m, cursor)
}

func (c *Console) ambiguous(v *visit) error {
	cursor := v.r.URL.Query().Get("cursor")
	page, err := v.ambiguousEffects(cursor)
	if err != nil {
		return err
	}
	zone := v.in()
	p := ambiguousPage{Next: page.Next, Cursor: cursor}
	for _, e := range page.Items {
		if u := v.unclear(e, zone); e.Finding == "" {
			p.Open = append(p.Open, u)
		} else {
			p.Found = append(p.Found, u)
		}
	}
	return v.show(sheet{Name: "ambiguous", Title: "Unclear effects", Here: "ambiguous", Main: p}, zone)
}

// answered says what the guard had told of it.
var answered = map[string]string{
	"":                     "Its guard has told nothing.",
	api.AnsweredNothing:    "Its guard stopped before an answer came.",
	api.AnsweredTimeout:    "No answer came in time.",
	api.AnsweredConnection: "The connection broke before an answer came.",
	api.AnsweredStatus:     "The destination’s answer says neither yes nor no.",
	api.AnsweredMalformed:  "The destination’s answer cannot be read.",
	api.AnsweredUnknown:    "Its guard does not know.",
}

func (v *visit) unclear(e api.AmbiguousEffect, zone *time.Location) unclear {
	u := unclear{Effect: e.Effect, Run: e.Run, Task: e.Task, Does: does(e.Action), Resource: e.Resource, Guard: e.Guard, Admitted: v.at(e.AdmittedAt, zone),
		Told: answered[e.Answered], Shown: shownOf(e)}
	if u.Told == "" {
		u.Told = answered[api.AnsweredUnknown]
	}
	if e.Status != 0 {
		u.Told += fmt.Sprintf(" Its status was %d.", e.Status)
	}
	if e.Late != "" {
		u.Late = outcomeOf(e.Late).Word
	}
	if e.SentAt != nil {
		u.Sent = v.at(*e.SentAt, zone)
	}
	if len(e.Sent) > 0 {
		f := data("the workload", e.Sent)
		u.Arguments = &f
	}
	if len(e.State) > 0 {
		f := data("the destination", e.State)
		u.Shows = &f
	}
	if e.Finding != "" {
		u.Finding = outcomeOf(e.Finding)
	}
	return u
}

// shownOf is a digest of everything that a finding is about.
func shownOf(e api.AmbiguousEffect) string {
	text, err := json.Marshal(e)
	if err != nil {
		return ""
	}
	d := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(d[:])
}

// finding records what the member found out: a new entry, never a replay. What
// has become known since the page was shown must be looked at first.
func (c *Console) finding(v *visit) error {
	f, err := v.form("finding", "shown", "cursor")
	if err != nil {
		return err
	}
	page, err := v.ambiguousEffects(f.Get("cursor"))
	if err != nil {
		return err
	}
	for _, e := range page.Items {
		if e.Effect != v.reference() {
			continue
		}
		if shownOf(e) != f.Get("shown") {
			return api.Refuse(api.Stale)
		}
		m, err := v.actor()
		if err != nil {
			return err
		}
		if err := c.Authority.RecordFinding(v.r.Context(), m, api.Finding{Effect: e.Effect, Finding: f.Get("finding")}); err != nil {
			return err
		}
		v.tell("finding")
		return v.see("/ambiguous")
	}
	return api.Refuse(api.NotFound)
}
