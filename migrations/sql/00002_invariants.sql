-- +goose Up
-- The invariants once more, as triggers (P5): whoever forgets one in a verb, or writes by hand, is stopped here.
-- Conditions stand in WHEN, so that an update which keeps the rules costs little. PostgreSQL reads a condition anew in each statement, so a long one that is
-- about a few columns is asked only by statements that name one of them; no trigger changes a column.

-- +goose StatementBegin
CREATE FUNCTION nw.refuse_change() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'nightwarrant: % on %: %', TG_OP, TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'NW001';
END $$;
-- +goose StatementEnd

-- Fences and epochs only rise.
CREATE TRIGGER lanes_rise BEFORE UPDATE ON nw.lanes FOR EACH ROW
  WHEN (NEW.fence < OLD.fence OR NEW.activation_epoch < OLD.activation_epoch OR NEW.task_revision < OLD.task_revision OR NEW.task_id <> OLD.task_id)
  EXECUTE FUNCTION nw.refuse_change('fences, epochs and revisions only rise');
CREATE TRIGGER lanes_new BEFORE INSERT ON nw.lanes FOR EACH ROW
  WHEN (NEW.fence <> 0 OR NEW.activation_epoch <> 1) EXECUTE FUNCTION nw.refuse_change('a lane begins at fence 0, epoch 1');
CREATE TRIGGER decision_rises BEFORE UPDATE ON nw.readiness_decision FOR EACH ROW
  WHEN (NEW.epoch < OLD.epoch OR NEW.sequence < OLD.sequence OR NEW.incarnation < OLD.incarnation OR NEW.requirement < OLD.requirement
        OR (NEW.state <> OLD.state AND NEW.epoch <= OLD.epoch) OR (NEW.incarnation > OLD.incarnation AND NEW.state = 'open'))
  EXECUTE FUNCTION nw.refuse_change('epochs only rise, with every close and every open; a new incarnation is closed');
CREATE TRIGGER instances_rise BEFORE UPDATE ON nw.instances FOR EACH ROW
  WHEN (NEW.boot < OLD.boot) EXECUTE FUNCTION nw.refuse_change('boots only rise');
CREATE TRIGGER reports_rise BEFORE UPDATE ON nw.readiness_reports FOR EACH ROW
  WHEN (NEW.boot < OLD.boot OR (NEW.boot = OLD.boot AND NEW.sequence <= OLD.sequence))
  EXECUTE FUNCTION nw.refuse_change('(boot, sequence) strictly rises');
CREATE TRIGGER floors_rise BEFORE UPDATE ON nw.ring_floors FOR EACH ROW
  WHEN (NEW.floor < OLD.floor OR NEW.after < OLD.after) EXECUTE FUNCTION nw.refuse_change('a floor only rises');

-- Runs: born queued with fence 0; the deadline never moves; the fence never falls; a terminal state never changes.
CREATE TRIGGER runs_new BEFORE INSERT ON nw.runs FOR EACH ROW
  WHEN (NEW.state <> 'queued' OR NEW.fence <> 0 OR NEW.inflight <> 0) EXECUTE FUNCTION nw.refuse_change('a run begins queued');
CREATE TRIGGER runs_fixed BEFORE UPDATE OF deadline, ref, task_id, consent_id, member, role_id, nominal_at, activation_epoch ON nw.runs FOR EACH ROW
  WHEN (NEW.deadline <> OLD.deadline OR NEW.ref <> OLD.ref OR NEW.task_id <> OLD.task_id OR NEW.consent_id <> OLD.consent_id
        OR NEW.member <> OLD.member OR NEW.role_id <> OLD.role_id OR NEW.nominal_at <> OLD.nominal_at OR NEW.activation_epoch <> OLD.activation_epoch)
  EXECUTE FUNCTION nw.refuse_change('what was admitted never changes');
CREATE TRIGGER runs_rise BEFORE UPDATE OF fence, readiness_epoch, effects_left, steps_left, steps ON nw.runs FOR EACH ROW
  WHEN (NEW.fence < OLD.fence OR NEW.readiness_epoch < OLD.readiness_epoch OR NEW.effects_left > OLD.effects_left OR NEW.steps_left > OLD.steps_left OR NEW.steps < OLD.steps)
  EXECUTE FUNCTION nw.refuse_change('fences, epochs and steps only rise, and what is left only falls');
CREATE TRIGGER runs_terminal BEFORE UPDATE ON nw.runs FOR EACH ROW
  WHEN (NOT OLD.live) EXECUTE FUNCTION nw.refuse_change('a terminal state never changes');
