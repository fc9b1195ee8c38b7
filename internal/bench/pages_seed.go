package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// Placeholders in the documents that every task has a copy of.
const (
	pagesNumber = "0000000"
	pagesTask   = "AAAAAAAAAAAAAAAAAAAAAA"
)

// pagesSeed makes one member's tasks and runs among those of others, past the verbs
// and without triggers, as the superuser: $1 tasks of the member, $2 tasks in all, $3
// runs in all. Numbers are the keys, so that rows find each other without a join.
var pagesSeed = []string{
	`CREATE TEMP TABLE seed AS SELECT i, decode(md5('task' || i), 'hex') AS ref, lpad(i::text, 7, '0') AS n, CASE WHEN i <= $1 THEN p.member ELSE sha256(convert_to('other' || i, 'UTF8')) END AS owner
	   FROM part p, generate_series(1, $2::bigint) i`,
	`CREATE TEMP TABLE bodies AS SELECT i, convert_to(replace(p.task, '` + pagesNumber + `', n), 'UTF8') AS task,
	    convert_to(replace(replace(p.consent, '` + pagesNumber + `', n), '` + pagesTask + `', translate(encode(ref, 'base64'), '+/=', '-_')), 'UTF8') AS consent FROM part p, seed`,
	`INSERT INTO nw.documents (digest, kind, body) SELECT sha256(task), 'task', task FROM bodies UNION ALL SELECT sha256(consent), 'consent', consent FROM bodies`,
	`INSERT INTO nw.tasks (id, ref, name, client_id, owner) OVERRIDING SYSTEM VALUE SELECT i, ref, sha256(convert_to(n, 'UTF8')), p.client, owner FROM seed, part p`,
	`INSERT INTO nw.task_revisions (task_id, revision, document, role_id, policy_id) SELECT b.i, 1, sha256(b.task), p.role, p.policy FROM bodies b, part p`,
	`INSERT INTO nw.offers (id, ref, task_id, task_revision, member, digest, state, expires_at) OVERRIDING SYSTEM VALUE
	   SELECT i * 3 + k, decode(md5('offer' || i || '.' || k), 'hex'), i, 1, owner, sha256(b.consent), 'accepted', now() + interval '7 days' FROM seed JOIN bodies b USING (i), generate_series(1, 3) k`,
	`INSERT INTO nw.consents (id, ref, offer_id, task_id, task_revision, member, client_id, role_id, policy_id, digest, dial, run_limit_ms, max_effects, max_steps, max_repeats, max_spend,
	   effects_day, effects_month, spend_day, spend_month, member_spend_day, member_spend_month, silence, window_ms, not_before, expires_at, state, given_at, ended_at, epoch) OVERRIDING SYSTEM VALUE
	   SELECT o.id, decode(md5('consent' || o.id), 'hex'), o.id, o.task_id, 1, o.member, p.client, p.role, p.policy, o.digest, 2, 600000, 5, 100, 3, 0, 0, 0, 0, 0, 0, 0, 'stop', 3600000,
	     now() - interval '90 days', now() + interval '30 days', CASE o.id % 3 WHEN 0 THEN 'active' ELSE 'superseded' END, now() - interval '60 days',
	     CASE o.id % 3 WHEN 0 THEN NULL ELSE now() - interval '40 days' END, 2 FROM nw.offers o, part p`,
	`INSERT INTO nw.lanes (task_id, fence, activation_epoch, task_revision, consent_id) SELECT i, 100, 2, 1, i * 3 + 3 FROM seed`,
	`INSERT INTO nw.schedules (task_id, next_at, zone) SELECT i, now() + interval '1 hour', sha256('zone') FROM seed`,
	`INSERT INTO nw.ledgers (holder, unit) SELECT ref, '' FROM seed`,
	`INSERT INTO nw.consent_grants (consent_id, role_id, guard_id, action, resource, risk) SELECT i * 3 + 3, p.role, p.guard, p.action, p.resource, 2 FROM seed, part p`,
	`INSERT INTO nw.runs (id, ref, task_id, consent_id, member, role_id, nominal_at, activation_epoch, deadline, effects_left, steps_left, steps, spend_left, state, fence, created_at, ended_at)
	   OVERRIDING SYSTEM VALUE SELECT g, decode(md5('run' || g), 'hex'), s.i, s.i * 3 + 3, s.owner, p.role, t, 2, t + interval '10 minutes', 3, 98, 2, 0, CASE WHEN g % 50 = 0 THEN 'failed' ELSE 'succeeded' END, g / $2 + 1, t, t + interval '4 seconds'
	   FROM (SELECT g, now() - make_interval(secs => ($3::bigint - g) * 5) AS t FROM generate_series(1, $3::bigint) g) x JOIN seed s ON s.i = x.g % $2 + 1, part p ORDER BY g`,
	`INSERT INTO nw.slots (task_id, nominal_at, outcome, run_id, zone) SELECT r.task_id, r.nominal_at, 'run', r.id, sha256('zone') FROM nw.runs r`,
	`INSERT INTO nw.effects (id, ref, run_id, task_id, key, digest, guard_id, action, resource, spent, reserved_on, risk, state, fence, activation_epoch, readiness_epoch, holder, capability, expires_at,
	   attempt, admission, admitted_at, apply_until, settle_until, settled_at) OVERRIDING SYSTEM VALUE
	   SELECT r.id * 2 + k, decode(md5('effect' || r.id || '.' || k), 'hex'), r.id, r.task_id, sha256(convert_to(k::text, 'UTF8')), sha256(convert_to(r.id || '.' || k, 'UTF8')), p.guard, p.action, p.resource, 0,
	     now()::date, 2, CASE WHEN r.id % 2000 = 0 AND k = 0 THEN 'ambiguous' ELSE 'committed' END, r.fence, 2, 2, sha256('key'), sha256('capability'), r.nominal_at,
	     decode(md5('attempt'), 'hex'), r.id * 2 + k, r.nominal_at, r.nominal_at, r.nominal_at, r.nominal_at
	   FROM (SELECT * FROM nw.runs ORDER BY id DESC LIMIT 200000) r, part p, generate_series(0, 1) k`,
	`INSERT INTO nw.ambiguities SELECT e.id, k.owner FROM nw.effects e JOIN nw.tasks k ON k.id = e.task_id WHERE e.state = 'ambiguous'`,
	`INSERT INTO nw.decisions (id, ref, effect_id, task_id, run_id, member, digest, activation_epoch, policy_id, requirement, state, asked_at, expires_at, decided_at) OVERRIDING SYSTEM VALUE
	   SELECT e.id, decode(md5('decision' || e.id), 'hex'), e.id, e.task_id, e.run_id, r.member, e.digest, 2, p.policy, 1, CASE WHEN e.id % 200 = 0 THEN 'pending' ELSE 'used' END, r.nominal_at, now() + interval '1 hour',
	     CASE WHEN e.id % 200 = 0 THEN NULL ELSE now() END FROM (SELECT * FROM nw.effects ORDER BY id DESC LIMIT 20000) e JOIN nw.runs r ON r.id = e.run_id, part p WHERE e.id % 4 = 0`,
	`INSERT INTO nw.arguments (effect_id, body) SELECT effect_id, convert_to('{"action":"row.append","guard":"ledger","parameters":{"row":{"entry":"' || repeat('x', 200) || '"}},"resource":"table:entries"}', 'UTF8') FROM nw.decisions`,
	`INSERT INTO nw.arguments (effect_id, body) SELECT id, convert_to('{"action":"row.append","guard":"ledger","parameters":{},"resource":"table:entries"}', 'UTF8') FROM nw.effects WHERE state = 'ambiguous' ON CONFLICT DO NOTHING`,
	`INSERT INTO nw.audit (at, verb, verdict, task_id, run_id, effect_id, body, digest) SELECT t, verb, 'ok', task_id, run_id, effect_id, b, sha256(b) FROM (
	   SELECT r.nominal_at + make_interval(secs => v.n) AS t, v.verb, r.task_id, r.id AS run_id, CASE WHEN v.effect THEN r.id * 2 END AS effect_id,
	     convert_to(json_build_object('v', 1, 'verb', v.verb, 'task', r.task_id, 'run', r.id, 'more', json_build_object('fence', r.fence, 'key', repeat('0', 64), 'capability', repeat('0', 64)))::text, 'UTF8') AS b
	   FROM (SELECT * FROM nw.runs ORDER BY id DESC LIMIT 50000) r, (VALUES (0, 'plan', false), (1, 'claim', false), (2, 'mint', true), (3, 'admit', true), (4, 'settle_effect', true), (5, 'end_run', false)) v(n, verb, effect)) x
	   ORDER BY t`,
	`UPDATE nw.readiness_decision SET state = 'open', held = false, epoch = epoch + 1, reason = 'good', since = now(), valid_until = now() + interval '1 hour'`,
}

