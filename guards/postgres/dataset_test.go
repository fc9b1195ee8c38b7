package postgres

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// TestDataset is on a server that does not forget, without which no probe succeeds.
func TestDataset(t *testing.T) {
	t.Parallel()
	r := prepare(t, teststack.DurableCluster(t))
	t.Run("tables that cannot be guarded", r.tablesThatCannotBeGuarded)
	t.Run("a ledger that cannot be called", r.ledgerThatCannotBeCalled)
	t.Run("two guards", r.twoGuards)
	t.Run("any change of a table", r.anyChangeOfATable)
}

func touching(tables ...string) map[string]Operation {
	operations := doing(func(context.Context, pgx.Tx) (any, error) { return nil, nil })
	o := operations["custom"]
	o.Tables = tables
	operations["custom"] = o
	return operations
}

// anyChangeOfATable is found: from the moment on when the guard first looked.
func (r *resource) anyChangeOfATable(t *testing.T) {
	r.exec(t, `CREATE TABLE lines (n integer, o text REFERENCES orders)`)
	r.exec(t, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'`)
	r.exec(t, `CREATE TRIGGER noted BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note()`)
	r.exec(t, `CREATE TABLE parts (n integer) PARTITION BY RANGE (n)`)
	pool := r.pool(t)
	watching := func() *Ledger {
		l, err := New(Config{Pool: pool, Tables: orders, Operations: touching("public.lines", "public.parts")})
		require.NoError(t, err)
		return l
	}
	first, err := watching().Dataset(t.Context())
	require.NoError(t, err)
	for _, change := range []string{
		`ALTER TABLE orders ADD COLUMN extra text`,
		`ALTER TABLE orders ALTER COLUMN "order" TYPE varchar(20)`,
		`ALTER TABLE orders ALTER COLUMN paid DROP NOT NULL`,
		`ALTER TABLE orders ALTER COLUMN paid SET DEFAULT true`,
		`ALTER TABLE orders ADD CHECK (cents < 100)`,
		`ALTER TABLE orders ADD CHECK (cents < 1000) NOT VALID`,
		`CREATE UNIQUE INDEX ON orders (cents)`,
		`ALTER TABLE orders DISABLE TRIGGER noted`,
		`ALTER TABLE orders DISABLE TRIGGER ALL`,
		`DROP TRIGGER noted ON orders`,
		`CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.paid := true; RETURN NEW; END'`,
		`ALTER FUNCTION note() SECURITY DEFINER`,
		`CREATE RULE none AS ON DELETE TO orders DO INSTEAD NOTHING`,
		`ALTER TABLE orders ENABLE ROW LEVEL SECURITY`,
		`CREATE POLICY mine ON orders USING (paid)`,
		`ALTER TABLE lines DROP CONSTRAINT lines_o_fkey, ADD CONSTRAINT lines_o_fkey FOREIGN KEY (o) REFERENCES orders ON DELETE CASCADE`,
		`CREATE TABLE more (o text REFERENCES orders)`,
		`ALTER TABLE lines ADD COLUMN text text`,
	} {
		l := watching()
		same, err := l.Dataset(t.Context())
		require.NoError(t, err)
		require.Equal(t, first, same, "before: %s", change)
		tx, err := r.super(t).Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), change)
		require.NoError(t, err, change)
		var problem *string
		var columns string
		var shape []byte
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT * FROM nightwarrant_guard.shape($1)`, l.watched).Scan(&problem, &columns, &shape), change)
		require.NotEqual(t, first.Shape[:], shape, change)
		require.NoError(t, tx.Rollback(t.Context()))
	}
	l := watching()
	_, err = l.Probe(t.Context())
	require.NoError(t, err)
	for _, harmless := range []string{`INSERT INTO orders (id) VALUES ('1')`, `CREATE INDEX ON orders (paid)`, `ANALYZE orders`, `COMMENT ON TABLE orders IS 'x'`,
		`CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (2)`} {
		r.exec(t, harmless)
		_, err = l.Probe(t.Context())
		require.NoError(t, err, harmless)
	}
	r.exec(t, `ALTER TABLE orders ADD COLUMN extra text`)
	_, err = l.Probe(t.Context())
	require.ErrorIs(t, err, guards.ErrSettings)
	require.ErrorContains(t, err, "not what they were")
	now, err := watching().Dataset(t.Context())
	require.NoError(t, err, "a new process takes it as it is; whether that is required is the authority's to say")
	require.Equal(t, first.ID, now.ID)
	require.NotEqual(t, first.Digest(), now.Digest())
	r.exec(t, `ALTER TABLE orders DROP COLUMN extra`)
	_, err = l.Probe(t.Context())
	require.NoError(t, err)
}

// super is a pool of a role that may do all that a test wants done.
func (r *resource) super(t *testing.T) *pgxpool.Pool { return r.db.Pool(t, teststack.Superuser) }

// tablesThatCannotBeGuarded: not there, without a column, or such that what happens to them is not in the effect's transaction.
func (r *resource) tablesThatCannotBeGuarded(t *testing.T) {
	for _, sql := range []string{
		`CREATE VIEW seen AS SELECT id FROM orders`, `CREATE UNLOGGED TABLE fleeting (id text)`, `CREATE MATERIALIZED VIEW old AS SELECT id FROM orders`,
		`CREATE TABLE parted (id text) PARTITION BY LIST (id)`, `CREATE UNLOGGED TABLE parted_a PARTITION OF parted FOR VALUES IN ('a')`,
	} {
		r.exec(t, sql)
	}
	for name, c := range map[string]struct {
		tables map[string]Table
		why    string
	}{
		"absent":   {map[string]Table{"absent": {Columns: []string{"id"}}}, "public.absent is not there"},
		"a schema": {map[string]Table{"orders": {Schema: "nowhere", Columns: []string{"id"}}}, "nowhere.orders is not there"},
		"a column": {map[string]Table{"orders": {Columns: []string{"id", "missing"}}}, "no column public.orders.missing"},
		"a view":   {map[string]Table{"seen": {Columns: []string{"id"}}}, "not an ordinary table"},
		"unlogged": {map[string]Table{"fleeting": {Columns: []string{"id"}}}, "unlogged"},
		"old":      {map[string]Table{"old": {Columns: []string{"id"}}}, "not an ordinary table"},
		"a part":   {map[string]Table{"parted": {Columns: []string{"id"}}}, "unlogged"},
	} {
		l, err := New(Config{Pool: r.pool(t), Tables: c.tables})
		require.NoError(t, err)
		for range 2 {
			_, err = l.Probe(t.Context())
			require.ErrorIs(t, err, guards.ErrSettings, name)
			require.ErrorContains(t, err, c.why, name)
		}
		_, err = l.Dataset(t.Context())
		require.ErrorIs(t, err, guards.ErrSettings, name)
	}
	for _, table := range []string{"orders", ".orders", "public.", ""} {
		_, err := New(Config{Pool: r.pool(t), Operations: touching(table)})
		require.ErrorContains(t, err, "schema.table", table)
	}
}

// ledgerThatCannotBeCalled is a matter of settings: no person would otherwise be told.
func (r *resource) ledgerThatCannotBeCalled(t *testing.T) {
	l, err := New(Config{Pool: r.pool(t), Tables: orders, Schema: "elsewhere"})
	require.NoError(t, err)
	_, err = l.Probe(t.Context())
	require.ErrorIs(t, err, guards.ErrSettings)
	r.exec(t, `REVOKE USAGE ON SCHEMA nightwarrant_guard FROM guard_`+r.db.Name)
	_, err = r.ledger(t, r.pool(t), nil).Probe(t.Context())
	require.ErrorIs(t, err, guards.ErrSettings)
	r.exec(t, `GRANT USAGE ON SCHEMA nightwarrant_guard TO guard_`+r.db.Name)
	for _, schema := range []string{"Guard", "a b", `a"`, "pg_guard", strings.Repeat("a", 64), "1a"} {
		require.ErrorContains(t, MigrateSchema(t.Context(), r.owner, schema, ""), "schema")
	}
	_, err = New(Config{Pool: r.pool(t), Tables: orders, Schema: `a"`})
	require.ErrorContains(t, err, "schema")
}

