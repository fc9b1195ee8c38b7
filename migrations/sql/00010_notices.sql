-- +goose Up
-- What the owner of a task must be told, until it has been told: that a card opened, that it will soon be over, that a run or an effect of theirs
-- ended otherwise than it should, that a consent of theirs is about to end. Triggers write it down, so that no verb can forget it; the schedulers deliver it, also while admission is closed.
-- A row is one notice of one matter, and never comes twice: its key is the name under which the receiver knows it.
SET LOCAL ROLE nw_owner;

CREATE TABLE nw.notices (
  matter     bytea NOT NULL CHECK (octet_length(matter) = 16), -- the card, run, effect, task or consent
  kind       text NOT NULL CHECK (kind IN ('asked', 'reminder', 'decided', 'run_ended', 'ambiguous', 'task_paused', 'consent_expiring')),
  task_id    bigint NOT NULL REFERENCES nw.tasks,
  run_id     bigint REFERENCES nw.runs,
  member     bytea NOT NULL CHECK (octet_length(member) = 32),
  card       boolean NOT NULL GENERATED ALWAYS AS (kind IN ('asked', 'reminder')) STORED, -- somebody waits for the answer
  expires_at timestamptz, -- of the card or consent: nothing is to be told after it
  due_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  next_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  attempt    integer NOT NULL DEFAULT 0,
  refusals   smallint NOT NULL DEFAULT 0,
  state      text NOT NULL DEFAULT 'due' CHECK (state IN ('due', 'dead')), -- dead: the receiver would not have it. It is kept for operators
  PRIMARY KEY (matter, kind)) WITH (fillfactor = 70);
CREATE INDEX notices_next ON nw.notices (card, next_at) WHERE state = 'due';
SELECT nw.classify('notices', 'matter reference, kind state, task_id number, run_id number, member reference, card flag, expires_at time, due_at time, next_at time, attempt number,
  refusals number, state state');

-- A card is told when it opens, and once more when half of its time is over, unless that would be in its last minute.
-- +goose StatementBegin
CREATE FUNCTION nw.tell_card() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  INSERT INTO notices (matter, kind, task_id, run_id, member, expires_at, due_at, next_at)
    SELECT NEW.ref, x.kind, NEW.task_id, NEW.run_id, NEW.member, NEW.expires_at, x.at, x.at
      FROM (VALUES ('asked', NEW.asked_at), ('reminder', NEW.asked_at + (NEW.expires_at - NEW.asked_at) / 2)) x (kind, at)
     WHERE x.kind = 'asked' OR x.at <= NEW.expires_at - interval '1 minute';
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER decisions_told AFTER INSERT ON nw.decisions FOR EACH ROW EXECUTE FUNCTION nw.tell_card();

-- Nobody is told of a card that is no longer open.
-- +goose StatementBegin
CREATE FUNCTION nw.untell_card() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  DELETE FROM notices WHERE matter = NEW.ref AND card AND state = 'due';
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER decisions_untold AFTER UPDATE OF state ON nw.decisions FOR EACH ROW WHEN (OLD.state = 'pending' AND NEW.state <> 'pending')
  EXECUTE FUNCTION nw.untell_card();

-- A run that ended otherwise than succeeded is told, unless it did so because of an effect, which is told by itself.
-- +goose StatementBegin
CREATE FUNCTION nw.tell_run() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  INSERT INTO notices (matter, kind, task_id, run_id, member) SELECT NEW.ref, 'run_ended', k.id, NEW.id, k.owner FROM tasks k
   WHERE k.id = NEW.task_id AND (NEW.state <> 'ambiguous' OR NOT EXISTS (SELECT FROM effects e WHERE e.run_id = NEW.id AND e.state = 'ambiguous')) ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER runs_told AFTER UPDATE OF state ON nw.runs FOR EACH ROW WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND NEW.state <> 'succeeded')
  EXECUTE FUNCTION nw.tell_run();

-- +goose StatementBegin
CREATE FUNCTION nw.tell_effect() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  INSERT INTO notices (matter, kind, task_id, run_id, member) SELECT NEW.ref, 'ambiguous', k.id, NEW.run_id, k.owner FROM tasks k WHERE k.id = NEW.task_id
    ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER effects_told AFTER UPDATE OF state ON nw.effects FOR EACH ROW WHEN (OLD.state <> 'ambiguous' AND NEW.state = 'ambiguous')
  EXECUTE FUNCTION nw.tell_effect();

-- A consent is told of when a tenth of its time is left, and at most a week. One that has ended is not.
-- +goose StatementBegin
CREATE FUNCTION nw.tell_consent() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
DECLARE at timestamptz := NEW.expires_at - least((NEW.expires_at - NEW.given_at) / 10, interval '7 days');
BEGIN
  INSERT INTO notices (matter, kind, task_id, member, expires_at, due_at, next_at) VALUES (NEW.ref, 'consent_expiring', NEW.task_id, NEW.member, NEW.expires_at, at, at);
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER consents_told AFTER INSERT ON nw.consents FOR EACH ROW EXECUTE FUNCTION nw.tell_consent();

-- +goose StatementBegin
CREATE FUNCTION nw.untell_consent() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  DELETE FROM notices WHERE matter = NEW.ref AND kind = 'consent_expiring' AND state = 'due';
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER consents_untold AFTER UPDATE OF state ON nw.consents FOR EACH ROW WHEN (OLD.state = 'active' AND NEW.state <> 'active')
  EXECUTE FUNCTION nw.untell_consent();

