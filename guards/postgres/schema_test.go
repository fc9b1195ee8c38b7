package postgres

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// lazyPool never connects.
func lazyPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "host=/nowhere")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// TestEvenTheOwnerCannotChangeTheLedger by an ordinary statement: the invariants are in the schema.
func TestEvenTheOwnerCannotChangeTheLedger(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	l := r.ledger(t, r.pool(t), doing(appendOrder("1")))
	a := goAhead("custom", 5, `{}`)
	require.NoError(t, l.Intend(t.Context(), a.Attempt))
	_, err := l.Apply(t.Context(), a)
	require.NoError(t, err)
	for _, statement := range []string{
		`UPDATE fences SET fence = 4`, `UPDATE fences SET lane = decode(repeat('01', 16), 'hex')`, `DELETE FROM fences`, `TRUNCATE fences`,
		`UPDATE effects SET outcome = 'tombstone'`, `UPDATE effects SET attempt = effect`, `DELETE FROM effects`, `TRUNCATE effects`,
		`UPDATE intents SET effect = attempt`, `UPDATE intents SET digest = sha256(digest), attempts = attempts + 1`,
		`INSERT INTO effects (effect, attempt, outcome, day) SELECT effect, attempt, 'tombstone', 0 FROM effects`,
		`INSERT INTO effects (effect, attempt, outcome, day) SELECT attempt, attempt, 'committed', 0 FROM effects`,
		`INSERT INTO effects (effect, attempt, outcome, day) SELECT attempt, attempt, 'maybe', 0 FROM effects`,
		`INSERT INTO effects (effect, attempt, outcome, day) VALUES ('x', 'x', 'tombstone', 0)`,
		`INSERT INTO fences VALUES (decode(repeat('00', 16), 'hex'), 0, 0)`,
		`UPDATE effects SET day = -100`, `UPDATE fences SET day = -100`, `UPDATE intents SET attempts = 1`,
		`UPDATE ledger SET day = day + 1`, `UPDATE ledger SET day = day + 10`, `UPDATE ledger SET day = day - 1`, `UPDATE ledger SET worked = '23:59:00'`,
		`UPDATE ledger SET dataset = sha256(dataset)`, `UPDATE ledger SET fence = -1`, `UPDATE ledger SET admission = -1`,
		`DELETE FROM ledger`, `TRUNCATE ledger`, `INSERT INTO ledger DEFAULT VALUES`, `INSERT INTO ledger (one) VALUES (false)`,
	} {
		_, err := r.owner.Exec(t.Context(), `SET search_path = nightwarrant_guard; `+statement, pgx.QueryExecModeSimpleProtocol)
		var refusal *pgconn.PgError
		require.ErrorAs(t, err, &refusal, statement)
		require.Contains(t, []string{"NW001", "23505", "23514"}, refusal.Code, "%s: %v", statement, err)
	}
	require.Equal(t, 1, r.count(t, "nightwarrant_guard.effects WHERE outcome = 'committed'"))
	r.exec(t, `UPDATE nightwarrant_guard.fences SET fence = 6`)
}

// TestGuardRoleReachesTheLedgerThroughItsFunctionsOnly: stolen credentials of the guard cannot undo a proof.
func TestGuardRoleReachesTheLedgerThroughItsFunctionsOnly(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	pool := r.pool(t)
	for _, statement := range []string{
		`SELECT * FROM nightwarrant_guard.effects`, `SELECT * FROM nightwarrant_guard.fences`, `SELECT * FROM nightwarrant_guard.intents`,
		`INSERT INTO nightwarrant_guard.fences VALUES ('x', 1, 1)`, `UPDATE nightwarrant_guard.ledger SET day = 100`, `UPDATE nightwarrant_guard.versions SET version = 9`,
		`ALTER TABLE nightwarrant_guard.effects DISABLE TRIGGER ALL`, `CREATE TABLE nightwarrant_guard.x ()`,
		`CREATE OR REPLACE FUNCTION nightwarrant_guard.in_time(bigint) RETURNS void LANGUAGE sql AS ''`, `DROP SCHEMA nightwarrant_guard`,
	} {
		_, err := pool.Exec(t.Context(), statement)
		var refusal *pgconn.PgError
		require.ErrorAs(t, err, &refusal, statement)
		require.Equal(t, "42501", refusal.Code, statement)
	}
	r.exec(t, `CREATE ROLE stranger_`+r.db.Name+` LOGIN PASSWORD 'x'`)
	stranger, err := Open(t.Context(), r.db.Postgres.URL("stranger_"+r.db.Name, "x", r.db.Name))
	require.NoError(t, err)
	defer stranger.Close()
	_, err = stranger.Exec(t.Context(), `SELECT nightwarrant_guard.probe()`)
	require.ErrorContains(t, err, "permission denied")
	r.exec(t, `DROP ROLE stranger_`+r.db.Name)
}

