-- +goose Up
-- The readiness decision: derived here, from every input, in one place. Start is closed; closing is prompt and monotone; opening needs
-- every required family good, from reports newer than the close, for some rounds and some time (design.md §8).

-- always are the families that no configuration can leave out (A17). Guards are judged one by one.
CREATE FUNCTION nw.always() RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT ARRAY['store', 'signing', 'nonces', 'queue', 'clock', 'audit', 'attestation', 'directory', 'approvals'] $$;

-- compatible says whether a guard speaks a required protocol, does exactly the actions that are registered for it, and serves nothing but required models
-- and datasets, by their exact digests.
CREATE FUNCTION nw.compatible(q nw.readiness_requirements, p_protocol smallint, p_catalogue bytea, p_registered bytea, p_models bytea[], p_datasets bytea[]) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT p_protocol IS NOT NULL AND p_protocol = ANY (q.protocols) AND coalesce(p_catalogue = p_registered, false) AND p_models <@ q.models::bytea[] AND p_datasets <@ q.datasets::bytea[] $$;

-- judge is the one place in which reports become a decision: each required family, each guard, with the number of good instances that it
-- needs, and why it is not good. Good are reports of an instance's latest boot that have not expired, that do not come from the future and,
-- while closed, that were begun after the close (p_since). One fresh bad report outweighs all good ones.
-- +goose StatementBegin
CREATE FUNCTION nw.judge(p_since timestamptz) RETURNS TABLE (family text, component bigint, needed integer, good integer, reason text, oldest timestamptz, since timestamptz)
LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE t timestamptz := clock_timestamp(); q readiness_requirements;
BEGIN
  SELECT r.* INTO STRICT q FROM readiness_decision d JOIN readiness_requirements r ON r.generation = d.requirement;
  RETURN QUERY
  WITH active AS (SELECT g.id, g.kind FROM registry g WHERE g.state = 'active'),
  needs AS (
    SELECT f.family, NULL::bigint AS component, coalesce(m.minimum, 1) AS needed
      FROM unnest(nw.always()) AS f(family) LEFT JOIN requirement_families m ON m.generation = q.generation AND m.family = f.family
    UNION ALL
    SELECT m.family, NULL, m.minimum FROM requirement_families m WHERE m.generation = q.generation AND m.family <> 'guards' AND m.family <> ALL (nw.always())
    UNION ALL
    SELECT 'guards', x.id, coalesce(m.minimum, 1)
      FROM (SELECT a.id FROM active a WHERE a.kind = 'guard' UNION ALL SELECT NULL WHERE NOT EXISTS (SELECT FROM active a WHERE a.kind = 'guard')) x
      LEFT JOIN requirement_families m ON m.generation = q.generation AND m.family = 'guards'),
  seen AS (
    SELECT r.family, i.component_id, r.reason, r.began_at, r.expires_at, r.changed_at, r.expires_at > t AND r.began_at <= t AS fresh,
           r.healthy AND (r.family <> 'guards' OR nw.compatible(q, r.protocol, r.catalogue, k.catalogue, r.models, r.datasets)) AS sound
      FROM readiness_reports r JOIN instances i ON i.id = r.instance_id AND i.boot = r.boot LEFT JOIN components k ON k.id = i.component_id
     WHERE i.component_id IS NULL OR EXISTS (SELECT FROM active a WHERE a.id = i.component_id)),
  judged AS (
    SELECT n.family, n.component, n.needed, count(s.family) AS reported,
           count(*) FILTER (WHERE s.fresh AND s.sound AND (p_since IS NULL OR s.began_at > p_since)) AS good,
           min(s.began_at) FILTER (WHERE s.fresh AND s.sound) AS oldest, max(s.expires_at) AS silent,
           max(s.changed_at) FILTER (WHERE s.fresh AND s.sound) AS good_since, max(s.changed_at) FILTER (WHERE s.fresh AND NOT s.sound) AS bad_since,
           (array_agg(CASE s.reason WHEN 'good' THEN 'incompatible' ELSE s.reason END ORDER BY s.began_at DESC) FILTER (WHERE s.fresh AND NOT s.sound))[1] AS bad
      FROM needs n LEFT JOIN seen s ON s.family = n.family AND (n.family <> 'guards' OR s.component_id = n.component)
     GROUP BY n.family, n.component, n.needed)
  SELECT j.family, j.component, j.needed::integer, j.good::integer,
         CASE WHEN j.bad IS NOT NULL THEN j.bad WHEN j.good >= j.needed THEN NULL WHEN j.reported < j.needed THEN 'absent' ELSE 'stale' END, j.oldest,
         coalesce(j.bad_since, CASE WHEN j.good >= j.needed THEN j.good_since WHEN j.silent < t THEN j.silent END)
    FROM judged j
  UNION ALL
  -- The accepted attestation profiles are an exact set: one that is gone closes, and so does one that nobody required.
  SELECT 'attestation', NULL, 0, 0, 'profile', NULL, NULL
   WHERE EXISTS (SELECT FROM requirement_profiles p WHERE p.generation = q.generation)
     AND EXISTS (SELECT a.id FROM active a WHERE a.kind = 'attestation_profile'
                 EXCEPT SELECT p.profile_id FROM requirement_profiles p WHERE p.generation = q.generation
                 UNION ALL
                 (SELECT p.profile_id FROM requirement_profiles p WHERE p.generation = q.generation
                  EXCEPT SELECT a.id FROM active a WHERE a.kind = 'attestation_profile'));
