package server_test

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

func answerPath(offer string) string { return api.PathOffers + "/" + offer + "/answer" }

// What a product may not ask is refused with its code, and nothing has happened.
func TestProductsAreRefused(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	p := h.Product()
	edit := func(from, to string) func(*api.StartOffer) {
		return func(s *api.StartOffer) {
			require.Contains(t, string(s.Details[0]), from)
			s.Details[0] = json.RawMessage(strings.Replace(string(s.Details[0]), from, to, 1))
		}
	}
	back := func(uri string) func(*api.StartOffer) { return func(s *api.StartOffer) { s.ReturnURI = uri } }
	titled := func(title string) func(*api.StartOffer) {
		return func(s *api.StartOffer) { s.Details[0] = authoritytest.Detail("task", "1", title) }
	}
	for name, c := range map[string]struct {
		code   api.Code
		change func(*api.StartOffer)
	}{
		"somebody of elsewhere":    {api.InvalidRequest, func(s *api.StartOffer) { s.For.Issuer = "https://elsewhere.example" }},
		"nobody":                   {api.InvalidDocument, func(s *api.StartOffer) { s.For.Subject = "" }},
		"everybody":                {api.InvalidDocument, func(s *api.StartOffer) { s.For.Subject = "*" }},
		"no detail":                {api.InvalidAuthorizationDetails, func(s *api.StartOffer) { s.Details = []json.RawMessage{} }},
		"two details":              {api.InvalidAuthorizationDetails, func(s *api.StartOffer) { s.Details = append(s.Details, s.Details[0]) }},
		"a detail of another type": {api.InvalidDocument, edit(api.DetailTypeTask, api.DetailTypeEffect)},
		"another client":           {api.InvalidDocument, edit(`"dial"`, `"client":"bank","dial"`)},
		"another owner":            {api.InvalidDocument, edit(`"dial"`, `"owner":{"issuer":"https://x.example","subject":"member-2"},"dial"`)},
		"another kind":             {api.InvalidDocument, edit(`"dial"`, `"kind":"Policy","dial"`)},
		"a name twice":             {api.InvalidDocument, edit(`"dial"`, `"name":"other","dial"`)},
		"a member twice":           {api.InvalidRequest, edit(`"dial"`, `"dial":"high","dial"`)},
		"a role that it may not":   {api.Forbidden, edit(`"role":"bookkeeper"`, `"role":"auditor"`)},
		"a policy that it may not": {api.Forbidden, edit(`"policy":"default"`, `"policy":"lax"`)},
		"a role that there is not": {api.InvalidDocument, edit(`"role_revision":1`, `"role_revision":2`)},
		"an action of no role":     {api.InvalidDocument, edit(`row.append`, `row.read`)},
		"more than the policy":     {api.InvalidDocument, edit(`"effects":5`, `"effects":11`)},
		"for longer":               {api.InvalidDocument, edit(`"days":30`, `"days":91`)},
		"no end":                   {api.InvalidDocument, edit(`"days":30`, `"days":0`)},
		// Open redirects: an address is one of the registered ones, byte for byte.
		"no way back":            {api.InvalidRequest, back("")},
		"a way elsewhere":        {api.InvalidRequest, back("https://evil.example/back")},
		"a way that goes on":     {api.InvalidRequest, back(authoritytest.ReturnURI + "/../evil")},
		"a way with a query":     {api.InvalidRequest, back(authoritytest.ReturnURI + "?to=evil")},
		"a way with a fragment":  {api.InvalidRequest, back(authoritytest.ReturnURI + "#x")},
		"a way in capitals":      {api.InvalidRequest, back("https://BOOKS.example/back")},
		"a way with a user":      {api.InvalidRequest, back("https://books.example@evil.example/back")},
		"a way with a slash":     {api.InvalidRequest, back(authoritytest.ReturnURI + "/")},
		"no state":               {api.InvalidRequest, func(s *api.StartOffer) { s.State = "" }},
		"a long state":           {api.InvalidRequest, func(s *api.StartOffer) { s.State = strings.Repeat("x", 257) }},
		"a state with a newline": {api.InvalidRequest, func(s *api.StartOffer) { s.State = "a\nLocation: x" }},
		// Texts that a person would read otherwise than they are.
		"a title that turns around": {api.InvalidDocument, titled("Close the \u202eyad")},
		"a title with controls":     {api.InvalidDocument, titled("Close\u0007 the day")},
		"an invisible title":        {api.InvalidDocument, titled("\u2800\u200b")},
		"an endless title":          {api.InvalidDocument, titled(strings.Repeat("day ", 40))},
	} {
		s := authoritytest.Starting("task")
		c.change(&s)
		a := refusedWith(t, h, c.code, func() authoritytest.Answer { return p.Call("POST", api.PathOffers, s) })
		assert.Less(t, a.Status, 500, name)
		assert.NotContains(t, string(a.Body), "\u202e", name)
	}
	assert.Zero(t, h.Count(`SELECT count(*) FROM nw.tasks`))
	assert.Positive(t, h.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'offer' AND verdict = 'forbidden'`))

	guard := h.Guard()
	refusedWith(t, h, api.Forbidden, func() authoritytest.Answer { return guard.Call("POST", api.PathOffers, authoritytest.Starting("task")) })
	refusedWith(t, h, api.PayloadTooLarge, func() authoritytest.Answer {
		s := authoritytest.Starting("task")
		s.State = strings.Repeat("x", 70_000)
		return p.Call("POST", api.PathOffers, s)
	})
	h.Close()
	h.See()
	refusedWith(t, h, api.AdmissionClosed, func() authoritytest.Answer { return p.Call("POST", api.PathOffers, authoritytest.Starting("task")) })
}

// From a product's question to its answer: only the person who was asked can answer, with what was allowed; the link back says what belongs to
// the product and nothing of authority; and the product learns and ends what came of it.
func TestAProductsOffer(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	p, other := h.Product(), h.ProductNamed("other-web", "system:serviceaccount:web:other", 3)
	started := p.Start(authoritytest.Starting("close-the-day-4711"))
	assert.Equal(t, h.URL+"/offers/"+started.Offer, started.Page)

	// A forwarded link is worth nothing.
	for _, who := range []string{"member-2", authoritytest.OperatorName} {
		refusedWith(t, h, api.NotFound, func() authoritytest.Answer {
			return h.Send(h.Person(who).Request("GET", api.PathOffers+"/"+started.Offer, "", nil))
		})
	}
	member := h.Person(authoritytest.MemberName)
	var o api.Offer
	require.NoError(t, member.Do("GET", api.PathOffers+"/"+started.Offer, "", nil, &o))
	assert.Equal(t, authoritytest.ProductName, o.Product)
	assert.Empty(t, o.ReturnTo, "there is no answer yet")
	before := member.JSON("POST", api.PathOffers+"/"+started.Offer+"/narrow", api.Choice{Limits: api.Limits{Effects: 6}}, nil)
	assert.Equal(t, api.NotOffered, codeOf(before))
	require.NoError(t, member.JSON("POST", api.PathOffers+"/"+started.Offer+"/narrow", api.Choice{Ticked: []int{1}, Limits: api.Limits{Effects: 2}}, &o))

	var answer api.OfferAnswer
	h.Into(p.Call("GET", answerPath(started.Offer), nil), &answer)
	assert.Equal(t, "open", answer.State)
	assert.Empty(t, answer.Consent)
	var given api.Consent
	require.NoError(t, member.JSON("POST", api.PathOffers+"/"+started.Offer+"/consent", api.Answer{Digest: o.Chosen.Digest}, &given))
	link, err := url.Parse(given.ReturnTo)
	require.NoError(t, err)
	assert.Equal(t, url.Values{"state": {"xyzzy"}, "offer": {started.Offer}, "iss": {h.URL}}, link.Query())
	link.RawQuery = ""
	assert.Equal(t, authoritytest.ReturnURI, link.String())

	h.Into(p.Call("GET", answerPath(started.Offer), nil), &answer)
	assert.Equal(t, api.OfferAnswer{Offer: started.Offer, Task: o.Task, State: "accepted", ExpiresAt: o.ExpiresAt, Consent: given.Consent}, answer)
	var state api.ConsentState
	h.Into(p.Call("GET", api.PathConsents+"/"+given.Consent+"/state", nil), &state)
	assert.Equal(t, []string{"active", o.Chosen.Digest}, []string{state.State, state.Digest})
	granted, err := document.ParseConsent(state.Document)
	require.NoError(t, err)
	assert.EqualValues(t, 2, granted.Limits.Effects, "exactly what was granted")
	assert.Len(t, granted.Grants, 2)
	assert.NotContains(t, string(state.Document), authoritytest.MemberName)

	// What is another product's is not there.
	for _, path := range []string{answerPath(started.Offer), api.PathConsents + "/" + given.Consent + "/state", answerPath(strings.Repeat("A", 22)), answerPath("x")} {
		refusedWith(t, h, api.NotFound, func() authoritytest.Answer { return other.Call("GET", path, nil) })
	}
	for _, path := range []string{api.PathConsents + "/" + given.Consent + "/end", api.PathOffers + "/" + started.Offer + "/withdraw"} {
		refusedWith(t, h, api.NotFound, func() authoritytest.Answer { return other.Call("POST", path, nil) })
	}
	refusedWith(t, h, api.Forbidden, func() authoritytest.Answer {
		return other.Call("POST", api.PathOffers, authoritytest.Starting("close-the-day-4711"))
	})
	refusedWith(t, h, api.OfferEnded, func() authoritytest.Answer {
		return p.Call("POST", api.PathOffers+"/"+started.Offer+"/withdraw", nil)
	})

	w := h.Claim(h.Plan(o.Task))
	h.Close() // less is always possible
	h.See()
	var ended api.Epoch
	h.Into(p.Call("POST", api.PathConsents+"/"+given.Consent+"/end", nil), &ended)
	assert.Equal(t, o.Task, ended.Task)
	assert.Greater(t, ended.ActivationEpoch, given.ActivationEpoch)
	h.Open()
	assert.Equal(t, api.AuthorityChanged, w.Mint("book", "rent").Problem().Code)
	refusedWith(t, h, api.ConsentEnded, func() authoritytest.Answer { return p.Call("POST", api.PathConsents+"/"+given.Consent+"/end", nil) })
	h.Into(p.Call("GET", api.PathConsents+"/"+given.Consent+"/state", nil), &state)
	assert.Equal(t, "revoked", state.State)
}

// The same question has one offer; a no is a no to this revision; a later revision ends what was and asks anew.
func TestAProductAsksAgain(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	p := h.Product()
	member := h.Person(authoritytest.MemberName)
	answer := func(offer, how string) {
		t.Helper()
		var o api.Offer
		require.NoError(t, member.Do("GET", api.PathOffers+"/"+offer, "", nil, &o))
		require.NoError(t, member.JSON("POST", api.PathOffers+"/"+offer+"/"+how, api.Answer{Digest: o.Digest}, nil))
	}
	revised := func(name, revision string) api.StartOffer {
		s := authoritytest.Starting(name)
		s.Details[0] = authoritytest.Detail(name, revision, "Close the day")
		return s
	}
	first := p.Start(authoritytest.Starting("a"))
	assert.Equal(t, first, p.Start(authoritytest.Starting("a")), "its answer was lost")
	elsewhere := authoritytest.Starting("a")
	elsewhere.State = "another"
	second := p.Start(elsewhere)
	assert.NotEqual(t, first, second, "another state needs another link back")
	var o api.Offer
	require.NoError(t, member.Do("GET", api.PathOffers+"/"+first.Offer, "", nil, &o))
	assert.Equal(t, "replaced", o.State)
	assert.Equal(t, api.OfferEnded, codeOf(member.JSON("POST", api.PathOffers+"/"+first.Offer+"/consent", api.Answer{Digest: o.Digest}, nil)), "a stale page")

	answer(second.Offer, "decline")
	require.NoError(t, member.Do("GET", api.PathOffers+"/"+second.Offer, "", nil, &o))
	assert.Contains(t, o.ReturnTo, "&state=another")
	refusedWith(t, h, api.OfferEnded, func() authoritytest.Answer { return p.Call("POST", api.PathOffers, authoritytest.Starting("a")) })

	third := p.Start(revised("a", "2"))
	answer(third.Offer, "consent")
	assert.Equal(t, third, p.Start(revised("a", "2")), "it is agreed to")
	epoch := h.Count(`SELECT activation_epoch FROM nw.lanes`)
	refusedWith(t, h, api.RevisionStale, func() authoritytest.Answer { return p.Call("POST", api.PathOffers, authoritytest.Starting("a")) })
	changed := revised("a", "2")
	changed.Details[0] = authoritytest.Detail("a", "2", "Open the day")
	refusedWith(t, h, api.RevisionImmutable, func() authoritytest.Answer { return p.Call("POST", api.PathOffers, changed) })
	assert.Equal(t, epoch, h.Count(`SELECT activation_epoch FROM nw.lanes`))

	next := p.Start(revised("a", "3"))
	assert.NotEqual(t, third, next)
	assert.Greater(t, h.Count(`SELECT activation_epoch FROM nw.lanes`), epoch)
	assert.Zero(t, h.Count(`SELECT count(*) FROM nw.consents WHERE state = 'active'`), "what was is over")
	require.NoError(t, member.Do("GET", api.PathOffers+"/"+next.Offer, "", nil, &o))
	h.Into(p.Call("POST", api.PathOffers+"/"+next.Offer+"/withdraw", nil), nil)
	assert.Equal(t, api.OfferEnded, codeOf(member.JSON("POST", api.PathOffers+"/"+next.Offer+"/consent", api.Answer{Digest: o.Digest}, nil)))

	// A product hands no task over, and an operator's is no product's.
	theirs := authoritytest.Starting("a")
	theirs.For.Subject = "member-2"
	theirs.Details[0] = authoritytest.Detail("a", "4", "Close the day")
	refusedWith(t, h, api.Forbidden, func() authoritytest.Answer { return p.Call("POST", api.PathOffers, theirs) })
	h.Apply(h.Task("operated"))
	refusedWith(t, h, api.Forbidden, func() authoritytest.Answer { return p.Call("POST", api.PathOffers, revised("operated", "2")) })
}

// A product asks one person, and all together, only so often; answers make room.
func TestAProductAsksOnlySoOften(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	p := h.Product()
	first := p.Start(authoritytest.Starting("a"))
	p.Start(authoritytest.Starting("b"))
	full := func(s api.StartOffer) {
		t.Helper()
		a := refusedWith(t, h, api.TooManyOffers, func() authoritytest.Answer { return p.Call("POST", api.PathOffers, s) })
		assert.Equal(t, 429, a.Status)
		assert.NotEmpty(t, a.Header.Get("Retry-After"))
	}
	full(authoritytest.Starting("c"))
	assert.Equal(t, first, p.Start(authoritytest.Starting("a")), "what waits already is no more")
	theirs := authoritytest.Starting("c")
	theirs.For.Subject = "member-2"
	p.Start(theirs)
	theirs = authoritytest.Starting("d")
	theirs.For.Subject = "member-3"
	full(theirs)
	h.Into(p.Call("POST", api.PathOffers+"/"+first.Offer+"/withdraw", nil), nil)
	p.Start(theirs)

	// Not by withdrawing either: twenty a day to one person.
	h.Exec(`UPDATE nw.offers SET state = 'replaced' WHERE state = 'open'`)
	for i := range 18 {
		h.Into(p.Call("POST", api.PathOffers+"/"+p.Start(authoritytest.Starting("e"+strconv.Itoa(i))).Offer+"/withdraw", nil), nil)
	}
	full(authoritytest.Starting("f"))
}
