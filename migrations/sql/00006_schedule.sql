-- +goose Up
-- The verbs of the scheduler. Several replicas may run it: unique (task, nominal time) decides, leadership never.

-- One row that spaces starts out: a global start rate, so that an outage does not end in a burst.
CREATE TABLE nw.start_rate (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  next_at   timestamptz NOT NULL DEFAULT '-infinity');
SELECT nw.classify('start_rate', 'singleton flag, next_at time');
INSERT INTO nw.start_rate DEFAULT VALUES;

-- due lists schedules whose next nominal time has come, with the database's time: no other clock fires a task.
-- +goose StatementBegin
CREATE FUNCTION nw.due(p_limit integer) RETURNS TABLE (task_id bigint, revision bigint, next_at timestamptz, db_now timestamptz, document bytea, body bytea,
  not_before timestamptz, consent_until timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT s.task_id, l.task_revision, s.next_at, clock_timestamp(), v.document, d.body, c.not_before, c.expires_at
    FROM schedules s JOIN lanes l ON l.task_id = s.task_id JOIN consents c ON c.id = l.consent_id
    JOIN task_revisions v ON v.task_id = s.task_id AND v.revision = l.task_revision JOIN documents d ON d.digest = v.document
   WHERE s.next_at <= clock_timestamp() ORDER BY s.next_at LIMIT p_limit;
END $$;
-- +goose StatementEnd

-- plan takes a task's due slots forward (P7): the lane is locked first; while a run is open, fires coalesce into it; a run starts queued, with
-- its authority deadline set once (A6). p_slots is what the timetable says: [{at, skip, covers}], in order; p_next the nominal
-- time after them.
-- +goose StatementBegin
CREATE FUNCTION nw.plan(p_task bigint, p_revision bigint, p_expected timestamptz, p_slots json, p_next timestamptz, p_zone bytea, p_run bytea, p_rate integer,
  OUT verdict text, OUT planned bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; l lanes; c consents; s schedules; x json; t timestamptz; live bigint; run bigint; start timestamptz; skip text; lost timestamptz;
BEGIN
  PERFORM nw.enter();
  SELECT lanes.* INTO l FROM lanes WHERE task_id = p_task FOR NO KEY UPDATE;
  SELECT runs.id INTO live FROM runs WHERE task_id = p_task AND runs.live FOR NO KEY UPDATE;
  d := nw.admitting();
  t := clock_timestamp();
  SELECT schedules.* INTO s FROM schedules WHERE task_id = p_task;
  SELECT consents.* INTO c FROM consents WHERE id = l.consent_id;
  planned := 0;
  verdict := CASE
    WHEN d.state IS NULL THEN 'admission_closed'
    WHEN s.task_id IS NULL OR s.next_at <> p_expected OR l.task_revision <> p_revision THEN 'revision_stale'
    WHEN c.id IS NULL OR c.state <> 'active' OR c.expires_at <= t THEN 'consent_ended'
    ELSE 'ok' END;
  IF verdict = 'consent_ended' AND c.state = 'active' THEN
    INSERT INTO slots (task_id, nominal_at, outcome, reason, covers, zone)
      SELECT p_task, (value->>'at')::timestamptz, 'skipped', coalesce(value->>'skip', 'consent'), coalesce((value->>'covers')::integer, 1), p_zone
        FROM json_array_elements(p_slots) WHERE (value->>'at')::timestamptz < c.expires_at ON CONFLICT DO NOTHING;
    PERFORM nw.end_consent(p_task, 'expired');
    PERFORM nw.note('plan', 'consent_ended', p_task, NULL, NULL, NULL);
  END IF;
  IF verdict <> 'ok' THEN RETURN; END IF;

  -- What an earlier incarnation did with slots up to its end is not known here (P24).
  SELECT max(i.at) INTO lost FROM incarnations i WHERE i.reason IN ('failover', 'restored');
  FOR x IN SELECT value FROM json_array_elements(p_slots) LOOP
    skip := CASE WHEN (x->>'at')::timestamptz <= lost THEN 'failover' ELSE x->>'skip' END;
    IF skip IS NOT NULL THEN
      INSERT INTO slots (task_id, nominal_at, outcome, reason, covers, zone)
        VALUES (p_task, (x->>'at')::timestamptz, 'skipped', skip, coalesce((x->>'covers')::integer, 1), p_zone) ON CONFLICT DO NOTHING;
    ELSIF live IS NOT NULL THEN
      INSERT INTO slots (task_id, nominal_at, outcome, run_id, zone) VALUES (p_task, (x->>'at')::timestamptz, 'coalesced', live, p_zone) ON CONFLICT DO NOTHING;
    ELSE
      PERFORM FROM slots WHERE task_id = p_task AND nominal_at = (x->>'at')::timestamptz;
      CONTINUE WHEN FOUND;
      INSERT INTO runs (ref, task_id, consent_id, member, role_id, nominal_at, activation_epoch, deadline, effects_left, steps_left, spend_left)
        VALUES (p_run, p_task, c.id, c.member, c.role_id, (x->>'at')::timestamptz, l.activation_epoch,
                least(c.expires_at, t + make_interval(secs => c.run_limit_ms / 1000.0)), c.max_effects, c.max_steps, c.max_spend) RETURNING id INTO STRICT run;
      INSERT INTO slots (task_id, nominal_at, outcome, run_id, zone) VALUES (p_task, (x->>'at')::timestamptz, 'run', run, p_zone);
      UPDATE start_rate SET next_at = greatest(next_at, t) + make_interval(secs => 1.0 / p_rate) RETURNING next_at - make_interval(secs => 1.0 / p_rate) INTO STRICT start;
      INSERT INTO outbox (run_id, run_ref, queue, next_at) SELECT run, p_run, q.queue, start FROM registry g JOIN role_queues q ON q.name = g.name WHERE g.id = c.role_id;
      live := run;
    END IF;
    planned := planned + 1;
  END LOOP;
  IF p_next IS NULL THEN DELETE FROM schedules WHERE task_id = p_task;
  ELSE UPDATE schedules SET next_at = p_next, zone = p_zone WHERE task_id = p_task AND next_at = p_expected; END IF;
  PERFORM nw.note('plan', 'ok', p_task, run, NULL, json_build_object('reference', CASE WHEN run IS NOT NULL THEN nw.hex(p_run) END, 'slots', planned, 'expected', floor(extract(epoch FROM p_expected))::bigint, 'zone', nw.hex(p_zone),
    'activation', l.activation_epoch, 'consent', nw.hex(c.ref)));
END $$;
-- +goose StatementEnd

-- zones lists coming slots with the digest of the zone rules that they were computed by, and the instant after which they are the first.
-- +goose StatementBegin
CREATE FUNCTION nw.zones(p_after bigint, p_limit integer) RETURNS TABLE (task_id bigint, revision bigint, next_at timestamptz, zone bytea, body bytea, last_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT s.task_id, l.task_revision, s.next_at, s.zone, d.body,
      greatest(c.given_at, c.not_before - interval '1 second', (SELECT max(x.nominal_at) FROM slots x WHERE x.task_id = s.task_id))
    FROM schedules s JOIN lanes l ON l.task_id = s.task_id JOIN consents c ON c.id = l.consent_id
    JOIN task_revisions v ON v.task_id = s.task_id AND v.revision = l.task_revision JOIN documents d ON d.digest = v.document
   WHERE s.task_id > p_after ORDER BY s.task_id LIMIT p_limit;
END $$;
-- +goose StatementEnd

-- rezone moves a coming slot to where newer zone rules put it, and audits the move.
-- +goose StatementBegin
CREATE FUNCTION nw.rezone(p_task bigint, p_revision bigint, p_expected timestamptz, p_next timestamptz, p_zone bytea, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; l lanes; s schedules;
BEGIN
  PERFORM nw.enter();
  SELECT lanes.* INTO l FROM lanes WHERE task_id = p_task FOR NO KEY UPDATE;
  d := nw.admitting();
  SELECT schedules.* INTO s FROM schedules WHERE task_id = p_task;
  verdict := CASE
    WHEN d.state IS NULL THEN 'admission_closed'
    WHEN s.task_id IS NULL OR s.next_at <> p_expected OR l.task_revision <> p_revision THEN 'revision_stale'
    ELSE 'ok' END;
  IF verdict <> 'ok' THEN RETURN; END IF;
  UPDATE schedules SET next_at = p_next, zone = p_zone WHERE task_id = p_task AND next_at = p_expected;
  PERFORM nw.note('plan', 'ok', p_task, NULL, NULL, json_build_object('from', floor(extract(epoch FROM p_expected))::bigint,
    'to', floor(extract(epoch FROM p_next))::bigint, 'zone', nw.hex(p_zone)));
END $$;
-- +goose StatementEnd

-- take_outbox hands references to the relay: by state, never by watermark. Each attempt has its number, which makes the message id; a row
-- comes again until the run is claimed or has ended.
-- +goose StatementBegin
CREATE FUNCTION nw.take_outbox(p_limit integer, p_again_ms integer) RETURNS TABLE (run_ref bytea, queue bytea, attempt integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision;
BEGIN
  PERFORM nw.enter();
  d := nw.admitting();
  IF d.state IS NULL THEN RETURN; END IF;
  RETURN QUERY WITH ready AS (
      SELECT o.run_id FROM outbox o WHERE o.next_at <= clock_timestamp() ORDER BY o.next_at, o.run_id LIMIT p_limit FOR UPDATE SKIP LOCKED)
    UPDATE outbox o SET attempt = o.attempt + 1, next_at = clock_timestamp() + make_interval(secs => p_again_ms / 1000.0)
      FROM ready WHERE o.run_id = ready.run_id RETURNING o.run_ref, o.queue, o.attempt;
END $$;
-- +goose StatementEnd

-- expire_consents ends consents whose time is over, also while closed. Nothing was admitted under them any more: this advances the epoch, stops
-- the schedule and shows it. One with a slot to plan is left to plan, which knows all its slots.
-- +goose StatementBegin
CREATE FUNCTION nw.expire_consents(p_limit integer, OUT expired bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE task bigint; c consents; e bigint;
BEGIN
  expired := 0;
  PERFORM nw.enter();
  FOR task IN SELECT x.task_id FROM (SELECT o.task_id FROM consents o WHERE o.state = 'active' AND o.expires_at <= clock_timestamp()
                 AND NOT EXISTS (SELECT FROM schedules s WHERE s.task_id = o.task_id AND s.next_at < o.expires_at) ORDER BY o.expires_at LIMIT p_limit) x ORDER BY x.task_id LOOP
    PERFORM FROM lanes WHERE task_id = task FOR NO KEY UPDATE;
    SELECT * INTO c FROM consents WHERE task_id = task AND state = 'active' AND expires_at <= clock_timestamp();
    CONTINUE WHEN c.id IS NULL;
    e := nw.end_consent(task, 'expired');
    PERFORM nw.note('expire_consent', 'ok', task, NULL, NULL, json_build_object('consent', nw.hex(c.ref), 'epoch', e));
    expired := expired + 1;
  END LOOP;
END $$;
-- +goose StatementEnd

-- release_reservations gives back what was reserved for effects of ended runs that never came to a guard, also while closed. Until then it counts: a
-- window may refuse a moment too long, and never too little.
-- +goose StatementBegin
CREATE FUNCTION nw.release_reservations(p_limit integer, OUT released bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE these bigint[]; x record;
BEGIN
  these := ARRAY(SELECT e.id FROM effects e JOIN runs r ON r.id = e.run_id WHERE e.state = 'lapsed' AND e.reserved_on IS NOT NULL AND r.ended_at IS NOT NULL
                  ORDER BY e.id LIMIT p_limit FOR NO KEY UPDATE OF e SKIP LOCKED);
  PERFORM FROM ledgers y WHERE (y.holder, y.unit) IN (
      SELECT k.ref, u.unit FROM effects e JOIN runs r ON r.id = e.run_id JOIN tasks k ON k.id = e.task_id JOIN consents c ON c.id = r.consent_id,
             LATERAL (VALUES (''::bytea), (c.currency)) u(unit) WHERE e.id = ANY (these)
      UNION SELECT c.member, c.currency FROM effects e JOIN runs r ON r.id = e.run_id JOIN consents c ON c.id = r.consent_id WHERE e.id = ANY (these))
    ORDER BY y.holder, y.unit FOR NO KEY UPDATE;
  FOR x IN SELECT k.ref, c.member, c.currency, e.reserved_on, count(*) AS n, sum(e.amount)::bigint AS amount
             FROM effects e JOIN runs r ON r.id = e.run_id JOIN tasks k ON k.id = e.task_id JOIN consents c ON c.id = r.consent_id
            WHERE e.id = ANY (these) GROUP BY k.ref, c.member, c.currency, e.reserved_on LOOP
    PERFORM nw.charge(x.ref, '', x.reserved_on, -x.n);
    IF x.amount > 0 THEN
      PERFORM nw.charge(x.ref, x.currency, x.reserved_on, -x.amount);
      PERFORM nw.charge(x.member, x.currency, x.reserved_on, -x.amount);
    END IF;
  END LOOP;
  UPDATE effects SET reserved_on = NULL WHERE id = ANY (these) AND state = 'lapsed';
  released := cardinality(these);
END $$;
-- +goose StatementEnd

-- queues lists the opaque queues that the relay serves.
-- +goose StatementBegin
CREATE FUNCTION nw.queues() RETURNS TABLE (queue bytea) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT q.queue FROM role_queues q ORDER BY q.queue;
END $$;
-- +goose StatementEnd

-- Recycling the rings, in P31's order: raise the floor and commit; wait for older admissions; truncate. Three calls, three transactions.

-- +goose StatementBegin
CREATE FUNCTION nw.raise_floors() RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE s double precision := extract(epoch FROM clock_timestamp());
BEGIN
  UPDATE ring_floors SET floor = floor(s / 60)::bigint - 3 WHERE ring = 'replay' AND ring_floors.floor < floor(s / 60)::bigint - 3;
  UPDATE ring_floors SET floor = floor(s / 21600)::bigint - 1 WHERE ring = 'assertion_owners' AND ring_floors.floor < floor(s / 21600)::bigint - 1;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION nw.drain() RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  PERFORM nw.alone();
END $$;
-- +goose StatementEnd

-- recycle locks a partition before it decides (P1): between a look and a TRUNCATE an admission could enter the slot's next minute and lose its row.
-- A partition in use this very moment waits for the next round; the others do not wait for it.
-- +goose StatementBegin
CREATE FUNCTION nw.recycle(OUT recycled integer) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp SET lock_timeout = '20ms' AS $$
DECLARE p record; below boolean; look text := 'SELECT coalesce(max(%I) < $1, false) FROM nw.%I WHERE slot = $2';
BEGIN
  recycled := 0;
  FOR p IN SELECT f.floor, s.slot, s.ring || '_' || s.slot AS part, s.col
             FROM (SELECT 'replay' AS ring, 'minute' AS col, i AS slot FROM generate_series(0, 15) i
                   UNION ALL SELECT 'assertion_owners', 'period', i FROM generate_series(0, 11) i) s JOIN ring_floors f ON f.ring = s.ring LOOP
    EXECUTE format(look, p.col, p.part) INTO below USING p.floor, p.slot;
    CONTINUE WHEN NOT below;
    BEGIN
      EXECUTE format('LOCK TABLE nw.%I IN ACCESS EXCLUSIVE MODE', p.part);
      EXECUTE format(look, p.col, p.part) INTO below USING p.floor, p.slot;
      CONTINUE WHEN NOT below;
      EXECUTE format('TRUNCATE nw.%I', p.part);
      recycled := recycled + 1;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END;
  END LOOP;
END $$;
-- +goose StatementEnd
