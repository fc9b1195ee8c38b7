package notify

import (
	"context"
	"errors"
	netmail "net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/mail"
)

// office is a mail server and a directory on paper.
type office struct {
	lock   sync.Mutex // mails are sent at once
	sent   []mail.Message
	fails  error
	asked  []string
	at     string
	unsure error
}

func (o *office) Send(_ context.Context, m mail.Message) error {
	o.lock.Lock()
	defer o.lock.Unlock()
	if o.fails == nil {
		o.sent = append(o.sent, m)
	}
	return o.fails
}

func (o *office) Ready(context.Context) error { return o.fails }

func (o *office) Address(_ context.Context, issuer, subject string) (netmail.Address, error) {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.asked = append(o.asked, issuer+" "+subject)
	return netmail.Address{Address: o.at}, o.unsure
}

const operators = "operators@platform.example"

func newMail(t testing.TB, o *office) *Mail {
	t.Helper()
	m, err := NewMail(o, o, operators)
	require.NoError(t, err)
	return m
}

func owned(kind string) Notice {
	n := aNotice(kind)
	n.Owner = &Owner{"https://platform.example", "member-1"}
	return n
}

func TestMailNeeds(t *testing.T) {
	t.Parallel()
	o := &office{}
	for _, c := range []struct {
		s  Sender
		a  Addresses
		to string
	}{{nil, o, operators}, {o, nil, operators}, {o, o, ""}, {o, o, "Operators <a@b.example>"}} {
		_, err := NewMail(c.s, c.a, c.to)
		require.Error(t, err)
	}
	_, err := New(Config{Store: &shelf{}, Poster: post(taking), Mailer: newMail(t, o), Link: "x"})
	require.Error(t, err, "a notifier tells by one channel")
}

// The text is exactly this: what happened, until when, a link.
func TestLetters(t *testing.T) {
	t.Parallel()
	o := &office{at: "ada@people.example"}
	require.NoError(t, newMail(t, o).Mail(t.Context(), "one", "https://console.example", []Notice{owned("asked")}))
	assert.Equal(t, []mail.Message{{To: "ada@people.example", ID: "one", Subject: "A task of yours waits for your decision", Text: `A task of yours waits for your decision.
Until 2026-11-29 12:00 UTC.
https://console.example/decisions/AQEBAQEBAQEBAQEBAQEBAQ

This message grants nothing and asks for no answer. The page asks who is looking.
`}}, o.sent)
	assert.Equal(t, []string{"https://platform.example member-1"}, o.asked)

	paused := owned("task_paused")
	paused.Expires = nil
	require.NoError(t, newMail(t, o).Mail(t.Context(), "two", "https://console.example", []Notice{owned("consent_expiring"), paused}))
	assert.Equal(t, mail.Message{To: "ada@people.example", ID: "two", Subject: "2 notices about tasks of yours", Text: `2026-11-29 11:00 UTC  A consent of yours is about to end.
Until 2026-11-29 12:00 UTC.
https://console.example/receipts/AQEBAQEBAQEBAQEBAQEBAQ

2026-11-29 11:00 UTC  A task of yours was cut off, and what it was doing has ended.
https://console.example/tasks/AwMDAwMDAwMDAwMDAwMDAw

This message grants nothing and asks for no answer. The page asks who is looking.
`}, o.sent[1])
	require.Error(t, newMail(t, o).Mail(t.Context(), "x", "", []Notice{owned("gossip")}))
}

// Every kind can be told, in lines that a mail may have.
func TestEveryKindHasALetter(t *testing.T) {
	t.Parallel()
	subjects := map[string]bool{}
	for k := range kinds {
		m, err := letter("https://console.example", []Notice{owned(k)})
		require.NoError(t, err)
		subjects[m.Subject] = true
		assert.Contains(t, m.Text, "https://console.example/", k)
		assert.NotContains(t, m.Text, "member-1")
	}
	assert.Len(t, subjects, len(kinds))
}

// What is for nobody any more is the operators' business; what has no address is refused; what nobody knows comes again.
func TestWhere(t *testing.T) {
	t.Parallel()
	send := func(o *office, n Notice) error { return newMail(t, o).Mail(t.Context(), "one", "", []Notice{n}) }
	o := &office{unsure: directory.ErrNoMember}
	require.NoError(t, send(o, owned("task_paused")))
	require.Len(t, o.sent, 1)
	assert.Equal(t, operators, o.sent[0].To)
	assert.True(t, strings.HasPrefix(o.sent[0].Text, "This is for the owner of a task whom the directory does not have"))
	require.NoError(t, send(o, aNotice("task_paused")), "whose name nobody knows")
	assert.Len(t, o.asked, 1)

	var refused *Refused
	require.ErrorAs(t, send(&office{unsure: directory.ErrNoAddress}, owned("asked")), &refused)
	require.ErrorAs(t, send(&office{at: "a@b.example>\r\nRCPT TO:<eve@c.example"}, owned("asked")), &refused)
	assert.Equal(t, 550, refused.Status)
	require.ErrorAs(t, send(&office{at: "a@b.example", fails: &mail.Refused{Code: 552}}, owned("asked")), &refused)
	assert.Equal(t, 552, refused.Status)
	for _, o := range []*office{{unsure: errors.New("directory: it did not answer")}, {at: "a@b.example", fails: errors.New("away")}} {
		err := send(o, owned("asked"))
		require.Error(t, err)
		_, is := errors.AsType[*Refused](err)
		assert.False(t, is)
		assert.Empty(t, o.sent)
	}
}

// One by one and together, by one notifier: one id for each message, and each notice is settled.
func TestMailsAreTold(t *testing.T) {
	t.Parallel()
	o := &office{at: "ada@people.example"}
	s := &shelf{due: []Notice{owned("asked")}, daily: []Notice{owned("run_ended"), owned("ambiguous")}}
	n := newNotifier(t, s, nil, func(c *Config) { c.Poster, c.Mailer = nil, newMail(t, o) })
	assert.Equal(t, ByMail, n.Channel())
	more, err := n.Once(t.Context())
	require.NoError(t, err)
	assert.True(t, more, "another member may have a mail too")
	require.Len(t, o.sent, 2)
	ids := []string{o.sent[0].ID, o.sent[1].ID}
	assert.ElementsMatch(t, []string{id(owned("asked")), id(owned("run_ended"), owned("ambiguous"))}, ids)
	assert.ElementsMatch(t, []settled{{"asked", true}, {"run_ended", true}, {"ambiguous", true}}, s.settled)
	more, err = n.Once(t.Context())
	require.NoError(t, err)
	assert.False(t, more)

	o.fails = &mail.Refused{Code: 552}
	s.daily, s.settled = []Notice{owned("run_ended"), owned("ambiguous")}, nil
	_, err = n.Once(t.Context())
	require.NoError(t, err)
	assert.ElementsMatch(t, []settled{{"run_ended", false}, {"ambiguous", false}}, s.settled)
}

// The family is bad when the mail server is away or lets nobody in.
func TestLookAtMail(t *testing.T) {
	t.Parallel()
	for want, fails := range map[string]error{Good: nil, Unreachable: errors.New("away"), Unwanted: &mail.Refused{Code: 535}} {
		n := newNotifier(t, &shelf{}, nil, func(c *Config) { c.Poster, c.Mailer = nil, newMail(t, &office{fails: fails}) })
		reason, _ := n.Look(t.Context())
		assert.Equal(t, want, reason)
	}
	assert.Less(t, mailWithin, again, "no other replica takes what is still on its way")
	assert.Less(t, mailWithin, 15*time.Second)
}
