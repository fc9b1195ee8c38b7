package directory_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/directory/scimserver"
)

const (
	issuer = "https://idp.example"
	who    = "member-7f3a"
)

type token string

func (t token) Reveal() string { return string(t) }

func fixed(t token) func() (directory.Secret, error) {
	return func() (directory.Secret, error) { return t, nil }
}

// asking is a client of a server of the test's own.
func asking(t testing.TB, h http.Handler) *directory.SCIM {
	t.Helper()
	server := httptest.NewServer(h)
	s, err := directory.NewSCIM(directory.Config{URL: server.URL, Issuer: issuer, Token: fixed("secret"), Timeout: directory.MaxTimeout})
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Close()
		server.Close()
	})
	return s
}

// saying answers each question with this body.
func saying(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/scim+json")
		_, _ = w.Write([]byte(body))
	}
}

const list = `{"schemas":["urn:ietf:params:scim:api:messages:2.0:ListResponse"],"totalResults":%d,"Resources":[%s]}`

func oneOf(users ...string) string { return fmt.Sprintf(list, len(users), strings.Join(users, ",")) }

const there = `{"id":"1","externalId":"member-7f3a","active":true}`

// Whatever is not exactly an answer is none: neither yes nor no.
func TestHostileAnswersAreUnknown(t *testing.T) {
	t.Parallel()
	schema := `"schemas":["urn:ietf:params:scim:api:messages:2.0:ListResponse"]`
	for name, body := range map[string]string{
		"nothing":                   ``,
		"no JSON":                   `yes`,
		"no object":                 `[` + there + `]`,
		"no schema":                 `{"totalResults":1,"Resources":[` + there + `]}`,
		"another schema":            `{"schemas":["urn:ietf:params:scim:api:messages:2.0:Error"],"totalResults":0}`,
		"schemas are no list":       `{"schemas":"urn:ietf:params:scim:api:messages:2.0:ListResponse","totalResults":0}`,
		"no total":                  `{` + schema + `,"Resources":[` + there + `]}`,
		"total is text":             `{` + schema + `,"totalResults":"1","Resources":[` + there + `]}`,
		"total is a fraction":       `{` + schema + `,"totalResults":1.0,"Resources":[` + there + `]}`,
		"total is below":            `{` + schema + `,"totalResults":-1,"Resources":[` + there + `]}`,
		"none, and one":             `{` + schema + `,"totalResults":0,"Resources":[` + there + `]}`,
		"one, and none":             `{` + schema + `,"totalResults":1,"Resources":[]}`,
		"one, and nothing":          `{` + schema + `,"totalResults":1}`,
		"two":                       oneOf(there, there),
		"more than are shown":       `{` + schema + `,"totalResults":2,"Resources":[` + there + `]}`,
		"one is said, two are":      `{` + schema + `,"totalResults":1,"Resources":[` + there + `,` + there + `]}`,
		"resources are an object":   `{` + schema + `,"totalResults":1,"Resources":` + there + `}`,
		"a resource is text":        oneOf(`"member-7f3a"`),
		"a resource is null":        oneOf(`null`),
		"somebody else":             oneOf(`{"externalId":"member-7f3b","active":true}`),
		"somebody else, inactive":   oneOf(`{"externalId":"member-7f3b","active":false}`),
		"in another case":           oneOf(`{"externalId":"Member-7f3a","active":true}`),
		"with a space":              oneOf(`{"externalId":"member-7f3a ","active":true}`),
		"a beginning":               oneOf(`{"externalId":"member-7f3","active":true}`),
		"no externalId":             oneOf(`{"id":"member-7f3a","active":true}`),
		"externalId is a list":      oneOf(`{"externalId":["member-7f3a"],"active":true}`),
		"no active":                 oneOf(`{"externalId":"member-7f3a"}`),
		"active is null":            oneOf(`{"externalId":"member-7f3a","active":null}`),
		"active is text":            oneOf(`{"externalId":"member-7f3a","active":"true"}`),
		"active is a number":        oneOf(`{"externalId":"member-7f3a","active":1}`),
		"active twice":              oneOf(`{"externalId":"member-7f3a","active":true,"active":false}`),
		"active twice, by case":     oneOf(`{"externalId":"member-7f3a","active":true,"Active":false}`),
		"another spelling":          oneOf(`{"externalID":"member-7f3a","active":true}`),
		"externalId twice, by case": oneOf(`{"externalId":"member-7f3a","externalid":"member-7f3b","active":true}`),
		"a Kelvin sign":             strings.Replace(oneOf(there), `"schemas"`, "\"\u017fchemas\"", 1),
		"resources in lower case":   `{` + schema + `,"totalResults":0,"resources":[` + there + `]}`,
		"total twice":               `{` + schema + `,"totalResults":0,"totalResults":1,"Resources":[` + there + `]}`,
		"something after":           oneOf(there) + `{}`,
		"a byte order mark":         "\ufeff" + oneOf(there),
		"bad UTF-8":                 oneOf("{\"externalId\":\"member-7f3a\",\"active\":true,\"title\":\"\xff\"}"),
		"too large":                 oneOf(`{"externalId":"member-7f3a","active":true,"title":"` + strings.Repeat("x", 64<<10) + `"}`),
		"too deep":                  oneOf(`{"externalId":"member-7f3a","active":true,"x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := asking(t, saying(body)).Member(t.Context(), issuer, who)
			assert.Equal(t, directory.Unknown, answer)
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "7f3", "the error names a person")
		})
	}
}

// So is what comes with another status, from elsewhere, too late or not at all.
func TestUnreachableIsUnknown(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.Add(1)
		saying(oneOf(there))(w, r)
	}))
	t.Cleanup(other.Close)
	good := oneOf(there)
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/scim+json")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(good))
		}
	}
	cases := map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+r.URL.String(), http.StatusTemporaryRedirect)
		},
		"hangs up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"HTML": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte(good))
		},
		"no type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = w.Write([]byte(good))
		},
		"compressed": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			saying("\x1f\x8b")(w, r)
		},
		"cut short": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100000")
			saying(good)(w, r)
		},
		"headers without end": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 64<<10))
			saying(good)(w, r)
		},
	}
	for _, code := range []int{201, 204, 206, 301, 400, 401, 403, 404, 409, 429, 500, 502, 503} {
		cases[fmt.Sprint(code)] = status(code)
	}
	for name, h := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := asking(t, h).Member(t.Context(), issuer, who)
			assert.Equal(t, directory.Unknown, answer)
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "7f3")
		})
	}
	t.Cleanup(func() { assert.Zero(t, elsewhere.Load(), "a redirect was followed") })
}

// Nobody waits longer than the bound, whatever the directory does with its time.
func TestEveryWaitIsBounded(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"no answer": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"byte by byte": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/scim+json")
			for tick := time.NewTicker(20 * time.Millisecond); ; {
				select {
				case <-r.Context().Done():
					tick.Stop()
					return
				case <-tick.C:
					_, _ = w.Write([]byte(" "))
					_ = http.NewResponseController(w).Flush()
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(h)
			defer server.Close()
			s, err := directory.NewSCIM(directory.Config{URL: server.URL, Issuer: issuer, Token: fixed("secret"), Timeout: 50 * time.Millisecond})
			require.NoError(t, err)
			defer s.Close()
			began := time.Now()
			answer, err := s.Member(t.Context(), issuer, who)
			assert.Equal(t, directory.Unknown, answer)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Less(t, time.Since(began), 10*time.Second)
		})
	}
	nobody, err := directory.NewSCIM(directory.Config{URL: "http://127.0.0.1:1", Issuer: issuer, Token: fixed("secret"), Timeout: directory.MaxTimeout})
	require.NoError(t, err)
	answer, err := nobody.Member(t.Context(), issuer, who)
	require.Error(t, err)
	assert.Equal(t, directory.Unknown, answer)
}

// Nothing is asked that cannot be answered.
func TestWhatIsNotAsked(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	s := asking(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		saying(oneOf(there))(w, r)
	}))
	for _, q := range [][2]string{{"https://other.example", who}, {issuer + "/", who}, {"", who}, {issuer, ""}, {issuer, strings.Repeat("x", 513)}} {
		answer, err := s.Member(t.Context(), q[0], q[1])
		require.Error(t, err)
		assert.Equal(t, directory.Unknown, answer)
	}
	broken, err := directory.NewSCIM(directory.Config{URL: "http://127.0.0.1:1", Issuer: issuer, Timeout: directory.MaxTimeout,
		Token: func() (directory.Secret, error) { return nil, errors.New("it is gone") }})
	require.NoError(t, err)
	_, err = broken.Member(t.Context(), issuer, who)
	require.ErrorContains(t, err, "the token: it is gone")
	assert.Zero(t, asked.Load())
}

func TestConfigurations(t *testing.T) {
	t.Parallel()
	good := directory.Config{URL: "https://people.example/scim/v2", Issuer: issuer, Token: fixed("x"), Timeout: time.Millisecond, Roots: x509.NewCertPool()}
	_, err := directory.NewSCIM(good)
	require.NoError(t, err)
	for name, change := range map[string]func(c *directory.Config){
		"no URL":        func(c *directory.Config) { c.URL = "" },
		"plain":         func(c *directory.Config) { c.URL = "http://people.example" },
		"with a user":   func(c *directory.Config) { c.URL = "https://u:p@people.example" },
		"with a query":  func(c *directory.Config) { c.URL = "https://people.example?a=b" },
		"with a hash":   func(c *directory.Config) { c.URL = "https://people.example#a" },
		"relative":      func(c *directory.Config) { c.URL = "/scim" },
		"no issuer":     func(c *directory.Config) { c.Issuer = "" },
		"no token":      func(c *directory.Config) { c.Token = nil },
		"no timeout":    func(c *directory.Config) { c.Timeout = 0 },
		"long patience": func(c *directory.Config) { c.Timeout = directory.MaxTimeout + 1 },
	} {
		c := good
		change(&c)
		_, err := directory.NewSCIM(c)
		require.Error(t, err, name)
	}
}

// What is asked is one exact question, in SCIM's words.
func TestTheQuestion(t *testing.T) {
	t.Parallel()
	const odd = `a"b\c <d>&é)` + "\t"
	var got *http.Request
	s := asking(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		user, err := json.Marshal(map[string]any{"externalId": odd, "active": true, "nickName": nil, "meta": map[string]any{"version": 1.5}})
		assert.NoError(t, err)
		saying(oneOf(string(user)))(w, r)
	}))
	answer, err := s.Member(t.Context(), issuer, odd)
	require.NoError(t, err)
	assert.Equal(t, directory.Present, answer)
	assert.Equal(t, "/Users", got.URL.Path)
	assert.Equal(t, url.Values{"filter": {`externalId eq "a\"b\\c <d>&é)\t"`}, "attributes": {"externalId,active"}, "count": {"2"}}, got.URL.Query())
	assert.Equal(t, "Bearer secret", got.Header.Get("Authorization"))
	assert.Equal(t, "application/scim+json", got.Header.Get("Accept"))
}

