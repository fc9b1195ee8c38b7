package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// checkedConsent reads an offer's document and computes its digest: what is
// shown is what a yes would bind (mission A1).
func checkedConsent(o api.Offer) (document.Consent, error) {
	c, err := document.ParseConsent(o.Document)
	if err != nil {
		return c, fmt.Errorf("the offer's document is not one that this program knows: %w", err)
	}
	digest, err := c.Digest()
	if err != nil {
		return c, err
	}
	if digest.String() != o.Digest {
		return c, fmt.Errorf("the offer names another digest than its document has: do not answer it, and tell an operator")
	}
	return c, nil
}

// showOffer says plainly what may happen, from the top: one sentence, when, who,
// what, limits, until when, how to stop it, and how to answer.
func showOffer(b *strings.Builder, o api.Offer, c document.Consent, d api.Decision, now time.Time) {
	zone := time.UTC
	if s, err := timetable.Parse(c.Schedule); err == nil {
		zone = s.Zone()
	}
	until := at(c.Expires.Time(), zone)
	fmt.Fprintf(b, "%s runs “%s” %s, as you, until %s.\n", c.Client, c.Title, rhythm(c.Schedule), until)

	fmt.Fprintf(b, "\nWhen, in %s\n", zone)
	showFires(b, o.NextFires, zone, now)

	fmt.Fprintf(b, "\nWho acts\n  %s, in its workload role %s, revision %d\n", c.Client, c.WorkloadRole, c.RoleRevision)

	b.WriteString("\nWhat it may do\n")
	for _, g := range c.Grants {
		fmt.Fprintf(b, "  can     %s on %s at %s (risk %s%s)\n", g.Action, g.Resource, g.Guard, g.Risk, most(g))
	}
	b.WriteString("  cannot  anything else\n")

	fmt.Fprintf(b, "\nLimits of each run\n  %s; %s; only what its approval dial %q allows without asking\n",
		counted(c.Limits.Effects, "change", "changes"), span(time.Duration(c.Limits.RuntimeS)*time.Second), c.Dial)

	showMore(b, c)

	fmt.Fprintf(b, "\nFrom and until\n  from   %s (%s)\n  until  %s (%s)\n", at(c.NotBefore.Time(), zone), relative(c.NotBefore.Time().Sub(now)), until, relative(c.Expires.Time().Sub(now)))

	fmt.Fprintf(b, "\nUnder policy %s, revision %d\n", c.Policy, c.PolicyRevision)
	fmt.Fprintf(b, "\nHow to stop it\n  nightwarrant task revoke %s\n  It takes effect before the command returns.\n", c.Task)
	showAnswers(b, o, d, c.Expires.Time().In(zone).Format("2 January 2006"))
}

// showMore says what happens when a run needs more than its dial allows.
func showMore(b *strings.Builder, c document.Consent) {
	silence := "the run stops after " + span(time.Duration(c.DecisionWindowS)*time.Second) + " and does not count as a success"
	if c.WhenMoreIsNeeded == document.MoreWaits {
		silence = "the run waits, until there is no time left for it, and does not count as a success"
	}
	fmt.Fprintf(b, "\nWhen it needs more\n  The run waits and you are asked, about one exact change at a time. Nobody else can answer.\n  Without an answer %s.\n", silence)
}

func showFires(b *strings.Builder, fires []time.Time, zone *time.Location, now time.Time) {
	if len(fires) == 0 {
		b.WriteString("  never again\n")
	}
	for i, f := range fires {
		note := ""
		if i > 0 && offset(f, zone) != offset(fires[i-1], zone) {
			note = "  (the clock changes before this one)"
		}
		fmt.Fprintf(b, "  %s (%s)%s\n", at(f, zone), relative(f.Sub(now)), note)
	}
}

func offset(t time.Time, zone *time.Location) int {
	_, seconds := t.In(zone).Zone()
	return seconds
}

// showAnswers gives both answers the same room; while the gate is closed a yes is not taken.
func showAnswers(b *strings.Builder, o api.Offer, d api.Decision, until string) {
	switch {
	case o.State != "open":
		fmt.Fprintf(b, "\nThis offer is %s; there is nothing to answer.\n", oneLine(o.State, 20))
		return
	case !d.Open:
		fmt.Fprintf(b, "\nAdmission is closed now (%s): a yes is not taken until it is open again.\n", oneLine(strings.Join(d.Reasons, "; "), 120))
	}
	fmt.Fprintf(b, "\nYour answer, to exactly this\n  Allow until %s\n    nightwarrant offer accept %s --digest %s\n  Do not allow\n    nightwarrant offer decline %s --digest %s\n",
		until, o.Offer, o.Digest, o.Offer, o.Digest)
}

// rhythm says when a schedule fires in words, as far as there are any.
func rhythm(s timetable.Document) string {
	switch {
	case s.At != 0:
		return "once"
	case s.EveryS != 0:
		return "every " + span(time.Duration(s.EveryS)*time.Second)
	}
	return fmt.Sprintf("at the times of the cron line %q", s.Cron)
}

func most(g document.ConsentGrant) string {
	if g.MaxAmount == 0 {
		return ""
	}
	return fmt.Sprintf(", at most %d minor units of %s each", g.MaxAmount, g.Currency)
}

func counted(n int64, one, many string) string {
	if n == 1 {
		return "at most 1 " + one
	}
	return fmt.Sprintf("at most %d %s", n, many)
}

// when is an instant in the reader's own zone.
func when(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05 MST") }

// at is an instant in a schedule's zone.
func at(t time.Time, zone *time.Location) string {
	return t.In(zone).Format("Mon 2 January 2006 15:04:05 MST")
}

// span is a length of time in its two largest units.
func span(d time.Duration) string {
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}}
	var parts []string
	for _, u := range units {
		if n := d / u.size; n > 0 && len(parts) < 2 {
			d -= n * u.size
			plural := "s"
			if n == 1 {
				plural = ""
			}
			parts = append(parts, fmt.Sprintf("%d %s%s", n, u.name, plural))
		} else if len(parts) > 0 {
			break
		}
	}
	if len(parts) == 0 {
		return "0 seconds"
	}
	return strings.Join(parts, " ")
}

func relative(d time.Duration) string {
	switch {
	case d >= time.Second:
		return "in " + span(d)
	case d <= -time.Second:
		return span(-d) + " ago"
	}
	return "now"
}
