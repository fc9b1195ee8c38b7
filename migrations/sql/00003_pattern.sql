-- +goose Up
-- The one pattern of every verb (design.md §3, P1–P3): lock first, in statements of their own; decide in a later one; write after.
-- Verbs are VOLATILE plpgsql, so each inner statement takes a new snapshot: what a verb reads after it has waited for a lock
-- is what the transaction it waited for has committed.

-- The advisory key of the gate. Admissions share it, a close holds it alone.
CREATE FUNCTION nw.gate_key() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 7914860151374';

-- What the verbs share has no search path of its own, because setting one costs at each call; names are spelled out, and nobody may call it.

-- enter takes the shared lock. Under any other isolation level than READ COMMITTED the snapshot would be older than the lock (P3).
-- +goose StatementBegin
CREATE FUNCTION nw.enter() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'nightwarrant: verbs run under READ COMMITTED' USING ERRCODE = 'NW002';
  END IF;
  PERFORM pg_advisory_xact_lock_shared(nw.gate_key());
END $$;
-- +goose StatementEnd

-- alone is enter for the one who closes or opens.
-- +goose StatementBegin
CREATE FUNCTION nw.alone() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'nightwarrant: verbs run under READ COMMITTED' USING ERRCODE = 'NW002';
  END IF;
  PERFORM pg_advisory_xact_lock(nw.gate_key());
END $$;
-- +goose StatementEnd

-- admitting is the decision as it stands now, or NULL when nothing may be admitted. Call it after enter, in a later statement.
-- +goose StatementBegin
CREATE FUNCTION nw.admitting() RETURNS nw.readiness_decision LANGUAGE plpgsql VOLATILE AS $$
DECLARE d nw.readiness_decision;
BEGIN
  SELECT * INTO d FROM nw.readiness_decision WHERE state = 'open' AND NOT held AND valid_until > clock_timestamp() AND timeline = nw.timeline();
  RETURN d;
END $$;
-- +goose StatementEnd

-- nonce_verdict judges a proof's nonce time. The nonce decides freshness: issued at most 120 s ago by this database's clock,
-- not below the ring's floor, not ahead of the next minute (P31), and not before this incarnation, which does not know what was used then.
-- +goose StatementBegin
CREATE FUNCTION nw.nonce_verdict(p_nonce_at timestamptz) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE m bigint := floor(extract(epoch FROM p_nonce_at) / 60); t timestamptz := clock_timestamp();
BEGIN
  IF p_nonce_at IS NULL OR p_nonce_at < t - interval '120 seconds' OR m > floor(extract(epoch FROM t) / 60) + 1
     OR EXISTS (SELECT FROM nw.ring_floors WHERE ring = 'replay' AND (m < floor OR p_nonce_at <= after)) THEN
    RETURN 'use_dpop_nonce';
  END IF;
  RETURN 'ok';
END $$;
-- +goose StatementEnd

-- A statement over a ring opens and locks all of its partitions, at each call. So what every admission asks of a ring names one partition, and is written out here for each.
-- +goose StatementBegin
DO $ring$
DECLARE verb record;
BEGIN
  FOR verb IN SELECT * FROM (VALUES
-- spend_proof records a proof, once, with the floor in the statement that inserts. A proof that was spent before undoes the
-- whole verb: NW409 is definite, nothing has happened.
(16, $$INSERT INTO nw.replay_@ (slot, minute, digest)
    SELECT @, m, p_proof FROM nw.ring_floors
     WHERE ring = 'replay' AND floor <= m AND after < p_nonce_at AND m <= floor(extract(epoch FROM clock_timestamp()) / 60) + 1
    ON CONFLICT DO NOTHING;$$, $verb$
CREATE FUNCTION nw.spend_proof(p_nonce_at timestamptz, p_proof bytea) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE m bigint := floor(extract(epoch FROM p_nonce_at) / 60);
BEGIN
  CASE m % 16 @ END CASE;
  IF NOT FOUND THEN RAISE EXCEPTION 'proof_replayed' USING ERRCODE = 'NW409'; END IF;
END $$ $verb$),
-- owner_verdict says whether a key may use an assertion or envelope (A3): the first key that uses it owns it until it expires.
(12, $$SELECT jkt INTO owner FROM nw.assertion_owners_@ WHERE slot = @ AND period = w AND digest = p_assertion;$$, $verb$
CREATE FUNCTION nw.owner_verdict(p_assertion bytea, p_expires timestamptz, p_jkt bytea) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE w bigint := floor(extract(epoch FROM p_expires) / 21600); owner bytea;
BEGIN
  IF p_expires IS NULL OR p_expires <= clock_timestamp() OR p_expires > clock_timestamp() + interval '24 hours 5 minutes'
     OR w < (SELECT floor FROM nw.ring_floors WHERE ring = 'assertion_owners') THEN
    RETURN 'invalid_client';
  END IF;
  CASE w % 12 @ END CASE;
  IF owner <> p_jkt THEN RETURN 'assertion_bound'; END IF;
  RETURN 'ok';
END $$ $verb$),
-- own_assertion makes a key the owner, or undoes the verb when another key was faster.
(12, $$INSERT INTO nw.assertion_owners_@ (slot, period, digest, jkt) VALUES (@, w, p_assertion, p_jkt) ON CONFLICT DO NOTHING;$$, $verb$
CREATE FUNCTION nw.own_assertion(p_assertion bytea, p_expires timestamptz, p_jkt bytea) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE w bigint := floor(extract(epoch FROM p_expires) / 21600);
BEGIN
  CASE w % 12 @ END CASE;
  IF NOT FOUND THEN
    PERFORM FROM nw.assertion_owners WHERE slot = w % 12 AND period = w AND digest = p_assertion AND jkt = p_jkt;
    IF NOT FOUND THEN RAISE EXCEPTION 'assertion_bound' USING ERRCODE = 'NW409'; END IF;
  END IF;
END $$ $verb$)) AS x(slots, part, body) LOOP
    EXECUTE replace(verb.body, '@', (SELECT string_agg(format(E'\n    WHEN %s THEN ', i) || replace(verb.part, '@', i::text), '' ORDER BY i) FROM generate_series(0, verb.slots - 1) i));
  END LOOP;
