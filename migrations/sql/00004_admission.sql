-- +goose Up
-- The verbs of a run: claim, renew, mint, admit, settle. Each is one admission: one function, one transaction, one round trip.
-- Every verb answers `verdict`; anything but `ok` has changed nothing but the audit log.

-- refused audits a refusal of a caller who has proved a key, and hands the verdict back. Nonce trouble is routine and not audited, and neither is a
-- question that the replica answers before its caller hears anything.
-- +goose StatementBegin
CREATE FUNCTION nw.refused(p_verb text, p_verdict text, p_task bigint, p_run bigint, p_effect bigint, p_jkt bytea) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF p_verdict NOT IN ('use_dpop_nonce', 'worker_nonce', 'ask_directory') THEN
    PERFORM nw.note(p_verb, p_verdict, p_task, p_run, p_effect, json_build_object('key', nw.hex(p_jkt)));
  END IF;
  RETURN p_verdict;
END $$;
-- +goose StatementEnd

-- claim gives a queued run to one key (P7, P8). The same key with a live lease gets the same fence again: its answer was lost.
-- +goose StatementBegin
CREATE FUNCTION nw.claim(
  p_run bytea, p_client bytea, p_profiles bigint[], p_assertion bytea, p_assertion_until timestamptz, p_bound boolean,
  p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_capability bytea, p_lease_ms integer, p_members bytea[], p_asked timestamptz[],
  OUT verdict text, OUT wait_ms bigint, OUT run_ref bytea, OUT task_ref bytea, OUT client bytea, OUT fence bigint, OUT deadline timestamptz, OUT activation_epoch bigint,
  OUT readiness_epoch bigint, OUT incarnation bigint, OUT lease_left_ms bigint, OUT remaining_ms bigint, OUT effects_left bigint, OUT steps_left bigint, OUT spend_left bigint, OUT used smallint,
  OUT effects json, OUT about text, OUT asked_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; l lanes; r runs; c consents; rest record; t timestamptz; again boolean; uncertain boolean; agreed boolean; accepted boolean; owner bytea; revision bigint;
BEGIN
  PERFORM nw.enter();
  SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT runs.task_id FROM runs WHERE ref = p_run) FOR NO KEY UPDATE;
  SELECT runs.* INTO r FROM runs WHERE ref = p_run FOR NO KEY UPDATE;
  d := nw.admitting();
  t := clock_timestamp();
  SELECT k.ref, g.name, o.state = 'active' AND o.expires_at > t, EXISTS (SELECT FROM role_profiles p JOIN registry a ON a.id = p.profile_id
           WHERE p.role_id = r.role_id AND p.profile_id = ANY (p_profiles) AND a.state = 'active'), o.member, o.task_revision
    INTO task_ref, client, agreed, accepted, owner, revision FROM tasks k JOIN registry g ON g.id = k.client_id JOIN consents o ON o.id = r.consent_id WHERE k.id = r.task_id;
  again := r.state = 'claimed' AND r.holder = p_jkt AND r.lease_until > t;
  uncertain := l.uncertain_until > t AND NOT EXISTS (SELECT FROM findings WHERE effect_id = l.uncertain_effect);
  wait_ms := 1000;
  verdict := CASE
    WHEN r.id IS NULL OR (p_client IS NOT NULL AND p_client <> client) OR NOT accepted THEN 'unknown_run'
    WHEN d.state IS NULL THEN 'admission_closed'
    WHEN p_bound AND nw.owner_verdict(p_assertion, p_assertion_until, p_jkt) <> 'ok' THEN nw.owner_verdict(p_assertion, p_assertion_until, p_jkt)
    WHEN r.state NOT IN ('queued', 'claimed', 'waiting', 'ending') THEN 'run_ended'
    WHEN r.deadline <= t THEN 'deadline_passed'
    WHEN r.activation_epoch <> l.activation_epoch THEN 'authority_changed'
    WHEN l.consent_id IS DISTINCT FROM r.consent_id OR NOT agreed THEN 'consent_ended'
    WHEN r.state IN ('waiting', 'ending') OR (r.state = 'claimed' AND NOT again AND (r.lease_until > t OR r.inflight > 0)) THEN 'held'
    WHEN uncertain THEN 'lane_uncertain'
    WHEN NOT nw.said(p_members, p_asked, owner, t) THEN 'ask_directory'
    ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict = 'held' AND r.lease_until > t THEN wait_ms := ceil(extract(epoch FROM r.lease_until - t) * 1000); END IF;
  IF verdict = 'lane_uncertain' THEN wait_ms := ceil(extract(epoch FROM least(l.uncertain_until, t + interval '5 seconds') - t) * 1000); END IF;
  IF verdict = 'ask_directory' THEN about := nw.known_as(r.task_id, revision); asked_at := t; END IF;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('claim', verdict, r.task_id, r.id, NULL, p_jkt);
    RETURN;
  END IF;

  fence := CASE WHEN again THEN r.fence ELSE greatest(l.fence, (d.incarnation - 1) << 40) + 1 END; -- P24: above every fence of an earlier incarnation
  IF NOT again THEN UPDATE lanes SET fence = claim.fence WHERE task_id = l.task_id AND lanes.fence < claim.fence; END IF;
  UPDATE runs SET state = 'claimed', fence = claim.fence, holder = p_jkt, capability = p_capability, readiness_epoch = d.epoch,
         lease_ms = p_lease_ms, lease_until = CASE WHEN again THEN lease_until ELSE least(t + make_interval(secs => p_lease_ms / 1000.0), runs.deadline) END
   WHERE id = r.id AND state IN ('queued', 'claimed') AND inflight = r.inflight
   RETURNING runs.ref, runs.deadline, runs.activation_epoch, ceil(extract(epoch FROM lease_until - t) * 1000)
   INTO STRICT run_ref, deadline, activation_epoch, lease_left_ms;
  SELECT consents.* INTO STRICT c FROM consents WHERE id = r.consent_id;
  SELECT * INTO rest FROM nw.left_over(r, c, task_ref, t);
  effects_left := rest.effects; steps_left := rest.steps; spend_left := rest.spend; used := rest.used;
  IF r.state = 'queued' THEN DELETE FROM outbox WHERE run_id = r.id; END IF;
  IF p_bound THEN PERFORM nw.own_assertion(p_assertion, p_assertion_until, p_jkt); END IF;
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note('claim', 'ok', r.task_id, r.id, NULL, json_build_object('fence', fence, 'key', nw.hex(p_jkt), 'capability', nw.hex(p_capability),
    'assertion', nw.hex(p_assertion), 'profiles', p_profiles, 'readiness', d.epoch, 'sequence', d.sequence, 'incarnation', d.incarnation, 'activation', activation_epoch, 'again', again));
  readiness_epoch := d.epoch;
  incarnation := d.incarnation;
  remaining_ms := floor(extract(epoch FROM deadline - t) * 1000);
  IF r.fence > 0 THEN -- a run that was never claimed has no effect
    SELECT json_agg(json_build_object('ref', nw.hex(e.ref), 'key', nw.hex(e.key), 'digest', nw.hex(e.digest), 'state', e.state) ORDER BY e.id)
      INTO effects FROM effects e WHERE e.run_id = r.id;
  END IF;
