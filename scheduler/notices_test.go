package scheduler

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
)

// hall is a stage with a receiver on paper.
type hall struct {
	*stage
	box *box
}

func newHall(t testing.TB, change ...func(*Config)) *hall {
	t.Helper()
	b := &box{}
	return &hall{newStage(t, append(change, func(c *Config) { c.Webhook = b })...), b}
}

// byWebhook is where the notices of that channel are.
func (h *hall) byWebhook() shelf {
	return shelf{h.store, []string{notify.ByWebhook}, notify.ByWebhook}
}

// card is a question that waits for its owner.
type card struct {
	lane   *fixture.Lane
	effect fixture.Effect
	ref    fixture.Ref
}

func (h *hall) ask(t testing.TB, o fixture.TaskOptions) card {
	t.Helper()
	c := card{h.Held(t, o), fixture.NewEffect(), fixture.NewRef()}
	verdict, err := c.lane.Ask(c.effect, c.ref).Verdict(within(t), h.Owner)
	require.NoError(t, err)
	require.Equal(t, "approval_required", verdict)
	return c
}

// tell delivers what is due and returns it.
func (h *hall) tell(t testing.TB) []notify.Message {
	t.Helper()
	require.NoError(t, h.notifyOnce(within(t)))
	return h.box.take()
}

// notices lists what waits for a card, run or effect, as kind and state.
func (h *hall) noticesOf(t testing.TB, ref fixture.Ref) (list []string) {
	t.Helper()
	type row struct{ Kind, State string }
	for _, r := range fixture.List[row](t, h.World, `SELECT kind, state FROM nw.notices WHERE matter = $1 AND channel = 'webhook' ORDER BY kind`, ref[:]) {
		list = append(list, r.Kind+" "+r.State)
	}
	return list
}

// later lets so much time pass for every notice.
func (h *hall) later(t testing.TB, d time.Duration) {
	t.Helper()
	h.Exec(t, `UPDATE nw.notices SET due_at = due_at - make_interval(secs => $1), next_at = next_at - make_interval(secs => $1)`, d.Seconds())
}

func types(list []notify.Message) (all []string) {
	for _, m := range list {
		all = append(all, m.Type)
	}
	return all
}

