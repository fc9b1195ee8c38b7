-- +goose Up
-- The verbs of members and operators: registry, offers, consents, revocation, findings.
-- An identity comes from a validated envelope only; its digest is owned by the first key that uses it, like an assertion (A3, B1).

-- envelope_verdict judges what came with a member's or an operator's request.
-- +goose StatementBegin
CREATE FUNCTION nw.envelope_verdict(p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE v text := nw.owner_verdict(p_envelope, p_until, p_jkt);
BEGIN
  RETURN CASE WHEN v = 'invalid_client' THEN 'invalid_envelope' WHEN v <> 'ok' THEN v ELSE nw.nonce_verdict(p_nonce_at) END;
END $$;
-- +goose StatementEnd

-- present spends an envelope's proof for a reading that follows.
-- +goose StatementBegin
CREATE FUNCTION nw.present(p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  verdict := nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at);
  IF verdict <> 'ok' THEN
    verdict := nw.refused('present', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
END $$;
-- +goose StatementEnd

-- keep stores a document once.
-- +goose StatementBegin
CREATE FUNCTION nw.keep(p_digest bytea, p_kind text, p_body bytea) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
BEGIN
  INSERT INTO documents (digest, kind, body) VALUES (p_digest, p_kind, p_body) ON CONFLICT DO NOTHING;
END $$;
-- +goose StatementEnd

-- registered finds an active entry, or undoes the verb.
-- +goose StatementBegin
CREATE FUNCTION nw.registered(p_kind text, p_name text, p_revision bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE g registry;
BEGIN
  SELECT * INTO g FROM registry WHERE kind = p_kind AND name = decode(p_name, 'hex') AND revision = p_revision;
  IF g.id IS NULL THEN RAISE EXCEPTION 'invalid_document' USING ERRCODE = 'NW409', DETAIL = p_kind; END IF;
  IF g.state <> 'active' THEN RAISE EXCEPTION 'retired' USING ERRCODE = 'NW409', DETAIL = p_kind; END IF;
  RETURN g.id;
END $$;
-- +goose StatementEnd

-- put_entry enters one registry document with its links. The same revision again is a no-op; with other content it is refused.
-- +goose StatementBegin
CREATE FUNCTION nw.put_entry(i json) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE k text := i->>'kind'; g registry; x json; nm bytea := decode(i->>'name', 'hex'); dg bytea := decode(i->>'digest', 'hex'); last bigint;
BEGIN
  SELECT * INTO g FROM registry WHERE kind = k AND name = nm AND revision = (i->>'revision')::bigint;
  IF g.id IS NOT NULL THEN
    IF g.document <> dg THEN RAISE EXCEPTION 'revision_immutable' USING ERRCODE = 'NW409', DETAIL = k; END IF;
    RETURN 'unchanged';
  END IF;
  SELECT max(revision) INTO last FROM registry WHERE kind = k AND name = nm;
  IF coalesce(last, 0) >= (i->>'revision')::bigint THEN RAISE EXCEPTION 'revision_stale' USING ERRCODE = 'NW409', DETAIL = k; END IF;
  PERFORM nw.keep(dg, k, decode(i->>'body', 'hex'));
  INSERT INTO registry (kind, name, revision, document) VALUES (k, nm, (i->>'revision')::bigint, dg) RETURNING * INTO STRICT g;
  IF k IN ('guard', 'reporter', 'product') THEN
    INSERT INTO components (id, profile_id, uri, catalogue, provable, max_call_ms, settle_ms)
      VALUES (g.id, nw.registered('attestation_profile', i->>'profile', 1), decode(i->>'uri', 'hex'), decode(i->>'catalogue', 'hex'), coalesce((i->>'provable')::boolean, false),
              coalesce((i->>'max_call_ms')::integer, 60000), coalesce((i->>'settle_ms')::integer, 5000));
    INSERT INTO component_families SELECT g.id, value FROM json_array_elements_text(coalesce(i->'families', '[]'));
  ELSIF k = 'workload_role' THEN
    PERFORM nw.registered('client', i->>'client', 1);
    FOR x IN SELECT value FROM json_array_elements(i->'profiles') LOOP
      INSERT INTO role_profiles VALUES (g.id, nw.registered('attestation_profile', x#>>'{}', 1));
    END LOOP;
    FOR x IN SELECT value FROM json_array_elements(i->'actions') LOOP
      INSERT INTO role_actions VALUES (g.id, nw.registered('guard', x->>'guard', 1), decode(x->>'action', 'hex'));
    END LOOP;
    INSERT INTO role_queues VALUES (nm, decode(i->>'queue', 'hex')) ON CONFLICT (name) DO NOTHING;
  END IF;
  RETURN 'entered';
END $$;
-- +goose StatementEnd

-- put_task enters a task revision and its offer. A new revision advances the activation epoch and supersedes the consent (A5).
-- +goose StatementBegin
CREATE FUNCTION nw.put_task(i json) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE k tasks; l lanes; v task_revisions; rv bigint := (i->>'revision')::bigint; dg bytea := decode(i->>'digest', 'hex'); client bigint; role bigint; policy bigint; again boolean;
BEGIN
  client := nw.registered('client', i->>'client', 1);
  role := nw.registered('workload_role', i->>'role', (i->>'role_revision')::bigint);
  policy := nw.registered('policy', i->>'policy', (i->>'policy_revision')::bigint);
  SELECT * INTO k FROM tasks WHERE name = decode(i->>'name', 'hex');
  IF k.id IS NOT NULL AND (k.client_id <> client OR k.ref <> decode(i->>'ref', 'hex')) THEN
    RAISE EXCEPTION 'revision_immutable' USING ERRCODE = 'NW409', DETAIL = 'task';
  END IF;
  IF k.id IS NULL THEN
    PERFORM nw.keep(dg, 'task', decode(i->>'body', 'hex'));
    INSERT INTO tasks (ref, name, client_id, product_id, owner) VALUES (decode(i->>'ref', 'hex'), decode(i->>'name', 'hex'), client, (i->>'product')::bigint, decode(i->>'owner', 'hex')) RETURNING * INTO STRICT k;
    INSERT INTO task_revisions VALUES (k.id, rv, dg, role, policy);
    INSERT INTO lanes (task_id, task_revision) VALUES (k.id, rv);
  ELSE
    SELECT * INTO STRICT l FROM lanes WHERE task_id = k.id FOR NO KEY UPDATE;
    SELECT * INTO v FROM task_revisions WHERE task_id = k.id AND revision = rv;
    again := v.task_id IS NOT NULL;
    IF again AND v.document <> dg THEN RAISE EXCEPTION 'revision_immutable' USING ERRCODE = 'NW409', DETAIL = 'task'; END IF;
    IF rv < l.task_revision THEN RAISE EXCEPTION 'revision_stale' USING ERRCODE = 'NW409', DETAIL = 'task'; END IF;
    IF again AND (l.consent_id IS NOT NULL OR EXISTS (SELECT FROM offers WHERE task_id = k.id AND state = 'open' AND expires_at > clock_timestamp())) THEN
      RETURN 'unchanged';
    END IF;
    IF NOT again THEN
      PERFORM nw.keep(dg, 'task', decode(i->>'body', 'hex'));
      INSERT INTO task_revisions VALUES (k.id, rv, dg, role, policy);
      PERFORM nw.end_consent(k.id, 'superseded');
      UPDATE lanes SET task_revision = rv WHERE task_id = k.id;
      -- A revision for another owner hands the task over: under nothing but a consent of their own (B12).
      UPDATE tasks SET owner = decode(i->>'owner', 'hex') WHERE id = k.id RETURNING * INTO STRICT k;
    END IF;
    UPDATE offers SET state = 'replaced' WHERE task_id = k.id AND state = 'open';
  END IF;
  PERFORM nw.keep(decode(i->>'offer_digest', 'hex'), 'consent', decode(i->>'offer_body', 'hex'));
  IF i->>'most_digest' IS NOT NULL THEN PERFORM nw.keep(decode(i->>'most_digest', 'hex'), 'consent', decode(i->>'most_body', 'hex')); END IF;
  INSERT INTO offers (ref, task_id, task_revision, member, digest, most, product_id, back, expires_at)
    VALUES (decode(i->>'offer', 'hex'), k.id, rv, k.owner, decode(i->>'offer_digest', 'hex'), decode(i->>'most_digest', 'hex'), (i->>'product')::bigint, decode(i->>'back', 'hex'),
            clock_timestamp() + interval '7 days');
  PERFORM nw.note('offer', 'ok', k.id, NULL, NULL, json_build_object('offer', i->>'offer', 'digest', i->>'offer_digest', 'revision', rv));
  RETURN 'entered';
END $$;
-- +goose StatementEnd

-- end_consent ends a task's active consent, stops its schedule and advances its epoch. The caller holds gate and lane.
-- +goose StatementBegin
CREATE FUNCTION nw.end_consent(p_task bigint, p_state text) RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE e bigint;
BEGIN
  e := nw.advance_epoch(p_task);
  -- A slot that came due in the consent's time and was not planned is on record too.
  INSERT INTO slots (task_id, nominal_at, outcome, reason, zone)
    SELECT s.task_id, s.next_at, 'skipped', 'consent', s.zone FROM schedules s JOIN consents c ON c.task_id = s.task_id AND c.state = 'active'
     WHERE s.task_id = p_task AND s.next_at <= clock_timestamp() AND s.next_at < c.expires_at ON CONFLICT DO NOTHING;
  UPDATE lanes SET consent_id = NULL WHERE task_id = p_task;
  UPDATE consents SET state = p_state WHERE task_id = p_task AND state = 'active';
  DELETE FROM schedules WHERE task_id = p_task;
  RETURN e;
END $$;
-- +goose StatementEnd

-- apply enters a set of documents, all or none. Tasks bring offers, and an offer is an entry: with a task in it the whole set needs an open gate.
-- Registry entries alone do not: without guards the gate cannot open, and they must be entered before.
-- +goose StatementBegin
CREATE FUNCTION nw.apply(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_items json,
  OUT verdict text, OUT results json)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; i json; entered text[] := '{}'; offering boolean; r text;
BEGIN
  PERFORM nw.enter();
  -- Lanes in one order, before anything else (P2).
  PERFORM FROM lanes WHERE task_id IN (SELECT id FROM nw.tasks WHERE name IN (SELECT decode(value->>'name', 'hex') FROM json_array_elements(p_items) WHERE value->>'kind' = 'task'))
    ORDER BY task_id FOR NO KEY UPDATE;
  d := nw.admitting();
  offering := EXISTS (SELECT FROM json_array_elements(p_items) WHERE value->>'kind' = 'task');
  verdict := CASE WHEN offering AND d.state IS NULL THEN 'admission_closed' ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('apply', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  FOR i IN SELECT value FROM json_array_elements(p_items) LOOP
    r := CASE WHEN i->>'kind' = 'task' THEN nw.put_task(i) ELSE nw.put_entry(i) END;
    entered := entered || r;
    PERFORM nw.note_about(p_member, 'apply', 'ok', NULL, NULL, NULL, json_build_object('kind', i->>'kind', 'name', i->>'name', 'revision', (i->>'revision')::bigint,
      'digest', i->>'digest', 'result', r));
  END LOOP;
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  results := array_to_json(entered);
END $$;
-- +goose StatementEnd

-- retire ends a registered revision and what rests on it, by epoch (A5). It holds the gate alone: no consent can be given on an entry
-- while the list of the tasks that it touches is made. A role with another profile left keeps its consents under the new epoch.
-- +goose StatementBegin
CREATE FUNCTION nw.retire(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_kind text, p_name bytea, p_revision bigint,
  OUT verdict text, OUT touched bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE g registry; t bigint; lanes_of bigint[];
BEGIN
  PERFORM nw.alone();
  SELECT * INTO g FROM registry WHERE kind = p_kind AND name = p_name AND revision = p_revision;
  SELECT array_agg(DISTINCT c.task_id) INTO lanes_of FROM consents c WHERE c.state = 'active' AND (
    g.id IN (c.client_id, c.role_id, c.policy_id)
    OR EXISTS (SELECT FROM role_profiles p WHERE p.role_id = c.role_id AND p.profile_id = g.id)
    OR EXISTS (SELECT FROM consent_grants x WHERE x.consent_id = c.id AND x.guard_id = g.id));
  PERFORM FROM lanes WHERE task_id = ANY (lanes_of) ORDER BY task_id FOR NO KEY UPDATE;
  verdict := CASE WHEN g.id IS NULL THEN 'not_found' WHEN g.state = 'retired' THEN 'retired' ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('retire', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  UPDATE registry SET state = 'retired' WHERE id = g.id AND state = 'active';
  FOREACH t IN ARRAY coalesce(lanes_of, '{}') LOOP
    IF p_kind = 'attestation_profile' THEN PERFORM nw.advance_epoch(t); ELSE PERFORM nw.end_consent(t, 'revoked'); END IF;
  END LOOP;
  UPDATE offers SET state = 'replaced' WHERE state = 'open' AND p_kind <> 'attestation_profile' AND (task_id, task_revision) IN (
    SELECT v.task_id, v.revision FROM task_revisions v JOIN tasks k ON k.id = v.task_id WHERE g.id IN (v.role_id, v.policy_id, k.client_id));
  touched := cardinality(coalesce(lanes_of, '{}'));
  IF EXISTS (SELECT FROM requirement_profiles q JOIN readiness_decision d ON d.requirement = q.generation WHERE q.profile_id = g.id) THEN
    PERFORM nw.shut('profile', 'attestation', false);
  END IF;
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'retire', 'ok', NULL, NULL, NULL, json_build_object('kind', p_kind, 'name', nw.hex(p_name), 'revision', p_revision, 'tasks', touched));
END $$;
-- +goose StatementEnd

-- give_consent records a member's yes to exactly the offer whose digest it carries, or to what the member has chosen of it last (A1). The
-- normalised lines in p_terms say what that very document says; each grant has a foreign key into the role's action list. The same yes
-- once more has the same receipt, as long as what it gave is in force.
-- +goose StatementBegin
CREATE FUNCTION nw.give_consent(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea,
  p_offer bytea, p_digest bytea, p_consent bytea, p_terms json, p_asked timestamptz,
  OUT verdict text, OUT consent bytea, OUT epoch bigint, OUT given_at timestamptz, OUT expires_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; l lanes; o offers; v task_revisions; k tasks; c consents; t timestamptz; given bigint; x json; sound boolean;
BEGIN
  PERFORM nw.enter();
  SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT offers.task_id FROM offers WHERE ref = p_offer) FOR NO KEY UPDATE;
  SELECT offers.* INTO o FROM offers WHERE ref = p_offer FOR NO KEY UPDATE;
  SELECT * INTO v FROM task_revisions WHERE task_id = o.task_id AND revision = o.task_revision;
  SELECT * INTO k FROM tasks WHERE tasks.id = o.task_id;
  SELECT consents.* INTO c FROM consents WHERE consents.offer_id = o.id AND consents.digest = p_digest AND consents.state = 'active';
  d := nw.admitting();
  t := clock_timestamp();
  sound := (SELECT bool_and(g.state = 'active') FROM registry g WHERE g.id IN (v.role_id, v.policy_id, k.client_id)
    OR (g.kind = 'guard' AND g.name IN (SELECT decode(value->>'guard', 'hex') FROM json_array_elements(p_terms->'grants'))))
    AND EXISTS (SELECT FROM role_profiles p JOIN registry g ON g.id = p.profile_id WHERE p.role_id = v.role_id AND g.state = 'active');
  verdict := CASE
    WHEN o.id IS NULL OR o.member <> p_member THEN 'not_found'
    WHEN d.state IS NULL THEN 'admission_closed'
    WHEN p_digest NOT IN (o.digest, coalesce(o.variant, o.digest)) THEN 'offer_changed'
    WHEN c.id IS NOT NULL THEN nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at)
    WHEN o.state <> 'open' OR o.expires_at <= t OR o.task_revision <> l.task_revision THEN 'offer_ended'
    WHEN (p_terms->>'expires_at')::timestamptz <= t THEN 'offer_ended'
    WHEN NOT sound THEN 'retired'
    WHEN NOT nw.said(ARRAY[p_member], ARRAY[p_asked], p_member, t) THEN 'ask_directory'
    ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('consent', verdict, o.task_id, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  IF c.id IS NOT NULL THEN
    consent := c.ref; epoch := c.epoch; given_at := c.given_at; expires_at := c.expires_at;
    PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
    PERFORM nw.spend_proof(p_nonce_at, p_proof);
    RETURN;
  END IF;
  IF NOT nw.says((SELECT body FROM documents WHERE documents.digest = p_digest), p_terms) THEN
    RAISE EXCEPTION 'nightwarrant: the terms are not those of the document' USING ERRCODE = 'NW001';
  END IF;

  consent := p_consent;
  epoch := nw.end_consent(o.task_id, 'superseded');
  UPDATE offers SET state = 'accepted' WHERE offers.id = o.id AND state = 'open';
  INSERT INTO consents (ref, offer_id, task_id, task_revision, member, client_id, role_id, policy_id, digest, dial, run_limit_ms, max_effects, max_steps, max_repeats,
      max_spend, currency, effects_day, effects_month, spend_day, spend_month, member_spend_day, member_spend_month, silence, window_ms, not_before, expires_at, epoch)
    VALUES (p_consent, o.id, o.task_id, o.task_revision, p_member, k.client_id, v.role_id, v.policy_id, p_digest, (p_terms->>'dial')::smallint,
            (p_terms->>'run_limit_ms')::bigint, (p_terms->>'max_effects')::integer, (p_terms->>'max_steps')::integer, (p_terms->>'max_repeats')::smallint,
            (p_terms->>'max_spend')::bigint, decode(p_terms->>'currency', 'hex'), (p_terms->>'effects_day')::bigint, (p_terms->>'effects_month')::bigint,
            (p_terms->>'spend_day')::bigint, (p_terms->>'spend_month')::bigint, (p_terms->>'member_spend_day')::bigint, (p_terms->>'member_spend_month')::bigint,
            p_terms->>'silence', (p_terms->>'window_ms')::bigint, (p_terms->>'not_before')::timestamptz, (p_terms->>'expires_at')::timestamptz, epoch)
    RETURNING consents.id, consents.given_at, consents.expires_at INTO STRICT given, given_at, expires_at;
  FOR x IN SELECT value FROM json_array_elements(p_terms->'grants') LOOP
    INSERT INTO consent_grants (consent_id, role_id, guard_id, action, resource, risk, max_amount, currency)
      SELECT given, v.role_id, g.id, decode(x->>'action', 'hex'), decode(x->>'resource', 'hex'), (x->>'risk')::smallint, coalesce((x->>'max_amount')::bigint, 0),
             decode(x->>'currency', 'hex') FROM registry g WHERE g.kind = 'guard' AND g.name = decode(x->>'guard', 'hex') AND g.state = 'active';
    IF NOT FOUND THEN RAISE EXCEPTION 'retired' USING ERRCODE = 'NW409'; END IF;
    INSERT INTO consent_keys (consent_id, guard_id, action, resource, key)
      SELECT given, g.id, decode(x->>'action', 'hex'), decode(x->>'resource', 'hex'), decode(y.value, 'hex')
        FROM registry g, json_array_elements_text(coalesce(x->'keys', '[]')) y WHERE g.kind = 'guard' AND g.name = decode(x->>'guard', 'hex') AND g.state = 'active';
  END LOOP;
  -- Ledgers are there before anything is reserved in them: a task's, and its member's, whose other tasks have it too.
  INSERT INTO ledgers (holder, unit) SELECT y.holder, y.unit FROM (VALUES (k.ref, ''::bytea), (k.ref, decode(p_terms->>'currency', 'hex')), (p_member, decode(p_terms->>'currency', 'hex'))) y(holder, unit)
    WHERE y.unit IS NOT NULL ORDER BY y.holder, y.unit ON CONFLICT DO NOTHING;
  UPDATE lanes SET consent_id = given WHERE task_id = o.task_id;
  INSERT INTO schedules (task_id, next_at, zone) VALUES (o.task_id, (p_terms->>'first_at')::timestamptz, decode(p_terms->>'zone', 'hex'));
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'consent', 'ok', o.task_id, NULL, NULL, json_build_object('consent', nw.hex(p_consent), 'digest', nw.hex(p_digest), 'epoch', epoch));
END $$;
-- +goose StatementEnd

-- decline answers an offer with no. It needs no open gate: refusing costs no more than allowing.
-- +goose StatementBegin
CREATE FUNCTION nw.decline(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_offer bytea, p_digest bytea, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE o offers;
BEGIN
  SELECT * INTO o FROM offers WHERE ref = p_offer FOR NO KEY UPDATE;
  verdict := CASE
    WHEN o.id IS NULL OR o.member <> p_member THEN 'not_found'
    WHEN p_digest NOT IN (o.digest, coalesce(o.variant, o.digest)) THEN 'offer_changed'
    WHEN o.state <> 'open' THEN 'offer_ended'
    ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('decline', verdict, o.task_id, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  UPDATE offers SET state = 'declined' WHERE id = o.id AND state = 'open';
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'decline', 'ok', o.task_id, NULL, NULL, json_build_object('offer', nw.hex(p_offer)));
END $$;
-- +goose StatementEnd

-- revoke ends a task's consent: by its owner, or by an operator (p_operator). Always possible; it returns when the new epoch is committed.
-- +goose StatementBegin
CREATE FUNCTION nw.revoke(p_member bytea, p_operator boolean, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_task bytea,
  p_shown bigint DEFAULT NULL, -- the epoch that was shown; none: whatever it is now
  OUT verdict text, OUT epoch bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE k tasks; l lanes;
BEGIN
  PERFORM nw.enter();
  SELECT * INTO k FROM tasks WHERE ref = p_task AND (owner = p_member OR p_operator);
  SELECT * INTO l FROM lanes WHERE task_id = k.id FOR NO KEY UPDATE;
  verdict := CASE
    WHEN k.id IS NULL THEN 'not_found'
    WHEN l.consent_id IS NULL THEN 'consent_ended'
    WHEN l.activation_epoch <> p_shown THEN 'stale'
    ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('revoke', verdict, k.id, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  epoch := nw.end_consent(k.id, 'revoked');
  IF k.owner = p_member THEN PERFORM nw.untell_pause(k.id); END IF;
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'revoke', 'ok', k.id, NULL, NULL, json_build_object('epoch', epoch, 'operator', p_operator AND k.owner <> p_member));
END $$;
-- +goose StatementEnd

-- cut_off advances a task's epoch and keeps its consent: everything minted before is dead, the next fire runs again.
-- +goose StatementBegin
CREATE FUNCTION nw.cut_off(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_task bytea,
  p_shown bigint DEFAULT NULL, OUT verdict text, OUT epoch bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE k tasks; l lanes;
BEGIN
  PERFORM nw.enter();
  SELECT * INTO k FROM tasks WHERE ref = p_task;
  SELECT * INTO l FROM lanes WHERE task_id = k.id FOR NO KEY UPDATE;
  verdict := CASE WHEN k.id IS NULL THEN 'not_found' WHEN l.activation_epoch <> p_shown THEN 'stale' ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('cut_off', verdict, k.id, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  epoch := nw.advance_epoch(k.id);
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'cut_off', 'ok', k.id, NULL, NULL, json_build_object('epoch', epoch));
END $$;
-- +goose StatementEnd

-- withdraw takes a pre-approved key out of a consent: an operator can only remove one (B5). The epoch advances.
-- +goose StatementBegin
CREATE FUNCTION nw.withdraw(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea,
  p_task bytea, p_guard bytea, p_action bytea, p_resource bytea, p_key bytea, OUT verdict text, OUT epoch bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE k tasks; l lanes; y consent_keys;
BEGIN
  PERFORM nw.enter();
  SELECT * INTO k FROM tasks WHERE ref = p_task;
  SELECT * INTO l FROM lanes WHERE task_id = k.id FOR NO KEY UPDATE;
  SELECT x.* INTO y FROM consent_keys x JOIN registry g ON g.id = x.guard_id
   WHERE x.consent_id = l.consent_id AND g.name = p_guard AND x.action = p_action AND x.resource = p_resource AND x.key = p_key AND x.withdrawn_at IS NULL;
  verdict := CASE WHEN y.consent_id IS NULL THEN 'not_found' ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('withdraw', verdict, k.id, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  UPDATE consent_keys SET withdrawn_at = clock_timestamp() WHERE (consent_id, guard_id, action, resource, key) = (y.consent_id, y.guard_id, y.action, y.resource, y.key);
  epoch := nw.advance_epoch(k.id);
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'withdraw', 'ok', k.id, NULL, NULL, json_build_object('epoch', epoch, 'key', nw.hex(p_key)));
END $$;
-- +goose StatementEnd

-- record_finding keeps what the owner found out about an ambiguous effect: a new entry. It changes no state and replays nothing (A10).
-- +goose StatementBegin
CREATE FUNCTION nw.record_finding(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_effect bytea, p_finding text, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE e effects; k tasks;
BEGIN
  SELECT * INTO e FROM effects WHERE ref = p_effect FOR NO KEY UPDATE;
  SELECT * INTO k FROM tasks WHERE id = e.task_id;
  verdict := CASE
    WHEN e.id IS NULL OR k.owner <> p_member THEN 'not_found'
    WHEN p_finding NOT IN ('happened', 'did_not', 'unknown') THEN 'invalid_request'
    WHEN e.state <> 'ambiguous' THEN 'effect_settled'
    ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('finding', verdict, e.task_id, e.run_id, e.id, p_jkt);
    RETURN;
  END IF;
  INSERT INTO findings (effect_id, finding, member) VALUES (e.id, p_finding, p_member);
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'finding', 'ok', e.task_id, e.run_id, e.id, json_build_object('finding', p_finding));
END $$;
-- +goose StatementEnd

-- Reading. Scope lives in the query (B2): each takes the member, and what it may not see is not in the answer.

-- show_offers lists offers that wait for an answer, and the last of those that do not; one only when it is named.
-- +goose StatementBegin
CREATE FUNCTION nw.show_offers(p_member bytea, p_offer bytea) RETURNS TABLE (ref bytea, task bytea, digest bytea, state text, expires_at timestamptz, body bytea, most bytea, variant bytea, variant_body bytea,
  product bytea, back bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE these bigint[]; t timestamptz := clock_timestamp();
BEGIN
  these := CASE WHEN p_offer IS NOT NULL THEN ARRAY(SELECT o.id FROM offers o WHERE o.ref = p_offer AND o.member = p_member)
    ELSE ARRAY(SELECT o.id FROM offers o WHERE o.member = p_member AND o.state = 'open' AND o.expires_at > t ORDER BY o.id DESC LIMIT 100)
      || ARRAY(SELECT o.id FROM offers o WHERE o.member = p_member AND (o.state <> 'open' OR o.expires_at <= t) ORDER BY o.id DESC LIMIT 25) END;
  RETURN QUERY SELECT o.ref, k.ref, o.digest, CASE WHEN o.state = 'open' AND o.expires_at <= t THEN 'expired' ELSE o.state END, o.expires_at, d.body, m.body, o.variant, v.body, g.name, b.body
    FROM offers o JOIN tasks k ON k.id = o.task_id JOIN documents d ON d.digest = o.digest
    LEFT JOIN documents m ON m.digest = o.most LEFT JOIN documents v ON v.digest = o.variant LEFT JOIN registry g ON g.id = o.product_id LEFT JOIN documents b ON b.digest = o.back
   WHERE o.id = ANY (these) ORDER BY o.id DESC;
END $$;
-- +goose StatementEnd

-- task_reference gives the reference of a named task, so that its next revision keeps it.
-- +goose StatementBegin
CREATE FUNCTION nw.task_reference(p_name bytea) RETURNS bytea LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN (SELECT ref FROM tasks WHERE name = p_name);
END $$;
-- +goose StatementEnd

-- entries lists the registry of the registry with their documents: what replicas verify against, and what operators see.
-- A replica's copy is only ever used to refuse early; each verb checks the row again.
-- +goose StatementBegin
CREATE FUNCTION nw.entries() RETURNS TABLE (id bigint, kind text, revision bigint, state text, name bytea, body bytea, profile_id bigint, queue bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT g.id, g.kind, g.revision, g.state, g.name, d.body, c.profile_id, q.queue FROM registry g JOIN documents d ON d.digest = g.document
    LEFT JOIN components c ON c.id = g.id LEFT JOIN role_queues q ON g.kind = 'workload_role' AND q.name = g.name ORDER BY g.id;
END $$;
-- +goose StatementEnd

-- note_refusal audits a refusal that undid its own verb (NW409), and only that.
-- +goose StatementBegin
CREATE FUNCTION nw.note_refusal(p_verb text, p_verdict text, p_jkt bytea) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  IF p_verdict <> 'ok' THEN PERFORM nw.refused(p_verb, p_verdict, NULL, NULL, NULL, p_jkt); END IF;
END $$;
-- +goose StatementEnd

-- count_refusals flushes refusals of callers who have proved nothing: one row a second for a code, whatever the flood (P35).
-- +goose StatementBegin
CREATE FUNCTION nw.count_refusals(p_verdict text, p_count bigint) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  IF p_count > 0 THEN PERFORM nw.note('refusals', p_verdict, NULL, NULL, NULL, json_build_object('count', p_count)); END IF;
END $$;
-- +goose StatementEnd
