-- +goose Up
-- The readiness decision: derived here, from every input, in one place. Start is closed; closing is prompt and monotone; opening needs
-- every required family good, from reports newer than the close, for some rounds and some time (design.md §8).

-- inputs judges the required families now: the first that is not good and why, and a digest of what was looked at.
-- `since` is the close that reports must be newer than; NULL while open.
-- +goose StatementBegin
CREATE FUNCTION nw.inputs(p_since timestamptz, OUT good boolean, OUT family text, OUT reason text, OUT digest bytea)
LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE t timestamptz := clock_timestamp();
BEGIN
  -- What is required, always, in code: each family from at least one live instance; guards from each active guard that is registered.
  SELECT x.family, x.reason INTO family, reason FROM (
    SELECT need.family, need.component,
           CASE WHEN count(rep.instance_id) = 0 THEN 'absent'
                WHEN bool_or(NOT rep.healthy AND rep.expires_at > t) THEN (array_agg(rep.reason ORDER BY rep.began_at DESC) FILTER (WHERE NOT rep.healthy AND rep.expires_at > t))[1]
                WHEN NOT bool_or(rep.healthy AND rep.expires_at > t AND (p_since IS NULL OR rep.began_at > p_since)) THEN 'stale' END AS reason
      FROM (SELECT f.family, 0::bigint AS component FROM unnest(ARRAY['store', 'signing', 'nonces', 'queue', 'clock', 'attestation']) AS f(family)
            UNION ALL SELECT 'guards', g.id FROM registry g WHERE g.kind = 'guard' AND g.state = 'active'
            UNION ALL SELECT 'guards', -1 WHERE NOT EXISTS (SELECT FROM registry g WHERE g.kind = 'guard' AND g.state = 'active')) need
      LEFT JOIN LATERAL (SELECT r.* FROM readiness_reports r JOIN instances i ON i.id = r.instance_id
                          WHERE r.family = need.family AND r.boot = i.boot AND (need.component = 0 OR i.component_id = need.component)) rep ON true
     GROUP BY need.family, need.component) x
   WHERE x.reason IS NOT NULL ORDER BY x.family, x.component LIMIT 1;
  good := family IS NULL;
  SELECT sha256(convert_to(coalesce(string_agg(r.instance_id || ':' || r.family || ':' || r.boot || ':' || r.sequence || ':' || r.healthy, ',' ORDER BY r.instance_id, r.family), ''), 'UTF8'))
    INTO digest FROM readiness_reports r;
END $$;
-- +goose StatementEnd