// The owner is told at once, also while nothing is admitted: once, with references and nothing else.
func TestAnOwnerIsTold(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	c := h.ask(t, fixture.TaskOptions{})
	h.CloseGate(t)
	got := h.tell(t)
	require.Len(t, got, 1)
	m := got[0]
	owner := fixture.Value[[]byte](t, h.World, `SELECT owner FROM nw.tasks WHERE id = $1`, c.lane.Task.ID)
	asked, until := fixture.Value[time.Time](t, h.World, `SELECT asked_at FROM nw.decisions`).UTC(), fixture.Value[time.Time](t, h.World, `SELECT expires_at FROM nw.decisions`).UTC()
	assert.Equal(t, notify.Message{Type: notify.TypeAsked, Timestamp: asked, Data: notify.Data{Member: encode(owner), Task: encode(c.lane.Task.Ref[:]), Run: encode(c.lane.Run.Ref[:]),
		Decision: encode(c.ref[:]), ExpiresAt: &until, Link: testLink + "/decisions/" + encode(c.ref[:])}}, m)
	assert.Empty(t, h.tell(t))
	assert.Equal(t, []string{"reminder due"}, h.noticesOf(t, c.ref))
	assert.EqualValues(t, 1, fixture.Value[int64](t, h.World, `SELECT count(*) FROM nw.audit WHERE verb = 'notice' AND verdict = 'ok' AND run_id = $1
		AND convert_from(body, 'UTF8')::json->'more'->>'state' = 'delivered' AND convert_from(body, 'UTF8')::json->'more'->>'matter' = encode($2, 'hex')`, c.lane.Run.ID, c.ref[:]))
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// A reminder comes once, when half of the time is over.
func TestAReminder(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	c := h.ask(t, fixture.TaskOptions{})
	require.Equal(t, []string{notify.TypeAsked}, types(h.tell(t)))
	half := fixture.Value[float64](t, h.World, `SELECT extract(epoch FROM n.due_at - d.asked_at) / extract(epoch FROM d.expires_at - d.asked_at) FROM nw.notices n JOIN nw.decisions d ON d.ref = n.matter AND n.channel = 'webhook'`)
	assert.InDelta(t, 0.5, half, 0.001)
	h.later(t, 28*time.Minute) // of 58: the run must have time for what is approved
	assert.Empty(t, h.tell(t), "before half of it is over")
	h.later(t, 2*time.Minute)
	assert.Equal(t, []string{notify.TypeReminder}, types(h.tell(t)))
	h.later(t, time.Hour)
	assert.Empty(t, h.tell(t))
	assert.Empty(t, h.noticesOf(t, c.ref))
}

// Of a card that lives for less than two minutes nobody is reminded in its last one.
func TestAShortCardHasNoReminder(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	for limit, want := range map[time.Duration][]string{220 * time.Second: {"asked due"}, 260 * time.Second: {"asked due", "reminder due"}} { // two minutes of it are for doing what is approved
		c := h.ask(t, fixture.TaskOptions{RunLimit: limit})
		assert.Equal(t, want, h.noticesOf(t, c.ref), limit)
	}
}

// Whoever has answered is not told any more, whatever the answer was; nor is anybody when the card has closed.
func TestACardThatIsOver(t *testing.T) {
	t.Parallel()
	told := map[string][]string{"approved": {notify.TypeDecided}, "denied": {notify.TypeDecided}, "revoked": {notify.TypeTaskPaused, notify.TypeRunEnded}, "silent": {notify.TypeRunEnded}}
	for name, end := range map[string]func(testing.TB, *hall, card){
		"approved": func(t testing.TB, h *hall, c card) { c.lane.Decide(t, "approve", c.ref, c.effect).OK(t, h.Owner) },
		"denied":   func(t testing.TB, h *hall, c card) { c.lane.Decide(t, "deny", c.ref, c.effect).OK(t, h.Owner) },
		"revoked":  func(t testing.TB, h *hall, c card) { h.Revoke(c.lane.Task).OK(t, h.Owner) },
		"silent": func(t testing.TB, h *hall, c card) {
			h.Exec(t, `ALTER TABLE nw.decisions DISABLE TRIGGER decisions_fixed`)
			h.Exec(t, `UPDATE nw.decisions SET expires_at = clock_timestamp()`)
			h.Exec(t, `ALTER TABLE nw.decisions ENABLE TRIGGER decisions_fixed`)
			n, err := h.store.expireDecisions(within(t), 10)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHall(t)
			c := h.ask(t, fixture.TaskOptions{})
			require.Len(t, h.noticesOf(t, c.ref), 2)
			end(t, h, c)
			if name == "approved" || name == "denied" {
				assert.Equal(t, []string{"decided due"}, h.noticesOf(t, c.ref))
			} else {
				assert.Empty(t, h.noticesOf(t, c.ref))
			}
			assert.ElementsMatch(t, told[name], types(h.tell(t)))
		})
	}
}

// A card whose time is over, and that nobody has closed yet, is not announced.
func TestNobodyIsAskedTooLate(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	h.ask(t, fixture.TaskOptions{})
	h.Exec(t, `UPDATE nw.notices SET expires_at = clock_timestamp()`)
	assert.Empty(t, h.tell(t))
	w, err := h.byWebhook().Waiting(within(t))
	require.NoError(t, err)
	assert.Zero(t, w)
}