CREATE TRIGGER runs_ending BEFORE UPDATE ON nw.runs FOR EACH ROW
  WHEN (OLD.state = 'ending' AND NEW.state IN ('claimed', 'waiting'))
  EXECUTE FUNCTION nw.refuse_change('an ending run accepts only settling');

-- Effects: born minted; consumed once; an outcome never changes.
CREATE TRIGGER effects_new BEFORE INSERT ON nw.effects FOR EACH ROW
  WHEN (NEW.state NOT IN ('asked', 'minted')) EXECUTE FUNCTION nw.refuse_change('an effect begins asked or minted');
CREATE TRIGGER effects_fixed BEFORE UPDATE OF ref, run_id, task_id, key, digest, guard_id, amount, fence ON nw.effects FOR EACH ROW
  WHEN (NEW.ref <> OLD.ref OR NEW.run_id <> OLD.run_id OR NEW.task_id <> OLD.task_id OR NEW.key <> OLD.key OR NEW.digest <> OLD.digest
        OR NEW.guard_id <> OLD.guard_id OR NEW.amount <> OLD.amount OR NEW.fence < OLD.fence)
  EXECUTE FUNCTION nw.refuse_change('an effect names one change for ever');
CREATE TRIGGER effects_consumed BEFORE UPDATE ON nw.effects FOR EACH ROW
  WHEN (OLD.state = 'admitted' AND (NEW.state IN ('asked', 'minted', 'lapsed', 'admitted') OR NEW.attempt <> OLD.attempt OR NEW.admission <> OLD.admission
        OR NEW.capability <> OLD.capability OR NEW.settle_until <> OLD.settle_until))
  EXECUTE FUNCTION nw.refuse_change('an effect is consumed once');
CREATE TRIGGER effects_terminal BEFORE UPDATE ON nw.effects FOR EACH ROW
  WHEN (OLD.state IN ('committed', 'not_applied', 'ambiguous')) EXECUTE FUNCTION nw.refuse_change('an outcome never changes');
CREATE TRIGGER effects_order BEFORE UPDATE ON nw.effects FOR EACH ROW
  WHEN (OLD.state IN ('asked', 'minted', 'lapsed') AND NEW.state IN ('committed', 'not_applied', 'ambiguous') OR (OLD.state = 'asked' AND NEW.state = 'admitted')
        OR (OLD.state <> 'asked' AND NEW.state = 'asked'))
  EXECUTE FUNCTION nw.refuse_change('only an admitted effect has an outcome');

-- A decision stands for what it was asked for, is answered once and used once.
CREATE TRIGGER decisions_new BEFORE INSERT ON nw.decisions FOR EACH ROW
  WHEN (NEW.state <> 'pending') EXECUTE FUNCTION nw.refuse_change('a decision begins pending');
CREATE TRIGGER decisions_fixed BEFORE UPDATE ON nw.decisions FOR EACH ROW
  WHEN (NEW.ref <> OLD.ref OR NEW.effect_id <> OLD.effect_id OR NEW.task_id <> OLD.task_id OR NEW.run_id <> OLD.run_id OR NEW.member <> OLD.member OR NEW.digest <> OLD.digest
        OR NEW.activation_epoch <> OLD.activation_epoch OR NEW.policy_id <> OLD.policy_id OR NEW.requirement <> OLD.requirement OR NEW.expires_at <> OLD.expires_at
        OR NOT (OLD.state = NEW.state OR (OLD.state = 'pending' AND NEW.state IN ('approved', 'denied', 'expired')) OR (OLD.state = 'approved' AND NEW.state IN ('used', 'expired'))))
  EXECUTE FUNCTION nw.refuse_change('a decision is made once, about one effect');

-- Consents and offers end once.
CREATE TRIGGER consents_end BEFORE UPDATE ON nw.consents FOR EACH ROW
  WHEN (OLD.state <> 'active' OR NEW.digest <> OLD.digest OR NEW.epoch <> OLD.epoch OR NEW.expires_at <> OLD.expires_at OR NEW.member <> OLD.member OR NEW.task_id <> OLD.task_id
        OR NEW.dial <> OLD.dial OR NEW.role_id <> OLD.role_id OR NEW.task_revision <> OLD.task_revision OR NEW.max_effects <> OLD.max_effects OR NEW.max_steps <> OLD.max_steps OR NEW.max_repeats <> OLD.max_repeats OR NEW.max_spend <> OLD.max_spend
        OR (NEW.effects_day, NEW.effects_month, NEW.spend_day, NEW.spend_month, NEW.member_spend_day, NEW.member_spend_month)
           <> (OLD.effects_day, OLD.effects_month, OLD.spend_day, OLD.spend_month, OLD.member_spend_day, OLD.member_spend_month)
        OR NEW.currency IS DISTINCT FROM OLD.currency
        OR NEW.silence <> OLD.silence OR NEW.window_ms <> OLD.window_ms)
  EXECUTE FUNCTION nw.refuse_change('a consent can only end');
