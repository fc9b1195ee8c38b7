package login

import (
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/session"
)

// cookieAttempt is the name of the cookie that is an attempt to sign in.
const cookieAttempt = session.Cookie + "-login"

// attempt is one attempt of one browser to sign in: a secret, when it began and
// where it wants to go. Everything that travels is a digest of all three, so that
// whoever answers it has answered exactly this.
type attempt struct {
	began time.Time
	to    string
	text  string // as the cookie holds it
}

func newAttempt(now time.Time, to string) attempt {
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails (crypto/rand)
	began := now.Truncate(time.Second)
	return attempt{began, to, encode(secret[:]) + "." + strconv.FormatInt(began.Unix(), 10) + "." + encode([]byte(to))}
}

// attemptOf is the attempt of a browser, unless it is over.
func attemptOf(r *http.Request, now time.Time) (attempt, bool) {
	all := r.CookiesNamed(cookieAttempt)
	if len(all) != 1 || len(all[0].Value) > 1024 {
		return attempt{}, false
	}
	parts := strings.Split(all[0].Value, ".")
	if len(parts) != 3 {
		return attempt{}, false
	}
	secret, err := base64.RawURLEncoding.DecodeString(parts[0])
	seconds, bad := strconv.ParseInt(parts[1], 10, 64)
	to, worse := base64.RawURLEncoding.DecodeString(parts[2])
	began := time.Unix(seconds, 0)
	if err != nil || len(secret) != 32 || bad != nil || worse != nil || began.After(now.Add(time.Minute)) || now.Sub(began) >= attemptLife {
		return attempt{}, false
	}
	return attempt{began, session.Local(string(to)), all[0].Value}, true
}

func (a attempt) of(what string) [32]byte {
	return canonical.Digest("nightwarrant/login-"+what+"/v1", []byte(a.text))
}

func (a attempt) state() string    { return text(a.of("state")) }
func (a attempt) nonce() string    { return text(a.of("nonce")) }
func (a attempt) verifier() string { return text(a.of("verifier")) } // 43 characters (RFC 7636 §4.1)
func (a attempt) digest() [32]byte { return a.of("attempt") }

func (a attempt) remember(w http.ResponseWriter) {
	http.SetCookie(w, &http.Cookie{Name: cookieAttempt, Value: a.text, Path: "/", MaxAge: int(attemptLife.Seconds()), Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
}

func forget(w http.ResponseWriter) {
	http.SetCookie(w, &http.Cookie{Name: cookieAttempt, Path: "/", MaxAge: -1, Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
}

func text(b [32]byte) string { return encode(b[:]) }

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
