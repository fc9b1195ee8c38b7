package fsck_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/fsck"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }

// What no verb would do is done by hand, past the triggers, and found under its name.
func TestIncarnations(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"incarnations rise, and a promoted standby goes on in its primary's": `INSERT INTO nw.incarnations (incarnation, system_id, timeline, reason)
			SELECT incarnation, system_id, timeline, 'restored' FROM nw.incarnations`,
		"every incarnation is audited, and the decision is of the latest":      `UPDATE nw.readiness_decision SET timeline = timeline + 1`,
		"no fence and no admission is of an incarnation that has not begun":    `UPDATE nw.effects SET admission = 1::bigint << 40`,
		"a run that is not over was planned, and claimed, in this incarnation": `SELECT nw.note('incarnation', 'ok', NULL, NULL, NULL, '{"reason": "failover"}')`,
		"a lane's fence is the number of its claims in their incarnation":      `UPDATE nw.lanes SET fence = fence + 1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := authoritytest.New(t)
			h.Unsound()
			w, g := h.Claim(h.Plan(h.Consent(h.Task("nightly")))), h.Guard()
			minted := w.Minted("first", "rent")
			h.Into(g.Admit(g.Ask(w, minted, "rent", authoritytest.NewAttempt())), nil)
			require.Empty(t, found(t, h))
			root, err := pgx.Connect(context.Background(), h.DB.URL(teststack.Superuser))
			require.NoError(t, err)
			defer root.Close(context.Background()) //nolint:errcheck // nothing is pending on it
			_, err = root.Exec(context.Background(), `SET session_replication_role = replica`)
			require.NoError(t, err)
			_, err = root.Exec(context.Background(), damage)
			require.NoError(t, err)
			assert.Contains(t, found(t, h), name)
		})
	}
}

// found names the invariants that do not hold.
func found(t *testing.T, h *authoritytest.House) (names []string) {
	t.Helper()
	violations, err := fsck.Check(context.Background(), h.DB.URL(teststack.Owner))
	require.NoError(t, err)
	for _, v := range violations {
		names = append(names, v.Invariant)
	}
	return names
}
