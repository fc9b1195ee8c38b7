package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// settled is what a notifier said of a notice.
type settled struct {
	kind      string
	delivered bool
}

// shelf is a store on paper.
type shelf struct {
	mu      sync.Mutex
	due     []Notice
	daily   []Notice // of one member
	settled []settled
	dead    bool // what is refused is given up
	fails   error
	waiting Waiting
	limits  []int
}

func (s *shelf) Take(_ context.Context, limit int, _ time.Duration) ([]Notice, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits = append(s.limits, limit)
	taken := s.due[:min(limit, len(s.due))]
	s.due = s.due[len(taken):]
	return taken, s.fails
}

func (s *shelf) Digest(_ context.Context, limit int, _ time.Duration) ([]Notice, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.daily[:min(limit, len(s.daily))]
	s.daily = s.daily[len(taken):]
	return taken, s.fails
}

func (s *shelf) Settle(ctx context.Context, n Notice, delivered bool) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	s.settled = append(s.settled, settled{n.Kind, delivered})
	return s.dead && !delivered, s.fails
}

func (s *shelf) Waiting(context.Context) (Waiting, error) { return s.waiting, s.fails }

// post is a receiver on paper.
type post func(ctx context.Context, id string, body []byte) error

func (p post) Post(ctx context.Context, id string, body []byte) error { return p(ctx, id, body) }

func taking(context.Context, string, []byte) error { return nil }

func newNotifier(t testing.TB, s Store, p Poster, change ...func(*Config)) *Notifier {
	t.Helper()
	c := Config{Store: s, Poster: p, Link: "https://console.example"}
	for _, f := range change {
		f(&c)
	}
	n, err := New(c)
	require.NoError(t, err)
	return n
}

func ref(b byte) []byte { return bytes.Repeat([]byte{b}, 16) }

func aNotice(kind string) Notice {
	at := time.Date(2026, 11, 29, 12, 0, 0, 123456000, time.FixedZone("CET", 3600))
	until := at.Add(time.Hour)
	return Notice{Matter: ref(1), Kind: kind, Member: bytes.Repeat([]byte{2}, 32), Task: ref(3), Run: ref(4), Due: at, Expires: &until, Attempt: 1}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	good := Config{Store: &shelf{}, Poster: post(taking), Link: "x"}
	_, err := New(good)
	require.NoError(t, err)
	taken := prometheus.NewRegistry()
	_, err = newMetrics(taken, ByWebhook)
	require.NoError(t, err)
	for name, change := range map[string]func(*Config){
		"no store": func(c *Config) { c.Store = nil }, "no receiver": func(c *Config) { c.Poster = nil }, "no link": func(c *Config) { c.Link = "" },
		"metrics that are taken": func(c *Config) { c.Registerer = taken },
	} {
		c := good
		change(&c)
		_, err := New(c)
		require.Error(t, err, name)
	}
}

// The body is exactly this.
func TestMessages(t *testing.T) {
	t.Parallel()
	n := newNotifier(t, &shelf{}, post(taking))
	const matter, member, task, run = "AQEBAQEBAQEBAQEBAQEBAQ", "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI", "AwMDAwMDAwMDAwMDAwMDAw", "BAQEBAQEBAQEBAQEBAQEBA"
	const who = `"member":"` + member + `","task":"` + task + `","run":"` + run + `"`
	for kind, want := range map[string]string{
		"asked":     `{"type":"decision.asked","timestamp":"2026-11-29T11:00:00.123456Z","data":{` + who + `,"decision":"` + matter + `","expires_at":"2026-11-29T12:00:00.123456Z","link":"https://console.example/decisions/` + matter + `"}}`,
		"reminder":  `{"type":"decision.reminder","timestamp":"2026-11-29T11:00:00.123456Z","data":{` + who + `,"decision":"` + matter + `","expires_at":"2026-11-29T12:00:00.123456Z","link":"https://console.example/decisions/` + matter + `"}}`,
		"ambiguous": `{"type":"effect.ambiguous","timestamp":"2026-11-29T11:00:00.123456Z","data":{` + who + `,"effect":"` + matter + `","link":"https://console.example/ambiguous#` + matter + `"}}`,
		"run_ended": `{"type":"run.ended","timestamp":"2026-11-29T11:00:00.123456Z","data":{` + strings.Replace(who, run, matter, 1) + `,"link":"https://console.example/runs/` + matter + `"}}`,
	} {
		one := aNotice(kind)
		if kind == "ambiguous" || kind == "run_ended" {
			one.Expires = nil
		}
		body, err := n.message(one)
		require.NoError(t, err)
		assert.Equal(t, want, string(body))
	}
	_, err := n.message(aNotice("gossip"))
	require.Error(t, err)
}

