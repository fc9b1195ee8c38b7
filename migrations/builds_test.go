package migrations_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

type buildRow struct {
	Kind   string
	Boot   int64
	Live   bool
	Binary []byte
	Go     *int32
	Module *string
	FIPS   *bool
}

// What a boot says that it runs is shown while it is the present one, and as it was said. A boot that says nothing shows nothing.
func TestBuilds(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	pool, ctx := db.Pool(t, "nw_authority"), context.Background()
	boot := func(b builds.Build) (id, n int64) {
		require.NoError(t, pool.QueryRow(ctx, `SELECT instance_id, boot FROM nw.register_replica($1, $2, $3, $4, $5, $6)`, append([]any{"authority", make([]byte, 32)}, b.Columns()...)...).Scan(&id, &n))
		return id, n
	}
	report := func(id, n int64) {
		var verdict string
		require.NoError(t, pool.QueryRow(ctx, `SELECT nw.report_replica('authority', $1, $2, 'store', 1, true, 'good', 0)`, id, n).Scan(&verdict))
		require.Equal(t, "ok", verdict)
	}
	shown := func() []buildRow {
		return rows[buildRow](t, pool, `SELECT kind, boot, live, binary_sha, go, module, fips FROM nw.show_builds()`)
	}
	first := builds.Build{Binary: [32]byte{1}, Go: "go1.26.3", Module: "v1.0.0-c2097c7c", FIPS: true}
	id, n := boot(first)
	assert.Empty(t, shown(), "who has not reported is not there")
	report(id, n)
	c := first.Columns()
	number, module, fips := c[1].(int32), c[2].(string), true
	assert.Equal(t, []buildRow{{"authority", 1, true, first.Binary[:], &number, &module, &fips}}, shown())

	report(boot(builds.Build{}))
	assert.Equal(t, []buildRow{{"authority", 2, true, nil, nil, nil, nil}}, shown(), "the build of an older boot is not this one's")
	id, n = boot(builds.Build{Binary: [32]byte{2}, Go: "devel"})
	report(id, n)
	module, fips = "off", false
	assert.Equal(t, []buildRow{{"authority", 3, true, append([]byte{2}, make([]byte, 31)...), nil, &module, &fips}}, shown())

	type kept struct{ Over bool }
	over := func() []kept { return rows[kept](t, pool, `SELECT build_since < since FROM nw.show_builds()`) }
	assert.Equal(t, []kept{{false}}, over(), "another executable runs since its own boot")
	report(boot(builds.Build{Binary: [32]byte{2}, Go: "go1.26"}))
	assert.Equal(t, []kept{{true}}, over(), "the same one since before")

	_, err := db.Pool(t, teststack.Owner).Exec(ctx, `UPDATE nw.builds SET module = 'inprocess'`)
	require.ErrorContains(t, err, "module_check")
}
