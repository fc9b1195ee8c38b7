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
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
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
		"what an audit row commits to is what is disclosed":                    `INSERT INTO nw.audit_disclosures SELECT min(id), 'member', sha256('salt'), sha256('somebody') FROM nw.audit`,
		"nothing was admitted after its task was cut off": `SELECT nw.note('cut_off', 'ok', task_id, NULL, NULL, '{"epoch": 99}') FROM nw.effects;
			UPDATE nw.effects SET admitted_at = clock_timestamp() + interval '1 minute'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := authoritytest.New(t)
			h.Unsound()
			w, g := h.Claim(h.Plan(h.Consent(h.Task("nightly")))), h.Guard()
			minted := w.Minted("first", "rent")
			h.Into(g.Admit(g.Ask(w, minted, "rent", authoritytest.NewAttempt())), nil)
			require.Empty(t, found(t, h))
			requireFound(t, h, name, damage)
		})
	}
}

// requireFound does damage past every trigger, and wants the invariant of that name named.
func requireFound(t *testing.T, h *authoritytest.House, name, damage string) {
	t.Helper()
	root, err := pgx.Connect(context.Background(), h.DB.URL(teststack.Superuser))
	require.NoError(t, err)
	defer root.Close(context.Background()) //nolint:errcheck // nothing is pending on it
	_, err = root.Exec(context.Background(), `SET session_replication_role = replica`)
	require.NoError(t, err)
	_, err = root.Exec(context.Background(), damage)
	require.NoError(t, err)
	assert.Contains(t, found(t, h), name)
}

// What a card, a run or an effect must bring about for its owner, and what nobody will be told any more.
func TestNotices(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"the owner of an open card was told, or will be": `DELETE FROM nw.notices WHERE kind = 'asked'`,
		"nobody will be told of a card that is over":     `INSERT INTO nw.notices (matter, kind, channel, task_id, member) SELECT substr(sha256('x'), 1, 16), 'reminder', 'mail', id, owner FROM nw.tasks`,
		"a notice is for the owner of its task":          `UPDATE nw.notices SET member = sha256('somebody else')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fixture.New(t)
			w.OpenGate(t)
			lane := w.Held(t, fixture.TaskOptions{})
			verdict, err := lane.Ask(fixture.NewEffect(), fixture.NewRef()).Verdict(t.Context(), w.Owner)
			require.NoError(t, err)
			require.Equal(t, "approval_required", verdict)
			check := func() (names []string) {
				violations, err := fsck.Check(t.Context(), w.DB.URL(teststack.Owner))
				require.NoError(t, err)
				for _, v := range violations {
					names = append(names, v.Invariant)
				}
				return names
			}
			require.NotContains(t, check(), name)
			w.Exec(t, damage)
			assert.Contains(t, check(), name)
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

// What only a rotation may do to keys is found when something else did it.
func TestGenerationsOfKeys(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"registered keys have one generation that signs":                               `UPDATE nw.key_generations SET state = 'previous'`,
		"a generation of keys is retired when nothing that it signed is good any more": `UPDATE nw.key_generations SET state = 'retired', ended_at = published_at, needed_until = published_at + interval '1 second'`,
		"what a step of a rotation, or a cut-off, has changed is audited":              `UPDATE nw.key_generations SET state = 'cut_off', ended_at = published_at`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := authoritytest.Bare(t)
			h.Unsound()
			require.Empty(t, found(t, h))
			requireFound(t, h, name, damage)
		})
	}
}
