package pg_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	t.Run("a URL that cannot be read, without quoting it", func(t *testing.T) {
		t.Parallel()
		_, err := pg.Open(soon(t), pg.Config{URL: "postgres://u:hunter2@h:port/x"})
		require.ErrorIs(t, err, pg.ErrUnsuitable)
		assert.NotContains(t, err.Error(), "hunter2")
	})
	t.Run("a server that is not there, which may come", func(t *testing.T) {
		t.Parallel()
		_, err := pg.Open(soon(t), pg.Config{URL: "postgres://u:hunter2@/x?host=/nonexistent&sslmode=disable"})
		require.Error(t, err)
		require.NotErrorIs(t, err, pg.ErrUnsuitable)
		assert.NotContains(t, err.Error(), "hunter2")
	})
	for setting, value := range map[string]string{
		"default_transaction_isolation": "repeatable read",
		"synchronous_commit":            "off",
	} {
		t.Run("a role with "+setting+" "+value, func(t *testing.T) {
			t.Parallel()
			db := teststack.Database(t)
			_, err := db.Pool(t, teststack.Superuser).Exec(soon(t), "ALTER ROLE "+teststack.Owner+" IN DATABASE "+db.Name+" SET "+setting+" = '"+value+"'")
			require.NoError(t, err)
			_, err = pg.Open(soon(t), pg.Config{URL: db.URL(teststack.Owner)})
			require.ErrorIs(t, err, pg.ErrUnsuitable)
		})
	}
}

func TestOpenSaysWhoAsks(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	for name, want := range map[string]string{"": "nightwarrant", "scheduler": "scheduler"} {
		pool, err := pg.Open(soon(t), pg.Config{URL: db.URL(teststack.Owner), Name: name})
		require.NoError(t, err)
		defer pool.Close()
		var got string
		require.NoError(t, pool.QueryRow(soon(t), "SELECT current_setting('application_name')").Scan(&got))
		assert.Equal(t, want, got)
		assert.EqualValues(t, 12, pool.Config().MaxConns)
	}
}
