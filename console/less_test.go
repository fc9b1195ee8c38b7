package console_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// optional makes the second grant of the standard task an optional one.
func optional(task string) string {
	return strings.Replace(task, `action: row.delete, resource: "table:entries"`, `action: row.delete, resource: "table:entries", optional: true`, 1)
}

// What is chosen of an offer is shown before the yes, and it is that which is stored, word for word.
func TestLessIsAllowed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Apply(optional(s.Task("close-the-day")))
	me := s.visitor(authoritytest.MemberName)
	at := link(t, me.get("/").Body, "/offers/")
	page := me.get(at)
	assert.Contains(t, page.Body, "Not ticked")
	form := me.get(at + "/less")
	require.Equal(t, http.StatusOK, form.Status)
	assert.NotContains(t, form.Body, " checked", "nothing is ticked before")
	digest := field(t, form.Body, "digest")
	kept := me.post(at+"/less", "digest", digest, "grant", "1", "dial", "read", "silence", "wait", "effects", "2", "until", "")
	require.Equal(t, http.StatusSeeOther, kept.Status, kept.Body)
	require.Equal(t, at+"/review", kept.Header.Get("Location"))
	review := me.get(at + "/review")
	assert.Contains(t, review.Body, "How your choice differs")
	assert.Contains(t, review.Body, "Delete rows")
	chosen := field(t, review.Body, "digest")
	require.NotEqual(t, digest, chosen)
	given := me.post(at+"/consent", "digest", chosen)
	require.Equal(t, http.StatusSeeOther, given.Status, given.Body)
	assert.EqualValues(t, 1, s.Count(`SELECT count(*) FROM nw.consents WHERE digest = $1`, authoritytest.Raw(chosen)))
}

// Whatever would be more than was offered, or cannot be read, is said beside its field, and nothing is kept.
func TestMoreIsNotLess(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Apply(optional(s.Task("close-the-day")))
	me := s.visitor(authoritytest.MemberName)
	at := link(t, me.get("/").Body, "/offers/")
	digest := field(t, me.get(at+"/less").Body, "digest")
	for name, c := range map[string][]string{
		"effects": {"effects", "6"}, "runtime": {"runtime", "11"}, "letters": {"effects", "many"}, "none": {"effects", "0"}, "below": {"effects", "-1"}, "late": {"until", "2099-01-01"},
		"past": {"until", "2020-01-01"}, "tick": {"grant", "0"}, "a tick elsewhere": {"grant", "7"}, "no tick": {"grant", "x"}, "dial": {"dial", "high"}, "silence": {"silence", "perhaps"},
	} {
		fields := map[string]string{"digest": digest, "dial": "", "silence": "", "until": ""}
		fields[c[0]] = c[1]
		var list []string
		for k, v := range fields {
			list = append(list, k, v)
		}
		a := me.post(at+"/less", list...)
		assert.Contains(t, []int{http.StatusUnprocessableEntity, http.StatusConflict}, a.Status, name)
		assert.Contains(t, a.Body, "Nothing was kept yet", name)
		assert.Equal(t, http.StatusSeeOther, me.get(at+"/review").Status, name)
	}
	other := me.post(at+"/less", "digest", strings.Repeat("A", 43), "dial", "", "silence", "", "until", "")
	assert.Equal(t, http.StatusConflict, other.Status)
	assert.Contains(t, other.Body, "not what you were shown")
}

// Who comes from a product goes back to it with either answer, over a link that was registered; who has only its link can answer nothing.
func TestAProductIsAnswered(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.Product()
	me := s.visitor(authoritytest.MemberName)
	yes := "/offers/" + p.Start(authoritytest.Starting("yes")).Offer
	page := me.get(yes)
	require.Equal(t, http.StatusOK, page.Status, page.Body)
	assert.Contains(t, page.Body, "its product books-web started this offer")
	assert.NotContains(t, page.Body, authoritytest.ReturnURI, "before the answer there is no way around it")
	digest := field(t, page.Body, "digest")
	stranger := s.visitor("member-2")
	assert.Equal(t, http.StatusNotFound, stranger.get(yes).Status)
	assert.Equal(t, http.StatusNotFound, stranger.post(yes+"/consent", "digest", digest).Status)
	given := me.post(yes+"/consent", "digest", digest)
	require.Equal(t, http.StatusSeeOther, given.Status, given.Body)
	receipt := me.get(given.Header.Get("Location"))
	assert.Contains(t, receipt.Body, `href="`+authoritytest.ReturnURI+`?iss=`)
	assert.Contains(t, receipt.Body, "state=xyzzy")
	assert.Equal(t, http.StatusGone, me.post(yes+"/decline", "digest", digest).Status)

	no := "/offers/" + p.Start(authoritytest.Starting("no")).Offer
	denied := me.post(no+"/decline", "digest", field(t, me.get(no).Body, "digest"))
	require.Equal(t, no, denied.Header.Get("Location"))
	after := me.get(no)
	assert.Contains(t, after.Body, "You did not allow it.")
	assert.Contains(t, after.Body, `href="`+authoritytest.ReturnURI+`?iss=`)
	other := strings.Split(given.Header.Get("Location"), "?")[0] + "?offer=" + strings.TrimPrefix(no, "/offers/")
	assert.NotContains(t, me.get(other).Body, authoritytest.ReturnURI, "another task's way back")
}