END $$;
-- +goose StatementEnd

-- holder_verdict is what every verb of a run's holder asks first (P9): this key, this fence, a live lease, before the deadline.
-- +goose StatementBegin
CREATE FUNCTION nw.holder_verdict(r nw.runs, l nw.lanes, p_jkt bytea, p_fence bigint, p_activation bigint, t timestamptz) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN CASE
    WHEN r.id IS NULL THEN 'unknown_run'
    WHEN r.activation_epoch <> l.activation_epoch OR p_activation <> l.activation_epoch THEN 'authority_changed'
    WHEN r.state NOT IN ('queued', 'claimed', 'waiting', 'ending') THEN 'run_ended'
    WHEN r.deadline <= t THEN 'deadline_passed'
    WHEN r.fence <> p_fence OR l.fence <> p_fence THEN 'fence_stale'
    WHEN r.state <> 'claimed' OR r.lease_until <= t THEN 'lease_lost'
    WHEN r.holder <> p_jkt THEN 'wrong_key'
    ELSE 'ok' END;
END $$;
-- +goose StatementEnd

-- renew extends the lease, never the deadline, and takes the run over a reopening (P23). Progress may only lower what is left (B4).
-- +goose StatementBegin
CREATE FUNCTION nw.renew(
  p_run bytea, p_fence bigint, p_activation bigint, p_incarnation bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_capability bytea,
  p_lease_ms integer, p_effects_left integer, p_steps_left integer, p_spend_left bigint, p_members bytea[], p_asked timestamptz[],
  OUT verdict text, OUT wait_ms bigint, OUT run_ref bytea, OUT task_ref bytea, OUT client bytea, OUT fence bigint, OUT deadline timestamptz, OUT activation_epoch bigint,
  OUT readiness_epoch bigint, OUT incarnation bigint, OUT lease_left_ms bigint, OUT remaining_ms bigint, OUT effects_left bigint, OUT steps_left bigint, OUT spend_left bigint, OUT used smallint,
  OUT effects json, OUT about text, OUT asked_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; l lanes; r runs; c consents; rest record; t timestamptz;
BEGIN
  PERFORM nw.enter();
  SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT runs.task_id FROM runs WHERE ref = p_run) FOR NO KEY UPDATE;
  SELECT runs.* INTO r FROM runs WHERE ref = p_run FOR NO KEY UPDATE;
  d := nw.admitting();
  t := clock_timestamp();
  SELECT consents.* INTO c FROM consents WHERE id = r.consent_id;
  SELECT tasks.ref, g.name INTO task_ref, client FROM tasks JOIN registry g ON g.id = tasks.client_id WHERE tasks.id = r.task_id;
  wait_ms := 1000;
  verdict := nw.holder_verdict(r, l, p_jkt, p_fence, p_activation, t);
  verdict := CASE
    WHEN verdict <> 'ok' THEN verdict
    WHEN d.state IS NULL THEN 'admission_closed'
    WHEN d.incarnation <> p_incarnation THEN 'authority_changed'
    WHEN c.state <> 'active' OR c.expires_at <= t THEN 'consent_ended'
    WHEN NOT nw.said(p_members, p_asked, c.member, t) THEN 'ask_directory'
    ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict = 'ask_directory' THEN about := nw.known_as(c.task_id, c.task_revision); asked_at := t; END IF;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('renew', verdict, r.task_id, r.id, NULL, p_jkt);
    RETURN;
  END IF;

  UPDATE runs SET lease_until = least(t + make_interval(secs => p_lease_ms / 1000.0), runs.deadline), lease_ms = p_lease_ms, readiness_epoch = d.epoch,
         capability = p_capability, effects_left = least(runs.effects_left, coalesce(p_effects_left, runs.effects_left)),
         steps_left = least(runs.steps_left, coalesce(p_steps_left, runs.steps_left)), spend_left = least(runs.spend_left, coalesce(p_spend_left, runs.spend_left))
   WHERE id = r.id AND state = 'claimed' AND runs.fence = p_fence AND holder = p_jkt AND lease_until > t AND runs.deadline > t
   RETURNING runs.* INTO STRICT r;
  run_ref := r.ref; fence := r.fence; deadline := r.deadline; activation_epoch := r.activation_epoch; lease_left_ms := ceil(extract(epoch FROM r.lease_until - t) * 1000);
  SELECT * INTO rest FROM nw.left_over(r, c, task_ref, t);
  effects_left := rest.effects; steps_left := rest.steps; spend_left := rest.spend; used := rest.used;
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note('renew', 'ok', r.task_id, r.id, NULL, json_build_object('fence', fence, 'capability', nw.hex(p_capability), 'readiness', d.epoch));
  readiness_epoch := d.epoch;
  incarnation := d.incarnation;
  remaining_ms := floor(extract(epoch FROM deadline - t) * 1000);
