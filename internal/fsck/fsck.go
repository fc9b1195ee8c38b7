// Package fsck knows the invariants of the database. It reads what is there, by
// itself and without the verbs, and serves the command line, the tests and the
// demo alike.
package fsck

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Violation is one invariant that does not hold.
type Violation struct {
	Invariant string `json:"invariant"`
	Rows      int64  `json:"rows"`
}

func (v Violation) String() string { return fmt.Sprintf("%s (%d rows)", v.Invariant, v.Rows) }

// Check holds every invariant against the database at url, in one snapshot, and
// returns those that do not hold. Once audit rows have been pruned, what counts them is left out. url is the owner's: process roles read no table.
func Check(ctx context.Context, url string) ([]Violation, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is pending on it
	return On(ctx, conn)
}

// On is Check on a connection of the owner's that is there already.
func On(ctx context.Context, conn *pgx.Conn) ([]Violation, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // it only read
	var pruned bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM nw.audit_cuts)`).Scan(&pruned); err != nil {
		return nil, err
	}
	var found []Violation
	for _, i := range invariants {
		if pruned && i.missesRows() {
			continue
		}
		var rows int64
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM ("+i.violations+") violation").Scan(&rows); err != nil {
			return nil, fmt.Errorf("%s: %w", i.name, err)
		}
		if rows > 0 {
			found = append(found, Violation{i.name, rows})
		}
	}
	return found, nil
}

// Count is how many invariants there are.
func Count() int { return len(invariants) }

// invariant is a sentence that must hold, and the query for the rows on which it does not.
type invariant struct{ name, violations string }

// missesRows tells that an audit row that has gone by retention would look like one that was never written.
func (i invariant) missesRows() bool {
	return strings.Contains(i.violations, "NOT EXISTS (SELECT FROM nw.audit ") || strings.Contains(i.violations, "(SELECT count(*) FROM nw.audit ")
}

var invariants = []invariant{
	{"a lane has at most one live run", `SELECT task_id FROM nw.runs WHERE state IN ('queued', 'claimed', 'waiting', 'ending') GROUP BY task_id HAVING count(*) > 1`},
	{"no run's fence is above its lane's", `SELECT r.id FROM nw.runs r JOIN nw.lanes l USING (task_id) WHERE r.fence > l.fence`},
	{"a claimed run holds its lane's fence", `SELECT r.id FROM nw.runs r JOIN nw.lanes l USING (task_id) WHERE r.state = 'claimed' AND r.fence <> l.fence`},
	{"a lane's fence is the number of its claims in their incarnation", `SELECT l.task_id FROM nw.lanes l WHERE l.fence & ((1::bigint << 40) - 1) <> (SELECT count(*) FROM nw.audit a
		WHERE a.task_id = l.task_id AND a.verb = 'claim' AND a.verdict = 'ok' AND (convert_from(a.body, 'UTF8')::json->'more'->>'again') = 'false'
		  AND (convert_from(a.body, 'UTF8')::json->'more'->>'fence')::bigint >> 40 = l.fence >> 40)`},
	{"a run is no older than its lane's epoch while it may act", `SELECT r.id FROM nw.runs r JOIN nw.lanes l USING (task_id)
		WHERE r.state IN ('queued', 'claimed', 'waiting') AND r.activation_epoch <> l.activation_epoch`},
	{"a deadline is within the consent and the run's limit", `SELECT r.id FROM nw.runs r JOIN nw.consents c ON c.id = r.consent_id
		WHERE r.deadline > c.expires_at OR r.deadline > r.created_at + make_interval(secs => c.run_limit_ms / 1000.0) + interval '1 second'`},
	{"in flight is the number of admitted effects", `SELECT r.id FROM nw.runs r WHERE r.inflight <> (SELECT count(*) FROM nw.effects e WHERE e.run_id = r.id AND e.state = 'admitted')`},
	{"an effect's fence is not above its run's", `SELECT e.id FROM nw.effects e JOIN nw.runs r ON r.id = e.run_id WHERE e.fence > r.fence`},
	{"an effect is in its run's lane", `SELECT e.id FROM nw.effects e JOIN nw.runs r ON r.id = e.run_id WHERE e.task_id <> r.task_id`},
	{"an ambiguous effect makes its run ambiguous", `SELECT r.id FROM nw.runs r JOIN nw.effects e ON e.run_id = r.id
		WHERE e.state = 'ambiguous' AND r.state NOT IN ('ambiguous', 'ending')`},
	{"a run that succeeded wanted nothing that it did not get", `SELECT id FROM nw.runs WHERE state = 'succeeded' AND shortfall IS NOT NULL`},
	{"every effect was granted by its run's consent", `SELECT e.id FROM nw.effects e JOIN nw.runs r ON r.id = e.run_id LEFT JOIN nw.consent_grants g
		ON g.consent_id = r.consent_id AND g.guard_id = e.guard_id AND g.action = e.action AND g.resource = e.resource AND e.amount <= g.max_amount WHERE g.consent_id IS NULL`},
	{"every admitted effect is at or below the dial, or its owner has decided on it", `SELECT e.id FROM nw.effects e JOIN nw.runs r ON r.id = e.run_id JOIN nw.consents c ON c.id = r.consent_id
		WHERE e.risk > c.dial AND e.attempt IS NOT NULL AND NOT EXISTS (SELECT FROM nw.decisions d WHERE d.effect_id = e.id AND d.state = 'used' AND d.digest = e.digest)
		AND NOT EXISTS (SELECT FROM nw.audit a JOIN nw.consent_keys k ON k.consent_id = r.consent_id AND k.guard_id = e.guard_id AND k.action = e.action AND k.resource = e.resource
		    AND encode(k.key, 'hex') = convert_from(a.body, 'UTF8')::json->'more'->>'approved' WHERE a.effect_id = e.id AND a.verb = 'mint' AND a.verdict = 'ok')`},
	{"what a run has left is what it was given less what it used", `SELECT r.id FROM nw.runs r JOIN nw.consents c ON c.id = r.consent_id
		WHERE r.spend_left > c.max_spend - (SELECT coalesce(sum(coalesce(e.spent, e.amount)), 0) FROM nw.effects e WHERE e.run_id = r.id AND e.reserved_on IS NOT NULL)
		   OR r.effects_left > c.max_effects - (SELECT count(*) FROM nw.effects e WHERE e.run_id = r.id AND e.reserved_on IS NOT NULL)
		   OR r.steps_left > c.max_steps - r.steps OR r.steps < (SELECT count(*) FROM nw.effects e WHERE e.run_id = r.id AND e.reserved_on IS NOT NULL)`},
	{"only an overrun costs more than was reserved, and only what was reserved costs", `SELECT id FROM nw.effects WHERE spent > 0 AND amount = 0 OR state = 'not_applied' AND spent <> 0
		OR state = 'ambiguous' AND spent < amount`},
	{"a task's ledger of effects is the number that it asked for in its month", ledger("k.ref", "''::bytea", "1")},
	{"a task's ledger of money is what it spent or reserved in its month", ledger("k.ref", "c.currency", "coalesce(e.spent, e.amount)")},
	{"a member's ledger of money is what all its tasks spent or reserved in its month", ledger("c.member", "c.currency", "coalesce(e.spent, e.amount)")},
	{"no effect is asked for in a run more often than was agreed", `SELECT e.run_id FROM nw.effects e JOIN nw.runs r ON r.id = e.run_id JOIN nw.consents c ON c.id = r.consent_id
		GROUP BY e.run_id, e.digest, c.max_repeats HAVING count(*) > c.max_repeats`},
	{"an ambiguous effect is found by its task's owner", `SELECT e.id FROM nw.effects e JOIN nw.tasks k ON k.id = e.task_id LEFT JOIN nw.ambiguities a ON a.effect_id = e.id
		WHERE (e.state = 'ambiguous') <> (a.effect_id IS NOT NULL) OR a.owner <> k.owner`},
	{"evidence is about an ambiguous effect", `SELECT v.effect_id FROM nw.evidence v JOIN nw.effects e ON e.id = v.effect_id WHERE e.state <> 'ambiguous'`},
	{"a card is open exactly while its run waits", `SELECT r.id FROM nw.runs r WHERE (r.state = 'waiting') <> EXISTS (SELECT FROM nw.decisions d WHERE d.run_id = r.id AND d.state = 'pending')`},
	{"a run has at most three cards", `SELECT run_id FROM nw.decisions GROUP BY run_id HAVING count(*) > 3`},
	{"a decision is its task's owner's, about an effect of its run", `SELECT d.id FROM nw.decisions d JOIN nw.runs r ON r.id = d.run_id JOIN nw.consents c ON c.id = r.consent_id JOIN nw.effects e ON e.id = d.effect_id
		WHERE d.member <> c.member OR d.run_id <> e.run_id OR d.task_id <> e.task_id OR d.digest <> e.digest`},
	{"every decision has its arguments", `SELECT d.id FROM nw.decisions d WHERE NOT EXISTS (SELECT FROM nw.arguments a WHERE a.effect_id = d.effect_id)`},
	{"every card is audited", `SELECT d.id FROM nw.decisions d WHERE NOT EXISTS (SELECT FROM nw.audit a WHERE a.effect_id = d.effect_id AND a.verb = 'ask' AND a.verdict = 'ok')
		OR d.state IN ('approved', 'denied', 'used') AND NOT EXISTS (SELECT FROM nw.audit a WHERE a.effect_id = d.effect_id AND a.verb = 'decide' AND a.verdict = 'ok')`},
	{"the owner of an open card was told, or will be", `SELECT d.id FROM nw.decisions d WHERE d.state = 'pending' AND NOT EXISTS (SELECT FROM nw.notices n WHERE n.matter = d.ref AND n.kind = 'asked')
		AND NOT EXISTS (SELECT FROM nw.audit a WHERE a.run_id = d.run_id AND a.verb = 'notice' AND convert_from(a.body, 'UTF8')::json->'more'->>'matter' = encode(d.ref, 'hex'))`},
	{"nobody will be told of a card that is over", `SELECT n.task_id FROM nw.notices n WHERE n.state = 'due' AND n.kind IN ('asked', 'reminder')
		AND NOT EXISTS (SELECT FROM nw.decisions d WHERE d.ref = n.matter AND d.state = 'pending' AND d.member = n.member)`},
	{"a notice is for the owner of its task", `SELECT n.task_id FROM nw.notices n JOIN nw.tasks k ON k.id = n.task_id LEFT JOIN nw.runs r ON r.id = n.run_id
		WHERE n.member <> k.owner AND NOT EXISTS (SELECT FROM nw.consents c WHERE c.task_id = k.id AND c.member = n.member) OR r.task_id <> n.task_id`},
	{"nothing was admitted after its task was cut off", `SELECT e.id FROM nw.audit a JOIN nw.effects e ON e.task_id = a.task_id WHERE a.verb IN ('revoke', 'cut_off', 'withdraw', 'depart') AND a.verdict = 'ok'
		AND e.activation_epoch < (convert_from(a.body, 'UTF8')::json->'more'->>'epoch')::bigint AND e.admitted_at > a.at`},
	{"a run that was told no did not succeed", `SELECT r.id FROM nw.runs r JOIN nw.decisions d ON d.run_id = r.id WHERE r.state = 'succeeded' AND d.state = 'denied'`},
	{"a run has at most the effects that were consented to", `SELECT r.id FROM nw.runs r JOIN nw.consents c ON c.id = r.consent_id
		WHERE (SELECT count(*) FROM nw.effects e WHERE e.run_id = r.id AND EXISTS (SELECT FROM nw.audit a WHERE a.effect_id = e.id AND a.verb = 'mint' AND a.verdict = 'ok'))
		> c.max_effects - r.effects_left`},
	{"every run has its slot", `SELECT r.id FROM nw.runs r LEFT JOIN nw.slots s ON s.run_id = r.id AND s.outcome = 'run' WHERE s.run_id IS NULL OR s.nominal_at <> r.nominal_at`},
	{"a slot coalesces into a run of its own task", `SELECT s.run_id FROM nw.slots s JOIN nw.runs r ON r.id = s.run_id WHERE s.task_id <> r.task_id`},
	{"a queued run has an outbox row, and no other has", `SELECT r.id FROM nw.runs r LEFT JOIN nw.outbox o ON o.run_id = r.id WHERE (r.state = 'queued') <> (o.run_id IS NOT NULL)`},
	{"a lane's consent is its task's one active consent", `SELECT l.task_id FROM nw.lanes l LEFT JOIN nw.consents c ON c.task_id = l.task_id AND c.state = 'active'
		WHERE l.consent_id IS DISTINCT FROM c.id`},
	{"a task is scheduled only under a consent", `SELECT s.task_id FROM nw.schedules s JOIN nw.lanes l USING (task_id) WHERE l.consent_id IS NULL`},
	{"a consent binds what was offered", `SELECT c.id FROM nw.consents c JOIN nw.offers o ON o.id = c.offer_id
		WHERE c.digest NOT IN (o.digest, coalesce(o.variant, o.digest)) OR c.member <> o.member OR c.task_id <> o.task_id OR c.task_revision <> o.task_revision OR o.state <> 'accepted'`},
	{"what can be agreed to lies within its offer", `SELECT o.id FROM nw.offers o JOIN nw.documents m ON m.digest = coalesce(o.most, o.digest) JOIN nw.documents d ON d.digest IN (o.digest, o.variant)
		WHERE NOT nw.within(d.body, m.body)`},
	{"a product asks about tasks of its own", `SELECT o.id FROM nw.offers o JOIN nw.tasks k ON k.id = o.task_id WHERE o.product_id <> k.product_id OR o.product_id IS NOT NULL AND k.product_id IS NULL`},
	{"a consent is its owner's", `SELECT c.id FROM nw.consents c JOIN nw.tasks k ON k.id = c.task_id WHERE c.member <> k.owner AND c.state = 'active'`},
	{"a document is what its digest names", `SELECT d.digest FROM nw.documents d WHERE d.digest <> sha256(convert_to(CASE d.kind WHEN 'consent' THEN 'nightwarrant/offer/v1'
		ELSE 'nightwarrant/document/v1' END, 'UTF8') || '\x00'::bytea || d.body)`},
	{"a finding is about an ambiguous effect", `SELECT f.id FROM nw.findings f JOIN nw.effects e ON e.id = f.effect_id WHERE e.state <> 'ambiguous'`},
	{"late evidence is about an ambiguous effect", `SELECT v.id FROM nw.late_evidence v JOIN nw.effects e ON e.id = v.effect_id WHERE e.state <> 'ambiguous'`},
	{"every close and open has its log row", `SELECT d.epoch FROM nw.readiness_decision d WHERE d.epoch <> 1 + (SELECT count(*) FROM nw.readiness_log)
		OR d.epoch <> coalesce((SELECT max(epoch) FROM nw.readiness_log), 1)`},
	{"incarnations rise, and a promoted standby goes on in its primary's", `SELECT id FROM (SELECT id, reason, incarnation - lag(incarnation) OVER (ORDER BY id) AS step FROM nw.incarnations) i
		WHERE CASE reason WHEN 'first' THEN step IS NOT NULL WHEN 'promoted' THEN coalesce(step, 1) <> 0 ELSE coalesce(step, 0) < 1 END`},
	{"every incarnation is audited, and the decision is of the latest", `SELECT d.incarnation FROM nw.readiness_decision d JOIN nw.incarnations i ON i.id = (SELECT max(id) FROM nw.incarnations)
		WHERE d.incarnation <> i.incarnation OR d.timeline <> i.timeline
		   OR (SELECT count(*) FROM nw.incarnations WHERE reason <> 'first') <> (SELECT count(*) FROM nw.audit WHERE verb = 'incarnation')`},
	{"no fence and no admission is of an incarnation that has not begun", `SELECT l.task_id FROM nw.lanes l, nw.readiness_decision d WHERE l.fence >> 40 >= d.incarnation
		UNION ALL SELECT e.id FROM nw.effects e, nw.readiness_decision d WHERE greatest(e.fence, e.admission) >> 40 >= d.incarnation`},
	{"a run that is not over was planned, and claimed, in this incarnation", `SELECT r.id FROM nw.runs r, nw.readiness_decision d WHERE r.state = 'claimed' AND r.fence >> 40 <> d.incarnation - 1
		UNION ALL SELECT r.id FROM nw.runs r JOIN nw.audit p ON p.run_id = r.id AND p.verb = 'plan' WHERE r.live AND p.id < (SELECT max(a.id) FROM nw.audit a
		WHERE a.verb = 'incarnation' AND (convert_from(a.body, 'UTF8')::json->'more'->>'reason') <> 'promoted')`},
	{"registered keys have one generation that signs", `SELECT 1 FROM nw.authority_identity WHERE 1 <> (SELECT count(*) FROM nw.key_generations WHERE state = 'current')`},
	{"a generation of keys is retired when nothing that it signed is good any more", `SELECT generation FROM nw.key_generations WHERE state = 'retired' AND ended_at < needed_until`},
	{"what a step of a rotation, or a cut-off, has changed is audited", `SELECT k.generation FROM nw.key_generations k WHERE k.published_at < k.usable_at AND NOT EXISTS (SELECT FROM nw.audit a
		WHERE a.verb = 'rotate_keys' AND (convert_from(a.body, 'UTF8')::json->'more'->>'next')::bigint = k.generation)
		OR k.state = 'cut_off' AND NOT EXISTS (SELECT FROM nw.audit a WHERE a.verb = 'cut_off_keys' AND (convert_from(a.body, 'UTF8')::json->'more'->>'generation')::bigint > k.generation)`},
	{"no report is of a boot that was never numbered", `SELECT r.instance_id FROM nw.readiness_reports r JOIN nw.instances i ON i.id = r.instance_id WHERE r.boot > i.boot`},
	{"every minted effect is audited", audited("nw.effects", "effect_id", "mint", "(x.state = 'minted' OR x.attempt IS NOT NULL)")},
	{"every admitted effect is audited", audited("nw.effects", "effect_id", "admit", "x.attempt IS NOT NULL")},
	{"every outcome is audited, once", `SELECT e.id FROM nw.effects e WHERE e.settled_at IS NOT NULL AND 1 <> (SELECT count(*) FROM nw.audit a WHERE a.effect_id = e.id
		AND a.verb IN ('settle_effect', 'expire_effect') AND a.verdict = 'ok')`},
	{"every run that ended is audited, once", `SELECT r.id FROM nw.runs r WHERE r.ended_at IS NOT NULL AND 1 <> (SELECT count(*) FROM nw.audit a WHERE a.run_id = r.id AND a.verb = 'end_run' AND a.verdict = 'ok')`},
	{"what an audit row commits to is what is disclosed", `SELECT x.audit_id FROM nw.audit_disclosures x LEFT JOIN nw.audit a ON a.id = x.audit_id
		WHERE convert_from(a.body, 'UTF8')::json->'more'->>x.field IS DISTINCT FROM nw.hex(nw.commitment(x.salt, x.field, x.value))`},
	{"every claim is audited", audited("nw.runs", "run_id", "claim", "x.fence > 0")},
	{"every planned run is audited", audited("nw.runs", "run_id", "plan", "true")},
	{"every audit row is what its digest names", `SELECT id FROM nw.audit WHERE digest <> sha256(body)`},
	{"an audit row's columns are what its body says", `SELECT id FROM nw.audit WHERE (convert_from(body, 'UTF8')::json->>'verb') <> verb OR (convert_from(body, 'UTF8')::json->>'verdict') <> verdict
		OR (convert_from(body, 'UTF8')::json->>'run')::bigint IS DISTINCT FROM run_id OR (convert_from(body, 'UTF8')::json->>'effect')::bigint IS DISTINCT FROM effect_id`},
}

// ledger: the month and the day of each ledger of a kind of holder and unit are the sums over their effects.
func ledger(holder, unit, of string) string {
	sum := func(when string) string {
		return fmt.Sprintf(`coalesce((SELECT sum(%s) FROM nw.effects e JOIN nw.runs r ON r.id = e.run_id JOIN nw.consents c ON c.id = r.consent_id JOIN nw.tasks k ON k.id = e.task_id
			WHERE %s = x.holder AND %s = x.unit AND %s), 0)`, of, holder, unit, when)
	}
	return fmt.Sprintf(`SELECT 1 FROM nw.ledgers x WHERE EXISTS (SELECT FROM nw.consents c JOIN nw.tasks k ON k.id = c.task_id WHERE %s = x.holder AND %s = x.unit)
		AND (x.monthly <> %s OR x.today <> %s)`, holder, unit, sum("date_trunc('month', e.reserved_on)::date = x.month"), sum("e.reserved_on = x.day"))
}

// audited: each row x of a table, where the condition holds, has at least one good audit row of a verb.
func audited(table, column, verb, where string) string {
	return fmt.Sprintf(`SELECT x.id FROM %s x WHERE %s AND NOT EXISTS (SELECT FROM nw.audit a WHERE a.%s = x.id AND a.verb = '%s' AND a.verdict = 'ok')`, table, where, column, verb)
}
