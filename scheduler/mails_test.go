package scheduler

import (
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/directory/scimserver"
	"github.com/nightwarrant/nightwarrant/internal/leaks"
	"github.com/nightwarrant/nightwarrant/internal/mail"
	"github.com/nightwarrant/nightwarrant/internal/mail/sink"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
)

// pigeon is a mailer on paper.
type pigeon struct {
	mu    sync.Mutex
	took  [][]notify.Notice
	fails error
}

func (p *pigeon) Mail(_ context.Context, _, _ string, told []notify.Notice) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails == nil {
		p.took = append(p.took, told)
	}
	return p.fails
}

func (p *pigeon) Ready(context.Context) error { return p.fails }

// post is a hall whose owners are told by mail too.
type post struct {
	*hall
	pigeon *pigeon
}

func newPost(t testing.TB) *post {
	t.Helper()
	p := &pigeon{}
	return &post{newHall(t, func(c *Config) { c.Mail = p }), p}
}

// mailed delivers what is due and returns the kinds of each mail.
func (p *post) mailed(t testing.TB) (all [][]string) {
	t.Helper()
	require.NoError(t, p.mailOnce(within(t)))
	for _, told := range p.pigeon.took {
		var kinds []string
		for _, n := range told {
			kinds = append(kinds, n.Kind)
		}
		all = append(all, kinds)
	}
	p.pigeon.took = nil
	return all
}

// choose sets when a task's owner has their mails; none is at once.
func (p *post) choose(t testing.TB, k fixture.Task, hour *int) {
	t.Helper()
	owner := fixture.Value[[]byte](t, p.World, `SELECT owner FROM nw.tasks WHERE id = $1`, k.ID)
	require.Equal(t, "ok", fixture.Value[string](t, p.World, `SELECT verdict FROM nw.set_notices($1, $2, clock_timestamp() + interval '1 hour', $3, clock_timestamp(), $4, $5)`, owner, fixture.Random(), fixture.Random(), fixture.Random(), hour))
}

// Both channels are told of each thing, once each, and neither waits for the other.
func TestTwoChannels(t *testing.T) {
	t.Parallel()
	p := newPost(t)
	c := p.ask(t, fixture.TaskOptions{})
	p.box.refuse = func(notify.Message) error { return errors.New("away") }
	require.Error(t, p.notifyOnce(within(t)))
	assert.Equal(t, [][]string{{"asked"}}, p.mailed(t))
	assert.Empty(t, p.mailed(t))
	assert.Equal(t, []string{"asked due", "reminder due"}, p.noticesOf(t, c.ref), "the webhook has not had it")
	p.box.refuse = nil
	p.pigeon.fails = errors.New("away")
	p.later(t, time.Minute)
	assert.Equal(t, []string{notify.TypeAsked}, types(p.tell(t)))
	require.NoError(t, p.assessOnce(within(t)))
	assert.Equal(t, "unreachable", p.approvalsSay(t), "one of the two is away")
	p.pigeon.fails = nil
	require.NoError(t, p.assessOnce(within(t)))
	assert.Equal(t, "good", p.approvalsSay(t))
	list, err := ListUntold(within(t), p.DB.Pool(t, "nw_operator"))
	require.NoError(t, err)
	assert.Empty(t, list)
}

// A notice of a task tells who owns it, as its document says: for a mail and for nothing else.
func TestWhoseMailItIs(t *testing.T) {
	t.Parallel()
	p := newPost(t)
	c := p.ask(t, fixture.TaskOptions{})
	const doc = `{"owner":{"issuer":"https://platform.example","subject":"ada"}}`
	p.Exec(t, `INSERT INTO nw.documents (digest, kind, body) VALUES (sha256($1::text::bytea), 'task', $1::text::bytea)`, doc)
	p.Exec(t, `INSERT INTO nw.task_revisions (task_id, revision, document, role_id, policy_id) SELECT task_id, revision + 1, sha256($1::text::bytea), role_id, policy_id FROM nw.task_revisions WHERE task_id = $2`,
		doc, c.lane.Task.ID)
	require.Len(t, p.mailed(t), 1)
	took := func() *notify.Owner {
		p.later(t, time.Minute)
		p.Exec(t, `UPDATE nw.notices SET next_at = clock_timestamp() WHERE channel = 'mail' AND kind = 'reminder'`)
		list, err := shelf{p.store, []string{"webhook", "mail"}, "mail"}.Take(within(t), 8, time.Second)
		require.NoError(t, err)
		require.Len(t, list, 1)
		return list[0].Owner
	}
	assert.Nil(t, took(), "the document is somebody else's")
	p.Exec(t, `UPDATE nw.notices SET member = sha256('nightwarrant/member/v1'::bytea || '\x00' || 'https://platform.example'::bytea || '\x00' || 'ada'::bytea)`)
	assert.Equal(t, &notify.Owner{Issuer: "https://platform.example", Subject: "ada"}, took())
	list, err := p.byWebhook().Take(within(t), 8, time.Second)
	require.NoError(t, err)
	require.NotEmpty(t, list)
	assert.Nil(t, list[0].Owner, "a webhook does not say it")
}