END $ring$;
-- +goose StatementEnd

-- note appends an audit row and returns its digest. p_more holds digests (hex), states and numbers only.
-- +goose StatementBegin
CREATE FUNCTION nw.note(p_verb text, p_verdict text, p_task bigint, p_run bigint, p_effect bigint, p_more json DEFAULT NULL) RETURNS bytea
LANGUAGE plpgsql VOLATILE AS $$
DECLARE t timestamptz := clock_timestamp(); b bytea; d bytea;
BEGIN
  b := convert_to(json_build_object('v', 1, 'at', floor(extract(epoch FROM t) * 1000000)::bigint, 'verb', p_verb, 'verdict', p_verdict,
    'task', p_task, 'run', p_run, 'effect', p_effect, 'more', p_more)::text, 'UTF8');
  d := sha256(b);
  INSERT INTO nw.audit (at, verb, verdict, task_id, run_id, effect_id, body, digest) VALUES (t, p_verb, p_verdict, p_task, p_run, p_effect, b, d);
  RETURN d;
END $$;
-- +goose StatementEnd

-- note_about is note for what names a member. A member's reference can be guessed, so the row holds a commitment to it under a salt of the row's own; salt and reference stand
-- beside it (00017) and can go.
-- +goose StatementBegin
CREATE FUNCTION nw.note_about(p_member bytea, p_verb text, p_verdict text, p_task bigint, p_run bigint, p_effect bigint, p_more json) RETURNS bytea
LANGUAGE plpgsql VOLATILE AS $$
DECLARE salt bytea := uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()); d bytea;
BEGIN
  d := nw.note(p_verb, p_verdict, p_task, p_run, p_effect,
    ('{"member" : "' || nw.hex(nw.commitment(salt, 'member', p_member)) || CASE WHEN p_more IS NULL THEN '"}' ELSE '", ' || substr(p_more::text, 2) END)::json);
  INSERT INTO nw.audit_disclosures (audit_id, field, salt, value) VALUES (currval('nw.audit_id_seq'), 'member', salt, p_member);
  RETURN d;
END $$;
-- +goose StatementEnd