func TestEffectNeedsReadCommittedAndSynchronousCommits(t *testing.T) {
	t.Parallel()
	for setting, value := range map[string]string{"synchronous_commit": "off", "default_transaction_isolation": "'repeatable read'", "default_transaction_read_only": "on"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			r := newResource(t)
			r.exec(t, `ALTER ROLE guard_`+r.db.Name+` SET `+setting+` = `+value)
			pool, err := pgxpool.New(t.Context(), r.url) // Open would refuse the first two
			require.NoError(t, err)
			defer pool.Close()
			l := r.ledger(t, pool, doing(appendOrder("1")))
			a := goAhead("custom", 1, `{}`)
			_, err = l.Prove(t.Context(), a.Effect, a.ID)
			require.Error(t, err)
			if setting == "synchronous_commit" {
				_, err = l.Probe(t.Context())
				require.ErrorIs(t, err, guards.ErrSettings)
				_, err = l.Apply(t.Context(), a)
				require.Error(t, err)
				require.Zero(t, r.count(t, "orders"))
			}
		})
	}
}

func TestMigrationsRunOnceWhoeverRunsThem(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	owner := db.Pool(t, teststack.Owner)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { assert.NoError(t, Migrate(t.Context(), owner, "")) })
	}
	group.Wait()
	var versions int
	require.NoError(t, owner.QueryRow(t.Context(), `SELECT count(*) FROM nightwarrant_guard.versions`).Scan(&versions))
	require.Equal(t, latest, versions)

	require.Error(t, Migrate(t.Context(), owner, `x"; DROP SCHEMA nightwarrant_guard CASCADE; --`), "a role that does not exist")
	require.NoError(t, Migrate(t.Context(), owner, ""))
	_, err := owner.Exec(t.Context(), `INSERT INTO nightwarrant_guard.versions VALUES ($1)`, latest+1)
	require.NoError(t, err)
	require.ErrorContains(t, Migrate(t.Context(), owner, ""), "version")
}

func TestMigrationFilesAreNumbered(t *testing.T) {
	t.Parallel()
	entries, err := migrations.ReadDir("migrations")
	require.NoError(t, err)
	require.Len(t, entries, latest)
	for i, e := range entries {
		require.Regexp(t, fmt.Sprintf(`^%05d_[a-z_]+\.sql$`, i+1), e.Name())
	}
}

func TestProbeRefusesAServerThatForgets(t *testing.T) {
	t.Parallel()
	r := newResource(t) // of a scratch cluster, which does not fsync
	_, err := r.ledger(t, r.pool(t), nil).Probe(t.Context())
	require.ErrorIs(t, err, guards.ErrSettings)
}

// TestProbe: the highest numbers survive this process, and a schema of another version is no ledger.
func TestProbe(t *testing.T) {
	t.Parallel()
	r := prepare(t, teststack.DurableCluster(t))
	l := r.ledger(t, r.pool(t), doing(func(context.Context, pgx.Tx) (any, error) { return nil, nil }))
	seen, err := l.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, guards.Seen{}, seen)
	a := goAhead("custom", 5, `{}`)
	a.Number = 77
	_, err = l.Apply(t.Context(), a)
	require.NoError(t, err)
	seen, err = l.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, guards.Seen{Fence: 5, Admission: 77}, seen)

	r.exec(t, `UPDATE nightwarrant_guard.versions SET version = 9`)
	_, err = l.Probe(t.Context())
	require.ErrorIs(t, err, guards.ErrSettings)
}
