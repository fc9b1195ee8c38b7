package dev

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

const (
	pathAuthorize = "/authorize"
	pathToken     = "/token"
	codeLife      = time.Minute
	maxCodes      = 1000
	maxForm       = 8 << 10
)

// Provider is an issuer at which people sign in with a browser (OpenID Connect
// Core 1.0 §3.1, with PKCE by S256 alone): whoever comes picks who they are.
type Provider struct {
	issuer *Issuer
	people *People

	mu    sync.Mutex
	codes map[string]grant
}

// grant is what a code was given for. It is good once.
type grant struct {
	asked  asked
	person Person
	until  time.Time
}

// asked is an authorization request.
type asked struct{ Client, RedirectURI, State, Nonce, Challenge string }

// NewProvider lets people sign in at the clients that c names.
func NewProvider(i *Issuer, c *People) *Provider {
	return &Provider{issuer: i, people: c, codes: map[string]grant{}}
}

// Handler answers what the issuer answers, and browsers and clients if there is a client.
func (p *Provider) Handler() http.Handler {
	i := *p.issuer
	if len(p.people.Clients) == 0 {
		return i.Handler()
	}
	i.discovery = maps.Clone(i.discovery)
	maps.Copy(i.discovery, map[string]any{"authorization_endpoint": i.url + pathAuthorize, "token_endpoint": i.url + pathToken,
		"response_types_supported": []string{"code"}, "grant_types_supported": []string{"authorization_code"}, "scopes_supported": []string{"openid", "email"},
		"code_challenge_methods_supported": []string{"S256"}, "token_endpoint_auth_methods_supported": []string{"none"},
		"authorization_response_iss_parameter_supported": true})
	mux := i.handler()
	mux.HandleFunc("GET "+pathAuthorize, p.ask)
	mux.HandleFunc("POST "+pathAuthorize, p.answer)
	mux.HandleFunc("POST "+pathToken, p.redeem)
	return mux
}

// read is an authorization request that may be answered at its client. All others are answered here.
func (p *Provider) read(q url.Values) (asked, bool) {
	a := asked{q.Get("client_id"), q.Get("redirect_uri"), q.Get("state"), q.Get("nonce"), q.Get("code_challenge")}
	known := slices.Contains(p.people.Clients, Client{ID: a.Client, RedirectURI: a.RedirectURI})
	return a, known && q.Get("response_type") == "code" && q.Get("code_challenge_method") == "S256" && len(a.Challenge) == 43 && len(q.Encode()) <= maxForm
}

var page = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in (development)</title>
<main><h1>Who are you?</h1>
<p>This identity provider is for development. It asks nobody for a password and must not be reachable by others.</p>
<form method="post">{{range .Fields}}<input type="hidden" name="{{index . 0}}" value="{{index . 1}}">{{end}}
<ul>{{range .People}}<li><button name="person" value="{{.Subject}}">{{.Subject}}{{with .Email}} ({{.}}){{end}}</button></li>{{end}}</ul>
<p><button name="person" value="">Nobody: do not sign in</button></p></form></main></html>
`))

// ask shows the page on which one of the people is picked.
func (p *Provider) ask(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if _, ok := p.read(q); !ok {
		http.Error(w, "not a request of a client that is configured here", http.StatusBadRequest)
		return
	}
	var fields [][2]string
	for name := range q {
		fields = append(fields, [2]string{name, q.Get(name)})
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_ = page.Execute(w, map[string]any{"Fields": fields, "People": p.persons()}) // the caller may be gone
}

// persons are the people, each once: somebody with two clients has two files.
func (p *Provider) persons() (out []Person) {
	for _, one := range p.people.People {
		if !slices.ContainsFunc(out, func(o Person) bool { return o.Subject == one.Subject }) {
			out = append(out, one)
		}
	}
	return out
}

// answer sends the browser back with a code for whom it picked.
func (p *Provider) answer(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		http.Error(w, "not a form", http.StatusBadRequest)
		return
	}
	a, ok := p.read(r.PostForm)
	if !ok {
		http.Error(w, "not a request of a client that is configured here", http.StatusBadRequest)
		return
	}
	back := url.Values{"state": {a.State}, "iss": {p.issuer.url}}
	who := slices.IndexFunc(p.people.People, func(o Person) bool { return o.Subject == r.PostForm.Get("person") })
	if who < 0 {
		back.Set("error", "access_denied")
	} else {
		back.Set("code", p.keep(grant{a, p.people.People[who], time.Now().Add(codeLife)}))
	}
	http.Redirect(w, r, a.RedirectURI+"?"+back.Encode(), http.StatusSeeOther)
}

func (p *Provider) keep(g grant) (code string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.codes, func(_ string, g grant) bool { return time.Now().After(g.until) })
	if len(p.codes) >= maxCodes {
		clear(p.codes)
	}
	code = rand.Text()
	p.codes[code] = g
	return code
}

// take is what a code was given for. Whoever shows it, it is used up.
func (p *Provider) take(code string) (grant, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, ok := p.codes[code]
	delete(p.codes, code)
	return g, ok && time.Now().Before(g.until)
}

// redeem answers a client's token request (RFC 6749 §4.1.3, RFC 7636 §4.5).
func (p *Provider) redeem(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil || r.PostForm.Get("grant_type") != "authorization_code" {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": "invalid_request"})
		return
	}
	f := r.PostForm
	g, ok := p.take(f.Get("code"))
	verifier := sha256.Sum256([]byte(f.Get("code_verifier")))
	proven := subtle.ConstantTimeCompare([]byte(encode(verifier[:])), []byte(g.asked.Challenge)) == 1
	if !ok || !proven || f.Get("client_id") != g.asked.Client || f.Get("redirect_uri") != g.asked.RedirectURI {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": "invalid_grant"})
		return
	}
	claims := g.person.claims(g.asked.Client)
	if g.asked.Nonce != "" {
		claims["nonce"] = g.asked.Nonce
	}
	token, err := p.issuer.Token(claims, time.Now(), p.people.Lifetime.Std())
	if err != nil {
		writeJSON(w, http.StatusInternalServerError, map[string]string{"error": "server_error"})
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"token_type": "Bearer", "access_token": rand.Text(), "expires_in": 60, "id_token": token})
}
