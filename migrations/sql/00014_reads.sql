-- +goose Up
-- Reading. Scope lives in the query (B2): each takes the member, and what it may not see is not in the answer, whether it exists or not. p_all is for
-- operators and auditors. Lists are pages by key, newest first: p_before is the position of the last one shown, and nothing counts over all rows.
-- Which rows are on a page is decided first, by an index; only those are looked at more closely.
SET LOCAL ROLE nw_owner;

CREATE INDEX tasks_client ON nw.tasks (client_id, id);
CREATE INDEX consents_task ON nw.consents (task_id, id);
CREATE INDEX consents_active ON nw.consents (member, id) WHERE state = 'active';
CREATE INDEX consents_ended ON nw.consents (member, id) WHERE state <> 'active';
CREATE INDEX offers_member_open ON nw.offers (member, id) WHERE state = 'open';
CREATE INDEX decisions_pending ON nw.decisions (member, id) WHERE state = 'pending';

-- When a consent ended is written down by whatever ends it.
ALTER TABLE nw.consents ADD COLUMN ended_at timestamptz, ADD CHECK ((state = 'active') = (ended_at IS NULL));
SELECT nw.classify('consents', 'ended_at time');
-- +goose StatementBegin
CREATE FUNCTION nw.end_time() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  NEW.ended_at := clock_timestamp();
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER consents_ended BEFORE UPDATE ON nw.consents FOR EACH ROW WHEN (OLD.state = 'active' AND NEW.state <> 'active') EXECUTE FUNCTION nw.end_time();

-- Each advance of the epoch of a task that could act, with the last effect that was admitted before. It is written under the lane's lock, which every admission takes too: after
-- it nothing is admitted under an older epoch.
CREATE TABLE nw.epochs (
  task_id          bigint NOT NULL REFERENCES nw.tasks,
  epoch            bigint NOT NULL CHECK (epoch > 1),
  asked_at         timestamptz NOT NULL, -- the database got the request
  advanced_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  last_admitted_at timestamptz,
  PRIMARY KEY (task_id, epoch));
SELECT nw.classify('epochs', 'task_id number, epoch number, asked_at time, advanced_at time, last_admitted_at time');
CREATE INDEX epochs_recent ON nw.epochs (advanced_at);
CREATE TRIGGER epochs_fixed BEFORE UPDATE ON nw.epochs FOR EACH ROW EXECUTE FUNCTION nw.refuse_change('rows are only inserted');
CREATE TRIGGER epochs_kept BEFORE DELETE ON nw.epochs FOR EACH ROW EXECUTE FUNCTION nw.refuse_change('rows are never deleted');
CREATE TRIGGER epochs_whole BEFORE TRUNCATE ON nw.epochs FOR EACH STATEMENT EXECUTE FUNCTION nw.refuse_change('rows are never deleted');
-- +goose StatementBegin
CREATE FUNCTION nw.advanced() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  INSERT INTO epochs (task_id, epoch, asked_at, last_admitted_at) VALUES (NEW.task_id, NEW.activation_epoch, transaction_timestamp(),
    (SELECT max(e.admitted_at) FROM effects e WHERE e.run_id = (SELECT max(r.id) FROM runs r WHERE r.task_id = NEW.task_id)));
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER lanes_advanced AFTER UPDATE OF activation_epoch ON nw.lanes FOR EACH ROW WHEN (NEW.activation_epoch > OLD.activation_epoch AND OLD.consent_id IS NOT NULL)
  EXECUTE FUNCTION nw.advanced();

-- The ambiguous effects of a member's tasks, so that they are found without asking each task. A task that changes hands takes them along.
CREATE TABLE nw.ambiguities (
  effect_id bigint PRIMARY KEY REFERENCES nw.effects,
  owner     bytea NOT NULL CHECK (octet_length(owner) = 32));