END $$;
-- +goose StatementEnd

-- mint names one exact effect (P12), and reserves it in all its ledgers or in none (B9). A key that is settled gets its outcome; a digest that is ambiguous in the lane is refused (A10).
-- +goose StatementBegin
CREATE FUNCTION nw.mint(
  p_run bytea, p_fence bigint, p_activation bigint, p_readiness bigint, p_incarnation bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea,
  p_ref bytea, p_key bytea, p_guard bytea, p_action bytea, p_resource bytea, p_amount bigint, p_currency bytea, p_risk smallint, p_digest bytea, p_repeat_of bytea,
  p_capability bytea, p_ttl_ms integer, p_decision bytea, p_arguments bytea, p_approved bytea, p_members bytea[], p_asked timestamptz[],
  OUT verdict text, OUT wait_ms bigint, OUT decision bytea, OUT effect_ref bytea, OUT effect_state text, OUT effect_digest bytea, OUT task_ref bytea, OUT client bytea, OUT deadline timestamptz,
  OUT ttl_left_ms bigint, OUT ceiling text, OUT effects_left bigint, OUT steps_left bigint, OUT spend_left bigint, OUT used smallint, OUT about text,
  OUT asked_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; l lanes; r runs; e effects; c consents; g consent_grants; t timestamptz; u timestamptz; guard bigint; known boolean; previous bigint; minted bigint;
  o decisions; above boolean; allowed boolean; ask_until timestamptz; fresh boolean; today date; rest record;
BEGIN
  PERFORM nw.enter();
  SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT runs.task_id FROM runs WHERE ref = p_run) FOR NO KEY UPDATE;
  SELECT runs.* INTO r FROM runs WHERE ref = p_run FOR NO KEY UPDATE;
  SELECT effects.* INTO e FROM effects WHERE run_id = r.id AND key = p_key FOR NO KEY UPDATE;
  PERFORM FROM decisions WHERE effect_id = e.id ORDER BY id FOR NO KEY UPDATE;
  PERFORM FROM ledgers y WHERE (y.holder = (SELECT k.ref FROM tasks k WHERE k.id = r.task_id) AND y.unit IN ('', p_currency))
      OR (p_amount > 0 AND y.holder = (SELECT k.member FROM consents k WHERE k.id = r.consent_id) AND y.unit = p_currency) ORDER BY y.holder, y.unit FOR NO KEY UPDATE;
  d := nw.admitting();
  t := clock_timestamp();
  known := e.id IS NOT NULL;
  SELECT decisions.* INTO o FROM decisions WHERE effect_id = e.id ORDER BY id DESC LIMIT 1;
  SELECT consents.* INTO c FROM consents WHERE id = r.consent_id;
  SELECT k.id INTO guard FROM components k JOIN registry g2 ON g2.id = k.id WHERE k.uri = p_guard AND g2.kind = 'guard' AND g2.state = 'active';
  SELECT consent_grants.* INTO g FROM consent_grants WHERE consent_id = r.consent_id AND guard_id = guard AND action = p_action AND resource = p_resource;
  SELECT tasks.ref, g2.name INTO task_ref, client FROM tasks JOIN registry g2 ON g2.id = tasks.client_id WHERE tasks.id = r.task_id;
  SELECT id INTO previous FROM effects WHERE run_id = r.id AND ref = p_repeat_of AND digest = p_digest AND state = 'committed';
  wait_ms := 1000;
  above := greatest(g.risk, p_risk) > c.dial AND NOT EXISTS (SELECT FROM consent_keys y WHERE y.consent_id = r.consent_id AND y.guard_id = guard AND y.action = p_action
    AND y.resource = p_resource AND y.key = p_approved AND y.withdrawn_at IS NULL);
  fresh := e.reserved_on IS NULL;
  today := (t AT TIME ZONE 'UTC')::date;
  ceiling := nw.ceiling(r, c, task_ref, fresh, p_amount, t);
  -- A decision that was used stands for its effect, so that minting it again needs no new one (P21).
  allowed := coalesce(NOT above OR (o.state IN ('approved', 'used') AND o.digest = p_digest AND nw.bound(o, l, c, d, t)), false);
  ask_until := nw.ask_until(c, r.deadline, t);
  verdict := nw.holder_verdict(r, l, p_jkt, p_fence, p_activation, t);
  verdict := CASE
    WHEN verdict <> 'ok' THEN verdict
    WHEN d.state IS NULL THEN 'admission_closed'
    WHEN d.incarnation <> p_incarnation THEN 'authority_changed'
    WHEN d.epoch <> p_readiness OR d.epoch <> r.readiness_epoch THEN 'readiness_changed'
    WHEN l.consent_id IS DISTINCT FROM r.consent_id OR c.state <> 'active' OR c.expires_at <= t THEN 'consent_ended'
    WHEN known AND e.digest <> p_digest THEN 'effect_key_conflict'
    WHEN known AND e.state = 'admitted' THEN 'effect_in_flight'
    WHEN known AND e.state NOT IN ('asked', 'minted', 'lapsed') THEN nw.nonce_verdict(p_nonce_at)
    WHEN l.uncertain_until > t AND NOT EXISTS (SELECT FROM findings WHERE effect_id = l.uncertain_effect) THEN 'lane_uncertain'
    WHEN EXISTS (SELECT FROM effects x WHERE x.task_id = r.task_id AND x.digest = p_digest AND x.state = 'ambiguous'
                    AND NOT EXISTS (SELECT FROM findings f WHERE f.effect_id = x.id)) THEN 'effect_ambiguous'
    WHEN guard IS NULL THEN 'invalid_target'
    WHEN g.consent_id IS NULL OR p_amount > g.max_amount OR (p_amount > 0 AND (p_currency IS DISTINCT FROM g.currency OR p_currency IS DISTINCT FROM c.currency)) THEN 'not_granted'
    WHEN p_repeat_of IS NOT NULL AND previous IS NULL THEN 'effect_repeated'
    WHEN p_repeat_of IS NULL AND EXISTS (SELECT FROM effects x WHERE x.run_id = r.id AND x.digest = p_digest AND x.state = 'committed') THEN 'effect_repeated'
    WHEN NOT known AND (SELECT count(*) FROM effects x WHERE x.run_id = r.id AND x.digest = p_digest) >= c.max_repeats THEN 'loop_detected'
    WHEN ceiling IS NOT NULL THEN 'limit_reached'
    WHEN NOT allowed AND EXISTS (SELECT FROM decisions n WHERE n.run_id = r.id AND n.digest = p_digest AND n.state = 'denied') THEN 'approval_denied'
    WHEN NOT allowed AND (ask_until IS NULL OR (SELECT count(*) FROM decisions n WHERE n.run_id = r.id) >= 3) THEN 'approval_unavailable'
    WHEN NOT allowed AND r.inflight > 0 THEN 'effects_in_flight'
    WHEN NOT nw.said(p_members, p_asked, c.member, t) THEN 'ask_directory'
    ELSE nw.nonce_verdict(p_nonce_at) END;
  ceiling := CASE verdict WHEN 'limit_reached' THEN ceiling WHEN 'loop_detected' THEN 'repeats' END;
  IF verdict IN ('approval_unavailable', 'approval_denied', 'limit_reached', 'loop_detected') AND (r.shortfall IS NULL OR ceiling IS NOT NULL) THEN
    -- A run that needed more and did not get it never reports success.
    UPDATE runs SET shortfall = CASE WHEN ceiling IS NULL THEN 'approval' ELSE 'limit' END WHERE id = r.id AND state = 'claimed' AND fence = p_fence;
  END IF;
  IF verdict = 'ask_directory' THEN about := nw.known_as(c.task_id, c.task_revision); asked_at := t; END IF;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('mint', verdict, r.task_id, r.id, e.id, p_jkt);
    RETURN;
  END IF;

  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  IF known AND e.state NOT IN ('asked', 'minted', 'lapsed') THEN
    effect_ref := e.ref; effect_state := e.state; effect_digest := e.digest;
    PERFORM nw.note('mint', 'ok', r.task_id, r.id, e.id, json_build_object('settled', e.state));
    RETURN;
  END IF;
  UPDATE runs SET steps_left = runs.steps_left - 1, steps = runs.steps + 1 WHERE id = r.id AND runs.steps_left > 0 AND state = 'claimed' AND fence = p_fence RETURNING runs.* INTO r;
  IF NOT FOUND THEN RAISE EXCEPTION 'limit_reached' USING ERRCODE = 'NW409'; END IF;
  IF NOT allowed THEN
    IF NOT known THEN
      INSERT INTO effects (ref, run_id, task_id, key, digest, guard_id, action, resource, amount, risk, repeat_of, state, fence, activation_epoch, readiness_epoch, holder, capability, expires_at)
        VALUES (p_ref, r.id, r.task_id, p_key, p_digest, guard, p_action, p_resource, p_amount, greatest(g.risk, p_risk), previous, 'asked', p_fence, p_activation, d.epoch, p_jkt,
                p_capability, t) RETURNING effects.* INTO STRICT e;
    END IF;
    PERFORM nw.ask(r, l, c, e, d.requirement, p_decision, p_arguments, ask_until);
    verdict := 'approval_required'; decision := p_decision;
    RETURN;
  END IF;
  IF above AND o.state = 'approved' THEN UPDATE decisions SET state = 'used' WHERE id = o.id AND state = 'approved'; END IF;
  u := least(t + make_interval(secs => p_ttl_ms / 1000.0), r.deadline);
  IF fresh THEN
    UPDATE runs SET effects_left = runs.effects_left - 1, spend_left = runs.spend_left - p_amount
     WHERE id = r.id AND runs.effects_left > 0 AND (p_amount = 0 OR runs.spend_left >= p_amount) AND state = 'claimed' AND fence = p_fence RETURNING runs.* INTO r;
    IF NOT FOUND THEN RAISE EXCEPTION 'limit_reached' USING ERRCODE = 'NW409'; END IF;
    PERFORM nw.charge(task_ref, '', today, 1);
    IF p_amount > 0 THEN
      PERFORM nw.charge(task_ref, p_currency, today, p_amount);
      PERFORM nw.charge(c.member, p_currency, today, p_amount);
    END IF;
  END IF;
  IF known THEN
    -- Rebind: the older capability is dead, admit compares the effect's fence and capability.
    UPDATE effects SET state = 'minted', fence = p_fence, activation_epoch = p_activation, readiness_epoch = d.epoch, holder = p_jkt, capability = p_capability, expires_at = u,
           reserved_on = coalesce(reserved_on, today)
     WHERE id = e.id AND state IN ('asked', 'minted', 'lapsed') RETURNING effects.ref, id INTO STRICT effect_ref, minted;
  ELSE
    INSERT INTO effects (ref, run_id, task_id, key, digest, guard_id, action, resource, amount, risk, repeat_of, reserved_on, fence, activation_epoch, readiness_epoch, holder, capability, expires_at)
      VALUES (p_ref, r.id, r.task_id, p_key, p_digest, guard, p_action, p_resource, p_amount, greatest(g.risk, p_risk), previous, today, p_fence, p_activation, d.epoch, p_jkt,
              p_capability, u)
      RETURNING effects.ref, id INTO STRICT effect_ref, minted;
  END IF;
  PERFORM nw.note('mint', 'ok', r.task_id, r.id, minted, json_build_object('reference', nw.hex(effect_ref), 'fence', p_fence, 'effect', nw.hex(p_digest), 'capability', nw.hex(p_capability),
    'readiness', d.epoch, 'activation', p_activation, 'again', known,
    'approved', nw.hex(CASE WHEN greatest(g.risk, p_risk) > c.dial AND NOT above THEN p_approved END), 'amount', p_amount));
  SELECT * INTO rest FROM nw.left_over(r, c, task_ref, t);
  effects_left := rest.effects; steps_left := rest.steps; spend_left := rest.spend; used := rest.used;
  effect_state := 'minted'; effect_digest := p_digest; deadline := r.deadline;
  ttl_left_ms := floor(extract(epoch FROM u - t) * 1000);
