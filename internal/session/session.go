// Package session is the door of the console: it knows whose a browser's request
// is. Where a proxy in front of us signs people in (Proxied), every request
// brings the platform envelope and the cookie only says which browser it is.
// Where people sign in here (Kept), the envelope came once, and the session
// stands for it until it ends.
//
// Either way a cookie alone makes nobody, and an envelope without the browser
// that first brought it authorises nothing.
package session

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/principal"
)

// Cookie is the name of the one cookie. Its prefix has browsers take it only
// from this very host, over TLS, for all paths (RFC 6265bis §4.1.3.2): no
// neighbour can plant one. Browsers count a loopback address as TLS.
const Cookie = "__Host-nightwarrant"

// PathLogin is where a browser without a session is sent.
const PathLogin = "/login"

const (
	domainToken = "nightwarrant/session-token/v1"
	tokenBytes  = 32
)

// Actors makes the actor of a browser's request. *authority.Authority is one.
type Actors interface {
	FromSession(who principal.Principal, session [32]byte) authority.Actor
}

// Left says when a session ends.
type Left struct {
	Now  time.Time // by the database's clock
	Idle time.Time // unless something is done before; never after End
	End  time.Time // whatever is done
}

// warnWithin is how long before its end a session warns.
const warnWithin = 5 * time.Minute

// Soon tells whether it ends so soon that its person must be told.
func (l Left) Soon() bool { return !l.Idle.IsZero() && l.Idle.Sub(l.Now) <= warnWithin }

// Last tells whether nothing that its person does can put the end off by much.
func (l Left) Last() bool { return l.End.Sub(l.Idle) < time.Minute }

// visitor is what a middleware has found out about a request.
type visitor struct {
	who     principal.Principal
	session [32]byte
	left    Left
}

type visitorKey struct{}

func (v visitor) in(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), visitorKey{}, v))
}

// actor is whose request it is.
func actor(a Actors, r *http.Request) (authority.Actor, error) {
	v, ok := r.Context().Value(visitorKey{}).(visitor)
	if !ok || v.who.IsNobody() {
		return authority.Actor{}, api.Refuse(api.InvalidEnvelope)
	}
	return a.FromSession(v.who, v.session), nil
}

// LeftOf says when the session of a request ends; ok is false where none of ours does.
func LeftOf(r *http.Request) (l Left, ok bool) {
	v, _ := r.Context().Value(visitorKey{}).(visitor)
	return v.left, !v.left.End.IsZero()
}

// cookieOf is the cookie of a request and its digest. Two cookies of the name
// are none: which of them is meant, nobody can tell.
func cookieOf(r *http.Request) (token string, session [32]byte, ok bool) {
	all := r.CookiesNamed(Cookie)
	if len(all) != 1 {
		return "", session, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(all[0].Value)
	if err != nil || len(b) != tokenBytes || base64.RawURLEncoding.EncodeToString(b) != all[0].Value {
		return "", session, false
	}
	return all[0].Value, digestOf(all[0].Value), true
}

// digestOf is what is known of a cookie everywhere but in its browser.
func digestOf(token string) [32]byte { return canonical.Digest(domainToken, []byte(token)) }

func newToken() string {
	var b [tokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func setCookie(w http.ResponseWriter, value string, life time.Duration) {
	http.SetCookie(w, &http.Cookie{Name: Cookie, Value: value, Path: "/", MaxAge: int(life.Seconds()), Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
}

func dropCookie(w http.ResponseWriter) {
	http.SetCookie(w, &http.Cookie{Name: Cookie, Path: "/", MaxAge: -1, Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
}

// ErrSignIn says that a request has no session. A page that was asked for comes
// back after signing in; what was sent with a form does not.
var ErrSignIn = fmt.Errorf("session: nobody is signed in: %w", api.Refuse(api.InvalidEnvelope))

// Refuse answers a request that the door does not let through.
type Refuse func(w http.ResponseWriter, r *http.Request, err error)

// turnAway sends whoever asks for a page to the login, and refuses the rest.
func turnAway(w http.ResponseWriter, r *http.Request, refuse Refuse) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("HX-Request") != "" {
		refuse(w, r, ErrSignIn)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, PathLogin+"?to="+url.QueryEscape(Local(r.URL.RequestURI())), http.StatusSeeOther)
}

const maxLocal = 512

// Local returns a path of our own as it was given, and "/" for everything that a
// browser could read as another place or that would lead back into signing in.
func Local(to string) string {
	const home = "/"
	if len(to) > maxLocal || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") {
		return home
	}
	for _, c := range []byte(to) { // browsers drop tabs and line ends, and take a backslash for a slash
		if c <= ' ' || c == '\\' || c >= 0x7f {
			return home
		}
	}
	u, err := url.ParseRequestURI(to)
	odd := func(c rune) bool { return c < ' ' || c == '\\' }
	if err != nil || u.IsAbs() || u.Host != "" || u.User != nil || u.Opaque != "" || strings.HasPrefix(u.Path, "//") || strings.ContainsFunc(u.Path, odd) {
		return home
	}
	for _, own := range []string{PathLogin, "/logout", "/session"} {
		if u.Path == own || strings.HasPrefix(u.Path, own+"/") {
			return home
		}
	}
	return to
}
