// Package console is the pages of members and operators: server-rendered, whole
// without JavaScript, and plain about what may happen. It decides nothing and
// speaks no SQL: every page calls the verbs of the authority that the API calls
// too, as the actor whom the door let in.
package console

import (
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Door knows who asks.
type Door interface {
	// Middleware lets requests with a session pass and answers the others.
	Middleware(next http.Handler) http.Handler
	// Actor is whose request it is. A verb spends its actor, so that each call of one needs another.
	Actor(r *http.Request) (authority.Actor, error)
}

// Config is what the console is made of. All but Now are required.
type Config struct {
	Authority *authority.Authority
	Door      Door
	Origin    string // of the pages, as browsers see it
	Log       *slog.Logger
	Now       func() time.Time // what times are relative to; decides nothing
}

// Console answers browsers. It is safe for concurrent use and remembers nothing.
type Console struct {
	Config
	secure  bool // behind TLS
	sheets  sheets
	reports atomic.Int64
}

// New checks the configuration.
func New(c Config) (*Console, error) {
	origin, err := url.Parse(c.Origin)
	switch {
	case err != nil || origin.Host == "" || c.Origin != origin.Scheme+"://"+origin.Host:
		return nil, errors.New("console: the origin must be a scheme and a host, such as https://warrants.example")
	case c.Authority == nil || c.Door == nil || c.Log == nil:
		return nil, errors.New("console: an authority, a door and a log are needed")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	sheets, err := parseSheets()
	return &Console{Config: c, secure: origin.Scheme == "https", sheets: sheets}, err
}

// Reported is how many violations of the content security policy browsers have reported.
func (c *Console) Reported() int64 { return c.reports.Load() }

// Who a page is for.
const (
	Anybody  = ""
	Member   = "member"
	Auditor  = "auditor"
	Operator = "operator"
)

// Route is one entry of the console. Gated ones apply the readiness decision.
type Route struct {
	Method, Path string
	Gated        bool
	Role         string
	handle       page
}

// page answers one request. What it returns becomes a page that says so.
type page func(*visit) error

// Routes lists every entry.
func (c *Console) Routes() []Route {
	return slices.Concat(c.memberRoutes(), c.operatorRoutes(), c.authRoutes())
}

func (c *Console) memberRoutes() []Route {
	return []Route{
		{"GET", "/{$}", false, Member, c.tasks},
		{"GET", "/offers/{reference}", false, Member, c.offer},
		{"POST", "/offers/{reference}/consent", true, Member, c.consent},
		{"POST", "/offers/{reference}/decline", false, Member, c.decline},
		{"GET", "/offers/{reference}/less", false, Member, c.less},
		{"POST", "/offers/{reference}/less", true, Member, c.choose},
		{"GET", "/offers/{reference}/review", false, Member, c.review},
		{"GET", "/decisions", false, Member, c.decisions},
		{"GET", "/decisions/{reference}", false, Member, c.decision},
		{"POST", "/decisions/{reference}/approve", true, Member, c.approve},
		{"POST", "/decisions/{reference}/deny", false, Member, c.deny},
		{"GET", "/tasks/{reference}", false, Member, c.task},
		{"POST", "/tasks/{reference}/revoke", false, Member, c.revoke},
		{"GET", "/runs", false, Member, c.runs},
		{"GET", "/runs/{reference}", false, Member, c.run},
		{"GET", "/runs/{reference}/export", false, Member, c.export},
		{"GET", "/runs/{reference}/receipt", false, Member, c.runReceipt},
		{"GET", "/ambiguous", false, Member, c.ambiguous},
		{"POST", "/ambiguous/{reference}", false, Member, c.finding},
		{"GET", "/acting", false, Member, c.acting},
		{"GET", "/receipts/{reference}", false, Member, c.receipt},
		{"GET", "/settings", false, Member, c.settings},
		{"POST", "/settings/zone", false, Member, c.setZone},
		{"POST", "/settings/mail", false, Member, c.setMail},
		{"GET", "/static/{file}", false, Anybody, c.static},
		{"POST", pathReports, false, Anybody, c.report},
	}
}

// Handler answers all of Routes, and everything else with a page that says that there is nothing.
func (c *Console) Handler() http.Handler {
	methods := map[string][]Route{}
	for _, r := range c.Routes() {
		methods[r.Path] = append(methods[r.Path], r)
	}
	mux := http.NewServeMux()
	for path, of := range methods {
		mux.Handle(path, c.serve(of))
	}
	mux.Handle("/", c.wrap("other", func(v *visit) error { return api.Refuse(api.NotFound) }))
	return http.NewCrossOriginProtection().Handler(mux)
}

// serve answers the methods of one path; who may is looked at for each.
func (c *Console) serve(of []Route) http.Handler {
	by := map[string]http.Handler{}
	for _, r := range of {
		h := c.wrap(r.Path, r.handle)
		if r.Role != Anybody {
			h = c.Door.Middleware(c.wrap(r.Path, only(r.Role, r.handle)))
		}
		by[r.Method] = h
	}
	allow := strings.Join(slices.Sorted(maps.Keys(by)), ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, ok := by[r.Method]
		if !ok {
			w.Header().Set("Allow", allow)
			h = c.wrap("other", func(*visit) error { return api.Refuse(api.MethodNotAllowed) })
		}
		h.ServeHTTP(w, r)
	})
}

// only asks for a role again on every page. Members' pages are for everybody
// whom the door let in: what each may see, the verbs decide.
func only(role string, p page) page {
	if role == Member {
		return p
	}
	return func(v *visit) error {
		m, err := v.actor()
		switch {
		case err != nil:
			return err
		case role == Operator && !m.Operator(), role == Auditor && !m.Auditor():
			return api.Refuse(api.Forbidden)
		}
		return p(v)
	}
}