END $$;
-- +goose StatementEnd

-- component_verdict: this key is the latest boot of an instance of a registered, active component.
-- +goose StatementBegin
CREATE FUNCTION nw.component_verdict(p_component bytea, p_kind text, p_instance bytea, p_boot bigint, p_jkt bytea, OUT verdict text, OUT component bigint, OUT instance_id bigint)
LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE i instances;
BEGIN
  SELECT k.id INTO component FROM components k JOIN registry g ON g.id = k.id WHERE g.name = p_component AND g.kind = p_kind AND g.state = 'active';
  SELECT instances.* INTO i FROM instances WHERE kind = 'component' AND coalesce(component_id, 0) = component AND instance = p_instance;
  instance_id := i.id;
  verdict := CASE WHEN component IS NULL OR i.id IS NULL THEN 'invalid_token' WHEN i.boot <> p_boot THEN 'boot_superseded' WHEN i.jkt <> p_jkt THEN 'wrong_key' ELSE 'ok' END;
END $$;
-- +goose StatementEnd

-- admit consumes an effect, once, for one attempt of its guard (A9, P13). Two proofs are spent: the guard's and the worker's.
-- The same attempt asked again gets the same go-ahead and what is left of its time.
-- +goose StatementBegin
CREATE FUNCTION nw.admit(
  p_guard bytea, p_instance bytea, p_boot bigint, p_guard_jkt bytea, p_guard_nonce_at timestamptz, p_guard_proof bytea,
  p_effect bytea, p_attempt bytea, p_digest bytea, p_capability bytea, p_fence bigint, p_activation bigint, p_readiness bigint, p_incarnation bigint,
  p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_members bytea[], p_asked timestamptz[],
  OUT verdict text, OUT wait_ms bigint, OUT run_ref bytea, OUT task_ref bytea, OUT fence bigint, OUT apply_within_ms bigint, OUT number bigint, OUT about text,
  OUT asked_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; l lanes; r runs; e effects; c consents; k components; t timestamptz; u timestamptz; who record; again boolean;
BEGIN
  PERFORM nw.enter();
  SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT effects.task_id FROM effects WHERE ref = p_effect) FOR NO KEY UPDATE;
  SELECT runs.* INTO r FROM runs WHERE id = (SELECT effects.run_id FROM effects WHERE ref = p_effect) FOR NO KEY UPDATE;
  SELECT effects.* INTO e FROM effects WHERE ref = p_effect FOR NO KEY UPDATE;
  d := nw.admitting();
  t := clock_timestamp();
  SELECT * INTO who FROM nw.component_verdict(p_guard, 'guard', p_instance, p_boot, p_guard_jkt);
  SELECT components.* INTO k FROM components WHERE id = e.guard_id;
  SELECT consents.* INTO c FROM consents WHERE id = r.consent_id;
  SELECT tasks.ref INTO task_ref FROM tasks WHERE id = r.task_id;
  again := e.state = 'admitted' AND e.attempt = p_attempt;
  wait_ms := 1000;
  verdict := CASE
    WHEN who.verdict <> 'ok' THEN who.verdict
    WHEN e.id IS NULL OR e.guard_id <> who.component THEN 'wrong_guard'
    WHEN e.digest <> p_digest THEN 'effect_mismatch'
    WHEN e.holder <> p_jkt THEN 'wrong_key'
    WHEN again THEN nw.nonce_verdict(p_guard_nonce_at)
    WHEN e.state = 'admitted' THEN 'effect_already_admitted'
    WHEN e.state IN ('committed', 'not_applied', 'ambiguous') THEN 'effect_settled'
    WHEN e.capability <> p_capability OR e.fence <> p_fence THEN 'fence_stale'
    ELSE nw.holder_verdict(r, l, p_jkt, p_fence, p_activation, t) END;
  verdict := CASE
    WHEN verdict <> 'ok' OR again THEN verdict
    WHEN d.state IS NULL THEN 'admission_closed'
    WHEN d.incarnation <> p_incarnation THEN 'authority_changed'
    WHEN d.epoch <> p_readiness OR d.epoch <> e.readiness_epoch THEN 'readiness_changed'
    WHEN e.activation_epoch <> l.activation_epoch THEN 'authority_changed'
    WHEN l.consent_id IS DISTINCT FROM r.consent_id OR c.state <> 'active' OR c.expires_at <= t THEN 'consent_ended'
    WHEN e.state <> 'minted' OR e.expires_at <= t THEN 'effect_lapsed'
    WHEN l.uncertain_until > t AND NOT EXISTS (SELECT FROM findings WHERE effect_id = l.uncertain_effect) THEN 'lane_uncertain'
    WHEN NOT nw.said(p_members, p_asked, c.member, t) THEN 'ask_directory'
    WHEN nw.nonce_verdict(p_nonce_at) <> 'ok' THEN 'worker_nonce' -- the worker must be challenged, not the guard
    ELSE nw.nonce_verdict(p_guard_nonce_at) END;
  IF verdict = 'ask_directory' THEN about := nw.known_as(c.task_id, c.task_revision); asked_at := t; END IF;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('admit', verdict, r.task_id, r.id, e.id, p_jkt);
    RETURN;
  END IF;

  IF again THEN
    PERFORM nw.spend_proof(p_guard_nonce_at, p_guard_proof);
    fence := e.fence; number := e.admission; u := e.apply_until;
  ELSE
    u := least(t + interval '2 seconds', r.deadline, d.valid_until);
    number := nextval('admissions');
    UPDATE effects SET state = 'admitted', attempt = p_attempt, admission = number, admitted_at = t, apply_until = u,
           settle_until = u + make_interval(secs => k.settle_ms / 1000.0)
     WHERE id = e.id AND state = 'minted' AND effects.fence = p_fence AND capability = p_capability AND expires_at > t
     RETURNING effects.fence INTO STRICT fence;
    UPDATE runs SET inflight = inflight + 1 WHERE id = r.id AND state = 'claimed' AND runs.fence = p_fence AND holder = p_jkt AND lease_until > t AND runs.deadline > t;
    IF NOT FOUND THEN RAISE EXCEPTION 'fence_stale' USING ERRCODE = 'NW409'; END IF;
    -- Two proofs in one transaction: in digest order, so that two admissions cannot wait for each other.
    IF p_proof < p_guard_proof THEN
      PERFORM nw.spend_proof(p_nonce_at, p_proof);
      PERFORM nw.spend_proof(p_guard_nonce_at, p_guard_proof);
    ELSE
      PERFORM nw.spend_proof(p_guard_nonce_at, p_guard_proof);
      PERFORM nw.spend_proof(p_nonce_at, p_proof);
    END IF;
  END IF;
  PERFORM nw.note('admit', 'ok', r.task_id, r.id, e.id, json_build_object('fence', fence, 'attempt', nw.hex(p_attempt), 'admission', number,
    'capability', nw.hex(p_capability), 'readiness', p_readiness, 'activation', p_activation, 'again', again));
  run_ref := r.ref;
  apply_within_ms := greatest(0, floor(extract(epoch FROM u - t) * 1000));