// How a run ended is told when it did not succeed; when an effect is ambiguous, that is told, and not twice.
func TestEndsAreTold(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	task := h.Task(t, fixture.TaskOptions{})
	h.Settle(t, h.Claim(t, h.NewRun(t, task).ID))
	assert.Empty(t, h.tell(t), "a run that succeeded is no news")

	hold := h.Claim(t, h.NewRun(t, task).ID)
	h.Exec(t, `SELECT nw.finish_run($1, 'stopped_by_limit')`, hold.Run.ID)
	got := h.tell(t)
	require.Len(t, got, 1)
	assert.Equal(t, []string{notify.TypeRunEnded, encode(hold.Run.Ref[:]), encode(task.Ref[:]), testLink + "/runs/" + encode(hold.Run.Ref[:])},
		[]string{got[0].Type, got[0].Data.Run, got[0].Data.Task, got[0].Data.Link})
	assert.Nil(t, got[0].Data.ExpiresAt)

	hold = h.Claim(t, h.NewRun(t, task).ID)
	effect := h.Admitted(t, hold, time.Minute)
	h.Land(t, effect, "ambiguous")
	require.Equal(t, "ambiguous", h.RunByID(t, hold.Run.ID).State)
	got = h.tell(t)
	require.Len(t, got, 1)
	ref := fixture.Value[[]byte](t, h.World, `SELECT ref FROM nw.effects WHERE id = $1`, effect)
	assert.Equal(t, []string{notify.TypeAmbiguous, encode(ref), encode(hold.Run.Ref[:])}, []string{got[0].Type, got[0].Data.Effect, got[0].Data.Run})

	hold = h.Claim(t, h.NewRun(t, task).ID) // as after a fail-over: lost, without any effect
	h.Exec(t, `SELECT nw.finish_run($1, 'ambiguous')`, hold.Run.ID)
	assert.Equal(t, []string{notify.TypeRunEnded}, types(h.tell(t)))
	hold = h.Claim(t, h.NewRun(t, task).ID)
	h.Exec(t, `SELECT nw.finish_run($1, 'lease_lost')`, hold.Run.ID)
	assert.Empty(t, h.tell(t), "a run that goes on has not ended")
}

// A consent is told of when a tenth of its time is left, and at most a week; one that has ended is not.
func TestAConsentIsAboutToEnd(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	now := h.Now(t)
	short, long := h.Task(t, fixture.TaskOptions{Until: now.Add(10 * time.Hour)}), h.Task(t, fixture.TaskOptions{Until: now.Add(365 * 24 * time.Hour)})
	left := func(k fixture.Task) float64 {
		return fixture.Value[float64](t, h.World, `SELECT extract(epoch FROM n.expires_at - n.due_at)::float8 FROM nw.notices n JOIN nw.consents c ON c.ref = n.matter WHERE c.id = $1 AND n.channel = 'webhook'`, k.Consent)
	}
	assert.InDelta(t, time.Hour.Seconds(), left(short), 5)
	assert.InDelta(t, (7 * 24 * time.Hour).Seconds(), left(long), 5)
	assert.Empty(t, h.tell(t))
	h.later(t, 9*time.Hour+time.Minute)
	got := h.tell(t)
	require.Len(t, got, 1)
	ref, until := fixture.Value[[]byte](t, h.World, `SELECT ref FROM nw.consents WHERE id = $1`, short.Consent), fixture.Value[time.Time](t, h.World, `SELECT expires_at FROM nw.consents WHERE id = $1`, short.Consent).UTC()
	assert.Equal(t, []string{notify.TypeConsentExpiring, encode(ref), encode(short.Ref[:]), "", testLink + "/receipts/" + encode(ref)},
		[]string{got[0].Type, got[0].Data.Consent, got[0].Data.Task, got[0].Data.Run, got[0].Data.Link})
	assert.Equal(t, until, *got[0].Data.ExpiresAt)
	h.Revoke(long).OK(t, h.Owner)
	assert.Zero(t, fixture.Value[int64](t, h.World, `SELECT count(*) FROM nw.notices WHERE channel = 'webhook' AND kind <> 'task_paused'`))
	h.tell(t)
	late := h.Task(t, fixture.TaskOptions{Until: now.Add(10 * time.Hour)})
	h.Exec(t, `UPDATE nw.notices SET expires_at = clock_timestamp(), next_at = due_at - interval '1 year'`)
	assert.Empty(t, h.tell(t), "%d is over", late.ID)
}