CREATE INDEX ambiguities_owner ON nw.ambiguities (owner, effect_id);
SELECT nw.classify('ambiguities', 'effect_id number, owner reference');
-- +goose StatementBegin
CREATE FUNCTION nw.is_ambiguous() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  INSERT INTO ambiguities (effect_id, owner) SELECT NEW.id, k.owner FROM tasks k WHERE k.id = NEW.task_id;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER effects_ambiguous AFTER UPDATE OF state ON nw.effects FOR EACH ROW WHEN (OLD.state <> 'ambiguous' AND NEW.state = 'ambiguous') EXECUTE FUNCTION nw.is_ambiguous();
-- +goose StatementBegin
CREATE FUNCTION nw.changed_hands() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  UPDATE ambiguities SET owner = NEW.owner WHERE effect_id IN (SELECT e.id FROM effects e WHERE e.task_id = NEW.id AND e.state = 'ambiguous');
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tasks_changed_hands AFTER UPDATE OF owner ON nw.tasks FOR EACH ROW WHEN (NEW.owner <> OLD.owner) EXECUTE FUNCTION nw.changed_hands();

-- What is rare in the audit log is found at once, and costs nothing where runs are admitted.
CREATE INDEX audit_rare ON nw.audit (verb, id) WHERE verb NOT IN ('plan', 'publish', 'claim', 'renew', 'mint', 'admit', 'settle_effect', 'settle_run', 'end_run');
CREATE INDEX audit_refused ON nw.audit (verdict, id) WHERE verdict <> 'ok';

-- Members -----------------------------------------------------------------------------------------------------------

