package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
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
		showGrant(b, g, c.Dial)
	}
	b.WriteString("  cannot  anything else, or anything anywhere else\n")
	showOptional(b, o)

	showLimits(b, c)
	showMore(b, c)

	fmt.Fprintf(b, "\nFrom and until\n  from   %s (%s)\n  until  %s (%s)\n", at(c.NotBefore.Time(), zone), relative(c.NotBefore.Time().Sub(now)), until, relative(c.Expires.Time().Sub(now)))

	fmt.Fprintf(b, "\nUnder policy %s, revision %d\n", c.Policy, c.PolicyRevision)
	fmt.Fprintf(b, "\nHow to stop it\n  nightwarrant task revoke %s\n  It takes effect before the command returns.\n", c.Task)
	showAnswers(b, o, d, c.Expires.Time().In(zone).Format("2 January 2006"))
}

// showGrant says what a grant does, where, and whether its owner is asked.
func showGrant(b *strings.Builder, g document.ConsentGrant, dial catalogue.Risk) {
	where := "on " + g.Resource + ", at "
	if strings.Contains(g.Resource, "://") {
		where = "sent to " + g.Resource + ", by "
	}
	fmt.Fprintf(b, "  can     %s\n          %s%s (%s, risk %s%s)\n", g.Does, where, g.Guard, g.Action, g.Risk, most(g))
	switch {
	case g.Risk <= dial:
		b.WriteString("          without asking you\n")
	case len(g.PreApproved) > 0:
		b.WriteString("          asks you each time, but for what follows\n")
	default:
		b.WriteString("          asks you each time\n")
	}
	for _, key := range g.PreApproved {
		fmt.Fprintf(b, "          without asking you each time: %s\n", inkOnly(string(key)))
	}
}

// showLimits says how much a run may do, the task in a day and a month, and all
// tasks of the member.
func showLimits(b *strings.Builder, c document.Consent) {
	l := c.Limits
	fmt.Fprintf(b, "\nLimits of each run\n  %s, the same one %s\n", counted(l.Effects, "change", "changes"), counted(l.Repeats, "time", "times"))
	fmt.Fprintf(b, "  %s, each a request for one change; %s\n", counted(l.Steps, "step", "steps"), span(time.Duration(l.RuntimeS)*time.Second))
	if l.Spend == 0 {
		b.WriteString("  spends nothing\n")
	} else {
		fmt.Fprintf(b, "  spends at most %s\n", money(l.Spend, l.Currency))
	}
	task := []string{window("day", l.EffectsDay, l.SpendDay, l.Currency), window("month", l.EffectsMonth, l.SpendMonth, l.Currency)}
	showWindows(b, "Limits of all its runs together", task)
	showWindows(b, "Limits of all your tasks together", []string{window("day", 0, c.MemberSpendDay, l.Currency), window("month", 0, c.MemberSpendMonth, l.Currency)})
}

func showWindows(b *strings.Builder, title string, windows []string) {
	if lines := strings.Join(windows, ""); lines != "" {
		fmt.Fprintf(b, "\n%s, by the calendar of UTC\n%s", title, lines)
	}
}

// window is what may happen in a day or a month, or nothing where nothing bounds it.
func window(name string, effects, spend int64, currency string) string {
	var bounds []string
	if effects > 0 {
		bounds = append(bounds, counted(effects, "change", "changes"))
	}
	if spend > 0 {
		bounds = append(bounds, "spends at most "+money(spend, currency))
	}
	if len(bounds) == 0 {
		return ""
	}
	return fmt.Sprintf("  in a %-5s  %s\n", name, strings.Join(bounds, "; "))
}

// showMore says what happens when a run needs more than its dial, its grants or
// its limits allow.
func showMore(b *strings.Builder, c document.Consent) {
	b.WriteString("\nWhen it needs more\n")
	silence := "the run stops after " + span(time.Duration(c.DecisionWindowS)*time.Second)
	if c.WhenMoreIsNeeded == document.MoreWaits {
		silence = "the run waits, until there is no time left for it,"
	}
	if slices.ContainsFunc(c.Grants, func(g document.ConsentGrant) bool { return g.Risk > c.Dial }) {
		fmt.Fprintf(b, "  Its approval dial is %q: where a risk is higher the run waits and you are asked, about one exact change at a time.\n  Nobody else can answer. Without an answer %s and does not count as a success.\n", c.Dial, silence)
	} else {
		fmt.Fprintf(b, "  Its approval dial is %q: nothing above asks you.\n", c.Dial)
	}
	b.WriteString("  What stands nowhere above is refused, and nobody is asked.\n  At a limit the run is stopped, and does not count as a success. No answer of yours raises a limit.\n")
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
	return ", at most " + money(g.MaxAmount, g.Currency) + " each"
}

// digits is how many digits a currency's minor units have after the point where
// these are not two (ISO 4217).
func digits(currency string) int {
	switch currency {
	case "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF", "XPF":
		return 0
	case "BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND":
		return 3
	case "CLF", "UYW":
		return 4
	}
	return 2
}

// money is an amount of minor units as people write it, such as 12.50 EUR.
func money(minor int64, currency string) string {
	text := fmt.Sprintf("%0*d", digits(currency)+1, minor)
	if point := len(text) - digits(currency); point < len(text) {
		text = text[:point] + "." + text[point:]
	}
	return text + " " + currency
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