END $$;
-- +goose StatementEnd

-- land records an outcome of an admitted effect, what it cost, and brings its run forward. The caller holds the row locks of lane, run and effect,
-- and has charged the ledgers for what differs from what was reserved.
-- +goose StatementBegin
CREATE FUNCTION nw.land(e nw.effects, p_outcome text, p_spent bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE r nw.runs; k nw.components;
BEGIN
  UPDATE effects SET state = p_outcome, spent = p_spent, settled_at = clock_timestamp() WHERE id = e.id AND state = 'admitted';
  UPDATE runs SET inflight = inflight - 1, spend_left = spend_left + e.amount - p_spent WHERE id = e.run_id RETURNING * INTO STRICT r;
  IF p_outcome = 'ambiguous' THEN
    SELECT * INTO STRICT k FROM components WHERE id = e.guard_id;
    IF NOT k.provable THEN
      -- An external guard cannot keep lane order (P17): hold the lane for the longest call and, for high risk, until a finding.
      UPDATE lanes SET uncertain_effect = e.id,
             uncertain_until = CASE WHEN e.risk >= 3 THEN 'infinity' ELSE clock_timestamp() + make_interval(secs => k.max_call_ms / 1000.0) END
       WHERE task_id = e.task_id;
    END IF;
  END IF;
  IF r.state = 'ending' THEN
    IF r.inflight = 0 THEN PERFORM nw.finish_run(r.id, r.ending); END IF;
  ELSIF p_outcome = 'ambiguous' THEN
    PERFORM nw.finish_run(r.id, 'ambiguous');
  END IF;
END $$;
-- +goose StatementEnd

-- settle_effect records what happened (P16): always possible, with guard identity, attempt and state `admitted`. No gate, epoch, fence, lease
-- or deadline, and no advisory lock. After the window the effect is ambiguous, and proof is kept as late evidence. What was reserved is charged as far
-- as it was spent, an overrun too; of an ambiguous effect at least what was reserved. Its owner sees what the guard knows of it.
-- +goose StatementBegin
CREATE FUNCTION nw.settle_effect(
  p_guard bytea, p_instance bytea, p_boot bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_effect bytea, p_attempt bytea, p_outcome text,
  p_spent bigint, p_answered text, p_status smallint, p_sent_at timestamptz, p_digest bytea, p_arguments bytea, p_state bytea,
  OUT verdict text, OUT wait_ms bigint, OUT effect_ref bytea, OUT effect_state text, OUT effect_digest bytea, OUT late boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE e effects; c consents; t timestamptz; who record; final text; cost bigint; task bytea;
BEGIN
  PERFORM FROM lanes WHERE task_id = (SELECT effects.task_id FROM effects WHERE ref = p_effect) FOR NO KEY UPDATE;
  PERFORM FROM runs WHERE id = (SELECT effects.run_id FROM effects WHERE ref = p_effect) FOR NO KEY UPDATE;
  SELECT effects.* INTO e FROM effects WHERE ref = p_effect FOR NO KEY UPDATE;
  SELECT k.ref INTO task FROM tasks k WHERE k.id = e.task_id;
  SELECT o.* INTO c FROM consents o JOIN runs r ON o.id = r.consent_id WHERE r.id = e.run_id;
  IF e.amount > 0 THEN PERFORM FROM ledgers x WHERE x.holder IN (task, c.member) AND x.unit = c.currency ORDER BY x.holder, x.unit FOR NO KEY UPDATE; END IF;
  t := clock_timestamp();
  SELECT * INTO who FROM nw.component_verdict(p_guard, 'guard', p_instance, p_boot, p_jkt);
  wait_ms := 1000; late := false;
  verdict := CASE
    WHEN who.verdict <> 'ok' THEN who.verdict
    WHEN e.id IS NULL OR e.guard_id <> who.component THEN 'wrong_guard'
    WHEN p_outcome NOT IN ('committed', 'not_applied', 'ambiguous') OR p_spent NOT BETWEEN 0 AND 1000000000000 OR (p_spent > 0 AND e.amount = 0) THEN 'invalid_request'
    WHEN p_digest <> e.digest THEN 'effect_mismatch'
    WHEN e.attempt IS DISTINCT FROM p_attempt THEN 'attempt_mismatch'
    WHEN e.state <> 'admitted' AND e.state <> p_outcome AND e.state <> 'ambiguous' THEN 'effect_settled'
    ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('settle_effect', verdict, e.task_id, e.run_id, e.id, p_jkt);
    RETURN;
  END IF;

  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  effect_ref := e.ref; effect_digest := e.digest; effect_state := e.state;
  IF e.state = 'admitted' THEN
    final := CASE WHEN e.settle_until <= t THEN 'ambiguous' ELSE p_outcome END;
    cost := CASE final WHEN 'committed' THEN coalesce(p_spent, e.amount) WHEN 'not_applied' THEN 0 ELSE greatest(e.amount, coalesce(p_spent, 0)) END;
    IF cost <> e.amount THEN
      PERFORM nw.charge(task, c.currency, e.reserved_on, cost - e.amount);
      PERFORM nw.charge(c.member, c.currency, e.reserved_on, cost - e.amount);
    END IF;
    PERFORM nw.land(e, final, cost);
    PERFORM nw.note('settle_effect', 'ok', e.task_id, e.run_id, e.id, json_build_object('outcome', final, 'attempt', nw.hex(p_attempt), 'spent', cost, 'reserved', e.amount));
    effect_state := final;
  END IF;
  IF effect_state = 'ambiguous' AND p_outcome <> 'ambiguous' THEN
    INSERT INTO late_evidence (effect_id, outcome) VALUES (e.id, p_outcome) ON CONFLICT DO NOTHING;
    IF FOUND THEN PERFORM nw.note('late_evidence', 'ok', e.task_id, e.run_id, e.id, json_build_object('outcome', p_outcome)); END IF;
    late := true;
  END IF;
  IF effect_state = 'ambiguous' AND p_answered IS NOT NULL THEN
    INSERT INTO evidence (effect_id, sent_at, answered, status) VALUES (e.id, p_sent_at, p_answered, p_status) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      IF p_digest IS NOT NULL THEN INSERT INTO arguments (effect_id, body) VALUES (e.id, p_arguments) ON CONFLICT DO NOTHING; END IF;
      IF p_state IS NOT NULL THEN INSERT INTO arguments (effect_id, written, body) VALUES (e.id, 'by_destination', p_state); END IF;
      PERFORM nw.note('evidence', 'ok', e.task_id, e.run_id, e.id, json_build_object('answered', p_answered, 'status', p_status, 'sent', floor(extract(epoch FROM p_sent_at))::bigint));
    END IF;
  END IF;
END $$;
-- +goose StatementEnd

-- expire_effects makes admitted effects whose settle window has passed ambiguous: nobody can prove them in time (A10).
-- +goose StatementBegin
CREATE FUNCTION nw.expire_effects(p_limit integer, OUT expired bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE candidate record; e effects;
BEGIN
  expired := 0;
  -- Oldest first; each in lock order, re-read under its locks.
  FOR candidate IN SELECT id, run_id, task_id FROM effects WHERE state = 'admitted' AND settle_until <= clock_timestamp() ORDER BY task_id, run_id, id LIMIT p_limit LOOP
    PERFORM FROM lanes WHERE task_id = candidate.task_id FOR NO KEY UPDATE;
    PERFORM FROM runs WHERE id = candidate.run_id FOR NO KEY UPDATE;
    SELECT effects.* INTO e FROM effects WHERE id = candidate.id FOR NO KEY UPDATE;
    IF e.state = 'admitted' AND e.settle_until <= clock_timestamp() THEN
      PERFORM nw.land(e, 'ambiguous', e.amount); -- all that was reserved is charged
      PERFORM nw.note('expire_effect', 'ok', e.task_id, e.run_id, e.id, json_build_object('attempt', nw.hex(e.attempt)));
      expired := expired + 1;
    END IF;
  END LOOP;
END $$;
-- +goose StatementEnd

-- effect_for_holder: the run's present holder sees all its effects; the key that minted one sees that one (P20). Also while closed, and after the end.
-- +goose StatementBegin
CREATE FUNCTION nw.effect_for_holder(p_effect bytea, p_run bytea, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea,
  OUT verdict text, OUT wait_ms bigint, OUT effect_ref bytea, OUT effect_state text, OUT effect_digest bytea, OUT late boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE e effects; r runs;
BEGIN
  SELECT effects.* INTO e FROM effects WHERE ref = p_effect;
  SELECT runs.* INTO r FROM runs WHERE id = e.run_id;
  verdict := CASE
    WHEN e.id IS NULL OR r.ref <> p_run OR (e.holder <> p_jkt AND r.holder IS DISTINCT FROM p_jkt) THEN 'not_found'
    ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('present', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  effect_ref := e.ref; effect_state := e.state; effect_digest := e.digest;
  late := EXISTS (SELECT FROM late_evidence WHERE effect_id = e.id);
END $$;
-- +goose StatementEnd

-- unsettled lists the effects that a guard must prove or tombstone (P15), oldest first.
-- +goose StatementBegin
CREATE FUNCTION nw.unsettled(p_guard bytea, p_instance bytea, p_boot bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_limit integer,
  OUT verdict text, OUT wait_ms bigint, OUT effects json)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE who record; t timestamptz := clock_timestamp();
BEGIN
  SELECT * INTO who FROM nw.component_verdict(p_guard, 'guard', p_instance, p_boot, p_jkt);
  verdict := CASE WHEN who.verdict <> 'ok' THEN who.verdict ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('present', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  SELECT json_agg(row_to_json(x)) INTO effects FROM (
    SELECT nw.hex(e.ref) ref, nw.hex(e.attempt) attempt, nw.hex(k.ref) lane, e.fence,
           floor(extract(epoch FROM e.apply_until - t) * 1000)::bigint apply_left_ms, floor(extract(epoch FROM e.settle_until - t) * 1000)::bigint settle_left_ms
      FROM nw.effects e JOIN tasks k ON k.id = e.task_id WHERE e.guard_id = who.component AND e.state = 'admitted' ORDER BY e.id LIMIT p_limit) x;
END $$;
-- +goose StatementEnd

-- settle_run ends a run, once. The authority computes the terminal state itself (B4); the same holder asking again gets the same receipt.
-- It is possible while closed: a close must not make finished work ambiguous.
-- +goose StatementBegin
CREATE FUNCTION nw.settle_run(p_run bytea, p_fence bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_capability bytea, p_succeeded boolean,
  OUT verdict text, OUT wait_ms bigint, OUT run_ref bytea, OUT state text, OUT fence bigint, OUT committed bigint, OUT not_applied bigint, OUT ambiguous bigint, OUT steps bigint, OUT spent bigint,
  OUT currency text, OUT audit_digest bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE l lanes; r runs; t timestamptz; settled boolean; final text;
BEGIN
  PERFORM nw.enter();
  SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT runs.task_id FROM runs WHERE ref = p_run) FOR NO KEY UPDATE;
  SELECT runs.* INTO r FROM runs WHERE ref = p_run FOR NO KEY UPDATE;
  t := clock_timestamp();
  wait_ms := 1000;
  -- The capability that ended it may ask again: its answer was lost.
  settled := r.ended_at IS NOT NULL AND r.capability = p_capability AND r.fence = p_fence;
  verdict := CASE WHEN settled THEN 'ok' ELSE nw.holder_verdict(r, l, p_jkt, p_fence, r.activation_epoch, t) END;
  verdict := CASE
    WHEN verdict <> 'ok' THEN verdict
    WHEN NOT settled AND r.inflight > 0 THEN 'effects_in_flight'
    ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('settle_run', verdict, r.task_id, r.id, NULL, p_jkt);
    RETURN;
  END IF;

  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  IF NOT settled THEN
    final := CASE WHEN r.shortfall = 'limit' THEN 'stopped_by_limit' WHEN NOT p_succeeded THEN 'failed' WHEN r.shortfall = 'approval' THEN 'failed' ELSE 'succeeded' END;
    PERFORM nw.finish_run(r.id, final);
    PERFORM nw.note('settle_run', 'ok', r.task_id, r.id, NULL, json_build_object('fence', p_fence, 'capability', nw.hex(p_capability), 'asked', p_succeeded));
  END IF;
  run_ref := r.ref; fence := r.fence;
  SELECT runs.state INTO STRICT state FROM runs WHERE id = r.id;
  SELECT count(*) FILTER (WHERE e.state = 'committed'), count(*) FILTER (WHERE e.state = 'not_applied'), count(*) FILTER (WHERE e.state = 'ambiguous'), coalesce(sum(e.spent), 0)
    INTO committed, not_applied, ambiguous, spent FROM effects e WHERE e.run_id = r.id;
  SELECT r.steps, CASE WHEN c.max_spend > 0 THEN nw.currency_of(d.body) END INTO steps, currency
    FROM consents c JOIN documents d ON d.digest = c.digest WHERE c.id = r.consent_id;
  SELECT a.digest INTO audit_digest FROM audit a WHERE a.run_id = r.id AND a.verb = 'end_run' ORDER BY a.id DESC LIMIT 1;
END $$;
-- +goose StatementEnd

-- reapable lists runs whose lease or deadline has passed. A hint: reap decides again, under its locks.
-- +goose StatementBegin
CREATE FUNCTION nw.reapable(p_limit integer) RETURNS TABLE (run bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT x.id FROM (
      SELECT id FROM runs WHERE live AND state <> 'ending' AND deadline <= clock_timestamp()
      UNION SELECT id FROM runs WHERE live AND state = 'claimed' AND lease_until <= clock_timestamp()) x ORDER BY x.id LIMIT p_limit;
END $$;
-- +goose StatementEnd

-- reap is guarded by state and time as they stand under the locks (P10), for one run, also while closed.
-- +goose StatementBegin
CREATE FUNCTION nw.reap(p_run bigint, OUT state text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE r runs; t timestamptz;
BEGIN
  PERFORM nw.enter();
  PERFORM FROM lanes WHERE task_id = (SELECT task_id FROM runs WHERE id = p_run) FOR NO KEY UPDATE;
  SELECT runs.* INTO r FROM runs WHERE id = p_run FOR NO KEY UPDATE;
  t := clock_timestamp();
  IF r.state IN ('queued', 'claimed', 'waiting') AND r.deadline <= t THEN
    state := nw.finish_run(p_run, 'expired');
  ELSIF r.state = 'claimed' AND r.lease_until <= t THEN
    state := nw.finish_run(p_run, 'lease_lost');
  ELSE
    state := r.state;
  END IF;
END $$;
-- +goose StatementEnd
