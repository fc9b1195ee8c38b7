package console

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// lessPage is the form on which a member allows less than was offered. What is
// left empty stays as offered, but for the optional grants: nothing is ticked.
type lessPage struct {
	Offer, Digest string
	Title         foreign
	Optional      []tick
	Amounts       []input
	Limits        []input
	Until         input
	Dials         []option
	Silences      []option
	Wrong         []wrong
	Closed        closed
}

type tick struct {
	Index int
	verb
	Resource, Guard string
	Ticked          bool
}

// input is one field. Its hint says what was offered.
type input struct {
	Name, Label, Hint, Unit string
	Value, Wrong            string
	Min, Max                string // of a date
}

// option is one entry of a choice.
type option struct {
	Value, Text string
	Chosen      bool
}

// wrong is what is wrong with one field, with a way to it.
type wrong struct{ Field, Text string }

// less shows the form.
func (c *Console) less(v *visit) error {
	o, most, err := v.choosing()
	if err != nil {
		return err
	}
	return v.showLess(o, most, url.Values{}, nil, 0)
}

// choosing is the offer that a choice is made of, with its widest document.
func (v *visit) choosing() (o api.Offer, most document.Consent, err error) {
	all, err := v.offers(v.reference())
	if err != nil {
		return o, most, err
	}
	o = all[0]
	if o.State != "open" {
		return o, most, api.Refuse(api.OfferEnded)
	}
	widest := o.Most
	if len(widest) == 0 {
		widest = o.Document
	}
	if most, err = document.ParseConsent(widest); err != nil {
		return o, most, fmt.Errorf("a stored consent document does not parse: %w", err)
	}
	return o, most, nil
}

// choose keeps what was chosen and shows it before the yes.
func (c *Console) choose(v *visit) error {
	f, err := v.form("digest", "until", "dial", "silence")
	if err != nil {
		return err
	}
	o, most, err := v.choosing()
	if err != nil {
		return err
	}
	if f.Get("digest") != o.Digest {
		return api.Refuse(api.OfferChanged)
	}
	choice, wrongs := choiceOf(f, most, v.in(most.Schedule))
	if len(wrongs) > 0 {
		return v.showLess(o, most, f, wrongs, api.InvalidDocument.Status())
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	var r *api.Refusal
	if _, err = c.Authority.Narrow(v.r.Context(), m, o.Offer, choice); errors.As(err, &r) && r.Code == api.NotOffered {
		return v.showLess(o, most, f, []wrong{{"form", "This cannot be chosen: what is left of the offer could never run."}}, r.Code.Status())
	}
	if err != nil {
		return err
	}
	return v.see("/offers/%s/review", o.Offer)
}

// bound is one limit that a member can lower.
type bound struct {
	name, label string
	offered     int64
	into        func(*api.Limits) *int64
	unit        string // minutes, a currency, or nothing
}

func boundsOf(d document.Consent) (out []bound) {
	l := d.Limits
	for _, b := range []bound{
		{"runtime", "Longest run", l.RuntimeS, func(l *api.Limits) *int64 { return &l.RuntimeS }, "minutes"},
		{"effects", "Changes in a run", l.Effects, func(l *api.Limits) *int64 { return &l.Effects }, ""},
		{"effects-day", "Changes in a day", l.EffectsDay, func(l *api.Limits) *int64 { return &l.EffectsDay }, ""},
		{"effects-month", "Changes in a month", l.EffectsMonth, func(l *api.Limits) *int64 { return &l.EffectsMonth }, ""},
		{"spend", "Spend in a run", l.Spend, func(l *api.Limits) *int64 { return &l.Spend }, l.Currency},
		{"spend-day", "Spend in a day", l.SpendDay, func(l *api.Limits) *int64 { return &l.SpendDay }, l.Currency},
		{"spend-month", "Spend in a month", l.SpendMonth, func(l *api.Limits) *int64 { return &l.SpendMonth }, l.Currency},
	} {
		if b.offered > 0 || strings.HasPrefix(b.name, "effects") || strings.HasPrefix(b.name, "spend-") && l.Spend > 0 {
			out = append(out, b)
		}
	}
	return out
}

// hint says what was offered.
func (b bound) hint() string {
	switch {
	case b.offered == 0:
		return "As offered: no such limit."
	case b.unit == "minutes":
		return "As offered: " + lasting(time.Duration(b.offered)*time.Second) + "."
	case b.unit != "":
		return "As offered: " + money(b.offered, b.unit) + "."
	}
	return "As offered: " + fmt.Sprint(b.offered) + "."
}

// read reads a field in the bound's unit.
func (b bound) read(text string) (int64, bool) {
	var n int64
	var ok bool
	switch b.unit {
	case "minutes":
		n, ok = whole(text)
		n *= 60
	case "":
		n, ok = whole(text)
	default:
		n, ok = minor(text, b.unit)
	}
	return n, ok && n > 0 && (b.offered == 0 || n <= b.offered)
}

func whole(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 32)
	return n, err == nil
}

// minor reads money as people write it.
func minor(text, currency string) (int64, bool) {
	text = strings.ReplaceAll(text, ",", ".")
	units, part, found := strings.Cut(text, ".")
	digits := places(currency)
	if units == "" || units == "-" || found && (part == "" || len(part) > digits) {
		return 0, false
	}
	n, err := strconv.ParseInt(units+part+strings.Repeat("0", digits-len(part)), 10, 64)
	return n, err == nil
}

