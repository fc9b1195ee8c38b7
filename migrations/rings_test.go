package migrations_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// The verbs name each partition of a ring by itself: what they write is in the partition in which the ring looks for it, and what was written is found again.
func TestEveryPartitionOfARingIsNamed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	tx, err := teststack.Database(t).Pool(t, teststack.Superuser).Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx) //nolint:errcheck // nothing to keep
	_, err = tx.Exec(ctx, `ALTER TABLE nw.ring_floors DISABLE TRIGGER USER; UPDATE nw.ring_floors SET floor = 0`)
	require.NoError(t, err)
	for ring, c := range map[string]struct {
		slots        int
		write, again string // of the n-th slot before now
		code         string
	}{
		"replay": {16, `SELECT nw.spend_proof(now() - %d * interval '1 minute', sha256('one'))`, `SELECT nw.spend_proof(now() - %d * interval '1 minute', sha256('one'))`, "proof_replayed"},
		"assertion_owners": {12, `SELECT nw.own_assertion(sha256('one'), now() - %d * interval '6 hours', sha256('key'))`,
			`SELECT nw.own_assertion(sha256('one'), now() - %d * interval '6 hours', sha256('other'))`, "assertion_bound"},
	} {
		for n := range c.slots {
			_, err := tx.Exec(ctx, fmt.Sprintf(c.write, n))
			require.NoError(t, err, "%s: %d back", ring, n)
			again, err := tx.Begin(ctx)
			require.NoError(t, err)
			_, err = again.Exec(ctx, fmt.Sprintf(c.again, n))
			var e *pgconn.PgError
			require.ErrorAs(t, err, &e, "%s: %d back was not found again", ring, n)
			assert.Equal(t, c.code, e.Message)
			require.NoError(t, again.Rollback(ctx))
		}
		var used int
		require.NoError(t, tx.QueryRow(ctx, fmt.Sprintf(`SELECT count(DISTINCT slot) FILTER (WHERE tableoid = ('nw.%[1]s_' || slot)::regclass) FROM nw.%[1]s`, ring)).Scan(&used))
		assert.Equal(t, c.slots, used, ring)
	}
	var source string
	require.NoError(t, tx.QueryRow(ctx, `SELECT prosrc FROM pg_proc WHERE oid = 'nw.owner_verdict'::regproc`).Scan(&source))
	for n := range 12 {
		assert.Contains(t, source, fmt.Sprintf("WHEN %[1]d THEN SELECT jkt INTO owner FROM nw.assertion_owners_%[1]d WHERE slot = %[1]d AND", n))
	}
}

// What an admission asks of a ring touches one partition: a plan over the ring would lock all of them, at each call. (The ring itself is locked to learn what the partition is for.)
func TestAdmissionsTouchOnePartitionOfARing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	tx, err := teststack.Database(t).Pool(t, teststack.Superuser).Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx) //nolint:errcheck // nothing to keep
	_, err = tx.Exec(ctx, `SELECT nw.spend_proof(clock_timestamp(), sha256('a')), nw.owner_verdict(sha256('a'), clock_timestamp() + interval '1 hour', sha256('k')),
		nw.own_assertion(sha256('a'), clock_timestamp() + interval '1 hour', sha256('k'))`)
	require.NoError(t, err)
	var locked int
	require.NoError(t, tx.QueryRow(ctx, `SELECT count(DISTINCT c.oid) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
		WHERE l.pid = pg_backend_pid() AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND c.relkind = 'r' AND c.relname ~ '^(replay|assertion_owners)(_|$)'`).Scan(&locked))
	assert.Equal(t, 2, locked)
}
