package console_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/console"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

var parameter = regexp.MustCompile(`\{[^}]+\}`)

// filled is a page's path with something in it for each parameter.
func filled(path, reference string) string {
	path = strings.NewReplacer("{$}", "", "{kind}", "clients", "{name}", "books").Replace(path)
	return parameter.ReplaceAllString(path, reference)
}

// everything is a form with whatever some page of ours asks for.
func everything(effect string) []string {
	return []string{"digest", strings.Repeat("A", 43), "effect", effect, "finding", "happened", "shown", "", "cursor", "", "until", "", "dial", "", "silence", "", "word", "cut off",
		"epoch", "1", "client", "books", "zone", "UTC", "daily", "", "to", "/"}
}

// Nobody sees a page but those that are for everybody, and every other one leads to the login and back.
func (g *gate) pagesWithoutAnIdentity(t *testing.T) {
	before, seen := g.Consumed(), 0
	for _, r := range g.Console.Routes() {
		name, path := r.Method+" "+r.Path, filled(r.Path, authoritytest.NewAttempt())
		b := g.guest()
		if r.Method == http.MethodGet {
			status, head, page := b.do(http.MethodGet, path+"?x=1", nil)
			if r.Role == console.Anybody {
				assert.NotContains(t, head.Get("Location"), "/login?to=", name)
				assert.Less(t, status, 500, name)
				continue
			}
			assert.Equal(t, http.StatusSeeOther, status, name)
			back := path + "?x=1"
			if path == "/session" {
				back = "/" // is a part of a page
			}
			assert.Equal(t, "/login?to="+url.QueryEscape(back), head.Get("Location"), name)
			assert.Less(t, len(page), 400, name)
			assert.Equal(t, "no-store", head.Get("Cache-Control"), name)
			seen++
			continue
		}
		if r.Role == console.Anybody {
			continue
		}
		form := url.Values{}
		for all := everything("x"); len(all) > 0; all = all[2:] {
			form.Set(all[0], all[1])
		}
		status, _, page := b.do(r.Method, path, form)
		assert.Equal(t, http.StatusUnauthorized, status, name)
		assert.Contains(t, page, "You are not signed in", name)
		assert.Less(t, len(page), 4000, name)
		seen++
	}
	assert.Greater(t, seen, 25)
	assert.Equal(t, before, g.Consumed())
}

// theirs are references of somebody's things.
func (s *site) theirs() (all []string, unknown string) {
	s.T.Helper()
	task := s.Consent(s.Task("close-the-day"))
	run := s.Plan(task)
	all = []string{task, run, s.Claim(run).Minted("one", "1").Effect}
	member := s.Person(authoritytest.MemberName)
	for _, path := range []string{api.PathOffers, api.PathConsents} {
		var page api.Page[json.RawMessage]
		s.Into(s.Send(member.Request(http.MethodGet, path, "", nil)), &page)
		for _, item := range page.Items {
			var names struct{ Offer, Consent string }
			require.NoError(s.T, json.Unmarshal(item, &names))
			if names.Offer+names.Consent != "" {
				all = append(all, names.Offer+names.Consent)
			}
		}
	}
	require.GreaterOrEqual(s.T, len(all), 4)
	return all, authoritytest.NewAttempt()
}

// ask sends a page's request as somebody, with a form that every page can read.
func (v *visitor) ask(r console.Route, reference string) answer {
	v.s.T.Helper()
	path := filled(r.Path, reference)
	a := answer{}
	if r.Method == http.MethodGet {
		a = v.get(path)
	} else {
		a = v.post(path, everything(reference)...)
	}
	assert.Less(v.s.T, a.Status, 500, "%s %s", r.Method, path)
	assert.Less(v.s.T, len(a.Body), 100<<10, "%s %s", r.Method, path)
	return a
}

// What somebody else has and what nobody has is the same page, to the byte.
func TestSweepOfPagesWithAnothersReferences(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	theirs, unknown := s.theirs()
	before, tried := s.Consumed(), 0
	other := s.visitor("member-2")
	for _, r := range s.Console.Routes() {
		name := r.Method + " " + r.Path
		if r.Role != console.Member || r.Path == "/settings" || strings.Contains(r.Path, "notices") {
			continue
		}
		want := other.ask(r, unknown)
		if strings.Contains(r.Path, "{reference}") {
			assert.Equal(t, http.StatusNotFound, want.Status, name)
		}
		for _, reference := range theirs {
			a := other.ask(r, reference)
			assert.Equal(t, want.Status, a.Status, name)
			if strings.Contains(r.Path, "{reference}") {
				assert.True(t, want.Body == a.Body, name)
			}
			assert.False(t, strings.Contains(a.Body, "Close the day"), name)
			tried++
		}
	}
	assert.Greater(t, tried, 60)
	assert.Equal(t, owned(before), owned(s.Consumed()))
}

// owned leaves out what every call of somebody leaves: who owns an envelope, and which proofs were used.
func owned(consumed string) string {
	return regexp.MustCompile(`"(replay|owners)" : \d+`).ReplaceAllString(consumed, "")
}

// Roles are asked for again at every page that has one.
func TestSweepOfPagesAndRoles(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	theirs, unknown := s.theirs()
	before, seen := s.Consumed(), map[string]int{}
	for who, role := range map[string]string{authoritytest.MemberName: console.Member, "member-2": console.Member, authoritytest.AuditorName: console.Auditor, authoritytest.OperatorName: console.Operator} {
		v := s.visitor(who)
		for _, r := range s.Console.Routes() {
			if r.Role != console.Auditor && r.Role != console.Operator || role == console.Operator && r.Role == console.Operator {
				continue
			}
			name := r.Method + " " + r.Path + " as " + who
			for _, reference := range []string{theirs[0], unknown} {
				a := v.ask(r, reference)
				if r.Role == console.Auditor && role != console.Member {
					assert.NotEqual(t, http.StatusForbidden, a.Status, name)
					continue
				}
				assert.Equal(t, http.StatusForbidden, a.Status, name)
				assert.Less(t, len(a.Body), 4000, name)
				assert.False(t, strings.Contains(a.Body, "Close the day"), name)
			}
			seen[r.Role]++
		}
	}
	assert.Greater(t, seen[console.Auditor], 4*8)
	assert.Greater(t, seen[console.Operator], 3*2)
	assert.Equal(t, owned(before), owned(s.Consumed()))
}