// The three answers, from a server that means them.
func TestAgainstAServer(t *testing.T) {
	t.Parallel()
	people := scimserver.New("secret")
	s := asking(t, people)
	ask := func(of string) directory.Answer {
		answer, err := s.Member(t.Context(), issuer, of)
		require.NoError(t, err)
		return answer
	}
	assert.Equal(t, directory.Absent, ask(who))
	people.Add(who, "m@people.example")
	people.Add("other", "")
	assert.Equal(t, directory.Present, ask(who))
	assert.Equal(t, directory.Absent, ask("Member-7f3a"))
	assert.Equal(t, "present absent unknown", fmt.Sprint(directory.Present, " ", directory.Absent, " ", directory.Unknown))
	require.True(t, people.SetActive(who, false))
	assert.Equal(t, directory.Absent, ask(who))
	_, err := s.Address(t.Context(), issuer, who)
	require.ErrorIs(t, err, directory.ErrNoMember)
	require.True(t, people.SetActive(who, true))
	assert.Equal(t, directory.Present, ask(who))
	address, err := s.Address(t.Context(), issuer, who)
	require.NoError(t, err)
	assert.Equal(t, mail.Address{Address: "m@people.example"}, address)
	_, err = s.Address(t.Context(), issuer, "other")
	require.ErrorIs(t, err, directory.ErrNoAddress)
	people.Add(who, "") // twice
	answer, err := s.Member(t.Context(), issuer, who)
	require.Error(t, err)
	assert.Equal(t, directory.Unknown, answer)
}

