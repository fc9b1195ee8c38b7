package console_test

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/console"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }

// site is a console before a house's authority.
type site struct {
	*authoritytest.House
	Console *console.Console
	URL     string
	door    *door
}

// newSite starts a house with the standard registry and its pages.
func newSite(t *testing.T) *site {
	t.Helper()
	h := newHouse(t)
	s := &site{House: h, door: &door{h: h, people: map[string]person{}}}
	server := httptest.NewUnstartedServer(nil)
	s.URL = "http://" + server.Listener.Addr().String()
	var err error
	s.Console, err = console.New(console.Config{Authority: h.Authority, Door: s.door, Origin: s.URL, Log: slog.New(slog.NewJSONHandler(h.Log, nil))})
	require.NoError(t, err)
	server.Config.Handler = h.Young(s.Console.Handler())
	server.Start()
	t.Cleanup(server.Close)
	return s
}

// part is a part of a test that goes on in the house of those before it.
func part(h *authoritytest.House, name string, what func(t *testing.T)) {
	whole := h.T.(*testing.T)
	whole.Run(name, func(t *testing.T) {
		h.T = t
		defer func() { h.T = whole }()
		what(t)
	})
}

// newHouse starts a house with the standard registry, and lets the authority's statements last for longer than
// a second. On a machine that is busy with other tests they may, and what happens then is tested elsewhere.
func newHouse(t *testing.T) *authoritytest.House {
	t.Helper()
	patient.Do(func() {
		pool := teststack.Database(t).Pool(t, teststack.Owner) // roles are the cluster's, which is this package's
		_, err := pool.Exec(t.Context(), `ALTER ROLE nw_authority SET statement_timeout = '4s'`)
		require.NoError(t, err)
	})
	return authoritytest.New(t)
}

var patient sync.Once

// door lets in whom a cookie names, with a real envelope and a session of their own.
type door struct {
	h      *authoritytest.House
	lock   sync.Mutex
	people map[string]person
}

type person struct {
	who     principal.Principal
	session [32]byte
}

const cookieWho = "who"

func (d *door) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := r.Cookie(cookieWho); err != nil {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (d *door) Actor(r *http.Request) (authority.Actor, error) {
	c, err := r.Cookie(cookieWho)
	if err != nil {
		return authority.Actor{}, err
	}
	p, err := d.enter(r.Context(), c.Value)
	return d.h.Authority.FromSession(p.who, p.session), err
}

func (d *door) enter(ctx context.Context, name string) (person, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if p, ok := d.people[name]; ok {
		return p, nil
	}
	who, err := d.h.Authority.Envelopes.FromEnvelope(ctx, d.h.Envelope(name))
	p := person{who: who}
	_, _ = rand.Read(p.session[:])
	d.people[name] = p
	return p, err
}

// visitor is a browser without a window, of one person.
type visitor struct {
	s      *site
	client *http.Client
}

func (s *site) visitor(name string) *visitor {
	v := &visitor{s: s, client: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}, Jar: &jar{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if name != "" {
		at, err := url.Parse(s.URL)
		require.NoError(s.T, err)
		v.client.Jar.SetCookies(at, []*http.Cookie{{Name: cookieWho, Value: name}})
	}
	return v
}

// jar keeps every cookie; there is one site.
type jar struct{ kept map[string]*http.Cookie }

func (j *jar) SetCookies(_ *url.URL, all []*http.Cookie) {
	if j.kept == nil {
		j.kept = map[string]*http.Cookie{}
	}
	for _, c := range all {
		j.kept[c.Name] = c
		if c.MaxAge < 0 {
			delete(j.kept, c.Name)
		}
	}
}

func (j *jar) Cookies(*url.URL) (all []*http.Cookie) {
	for _, c := range j.kept {
		all = append(all, &http.Cookie{Name: c.Name, Value: c.Value})
	}
	return all
}

// answer is what came back.
type answer struct {
	Status int
	Header http.Header
	Body   string
}

func (v *visitor) do(r *http.Request) answer {
	v.s.T.Helper()
	a, err := v.client.Do(r)
	require.NoError(v.s.T, err)
	defer a.Body.Close() //nolint:errcheck // read to its end below
	body, err := io.ReadAll(io.LimitReader(a.Body, 1<<20))
	require.NoError(v.s.T, err)
	return answer{a.StatusCode, a.Header, string(body)}
}

func (v *visitor) get(path string) answer {
	v.s.T.Helper()
	r, err := http.NewRequest("GET", v.s.URL+path, nil) //nolint:noctx // the client has a time-out
	require.NoError(v.s.T, err)
	return v.do(r)
}

// post sends a form as a browser does from a page of ours.
func (v *visitor) post(path string, fields ...string) answer {
	v.s.T.Helper()
	r := v.form(path, fields...)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return v.do(r)
}

func (v *visitor) form(path string, fields ...string) *http.Request {
	v.s.T.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	r, err := http.NewRequest("POST", v.s.URL+path, strings.NewReader(form.Encode())) //nolint:noctx // the client has a time-out
	require.NoError(v.s.T, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

// field is the value of a hidden field of a page.
func field(t testing.TB, page, name string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, `name="`+name+`" value="`)
	require.True(t, ok, "the page has no field %s", name)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// link is the first address of a page that begins so.
func link(t testing.TB, page, prefix string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, `href="`+prefix)
	require.True(t, ok, "the page has no link to %s", prefix)
	value, _, _ := strings.Cut(rest, `"`)
	return prefix + value
}
