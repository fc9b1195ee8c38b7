package server_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/directory"
)

// longer than an answer of the directory counts.
const forgetful = 20 * time.Second

// forgotten waits until the directory must be asked again, and says what comes of it.
func forgotten(t *testing.T, w *authoritytest.Holder, want api.Code) {
	t.Helper()
	var got api.Code
	require.Eventually(t, func() bool {
		got = w.Renew().Problem().Code
		return got == want
	}, forgetful, 50*time.Millisecond, "%s", &got)
}

// reads the offers of somebody.
func offersOf(t *testing.T, h *authoritytest.House, who string) (open []api.Offer) {
	t.Helper()
	var page api.Page[api.Offer]
	require.NoError(t, h.Person(who).Do("GET", api.PathOffers, "", nil, &page))
	for _, o := range page.Items {
		if o.State == "open" {
			open = append(open, o)
		}
	}
	return open
}

// strandedTo is what somebody sees of tasks whose owner has left.
func strandedTo(t *testing.T, h *authoritytest.House, who string) ([]api.StrandedTask, error) {
	t.Helper()
	p, err := h.Authority.Envelopes.FromEnvelope(t.Context(), h.Envelope(who))
	require.NoError(t, err)
	page, err := h.Authority.Stranded(t.Context(), h.Authority.FromSession(p, [32]byte{1}), "")
	return page.Items, err
}

func consents(h *authoritytest.House, who string, o api.Offer) error {
	return h.Person(who).JSON("POST", api.PathOffers+"/"+o.Offer+"/consent", api.Answer{Digest: o.Digest}, nil)
}

// B12: while the directory does not answer, nothing is claimed, renewed, minted, admitted, consented to or approved, and nothing is consumed. What
// stops something stays possible, and when it answers again everything goes on where it was.
func TestWithoutADirectoryNothingIsAdmitted(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	g := h.Guard()
	task, second, third := h.Consent(h.Task("first")), h.Consent(h.Task("second")), h.Consent(h.Task("third"))
	w, run, asking := h.Claim(h.Plan(task)), h.Plan(second), h.Claim(h.Plan(third))
	minted := w.Minted("step", "value")
	asked := asking.Ask("step", deletion("entries", `{"id":7}`))
	require.Equal(t, api.ApprovalRequired, asked.Problem().Code)
	c := card(t, h, asked.Problem().Decision)
	h.Apply(h.Task("fourth"))
	offer := offersOf(t, h, authoritytest.MemberName)[0]

	h.People.Break(true)
	forgotten(t, w, api.DirectoryUnavailable)
	rows := h.Count(`SELECT count(*) FROM nw.audit WHERE verdict = 'directory_unavailable'`)
	for _, send := range []func() authoritytest.Answer{
		w.Renew,
		func() authoritytest.Answer { return w.Mint("next", "value") },
		func() authoritytest.Answer { return g.Admit(g.Ask(w, minted, "value", authoritytest.NewAttempt())) },
		func() authoritytest.Answer {
			return h.Send(h.Form(h.Key(), authoritytest.ClaimForm(run, h.Assertion(authoritytest.WorkerClaim))))
		},
	} {
		a := refusedWith(t, h, api.DirectoryUnavailable, send)
		assert.Equal(t, http.StatusServiceUnavailable, a.Status)
		assert.NotEmpty(t, a.Header.Get("Retry-After"))
		assert.NotContains(t, string(a.Body), authoritytest.MemberName)
	}
	before := h.Consumed()
	assert.Equal(t, api.DirectoryUnavailable, codeOf(consents(h, authoritytest.MemberName, offer)))
	assert.Equal(t, api.DirectoryUnavailable, codeOf(decide(h, authoritytest.MemberName, c.Decision, c.Digest, "approve")))
	assert.Equal(t, before, h.Consumed())
	assert.Equal(t, rows+6, h.Count(`SELECT count(*) FROM nw.audit WHERE verdict = 'directory_unavailable'`), "each refusal has its row")
	require.NoError(t, decide(h, authoritytest.MemberName, c.Decision, c.Digest, "deny"), "a no needs nobody")
	assert.NotContains(t, h.Log.String(), authoritytest.MemberName)

	h.People.Break(false)
	require.Equal(t, http.StatusOK, w.Renew().Status)
	require.Equal(t, http.StatusOK, g.Admit(g.Ask(w, minted, "value", authoritytest.NewAttempt())).Status)
	h.Claim(run)
	require.NoError(t, consents(h, authoritytest.MemberName, offer))
}