// Every kind has a type of its own, but for nothing else.
func TestKindsAreDistinct(t *testing.T) {
	t.Parallel()
	n, types, ids := newNotifier(t, &shelf{}, post(taking)), map[string]bool{TypeProbe: true}, map[string]bool{}
	for kind := range kinds {
		body, err := n.message(aNotice(kind))
		require.NoError(t, err)
		var m Message
		require.NoError(t, json.Unmarshal(body, &m))
		assert.False(t, types[m.Type], m.Type)
		types[m.Type], ids[id(aNotice(kind))] = true, true
	}
	assert.Len(t, ids, len(kinds))
}

// A message has one id, whoever sends it and however often; another matter or another kind has another.
func TestIdsNameNotices(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) Notice {
			return Notice{Matter: rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name), Kind: rapid.SampledFrom([]string{"asked", "reminder", "run_ended"}).Draw(t, name+" kind"),
				Attempt: rapid.IntRange(1, 9).Draw(t, name+" attempt")}
		}
		a, b := draw("a"), draw("b")
		require.Equal(t, a.Kind == b.Kind && bytes.Equal(a.Matter, b.Matter), id(a) == id(b))
		require.Len(t, id(a), 22)
	})
}

func TestWhatIsDueIsDelivered(t *testing.T) {
	t.Parallel()
	s := &shelf{due: []Notice{aNotice("asked"), aNotice("run_ended")}}
	var mu sync.Mutex
	got := map[string]string{}
	n := newNotifier(t, s, post(func(_ context.Context, id string, body []byte) error {
		mu.Lock()
		defer mu.Unlock()
		var m Message
		got[id] = m.Type
		assert.NoError(t, json.Unmarshal(body, &m))
		got[id] = m.Type
		return nil
	}))
	more, err := n.Once(t.Context())
	require.NoError(t, err)
	assert.False(t, more)
	assert.Equal(t, map[string]string{id(aNotice("asked")): TypeAsked, id(aNotice("run_ended")): TypeRunEnded}, got)
	assert.ElementsMatch(t, []settled{{"asked", true}, {"run_ended", true}}, s.settled)
	more, err = n.Once(t.Context())
	require.NoError(t, err)
	assert.False(t, more)
	assert.Len(t, got, 2)
}

func TestAFullBatchSaysThatThereIsMore(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	for range batch + 1 {
		s.due = append(s.due, aNotice("asked"))
	}
	n := newNotifier(t, s, post(taking))
	more, err := n.Once(t.Context())
	require.NoError(t, err)
	assert.True(t, more)
	more, err = n.Once(t.Context())
	require.NoError(t, err)
	assert.False(t, more)
	assert.Len(t, s.settled, batch+1)
	assert.Equal(t, []int{batch, batch}, s.limits)
}

// A refusal is counted and holds up nothing else; a receiver that is away refuses nothing.
func TestRefusedAndAway(t *testing.T) {
	t.Parallel()
	s := &shelf{due: []Notice{aNotice("asked"), aNotice("reminder"), aNotice("run_ended")}}
	n := newNotifier(t, s, post(func(_ context.Context, which string, _ []byte) error {
		switch which {
		case id(aNotice("asked")):
			return fmt.Errorf("wrapped: %w", &Refused{404})
		case id(aNotice("reminder")):
			return errors.New("connection refused")
		}
		return nil
	}))
	more, err := n.Once(t.Context())
	require.ErrorContains(t, err, "connection refused")
	assert.False(t, more)
	assert.ElementsMatch(t, []settled{{"asked", false}, {"run_ended", true}}, s.settled, "the reminder comes again by itself")
}