-- show_tasks lists tasks; one only when it is named.
-- +goose StatementBegin
CREATE FUNCTION nw.show_tasks(p_member bytea, p_all boolean, p_task bytea, p_before bigint, p_limit integer)
RETURNS TABLE (id bigint, ref bytea, revision bigint, epoch bigint, consent bytea, consent_until timestamptz, next_at timestamptz, body bytea, offer bytea,
  run bytea, run_state text, run_nominal_at timestamptz, run_ended_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE these bigint[];
BEGIN
  these := CASE
    WHEN p_task IS NOT NULL THEN ARRAY(SELECT k.id FROM tasks k WHERE k.ref = p_task AND (k.owner = p_member OR p_all))
    WHEN p_all THEN (ARRAY(SELECT k.id FROM tasks k WHERE k.id < p_before ORDER BY k.id DESC LIMIT 100))[:p_limit]
    ELSE (ARRAY(SELECT k.id FROM tasks k WHERE k.owner = p_member AND k.id < p_before ORDER BY k.id DESC LIMIT 100))[:p_limit] END;
  RETURN QUERY SELECT k.id, k.ref, l.task_revision, l.activation_epoch, c.ref, c.expires_at, s.next_at, d.body, o.ref, r.ref, r.state, r.nominal_at, r.ended_at
    FROM tasks k JOIN lanes l ON l.task_id = k.id JOIN task_revisions v ON v.task_id = k.id AND v.revision = l.task_revision JOIN documents d ON d.digest = v.document
    LEFT JOIN schedules s ON s.task_id = k.id LEFT JOIN consents c ON c.id = l.consent_id
    LEFT JOIN offers o ON o.task_id = k.id AND o.state = 'open' AND o.expires_at > clock_timestamp()
    LEFT JOIN LATERAL (SELECT * FROM runs x WHERE x.task_id = k.id AND (x.member = p_member OR p_all) ORDER BY x.id DESC LIMIT 1) r ON true
   WHERE k.id = ANY (these) ORDER BY k.id DESC;
END $$;
-- +goose StatementEnd

-- owner_of is the member whom a task's document names.
CREATE FUNCTION nw.owner_of(p_body bytea) RETURNS bytea LANGUAGE sql IMMUTABLE SET search_path = nw, pg_temp AS $$
  SELECT sha256(convert_to('nightwarrant/member/v1', 'UTF8') || '\x00' || convert_to(o->>'issuer', 'UTF8') || '\x00' || convert_to(o->>'subject', 'UTF8'))
    FROM (SELECT convert_from(p_body, 'UTF8')::json->'owner' AS o) x $$;

-- show_revisions lists a task's documents; to its owner those that are about them, and not an earlier owner's.
-- +goose StatementBegin
CREATE FUNCTION nw.show_revisions(p_member bytea, p_all boolean, p_task bytea, p_before bigint, p_limit integer) RETURNS TABLE (revision bigint, entered_at timestamptz, body bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT v.revision, d.created_at, d.body FROM tasks k JOIN task_revisions v ON v.task_id = k.id JOIN documents d ON d.digest = v.document
   WHERE k.ref = p_task AND (p_all OR (k.owner = p_member AND nw.owner_of(d.body) = p_member)) AND v.revision < p_before ORDER BY v.revision DESC LIMIT least(p_limit, 100);
END $$;
-- +goose StatementEnd

-- show_consents lists what can act as a member, or what could within the last two years (p_ended); of one task, or one only, when it is named.
-- +goose StatementBegin
CREATE FUNCTION nw.show_consents(p_member bytea, p_all boolean, p_task bytea, p_consent bytea, p_ended boolean, p_before bigint, p_limit integer)
RETURNS TABLE (id bigint, ref bytea, task bytea, revision bigint, digest bytea, state text, given_at timestamptz, not_before timestamptz, expires_at timestamptz, ended_at timestamptz, body bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE these bigint[]; since timestamptz := clock_timestamp() - interval '2 years';
BEGIN
  these := CASE
    WHEN p_consent IS NOT NULL THEN ARRAY(SELECT c.id FROM consents c WHERE c.ref = p_consent AND (c.member = p_member OR p_all))
    WHEN p_task IS NOT NULL THEN (ARRAY(SELECT c.id FROM tasks k JOIN consents c ON c.task_id = k.id WHERE k.ref = p_task AND (c.member = p_member OR p_all) AND c.id < p_before
                                        ORDER BY c.id DESC LIMIT 100))[:p_limit]
    WHEN p_ended THEN (ARRAY(SELECT c.id FROM consents c WHERE c.member = p_member AND c.state <> 'active' AND c.ended_at > since AND c.id < p_before ORDER BY c.id DESC LIMIT 100))[:p_limit]
    ELSE (ARRAY(SELECT c.id FROM consents c WHERE c.member = p_member AND c.state = 'active' AND c.id < p_before ORDER BY c.id DESC LIMIT 100))[:p_limit] END;
  RETURN QUERY SELECT c.id, c.ref, k.ref, c.task_revision, c.digest, CASE WHEN c.state = 'active' AND c.expires_at <= clock_timestamp() THEN 'expired' ELSE c.state END,
      c.given_at, c.not_before, c.expires_at, c.ended_at, d.body
    FROM consents c JOIN tasks k ON k.id = c.task_id JOIN documents d ON d.digest = c.digest WHERE c.id = ANY (these) ORDER BY c.id DESC;
END $$;
-- +goose StatementEnd

-- show_runs lists runs that acted as a member; of one task, or one only, when it is named. Of a run's effects a thousand are counted.
-- +goose StatementBegin
CREATE FUNCTION nw.show_runs(p_member bytea, p_all boolean, p_task bytea, p_run bytea, p_before bigint, p_limit integer)
RETURNS TABLE (id bigint, ref bytea, task bytea, nominal_at timestamptz, state text, fence bigint, ended_at timestamptz, committed bigint, not_applied bigint, ambiguous bigint,
  steps bigint, spent bigint, currency text, more boolean, deadline timestamptz, shortfall text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE these bigint[];
BEGIN
  these := CASE
    WHEN p_run IS NOT NULL THEN ARRAY(SELECT r.id FROM runs r WHERE r.ref = p_run AND (r.member = p_member OR p_all))
    WHEN p_task IS NOT NULL AND p_all THEN (ARRAY(SELECT r.id FROM runs r WHERE r.task_id = (SELECT k.id FROM tasks k WHERE k.ref = p_task) AND r.id < p_before ORDER BY r.id DESC LIMIT 100))[:p_limit]
    WHEN p_task IS NOT NULL THEN (ARRAY(SELECT r.id FROM runs r WHERE r.task_id = (SELECT k.id FROM tasks k WHERE k.ref = p_task) AND r.member = p_member AND r.id < p_before
                                        ORDER BY r.id DESC LIMIT 100))[:p_limit]
    ELSE (ARRAY(SELECT r.id FROM runs r WHERE r.member = p_member AND r.id < p_before ORDER BY r.id DESC LIMIT 100))[:p_limit] END;
  RETURN QUERY SELECT r.id, r.ref, k.ref, r.nominal_at, r.state, r.fence, r.ended_at, n.committed, n.not_applied, n.ambiguous, r.steps::bigint, n.spent,
      CASE WHEN c.max_spend > 0 THEN nw.currency_of(d.body) END, n.seen > 1000, r.deadline, r.shortfall
    FROM runs r JOIN tasks k ON k.id = r.task_id JOIN consents c ON c.id = r.consent_id JOIN documents d ON d.digest = c.digest,
    LATERAL (SELECT count(*) FILTER (WHERE e.state = 'committed') AS committed, count(*) FILTER (WHERE e.state = 'not_applied') AS not_applied,
                    count(*) FILTER (WHERE e.state = 'ambiguous') AS ambiguous, coalesce(sum(e.spent), 0)::bigint AS spent, count(*) AS seen
               FROM (SELECT x.state, x.spent FROM effects x WHERE x.run_id = r.id LIMIT 1001) e) n
   WHERE r.id = ANY (these) ORDER BY r.id DESC;
END $$;
-- +goose StatementEnd

-- show_coalesced lists the later times for which a run stands too.
-- +goose StatementBegin
CREATE FUNCTION nw.show_coalesced(p_member bytea, p_all boolean, p_run bytea) RETURNS TABLE (nominal_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT s.nominal_at FROM runs r JOIN slots s ON s.task_id = r.task_id AND s.run_id = r.id AND s.outcome = 'coalesced' AND s.nominal_at > r.nominal_at
     AND s.nominal_at <= coalesce(r.ended_at, 'infinity') WHERE r.ref = p_run AND (r.member = p_member OR p_all) ORDER BY s.nominal_at LIMIT 100;
END $$;
-- +goose StatementEnd

-- show_timeline is what the audit log has of a run, oldest first, with the effect and the card of each row. Renewals that went well are left out.
-- +goose StatementBegin
CREATE FUNCTION nw.show_timeline(p_member bytea, p_all boolean, p_run bytea, p_after bigint, p_limit integer)
RETURNS TABLE (id bigint, at timestamptz, verb text, verdict text, body bytea, digest bytea, effect bytea, key bytea, guard bytea, action bytea, resource bytea, amount bigint, spent bigint,
  currency text, consent_body bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE r runs;
BEGIN
  SELECT runs.* INTO r FROM runs WHERE ref = p_run AND (member = p_member OR p_all);
  RETURN QUERY SELECT a.id, a.at, a.verb::text, a.verdict::text, a.body, a.digest, e.ref, e.key, g.name, e.action, e.resource, e.amount, e.spent,
      CASE WHEN c.max_spend > 0 THEN nw.currency_of(d.body) END, d.body
    FROM (SELECT * FROM audit x WHERE x.run_id = r.id AND x.id > p_after AND (x.verb <> 'renew' OR x.verdict <> 'ok') ORDER BY x.id LIMIT least(p_limit, 100)) a
    JOIN consents c ON c.id = r.consent_id JOIN documents d ON d.digest = c.digest
    LEFT JOIN effects e ON e.id = a.effect_id LEFT JOIN registry g ON g.id = e.guard_id ORDER BY a.id;
END $$;
-- +goose StatementEnd

-- show_ambiguous lists a member's ambiguous effects with what is known of each.
-- +goose StatementBegin
CREATE FUNCTION nw.show_ambiguous(p_member bytea, p_before bigint, p_limit integer)
RETURNS TABLE (id bigint, effect bytea, run bytea, task bytea, guard_body bytea, action bytea, resource bytea, admitted_at timestamptz, finding text, late text, consent_body bytea,
  sent_at timestamptz, answered text, status smallint, arguments bytea, state bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT e.id, e.ref, r.ref, k.ref, gd.body, e.action, e.resource, e.admitted_at,
      (SELECT f.finding FROM findings f WHERE f.effect_id = e.id ORDER BY f.id DESC LIMIT 1), (SELECT x.outcome FROM late_evidence x WHERE x.effect_id = e.id), cd.body,
      v.sent_at, v.answered, v.status, a.body, b.body
    FROM (SELECT x.effect_id FROM ambiguities x WHERE x.owner = p_member AND x.effect_id < p_before ORDER BY x.effect_id DESC LIMIT least(p_limit, 100)) y JOIN effects e ON e.id = y.effect_id
    JOIN tasks k ON k.id = e.task_id JOIN runs r ON r.id = e.run_id JOIN registry g ON g.id = e.guard_id
    JOIN documents gd ON gd.digest = g.document JOIN consents c ON c.id = r.consent_id JOIN documents cd ON cd.digest = c.digest
    LEFT JOIN evidence v ON v.effect_id = e.id LEFT JOIN arguments a ON a.effect_id = e.id AND a.written = 'by_workload'
    LEFT JOIN arguments b ON b.effect_id = e.id AND b.written = 'by_destination'
   ORDER BY e.id DESC;
END $$;
-- +goose StatementEnd

-- show_decisions lists a member's cards with the exact arguments: those that wait for an answer, or the others; one only when it is named.
-- +goose StatementBegin
CREATE FUNCTION nw.show_decisions(p_member bytea, p_decision bytea, p_pending boolean, p_before bigint, p_limit integer) RETURNS TABLE (id bigint, ref bytea, task bytea, run bytea, digest bytea, state text,
  asked_at timestamptz, expires_at timestamptz, decided_at timestamptz, silence text, risk smallint, body bytea, task_body bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE these bigint[];
BEGIN
  these := CASE
    WHEN p_decision IS NOT NULL THEN ARRAY(SELECT x.id FROM decisions x WHERE x.ref = p_decision AND x.member = p_member)
    WHEN p_pending THEN (ARRAY(SELECT x.id FROM decisions x WHERE x.member = p_member AND x.state = 'pending' AND x.id < p_before ORDER BY x.id DESC LIMIT 100))[:p_limit]
    ELSE (ARRAY(SELECT x.id FROM decisions x WHERE x.member = p_member AND x.state <> 'pending' AND x.id < p_before ORDER BY x.id DESC LIMIT 100))[:p_limit] END;
  RETURN QUERY SELECT x.id, x.ref, k.ref, r.ref, x.digest, CASE WHEN x.state = 'pending' AND x.expires_at <= clock_timestamp() THEN 'expired' ELSE x.state END, x.asked_at, x.expires_at,
      x.decided_at, c.silence, e.risk, a.body, td.body
    FROM decisions x JOIN arguments a ON a.effect_id = x.effect_id AND a.written = 'by_workload' JOIN effects e ON e.id = x.effect_id JOIN runs r ON r.id = x.run_id JOIN consents c ON c.id = r.consent_id
    JOIN tasks k ON k.id = x.task_id JOIN task_revisions v ON v.task_id = c.task_id AND v.revision = c.task_revision JOIN documents td ON td.digest = v.document
   WHERE x.id = ANY (these) ORDER BY x.id DESC;
END $$;
-- +goose StatementEnd

-- show_epoch is the last advance of a task's epoch.
-- +goose StatementBegin
CREATE FUNCTION nw.show_epoch(p_member bytea, p_all boolean, p_task bytea) RETURNS TABLE (epoch bigint, asked_at timestamptz, advanced_at timestamptz, last_admitted_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT x.epoch, x.asked_at, x.advanced_at, x.last_admitted_at FROM tasks k JOIN epochs x ON x.task_id = k.id
   WHERE k.ref = p_task AND (k.owner = p_member OR p_all) ORDER BY x.epoch DESC LIMIT 1;
END $$;
-- +goose StatementEnd

-- revocation_scope is what a revocation of a task's consent would end.
-- +goose StatementBegin
CREATE FUNCTION nw.revocation_scope(p_member bytea, p_all boolean, p_task bytea, OUT known boolean, OUT epoch bigint, OUT consent bytea, OUT next_at timestamptz, OUT run bytea, OUT run_state text,
  OUT run_nominal_at timestamptz, OUT in_flight bigint, OUT minted bigint, OUT cards bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE r runs; task bigint;
BEGIN
  SELECT k.id, l.activation_epoch, c.ref, s.next_at INTO task, epoch, consent, next_at
    FROM tasks k JOIN lanes l ON l.task_id = k.id LEFT JOIN consents c ON c.id = l.consent_id LEFT JOIN schedules s ON s.task_id = k.id WHERE k.ref = p_task AND (k.owner = p_member OR p_all);
  known := task IS NOT NULL;
  SELECT runs.* INTO r FROM runs WHERE task_id = task AND live;
  run := r.ref; run_state := r.state; run_nominal_at := r.nominal_at; in_flight := coalesce(r.inflight, 0);
  SELECT count(*) INTO minted FROM (SELECT FROM effects e WHERE e.run_id = r.id AND e.state = 'minted' LIMIT 1000) x;
  SELECT count(*) INTO cards FROM decisions d WHERE d.run_id = r.id AND d.state = 'pending';
END $$;
-- +goose StatementEnd

-- why_not says every reason why a task would not run if it fired now. It asks what plan, claim and mint ask, of the same rows.
-- +goose StatementBegin
CREATE FUNCTION nw.why_not(k nw.tasks, OUT at timestamptz, OUT next_at timestamptz, OUT reasons text[], OUT ceiling text)
LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
DECLARE l lanes; c consents; r runs; d readiness_decision;
BEGIN
  SELECT * INTO l FROM lanes WHERE task_id = k.id;
  SELECT * INTO c FROM consents WHERE id = l.consent_id;
  SELECT s.next_at INTO next_at FROM schedules s WHERE s.task_id = k.id;
  d := nw.admitting();
  at := clock_timestamp();
  -- The run that plan would make.
  r.task_id := k.id; r.consent_id := c.id; r.role_id := c.role_id; r.effects_left := c.max_effects; r.steps_left := c.max_steps; r.spend_left := c.max_spend;
  ceiling := CASE WHEN c.id IS NOT NULL THEN nw.ceiling(r, c, k.ref, true, least(c.max_spend, 1), at) END;
  reasons := array_remove(ARRAY[
    CASE WHEN d.state IS NULL THEN 'admission_closed' END,
    CASE WHEN c.id IS NULL THEN 'no_consent' WHEN c.state <> 'active' OR c.expires_at <= at THEN 'consent_ended' WHEN c.not_before > at THEN 'not_yet' END,
    CASE WHEN c.id IS NOT NULL AND next_at IS NULL THEN 'never_again' END,
    CASE WHEN EXISTS (SELECT FROM registry g WHERE g.id IN (c.client_id, c.role_id, c.policy_id) AND g.state <> 'active')
      OR (c.id IS NOT NULL AND NOT EXISTS (SELECT FROM role_profiles p JOIN registry a ON a.id = p.profile_id WHERE p.role_id = c.role_id AND a.state = 'active')) THEN 'retired' END,
    CASE WHEN EXISTS (SELECT FROM runs x WHERE x.task_id = k.id AND x.live) THEN 'lane_busy' END,
    CASE WHEN l.uncertain_until > at AND NOT EXISTS (SELECT FROM findings f WHERE f.effect_id = l.uncertain_effect) THEN 'lane_uncertain' END,
    CASE WHEN ceiling IS NOT NULL THEN 'limit_reached' END], NULL);
END $$;
-- +goose StatementEnd

-- would_run is why_not for whoever may see the task, and whom the directory is to be asked about.
-- +goose StatementBegin
CREATE FUNCTION nw.would_run(p_member bytea, p_all boolean, p_task bytea, OUT known boolean, OUT at timestamptz, OUT next_at timestamptz, OUT reasons text[], OUT ceiling text, OUT about text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE k tasks;
BEGIN
  SELECT * INTO k FROM tasks WHERE ref = p_task AND (owner = p_member OR p_all);
  known := k.id IS NOT NULL;
  about := nw.known_as(k.id, (SELECT l.task_revision FROM lanes l WHERE l.task_id = k.id));
  SELECT w.at, w.next_at, w.reasons, w.ceiling INTO at, next_at, reasons, ceiling FROM nw.why_not(k) w;
END $$;
-- +goose StatementEnd

-- Operators and auditors --------------------------------------------------------------------------------------------

-- show_entries lists the newest revision of each registered thing of a kind, or all revisions of a named one.
-- +goose StatementBegin
CREATE FUNCTION nw.show_entries(p_kind text, p_name bytea, p_before bigint, p_limit integer)
RETURNS TABLE (id bigint, kind text, revision bigint, state text, entered_at timestamptz, digest bytea, body bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT g.id, g.kind, g.revision, g.state, d.created_at, d.digest, d.body FROM registry g JOIN documents d ON d.digest = g.document
   WHERE g.kind = p_kind AND g.id < p_before AND CASE WHEN p_name IS NOT NULL THEN g.name = p_name
     ELSE NOT EXISTS (SELECT FROM registry n WHERE n.kind = g.kind AND n.name = g.name AND n.revision > g.revision) END
   ORDER BY g.id DESC LIMIT least(p_limit, 100);
END $$;
-- +goose StatementEnd

-- show_requirements lists the generations of what must be good.
-- +goose StatementBegin
CREATE FUNCTION nw.show_requirements(p_before bigint, p_limit integer)
RETURNS TABLE (generation bigint, since timestamptz, in_force boolean, closed_ms bigint, report_ttl_ms bigint, rounds bigint, valid_ms bigint, body bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT q.generation, q.since, q.generation = r.requirement, q.closed_ms::bigint, q.report_ttl_ms::bigint, q.rounds::bigint, q.valid_ms::bigint, d.body
    FROM readiness_requirements q CROSS JOIN readiness_decision r LEFT JOIN documents d ON d.digest = q.document
   WHERE q.generation < p_before ORDER BY q.generation DESC LIMIT least(p_limit, 100);
END $$;
-- +goose StatementEnd

-- show_gate is the decision as it stands.
-- +goose StatementBegin
CREATE FUNCTION nw.show_gate(OUT open boolean, OUT held boolean, OUT epoch bigint, OUT incarnation bigint, OUT requirement bigint, OUT since timestamptz, OUT reason text, OUT family text, OUT at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  at := clock_timestamp();
  SELECT d.state = 'open' AND d.valid_until > at, d.held, d.epoch, d.incarnation, d.requirement, d.since, d.reason::text, d.family::text
    INTO STRICT open, held, epoch, incarnation, requirement, since, reason, family FROM readiness_decision d;
END $$;
-- +goose StatementEnd

-- audit_position is the first row of the audit log that may be of an instant or later. Rows stand in the order of their times, but for what commits late.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_position(p_at timestamptz, OUT place bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE high bigint; middle bigint; seen timestamptz;
BEGIN
  SELECT coalesce(min(id), 1), coalesce(max(id), 0) + 1 INTO place, high FROM audit;
  WHILE place < high LOOP
    middle := (place + high) / 2;
    SELECT a.at INTO seen FROM audit a WHERE a.id >= middle ORDER BY a.id LIMIT 1;
    IF seen < p_at - interval '5 seconds' THEN place := middle + 1; ELSE high := middle; END IF;
  END LOOP;
END $$;
-- +goose StatementEnd

-- show_audit searches rows [p_low, p_high) of the audit log, newest first, or oldest first for an export. What is NULL does not narrow. A member's rows are
-- those that name the member, as long as that is disclosed, and those of the member's tasks.
-- +goose StatementBegin
CREATE FUNCTION nw.show_audit(p_low bigint, p_high bigint, p_since timestamptz, p_until timestamptz, p_verb text, p_verdict text, p_task bytea, p_run bytea, p_member bytea, p_rising boolean, p_limit integer)
RETURNS TABLE (id bigint, at timestamptz, verb text, verdict text, task bytea, run bytea, effect bytea, digest bytea, body bytea, member bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE these bigint[]; the_task bigint; the_run bigint; f text;
BEGIN
  SELECT k.id INTO the_task FROM tasks k WHERE k.ref = p_task;
  SELECT r.id INTO the_run FROM runs r WHERE r.ref = p_run;
  IF (p_task IS NOT NULL AND the_task IS NULL) OR (p_run IS NOT NULL AND the_run IS NULL) THEN RETURN; END IF;
  f := 'SELECT ARRAY(SELECT a.id FROM nw.audit a WHERE a.id >= $1 AND a.id < $2'
    || CASE WHEN p_since IS NOT NULL THEN ' AND a.at >= $3' ELSE '' END || CASE WHEN p_until IS NOT NULL THEN ' AND a.at < $4' ELSE '' END
    || CASE WHEN p_verb IS NOT NULL THEN ' AND a.verb = $5' ELSE '' END || CASE WHEN p_verdict IS NOT NULL THEN ' AND a.verdict = $6' ELSE '' END
    || CASE WHEN p_task IS NOT NULL THEN ' AND a.task_id = $7' ELSE '' END || CASE WHEN p_run IS NOT NULL THEN ' AND a.run_id = $8' ELSE '' END
    || CASE WHEN p_member IS NOT NULL THEN ' AND (EXISTS (SELECT FROM nw.tasks k WHERE k.id = a.task_id AND k.owner = $9) OR a.id IN (SELECT x.audit_id FROM nw.audit_disclosures x WHERE x.value = $9))' ELSE '' END
    || CASE WHEN p_rising THEN ' ORDER BY a.id LIMIT $10)' ELSE ' ORDER BY a.id DESC LIMIT $10)' END;
  EXECUTE f INTO these USING p_low, p_high, p_since, p_until, p_verb, p_verdict, the_task, the_run, p_member, p_limit;
  RETURN QUERY SELECT a.id, a.at, a.verb::text, a.verdict::text, k.ref, r.ref, e.ref, a.digest, a.body, y.value
    FROM audit a LEFT JOIN audit_disclosures y ON y.audit_id = a.id AND y.field = 'member' LEFT JOIN tasks k ON k.id = a.task_id LEFT JOIN runs r ON r.id = a.run_id LEFT JOIN effects e ON e.id = a.effect_id
   WHERE a.id = ANY (these) ORDER BY CASE WHEN p_rising THEN a.id ELSE -a.id END;
END $$;
-- +goose StatementEnd

-- cut_off_scope says whom a cut-off of a client, or of everything, concerns. No number is above the bound.
-- +goose StatementBegin
CREATE FUNCTION nw.cut_off_scope(p_client bytea, p_bound integer, OUT tasks bigint, OUT runs bigint, OUT in_flight bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  SELECT count(*) INTO tasks FROM (SELECT FROM nw.tasks k WHERE p_client IS NULL OR k.client_id IN (SELECT g.id FROM registry g WHERE g.kind = 'client' AND g.name = p_client) LIMIT p_bound) x;
  SELECT count(*), coalesce(sum(x.inflight), 0) INTO runs, in_flight FROM (SELECT r.inflight FROM nw.runs r JOIN nw.tasks k ON k.id = r.task_id
    WHERE r.live AND (p_client IS NULL OR k.client_id IN (SELECT g.id FROM registry g WHERE g.kind = 'client' AND g.name = p_client)) LIMIT p_bound) x;
END $$;
-- +goose StatementEnd

-- cut_off_many advances the epochs of a client's tasks, or of all when p_client is NULL, and keeps their consents: at most p_limit of them after p_after, in
-- one order, so that each step is short. The caller goes on until there is none left; a step that is not followed by the next one has cut off what it says.
-- +goose StatementBegin
CREATE FUNCTION nw.cut_off_many(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_client bytea, p_after bigint, p_limit integer,
  OUT verdict text, OUT last bigint, OUT advanced bigint, OUT ended bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE these bigint[]; clients bigint[]; t bigint;
BEGIN
  PERFORM nw.enter();
  clients := ARRAY(SELECT g.id FROM registry g WHERE g.kind = 'client' AND g.name = p_client);
  these := CASE WHEN p_client IS NULL THEN ARRAY(SELECT k.id FROM tasks k WHERE k.id > p_after ORDER BY k.id LIMIT p_limit)
    ELSE ARRAY(SELECT k.id FROM tasks k WHERE k.client_id = ANY (clients) AND k.id > p_after ORDER BY k.id LIMIT p_limit) END;
  PERFORM FROM lanes WHERE task_id = ANY (these) ORDER BY task_id FOR NO KEY UPDATE;
  verdict := CASE WHEN p_client IS NOT NULL AND clients = '{}' THEN 'not_found' ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('cut_off', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  SELECT count(*) INTO ended FROM runs r WHERE r.task_id = ANY (these) AND r.live;
  FOREACH t IN ARRAY these LOOP PERFORM nw.advance_epoch(t); END LOOP;
  advanced := cardinality(these);
  last := these[advanced];
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'cut_off', 'ok', NULL, NULL, NULL, json_build_object('client', nw.hex(p_client), 'tasks', advanced, 'runs', ended, 'from', p_after, 'to', last));
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nw.show_tasks, nw.show_revisions, nw.show_consents, nw.show_runs, nw.show_coalesced, nw.show_timeline, nw.show_ambiguous, nw.show_decisions, nw.show_epoch,
  nw.revocation_scope, nw.would_run, nw.show_entries, nw.show_requirements, nw.show_gate, nw.board, nw.audit_position, nw.show_audit, nw.cut_off_scope, nw.cut_off_many TO nw_authority;
RESET ROLE;
