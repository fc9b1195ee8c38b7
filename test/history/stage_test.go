package history

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/fsck"
	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// patience is beyond what any step of these tests takes.
const patience = 5 * time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// byHand are the invariants that a fixture does not keep: it plans, opens and documents by hand.
var byHand = []string{"every run has its slot", "every planned run is audited", "every close and open has its log row", "a document is what its digest names"}

// sound holds every other invariant of the database: whoever died, nothing is left half done.
func sound(t *testing.T, w *fixture.World) {
	t.Helper()
	violations, err := fsck.Check(within(t), w.DB.URL(teststack.Owner))
	require.NoError(t, err)
	assert.Empty(t, slices.DeleteFunc(violations, func(v fsck.Violation) bool { return slices.Contains(byHand, v.Invariant) }))
}

// stage is a database with an open gate, and every call to it on record.
type stage struct {
	*fixture.World
	t                              *testing.T
	authority, scheduler, operator *pgxpool.Pool
	eyes, root                     *pgxpool.Pool // look at everything; end sessions
	flights                        flights
	record                         record
}

func newStage(t *testing.T, conns int32) *stage {
	t.Helper()
	w := fixture.New(t)
	w.OpenGate(t)
	w.GuardInstance(t)
	return &stage{World: w, t: t, authority: pool(t, w, "nw_authority", conns), scheduler: w.DB.Pool(t, "nw_scheduler"), operator: w.DB.Pool(t, "nw_operator"),
		eyes: w.DB.Pool(t, teststack.Owner), root: w.DB.Pool(t, teststack.Superuser), record: record{start: time.Now()}}
}

func pool(t *testing.T, w *fixture.World, role string, conns int32) *pgxpool.Pool {
	t.Helper()
	p, err := pg.Open(within(t), pg.Config{URL: w.DB.URL(role), MaxConns: conns, Name: "history"})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// call sends one verb, as pg.Call does, and may be cut in the middle.
func (s *stage) call(by *pgxpool.Pool, columns string, c fixture.Call, dest ...any) pg.Outcome {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := by.Acquire(ctx)
	if err != nil {
		return pg.NotApplied
	}
	defer conn.Release()
	defer s.flights.take(conn.Conn().PgConn().PID(), conn.Conn().PgConn().Conn())()
	return pg.Classify(conn.QueryRow(ctx, `SELECT `+columns+` FROM `+c.From, c.Args...).Scan(dest...))
}

// flights are the calls under way.
type flights struct {
	lock sync.Mutex
	all  map[uint32]net.Conn // by backend
}

func (f *flights) take(pid uint32, conn net.Conn) (land func()) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.all == nil {
		f.all = map[uint32]net.Conn{}
	}
	f.all[pid] = conn
	return func() {
		f.lock.Lock()
		defer f.lock.Unlock()
		delete(f.all, pid)
	}
}

// one is some call under way; nothing when there is none.
func (f *flights) one() (pid uint32, conn net.Conn) {
	f.lock.Lock()
	defer f.lock.Unlock()
	n := rand.IntN(len(f.all) + 1)
	for pid, conn = range f.all {
		if n--; n < 0 {
			break
		}
	}
	return pid, conn
}

// endSession ends the backend of some call in its middle, as a crash of the server's process does to the caller.
func (s *stage) endSession() {
	if pid, conn := s.flights.one(); conn != nil {
		_, _ = s.root.Exec(context.Background(), `SELECT pg_terminate_backend($1)`, int64(pid))
	}
}

// killClient takes some caller away in the middle of its call; what it asked for goes on in the server.
func (s *stage) killClient() {
	if _, conn := s.flights.one(); conn != nil {
		_ = conn.Close()
	}
}

// record is the history so far.
type record struct {
	start time.Time
	lock  sync.Mutex
	all   []porcupine.Operation
}

// write records what f does, with the moments before and after it by the monotonic clock.
func (r *record) write(in input, f func() output) output {
	call := time.Since(r.start).Nanoseconds()
	out := f()
	end := time.Since(r.start).Nanoseconds()
	r.lock.Lock()
	defer r.lock.Unlock()
	r.all = append(r.all, porcupine.Operation{Input: in, Call: call, Output: out, Return: end})
	return out
}

func (r *record) size() int {
	r.lock.Lock()
	defer r.lock.Unlock()
	return len(r.all)
}