// choiceOf reads the form. What is wrong is said of each field.
func choiceOf(f url.Values, most document.Consent, zone *time.Location) (c api.Choice, out []wrong) {
	bad := func(field, format string, args ...any) { out = append(out, wrong{field, fmt.Sprintf(format, args...)}) }
	for _, text := range f["grant"] {
		i, err := strconv.Atoi(text)
		if err != nil || i < 0 || i >= len(most.Grants) {
			bad("form", "One of the ticks names nothing that was offered.")
			continue
		}
		c.Ticked = append(c.Ticked, i)
	}
	for i, g := range most.Grants {
		name := fmt.Sprintf("amount-%d", i)
		text := strings.TrimSpace(f.Get(name))
		if text == "" || g.MaxAmount == 0 {
			continue
		}
		n, ok := minor(text, g.Currency)
		if !ok || n < 1 || n > g.MaxAmount {
			bad(name, "%s: write an amount of at most %s, or nothing.", g.Does, money(g.MaxAmount, g.Currency))
		}
		c.Amounts = append(c.Amounts, api.Amount{Grant: i, Most: n})
	}
	for _, b := range boundsOf(most) {
		text := strings.TrimSpace(f.Get(b.name))
		if text == "" {
			continue
		}
		n, ok := b.read(text)
		if !ok {
			bad(b.name, "%s: write a number, no more than was offered, or nothing.", b.label)
		}
		*b.into(&c.Limits) = n
	}
	if text := f.Get("until"); text != "" {
		until, err := time.ParseInLocation(time.DateOnly, text, zone)
		if until = until.AddDate(0, 0, 1); err != nil || until.Before(most.NotBefore.Time()) || until.AddDate(0, 0, -1).After(most.Expires.Time()) {
			bad("until", "Last day: write a day no later than %s.", most.Expires.Time().In(zone).Format("2 January 2006"))
		} else if until.Before(most.Expires.Time()) {
			c.ExpiresAt = until
		}
	}
	c.Dial, c.WhenMoreIsNeeded = f.Get("dial"), f.Get("silence")
	return c, out
}

// dials are how much it may do by itself, least first.
var dials = []option{
	{"none", "everything, also before it only reads", false}, {"read", "every change", false}, {"low", "every change of high risk", false}, {"high", "nothing", false},
}

func (v *visit) showLess(o api.Offer, most document.Consent, f url.Values, wrongs []wrong, status int) error {
	zone := v.in(most.Schedule)
	p := lessPage{Offer: o.Offer, Digest: o.Digest, Title: theirs(most.Client, most.Title), Wrong: wrongs, Closed: v.c.gate()}
	said := map[string]string{}
	for _, w := range wrongs {
		said[w.Field] = w.Text
	}
	field := func(name, label, hint, unit string) input {
		return input{Name: name, Label: label, Hint: hint, Unit: unit, Value: short(f.Get(name), 40), Wrong: said[name]}
	}
	ticked := map[string]bool{}
	for _, i := range f["grant"] {
		ticked[i] = true
	}
	for i, g := range most.Grants {
		if g.Optional {
			p.Optional = append(p.Optional, tick{Index: i, verb: verbOf(g, most.Dial), Resource: g.Resource, Guard: g.Guard, Ticked: ticked[fmt.Sprint(i)]})
		}
		if g.MaxAmount > 0 {
			p.Amounts = append(p.Amounts, field(fmt.Sprintf("amount-%d", i), g.Does+" — the most each time", "As offered: "+money(g.MaxAmount, g.Currency)+".", g.Currency))
		}
	}
	for _, b := range boundsOf(most) {
		p.Limits = append(p.Limits, field(b.name, b.label, b.hint(), b.unit))
	}
	p.Until = field("until", "Last day", "As offered: until "+day(most.Expires.Time(), zone)+". With a day, it ends with that day.", "")
	p.Until.Min, p.Until.Max = v.now.In(zone).Format(time.DateOnly), most.Expires.Time().In(zone).Format(time.DateOnly)
	p.Dials = dialsUpTo(most.Dial, f.Get("dial"))
	p.Silences = []option{{"", "As offered: " + silences[most.WhenMoreIsNeeded], false}, {document.MoreStops, "After " + lasting(time.Duration(most.DecisionWindowS)*time.Second) + " " + silences["stop"], f.Get("silence") == "stop"},
		{document.MoreWaits, upper(silences["wait"]), f.Get("silence") == "wait"}}
	return v.show(sheet{Name: "less", Title: "Allow less", Here: "tasks", Status: status, Main: p}, zone)
}

// dialsUpTo are the dials up to the offered one, which stands first.
func dialsUpTo(offered catalogue.Risk, chosen string) (out []option) {
	for _, d := range dials {
		r, err := catalogue.ParseRisk(d.Value)
		if err != nil || r > offered {
			continue
		}
		if r == offered {
			return append([]option{{"", "As offered: " + d.Text, false}}, out...)
		}
		d.Chosen = d.Value == chosen
		d.Text = upper(d.Text)
		out = append(out, d)
	}
	return out
}