END $$;
-- +goose StatementEnd

-- inputs judges everything that is required now: the first family that is not good and why, and a digest of what was looked at.
-- `since` is the close that reports must be newer than; NULL while open.
-- +goose StatementBegin
CREATE FUNCTION nw.inputs(p_since timestamptz, OUT good boolean, OUT family text, OUT reason text, OUT digest bytea)
LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
BEGIN
  SELECT j.family, j.reason INTO family, reason FROM nw.judge(p_since) j WHERE j.reason IS NOT NULL
   ORDER BY array_position(ARRAY['absent', 'stale'], j.reason) NULLS FIRST, j.family, j.component LIMIT 1; -- what says that it is bad comes before what says nothing
  good := family IS NULL;
  SELECT sha256(convert_to((SELECT requirement FROM readiness_decision) || '|' || coalesce(string_agg(
           concat_ws(':', r.instance_id, r.family, r.boot, r.sequence, r.healthy, r.reason, r.protocol, r.catalogue, r.models, r.datasets), ',' ORDER BY r.instance_id, r.family), ''), 'UTF8'))
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
         closed_ms = CASE WHEN t - d.since < interval '60 seconds' THEN greatest(q.closed_ms, least(q.closed_max_ms, d.closed_ms * 2)) ELSE q.closed_ms END
   WHERE state = 'open';
  INSERT INTO readiness_log (state, epoch, incarnation, requirement, reason, family, inputs)
    VALUES ('closed', d.epoch + 1, d.incarnation, d.requirement, p_reason, p_family, i.digest);
  PERFORM nw.note('close', 'ok', NULL, NULL, NULL, json_build_object('epoch', d.epoch + 1, 'reason', p_reason, 'family', p_family, 'inputs', nw.hex(i.digest), 'held', p_held,
    'requirement', d.requirement));
  RETURN true;
END $$;
-- +goose StatementEnd

-- end_lost ends runs of an earlier incarnation as ambiguous, at most so many at once, and returns how many: all within a role's time-out, however many
-- there are. The caller holds the gate alone; it is closed, and nw.evaluate opens nothing before none is left.
-- +goose StatementBegin
CREATE FUNCTION nw.end_lost(p_limit integer) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE lost bigint[]; r bigint; e effects;
BEGIN
  lost := ARRAY(SELECT id FROM runs WHERE live AND created_at <= (SELECT max(i.at) FROM incarnations i WHERE i.reason IN ('failover', 'restored')) ORDER BY id LIMIT p_limit);
  PERFORM FROM lanes WHERE task_id IN (SELECT task_id FROM runs WHERE id = ANY (lost)) ORDER BY task_id FOR NO KEY UPDATE;
  PERFORM FROM runs WHERE id = ANY (lost) ORDER BY id FOR NO KEY UPDATE;
  FOREACH r IN ARRAY lost LOOP
    FOR e IN SELECT x.* FROM effects x WHERE x.run_id = r AND x.state = 'admitted' ORDER BY x.id FOR NO KEY UPDATE LOOP
      PERFORM nw.land(e, 'ambiguous', e.amount);
      PERFORM nw.note('expire_effect', 'ok', e.task_id, e.run_id, e.id, json_build_object('attempt', nw.hex(e.attempt), 'reason', 'incarnation'));
    END LOOP;
    IF EXISTS (SELECT FROM runs WHERE id = r AND live) THEN PERFORM nw.finish_run(r, 'ambiguous'); END IF;
  END LOOP;
  RETURN cardinality(lost);