-- take_notices hands due notices to whoever delivers them, cards first. Taking one has already set the time of its next attempt, which is twice as
-- far away each time, up to a minute: what is not delivered comes again by itself.
-- +goose StatementBegin
CREATE FUNCTION nw.take_notices(p_limit integer, p_again_ms integer) RETURNS TABLE (matter bytea, kind text, member bytea, task bytea, run bytea, due_at timestamptz,
  expires_at timestamptz, attempt integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE t timestamptz := clock_timestamp(); cards boolean; room integer := p_limit; n integer;
BEGIN
  FOREACH cards IN ARRAY ARRAY[true, false] LOOP
    RETURN QUERY WITH ready AS (
        SELECT x.matter, x.kind FROM notices x WHERE x.state = 'due' AND x.card = cards AND x.next_at <= t AND (x.expires_at IS NULL OR x.expires_at > t)
         ORDER BY x.next_at LIMIT room FOR UPDATE SKIP LOCKED),
      taken AS (
        UPDATE notices x SET attempt = x.attempt + 1, next_at = t + least(make_interval(secs => p_again_ms / 1000.0 * 2 ^ least(x.attempt, 10)), interval '1 minute')
          FROM ready y WHERE x.matter = y.matter AND x.kind = y.kind RETURNING x.*)
      SELECT x.matter, x.kind, x.member, k.ref, r.ref, x.due_at, x.expires_at, x.attempt FROM taken x JOIN tasks k ON k.id = x.task_id LEFT JOIN runs r ON r.id = x.run_id;
    GET DIAGNOSTICS n = ROW_COUNT;
    room := room - n;
  END LOOP;
END $$;
-- +goose StatementEnd

-- notice_delivered: the receiver has it. Whoever delivered it too, and comes later, finds nothing left to do.
-- +goose StatementBegin
CREATE FUNCTION nw.notice_delivered(p_matter bytea, p_kind text, OUT verdict text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE n notices;
BEGIN
  DELETE FROM notices x WHERE x.matter = p_matter AND x.kind = p_kind RETURNING * INTO n;
  verdict := CASE WHEN n.matter IS NULL THEN 'not_found' ELSE 'ok' END;
  IF verdict = 'ok' THEN
    PERFORM nw.note('notice', 'ok', n.task_id, n.run_id, NULL, json_build_object('matter', nw.hex(p_matter), 'kind', p_kind, 'attempts', n.attempt, 'state', 'delivered'));
  END IF;
END $$;
-- +goose StatementEnd

-- notice_refused: the receiver is there and would not have it. After eight times it is given up, and stays for operators to see. A receiver that is
-- away refuses nothing, however long.
-- +goose StatementBegin
CREATE FUNCTION nw.notice_refused(p_matter bytea, p_kind text, OUT dead boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE n notices;
BEGIN
  UPDATE notices x SET refusals = x.refusals + 1, state = CASE WHEN x.refusals + 1 >= 8 THEN 'dead' ELSE 'due' END
   WHERE x.matter = p_matter AND x.kind = p_kind AND x.state = 'due' RETURNING x.* INTO n;
  dead := coalesce(n.state = 'dead', false);
  IF dead THEN
    PERFORM nw.note('notice', 'ok', n.task_id, n.run_id, NULL, json_build_object('matter', nw.hex(p_matter), 'kind', p_kind, 'attempts', n.attempt, 'state', 'dead'));
  END IF;
END $$;
-- +goose StatementEnd

-- notices_health: how many are due, for how long the oldest card has been due whose owner was not told, and how many were given up.
-- +goose StatementBegin
CREATE FUNCTION nw.notices_health(OUT due bigint, OUT untold_ms bigint, OUT dead bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE t timestamptz := clock_timestamp();
BEGIN
  SELECT count(*) FILTER (WHERE n.state = 'due'), coalesce(floor(extract(epoch FROM t - min(n.due_at) FILTER (WHERE n.state = 'due' AND n.card)) * 1000)::bigint, 0),
         count(*) FILTER (WHERE n.state = 'dead') INTO due, untold_ms, dead FROM notices n WHERE n.due_at <= t AND (n.state = 'dead' OR n.expires_at IS NULL OR n.expires_at > t);
END $$;
-- +goose StatementEnd

-- show_notices is what operators see: what was given up, and what waits, oldest first. Who owns the task is not among it.
-- +goose StatementBegin
CREATE FUNCTION nw.show_notices(p_limit integer) RETURNS TABLE (matter bytea, kind text, task bytea, state text, due_at timestamptz, attempt integer, refusals smallint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT n.matter, n.kind, k.ref, n.state, n.due_at, n.attempt, n.refusals FROM notices n JOIN tasks k ON k.id = n.task_id
   WHERE n.due_at <= clock_timestamp() ORDER BY n.state, n.due_at LIMIT p_limit;
END $$;
-- +goose StatementEnd

-- retry_notices lets what was given up be told after all, when the receiver has been mended. What is about something that is over is forgotten.
-- +goose StatementBegin
CREATE FUNCTION nw.retry_notices(OUT retried bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  DELETE FROM notices n WHERE n.state = 'dead' AND (n.expires_at <= clock_timestamp() OR n.card AND NOT EXISTS (SELECT FROM decisions d WHERE d.ref = n.matter AND d.state = 'pending'));
  UPDATE notices n SET state = 'due', refusals = 0, attempt = 0, next_at = clock_timestamp() WHERE n.state = 'dead';
  GET DIAGNOSTICS retried = ROW_COUNT;
  PERFORM nw.operator_note('notice', json_build_object('retried', retried));
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nw.take_notices, nw.notice_delivered, nw.notice_refused, nw.notices_health TO nw_scheduler;
GRANT EXECUTE ON FUNCTION nw.show_notices, nw.retry_notices TO nw_operator;
RESET ROLE;
