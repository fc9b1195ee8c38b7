package closing

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/migrations"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a server whose commits can be read in their order, and a lane that has nothing else.
func cluster(t *testing.T) (*localstack.Postgres, *lane) {
	t.Helper()
	if _, _, err := localstack.FindPostgres(); err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "nw-closing-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711)) //nolint:gosec // PostgreSQL runs as another account
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := localstack.StartPostgres(ctx, localstack.PostgresOptions{Dir: dir + "/pg", Settings: map[string]string{"wal_level": "logical"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop(context.Background())) })
	require.NoError(t, migrations.Up(ctx, p.AdminURL("postgres")))
	l := &lane{}
	l.admin, err = pgxpool.New(ctx, p.AdminURL("postgres"))
	require.NoError(t, err)
	t.Cleanup(l.admin.Close)
	require.NoError(t, l.follow(ctx))
	return p, l
}

const (
	isOpen   = `UPDATE nw.readiness_decision SET state = 'open', epoch = epoch + 1, valid_until = clock_timestamp() + interval '1 hour'`
	isClosed = `UPDATE nw.readiness_decision SET state = 'closed', epoch = epoch + 1, valid_until = '-infinity'`
	isOver   = `UPDATE nw.readiness_decision SET valid_until = clock_timestamp() - interval '1 second'`
	isIn     = `SELECT nw.note('renew', 'ok', NULL, NULL, NULL, '{"fence": 1}')`
)

func (l *lane) counted(t *testing.T) counted {
	t.Helper()
	c, err := l.count(t.Context())
	require.NoError(t, err)
	return c
}

// What PostgreSQL itself prints is understood; and a transaction that wrote
// before the close and committed after it is found, whatever its times say.
func TestTheOrderOfCommitsIsReadFromTheServer(t *testing.T) {
	t.Parallel()
	p, l := cluster(t)
	ctx := t.Context()
	require.NoError(t, l.execute(ctx, isOpen, isIn))
	assert.Equal(t, counted{admitted: 1}, l.counted(t))

	early, err := l.admin.Begin(ctx)
	require.NoError(t, err)
	_, err = early.Exec(ctx, isIn)
	require.NoError(t, err)
	require.NoError(t, l.execute(ctx, isIn, isClosed))
	require.NoError(t, early.Commit(ctx))
	undone := pgx.BeginFunc(ctx, l.admin, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, isIn)
		require.NoError(t, err)
		return assert.AnError
	})
	require.ErrorIs(t, undone, assert.AnError)
	assert.Equal(t, counted{admitted: 2, late: 1, lateVerb: map[string]int{"renew": 1}, closes: 1}, l.counted(t))

	// A crash: what was read is told again, and counted once.
	require.NoError(t, l.execute(ctx, isOpen, isIn))
	assert.Equal(t, counted{admitted: 1}, l.counted(t))
	p.Kill()
	require.NoError(t, p.Restart(ctx))
	l.admin.Reset()
	assert.Equal(t, counted{}, l.counted(t))
	require.NoError(t, l.execute(ctx, isIn))
	assert.Equal(t, counted{admitted: 1}, l.counted(t))
}

// Whoever seals is alone at the gate, sees that it is not open, and leaves a mark behind which nothing may come.
func TestSeal(t *testing.T) {
	t.Parallel()
	_, l := cluster(t)
	ctx := t.Context()
	require.NoError(t, l.execute(ctx, isOpen))
	require.ErrorContains(t, l.seal(ctx), "is open")
	require.NoError(t, l.execute(ctx, isIn, isOver))

	admission, err := l.admin.Begin(ctx)
	require.NoError(t, err)
	_, err = admission.Exec(ctx, `SELECT nw.enter()`)
	require.NoError(t, err)
	waiting, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	require.Error(t, l.seal(waiting), "an admission is under way")
	_, err = admission.Exec(ctx, isIn)
	require.NoError(t, err)
	require.NoError(t, admission.Commit(ctx))

	require.NoError(t, l.seal(ctx))
	assert.Equal(t, counted{admitted: 2, closes: 1}, l.counted(t))
	require.NoError(t, l.execute(ctx, isIn))
	assert.Equal(t, 1, l.counted(t).late)
	require.NoError(t, l.execute(ctx, isOpen, isIn))
	assert.Equal(t, counted{admitted: 1}, l.counted(t))
}
