-- +goose Up
-- Owner's decisions (A18, P21, P22): a mint above the dial opens one card, the run waits without worker and lease, and its owner decides on that exact
-- effect, once. No standing approval, and nobody else decides.

-- ask_until is how long a card of a run may wait: by the silence rule of the consent, and never so long that what is approved could not be done any more.
-- NULL: there is no time left to ask.
CREATE FUNCTION nw.ask_until(c nw.consents, p_deadline timestamptz, t timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN u > t + interval '10 seconds' THEN u END
    FROM (SELECT least(CASE c.silence WHEN 'stop' THEN t + make_interval(secs => c.window_ms / 1000.0) ELSE p_deadline END, p_deadline - interval '120 seconds') AS u) x $$;

-- bound says whether a decision still stands for what it was given: epoch, policy and requirement are those of now, and its time is not over.
CREATE FUNCTION nw.bound(x nw.decisions, l nw.lanes, c nw.consents, d nw.readiness_decision, t timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT x.activation_epoch = l.activation_epoch AND x.policy_id = c.policy_id AND x.requirement = d.requirement AND x.expires_at > t $$;

-- ask opens a card and lets the run wait. The caller is mint: it holds the gate, lane, run and effect, and has judged.
-- +goose StatementBegin
CREATE FUNCTION nw.ask(r nw.runs, l nw.lanes, c nw.consents, e nw.effects, p_requirement bigint, p_decision bytea, p_arguments bytea, p_until timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE card bigint;
BEGIN
  UPDATE decisions SET state = 'expired', decided_at = clock_timestamp() WHERE effect_id = e.id AND state IN ('pending', 'approved'); -- one that stands for something older
  INSERT INTO decisions (ref, effect_id, task_id, run_id, member, digest, activation_epoch, policy_id, requirement, expires_at)
    VALUES (p_decision, e.id, r.task_id, r.id, c.member, e.digest, l.activation_epoch, c.policy_id, p_requirement, p_until) RETURNING id INTO STRICT card;
  INSERT INTO arguments (effect_id, body) VALUES (e.id, p_arguments) ON CONFLICT DO NOTHING;
  UPDATE runs SET state = 'waiting', holder = NULL, lease_until = NULL WHERE id = r.id AND state = 'claimed' AND inflight = 0 AND fence = r.fence;
  IF NOT FOUND THEN RAISE EXCEPTION 'fence_stale' USING ERRCODE = 'NW409'; END IF;
  PERFORM nw.note('ask', 'ok', r.task_id, r.id, e.id, json_build_object('decision', nw.hex(p_decision), 'effect', nw.hex(e.digest), 'fence', r.fence,
    'activation', l.activation_epoch, 'requirement', p_requirement, 'until', floor(extract(epoch FROM p_until))::bigint));
END $$;
-- +goose StatementEnd

-- resume queues a run that waited: a new claim, a higher fence, the same deadline. Starts keep their distance, so that many answers are no burst.
-- +goose StatementBegin
CREATE FUNCTION nw.resume(p_run bigint) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE start timestamptz;
BEGIN
  UPDATE runs SET state = 'queued' WHERE id = p_run AND state = 'waiting';
  IF NOT FOUND THEN RETURN; END IF;
  UPDATE start_rate SET next_at = greatest(next_at, clock_timestamp()) + interval '100 milliseconds' RETURNING next_at - interval '100 milliseconds' INTO STRICT start;
  INSERT INTO outbox (run_id, run_ref, queue, next_at)
    SELECT r.id, r.ref, q.queue, start FROM runs r JOIN registry g ON g.id = r.role_id JOIN role_queues q ON q.name = g.name WHERE r.id = p_run;
  PERFORM nw.note('requeue', 'ok', r.task_id, r.id, NULL, json_build_object('fence', r.fence)) FROM runs r WHERE r.id = p_run;
END $$;
-- +goose StatementEnd

-- approve is the owner's yes to one exact effect: it carries the effect's digest. It is behind the gate; what it allows is used by the next mint.
-- +goose StatementBegin
CREATE FUNCTION nw.approve(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_decision bytea, p_digest bytea,
  p_asked timestamptz, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; l lanes; r runs; x decisions; c consents; t timestamptz;
BEGIN
  PERFORM nw.enter();
  SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT task_id FROM decisions WHERE ref = p_decision) FOR NO KEY UPDATE;
  SELECT runs.* INTO r FROM runs WHERE id = (SELECT run_id FROM decisions WHERE ref = p_decision) FOR NO KEY UPDATE;
  SELECT decisions.* INTO x FROM decisions WHERE ref = p_decision FOR NO KEY UPDATE;
  d := nw.admitting();
  t := clock_timestamp();
  SELECT consents.* INTO c FROM consents WHERE id = r.consent_id;
  verdict := CASE
    WHEN x.id IS NULL OR x.member <> p_member THEN 'not_found'
    WHEN d.state IS NULL THEN 'admission_closed'
    WHEN x.digest <> p_digest THEN 'decision_changed'
    WHEN x.state <> 'pending' OR NOT nw.bound(x, l, c, d, t) OR l.consent_id IS DISTINCT FROM r.consent_id OR c.state <> 'active' OR c.expires_at <= t THEN 'decision_ended'
    WHEN NOT nw.said(ARRAY[p_member], ARRAY[p_asked], p_member, t) THEN 'ask_directory'
    ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('decide', verdict, x.task_id, x.run_id, x.effect_id, p_jkt);
    RETURN;
  END IF;
  UPDATE decisions SET state = 'approved', decided_at = t WHERE id = x.id AND state = 'pending';
  PERFORM nw.resume(r.id);
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'decide', 'ok', x.task_id, x.run_id, x.effect_id, json_build_object('decision', nw.hex(p_decision), 'answer', 'approved', 'effect', nw.hex(p_digest)));
END $$;
-- +goose StatementEnd

-- deny is the owner's no: always possible. The run goes on without that effect, and never says that it succeeded.
-- +goose StatementBegin
CREATE FUNCTION nw.deny(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_decision bytea, p_digest bytea, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE x decisions; t timestamptz;
BEGIN
  PERFORM nw.enter();
  PERFORM FROM lanes WHERE task_id = (SELECT task_id FROM decisions WHERE ref = p_decision) FOR NO KEY UPDATE;
  PERFORM FROM runs WHERE id = (SELECT run_id FROM decisions WHERE ref = p_decision) FOR NO KEY UPDATE;
  SELECT decisions.* INTO x FROM decisions WHERE ref = p_decision FOR NO KEY UPDATE;
  t := clock_timestamp();
  verdict := CASE
    WHEN x.id IS NULL OR x.member <> p_member THEN 'not_found'
    WHEN x.digest <> p_digest THEN 'decision_changed'
    WHEN x.state <> 'pending' OR x.expires_at <= t THEN 'decision_ended'
    ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('decide', verdict, x.task_id, x.run_id, x.effect_id, p_jkt);
    RETURN;
  END IF;
  UPDATE decisions SET state = 'denied', decided_at = t WHERE id = x.id AND state = 'pending';
  UPDATE runs SET shortfall = coalesce(shortfall, 'approval') WHERE id = x.run_id AND state = 'waiting';
  PERFORM nw.resume(x.run_id);
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'decide', 'ok', x.task_id, x.run_id, x.effect_id, json_build_object('decision', nw.hex(p_decision), 'answer', 'denied', 'effect', nw.hex(p_digest)));
END $$;
-- +goose StatementEnd

-- expire_decisions ends cards that nobody has answered in time, as the owner chose at consent: the run stops, or it has waited until nothing could be
-- done any more. Also while closed.
-- +goose StatementBegin
CREATE FUNCTION nw.expire_decisions(p_limit integer, OUT expired bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE card record; x decisions; rule text;
BEGIN
  expired := 0;
  PERFORM nw.enter();
  FOR card IN SELECT y.id, y.task_id, y.run_id FROM (SELECT * FROM decisions WHERE state = 'pending' AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT p_limit) y
               ORDER BY y.task_id, y.run_id, y.id LOOP
    PERFORM FROM lanes WHERE task_id = card.task_id FOR NO KEY UPDATE;
    PERFORM FROM runs WHERE id = card.run_id FOR NO KEY UPDATE;
    SELECT * INTO x FROM decisions WHERE id = card.id FOR NO KEY UPDATE;
    CONTINUE WHEN x.state <> 'pending' OR x.expires_at > clock_timestamp();
    SELECT c.silence INTO STRICT rule FROM runs r JOIN consents c ON c.id = r.consent_id WHERE r.id = card.run_id;
    UPDATE decisions SET state = 'expired', decided_at = clock_timestamp() WHERE id = x.id AND state = 'pending';
    UPDATE runs SET shortfall = coalesce(shortfall, 'approval') WHERE id = card.run_id AND state = 'waiting';
    PERFORM nw.note('decide', 'ok', x.task_id, x.run_id, x.effect_id, json_build_object('decision', nw.hex(x.ref), 'answer', 'expired', 'silence', rule));
    PERFORM nw.finish_run(card.run_id, CASE rule WHEN 'stop' THEN 'failed' ELSE 'expired' END);
    expired := expired + 1;
  END LOOP;
END $$;
-- +goose StatementEnd
