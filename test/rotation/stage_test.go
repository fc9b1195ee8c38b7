package rotation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// within is far more than anything here takes.
const within = 60 * time.Second

// waits are what a rotation waits for here: seconds.
var waits = authority.Waits{Cache: time.Second, Margin: 2 * time.Second, Lifetime: 3 * time.Second}

// stage is a cluster of three replicas, each with a projected bundle of its own.
type stage struct {
	*authoritytest.House
	operator *pgxpool.Pool
	replicas []*replica
	bundle   string // that is rolled out
}

type replica struct {
	url, link string
	authority *authority.Authority
}

func newStage(t testing.TB, w authority.Waits) *stage {
	t.Helper()
	h := authoritytest.Trusting(t, authoritytest.Trust{Waits: w})
	h.Apply(strings.ReplaceAll(authoritytest.Registry(h.Workloads.URL), "max_effects: 10", "max_effects: 10000"))
	h.Open()
	s := &stage{House: h, operator: h.DB.Pool(t, "nw_operator"), bundle: h.KeysDir}
	h.Exec(`INSERT INTO nw.key_holders SELECT i.id, g, i.boot FROM nw.instances i, generate_series(1, 100) g WHERE i.kind = 'authority'`) // who reports by hand
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() {
		stop()
		all.Wait()
	})
	for i := range 3 {
		r := &replica{url: h.URL, link: filepath.Join(t.TempDir(), "bundle"), authority: h.Authority}
		gate := h.Gate
		if i > 0 {
			a, g, server := h.Replica(h.Bundle)
			listener := httptest.NewServer(server.Handler())
			t.Cleanup(listener.Close)
			r.url, r.authority, gate = listener.URL, a, g
		}
		s.project(r)
		all.Go(func() { s.run(ctx, i, r, gate) })
		s.replicas = append(s.replicas, r)
	}
	return s
}

// run is what `serve` does beside answering: it follows the database, looks at
// the projected bundle each second, and says what it holds.
func (s *stage) run(ctx context.Context, i int, r *replica, gate *readiness.Gate) {
	log := slog.New(slog.NewJSONHandler(s.Log, nil))
	reporter, err := readiness.Register(ctx, s.Pool, log, "authority", [32]byte{byte(i + 1)}, builds.Build{})
	if err != nil {
		s.T.Errorf("replica %d is not registered: %v", i, err)
		return
	}
	var all sync.WaitGroup
	all.Go(func() { r.authority.Run(ctx) })
	all.Go(func() {
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
			_, _ = gate.Current(ctx)
			if err := s.look(ctx, r, reporter); err != nil && ctx.Err() == nil {
				log.Warn("the bundle was not taken", slog.Any("error", err))
			}
		}
	})
	// A machine that is busy here must not close the gate, so that this look does nothing else.
	reporter.Run(ctx, readiness.Probe{Family: "signing", Look: func(context.Context) (string, error) { return readiness.Good, nil }})
	all.Wait()
}

func (s *stage) look(ctx context.Context, r *replica, reporter *readiness.Reporter) error {
	opened, err := keys.Open(r.link, s.Identity)
	if err != nil {
		return err
	}
	holds, err := r.authority.Hold(ctx, opened)
	if err != nil {
		return err
	}
	return reporter.Hold(ctx, holds)
}

// project exchanges a replica's directory as a whole, as Kubernetes does.
func (s *stage) project(r *replica) {
	require.NoError(s.T, errors.Join(os.Symlink(s.bundle, r.link+".new"), os.Rename(r.link+".new", r.link)))
}

// prepare makes the bundle of the next generation.
func (s *stage) prepare() (next keys.Identity) {
	state, err := authority.ReadKeys(s.T.Context(), s.operator, true)
	require.NoError(s.T, err)
	current, _ := state.Of(keys.Current)
	to := filepath.Join(s.T.TempDir(), "successor")
	next, err = keys.Prepare(s.bundle, s.Identity, to, current.Registered.Generation, state.Newest(), nil)
	require.NoError(s.T, err)
	s.bundle = to
	return next
}

// step takes a step of a rotation, once it may be taken.
func (s *stage) step(step authority.Step, current int64, next keys.Identity) {
	var last authority.Stepped
	require.Eventually(s.T, func() bool {
		var err error
		last, err = authority.Rotate(context.Background(), s.operator, step, current, next)
		require.NoError(s.T, err)
		require.Contains(s.T, []string{"ok", "too_early", "lacking"}, last.Verdict)
		return last.Verdict == "ok"
	}, within, 50*time.Millisecond, "%s: %+v", step, &last)
}

// rotate is a whole rotation. after is called when a step was taken.
func (s *stage) rotate(after func()) {
	next := s.turn(after)
	s.step(authority.Retire, next.Generation, next)
	after()
}

// turn is a rotation up to where the next generation signs.
func (s *stage) turn(after func()) keys.Identity {
	next := s.prepare()
	current := next.Generation - 1
	for _, r := range s.replicas {
		s.project(r)
	}
	s.step(authority.Publish, current, next)
	after()
	s.held(next)
	s.step(authority.Activate, current, next)
	after()
	return next
}

// held waits until every replica holds a generation, also one that is too busy to report.
func (s *stage) held(next keys.Identity) {
	for _, r := range s.replicas {
		require.Eventually(s.T, func() bool { return slices.Contains(r.authority.Keys().Holds(), next.Generation) }, within, 20*time.Millisecond)
	}
}

// plant edits a verb.
func (s *stage) plant(verb, old, with string) {
	s.Unsound()
	_, err := s.DB.Pool(s.T, teststack.Superuser).Exec(context.Background(), fmt.Sprintf(`DO $x$ DECLARE f text := pg_get_functiondef('nw.%s'::regproc); BEGIN
		IF strpos(f, $o$%s$o$) = 0 THEN RAISE 'nothing to edit'; END IF; EXECUTE replace(f, $o$%s$o$, $n$%s$n$); END $x$`, verb, old, old, with))
	require.NoError(s.T, err)
}

// runs plans a run of each of n tasks.
func (s *stage) runs(n int) (out []string) {
	for i := range n {
		s.See() // a machine that is busy may have let the copy of the decision grow old
		task := strings.Replace(s.Task(fmt.Sprint("task-", i)), "effects: 5", "effects: 5000", 1)
		out = append(out, s.Plan(s.Consent(task)))
	}
	return slices.Clip(out)
}