// An address is one bare address, or none: nothing that could be a header or a second recipient.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for emails, want := range map[string]string{
		`[{"value":"a@b.example"}]`:                                        "a@b.example",
		`[{"value":"a@b.example"},{"value":"c@d.example","primary":true}]`: "c@d.example",
		`[{"value":"a@b.example"},{"value":"c@d.example"}]`:                "",
		`[]`:                            "",
		`[{"value":"A <a@b.example>"}]`: "",
		`[{"value":"a@b.example\r\nBcc: c@d.example"}]`:                                   "",
		`[{"value":"a@b.example, c@d.example"}]`:                                          "",
		`[{"value":"` + strings.Repeat("a", 250) + `@b.example"}]`:                        "",
		`[{"value":"a@b.example","primary":true},{"value":"c@d.example","primary":true}]`: "refused",
		`[{"value":7}]`: "refused",
		`[{"value":"a@b.example","Value":"c@d"}]`:   "refused",
		`["a@b.example"]`:                           "refused",
		`{"value":"a@b.example"}`:                   "refused",
		`[{"value":"a@b.example","primary":"yes"}]`: "refused",
	} {
		address, err := asking(t, saying(oneOf(`{"externalId":"member-7f3a","active":true,"emails":`+emails+`}`))).Address(t.Context(), issuer, who)
		switch want {
		case "":
			require.ErrorIs(t, err, directory.ErrNoAddress, emails)
		case "refused":
			require.Error(t, err, emails)
			require.NotErrorIs(t, err, directory.ErrNoAddress, emails)
		default:
			require.NoError(t, err, emails)
		}
		if want != "refused" {
			assert.Equal(t, want, address.Address, emails)
		}
	}
}