// B12: whoever leaves ends everything that they have consented to, at once, in whatever state it is; what somebody else has consented to goes on.
// Operators see what is stranded. Whoever comes back must consent again.
func TestWhoLeavesEndsEverything(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	g := h.Guard()
	task, second, third := h.Consent(h.Task("first")), h.Consent(h.Task("second")), h.Consent(h.Task("third"))
	h.Apply(strings.Replace(h.Task("theirs"), "subject: member-1", "subject: member-2", 1))
	theirs := offersOf(t, h, "member-2")[0]
	require.NoError(t, consents(h, "member-2", theirs))
	w, queued, asking, others := h.Claim(h.Plan(task)), h.Plan(second), h.Claim(h.Plan(third)), h.Claim(h.Plan(theirs.Task))
	minted := w.Minted("step", "value")
	card := asking.Ask("step", deletion("entries", `{"id":7}`)).Problem().Decision
	require.NotEmpty(t, card)

	h.People.Say(h.Platform.URL, authoritytest.MemberName, directory.Absent)
	forgotten(t, w, api.AuthorityChanged)
	assert.EqualValues(t, 3, h.Count(`SELECT count(*) FROM nw.consents WHERE state = 'revoked'`))
	assert.EqualValues(t, 3, h.Count(`SELECT count(*) FROM nw.departures x JOIN nw.lanes l USING (task_id) WHERE x.epoch = l.activation_epoch AND l.consent_id IS NULL`))
	assert.EqualValues(t, 3, h.Count(`SELECT count(*) FROM nw.runs WHERE state = 'revoked'`))
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.schedules`))
	assert.Zero(t, h.Count(`SELECT count(*) FROM nw.decisions WHERE state = 'pending'`))
	refusedWith(t, h, api.AuthorityChanged, func() authoritytest.Answer { return g.Admit(g.Ask(w, minted, "value", authoritytest.NewAttempt())) })
	refusedWith(t, h, api.AuthorityChanged, func() authoritytest.Answer { return w.Mint("next", "value") })
	refusedWith(t, h, api.RunEnded, func() authoritytest.Answer {
		return h.Send(h.Form(h.Key(), authoritytest.ClaimForm(queued, h.Assertion(authoritytest.WorkerClaim))))
	})
	require.Equal(t, http.StatusOK, others.Renew().Status)
	require.Equal(t, http.StatusOK, others.Mint("step", "value").Status)

	stranded, err := strandedTo(t, h, authoritytest.OperatorName)
	require.NoError(t, err)
	require.Len(t, stranded, 3)
	assert.Subset(t, []string{task, second, third}, []string{stranded[0].Task, stranded[1].Task, stranded[2].Task})
	assert.Equal(t, "Close the day", stranded[0].Title)
	_, err = strandedTo(t, h, "member-2")
	assert.Equal(t, api.Forbidden, codeOf(err))

	h.Apply(strings.Replace(h.Task("first"), "\nrevision: 1\n", "\nrevision: 2\n", 1))
	offer := offersOf(t, h, authoritytest.MemberName)[0]
	before := h.Consumed()
	assert.Equal(t, api.NotAMember, codeOf(consents(h, authoritytest.MemberName, offer)))
	assert.Equal(t, before, h.Consumed())

	h.People.Say(h.Platform.URL, authoritytest.MemberName, directory.Present)
	refusedWith(t, h, api.AuthorityChanged, w.Renew)
	assert.Empty(t, h.Count(`SELECT count(*) FROM nw.lanes l JOIN nw.tasks k ON k.id = l.task_id WHERE l.consent_id IS NOT NULL AND k.ref = $1`, authoritytest.Raw(task)), "nobody has consented again")
	require.NoError(t, consents(h, authoritytest.MemberName, offer))
	stranded, err = strandedTo(t, h, authoritytest.OperatorName)
	require.NoError(t, err)
	assert.Len(t, stranded, 2)
	h.Claim(h.Plan(task))
}

// A task whose owner has left is handed over by its next revision, under nothing but the new owner's consent. To the old one it is nobody's.
func TestAHandOverNeedsAConsentOfTheNewOwner(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	w := h.Claim(h.Plan(task))
	h.People.Say(h.Platform.URL, authoritytest.MemberName, directory.Absent)
	forgotten(t, w, api.AuthorityChanged)
	over := strings.NewReplacer("subject: member-1", "subject: member-2", "\nrevision: 1\n", "\nrevision: 2\n").Replace(h.Task("close-the-day"))
	same := strings.Replace(h.Task("close-the-day"), "subject: member-1", "subject: member-2", 1)
	assert.Equal(t, api.RevisionImmutable, codeOf(h.Person(authoritytest.OperatorName).Do("POST", api.PathRegistry, "application/yaml", []byte(same), nil)), "a revision has one owner")
	h.Apply(over)
	assert.Empty(t, offersOf(t, h, authoritytest.MemberName))
	offer := offersOf(t, h, "member-2")[0]
	assert.Equal(t, task, offer.Task, "it is the same task")
	assert.Zero(t, h.Count(`SELECT count(*) FROM nw.lanes WHERE consent_id IS NOT NULL`), "handing over consents to nothing")

	h.People.Say(h.Platform.URL, authoritytest.MemberName, directory.Present) // and back
	before := h.Consumed()
	for _, o := range []api.Offer{offer} {
		assert.Equal(t, api.NotFound, codeOf(consents(h, authoritytest.MemberName, o)))
	}
	assert.Equal(t, before, h.Consumed())
	assert.Equal(t, api.NotFound, codeOf(h.Person(authoritytest.MemberName).JSON("POST", api.PathTasks+"/"+task+"/revoke", nil, nil)), "it is not theirs any more")
	require.NoError(t, consents(h, "member-2", offer))
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.consents c JOIN nw.tasks k ON k.owner = c.member AND k.id = c.task_id WHERE c.state = 'active'`))
	w = h.Claim(h.Plan(task))
	h.People.Say(h.Platform.URL, "member-2", directory.Absent)
	forgotten(t, w, api.AuthorityChanged)
}

