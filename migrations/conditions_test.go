package migrations_test

import (
	"context"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

var newColumn = regexp.MustCompile(`new\.(\w+)`)

type narrow struct {
	Name, Condition string
	Columns         []string
}

// narrowed are the columns that a trigger's condition is about and its statement need not name, or the reverse.
func narrowed(t *testing.T, by querier) (found int, wrong []string) {
	t.Helper()
	for _, n := range rows[narrow](t, by, `SELECT g.tgname, lower(pg_get_triggerdef(g.oid)), (SELECT array_agg(a.attname::text) FROM pg_attribute a WHERE a.attrelid = g.tgrelid AND a.attnum = ANY (g.tgattr))
		FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_proc p ON p.oid = g.tgfoid
		WHERE c.relnamespace = 'nw'::regnamespace AND p.proname = 'refuse_change' AND cardinality(g.tgattr) > 0 ORDER BY 1`) {
		found++
		var about []string
		for _, m := range newColumn.FindAllStringSubmatch(n.Condition, -1) {
			about = append(about, m[1])
		}
		slices.Sort(about)
		slices.Sort(n.Columns)
		if !slices.Equal(slices.Compact(about), n.Columns) {
			wrong = append(wrong, n.Name)
		}
	}
	return found, wrong
}

// A trigger that keeps an invariant and is asked only by statements that name some columns is about exactly these. One that is left out is found.
func TestATriggerIsAskedAboutAllThatItKeeps(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	tx, err := teststack.Database(t).Pool(t, teststack.Superuser).Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx) //nolint:errcheck // nothing to keep
	found, wrong := narrowed(t, tx)
	assert.Equal(t, 3, found)
	assert.Empty(t, wrong)
	var changing int // a trigger that changed a column would go past them
	require.NoError(t, tx.QueryRow(ctx, `SELECT count(*) FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_proc p ON p.oid = g.tgfoid
		WHERE c.oid IN ('nw.runs'::regclass, 'nw.effects'::regclass) AND NOT g.tgisinternal AND g.tgtype & 3 = 3 AND p.proname <> 'refuse_change'`).Scan(&changing))
	assert.Zero(t, changing)
	_, err = tx.Exec(ctx, `CREATE OR REPLACE TRIGGER runs_fixed BEFORE UPDATE OF ref ON nw.runs FOR EACH ROW WHEN (NEW.ref <> OLD.ref OR NEW.member <> OLD.member) EXECUTE FUNCTION nw.refuse_change('')`)
	require.NoError(t, err)
	_, wrong = narrowed(t, tx)
	assert.Equal(t, []string{"runs_fixed"}, wrong)
}