-- shut closes: epoch + 1, log, audit. The caller holds the gate alone. Closing what is closed changes nothing.
-- +goose StatementBegin
CREATE FUNCTION nw.shut(p_reason text, p_family text, p_held boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; q readiness_requirements; t timestamptz := clock_timestamp(); i record;
BEGIN
  SELECT * INTO STRICT d FROM readiness_decision FOR UPDATE;
  IF d.state = 'closed' THEN
    IF p_held AND NOT d.held THEN UPDATE readiness_decision SET held = true, good_rounds = 0, reason = 'held', family = NULL; END IF;
    RETURN false;
  END IF;
  SELECT * INTO STRICT q FROM readiness_requirements WHERE generation = d.requirement;
  SELECT * INTO i FROM nw.inputs(NULL);
  UPDATE readiness_decision SET state = 'closed', epoch = epoch + 1, sequence = sequence + 1, valid_until = '-infinity', since = t, held = p_held, reason = p_reason,
         family = p_family, good_rounds = 0,
         closed_ms = CASE WHEN t - d.since < interval '60 seconds' THEN least(60000, d.closed_ms * 2) ELSE q.closed_ms END
   WHERE state = 'open';
  INSERT INTO readiness_log (state, epoch, reason, family, inputs) VALUES ('closed', d.epoch + 1, p_reason, p_family, i.digest);
  PERFORM nw.note('close', 'ok', NULL, NULL, NULL, json_build_object('epoch', d.epoch + 1, 'reason', p_reason, 'family', p_family, 'inputs', nw.hex(i.digest), 'held', p_held));
  RETURN true;
END $$;
-- +goose StatementEnd

-- evaluate brings the decision up to date and returns it. While all is good and open it only renews, by a conditional update that any close wins
-- over. To change the state it takes the gate alone and judges everything again.
-- +goose StatementBegin
CREATE FUNCTION nw.evaluate() RETURNS nw.readiness_decision LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; q readiness_requirements; i record; t timestamptz := clock_timestamp();
BEGIN
  SELECT * INTO STRICT d FROM readiness_decision;
  SELECT * INTO STRICT q FROM readiness_requirements WHERE generation = d.requirement;
  SELECT * INTO i FROM nw.inputs(CASE WHEN d.state = 'closed' THEN d.since END);
  IF d.state = 'open' AND i.good AND d.valid_until > t THEN
    UPDATE readiness_decision SET valid_until = greatest(valid_until, t + make_interval(secs => q.valid_ms / 1000.0)), sequence = sequence + 1
     WHERE state = 'open' AND epoch = d.epoch AND valid_until > clock_timestamp() RETURNING * INTO d;
    IF FOUND THEN RETURN d; END IF;
    SELECT * INTO STRICT d FROM readiness_decision;
    RETURN d;
  END IF;
  IF d.state = 'closed' AND (NOT i.good OR d.held OR d.good_rounds + 1 < q.rounds OR t < d.since + make_interval(secs => d.closed_ms / 1000.0)) THEN
    -- A round counts once in 400 ms, whoever evaluates.
    UPDATE readiness_decision SET round_at = t, sequence = sequence + 1, reason = CASE WHEN held THEN 'held' ELSE coalesce(i.reason, reason) END,
           family = CASE WHEN held THEN NULL ELSE coalesce(i.family, family) END,
           good_rounds = CASE WHEN i.good AND NOT held THEN least(good_rounds + 1, q.rounds) ELSE 0 END
     WHERE state = 'closed' AND epoch = d.epoch AND (round_at <= t - interval '400 milliseconds' OR NOT i.good) RETURNING * INTO d;
    IF NOT FOUND THEN SELECT * INTO STRICT d FROM readiness_decision; END IF;
    RETURN d;
  END IF;

  PERFORM nw.alone();
  SELECT * INTO STRICT d FROM readiness_decision FOR UPDATE;
  SELECT * INTO i FROM nw.inputs(CASE WHEN d.state = 'closed' THEN d.since END);
  t := clock_timestamp();
  IF d.state = 'open' THEN
    IF NOT i.good THEN PERFORM nw.shut(i.reason, i.family, false);
    ELSIF d.valid_until <= t THEN PERFORM nw.shut('expired', NULL, false); END IF;
  ELSIF i.good AND NOT d.held AND d.good_rounds + 1 >= q.rounds AND d.round_at <= t - interval '400 milliseconds'
        AND t >= d.since + make_interval(secs => d.closed_ms / 1000.0) THEN
    UPDATE readiness_decision SET state = 'open', epoch = epoch + 1, sequence = sequence + 1, since = t, valid_until = t + make_interval(secs => q.valid_ms / 1000.0),
           reason = 'good', family = NULL, good_rounds = 0 WHERE state = 'closed' AND epoch = d.epoch;
    INSERT INTO readiness_log (state, epoch, reason, inputs) VALUES ('open', d.epoch + 1, 'good', i.digest);
    PERFORM nw.note('open', 'ok', NULL, NULL, NULL, json_build_object('epoch', d.epoch + 1, 'inputs', nw.hex(i.digest)));
  END IF;
  SELECT * INTO STRICT d FROM readiness_decision;
  RETURN d;
END $$;
-- +goose StatementEnd

-- record_report stores a report of the latest boot, if its sequence is higher (P34). A bad one closes at once: the gate is taken alone first,
-- so that the close and the report are one commit. A good one takes only its own row.
-- +goose StatementBegin
CREATE FUNCTION nw.record_report(p_instance bigint, p_boot bigint, p_family text, p_sequence bigint, p_healthy boolean, p_reason text, p_age_ms bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE ttl integer; t timestamptz;
BEGIN
  IF NOT p_healthy THEN PERFORM nw.alone(); END IF;
  t := clock_timestamp();
  SELECT q.report_ttl_ms INTO STRICT ttl FROM readiness_decision d JOIN readiness_requirements q ON q.generation = d.requirement;
  IF p_sequence IS NULL OR p_sequence <= 0 OR p_age_ms IS NULL OR p_age_ms < 0 OR p_age_ms > ttl THEN RETURN 'invalid_request'; END IF;
  INSERT INTO readiness_reports AS r (instance_id, family, boot, sequence, healthy, reason, began_at, expires_at)
    SELECT p_instance, p_family, p_boot, p_sequence, p_healthy, p_reason, t - make_interval(secs => p_age_ms / 1000.0),
           t + make_interval(secs => (ttl - p_age_ms) / 1000.0) FROM instances WHERE id = p_instance AND boot = p_boot
    ON CONFLICT (instance_id, family) DO UPDATE SET boot = EXCLUDED.boot, sequence = EXCLUDED.sequence, healthy = EXCLUDED.healthy, reason = EXCLUDED.reason,
       began_at = EXCLUDED.began_at, expires_at = EXCLUDED.expires_at WHERE r.boot < EXCLUDED.boot OR (r.boot = EXCLUDED.boot AND r.sequence < EXCLUDED.sequence);
  IF NOT FOUND THEN RETURN 'report_stale'; END IF;
  IF NOT p_healthy THEN PERFORM nw.shut(p_reason, p_family, false); END IF;
  RETURN 'ok';
END $$;
-- +goose StatementEnd

-- register_replica numbers a boot of an authority or scheduler process (P34).
-- +goose StatementBegin
CREATE FUNCTION nw.register_replica(p_kind text, p_instance bytea, OUT instance_id bigint, OUT boot bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = nw, pg_temp AS $$
BEGIN
  INSERT INTO instances AS i (kind, instance) VALUES (p_kind, p_instance)
    ON CONFLICT (kind, coalesce(component_id, 0), instance) DO UPDATE SET boot = i.boot + 1, registered_at = clock_timestamp()
    RETURNING i.id, i.boot INTO STRICT instance_id, boot;
END $$;
-- +goose StatementEnd

-- report_replica takes reports of the replicas themselves. Which families a kind may report is fixed here.
-- +goose StatementBegin
CREATE FUNCTION nw.report_replica(p_kind text, p_instance bigint, p_boot bigint, p_family text, p_sequence bigint, p_healthy boolean, p_reason text, p_age_ms bigint, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  verdict := CASE
    WHEN NOT EXISTS (SELECT FROM instances WHERE id = p_instance AND kind = p_kind AND p_kind IN ('authority', 'scheduler')) THEN 'not_found'
    WHEN NOT EXISTS (SELECT FROM instances WHERE id = p_instance AND boot = p_boot) THEN 'boot_superseded'
    WHEN p_kind = 'authority' AND p_family NOT IN ('store', 'signing', 'nonces', 'clock', 'attestation') THEN 'unknown_family'
    WHEN p_kind = 'scheduler' AND p_family NOT IN ('queue') THEN 'unknown_family'
    ELSE nw.record_report(p_instance, p_boot, p_family, p_sequence, p_healthy, p_reason, p_age_ms) END;
END $$;
-- +goose StatementEnd

-- report_component takes a guard's report. A replayed, older or forged one changes nothing and is audited.
-- +goose StatementBegin
CREATE FUNCTION nw.report_component(p_component bytea, p_kind text, p_instance bytea, p_boot bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea,
  p_family text, p_sequence bigint, p_healthy boolean, p_reason text, p_age_ms bigint, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE who record;
BEGIN
  IF NOT p_healthy THEN PERFORM nw.alone(); END IF; -- before any row: P2
  SELECT * INTO who FROM nw.component_verdict(p_component, p_kind, p_instance, p_boot, p_jkt);
  verdict := CASE
    WHEN who.verdict <> 'ok' THEN who.verdict
    WHEN p_kind = 'guard' AND p_family <> 'guards' OR p_kind <> 'guard' THEN 'unknown_family'
    ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict = 'ok' THEN verdict := nw.record_report(who.instance_id, p_boot, p_family, p_sequence, p_healthy, p_reason, p_age_ms); END IF;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('report', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
END $$;
-- +goose StatementEnd

-- boot_component gives a registered component its next boot: a new key of an instance is a new boot; the same key keeps its boot.
-- +goose StatementBegin
CREATE FUNCTION nw.boot_component(p_component bytea, p_profiles bigint[], p_instance bytea, p_assertion bytea, p_assertion_until timestamptz, p_bound boolean,
  p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_capability bytea,
  OUT verdict text, OUT component_kind text, OUT boot bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE k record;
BEGIN
  SELECT c.id, g.kind INTO k FROM components c JOIN registry g ON g.id = c.id JOIN registry p ON p.id = c.profile_id
   WHERE g.name = p_component AND g.state = 'active' AND p.state = 'active' AND c.profile_id = ANY (p_profiles);
  verdict := CASE
    WHEN k.id IS NULL THEN 'invalid_client'
    WHEN p_bound AND nw.owner_verdict(p_assertion, p_assertion_until, p_jkt) <> 'ok' THEN nw.owner_verdict(p_assertion, p_assertion_until, p_jkt)
    ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('component', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  INSERT INTO instances AS i (kind, component_id, instance, jkt) VALUES ('component', k.id, p_instance, p_jkt)
    ON CONFLICT (kind, coalesce(component_id, 0), instance) DO UPDATE
       SET boot = CASE WHEN i.jkt = EXCLUDED.jkt THEN i.boot ELSE i.boot + 1 END, jkt = EXCLUDED.jkt, registered_at = clock_timestamp()
    RETURNING i.boot INTO STRICT boot;
  IF p_bound THEN PERFORM nw.own_assertion(p_assertion, p_assertion_until, p_jkt); END IF;
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  component_kind := k.kind;
  PERFORM nw.note('component', 'ok', NULL, NULL, NULL, json_build_object('component', nw.hex(p_component), 'instance', nw.hex(p_instance), 'boot', boot,
    'key', nw.hex(p_jkt), 'capability', nw.hex(p_capability)));
END $$;
-- +goose StatementEnd

-- spend_component spends a component's proof for an answer that changes nothing else (nonces).
-- +goose StatementBegin
CREATE FUNCTION nw.spend_component(p_component bytea, p_kind text, p_instance bytea, p_boot bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE who record;
BEGIN
  SELECT * INTO who FROM nw.component_verdict(p_component, p_kind, p_instance, p_boot, p_jkt);
  verdict := CASE WHEN who.verdict <> 'ok' THEN who.verdict ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('present', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
END $$;
-- +goose StatementEnd

-- decision is for reading and for local caches, which may only refuse with it.
-- +goose StatementBegin
CREATE FUNCTION nw.decision(OUT open boolean, OUT epoch bigint, OUT sequence bigint, OUT incarnation bigint, OUT valid_ms bigint, OUT held boolean, OUT reason text, OUT family text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; t timestamptz := clock_timestamp();
BEGIN
  SELECT * INTO STRICT d FROM readiness_decision;
  open := d.state = 'open' AND NOT d.held AND d.valid_until > t;
  epoch := d.epoch; sequence := d.sequence; incarnation := d.incarnation; held := d.held; family := d.family;
  valid_ms := CASE WHEN open THEN floor(extract(epoch FROM d.valid_until - t) * 1000) ELSE 0 END;
  reason := CASE WHEN d.state = 'open' AND NOT open THEN 'expired' ELSE d.reason END;
END $$;
-- +goose StatementEnd

-- store_health is what a replica asks of the database about itself.
-- +goose StatementBegin
CREATE FUNCTION nw.store_health(OUT writable boolean, OUT durable boolean, OUT version integer, OUT db_now timestamptz) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = nw, pg_temp AS $$
BEGIN
  writable := NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off';
  durable := current_setting('fsync') = 'on' AND current_setting('synchronous_commit') <> 'off' AND current_setting('full_page_writes') = 'on';
  version := current_setting('server_version_num')::integer;
  db_now := clock_timestamp();
END $$;
-- +goose StatementEnd

-- gate_close holds admission closed by hand; gate_release ends that hold and opens nothing by itself. Both as the operator's database role.
-- +goose StatementBegin
CREATE FUNCTION nw.gate_close(OUT epoch bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  PERFORM nw.alone();
  PERFORM nw.shut('held', NULL, true);
  PERFORM nw.note('hold', 'ok', NULL, NULL, NULL, json_build_object('role', 'nw_operator'));
  SELECT d.epoch INTO STRICT epoch FROM readiness_decision d;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION nw.gate_release(OUT released boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  PERFORM nw.alone();
  UPDATE readiness_decision SET held = false, reason = 'start', good_rounds = 0 WHERE held AND state = 'closed';
  released := FOUND;
  PERFORM nw.note('release', 'ok', NULL, NULL, NULL, json_build_object('role', 'nw_operator', 'held', released));
END $$;
-- +goose StatementEnd
