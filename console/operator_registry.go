package console

import (
	"net/url"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// registered are the kinds of the registry, as their pages are named.
var registered = []struct{ Path, Kind, Title string }{
	{"clients", document.KindClient, "Clients"}, {"roles", document.KindRole, "Workload roles"}, {"profiles", document.KindProfile, "Attestation profiles"},
	{"policies", document.KindPolicy, "Policies"}, {"guards", document.KindGuard, "Guards"}, {"reporters", document.KindReporter, "Reporters"}, {"products", document.KindProduct, "Products"},
}

// registryPage lists the newest revision of everything of one kind.
type registryPage struct {
	Kinds   []nav
	Path    string
	Entries []entryLine
	Next    string
}

type entryLine struct {
	Name, Path string
	Revision   int64
	State      state
	Entered    moment
	Digest     string
	Document   foreign
	Newest     bool
}

var entryStates = map[string]state{"active": {"yes", "In use", "good"}, "retired": {"no", "Retired", "calm"}}

// kind is that of the page's path.
func (v *visit) kind() (kind, title string, all []nav, err error) {
	for _, k := range registered {
		here := k.Path == v.r.PathValue("kind")
		if here {
			kind, title = k.Kind, k.Title
		}
		all = append(all, nav{pathOperate + "/registry/" + k.Path, k.Title, here})
	}
	if kind == "" {
		err = api.Refuse(api.NotFound)
	}
	return kind, title, all, err
}

func (c *Console) registry(v *visit) error {
	kind, title, kinds, err := v.kind()
	if err != nil {
		return err
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	page, err := c.Authority.Registry(v.r.Context(), m, kind, v.cursor())
	if err != nil {
		return err
	}
	p := registryPage{Kinds: kinds, Path: pathOperate + "/registry/" + v.r.PathValue("kind"), Next: url.QueryEscape(page.Next), Entries: v.entryLines(page.Items)}
	return v.operate(sheet{Name: "registry", Title: title, Main: p}, "/registry/clients", v.in())
}

// entry is every revision of one registered thing, newest first.
func (c *Console) entry(v *visit) error {
	kind, title, kinds, err := v.kind()
	if err != nil {
		return err
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	name := v.r.PathValue("name")
	page, err := c.Authority.Entry(v.r.Context(), m, kind, name, v.cursor())
	if err != nil {
		return err
	}
	p := registryPage{Kinds: kinds, Path: pathOperate + "/registry/" + v.r.PathValue("kind") + "/" + url.PathEscape(name), Next: url.QueryEscape(page.Next), Entries: v.entryLines(page.Items)}
	return v.operate(sheet{Name: "entry", Title: title + ": " + short(name, 64), Main: p}, "/registry/clients", v.in())
}

func (v *visit) entryLines(all []api.Entry) (out []entryLine) {
	for i, e := range all {
		out = append(out, entryLine{Name: e.Name, Path: url.PathEscape(e.Name), Revision: e.Revision, State: stateOf(entryStates, e.State), Entered: v.at(e.EnteredAt, v.in()), Digest: e.Digest,
			Document: data("an operator", e.Document), Newest: i == 0})
	}
	return out
}

type requirementsPage struct {
	Generations []generation
	Next        string
}

// generation is what must be good, since when.
type generation struct {
	Number                 int64
	Since                  moment
	State                  state
	Closed, Reports, Valid string
	Rounds                 int64
	Document               *foreign
}

func (c *Console) requirements(v *visit) error {
	m, err := v.actor()
	if err != nil {
		return err
	}
	page, err := c.Authority.Requirements(v.r.Context(), m, v.cursor())
	if err != nil {
		return err
	}
	zone, p := v.in(), requirementsPage{Next: url.QueryEscape(page.Next)}
	for _, r := range page.Items {
		g := generation{Number: r.Generation, Since: v.at(r.Since, zone), State: state{"no", "Before", "calm"}, Closed: lasting(time.Duration(r.ClosedMS) * time.Millisecond), Reports: lasting(time.Duration(r.ReportTTLMS) * time.Millisecond),
			Valid: lasting(time.Duration(r.ValidMS) * time.Millisecond), Rounds: r.Rounds}
		if r.InForce {
			g.State = state{"yes", "In force", "good"}
		}
		if len(r.Document) > 0 {
			d := data("an operator", r.Document)
			g.Document = &d
		}
		p.Generations = append(p.Generations, g)
	}
	return v.operate(sheet{Name: "requirements", Title: "Requirements", Main: p}, "/requirements", zone)
}