// twoGuards share no fence, no effect, no right and no identity.
func (r *resource) twoGuards(t *testing.T) {
	role := "second_" + r.db.Name
	r.exec(t, `CREATE ROLE `+role+` LOGIN PASSWORD 'x'`)
	t.Cleanup(func() {
		_, _ = r.owner.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY `+role)
		_, _ = r.owner.Exec(context.WithoutCancel(t.Context()), `DROP ROLE `+role)
	})
	r.exec(t, `GRANT SELECT, INSERT ON orders TO `+role)
	require.NoError(t, MigrateSchema(t.Context(), r.owner, "second_guard", role))
	require.NoError(t, MigrateSchema(t.Context(), r.owner, "second_guard", role), "again")
	pool, err := Open(t.Context(), r.db.Postgres.URL(role, "x", r.db.Name))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	first := r.ledger(t, r.pool(t), doing(appendOrder("first")))
	second, err := New(Config{Pool: pool, Schema: "second_guard", Tables: orders, Operations: doing(appendOrder("second"))})
	require.NoError(t, err)

	a := goAhead("custom", 7, `{}`)
	require.NoError(t, first.Intend(t.Context(), a.Attempt))
	ending, err := first.Apply(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, guards.Committed, ending.Outcome)
	lower := a // the same lane and even the same effect, of which the second guard knows nothing
	lower.Fence = 6
	require.NoError(t, second.Intend(t.Context(), lower.Attempt))
	ending, err = second.Apply(t.Context(), lower)
	require.NoError(t, err)
	require.Equal(t, guards.Committed, ending.Outcome)
	require.Equal(t, 2, r.count(t, "orders"))
	seen, err := second.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(6), seen.Fence)

	one, err := first.Dataset(t.Context())
	require.NoError(t, err)
	two, err := second.Dataset(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, one.ID, two.ID)
	require.Equal(t, one.Shape, two.Shape)

	dead := goAhead("custom", 1, `{}`)
	for pool, other := range map[*pgxpool.Pool]string{pool: "nightwarrant_guard", r.pool(t): "second_guard"} {
		_, err = pool.Exec(t.Context(), `SELECT `+other+`.prove($1, $2)`, dead.Effect[:], dead.ID[:])
		require.ErrorContains(t, err, "permission denied")
	}
}