// Whoever wants one mail a day has one, at their hour, with all of it; a card does not wait for it.
func TestOneMailADay(t *testing.T) {
	t.Parallel()
	p := newPost(t)
	c := p.ask(t, fixture.TaskOptions{})
	p.Exec(t, `DELETE FROM nw.notices WHERE kind = 'reminder'`)
	other := p.Task(t, fixture.TaskOptions{})
	soon := (p.Now(t).UTC().Hour() + 2) % 24
	p.CutOff(other).OK(t, p.Owner)
	p.choose(t, c.lane.Task, &soon)
	p.choose(t, other, &soon)
	owner := fixture.Value[[]byte](t, p.World, `SELECT owner FROM nw.tasks WHERE id = $1`, other.ID)
	p.CutOff(other).OK(t, p.Owner)
	p.Exec(t, `UPDATE nw.notices SET member = $1 WHERE member <> $1`, owner) // one person has both
	assert.Equal(t, [][]string{{"asked"}}, p.mailed(t), "a card is told at once")
	assert.Len(t, p.tell(t), 3, "and a webhook does not wait for an hour")
	w, err := shelf{p.store, nil, "mail"}.Waiting(within(t))
	require.NoError(t, err)
	assert.Zero(t, w.Due, "nothing is late")

	at := fixture.Value[time.Time](t, p.World, `SELECT min(next_at) FROM nw.notices WHERE daily`).UTC()
	assert.Equal(t, soon, at.Hour())
	assert.Zero(t, at.Minute()+at.Second())
	p.later(t, 2*time.Hour)
	got := p.mailed(t)
	require.Len(t, got, 1)
	assert.ElementsMatch(t, []string{"task_paused", "task_paused"}, got[0])
	assert.Empty(t, p.mailed(t))

	p.CutOff(other).OK(t, p.Owner)
	p.Exec(t, `UPDATE nw.notices SET member = $1 WHERE member <> $1`, owner)
	assert.Empty(t, p.mailed(t))
	p.choose(t, other, nil)
	assert.Equal(t, [][]string{{"task_paused"}}, p.mailed(t), "the choice holds for what waits")
}

// A mail that could not be sent comes again with all of it; two replicas send one.
func TestADigestComesAgain(t *testing.T) {
	t.Parallel()
	p := newPost(t)
	k := p.Task(t, fixture.TaskOptions{})
	hour := 3
	p.Exec(t, `DELETE FROM nw.notices WHERE kind = 'consent_expiring'`) // whether it is due a day later depends on the hour
	p.choose(t, k, &hour)
	for range 3 {
		p.CutOff(k).OK(t, p.Owner)
	}
	p.later(t, 24*time.Hour)
	p.pigeon.fails = errors.New("away")
	require.Error(t, p.mailOnce(within(t)))
	assert.Empty(t, p.pigeon.took)
	p.pigeon.fails = nil
	p.later(t, 11*time.Second)
	other := newScheduler(t, p.World, p.paper, func(c *Config) { c.Webhook, c.Mail = p.box, p.pigeon })
	var group sync.WaitGroup
	failed := make([]error, 2)
	for i, s := range []*Scheduler{p.Scheduler, other} {
		group.Go(func() { failed[i] = s.mailOnce(within(t)) })
	}
	group.Wait()
	require.NoError(t, errors.Join(failed...))
	require.Len(t, p.pigeon.took, 1)
	assert.Len(t, p.pigeon.took[0], 3)
	assert.Zero(t, fixture.Value[int64](t, p.World, `SELECT count(*) FROM nw.notices WHERE kind = 'task_paused' AND channel = 'mail'`))
}

// token is a bearer token of a test.
type token string

func (t token) Reveal() string { return string(t) }

