package console

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/login"
	"github.com/nightwarrant/nightwarrant/internal/session"
)

// Porter is a door at which people sign in and out.
type Porter interface {
	// Enter sends a browser to sign in, or on to a page of ours.
	Enter(w http.ResponseWriter, r *http.Request, to string) error
	// Arrive lets in who comes back from signing in.
	Arrive(w http.ResponseWriter, r *http.Request) error
	// Leave signs a browser out, or all of its person's.
	Leave(w http.ResponseWriter, r *http.Request, all bool) error
}

const (
	pathLogout    = "/logout"
	pathSignedOut = "/signed-out"
	pathSession   = "/session"
	pathExtend    = pathSession + "/extend"
)

// authRoutes are where people sign in and out, and stay signed in.
func (c *Console) authRoutes() []Route {
	p, ok := c.Door.(Porter)
	if !ok {
		return nil
	}
	return []Route{
		{"GET", session.PathLogin, false, Anybody, func(v *visit) error {
			return v.identified(p.Enter(v.w, v.r, v.r.URL.Query().Get("to")))
		}},
		{"GET", login.PathCallback, false, Anybody, func(v *visit) error { return v.identified(p.Arrive(v.w, v.r)) }},
		{"POST", pathLogout, false, Anybody, func(v *visit) error { return v.leave(p) }},
		{"GET", pathSignedOut, false, Anybody, c.signedOut},
		{"GET", pathSession, false, Member, func(v *visit) error { return v.fragment(v.session()) }},
		{"POST", pathExtend, false, Member, c.extend},
	}
}

// Refuse is the page for whom the door does not let through.
func (c *Console) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	c.wrap(r.URL.Path, func(v *visit) error {
		if r.URL.Path == pathSession && errors.Is(err, session.ErrSignIn) {
			return v.fragment(&sessionPart{Ended: true, To: session.Local(r.URL.Query().Get("to"))})
		}
		return v.identified(err)
	}).ServeHTTP(w, r)
}

// identified says in the words of a page why somebody is not who they should be.
// Other errors are everybody's.
func (v *visit) identified(err error) error {
	var r *api.Refusal
	if errors.Is(err, session.ErrSignIn) || !errors.As(err, &r) {
		return err
	}
	p := refusalPage{Sentence: r.Sentence, Then: "You are not signed in.", Back: session.PathLogin, BackText: "Sign in"}
	switch r.Code {
	case api.InvalidEnvelope, api.UnknownMember:
	case api.AssertionBound:
		p.Sentence = "This sign-in belongs to another browser, or was used before."
	default:
		return err
	}
	v.c.Authority.CountRefusal(r.Code)
	return v.show(sheet{Name: "refusal", Title: "Not signed in", Status: r.Code.Status(), Outside: true, Main: p}, nil)
}

func (v *visit) leave(p Porter) error {
	f, err := v.form()
	if err != nil {
		return err
	}
	if err := p.Leave(v.w, v.r, f.Get("all") != ""); err != nil {
		return err
	}
	return v.see(pathSignedOut)
}

func (c *Console) signedOut(v *visit) error {
	return v.show(sheet{Name: "signed-out", Title: "Signed out", Outside: true}, nil)
}

// extend has put off the end already, as every request of a person does.
func (c *Console) extend(v *visit) error {
	f, err := v.form("to")
	if err != nil {
		return err
	}
	return v.see("%s", session.Local(f.Get("to")))
}

// sessionPart is what a page says of how long its person is signed in.
type sessionPart struct {
	Until moment
	Soon  bool // they must be told
	Last  bool // nothing puts it off
	Ended bool
	To    string // the page, to come back to
}

// Poll is where the part itself is asked for again.
func (p *sessionPart) Poll() string { return pathSession + "?to=" + url.QueryEscape(p.To) }

// session is about the session of this request; nil where none of ours ends.
func (v *visit) session() *sessionPart {
	left, ok := session.LeftOf(v.r)
	if !ok {
		return nil
	}
	p := &sessionPart{Soon: left.Soon(), Last: left.Last(), To: "/"}
	zone := v.zone
	if zone == nil {
		zone = time.UTC
	}
	p.Until = v.at(v.now.Add(left.Idle.Sub(left.Now)), zone)
	switch {
	case v.r.URL.Path == pathSession:
		p.To = session.Local(v.r.URL.Query().Get("to"))
	case v.r.Method == http.MethodGet:
		p.To = session.Local(v.r.URL.RequestURI())
	}
	return p
}

// fragment is the part alone.
func (v *visit) fragment(p *sessionPart) error {
	if p == nil {
		return api.Refuse(api.NotFound)
	}
	var out bytes.Buffer
	if err := v.c.sheets.pages["signed-out"].ExecuteTemplate(&out, "session", p); err != nil {
		return err
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = v.w.Write(out.Bytes()) // the caller may be gone
	return nil
}
