package session

import (
	"net/http"
	"time"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/principal"
)

// browserLife is how long a browser is known: the longest that browsers keep a cookie.
const browserLife = 400 * 24 * time.Hour

// Proxied is the door behind a proxy that signs people in and adds the platform
// envelope to each request. It keeps nothing. How long somebody is signed in is
// the proxy's to say.
type Proxied struct {
	Actors    Actors
	Envelopes *principal.Envelopes
	Header    principal.Header
	Refuse    Refuse
}

// Middleware lets pass who brings an envelope and is a browser that we know.
func (p *Proxied) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, session, ok := cookieOf(r)
		if !ok {
			// Nothing is presented before the browser has shown that it keeps the
			// cookie: the envelope would belong to a browser that never was.
			if r.Method == http.MethodGet {
				setCookie(w, newToken(), browserLife)
			}
			turnAway(w, r, p.Refuse)
			return
		}
		token, err := p.Header.Take(r.Header)
		if err != nil {
			p.Refuse(w, r, err)
			return
		}
		who, err := p.Envelopes.FromEnvelope(r.Context(), token)
		if err != nil {
			p.Refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, visitor{who: who, session: session}.in(r))
	})
}

// Actor is whose request it is, after Middleware.
func (p *Proxied) Actor(r *http.Request) (authority.Actor, error) { return actor(p.Actors, r) }

// Enter sends a browser that keeps its cookie to where it wanted to go.
func (p *Proxied) Enter(w http.ResponseWriter, r *http.Request, to string) error {
	if _, _, ok := cookieOf(r); !ok {
		return api.Refusef(api.InvalidRequest, "This browser keeps no cookie, by which it could be told from another; allow cookies for this address.")
	}
	http.Redirect(w, r, Local(to), http.StatusSeeOther)
	return nil
}

// Arrive has nothing to do here.
func (p *Proxied) Arrive(http.ResponseWriter, *http.Request) error { return api.Refuse(api.NotFound) }

// Leave forgets the browser. The envelope is the proxy's, and so is signing out.
func (p *Proxied) Leave(w http.ResponseWriter, _ *http.Request, _ bool) error {
	dropCookie(w)
	return nil
}