// A card comes as a mail to whoever the directory says, and to the operators when they have left; nowhere does an address stay.
func TestAMailArrives(t *testing.T) {
	t.Parallel()
	people := scimserver.New("directory's token")
	people.Add("ada", "ada@people.example")
	web := httptest.NewServer(people)
	t.Cleanup(web.Close)
	members, err := directory.NewSCIM(directory.Config{URL: web.URL, Issuer: "https://platform.example", Timeout: directory.MaxTimeout,
		Token: func() (directory.Secret, error) { return token("directory's token"), nil }})
	require.NoError(t, err)
	t.Cleanup(members.Close)
	box, err := sink.Start(t.Context(), "127.0.0.1:0", sink.Config{User: "nightwarrant", Password: "hush"})
	require.NoError(t, err)
	t.Cleanup(box.Close)
	server, err := mail.New(mail.Config{URL: "smtp://" + box.Address(), User: "nightwarrant", Password: func() string { return "hush" }, From: "notices@nightwarrant.example"})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	by, err := notify.NewMail(server, members, "operators@platform.example")
	require.NoError(t, err)

	h := newHall(t)
	s := newScheduler(t, h.World, h.paper, func(c *Config) { c.Webhook, c.Mail = nil, by })
	require.NoError(t, s.assessOnce(within(t)))
	c := h.ask(t, fixture.TaskOptions{})
	ownedBy(t, h.World, c.lane.Task, "ada")
	require.NoError(t, s.mailOnce(within(t)))
	got := box.Mails()
	require.Len(t, got, 1)
	assert.Equal(t, "ada@people.example", got[0].To)
	assert.Contains(t, got[0].Data, testLink+"/decisions/"+encode(c.ref[:])+"\r\n")

	people.SetActive("ada", false)
	h.Exec(t, `UPDATE nw.notices SET next_at = clock_timestamp() WHERE kind = 'reminder'`)
	require.NoError(t, s.mailOnce(within(t)))
	require.Len(t, box.Mails(), 2)
	assert.Equal(t, "operators@platform.example", box.Mails()[1].To)

	dump, err := leaks.Database(within(t), h.DB.URL(teststack.Superuser))
	require.NoError(t, err)
	assert.NotContains(t, string(dump), "people.example")
	web.Close()
	h.CutOff(c.lane.Task).OK(t, h.Owner)
	h.Exec(t, `UPDATE nw.notices SET member = (SELECT member FROM nw.notices WHERE kind = 'consent_expiring' LIMIT 1)`)
	require.ErrorContains(t, s.mailOnce(within(t)), "directory")
	assert.Len(t, box.Mails(), 2)
}

// ownedBy writes down whose a task is, in a revision of it.
func ownedBy(t testing.TB, w *fixture.World, k fixture.Task, subject string) {
	t.Helper()
	doc := `{"owner":{"issuer":"https://platform.example","subject":"` + subject + `"}}`
	w.Exec(t, `INSERT INTO nw.documents (digest, kind, body) VALUES (sha256($1::text::bytea), 'task', $1::text::bytea)`, doc)
	w.Exec(t, `INSERT INTO nw.task_revisions (task_id, revision, document, role_id, policy_id) SELECT task_id, revision + 1, sha256($1::text::bytea), role_id, policy_id FROM nw.task_revisions WHERE task_id = $2`, doc, k.ID)
	w.Exec(t, `UPDATE nw.notices SET member = sha256('nightwarrant/member/v1'::bytea || '\x00' || 'https://platform.example'::bytea || '\x00' || $1::text::bytea)`, subject)
}

// A cluster may tell by mail alone.
func TestMailAlone(t *testing.T) {
	t.Parallel()
	pigeon := &pigeon{}
	h := newHall(t)
	s := newScheduler(t, h.World, h.paper, func(c *Config) { c.Webhook, c.Mail = nil, pigeon })
	h.ask(t, fixture.TaskOptions{})
	require.NoError(t, s.mailOnce(within(t)))
	require.Len(t, pigeon.took, 1)
	assert.Len(t, s.Health(), 7)
	require.NoError(t, s.assessOnce(within(t)))
	h.later(t, 2*time.Hour)
	require.NoError(t, s.mailOnce(within(t)))
	assert.Zero(t, fixture.Value[int64](t, h.World, `SELECT count(*) FROM nw.notices WHERE channel = 'webhook' AND kind = 'asked'`), "nobody takes it")
}

// An hour of the day is found on either side of midnight.
func TestTheNextHour(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	for at, want := range map[string]string{"2026-11-29 07:59:59Z": "2026-11-29 08:00:00Z", "2026-11-29 08:00:00Z": "2026-11-29 08:00:00Z", "2026-11-29 08:00:01Z": "2026-11-30 08:00:00Z",
		"2026-12-31 23:00:00+00": "2027-01-01 08:00:00Z", "2026-11-29 09:30:00+02": "2026-11-29 08:00:00Z"} {
		assert.True(t, fixture.Value[bool](t, w, `SELECT nw.next_hour($1::text::timestamptz, 8::smallint) = $2::text::timestamptz`, at, want), at)
	}
}