-- commitment is what an audit row holds instead of a value that is personal.
CREATE FUNCTION nw.commitment(p_salt bytea, p_field text, p_value bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
  $$ SELECT sha256('nightwarrant/audit-field/v1'::bytea || '\x00' || p_salt || '\x00' || p_field::bytea || '\x00' || p_value) $$;

-- hex renders a reference or digest in audit rows.
CREATE FUNCTION nw.hex(b bytea) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT encode(b, 'hex') $$;

-- currency_of reads the currency of a consent's limits for whoever is shown a cost.
CREATE FUNCTION nw.currency_of(p_body bytea) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT convert_from(p_body, 'UTF8')::json->'limits'->>'currency' $$;

-- used is what a ledger says of a day and of its month: an older day's number is nobody's any more.
CREATE FUNCTION nw.used(x nw.ledgers, p_today date, OUT today bigint, OUT monthly bigint) LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN x.day = p_today THEN x.today ELSE 0 END, CASE WHEN x.month = date_trunc('month', p_today)::date THEN x.monthly ELSE 0 END $$;

-- charge adds to a ledger, or takes back what was reserved on a day. The caller holds its lock, or takes it here as the last of its row locks.
-- +goose StatementBegin
CREATE FUNCTION nw.charge(p_holder bytea, p_unit bytea, p_on date, p_amount bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE m date := date_trunc('month', p_on)::date;
BEGIN
  UPDATE ledgers SET
      today = CASE WHEN day = p_on THEN greatest(0, today + p_amount) WHEN day < p_on THEN greatest(0, p_amount) ELSE today END, day = greatest(day, p_on),
      monthly = CASE WHEN month = m THEN greatest(0, monthly + p_amount) WHEN month < m THEN greatest(0, p_amount) ELSE monthly END, month = greatest(month, m)
   WHERE holder = p_holder AND unit = p_unit;
END $$;
-- +goose StatementEnd

-- left_over says what a run may still use, with the windows of its task and its member, and how much of the nearest ceiling is used, in percent.
-- +goose StatementBegin
CREATE FUNCTION nw.left_over(r nw.runs, c nw.consents, p_task bytea, t timestamptz, OUT effects bigint, OUT steps bigint, OUT spend bigint, OUT used smallint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE d date := (t AT TIME ZONE 'UTC')::date; w record; x nw.ledgers; u numeric;
BEGIN
  effects := r.effects_left; steps := r.steps_left; spend := greatest(0, r.spend_left);
  u := greatest(1 - effects::numeric / greatest(c.max_effects, 1), 1 - steps::numeric / c.max_steps, CASE WHEN c.max_spend > 0 THEN 1 - r.spend_left::numeric / c.max_spend ELSE 0 END,
                1 - extract(epoch FROM r.deadline - t) * 1000 / c.run_limit_ms);
  IF c.effects_day > 0 OR c.effects_month > 0 THEN
    SELECT ledgers.* INTO x FROM nw.ledgers WHERE holder = p_task AND unit = '';
    SELECT * INTO w FROM nw.used(x, d);
    IF c.effects_day > 0 THEN effects := least(effects, greatest(0, c.effects_day - w.today)); u := greatest(u, w.today::numeric / c.effects_day); END IF;
    IF c.effects_month > 0 THEN effects := least(effects, greatest(0, c.effects_month - w.monthly)); u := greatest(u, w.monthly::numeric / c.effects_month); END IF;
  END IF;
  IF c.spend_day > 0 OR c.spend_month > 0 THEN
    SELECT ledgers.* INTO x FROM nw.ledgers WHERE holder = p_task AND unit = c.currency;
    SELECT * INTO w FROM nw.used(x, d);
    IF c.spend_day > 0 THEN spend := least(spend, greatest(0, c.spend_day - w.today)); u := greatest(u, w.today::numeric / c.spend_day); END IF;
    IF c.spend_month > 0 THEN spend := least(spend, greatest(0, c.spend_month - w.monthly)); u := greatest(u, w.monthly::numeric / c.spend_month); END IF;
  END IF;
  IF c.member_spend_day > 0 OR c.member_spend_month > 0 THEN
    SELECT ledgers.* INTO x FROM nw.ledgers WHERE holder = c.member AND unit = c.currency;
    SELECT * INTO w FROM nw.used(x, d);
    IF c.member_spend_day > 0 THEN spend := least(spend, greatest(0, c.member_spend_day - w.today)); u := greatest(u, w.today::numeric / c.member_spend_day); END IF;
    IF c.member_spend_month > 0 THEN spend := least(spend, greatest(0, c.member_spend_month - w.monthly)); u := greatest(u, w.monthly::numeric / c.member_spend_month); END IF;
  END IF;
  used := least(100, greatest(0, floor(u * 100)));
END $$;
-- +goose StatementEnd

-- ceiling is the first limit that one more effect of that amount would pass, or NULL. The caller holds the locks of the run and of its ledgers.
-- +goose StatementBegin
CREATE FUNCTION nw.ceiling(r nw.runs, c nw.consents, p_task bytea, p_new boolean, p_amount bigint, t timestamptz) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE d date := (t AT TIME ZONE 'UTC')::date; e ledgers; s ledgers; m ledgers; eu record; su record; mu record;
BEGIN
  IF r.steps_left < 1 THEN RETURN 'steps'; END IF;
  IF NOT p_new THEN RETURN NULL; END IF; -- known effects have their share
  SELECT ledgers.* INTO e FROM ledgers WHERE holder = p_task AND unit = '';
  SELECT * INTO eu FROM nw.used(e, d);
  IF r.effects_left < 1 THEN RETURN 'effects'; END IF;
  IF c.effects_day > 0 AND eu.today >= c.effects_day THEN RETURN 'effects_day'; END IF;
  IF c.effects_month > 0 AND eu.monthly >= c.effects_month THEN RETURN 'effects_month'; END IF;
  IF p_amount = 0 THEN RETURN NULL; END IF;
  IF p_amount > r.spend_left THEN RETURN 'spend'; END IF;
  SELECT ledgers.* INTO s FROM ledgers WHERE holder = p_task AND unit = c.currency;
  SELECT ledgers.* INTO m FROM ledgers WHERE holder = c.member AND unit = c.currency;
  SELECT * INTO su FROM nw.used(s, d);
  SELECT * INTO mu FROM nw.used(m, d);
  RETURN CASE
    WHEN s.holder IS NULL OR m.holder IS NULL THEN 'spend' -- no ledger, no money
    WHEN c.spend_day > 0 AND su.today + p_amount > c.spend_day THEN 'spend_day'
    WHEN c.spend_month > 0 AND su.monthly + p_amount > c.spend_month THEN 'spend_month'
    WHEN c.member_spend_day > 0 AND mu.today + p_amount > c.member_spend_day THEN 'member_spend_day'
    WHEN c.member_spend_month > 0 AND mu.monthly + p_amount > c.member_spend_month THEN 'member_spend_month' END;
END $$;
-- +goose StatementEnd

-- finish_run puts a live run to its end (P11): while an effect is in flight it is `ending` and accepts only settling.
-- The caller holds the row locks of lane and run. Any ambiguous effect makes the end ambiguous.
-- +goose StatementBegin
CREATE FUNCTION nw.finish_run(p_run bigint, p_reason text) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE r nw.runs; final text; n record;
BEGIN
  SELECT * INTO STRICT r FROM runs WHERE id = p_run;
  IF r.state NOT IN ('queued', 'claimed', 'waiting', 'ending') THEN RETURN r.state; END IF;
  SELECT count(*) FILTER (WHERE state = 'committed') AS committed, count(*) FILTER (WHERE state = 'not_applied') AS not_applied, count(*) FILTER (WHERE state = 'ambiguous') AS ambiguous,
    coalesce(sum(spent), 0) AS spent INTO n FROM effects WHERE run_id = p_run;
  final := CASE WHEN n.ambiguous > 0 THEN 'ambiguous' ELSE p_reason END;
  IF r.inflight > 0 THEN
    -- `succeeded` cannot wait for an effect: settle run refuses while one is in flight.
    UPDATE runs SET state = 'ending', ending = CASE WHEN ending IS NULL OR ending = 'lease_lost' THEN final ELSE ending END, holder = NULL, lease_until = NULL WHERE id = p_run AND inflight > 0;
    DELETE FROM outbox WHERE run_id = p_run;
    RETURN 'ending';
  END IF;
  UPDATE effects SET state = 'lapsed' WHERE run_id = p_run AND (state = 'minted' OR (state = 'asked' AND final <> 'lease_lost'));
  DELETE FROM outbox WHERE run_id = p_run;
  IF final = 'lease_lost' THEN
    UPDATE runs SET state = 'queued', ending = NULL, holder = NULL, lease_until = NULL WHERE id = p_run AND inflight = 0;
    INSERT INTO outbox (run_id, run_ref, queue)
      SELECT r.id, r.ref, q.queue FROM registry g JOIN role_queues q ON q.name = g.name WHERE g.id = r.role_id;
    PERFORM nw.note('requeue', 'ok', r.task_id, r.id, NULL, json_build_object('fence', r.fence));
    RETURN 'queued';
  END IF;
  UPDATE runs SET state = final, ending = NULL, holder = NULL, lease_until = NULL, ended_at = clock_timestamp() WHERE id = p_run AND inflight = 0;
  -- A card closes with its run (P21).
  UPDATE decisions SET state = 'expired', decided_at = clock_timestamp() WHERE run_id = p_run AND state IN ('pending', 'approved');
  PERFORM nw.note('end_run', 'ok', r.task_id, r.id, NULL, json_build_object('state', final, 'fence', r.fence,
    'committed', n.committed, 'not_applied', n.not_applied, 'ambiguous', n.ambiguous, 'spent', n.spent));
  RETURN final;
END $$;
-- +goose StatementEnd

-- advance_epoch kills everything that was minted for a task before (A5) and ends its live run.
-- The caller holds the shared gate lock and the lane's row lock.
-- +goose StatementBegin
CREATE FUNCTION nw.advance_epoch(p_task bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE live runs; e bigint;
BEGIN
  UPDATE lanes SET activation_epoch = activation_epoch + 1 WHERE task_id = p_task RETURNING activation_epoch INTO STRICT e;
  SELECT * INTO live FROM runs WHERE task_id = p_task AND runs.live FOR NO KEY UPDATE;
  IF live.id IS NOT NULL THEN PERFORM nw.finish_run(live.id, CASE WHEN live.deadline <= clock_timestamp() THEN 'expired' ELSE 'revoked' END); END IF;
  RETURN e;
END $$;
-- +goose StatementEnd
