package server_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/openapi"
	"github.com/nightwarrant/nightwarrant/internal/server"
)

// sweep is a house in which somebody has what others must not see.
type sweep struct {
	*authoritytest.House
	t         *testing.T
	foreign   []string // references of a member's things
	processes []capability.Token
	keys      []*capability.Key
}

func newSweep(t *testing.T) *sweep {
	t.Helper()
	s := &sweep{House: authoritytest.New(t), t: t}
	task := s.Consent(s.Task("close-the-day"))
	run := s.Plan(task)
	worker, guard := s.Claim(run), s.Guard()
	s.processes, s.keys = []capability.Token{worker.Token, guard.Token}, []*capability.Key{worker.Key, guard.Key}
	effect := worker.Minted("one", "1").Effect
	s.foreign = []string{task, run, effect}
	member := s.Person(authoritytest.MemberName)
	for _, path := range []string{api.PathOffers, api.PathConsents} {
		var page api.Page[json.RawMessage]
		s.Into(s.Send(member.Request(http.MethodGet, path, "", nil)), &page)
		for _, item := range page.Items {
			var names struct{ Offer, Consent string }
			require.NoError(t, json.Unmarshal(item, &names))
			s.foreign = append(s.foreign, slices.DeleteFunc([]string{names.Offer, names.Consent}, func(name string) bool { return name == "" })...)
		}
	}
	require.GreaterOrEqual(t, len(s.foreign), 5)
	return s
}

// bodyOf is what a route reads, as far as it gets before it knows who asks and what is asked for.
func bodyOf(r server.Route, reference string) (kind string, body []byte) {
	digest := `{"digest":"` + strings.Repeat("A", 43) + `"}`
	switch {
	case r.Method == http.MethodGet:
		return "", nil
	case r.Path == api.PathToken:
		return "application/x-www-form-urlencoded", []byte("grant_type=client_credentials")
	case r.Path == api.PathRegistry:
		return "application/yaml", []byte("kind: Client\nname: other\ntitle: Another\n")
	case r.Path == api.PathFindings:
		return "application/json", []byte(`{"effect":"` + reference + `","finding":"happened"}`)
	case r.Path == api.PathRetire:
		return "application/json", []byte(`{"kind":"Client","name":"books"}`)
	case r.Path == api.PathWithdraw:
		return "application/json", []byte(`{"task":"` + reference + `","guard":"ledger","action":"row.append","resource":"table:entries","key":{}}`)
	case r.Path == api.PathCutOff:
		return "application/json", []byte(`{"all":true}`)
	case r.Path == api.PathNotices:
		return "application/json", []byte(`{}`)
	case strings.HasSuffix(r.Path, "/narrow"):
		return "application/json", []byte(`{}`)
	case strings.HasSuffix(r.Path, "/revoke") || strings.HasSuffix(r.Path, "/cut-off"):
		return "", nil
	}
	return "application/json", []byte(digest)
}

// as sends a route's request as somebody; nil is nobody.
func (s *sweep) as(p *authoritytest.Person, r server.Route, reference string) authoritytest.Answer {
	s.t.Helper()
	kind, body := bodyOf(r, reference)
	path := filled(r.Path, reference)
	q := s.Request(r.Method, path, kind, body)
	if p != nil {
		q = p.Request(r.Method, path, kind, body)
		q.Header.Set("If-Match", "*")
	}
	a := s.Send(q)
	name := r.Method + " " + path
	assert.Less(s.t, a.Status, 500, "%s: %s", name, a.Body)
	if a.Status >= 400 {
		assert.Less(s.t, len(a.Body), 700, name)
		assert.Equal(s.t, "no-store", a.Header.Get("Cache-Control"), name)
		assert.NotEmpty(s.t, a.Problem().Code, name)
	}
	return a
}

func (s *sweep) each(do func(r server.Route, name string)) (n int) {
	s.t.Helper()
	for _, r := range s.Server.Routes() {
		do(r, r.Method+" "+r.Path)
		n++
	}
	require.Greater(s.t, n, 40)
	return n
}

// Nobody is let in anywhere but where everybody is, and nothing happens.
func TestSweepWithoutAnIdentity(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	before := s.Consumed()
	s.each(func(r server.Route, name string) {
		a := s.as(nil, r, s.foreign[0])
		switch r.Access {
		case openapi.Anybody:
			assert.Less(t, a.Status, 400, name)
		case openapi.Workload:
			assert.Equal(t, http.StatusBadRequest, a.Status, name)
		case openapi.Holder, openapi.Component:
			assert.Equal(t, http.StatusUnauthorized, a.Status, "%s: %s", name, a.Body)
			assert.Len(t, a.Header.Values("WWW-Authenticate"), 1, name)
		default:
			require.True(t, r.Access.Personal(), "%s: a new kind of caller", name)
			assert.Equal(t, http.StatusUnauthorized, a.Status, name)
			assert.Equal(t, api.InvalidEnvelope, a.Problem().Code, name)
		}
	})
	assert.Equal(t, before, s.Consumed())
}

