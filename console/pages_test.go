package console_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// One offer after the other of a task: what is answered otherwise than it was shown, a no, and a yes.
func TestAnOfferIsAnswered(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	part(s.House, "another than shown is refused", s.anotherOfferThanShown)
	part(s.House, "declined", s.offerDeclined)
	part(s.House, "allowed", s.offerAllowed)
}

// From the offer on the first page to a yes, and its task is allowed.
func (s *site) offerAllowed(t *testing.T) {
	s.Apply(strings.Replace(s.Task("close-the-day"), "revision: 1\nowner", "revision: 3\nowner", 1))
	me := s.visitor(authoritytest.MemberName)
	first := me.get("/")
	require.Equal(t, http.StatusOK, first.Status, first.Body)
	assert.Contains(t, first.Body, "Not allowed")
	at := link(t, first.Body, "/offers/")
	offer := me.get(at)
	require.Equal(t, http.StatusOK, offer.Status, offer.Body)
	given := me.post(at+"/consent", "digest", field(t, offer.Body, "digest"))
	require.Equal(t, http.StatusSeeOther, given.Status, given.Body)
	assert.Contains(t, given.Header.Get("Location"), "/receipts/")
	after := me.get("/")
	assert.NotContains(t, after.Body, "Not allowed")
	assert.EqualValues(t, 1, s.Count(`SELECT count(*) FROM nw.consents WHERE state = 'active'`))
}

// A no is one click too, is said once, and is the end of that offer.
func (s *site) offerDeclined(t *testing.T) {
	me := s.visitor(authoritytest.MemberName)
	at := link(t, me.get("/").Body, "/offers/")
	digest := field(t, me.get(at).Body, "digest")
	require.Equal(t, http.StatusSeeOther, me.post(at+"/decline", "digest", digest).Status)
	assert.Contains(t, me.get("/").Body, "You did not allow it.")
	assert.NotContains(t, me.get("/").Body, "You did not allow it.", "it is said once")
	assert.Equal(t, http.StatusGone, me.post(at+"/consent", "digest", digest).Status)
	assert.Zero(t, s.Count(`SELECT count(*) FROM nw.consents`))
}

// What was shown is what is agreed to: one other word between showing and answering, and nothing is recorded.
func (s *site) anotherOfferThanShown(t *testing.T) {
	s.Apply(s.Task("close-the-day"))
	me := s.visitor(authoritytest.MemberName)
	at := link(t, me.get("/").Body, "/offers/")
	shown := field(t, me.get(at).Body, "digest")
	changed := strings.NewReplacer("revision: 1\nowner", "revision: 2\nowner", "Close the day", "Close the week").Replace(s.Task("close-the-day"))
	s.Apply(changed)
	gone := me.post(at+"/consent", "digest", shown)
	assert.Equal(t, http.StatusGone, gone.Status, "the offer that was shown is replaced")
	now := link(t, me.get("/").Body, "/offers/")
	require.NotEqual(t, at, now)
	a := me.post(now+"/consent", "digest", shown)
	assert.Equal(t, http.StatusConflict, a.Status)
	assert.Contains(t, a.Body, "This is not what you were shown.")
	assert.Contains(t, a.Body, `href="`+now+`"`)
	assert.Zero(t, s.Count(`SELECT count(*) FROM nw.consents`))
}

// What is refused about one offer, which nobody has consented to afterwards.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Apply(s.Task("close-the-day"))
	part(s.House, "foreign is unknown", s.foreignIsUnknown)
	part(s.House, "hostile requests", s.hostileRequests)
	part(s.House, "reports are counted", s.reportsAreCounted)
	part(s.House, "a closed gate takes no yes", s.closedGateTakesNoYes)
	assert.Zero(t, s.Count(`SELECT count(*) FROM nw.consents`))
}

// What is foreign and what never was look the same, on every page.
func (s *site) foreignIsUnknown(t *testing.T) {
	at := link(t, s.visitor(authoritytest.MemberName).get("/").Body, "/offers/")
	stranger := s.visitor("member-2")
	none := "/offers/" + strings.Repeat("A", 22)
	theirs, unknown := stranger.get(at), stranger.get(none)
	assert.Equal(t, http.StatusNotFound, theirs.Status)
	assert.Equal(t, unknown.Body, theirs.Body)
	assert.Equal(t, http.StatusNotFound, stranger.post(at+"/consent", "digest", strings.Repeat("A", 43)).Status)
	assert.NotContains(t, stranger.get("/").Body, "Close the day")
}