END $$;
-- +goose StatementEnd

-- reincarnate starts a new incarnation, closed (P24): this database is another than the one that was served from, or an older state of it, and
-- what was done in between is not known here. Every run that is not over ends ambiguous; nonces that were issued before are dead; fences,
-- slots and admission numbers go on above all that can have been. p_seen is the latest incarnation that anybody remembers. The caller holds
-- the gate alone.
-- +goose StatementBegin
CREATE FUNCTION nw.reincarnate(p_reason text, p_seen bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE n bigint; h record; t timestamptz;
BEGIN
  PERFORM nw.shut('incarnation', 'store', false);
  t := clock_timestamp();
  SELECT * INTO STRICT h FROM nw.here();
  UPDATE readiness_decision SET incarnation = greatest(incarnation, p_seen) + 1, timeline = h.timeline, epoch = epoch + 1, sequence = sequence + 1, since = t,
         reason = 'incarnation', family = 'store', good_rounds = 0 WHERE state = 'closed' RETURNING incarnation INTO STRICT n;
  INSERT INTO incarnations (incarnation, system_id, timeline, reason, at) VALUES (n, h.system_id, h.timeline, p_reason, t);
  INSERT INTO readiness_log (state, epoch, incarnation, requirement, reason, family, inputs)
    SELECT 'closed', d.epoch, n, d.requirement, 'incarnation', 'store', i.digest FROM readiness_decision d, nw.inputs(NULL) i;
  UPDATE ring_floors SET after = greatest(after, t + interval '5 seconds'); -- a replica's clock may be ahead of this one
  PERFORM setval('admissions', (n - 1) << 40); -- as fences do: a number tells its incarnation
  PERFORM nw.note('incarnation', 'ok', NULL, NULL, NULL, json_build_object('incarnation', n, 'reason', p_reason, 'timeline', h.timeline,
    'runs', (SELECT count(*) FROM runs WHERE live)));
  PERFORM nw.end_lost(200);
END $$;
-- +goose StatementEnd

-- relocate looks whether this database is still where the decision was made. A promoted synchronous standby that an operator has recorded before has
-- everything: it closes and goes on. Anything else is a new incarnation, also what only looks like such a standby: a backup, in which nobody has
-- evaluated for long, and whatever has less than the caller remembers. It returns whether anything had changed.
-- +goose StatementBegin
CREATE FUNCTION nw.relocate(p_incarnation bigint, p_sequence bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE h record; i incarnations; known boolean;
BEGIN
  SELECT * INTO STRICT h FROM nw.here();
  SELECT * INTO STRICT i FROM incarnations ORDER BY id DESC LIMIT 1;
  IF h.system_id = i.system_id AND h.timeline = i.timeline THEN RETURN false; END IF;
  PERFORM nw.alone();
  SELECT * INTO STRICT i FROM incarnations ORDER BY id DESC LIMIT 1;
  IF h.system_id = i.system_id AND h.timeline = i.timeline THEN RETURN false; END IF;
  known := h.system_id = i.system_id AND h.timeline = i.timeline + 1
    AND EXISTS (SELECT FROM standbys s WHERE s.system_id = i.system_id AND s.timeline = i.timeline AND s.at > clock_timestamp() - interval '1 day')
    AND EXISTS (SELECT FROM readiness_decision d WHERE greatest(d.valid_until, d.round_at) > clock_timestamp() - interval '10 minutes'
                   AND (p_incarnation, p_sequence) <= (d.incarnation, d.sequence));
  IF NOT known THEN
    PERFORM nw.reincarnate('failover', p_incarnation);
  ELSE
    PERFORM nw.shut('incarnation', 'store', false);
    UPDATE readiness_decision SET timeline = h.timeline, sequence = sequence + 1, good_rounds = 0, since = clock_timestamp() WHERE state = 'closed';
    INSERT INTO incarnations (incarnation, system_id, timeline, reason) VALUES (i.incarnation, h.system_id, h.timeline, 'promoted');
    PERFORM nw.note('incarnation', 'ok', NULL, NULL, NULL, json_build_object('incarnation', i.incarnation, 'reason', 'promoted', 'timeline', h.timeline));
  END IF;
  RETURN true;
END $$;
-- +goose StatementEnd

-- evaluate brings the decision up to date and returns it. While all is good and open it only renews, by a conditional update that any close wins
-- over. To change the state it takes the gate alone and judges everything again. What the caller remembers (p_incarnation, p_sequence) can be
-- newer than what stands here only when an older state of this database was restored under it.
-- +goose StatementBegin
CREATE FUNCTION nw.evaluate(p_incarnation bigint DEFAULT 0, p_sequence bigint DEFAULT 0) RETURNS nw.readiness_decision LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; q readiness_requirements; i record; t timestamptz;
BEGIN
  IF nw.relocate(p_incarnation, p_sequence) THEN
    SELECT * INTO STRICT d FROM readiness_decision;
    RETURN d;
  END IF;
  t := clock_timestamp();
  SELECT * INTO STRICT d FROM readiness_decision;
  IF (p_incarnation, p_sequence) > (d.incarnation, d.sequence) THEN
    PERFORM nw.alone();
    SELECT * INTO STRICT d FROM readiness_decision;
    IF (p_incarnation, p_sequence) > (d.incarnation, d.sequence) THEN PERFORM nw.reincarnate('restored', p_incarnation); END IF;
    SELECT * INTO STRICT d FROM readiness_decision;
    RETURN d;
  END IF;
  IF d.incarnation > 1 AND d.state = 'closed' AND EXISTS (SELECT FROM runs WHERE live
       AND created_at <= (SELECT max(x.at) FROM incarnations x WHERE x.reason IN ('failover', 'restored'))) THEN
    PERFORM nw.alone();
    PERFORM nw.end_lost(200);
    RETURN d;
  END IF;
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
    -- A round counts once in 400 ms, whoever evaluates. When the clock went back, the closed time begins anew.
    UPDATE readiness_decision SET round_at = t, sequence = sequence + 1, reason = CASE WHEN held THEN 'held' ELSE coalesce(i.reason, reason) END,
           family = CASE WHEN held THEN NULL ELSE coalesce(i.family, family) END, since = least(since, t),
           good_rounds = CASE WHEN i.good AND NOT held AND since <= t THEN least(good_rounds + 1, q.rounds) ELSE 0 END
     WHERE state = 'closed' AND epoch = d.epoch AND (round_at <= t - interval '400 milliseconds' OR round_at > t OR NOT i.good) RETURNING * INTO d;
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
    INSERT INTO readiness_log (state, epoch, incarnation, requirement, reason, inputs) VALUES ('open', d.epoch + 1, d.incarnation, d.requirement, 'good', i.digest);
    PERFORM nw.note('open', 'ok', NULL, NULL, NULL, json_build_object('epoch', d.epoch + 1, 'inputs', nw.hex(i.digest), 'requirement', d.requirement));
  END IF;
  SELECT * INTO STRICT d FROM readiness_decision;
  RETURN d;
END $$;
-- +goose StatementEnd

-- require enters the next generation of what is required, and closes: it opens when all of it is good. It holds the gate alone.
-- +goose StatementBegin
CREATE FUNCTION nw.require(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_item json,
  OUT verdict text, OUT result text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE q readiness_requirements; g bigint := (p_item->>'revision')::bigint; dg bytea := decode(p_item->>'digest', 'hex'); x json := p_item->'requirement';
BEGIN
  PERFORM nw.alone();
  SELECT * INTO q FROM readiness_requirements WHERE generation = g;
  verdict := CASE
    WHEN q.generation IS NOT NULL AND q.document IS DISTINCT FROM dg THEN 'revision_immutable'
    WHEN q.generation IS NULL AND g <> (SELECT max(generation) + 1 FROM readiness_requirements) THEN 'revision_stale'
    ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('requirement', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  result := CASE WHEN q.generation IS NULL THEN 'entered' ELSE 'unchanged' END;
  IF q.generation IS NULL THEN
    PERFORM nw.keep(dg, 'requirement', decode(p_item->>'body', 'hex'));
    INSERT INTO readiness_requirements (generation, document, closed_ms, closed_max_ms, rounds, valid_ms, report_ttl_ms, protocols, models, datasets)
      SELECT g, dg, (x->>'closed_ms')::integer, (x->>'closed_max_ms')::integer, (x->>'rounds')::smallint, f.valid_ms, f.report_ttl_ms,
             ARRAY(SELECT value::smallint FROM json_array_elements_text(x->'protocols')),
             ARRAY(SELECT decode(value, 'hex') FROM json_array_elements_text(x->'models')), ARRAY(SELECT decode(value, 'hex') FROM json_array_elements_text(x->'datasets'))
        FROM readiness_requirements f WHERE f.generation = 1;
    INSERT INTO requirement_families SELECT g, value->>'family', (value->>'minimum')::smallint FROM json_array_elements(x->'families');
    INSERT INTO requirement_profiles SELECT g, nw.registered('attestation_profile', value, 1) FROM json_array_elements_text(x->'profiles');
    PERFORM nw.shut('requirement', NULL, false);
    UPDATE readiness_decision SET requirement = g, sequence = sequence + 1, good_rounds = 0, since = clock_timestamp(),
           closed_ms = least((x->>'closed_max_ms')::integer, greatest((x->>'closed_ms')::integer, closed_ms)) WHERE state = 'closed';
  END IF;
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'requirement', 'ok', NULL, NULL, NULL, json_build_object('generation', g, 'digest', p_item->>'digest', 'result', result));
END $$;
-- +goose StatementEnd

-- record_report stores a report of the latest boot, if its sequence is higher (P34). A bad one closes at once: the gate is taken alone first,
-- so that the close and the report are one commit. A good one takes only its own row.
-- +goose StatementBegin
CREATE FUNCTION nw.record_report(p_instance bigint, p_boot bigint, p_family text, p_sequence bigint, p_healthy boolean, p_reason text, p_age_ms bigint,
  p_protocol smallint DEFAULT NULL, p_catalogue bytea DEFAULT NULL, p_models bytea[] DEFAULT '{}', p_datasets bytea[] DEFAULT '{}') RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE q readiness_requirements; t timestamptz; sound boolean;
BEGIN
  SELECT r.* INTO STRICT q FROM readiness_decision d JOIN readiness_requirements r ON r.generation = d.requirement;
  -- A requirement that changes meanwhile closes by itself.
  sound := p_healthy AND (p_family <> 'guards' OR nw.compatible(q, p_protocol, p_catalogue,
    (SELECT k.catalogue FROM components k JOIN instances i ON i.component_id = k.id WHERE i.id = p_instance), p_models, p_datasets));
  IF NOT sound THEN PERFORM nw.alone(); END IF;
  t := clock_timestamp();
  IF p_sequence IS NULL OR p_sequence <= 0 OR p_age_ms IS NULL OR p_age_ms < 0 OR p_age_ms > q.report_ttl_ms OR sound IS NULL
     OR (p_family = 'guards') <> (p_protocol IS NOT NULL) THEN RETURN 'invalid_request'; END IF;
  INSERT INTO readiness_reports AS r (instance_id, family, boot, sequence, healthy, reason, began_at, expires_at, changed_at, protocol, catalogue, models, datasets)
    SELECT p_instance, p_family, p_boot, p_sequence, p_healthy, p_reason, t - make_interval(secs => p_age_ms / 1000.0),
           t + make_interval(secs => (q.report_ttl_ms - p_age_ms) / 1000.0), t, p_protocol, p_catalogue, p_models, p_datasets FROM instances WHERE id = p_instance AND boot = p_boot
    ON CONFLICT (instance_id, family) DO UPDATE SET boot = EXCLUDED.boot, sequence = EXCLUDED.sequence, healthy = EXCLUDED.healthy, reason = EXCLUDED.reason,
       began_at = EXCLUDED.began_at, expires_at = EXCLUDED.expires_at, changed_at = CASE WHEN r.reason = EXCLUDED.reason THEN r.changed_at ELSE EXCLUDED.changed_at END, protocol = EXCLUDED.protocol, catalogue = EXCLUDED.catalogue, models = EXCLUDED.models, datasets = EXCLUDED.datasets
     WHERE r.boot < EXCLUDED.boot OR (r.boot = EXCLUDED.boot AND r.sequence < EXCLUDED.sequence);
  IF NOT FOUND THEN RETURN 'report_stale'; END IF;
  IF NOT sound THEN PERFORM nw.shut(CASE WHEN p_healthy THEN 'incompatible' ELSE p_reason END, p_family, false); END IF;
  RETURN 'ok';
END $$;
-- +goose StatementEnd

-- register_replica numbers a boot of an authority or scheduler process (P34).
-- +goose StatementBegin
CREATE FUNCTION nw.register_replica(p_kind text, p_instance bytea, p_binary bytea DEFAULT NULL, p_go integer DEFAULT NULL, p_module text DEFAULT NULL, p_fips boolean DEFAULT NULL,
  OUT instance_id bigint, OUT boot bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = nw, pg_temp AS $$
BEGIN
  INSERT INTO instances AS i (kind, instance) VALUES (p_kind, p_instance)
    ON CONFLICT (kind, coalesce(component_id, 0), instance) DO UPDATE SET boot = i.boot + 1, registered_at = clock_timestamp()
    RETURNING i.id, i.boot INTO STRICT instance_id, boot;
  PERFORM nw.keep_build(instance_id, boot, p_binary, p_go, p_module, p_fips);
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
    WHEN p_kind = 'authority' AND p_family NOT IN ('store', 'signing', 'nonces', 'clock', 'audit', 'attestation', 'directory') THEN 'unknown_family'
    WHEN p_kind = 'scheduler' AND p_family NOT IN ('queue', 'approvals') THEN 'unknown_family'
    ELSE nw.record_report(p_instance, p_boot, p_family, p_sequence, p_healthy, p_reason, p_age_ms) END;
END $$;
-- +goose StatementEnd

-- unheard says that a guard knows what this database does not: a later incarnation, or an admission of this one without its effect. The guard
-- heard of it from a commit, so an older state was restored (P24). Not the highest number is compared: numbers may have gone on since.
-- +goose StatementBegin
CREATE FUNCTION nw.unheard(p_seen bigint, p_admission bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE n bigint;
BEGIN
  SELECT d.incarnation INTO STRICT n FROM readiness_decision d;
  RETURN p_seen > n OR (p_admission > 0 AND (p_admission >> 40) + 1 = n AND NOT EXISTS (SELECT FROM effects e WHERE e.admission = p_admission));
END $$;
-- +goose StatementEnd

-- report_component takes the report of a guard, a reporter or a product. A replayed, older or forged one changes nothing and is audited. What a
-- guard has seen of fences and admissions tells whether an older state was restored.
-- +goose StatementBegin
CREATE FUNCTION nw.report_component(p_component bytea, p_kind text, p_instance bytea, p_boot bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea,
  p_family text, p_sequence bigint, p_healthy boolean, p_reason text, p_age_ms bigint, p_protocol smallint, p_catalogue bytea, p_models bytea[], p_datasets bytea[],
  p_fence bigint, p_admission bigint, p_binary bytea DEFAULT NULL, p_go integer DEFAULT NULL, p_module text DEFAULT NULL, p_fips boolean DEFAULT NULL, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE who record; seen bigint := (greatest(p_fence, p_admission) >> 40) + 1; behind boolean;
BEGIN
  behind := p_kind = 'guard' AND nw.unheard(seen, p_admission);
  -- A look before the lock: what would be refused anyway, and a stolen report most of all, does not take the gate from everybody.
  IF EXISTS (SELECT FROM replay WHERE slot = floor(extract(epoch FROM p_nonce_at) / 60)::bigint % 16 AND minute = floor(extract(epoch FROM p_nonce_at) / 60) AND digest = p_proof) THEN
    PERFORM nw.spend_proof(p_nonce_at, p_proof);
  END IF;
  SELECT * INTO who FROM nw.component_verdict(p_component, p_kind, p_instance, p_boot, p_jkt);
  IF (NOT p_healthy OR behind) AND who.verdict = 'ok' AND nw.nonce_verdict(p_nonce_at) = 'ok' THEN
    PERFORM nw.alone(); -- before any row: P2
    SELECT * INTO who FROM nw.component_verdict(p_component, p_kind, p_instance, p_boot, p_jkt);
  ELSE
    behind := false; -- whoever has become acceptable since then is heard at its next report
  END IF;
  verdict := CASE
    WHEN who.verdict <> 'ok' THEN who.verdict
    WHEN p_kind = 'guard' AND p_family <> 'guards' THEN 'unknown_family'
    WHEN p_kind <> 'guard' AND NOT EXISTS (SELECT FROM component_families f WHERE f.component_id = who.component AND f.family = p_family) THEN 'unknown_family'
    WHEN p_fence NOT BETWEEN 0 AND (4095::bigint << 40) OR p_admission NOT BETWEEN 0 AND (1::bigint << 52) THEN 'invalid_request'
    ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict = 'ok' THEN
    verdict := nw.record_report(who.instance_id, p_boot, p_family, p_sequence, p_healthy, p_reason, p_age_ms, CASE WHEN p_kind = 'guard' THEN p_protocol END,
      CASE WHEN p_kind = 'guard' THEN p_catalogue END, p_models, p_datasets);
  END IF;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('report', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  IF behind AND nw.unheard(seen, p_admission) THEN PERFORM nw.reincarnate('restored', seen); END IF;
  PERFORM nw.keep_build(who.instance_id, p_boot, p_binary, p_go, p_module, p_fips);
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

-- decision is for reading and for local caches, which may only refuse with it: complete, with every family that it was derived from.
-- +goose StatementBegin
CREATE FUNCTION nw.decision(OUT open boolean, OUT epoch bigint, OUT sequence bigint, OUT incarnation bigint, OUT requirement bigint, OUT valid_ms bigint, OUT since timestamptz,
  OUT held boolean, OUT reason text, OUT family text, OUT inputs bytea, OUT families json)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; t timestamptz := clock_timestamp();
BEGIN
  SELECT * INTO STRICT d FROM readiness_decision;
  open := d.state = 'open' AND NOT d.held AND d.valid_until > t AND d.timeline = nw.timeline();
  epoch := d.epoch; sequence := d.sequence; incarnation := d.incarnation; requirement := d.requirement; since := d.since; held := d.held; family := d.family;
  valid_ms := CASE WHEN open THEN floor(extract(epoch FROM d.valid_until - t) * 1000) ELSE 0 END;
  reason := CASE WHEN d.state = 'open' AND NOT open THEN 'expired' ELSE d.reason END;
  SELECT i.digest INTO inputs FROM nw.inputs(NULL) i;
  SELECT json_agg(x ORDER BY x.family) INTO families FROM (
    SELECT j.family, bool_and(j.reason IS NULL) AS good, coalesce(min(j.reason), '') AS reason, sum(j.good) AS instances, sum(j.needed) AS required,
           greatest(0, floor(extract(epoch FROM t - min(j.oldest)) * 1000))::bigint AS age_ms
      FROM nw.judge(CASE WHEN d.state = 'closed' THEN d.since END) j GROUP BY j.family) x;
END $$;
-- +goose StatementEnd

-- board is the decision as an operator reads it: each family and component by name, since when it is as it is, and the tasks that it concerns, up to ten thousand.
-- +goose StatementBegin
CREATE FUNCTION nw.board() RETURNS TABLE (family text, component text, good boolean, reason text, instances integer, required integer, age_ms bigint, since timestamptz, tasks bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; t timestamptz := clock_timestamp();
BEGIN
  SELECT * INTO STRICT d FROM readiness_decision;
  RETURN QUERY
  WITH own AS (SELECT x->>'family' AS name FROM readiness_requirements q JOIN documents b ON b.digest = q.document,
                 LATERAL json_array_elements(coalesce(convert_from(b.body, 'UTF8')::json->'families', '[]')) x WHERE q.generation = d.requirement)
  SELECT coalesce(own.name, j.family), convert_from(b.body, 'UTF8')::json->>'name', j.reason IS NULL, coalesce(j.reason, ''), j.good, j.needed,
      CASE WHEN j.oldest IS NULL THEN -1 ELSE greatest(0, floor(extract(epoch FROM t - j.oldest) * 1000)) END::bigint, j.since,
      CASE WHEN j.component IS NULL THEN (SELECT count(*) FROM (SELECT FROM consents c WHERE c.state = 'active' LIMIT 10000) c)
           ELSE (SELECT count(*) FROM (SELECT FROM consents c WHERE c.state = 'active' AND EXISTS (SELECT FROM consent_grants x WHERE x.consent_id = c.id AND x.guard_id = j.component) LIMIT 10000) c) END
    FROM nw.judge(CASE WHEN d.state = 'closed' THEN d.since END) j LEFT JOIN registry g ON g.id = j.component LEFT JOIN documents b ON b.digest = g.document
    LEFT JOIN own ON j.family = 'x_' || encode(sha256(convert_to('nightwarrant/name/v1', 'UTF8') || '\x00' || convert_to(own.name, 'UTF8')), 'hex')
   ORDER BY 1, j.component;
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

-- audit_health: a row can be written (tried, and undone), nobody has taken away what keeps rows as they are, and the newest hold what they hash to.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_health(OUT writable boolean, OUT sealed boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  BEGIN
    PERFORM nw.note('present', 'ok', NULL, NULL, NULL, NULL);
    RAISE EXCEPTION 'undone' USING ERRCODE = 'NW000';
  EXCEPTION
    WHEN SQLSTATE 'NW000' THEN writable := true;
    WHEN OTHERS THEN writable := false;
  END;
  sealed := (SELECT count(*) = 4 FROM pg_trigger WHERE tgrelid = 'nw.audit'::regclass AND tgname IN ('audit_fixed', 'audit_kept', 'audit_whole', 'audit_waits') AND tgenabled IN ('O', 'A'))
    AND coalesce((SELECT bool_and(a.digest = sha256(a.body)) FROM (SELECT digest, body FROM audit ORDER BY id DESC LIMIT 10) a), true);
END $$;
-- +goose StatementEnd

-- The hands of an operator, with the database alone: each is audited as the database role. gate_close holds admission closed; gate_release ends that
-- hold and opens nothing by itself; gate_standby records that a synchronous standby may be promoted, for a day.

-- operator_note says who acted: the role, and the login by its number, because a name is text from outside.
-- +goose StatementBegin
CREATE FUNCTION nw.operator_note(p_verb text, p_more json) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
BEGIN
  PERFORM nw.note(p_verb, 'ok', NULL, NULL, NULL, json_build_object('role', 'nw_operator', 'login', (SELECT oid::bigint FROM pg_roles WHERE rolname = session_user), 'with', p_more));
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION nw.gate_close(p_why text, OUT epoch bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  IF p_why IS NULL OR p_why NOT IN ('incident', 'maintenance', 'drill', 'other') THEN RAISE EXCEPTION 'invalid_request' USING ERRCODE = 'NW409'; END IF;
  PERFORM nw.alone();
  PERFORM nw.shut('held', NULL, true);
  PERFORM nw.operator_note('hold', json_build_object('why', p_why));
  SELECT d.epoch INTO STRICT epoch FROM readiness_decision d;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION nw.gate_release(OUT released boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  PERFORM nw.alone();
  UPDATE readiness_decision SET held = false, reason = 'start', good_rounds = 0 WHERE held AND state = 'closed';
  released := FOUND;
  PERFORM nw.operator_note('release', json_build_object('held', released));
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION nw.gate_standby(OUT recorded boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  recorded := current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') IN ('on', 'remote_apply')
    AND NOT EXISTS (SELECT FROM pg_db_role_setting, unnest(setconfig) c WHERE c LIKE 'synchronous\_commit=%' AND c NOT IN ('synchronous_commit=on', 'synchronous_commit=remote_apply'));
  IF recorded THEN
    INSERT INTO standbys (system_id, timeline) SELECT h.system_id, h.timeline FROM nw.here() h;
    PERFORM nw.operator_note('standby', NULL);
  END IF;
END $$;
-- +goose StatementEnd