// A person is no process, and a process no person.
func TestSweepWithAnotherKindOfIdentity(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	before := s.Consumed()
	member := s.Person(authoritytest.OperatorName)
	s.each(func(r server.Route, name string) {
		kind, body := bodyOf(r, s.foreign[0])
		path := filled(r.Path, s.foreign[0])
		switch {
		case r.Access == openapi.Holder || r.Access == openapi.Component:
			a := s.as(member, r, s.foreign[0])
			assert.Equal(t, http.StatusUnauthorized, a.Status, name)
		case r.Access.Personal():
			for n, token := range s.processes {
				q := s.Request(r.Method, path, kind, body)
				q.Header.Set("Authorization", "DPoP "+token.Reveal())
				q.Header.Set(api.HeaderProof, s.Proof(s.keys[n], r.Method, path, token))
				assert.Equal(t, api.InvalidEnvelope, s.Send(q).Problem().Code, name)
				q = s.Request(r.Method, path, kind, body)
				q.Header.Set(api.HeaderEnvelope, token.Reveal())
				q.Header.Set(api.HeaderProof, s.Proof(s.keys[n], r.Method, path, token))
				assert.Equal(t, api.InvalidEnvelope, s.Send(q).Problem().Code, name)
			}
		}
	})
	assert.Equal(t, before, s.Consumed())
}

// overseen are the things of members that auditors and operators see too, by
// their references. What waits for its owner's answer is not among them.
var overseen = []string{api.PathTasks + "/{reference}", api.PathTasks + "/{reference}/dry-run", api.PathTasks + "/{reference}/revocation", api.PathRuns + "/{reference}", api.PathConsents + "/{reference}"}

// What somebody else has and what nobody has is the same to a member, whatever
// the route; and an auditor's or operator's role lets nobody act as the owner.
func TestSweepWithAnothersReferences(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	unknown := authoritytest.NewAttempt()
	before := s.owned()
	tried := 0
	for _, who := range []string{"member-2", authoritytest.AuditorName, authoritytest.OperatorName} {
		p := s.Person(who)
		s.each(func(r server.Route, name string) {
			if r.Access != openapi.Member {
				return
			}
			named := strings.Contains(r.Path, "{reference}") || r.Path == api.PathFindings && r.Method == http.MethodPost
			if !named {
				a := s.as(p, r, unknown)
				assert.Less(t, a.Status, 300, "%s: %s", name, a.Body)
				for _, reference := range s.foreign {
					assert.NotContains(t, string(a.Body), reference, "%s as %s", name, who)
				}
				return
			}
			if who == authoritytest.OperatorName && strings.HasSuffix(r.Path, "/revoke") || who != "member-2" && r.Method == http.MethodGet && slices.Contains(overseen, r.Path) {
				return // their right
			}
			want := s.as(p, r, unknown)
			assert.Equal(t, api.NotFound, want.Problem().Code, "%s as %s: %s", name, who, want.Body)
			for _, reference := range s.foreign {
				a := s.as(p, r, reference)
				assert.Equal(t, want.Status, a.Status, "%s as %s", name, who)
				assert.Equal(t, string(want.Body), string(a.Body), "%s as %s", name, who)
				assert.Equal(t, want.Header["Content-Type"], a.Header["Content-Type"], name)
				tried++
			}
		})
	}
	assert.Greater(t, tried, 100)
	assert.Equal(t, before, s.owned())
}

// owned is what only its owner could have changed.
func (s *sweep) owned() string {
	s.t.Helper()
	var text string
	require.NoError(s.t, s.Owner.QueryRow(s.t.Context(), `SELECT json_build_object('offers', (SELECT json_agg(o ORDER BY id) FROM nw.offers o), 'consents', (SELECT json_agg(c ORDER BY id) FROM nw.consents c),
		'lanes', (SELECT json_agg(l ORDER BY task_id) FROM nw.lanes l), 'decisions', (SELECT json_agg(d ORDER BY id) FROM nw.decisions d), 'findings', (SELECT count(*) FROM nw.findings),
		'registry', (SELECT json_agg(g ORDER BY id) FROM nw.registry g), 'runs', (SELECT count(*) FROM nw.runs))::text`).Scan(&text))
	return text
}

// Roles are asked for again at every route that has one: a member gets nothing of
// an operator's, and an auditor reads and changes nothing.
func TestSweepOfRoles(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	before := s.owned()
	seen := map[openapi.Access]int{}
	for who, role := range map[string]openapi.Access{"member-2": openapi.Member, authoritytest.MemberName: openapi.Member, authoritytest.AuditorName: openapi.Auditor} {
		p := s.Person(who)
		s.each(func(r server.Route, name string) {
			if r.Access != openapi.Auditor && r.Access != openapi.Operator {
				return
			}
			seen[r.Access]++
			for _, reference := range []string{s.foreign[0], authoritytest.NewAttempt()} {
				a := s.as(p, r, reference)
				if r.Access == openapi.Auditor && role == openapi.Auditor {
					assert.NotEqual(t, api.Forbidden, a.Problem().Code, "%s as %s", name, who)
					continue
				}
				assert.Equal(t, http.StatusForbidden, a.Status, "%s as %s: %s", name, who, a.Body)
				assert.Equal(t, api.Forbidden, a.Problem().Code, "%s as %s", name, who)
			}
		})
	}
	assert.Greater(t, seen[openapi.Auditor], 3*5)
	assert.Greater(t, seen[openapi.Operator], 3*4)
	assert.Equal(t, before, s.owned())
	operator := s.Person(authoritytest.OperatorName)
	s.each(func(r server.Route, name string) {
		if r.Access == openapi.Auditor {
			assert.NotEqual(t, api.Forbidden, s.as(operator, r, s.foreign[0]).Problem().Code, name)
		}
	})
}