// With the gate closed, no page takes a yes, and a yes that comes all the same is refused; a no is possible.
func (s *site) closedGateTakesNoYes(t *testing.T) {
	s.Close()
	s.See()
	me := s.visitor(authoritytest.MemberName)
	at := link(t, me.get("/").Body, "/offers/")
	page := me.get(at)
	assert.Contains(t, page.Body, "No yes can be given right now")
	assert.NotContains(t, page.Body, "Allow until")
	digest := field(t, page.Body, "digest")
	assert.Equal(t, http.StatusServiceUnavailable, me.post(at+"/consent", "digest", digest).Status)
	assert.Equal(t, http.StatusSeeOther, me.post(at+"/decline", "digest", digest).Status)
}

// Posts from elsewhere, of another kind, too large or with a field twice are refused, and every page carries what browsers must be told.
func (s *site) hostileRequests(t *testing.T) {
	me := s.visitor(authoritytest.MemberName)
	at := link(t, me.get("/").Body, "/offers/")
	digest := field(t, me.get(at).Body, "digest")

	foreign := me.form(at+"/consent", "digest", digest)
	foreign.Header.Set("Sec-Fetch-Site", "cross-site")
	assert.Equal(t, http.StatusForbidden, me.do(foreign).Status)
	old := me.form(at+"/consent", "digest", digest)
	old.Header.Set("Origin", "https://elsewhere.example")
	assert.Equal(t, http.StatusForbidden, me.do(old).Status)
	text := me.form(at+"/consent", "digest", digest)
	text.Header.Set("Content-Type", "text/plain")
	assert.Equal(t, http.StatusUnsupportedMediaType, me.do(text).Status)
	assert.Equal(t, http.StatusRequestEntityTooLarge, me.post(at+"/consent", "digest", strings.Repeat("A", 20<<10)).Status)
	assert.Equal(t, http.StatusBadRequest, me.post(at+"/consent", "digest", digest, "digest", digest).Status)
	assert.Equal(t, http.StatusConflict, me.post(at+"/consent", "digest", "<script>").Status)
	assert.Equal(t, http.StatusMethodNotAllowed, me.get(at+"/consent").Status)
	assert.Zero(t, s.Count(`SELECT count(*) FROM nw.consents`))

	for _, path := range []string{"/", at, "/decisions", "/nothing", "/settings"} {
		a := me.get(path)
		assert.Contains(t, a.Header.Get("Content-Security-Policy"), "default-src 'none'", path)
		assert.Contains(t, a.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'", path)
		for name, value := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "same-origin",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "X-Frame-Options": "DENY"} {
			assert.Equal(t, value, a.Header.Get(name), path)
		}
		assert.NotEmpty(t, a.Header.Get("Permissions-Policy"))
		assert.NotContains(t, a.Body, "<style")
		assert.NotContains(t, a.Body, "style=")
		assert.Less(t, len(a.Body), 40<<10, path)
	}
}

// The reports of browsers are counted and nothing else.
func (s *site) reportsAreCounted(t *testing.T) {
	nobody := s.visitor("")
	r := nobody.form("/reports/policy", "x", "y")
	r.Header.Set("Content-Type", "application/reports+json")
	assert.Equal(t, http.StatusNoContent, nobody.do(r).Status)
	assert.EqualValues(t, 1, s.Console.Reported())
}

// A card shows exactly what the workload wrote, marked as its, and takes one answer.
func TestADecisionIsMade(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	task := s.Consent(strings.Replace(s.Task("close-the-day"), "dial: low", "dial: read", 1))
	w := s.Claim(s.Plan(task))
	assert.Equal(t, api.ApprovalRequired, w.Mint("book", `<b>rent</b>`+"\u202e").Problem().Code)
	me := s.visitor(authoritytest.MemberName)
	at := link(t, me.get("/decisions").Body, "/decisions/")
	page := me.get(at)
	require.Equal(t, http.StatusOK, page.Status, page.Body)
	assert.Contains(t, page.Body, "Written by the workload")
	assert.NotContains(t, page.Body, "<b>rent")
	assert.Contains(t, page.Body, "&lt;b&gt;rent")
	assert.NotContains(t, page.Body, "\u202e")
	assert.Contains(t, page.Body, "U&#43;202E")
	digest := field(t, page.Body, "digest")
	assert.Equal(t, http.StatusConflict, me.post(at+"/approve", "digest", strings.Repeat("A", 43)).Status)
	require.Equal(t, http.StatusSeeOther, me.post(at+"/approve", "digest", digest).Status)
	after := me.get(at)
	assert.Contains(t, after.Body, "You said yes, once.")
	assert.NotContains(t, after.Body, "Allow this once")
	assert.Equal(t, http.StatusGone, me.post(at+"/deny", "digest", digest).Status)
}
