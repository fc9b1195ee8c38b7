package console

import (
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Bounds of a form.
const (
	maxForm  = 16 << 10
	maxField = 512
)

// visit is one request and what answers it.
type visit struct {
	c     *Console
	w     *recorder
	r     *http.Request
	route string
	now   time.Time
	zone  *time.Location // that the person chose; nil: that of what the page is about
}

// wrap is the envelope of every page: bounded, uncacheable, with what browsers
// must be told, and safe from its handler's panic.
func (c *Console) wrap(route string, p page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &recorder{ResponseWriter: w}
		c.harden(out.Header())
		r.Body = http.MaxBytesReader(out, r.Body, maxForm)
		v := &visit{c: c, w: out, r: r, route: route, now: c.Now(), zone: c.chosenZone(r)}
		defer func() {
			if p := recover(); p != nil {
				c.Log.LogAttrs(r.Context(), slog.LevelError, "a page panicked", slog.String("route", route), slog.Any("panic", p))
				v.refuse(api.Refuse(api.Internal))
			}
		}()
		if err := p(v); err != nil {
			v.refuse(err)
		}
	})
}

// policy is the content security policy: nothing but our own files, no script
// or style in a page, no frame around it, no form to elsewhere.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; report-uri " + pathReports

const pathReports = "/reports/policy"

func (c *Console) harden(h http.Header) {
	for name, value := range map[string]string{
		"Content-Security-Policy":      policy,
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Referrer-Policy":              "same-origin", // no-referrer would take the origin from our own forms
		"Permissions-Policy":           "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), publickey-credentials-get=(), usb=()",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Cache-Control":                "no-store",
	} {
		h.Set(name, value)
	}
	if c.secure {
		h.Set("Strict-Transport-Security", "max-age=31536000")
		// Browsers that know report-to do not look at report-uri, and report over TLS only.
		h.Set("Content-Security-Policy", policy+"; report-to policy")
		h.Set("Reporting-Endpoints", `policy="`+c.Origin+pathReports+`"`)
	}
}

// report counts what browsers report of the policy. What they say comes from
// anybody and is neither kept nor logged.
func (c *Console) report(v *visit) error {
	c.reports.Add(1)
	v.w.WriteHeader(http.StatusNoContent)
	return nil
}

// actor is who asks, for one call of a verb.
func (v *visit) actor() (authority.Actor, error) { return v.c.Door.Actor(v.r) }

// reference is the opaque name in the page's path.
func (v *visit) reference() string { return v.r.PathValue("reference") }

// form reads what a person sent: a form, bounded, each field once.
func (v *visit) form(fields ...string) (url.Values, error) {
	kind, _, err := mime.ParseMediaType(v.r.Header.Get("Content-Type"))
	if err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, api.Refuse(api.UnsupportedMediaType)
	}
	if err := v.r.ParseForm(); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, api.Refuse(api.PayloadTooLarge)
		}
		return nil, api.Refuse(api.InvalidRequest)
	}
	for _, name := range fields {
		if all := v.r.PostForm[name]; len(all) != 1 || len(all[0]) > maxField {
			return nil, api.Refuse(api.InvalidRequest)
		}
	}
	return v.r.PostForm, nil
}

// answer reads the digest of what was shown, which a yes and a no carry.
func (v *visit) answer() (api.Answer, error) {
	f, err := v.form("digest")
	return api.Answer{Digest: f.Get("digest")}, err
}

// see sends the browser to a page after something was done.
func (v *visit) see(format string, args ...any) error {
	v.w.Header().Set("Location", fmt.Sprintf(format, args...))
	v.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// cookie sets one that this browser keeps for our pages only; it holds a choice
// or a word, never anything that grants.
func (v *visit) cookie(name, value string, life time.Duration) {
	http.SetCookie(v.w, &http.Cookie{Name: v.c.named(name), Value: value, Path: "/", MaxAge: int(life.Seconds()), HttpOnly: true, Secure: v.c.secure, SameSite: http.SameSiteLaxMode}) //nolint:gosec // Secure is false on a loopback address only
}

// named is a cookie's name, which behind TLS only this origin can set (RFC 6265bis §4.1.3).
func (c *Console) named(cookie string) string {
	if c.secure {
		return "__Host-" + cookie
	}
	return cookie
}

// kept is what a cookie of ours holds.
func (c *Console) kept(r *http.Request, cookie string) string {
	k, err := r.Cookie(c.named(cookie))
	if err != nil || len(k.Value) > 128 {
		return ""
	}
	return k.Value
}

// tell leaves a line that the next page says once.
func (v *visit) tell(word string, numbers ...int64) {
	v.cookie(cookieTold, strings.Trim(strings.Join(append([]string{word}, words(numbers)...), "."), "."), time.Minute)
}

func words(numbers []int64) (out []string) {
	for _, n := range numbers {
		out = append(out, fmt.Sprint(n))
	}
	return out
}

// Names of cookies.
const (
	cookieTold = "nw-told"
	cookieZone = "nw-zone"
)

// recorder remembers whether an answer has begun.
type recorder struct {
	http.ResponseWriter
	wrote bool
}

// Unwrap is for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	r.wrote = true
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.wrote = true
	return r.ResponseWriter.Write(b)
}