// othersOf is how many tasks somebody else has, for each of the member's.
const othersOf = 10

func (h *pagesHouse) seed(ctx context.Context, tasks, runs int) error {
	if err := h.seedRegistry(ctx); err != nil {
		return err
	}
	all := tasks + tasks/othersOf
	numbers := strings.NewReplacer("$1", strconv.Itoa(tasks), "$2", strconv.Itoa(all), "$3", strconv.Itoa(runs*all/tasks))
	if _, err := h.store.Exec(ctx, `SET session_replication_role = replica`); err != nil {
		return err
	}
	for _, sql := range pagesSeed {
		if _, err := h.store.Exec(ctx, numbers.Replace(sql)); err != nil {
			return fmt.Errorf("%.60s: %w", sql, err)
		}
	}
	for _, sql := range []string{`SET session_replication_role = DEFAULT`, `VACUUM (ANALYZE)`, `CHECKPOINT`} {
		if _, err := h.store.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// seedRegistry enters what the tasks rest on, and the documents that each has a copy of.
func (h *pagesHouse) seedRegistry(ctx context.Context) error {
	role := &document.WorkloadRole{Header: document.Header{Kind: document.KindRole, Name: "bookkeeper"}, Client: "books", Revision: 1, Profiles: []string{"bookkeeper"},
		Actions: []document.Allowed{{Guard: "ledger", Action: "row.append"}}, Limits: document.RoleLimits{MaxRuntimeS: 3600, MaxEffects: 10, MaxSteps: 1000}}
	policy := &document.Policy{Header: document.Header{Kind: document.KindPolicy, Name: "default"}, Revision: 1, DialMax: catalogue.High,
		Limits: document.PolicyLimits{MaxRuntimeS: 3600, MaxEffects: 10, MaxSteps: 1000, MaxConsentDays: 90}}
	guard := &document.Guard{Header: document.Header{Kind: document.KindGuard, Name: "ledger"}, Title: "The ledger", Catalogue: catalogue.Postgres, URI: "https://ledger.bench.example/ledger",
		Profile: "bookkeeper", Provable: true, MaxCallMS: 60_000}
	task := &document.Task{Header: document.Header{Kind: document.KindTask, Name: "task-" + pagesNumber}, Client: "books", Role: "bookkeeper", RoleRevision: 1, Policy: "default", PolicyRevision: 1, Revision: 1,
		Owner: document.Owner{Issuer: pagesIssuer, Subject: pagesMember}, Title: "Close the books of department " + pagesNumber,
		Schedule: timetable.Document{Cron: "30 2 * * *", Zone: "Europe/Berlin", Missed: timetable.Skip}, Dial: catalogue.Low,
		Grants: []document.Grant{{Guard: "ledger", Action: "row.append", Resource: "table:entries"}}, Limits: document.TaskLimits{RuntimeS: 600, Effects: 5, Steps: 100, Repeats: 3},
		Consent: document.Term{Days: 30}, WhenMoreIsNeeded: document.MoreStops, DecisionWindowS: 3600}
	consent, err := document.BuildConsent(document.Parts{TaskRef: pagesTask, Task: task, Role: role, Policy: policy, Guards: map[string]*document.Guard{"ledger": guard}, Now: time.Now()})
	if err != nil {
		return err
	}
	texts := [2][]byte{}
	if texts[0], err = document.Canonical(task); err == nil {
		texts[1], err = consent.Canonical()
	}
	if err != nil {
		return err
	}
	ids := map[string]int64{}
	for kind, d := range map[string]document.Document{"attestation_profile": &document.AttestationProfile{Header: document.Header{Kind: document.KindProfile, Name: "bookkeeper"},
		Issuer: "https://workloads.bench.example", Subject: "bookkeeper", Binding: document.BindFirstKey, MaxLifetimeS: 3600},
		"client": &document.Client{Header: document.Header{Kind: document.KindClient, Name: "books"}, Title: "The bookkeeping product"}, "guard": guard, "workload_role": role, "policy": policy} {
		if ids[kind], err = h.enter(ctx, kind, d); err != nil {
			return err
		}
	}
	uri := canonical.Digest(canonical.DomainReference, []byte(guard.URI))
	action, resource := canonical.Digest(canonical.DomainAction, []byte("row.append")), canonical.Digest(canonical.DomainResource, []byte("table:entries"))
	member := canonical.Digest(canonical.DomainMember, []byte(pagesIssuer), []byte(pagesMember))
	batch := &pgx.Batch{}
	batch.Queue(`INSERT INTO nw.components (id, profile_id, uri, catalogue, provable) VALUES ($1, $2, $3, sha256('catalogue'), true)`, ids["guard"], ids["attestation_profile"], uri[:])
	batch.Queue(`INSERT INTO nw.role_profiles VALUES ($1, $2)`, ids["workload_role"], ids["attestation_profile"])
	batch.Queue(`INSERT INTO nw.role_actions VALUES ($1, $2, $3)`, ids["workload_role"], ids["guard"], action[:])
	batch.Queue(`INSERT INTO nw.role_queues SELECT name, decode(md5('queue'), 'hex') FROM nw.registry WHERE id = $1`, ids["workload_role"])
	batch.Queue(`CREATE TEMP TABLE part AS SELECT $1::bigint AS client, $2::bigint AS role, $3::bigint AS policy, $4::bigint AS guard, $5::bytea AS action, $6::bytea AS resource, $7::bytea AS member, $8::text AS task, $9::text AS consent`,
		ids["client"], ids["workload_role"], ids["policy"], ids["guard"], action[:], resource[:], member[:], string(texts[0]), string(texts[1]))
	return h.store.SendBatch(ctx, batch).Close()
}

func (h *pagesHouse) enter(ctx context.Context, kind string, d document.Document) (id int64, err error) {
	body, err := document.Canonical(d)
	if err != nil {
		return 0, err
	}
	name := canonical.Digest(canonical.DomainName, []byte(d.Head().Name))
	if _, err := h.store.Exec(ctx, `INSERT INTO nw.documents (digest, kind, body) VALUES (sha256($2), $1, $2)`, kind, body); err != nil {
		return 0, err
	}
	err = h.store.QueryRow(ctx, `INSERT INTO nw.registry (kind, name, revision, document) VALUES ($1, $2, 1, sha256($3)) RETURNING id`, kind, name[:], body).Scan(&id)
	return id, err
}
