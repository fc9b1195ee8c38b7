package migrations_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// P5: whoever writes by hand, or forgets an invariant in a verb, is stopped by the schema. Each statement is tried as the owner
// of the tables, on rows that a real run has left.
func TestTheSchemaRefuses(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	w := h.Claim(h.Plan(task))
	g := h.Guard()
	minted := w.Minted("book", "rent")
	ask := g.Ask(w, minted, "rent", authoritytest.NewAttempt())
	h.Into(g.Admit(ask), nil)
	h.Into(g.Settle(minted.Effect, ask.Attempt, api.Committed), nil)
	open := w.Minted("second", "gas")
	h.Into(g.Admit(g.Ask(w, open, "gas", authoritytest.NewAttempt())), nil)
	done := h.Claim(h.Plan(h.Consent(h.Task("another"))))
	h.Into(done.Settle("succeeded"), nil)

	for name, sql := range map[string]string{
		"a lower fence":                  `UPDATE nw.lanes SET fence = fence - 1 WHERE fence > 0`,
		"a lower activation epoch":       `UPDATE nw.lanes SET activation_epoch = activation_epoch - 1`,
		"an older task revision":         `UPDATE nw.lanes SET task_revision = 0`,
		"a lane that begins elsewhere":   `INSERT INTO nw.lanes (task_id, fence, task_revision) SELECT 99, 7, 1`,
		"a moved deadline":               `UPDATE nw.runs SET deadline = deadline + interval '1 hour' WHERE state = 'claimed'`,
		"a lower fence of a run":         `UPDATE nw.runs SET fence = 0 WHERE state = 'claimed'`,
		"as somebody else":               `UPDATE nw.runs SET member = sha256('m') WHERE state = 'claimed'`,
		"another consent":                `UPDATE nw.runs SET consent_id = consent_id + 1 WHERE state = 'claimed'`,
		"more effects than were left":    `UPDATE nw.runs SET effects_left = effects_left + 1 WHERE state = 'claimed'`,
		"a terminal run that goes on":    `UPDATE nw.runs SET state = 'queued', ended_at = NULL WHERE state = 'succeeded'`,
		"a terminal run's other column":  `UPDATE nw.runs SET capability = NULL WHERE state = 'succeeded'`,
		"a claimed run without holder":   `UPDATE nw.runs SET holder = NULL WHERE state = 'claimed'`,
		"fewer in flight than none":      `UPDATE nw.runs SET inflight = -1 WHERE state = 'claimed'`,
		"in flight after the end":        `INSERT INTO nw.runs (ref, task_id, consent_id, member, role_id, nominal_at, activation_epoch, deadline, steps_left, spend_left, effects_left, inflight) SELECT sha256('r')::bytea, task_id, consent_id, member, role_id, nominal_at, activation_epoch, deadline, 1, 0, 1, 1 FROM nw.runs LIMIT 1`,
		"a second live run":              `INSERT INTO nw.runs (ref, task_id, consent_id, member, role_id, nominal_at, activation_epoch, deadline, steps_left, spend_left, effects_left) SELECT substr(sha256('r'), 1, 16), task_id, consent_id, member, role_id, nominal_at, activation_epoch, deadline, 1, 0, 1 FROM nw.runs WHERE state = 'claimed'`,
		"a run that begins claimed":      `INSERT INTO nw.runs (ref, task_id, consent_id, member, role_id, nominal_at, activation_epoch, deadline, steps_left, spend_left, effects_left, state, holder, lease_until) SELECT substr(sha256('s'), 1, 16), task_id, consent_id, member, role_id, nominal_at, activation_epoch, deadline, 1, 0, 1, 'claimed', sha256('k'), deadline FROM nw.runs WHERE state = 'succeeded'`,
		"a slot twice":                   `INSERT INTO nw.slots (task_id, nominal_at, outcome, reason, zone) SELECT task_id, nominal_at, 'skipped', 'missed', zone FROM nw.slots LIMIT 1`,
		"an outcome that changes":        `UPDATE nw.effects SET state = 'ambiguous' WHERE state = 'committed'`,
		"an effect consumed twice":       `UPDATE nw.effects SET attempt = substr(sha256('x'), 1, 16) WHERE state = 'admitted'`,
		"an admitted effect minted anew": `UPDATE nw.effects SET state = 'minted', attempt = NULL, admission = NULL, settle_until = NULL WHERE state = 'admitted'`,
		"an outcome without admission":   `INSERT INTO nw.effects (ref, run_id, task_id, key, digest, guard_id, action, resource, risk, fence, activation_epoch, readiness_epoch, holder, capability, expires_at, state, settled_at) SELECT substr(sha256('e'), 1, 16), run_id, task_id, sha256('key'), digest, guard_id, action, resource, risk, fence, activation_epoch, readiness_epoch, holder, capability, expires_at, state, settled_at FROM nw.effects WHERE state = 'committed'`,
		"an effect that names another":   `UPDATE nw.effects SET digest = sha256('other') WHERE state = 'admitted'`,
		"a consent that is widened":      `UPDATE nw.consents SET dial = 3`,
		"a consent that lasts longer":    `UPDATE nw.consents SET expires_at = expires_at + interval '1 year'`,
		"a grant outside the role":       `INSERT INTO nw.consent_grants (consent_id, role_id, guard_id, action, resource, risk) SELECT consent_id, role_id, guard_id, sha256('anything'), resource, 1 FROM nw.consent_grants LIMIT 1`,
		"a second active consent":        `INSERT INTO nw.consents (ref, offer_id, task_id, task_revision, member, client_id, role_id, policy_id, digest, dial, run_limit_ms, max_effects, silence, window_ms, not_before, expires_at) SELECT substr(sha256('c'), 1, 16), offer_id + 100, task_id, task_revision, member, client_id, role_id, policy_id, digest, dial, run_limit_ms, max_effects, silence, window_ms, not_before, expires_at FROM nw.consents LIMIT 1`,
		"an offer of more than its most": `INSERT INTO nw.offers (ref, task_id, task_revision, member, digest, most, state, expires_at) SELECT substr(sha256('o'), 1, 16), o.task_id, o.task_revision, o.member, o.digest, x.digest, 'declined', o.expires_at FROM nw.offers o JOIN nw.offers x ON x.task_id <> o.task_id LIMIT 1`,
		"an offer of no product's task":  `INSERT INTO nw.offers (ref, task_id, task_revision, member, digest, product_id, back, state, expires_at) SELECT substr(sha256('p'), 1, 16), task_id, task_revision, member, digest, (SELECT min(id) FROM nw.components), digest, 'declined', expires_at FROM nw.offers LIMIT 1`,
		"a consent to something else":    `INSERT INTO nw.consents (ref, offer_id, task_id, task_revision, member, client_id, role_id, policy_id, digest, dial, run_limit_ms, max_effects, max_steps, max_repeats, max_spend, effects_day, effects_month, spend_day, spend_month, member_spend_day, member_spend_month, silence, window_ms, not_before, expires_at, epoch, state) SELECT substr(sha256('c'), 1, 16), c.offer_id, c.task_id, c.task_revision, c.member, client_id, role_id, policy_id, x.digest, dial, run_limit_ms, max_effects, max_steps, max_repeats, max_spend, effects_day, effects_month, spend_day, spend_month, member_spend_day, member_spend_month, silence, window_ms, not_before, c.expires_at, epoch, 'revoked' FROM nw.consents c JOIN nw.offers x ON x.task_id <> c.task_id LIMIT 1`,
		"an edited document":             `UPDATE nw.documents SET body = '{}'`,
		"a registered revision edited":   `UPDATE nw.registry SET document = (SELECT digest FROM nw.documents WHERE kind = 'consent' LIMIT 1)`,
		"an edited audit row":            `UPDATE nw.audit SET verdict = 'ok'`,
		"an audit row of another body":   `INSERT INTO nw.audit (at, verb, verdict, body, digest) VALUES (clock_timestamp(), 'open', 'ok', 'x', sha256('y'))`,
		"a lower readiness epoch":        `UPDATE nw.readiness_decision SET epoch = epoch - 1`,
		"a change without a new epoch":   `UPDATE nw.readiness_decision SET state = 'closed'`,
		"an open gate that is held":      `UPDATE nw.readiness_decision SET held = true`,
		"a lower replay floor":           `UPDATE nw.ring_floors SET floor = floor - 1`,
		"a lower boot":                   `UPDATE nw.instances SET boot = 0`,
		"another key identity":           `UPDATE nw.authority_identity SET audit_key = sha256('k')`,
		"a second key identity":          `INSERT INTO nw.authority_identity (singleton, cluster, audit_key, cache_ms, margin_ms, lifetime_ms) SELECT false, cluster, audit_key, cache_ms, margin_ms, lifetime_ms FROM nw.authority_identity`,
		"another key of a generation":    `UPDATE nw.key_generations SET kid = sha256('k'), state = 'previous'`,
		"a generation that comes back":   `UPDATE nw.key_generations SET state = 'next', activated_at = NULL`,
		"two generations that sign":      `INSERT INTO nw.key_generations SELECT generation + 1, state, sha256('k'), sha256('p1') || sha256('p2') || '\x04', sha256('n'), provenance, published_at, usable_at, activated_at FROM nw.key_generations`,
	} {
		t.Run(name, func(t *testing.T) { refused(t, h.Owner, sql) })
	}
	for _, table := range []string{"lanes", "runs", "effects", "consents", "offers", "audit", "slots", "documents", "registry", "findings", "readiness_log", "ring_floors",
		"authority_identity", "key_generations", "readiness_decision", "instances", "tasks"} {
		t.Run("delete from "+table, func(t *testing.T) {
			if table != "findings" { // nobody found anything yet: a row trigger has nothing to fire on
				refused(t, h.Owner, "DELETE FROM nw."+table)
			}
			refused(t, h.Owner, "TRUNCATE nw."+table+" CASCADE")
		})
	}
}

func refused(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	ctx := context.Background()
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx) //nolint:errcheck // nothing to keep
	tag, err := tx.Exec(ctx, sql)
	var refusal *pgconn.PgError
	require.ErrorAs(t, err, &refusal, "%s changed %d rows", sql, tag.RowsAffected())
	// A constraint or a trigger has refused it; not a mistake in this test's SQL.
	assert.True(t, refusal.Code == "NW001" || refusal.Code[:2] == "23", "%s: %v", sql, err)
}