// Two replicas of one cluster have memories of their own: an answer that one has counts at the other only when it is brought there.
func TestAReplicaWithoutMemoryAsks(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	w := h.Claim(h.Plan(task))
	asked := h.People.Asked()
	require.Equal(t, http.StatusOK, w.Renew().Status)
	_, gate, other := h.Replica(h.Bundle)
	_, err := gate.Current(t.Context())
	require.NoError(t, err)
	answer := httptest.NewRecorder()
	other.Handler().ServeHTTP(answer, h.Bearing(w.Key, w.Token, "POST", api.PathRenew, api.RenewRequest{}))
	require.Equal(t, http.StatusOK, answer.Code, answer.Body.String())
	assert.GreaterOrEqual(t, h.People.Asked(), asked+1)
}

// In the steady state the directory is asked once in a while for each member, however much is admitted, and each admission is one round trip.
func TestQuestionsAreFew(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	var holders []*authoritytest.Holder
	for _, name := range []string{"a", "b", "c", "d"} {
		holders = append(holders, h.Claim(h.Plan(h.Consent(h.Task(name)))))
	}
	asked, trips, began := h.People.Asked(), h.Pool.Stat().AcquireCount(), time.Now()
	var sent atomic.Int64
	var all sync.WaitGroup
	for _, w := range holders {
		all.Go(func() {
			for done := 0; done < 25 && sent.Load() < 1000; sent.Add(1) {
				a := w.Renew()
				if a.Status == http.StatusOK {
					done++
				} else { // a busy machine may see the decision too late
					assert.Contains(t, []api.Code{api.AdmissionClosed, api.Unavailable}, a.Problem().Code, string(a.Body))
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	require.Less(t, sent.Load(), int64(1000))
	questions := int64(h.People.Asked() - asked)
	assert.LessOrEqual(t, questions, int64(took/time.Second)+2, "one member, a question for each 1.5 s")
	looks := int64(took/(200*time.Millisecond)) + 2 // of the house itself, at the decision
	assert.LessOrEqual(t, h.Pool.Stat().AcquireCount()-trips, sent.Load()+4*questions+looks)
}