// While the receiver is away, a notice comes again after 10, 20, 40 s and then each minute, and is never given up.
func TestAReceiverThatIsAway(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	c := h.ask(t, fixture.TaskOptions{})
	h.Exec(t, `DELETE FROM nw.notices WHERE kind = 'reminder'`)
	h.box.refuse = func(notify.Message) error { return errors.New("connection refused") }
	for attempt := range 20 {
		require.ErrorContains(t, h.notifyOnce(within(t)), "connection refused")
		require.Len(t, h.assessor.wakes, 1, "that is looked at at once")
		<-h.assessor.wakes
		again := fixture.Value[float64](t, h.World, `SELECT extract(epoch FROM next_at - clock_timestamp())::float8 FROM nw.notices WHERE kind = 'asked' AND channel = 'webhook'`)
		assert.InDelta(t, min(10*float64(int(1)<<min(attempt, 10)), 60), again, 5)
		require.NoError(t, h.notifyOnce(within(t)), "not before its time")
		h.Exec(t, `UPDATE nw.notices SET next_at = clock_timestamp() WHERE kind = 'asked'`)
	}
	assert.Equal(t, []string{"asked due"}, h.noticesOf(t, c.ref))
	h.box.refuse = nil
	assert.Equal(t, []string{notify.TypeAsked}, types(h.tell(t)))
}

// What the receiver refuses eight times is given up, holds up nothing, and stays for operators, who may have it told after all.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	h := newHall(t, func(c *Config) { c.Registerer = registry })
	bad, good := h.ask(t, fixture.TaskOptions{}), h.ask(t, fixture.TaskOptions{})
	h.Exec(t, `DELETE FROM nw.notices WHERE kind = 'reminder'`)
	h.box.refuse = func(m notify.Message) error {
		if m.Data.Decision == encode(bad.ref[:]) {
			return &notify.Refused{Status: 422}
		}
		return nil
	}
	require.Equal(t, []string{notify.TypeAsked}, types(h.tell(t)))
	assert.Empty(t, h.noticesOf(t, good.ref))
	for range 7 {
		require.Equal(t, []string{"asked due"}, h.noticesOf(t, bad.ref))
		h.Exec(t, `UPDATE nw.notices SET next_at = clock_timestamp() WHERE kind = 'asked'`)
		require.Empty(t, h.tell(t))
	}
	require.Equal(t, []string{"asked dead"}, h.noticesOf(t, bad.ref))
	h.Exec(t, `UPDATE nw.notices SET next_at = clock_timestamp() WHERE kind = 'asked'`)
	h.box.refuse = nil
	require.Empty(t, h.tell(t), "it is given up")
	w, err := h.byWebhook().Waiting(within(t))
	require.NoError(t, err)
	assert.Equal(t, notify.Waiting{Dead: 1}, w)
	require.NoError(t, h.assessOnce(within(t)))
	assert.InDelta(t, 1, gathered(t, registry, "nightwarrant_scheduler_notices_dead"), 0)
	assert.InDelta(t, 8, gathered(t, registry, "nightwarrant_scheduler_notices_refused_total"), 0)
	assert.InDelta(t, 1, gathered(t, registry, "nightwarrant_scheduler_notices_delivered_total"), 0)
	assert.EqualValues(t, 1, fixture.Value[int64](t, h.World, `SELECT count(*) FROM nw.audit WHERE verb = 'notice' AND convert_from(body, 'UTF8')::json->'more'->>'state' = 'dead'`))

	operator := h.DB.Pool(t, "nw_operator")
	list, err := ListUntold(within(t), operator)
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, Untold{Matter: bad.ref[:], Kind: "asked", Channel: "webhook", Task: bad.lane.Task.Ref[:], State: "dead", Due: list[0].Due, Attempts: 8, Refusals: 8}, list[0])
	n, err := RetryUntold(within(t), operator)
	require.NoError(t, err)
	assert.EqualValues(t, 1, n)
	assert.Equal(t, []string{notify.TypeAsked}, types(h.tell(t)))
	assert.Empty(t, h.noticesOf(t, bad.ref))
}

