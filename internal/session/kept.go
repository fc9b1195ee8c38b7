package session

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/principal"
)

// Bounds of sessions.
const (
	MinIdle = time.Minute
	MaxLife = 12 * time.Hour
)

// Arrival is somebody who has come back from signing in.
type Arrival struct {
	Who     principal.Principal
	Attempt [32]byte  // to sign in, which this answers; good once
	Until   time.Time // for how long
	To      string    // the page that was wanted
}

// Provider signs people in elsewhere. internal/login is one.
type Provider interface {
	// Begin sends the browser there.
	Begin(w http.ResponseWriter, r *http.Request, to string) error
	// Finish reads with what it came back. Its errors are refusals.
	Finish(w http.ResponseWriter, r *http.Request) (Arrival, error)
}

// Config is what Kept is made of. All are required but Log.
type Config struct {
	Actors    Actors
	Envelopes *principal.Envelopes // of those who sign in
	Provider  Provider
	Members   directory.Directory // asked when somebody arrives, and now and then while they are here
	Pool      *pgxpool.Pool       // as nw_authority
	Marks     Marks
	Idle      time.Duration // without a request, at least MinIdle
	Life      time.Duration // in any case, at most MaxLife
	Refuse    Refuse
	Log       *slog.Logger
}

// Kept is the door where people sign in here. A session begins with an ID token,
// which is then dropped, under a token that no browser has had before. It ends
// after idling, after its life, when its person signs out or has left, and with
// the next sign-in of its browser.
type Kept struct {
	Config
	scs   *scs.SessionManager
	store *store
}

// NewKept checks the configuration; any error is a misconfiguration.
func NewKept(c Config) (*Kept, error) {
	switch {
	case c.Actors == nil || c.Envelopes == nil || c.Provider == nil || c.Members == nil || c.Pool == nil || c.Marks == nil || c.Refuse == nil:
		return nil, errors.New("session: something that sessions are made of is missing")
	case c.Idle < MinIdle || c.Life < c.Idle || c.Life > MaxLife:
		return nil, errors.New("session: idling is at least 1 min, and no longer than a session's life, which is at most 12 h")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	k := &Kept{Config: c, store: &store{pool: c.Pool, marks: c.Marks, idle: c.Idle, life: c.Life}}
	// Not scs.New, which begins with a store in memory that never ends.
	k.scs = &scs.SessionManager{Store: k.store, Codec: codec{}, Lifetime: c.Life,
		Cookie: scs.SessionCookie{Name: Cookie, Path: "/", HttpOnly: true, Secure: true, SameSite: http.SameSiteLaxMode}}
	return k, nil
}

// Run forgets sessions that are over, until ctx ends.
func (k *Kept) Run(ctx context.Context) {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		if _, err := k.store.expire(ctx); err != nil && ctx.Err() == nil {
			k.Log.LogAttrs(ctx, slog.LevelWarn, "sessions that are over cannot be forgotten", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Middleware lets pass who is signed in. What a page asks for by itself keeps no
// session awake.
func (k *Kept) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := k.visitor(r)
		switch {
		case errors.Is(err, ErrSignIn):
			turnAway(w, r, k.Refuse)
		case err != nil:
			k.Refuse(w, r, err)
		default:
			next.ServeHTTP(w, v.in(r))
		}
	})
}

func (k *Kept) visitor(r *http.Request) (visitor, error) {
	token, digest, ok := cookieOf(r)
	if !ok {
		return visitor{}, ErrSignIn
	}
	ctx, err := k.scs.Load(context.WithValue(r.Context(), awakeKey{}, r.Header.Get("HX-Request") == ""), token)
	if err != nil {
		return visitor{}, err
	}
	kept, ok := k.scs.Get(ctx, keyRecord).(record)
	if !ok {
		return visitor{}, ErrSignIn
	}
	who, err := k.Envelopes.Resume(principal.Session{Issuer: kept.Issuer, Subject: kept.Subject, Digest: digest, Expires: kept.Left.End})
	if err != nil {
		return visitor{}, ErrSignIn // another issuer is configured by now
	}
	if kept.Woken && k.left(r.Context(), who) {
		if err := k.scs.Destroy(context.WithValue(ctx, everywhere{}, true)); err != nil {
			return visitor{}, err
		}
		return visitor{}, ErrSignIn
	}
	return visitor{who: who, session: digest, left: *kept.Left}, nil
}

// left tells that the directory does not know somebody any more. Its silence
// closes what grants anything, which asks for itself; it keeps nobody from
// saying no and stopping what runs in their name.
func (k *Kept) left(ctx context.Context, who principal.Principal) bool {
	answer, err := k.Members.Member(ctx, who.Issuer(), who.Subject())
	return err == nil && answer == directory.Absent
}

// Actor is whose request it is, after Middleware.
func (k *Kept) Actor(r *http.Request) (authority.Actor, error) { return actor(k.Actors, r) }

// Enter sends a browser to sign in, and one that has a session to where it wanted to go.
func (k *Kept) Enter(w http.ResponseWriter, r *http.Request, to string) error {
	_, err := k.visitor(r)
	switch {
	case err == nil:
		http.Redirect(w, r, Local(to), http.StatusSeeOther)
		return nil
	case errors.Is(err, ErrSignIn):
		return k.Provider.Begin(w, r, Local(to))
	}
	return err
}

// Arrive begins the session of who comes back from signing in, under a new
// token: whatever the browser had before ends (session fixation).
func (k *Kept) Arrive(w http.ResponseWriter, r *http.Request) error {
	from, err := k.Provider.Finish(w, r)
	if err != nil {
		return err
	}
	switch {
	case from.Who.IsNobody():
		return api.Refuse(api.InvalidEnvelope)
	case k.left(r.Context(), from.Who):
		return api.Refusef(api.UnknownMember, "You are not a member of this platform any more.")
	}
	old, _, _ := cookieOf(r)
	ctx, err := k.scs.Load(context.WithValue(r.Context(), beginningKey{}, from), old)
	if err != nil {
		return err
	}
	if err := k.scs.RenewToken(ctx); err != nil {
		return err
	}
	k.scs.Put(ctx, keyRecord, record{Issuer: from.Who.Issuer(), Subject: from.Who.Subject()})
	token, expiry, err := k.scs.Commit(ctx)
	if err != nil {
		return err
	}
	k.scs.WriteSessionCookie(ctx, w, token, expiry)
	http.Redirect(w, r, Local(from.To), http.StatusSeeOther)
	return nil
}

// Leave ends the session of a request, or all sessions of its person.
func (k *Kept) Leave(w http.ResponseWriter, r *http.Request, all bool) error {
	dropCookie(w)
	token, _, ok := cookieOf(r)
	if !ok {
		return nil
	}
	ctx, err := k.scs.Load(context.WithValue(r.Context(), everywhere{}, all), token)
	if err != nil {
		return err
	}
	if k.scs.Token(ctx) == "" {
		return nil
	}
	return k.scs.Destroy(ctx)
}