func TestWhatIsGivenUpIsSaidAloud(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := &shelf{due: []Notice{aNotice("asked")}, dead: true}
	n := newNotifier(t, s, post(func(context.Context, string, []byte) error { return &Refused{413} }), func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	_, err := n.Once(t.Context())
	require.NoError(t, err)
	assert.Contains(t, log.String(), "level=ERROR")
	assert.Contains(t, log.String(), "its owner does not know")
	assert.NotContains(t, log.String(), encode(aNotice("asked").Member))
}

func TestWhatTheStoreCannotDoIsAnError(t *testing.T) {
	t.Parallel()
	s := &shelf{due: []Notice{aNotice("asked")}, fails: errors.New("no database")}
	_, err := newNotifier(t, s, post(taking)).Once(t.Context())
	require.ErrorContains(t, err, "no database")
	s = &shelf{due: []Notice{aNotice("gossip"), aNotice("asked")}}
	_, err = newNotifier(t, s, post(taking)).Once(t.Context())
	require.ErrorContains(t, err, "gossip")
	assert.Equal(t, []settled{{"asked", true}}, s.settled)
}

func TestAPanicIsOneNoticesTrouble(t *testing.T) {
	t.Parallel()
	s := &shelf{due: []Notice{aNotice("asked"), aNotice("run_ended")}}
	n := newNotifier(t, s, post(func(_ context.Context, which string, _ []byte) error {
		if which == id(aNotice("asked")) {
			panic("in the library")
		}
		return nil
	}))
	_, err := n.Once(t.Context())
	require.ErrorContains(t, err, "panic")
	assert.Equal(t, []settled{{"run_ended", true}}, s.settled)
}

// Whoever is told to end while a message is on its way notes that it arrived.
func TestAnEndLosesNoDelivery(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := &shelf{due: []Notice{aNotice("asked")}}
	_, err := newNotifier(t, s, post(func(context.Context, string, []byte) error { cancel(); return nil })).Once(ctx)
	require.NoError(t, err)
	assert.Equal(t, []settled{{"asked", true}}, s.settled)
}

// A receiver that never answers costs its deadline, for all of a batch at once.
func TestEveryPostHasADeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		for range batch {
			s.due = append(s.due, aNotice("asked"))
		}
		hangs := post(func(ctx context.Context, _ string, _ []byte) error { <-ctx.Done(); return ctx.Err() })
		n, began := newNotifier(t, s, hangs), time.Now()
		_, err := n.Once(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, postWithin, time.Since(began))
		assert.Less(t, postWithin, again, "no other replica takes what is still on its way")
		began = time.Now()
		reason, _ := n.Look(t.Context())
		assert.Equal(t, Unreachable, reason)
		assert.Equal(t, lookWithin, time.Since(began))
	})
}

func TestLook(t *testing.T) {
	t.Parallel()
	refuses := post(func(context.Context, string, []byte) error { return &Refused{401} })
	away := post(func(context.Context, string, []byte) error { return errors.New("away") })
	for name, c := range map[string]struct {
		store  *shelf
		poster Poster
		want   string
	}{
		"good":                         {&shelf{}, post(taking), Good},
		"what waits for a minute":      {&shelf{waiting: Waiting{Due: 9, Dead: 9, Untold: time.Minute}}, post(taking), Good},
		"what waits for longer":        {&shelf{waiting: Waiting{Untold: time.Minute + time.Millisecond}}, post(taking), Late},
		"a receiver that refuses":      {&shelf{}, refuses, Unwanted},
		"a receiver that is away":      {&shelf{}, away, Unreachable},
		"both, and something waits":    {&shelf{waiting: Waiting{Untold: time.Hour}}, away, Unreachable},
		"a database that says nothing": {&shelf{fails: errors.New("no database")}, post(taking), Unreachable},
	} {
		reason, why := newNotifier(t, c.store, c.poster).Look(t.Context())
		assert.Equal(t, c.want, reason, name)
		assert.Equal(t, c.want == Good, why == nil, name)
	}
}

// A probe is a message that says nothing, each under an id of its own.
func TestProbesSayNothing(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	n := newNotifier(t, &shelf{}, post(func(_ context.Context, id string, body []byte) error {
		ids[id] = true
		assert.Equal(t, `{"type":"probe","timestamp":"2026-11-29T12:00:00Z","data":{}}`, string(body))
		return nil
	}), func(c *Config) { c.Now = func() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) } })
	for range 3 {
		reason, err := n.Look(t.Context())
		require.NoError(t, err)
		assert.Equal(t, Good, reason)
	}
	assert.Len(t, ids, 3)
}