-- A key can only be withdrawn, and a ledger's time only goes on.
CREATE TRIGGER consent_keys_end BEFORE UPDATE ON nw.consent_keys FOR EACH ROW
  WHEN (OLD.withdrawn_at IS NOT NULL OR NEW.withdrawn_at IS NULL OR NEW.key <> OLD.key OR NEW.consent_id <> OLD.consent_id OR NEW.guard_id <> OLD.guard_id
        OR NEW.action <> OLD.action OR NEW.resource <> OLD.resource)
  EXECUTE FUNCTION nw.refuse_change('a key can only be withdrawn');
CREATE TRIGGER ledgers_rise BEFORE UPDATE ON nw.ledgers FOR EACH ROW
  WHEN (NEW.day < OLD.day OR NEW.month < OLD.month OR NEW.holder <> OLD.holder OR NEW.unit <> OLD.unit)
  EXECUTE FUNCTION nw.refuse_change('the days of a ledger only rise');
CREATE TRIGGER offers_end BEFORE UPDATE ON nw.offers FOR EACH ROW
  WHEN (OLD.state <> 'open' OR NEW.digest <> OLD.digest OR NEW.most IS DISTINCT FROM OLD.most OR NEW.product_id IS DISTINCT FROM OLD.product_id OR NEW.back IS DISTINCT FROM OLD.back OR NEW.member <> OLD.member OR NEW.expires_at <> OLD.expires_at)
  EXECUTE FUNCTION nw.refuse_change('an offer is answered once');
CREATE TRIGGER registry_retires BEFORE UPDATE ON nw.registry FOR EACH ROW
  WHEN (OLD.state = 'retired' OR NEW.document <> OLD.document OR NEW.name <> OLD.name OR NEW.revision <> OLD.revision OR NEW.kind <> OLD.kind)
  EXECUTE FUNCTION nw.refuse_change('a revision can only be retired');

-- A task can only be handed over to another owner.
CREATE TRIGGER tasks_fixed BEFORE UPDATE ON nw.tasks FOR EACH ROW
  WHEN (NEW.id <> OLD.id OR NEW.ref <> OLD.ref OR NEW.name <> OLD.name OR NEW.client_id <> OLD.client_id)
  EXECUTE FUNCTION nw.refuse_change('a task can only be handed over');

-- What is written once stays as it is. DELETE and re-INSERT would reset a fence, so nothing that matters is ever deleted.
-- +goose StatementBegin
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['documents', 'authority_identity', 'components', 'component_families', 'role_profiles', 'role_actions', 'role_queues', 'task_revisions',
      'consent_grants', 'slots', 'arguments', 'evidence', 'findings', 'late_evidence', 'readiness_requirements', 'requirement_families', 'requirement_profiles', 'incarnations', 'standbys', 'readiness_log',
      'audit'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE ON nw.%I FOR EACH ROW EXECUTE FUNCTION nw.refuse_change(''rows are only inserted'')', t || '_fixed', t);
  END LOOP;
  FOREACH t IN ARRAY ARRAY['documents', 'authority_identity', 'registry', 'components', 'component_families', 'role_profiles', 'role_actions', 'role_queues', 'tasks', 'task_revisions',
      'offers', 'consents', 'consent_grants', 'consent_keys', 'ledgers', 'lanes', 'runs', 'slots', 'effects', 'decisions', 'arguments', 'evidence', 'findings', 'late_evidence', 'ring_floors', 'readiness_requirements', 'requirement_families', 'requirement_profiles', 'incarnations', 'standbys',
      'instances', 'readiness_decision', 'readiness_log', 'audit'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE DELETE ON nw.%I FOR EACH ROW EXECUTE FUNCTION nw.refuse_change(''rows are never deleted'')', t || '_kept', t);
    EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON nw.%I FOR EACH STATEMENT EXECUTE FUNCTION nw.refuse_change(''rows are never deleted'')', t || '_whole', t);
  END LOOP;
END $$;
-- +goose StatementEnd