// A dead letter about a card that is over is kept until an operator has looked, and is then forgotten and not told.
func TestADeadLetterOfACardThatIsOver(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	c := h.ask(t, fixture.TaskOptions{})
	h.Exec(t, `UPDATE nw.notices SET state = 'dead' WHERE card`)
	c.lane.Decide(t, "approve", c.ref, c.effect).OK(t, h.Owner)
	assert.Equal(t, []string{"asked dead", "decided due", "reminder dead"}, h.noticesOf(t, c.ref))
	h.tell(t)
	n, err := RetryUntold(within(t), h.DB.Pool(t, "nw_operator"))
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.Empty(t, h.noticesOf(t, c.ref))
}

func gathered(t testing.TB, r prometheus.Gatherer, name string) (sum float64) {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// Several replicas tell each owner once; cards come before everything else.
func TestManyReplicasTellOnce(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	task := h.Task(t, fixture.TaskOptions{})
	for range 12 {
		hold := h.Claim(t, h.NewRun(t, task).ID)
		h.Exec(t, `SELECT nw.finish_run($1, 'failed')`, hold.Run.ID)
	}
	last := h.ask(t, fixture.TaskOptions{})
	first := h.tell(t)
	require.Len(t, first, 8)
	require.Len(t, h.notifier.wakes, 1, "there is more")
	assert.Contains(t, types(first), notify.TypeAsked)
	assert.Equal(t, []string{"reminder due"}, h.noticesOf(t, last.ref))
	other := newScheduler(t, h.World, h.paper, func(c *Config) { c.Webhook = h.box })
	var group sync.WaitGroup
	failed := make([]error, 2)
	for i, s := range []*Scheduler{h.Scheduler, other} {
		group.Go(func() { failed[i] = s.notifyOnce(within(t)) })
	}
	group.Wait()
	require.NoError(t, errors.Join(failed...))
	require.Len(t, h.box.take(), 5)
	assert.Len(t, h.box.ids, 13)
	seen := map[string]bool{}
	for _, id := range h.box.ids {
		assert.False(t, seen[id], id)
		seen[id] = true
	}
}

// A crash between delivery and its note repeats the message, under the same id.
func TestACrashRepeatsTheMessage(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	h.ask(t, fixture.TaskOptions{})
	taken, err := h.byWebhook().Take(within(t), 8, 10*time.Second)
	require.NoError(t, err)
	require.Len(t, taken, 1) // posted; and then the process was gone
	assert.Empty(t, h.tell(t))
	h.later(t, 11*time.Second)
	assert.Equal(t, []string{notify.TypeAsked}, types(h.tell(t)))
	dead, err := h.byWebhook().Settle(within(t), taken[0], true)
	require.NoError(t, err)
	assert.False(t, dead, "the other one was faster")
}

// approvals is what this replica has reported of that family.
func (h *hall) approvalsSay(t testing.TB) string {
	t.Helper()
	return fixture.Value[string](t, h.World, `SELECT r.reason::text FROM nw.readiness_reports r JOIN nw.instances i ON i.id = r.instance_id AND i.boot = r.boot WHERE i.instance = $1 AND r.family = 'approvals'`, h.instance[:])
}

// A receiver that is gone closes at once, and says why; so does an owner who is not told in time.
func TestApprovalsClose(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	c := h.ask(t, fixture.TaskOptions{})
	require.NoError(t, h.assessOnce(within(t)))
	assert.Equal(t, []string{"good", "open/good/"}, []string{h.approvalsSay(t), h.gate(t)})
	assert.InDelta(t, 1, total(t, h.metrics.approvalsGood), 0)
	for want, err := range map[string]error{"unreachable": errors.New("away"), "canary": &notify.Refused{Status: 401}} {
		h.CloseGate(t)
		h.OpenGate(t)
		h.box.refuse = func(notify.Message) error { return err }
		require.NoError(t, h.assessOnce(within(t)))
		assert.Equal(t, []string{want, "closed/" + want + "/approvals"}, []string{h.approvalsSay(t), h.gate(t)})
		assert.InDelta(t, 0, total(t, h.metrics.approvalsGood), 0)
	}
	h.box.refuse = func(m notify.Message) error { // one that is there and takes nothing
		if m.Type == notify.TypeProbe {
			return nil
		}
		return errors.New("out of order")
	}
	h.OpenGate(t)
	h.later(t, 59*time.Second)
	require.Error(t, h.notifyOnce(within(t)))
	require.NoError(t, h.assessOnce(within(t)))
	assert.Contains(t, h.gate(t), "open/good")
	h.later(t, 2*time.Second)
	require.NoError(t, h.assessOnce(within(t)))
	assert.Equal(t, "closed/stale/approvals", h.gate(t))

	c.lane.Decide(t, "deny", c.ref, c.effect).OK(t, h.Owner)
	require.NoError(t, h.assessOnce(within(t)))
	assert.Equal(t, "good", h.approvalsSay(t), "the owner knows, and has said no")
}

// News of runs may be late without closing anything: nobody waits for an answer.
func TestOnlyCardsClose(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	hold := h.Claim(t, h.NewRun(t, h.Task(t, fixture.TaskOptions{})).ID)
	h.Exec(t, `SELECT nw.finish_run($1, 'failed')`, hold.Run.ID)
	h.later(t, time.Hour)
	require.NoError(t, h.assessOnce(within(t)))
	assert.Equal(t, "good", h.approvalsSay(t))
}

// A probe that hangs or panics is bad news in time, and a notifier that does not end its step is too.
func TestAnAssessorAnswersForItself(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	h.box.refuse = func(notify.Message) error { panic("in the library") }
	require.NoError(t, h.assessOnce(within(t)))
	assert.Equal(t, "unreachable", h.approvalsSay(t))
	h.approvals.within = 20 * time.Millisecond
	release := make(chan struct{})
	h.box.refuse = func(notify.Message) error { <-release; return nil }
	require.NoError(t, h.assessOnce(within(t)))
	assert.Equal(t, "canary", h.approvalsSay(t))
	close(release)
	h.approvals.probes.Wait()
	h.approvals.within, h.box.refuse = probeWithin, nil
	require.NoError(t, h.assessOnce(within(t)))
	assert.Equal(t, "good", h.approvalsSay(t))
	h.notifier.mark(func(l *LoopHealth) { l.Began = h.now().Add(-stuckAfter - time.Second) })
	require.NoError(t, h.assessOnce(within(t)))
	assert.Equal(t, "unhealthy", h.approvalsSay(t))
	require.NoError(t, h.reportOnce(within(t)))
	assert.True(t, h.reported(t)[0].Healthy, "the queue is another family")
}

// Both families are reported by one boot, whichever is first.
func TestOneBootForEveryFamily(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	var group sync.WaitGroup
	failed := make([]error, 2)
	for i, report := range []func(context.Context) error{h.reportOnce, h.assessOnce} {
		group.Go(func() { failed[i] = report(within(t)) })
	}
	group.Wait()
	require.NoError(t, errors.Join(failed...))
	type row struct {
		Family string
		Boot   int64
	}
	assert.Equal(t, []row{{"approvals", 1}, {"queue", 1}}, fixture.List[row](t, h.World, `SELECT r.family::text, r.boot FROM nw.readiness_reports r JOIN nw.instances i ON i.id = r.instance_id
		WHERE i.instance = $1 ORDER BY r.family`, h.instance[:]))
}

// Whom the notices are for is the scheduler's to know, and nobody else's.
func TestWhoMayTell(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	for sql, allowed := range map[string]string{
		`SELECT FROM nw.take_notices('{webhook}', 'webhook', 1, 1000)`: "nw_scheduler", `SELECT nw.notice_delivered('\x00', 'asked', 'mail')`: "nw_scheduler", `SELECT nw.notice_refused('\x00', 'asked', 'mail')`: "nw_scheduler",
		`SELECT FROM nw.notices_health('mail')`: "nw_scheduler", `SELECT FROM nw.take_digest(1, 1000)`: "nw_scheduler", `SELECT FROM nw.show_notices(1)`: "nw_operator", `SELECT nw.retry_notices()`: "nw_operator",
	} {
		for _, role := range []string{"nw_authority", "nw_scheduler", "nw_operator"} {
			_, err := w.DB.Pool(t, role).Exec(within(t), sql)
			if role == allowed {
				assert.NoError(t, err, "%s: %s", role, sql)
			} else {
				assert.ErrorContains(t, err, "permission denied", "%s: %s", role, sql)
			}
		}
	}
}

// Bugs in what writes notices down and hands them out, and the story that must notice each.
var notTold = map[string]struct {
	function, from, to string
	story              func(testing.TB, *hall) string
}{
	"a card that is told although it is over": {"untell_card", `DELETE FROM notices WHERE`, `DELETE FROM notices WHERE false AND`, toldInVain},
	"a consent that ended and is told of":     {"untell_consent", `DELETE FROM notices WHERE`, `DELETE FROM notices WHERE false AND`, toldOfARevokedOne},
	"a reminder at the wrong half":            {"tell_card", `/ 2)`, `* 2)`, notReminded},
	"a reminder that is forgotten":            {"tell_card", `x.kind = 'asked' OR`, `x.kind = 'asked' AND`, notReminded},
	"a notice that is handed out once":        {"again", `interval '1 minute')`, `interval '1 minute') + interval '1 year'`, notAgain},
	"a notice that is given to everybody":     {"again", `t + least(`, `t - least(`, toldTwice},
	"an outage that counts as a refusal":      {"take_notices", `attempt = x.attempt + 1`, `attempt = x.attempt + 1, state = CASE WHEN x.attempt > 8 THEN 'dead' ELSE 'due' END`, notAgain},
	"an owner who is untold and nobody says":  {"notices_health", `t - min(n.due_at)`, `t - max(t)`, nobodySays},
}

func toldInVain(t testing.TB, h *hall) string {
	c := h.ask(t, fixture.TaskOptions{})
	c.lane.Decide(t, "approve", c.ref, c.effect).OK(t, h.Owner)
	return said(slices.Contains(types(h.tell(t)), notify.TypeAsked), "an owner is asked about what was answered")
}

func toldOfARevokedOne(t testing.TB, h *hall) string {
	k := h.Task(t, fixture.TaskOptions{})
	h.Revoke(k).OK(t, h.Owner)
	h.later(t, 23*time.Hour)
	return said(slices.Contains(types(h.tell(t)), notify.TypeConsentExpiring), "a member is told that a consent which they took back is about to end")
}

func notReminded(t testing.TB, h *hall) string {
	h.ask(t, fixture.TaskOptions{})
	h.tell(t)
	h.later(t, 31*time.Minute)
	return said(len(h.tell(t)) != 1, "an owner is not reminded when half of its time is over")
}

func notAgain(t testing.TB, h *hall) string {
	h.ask(t, fixture.TaskOptions{})
	h.box.refuse = func(notify.Message) error { return errors.New("away") }
	for range 12 {
		_ = h.notifyOnce(within(t)) // it fails
		h.later(t, time.Minute)
	}
	h.box.refuse = nil
	return said(len(h.tell(t)) == 0, "an outage has eaten a notice")
}

func toldTwice(t testing.TB, h *hall) string {
	h.ask(t, fixture.TaskOptions{})
	one, err := h.byWebhook().Take(within(t), 8, 10*time.Second)
	require.NoError(t, err)
	two, err := h.byWebhook().Take(within(t), 8, 10*time.Second)
	require.NoError(t, err)
	return said(len(one)+len(two) != 1, fmt.Sprintf("%d and %d were handed out of one", len(one), len(two)))
}

func nobodySays(t testing.TB, h *hall) string {
	h.ask(t, fixture.TaskOptions{})
	h.later(t, 2*time.Minute)
	w, err := h.byWebhook().Waiting(within(t))
	require.NoError(t, err)
	return said(w.Untold < 2*time.Minute, "nobody notices that an owner was not told")
}

func said(wrong bool, what string) string {
	if wrong {
		return what
	}
	return ""
}

func TestBugsInTelling(t *testing.T) {
	t.Parallel()
	for name, p := range notTold {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Empty(t, p.story(t, newHall(t)), "it goes wrong without the bug")
			h := newHall(t)
			h.Plant(t, p.function, p.from, p.to)
			require.NotEmpty(t, p.story(t, h), "nobody notices the bug")
		})
	}
}
