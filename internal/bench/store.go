package bench

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// filling makes one task with a lane, a consent, a grant, a slot and a queued run for
// each claim to come. It goes past the verbs, as their owner: they would sign and
// publish each one. There are no outbox rows, so that nobody is told of these runs.
var filling = []struct {
	sql  string
	args int // how many it takes: the rows, or the names of role, client and policy, the resource and the member; or who that is, and the kinds of documents
}{
	{`INSERT INTO nw.documents (digest, kind, body) SELECT sha256(convert_to(k, 'UTF8')), k, convert_to($1, 'UTF8') FROM unnest($2::text[]) k`, 2},
	{`CREATE TEMP TABLE part AS SELECT r.id AS role, c.id AS client, p.id AS policy, $5::bytea AS member, $4::bytea AS resource FROM nw.registry r, nw.registry c, nw.registry p
	   WHERE r.kind = 'workload_role' AND r.name = $1 AND c.kind = 'client' AND c.name = $2 AND p.kind = 'policy' AND p.name = $3`, 5},
	{`INSERT INTO nw.tasks (ref, name, client_id, owner)
	   SELECT uuid_send(gen_random_uuid()), sha256(convert_to(i::text, 'UTF8')), client, member FROM part, generate_series(1, $1::bigint) i`, 1},
	{`INSERT INTO nw.task_revisions (task_id, revision, document, role_id, policy_id) SELECT t.id, 1, sha256('task'), role, policy FROM nw.tasks t, part WHERE owner = member`, 0},
	{`INSERT INTO nw.offers (ref, task_id, task_revision, member, digest, state, expires_at)
	   SELECT uuid_send(gen_random_uuid()), t.id, 1, member, sha256('consent'), 'accepted', now() + interval '7 days' FROM nw.tasks t, part WHERE owner = member`, 0},
	{`INSERT INTO nw.consents (ref, offer_id, task_id, task_revision, member, client_id, role_id, policy_id, digest, dial, run_limit_ms, max_effects, max_steps, max_repeats, max_spend,
	   effects_day, effects_month, spend_day, spend_month, member_spend_day, member_spend_month, silence, window_ms, not_before, expires_at, epoch)
	   SELECT uuid_send(gen_random_uuid()), o.id, o.task_id, 1, o.member, client, role, policy, o.digest, 2, 3600000, 5, 100, 3, 0, 0, 0, 0, 0, 0, 0, 'stop', 3600000, now(), o.expires_at, 1 FROM nw.offers o JOIN part USING (member)`, 0},
	{`INSERT INTO nw.consent_grants (consent_id, role_id, guard_id, action, resource, risk)
	   SELECT c.id, c.role_id, a.guard_id, a.action, resource, 2 FROM nw.consents c JOIN part USING (member) JOIN nw.role_actions a ON a.role_id = part.role`, 0},
	{`INSERT INTO nw.lanes (task_id, task_revision, consent_id) SELECT c.task_id, 1, c.id FROM nw.consents c JOIN part USING (member)`, 0},
	{`INSERT INTO nw.runs (ref, task_id, consent_id, member, role_id, nominal_at, activation_epoch, deadline, effects_left, steps_left, spend_left)
	   SELECT uuid_send(gen_random_uuid()), c.task_id, c.id, c.member, c.role_id, now(), 1, now() + interval '1 hour', 5, 100, 0 FROM nw.consents c JOIN part USING (member)`, 0},
	{`INSERT INTO nw.slots (task_id, nominal_at, outcome, run_id, zone)
	   SELECT r.task_id, r.nominal_at, 'run', r.id, sha256('zone') FROM nw.runs r JOIN nw.tasks t ON t.id = r.task_id JOIN part ON t.owner = part.member`, 0},
}

// fill makes rows runs and returns their references in random order.
func fill(ctx context.Context, c *pgx.Conn, rows int, owner document.Owner) ([]string, error) {
	var names []any
	for _, of := range []string{"bookkeeper", "books", "default"} {
		d := canonical.Digest(canonical.DomainName, []byte(of))
		names = append(names, d[:])
	}
	resource := canonical.Digest(canonical.DomainResource, []byte(entries))
	member := canonical.Digest(canonical.DomainMember, []byte(owner.Issuer), []byte(owner.Subject))
	who, err := json.Marshal(map[string]any{"owner": owner})
	if err != nil {
		return nil, err
	}
	args := map[int][]any{0: nil, 1: {rows}, 2: {string(who), []string{"task", "consent"}}, 5: append(names, resource[:], member[:])}
	tx, err := c.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // nothing to undo after the commit
	for _, f := range filling {
		if _, err := tx.Exec(ctx, f.sql, args[f.args]...); err != nil {
			return nil, err
		}
	}
	found, err := tx.Query(ctx, `SELECT r.ref FROM nw.runs r JOIN nw.tasks t ON t.id = r.task_id JOIN part ON t.owner = part.member ORDER BY random()`)
	if err != nil {
		return nil, err
	}
	runs, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (string, error) {
		var ref []byte
		err := row.Scan(&ref)
		return base64.RawURLEncoding.EncodeToString(ref), err
	})
	if err == nil && len(runs) != rows {
		err = fmt.Errorf("%d runs were made, %d wanted", len(runs), rows)
	}
	if err != nil {
		return nil, err
	}
	return runs, tx.Commit(ctx)
}

// finish ends what was claimed, and what was admitted: nothing of it was applied.
func finish(ctx context.Context, c *pgx.Conn) error {
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`UPDATE nw.runs SET state = 'succeeded', holder = NULL, lease_until = NULL, inflight = 0, ended_at = clock_timestamp() WHERE state = 'claimed'`,
			`UPDATE nw.effects SET state = 'not_applied', spent = 0, settled_at = clock_timestamp() WHERE state = 'admitted'`,
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// settle leaves every measurement the same start: statistics that are true, and no checkpoint soon.
func settle(ctx context.Context, c *pgx.Conn) error {
	for _, sql := range []string{`VACUUM (ANALYZE) nw.runs`, `VACUUM (ANALYZE) nw.lanes`, `VACUUM (ANALYZE) nw.effects`, `ANALYZE`, `CHECKPOINT`} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}
