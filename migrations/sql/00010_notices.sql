-- +goose Up
-- What the owner of a task must be told, until it has been told: that a card opened, that it will soon be over, that it was decided, that a run or an effect of theirs
-- ended otherwise than it should, that a task of theirs was cut off, that a consent of theirs is about to end. Triggers write it down, so that no verb can forget it; the
-- schedulers deliver it, also while admission is closed.
-- A row is one notice of one matter by one channel, and never comes twice: matter and kind are the name under which the receiver knows it.
SET LOCAL ROLE nw_owner;

CREATE TABLE nw.notices (
  matter     bytea NOT NULL CHECK (octet_length(matter) = 16), -- the card, run, effect or consent; of task_paused, one that no other pause has
  kind       text NOT NULL CHECK (kind IN ('asked', 'reminder', 'decided', 'run_ended', 'ambiguous', 'task_paused', 'consent_expiring')),
  channel    text NOT NULL CHECK (channel IN ('webhook', 'mail')),
  task_id    bigint NOT NULL REFERENCES nw.tasks,
  run_id     bigint REFERENCES nw.runs,
  member     bytea NOT NULL CHECK (octet_length(member) = 32),
  card       boolean NOT NULL GENERATED ALWAYS AS (kind IN ('asked', 'reminder')) STORED, -- somebody waits for the answer
  daily      boolean NOT NULL DEFAULT false, -- it goes out with the member's other ones of the day
  expires_at timestamptz, -- of the card or consent: nothing is to be told after it
  due_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  next_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  attempt    integer NOT NULL DEFAULT 0,
  refusals   smallint NOT NULL DEFAULT 0,
  state      text NOT NULL DEFAULT 'due' CHECK (state IN ('due', 'dead')), -- dead: the receiver would not have it. It is kept for operators
  PRIMARY KEY (matter, kind, channel),
  CHECK (NOT daily OR channel = 'mail' AND kind NOT IN ('asked', 'reminder'))) WITH (fillfactor = 70);
CREATE INDEX notices_next ON nw.notices (channel, daily, card, next_at) WHERE state = 'due';
CREATE INDEX notices_member ON nw.notices (member) WHERE state = 'due' AND channel = 'mail';
SELECT nw.classify('notices', 'matter reference, kind state, channel state, task_id number, run_id number, member reference, card flag, daily flag, expires_at time, due_at time,
  next_at time, attempt number, refusals number, state state');

-- Who has chosen one mail a day, and the hour (UTC) of it. Whoever is not here is told at once; a card always is.
CREATE TABLE nw.notice_settings (
  member bytea PRIMARY KEY CHECK (octet_length(member) = 32),
  hour   smallint NOT NULL CHECK (hour BETWEEN 0 AND 23));
SELECT nw.classify('notice_settings', 'member reference, hour number');

-- By which channels the schedulers tell, as they said last.
CREATE TABLE nw.telling (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  channels  text[] NOT NULL CHECK (cardinality(channels) > 0 AND channels <@ ARRAY['webhook', 'mail']));
SELECT nw.classify('telling', 'singleton flag, channels state');
INSERT INTO nw.telling (channels) VALUES ('{webhook}');

-- next_hour is the first time at or after t at which it is that hour.
CREATE FUNCTION nw.next_hour(t timestamptz, p_hour smallint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN x.at >= t THEN x.at ELSE x.at + interval '1 day' END FROM (SELECT date_trunc('day', t, 'UTC') + make_interval(hours => p_hour) AS at) x $$;

-- tell writes a notice down, once for each channel, also one that the cluster does not have yet: what is for nobody is dropped when it is due (take_notices).
-- +goose StatementBegin
CREATE FUNCTION nw.tell(p_matter bytea, p_kind text, p_task bigint, p_run bigint, p_member bytea, p_expires timestamptz DEFAULT NULL, p_at timestamptz DEFAULT clock_timestamp())
RETURNS void LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
DECLARE h smallint;
BEGIN
  SELECT s.hour INTO h FROM notice_settings s WHERE s.member = p_member AND p_kind NOT IN ('asked', 'reminder');
  INSERT INTO notices (matter, kind, channel, task_id, run_id, member, daily, expires_at, due_at, next_at)
    VALUES (p_matter, p_kind, 'webhook', p_task, p_run, p_member, false, p_expires, p_at, p_at),
           (p_matter, p_kind, 'mail', p_task, p_run, p_member, h IS NOT NULL, p_expires, p_at, coalesce(nw.next_hour(p_at, h), p_at)) ON CONFLICT DO NOTHING;
END $$;
-- +goose StatementEnd

-- A card is told when it opens, and once more when half of its time is over, unless that would be in its last minute.
-- +goose StatementBegin
CREATE FUNCTION nw.tell_card() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  PERFORM nw.tell(NEW.ref, x.kind, NEW.task_id, NEW.run_id, NEW.member, NEW.expires_at, x.at)
      FROM (VALUES ('asked', NEW.asked_at), ('reminder', NEW.asked_at + (NEW.expires_at - NEW.asked_at) / 2)) x (kind, at)
     WHERE x.kind = 'asked' OR x.at <= NEW.expires_at - interval '1 minute';
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER decisions_told AFTER INSERT ON nw.decisions FOR EACH ROW EXECUTE FUNCTION nw.tell_card();

-- Nobody is told of a card that is no longer open, but of an answer that was given in their name. A card that closed without one did so with its run.
-- +goose StatementBegin
CREATE FUNCTION nw.untell_card() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  DELETE FROM notices WHERE matter = NEW.ref AND card AND state = 'due';
  IF NEW.state IN ('approved', 'denied') THEN PERFORM nw.tell(NEW.ref, 'decided', NEW.task_id, NEW.run_id, NEW.member); END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER decisions_untold AFTER UPDATE OF state ON nw.decisions FOR EACH ROW WHEN (OLD.state = 'pending' AND NEW.state <> 'pending')
  EXECUTE FUNCTION nw.untell_card();

-- A run that ended otherwise than succeeded is told, unless it did so because of an effect, which is told by itself.
-- +goose StatementBegin
CREATE FUNCTION nw.tell_run() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  PERFORM nw.tell(NEW.ref, 'run_ended', k.id, NEW.id, k.owner) FROM tasks k
   WHERE k.id = NEW.task_id AND (NEW.state <> 'ambiguous' OR NOT EXISTS (SELECT FROM effects e WHERE e.run_id = NEW.id AND e.state = 'ambiguous'));
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER runs_told AFTER UPDATE OF state ON nw.runs FOR EACH ROW WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND NEW.state <> 'succeeded')
  EXECUTE FUNCTION nw.tell_run();

-- +goose StatementBegin
CREATE FUNCTION nw.tell_effect() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  PERFORM nw.tell(NEW.ref, 'ambiguous', k.id, NEW.run_id, k.owner) FROM tasks k WHERE k.id = NEW.task_id;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER effects_told AFTER UPDATE OF state ON nw.effects FOR EACH ROW WHEN (OLD.state <> 'ambiguous' AND NEW.state = 'ambiguous')
  EXECUTE FUNCTION nw.tell_effect();

-- A task with a consent whose epoch advances is cut off: what was under way has ended. Its owner is told, whoever did it: an operator, a retired entry, a departure.
-- A pause is named by its epoch, so that each is a matter of its own.
CREATE FUNCTION nw.pause(p_task bytea, p_epoch bigint) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT substr(sha256(convert_to('nightwarrant/reference/v1', 'UTF8') || '\x00' || convert_to('pause', 'UTF8') || '\x00' || p_task || '\x00' || int8send(p_epoch)), 1, 16) $$;
-- +goose StatementBegin
CREATE FUNCTION nw.tell_pause() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  PERFORM nw.tell(nw.pause(k.ref, NEW.activation_epoch), 'task_paused', k.id, NULL, c.member) FROM tasks k, consents c WHERE k.id = NEW.task_id AND c.id = OLD.consent_id;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER lanes_told AFTER UPDATE OF activation_epoch ON nw.lanes FOR EACH ROW WHEN (OLD.consent_id IS NOT NULL AND NEW.activation_epoch > OLD.activation_epoch)
  EXECUTE FUNCTION nw.tell_pause();

-- untell_pause: the epoch advanced, and its owner knows: they did it, or were told before, or are asked anew.
-- +goose StatementBegin
CREATE FUNCTION nw.untell_pause(p_task bigint) RETURNS void LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  DELETE FROM notices n USING lanes l, tasks k WHERE l.task_id = p_task AND k.id = p_task AND n.matter = nw.pause(k.ref, l.activation_epoch) AND n.kind = 'task_paused' AND n.state = 'due';
END $$;
-- +goose StatementEnd

-- A consent is told of when a tenth of its time is left, and at most a week. One that has ended is not.
-- +goose StatementBegin
CREATE FUNCTION nw.tell_consent() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  PERFORM nw.tell(NEW.ref, 'consent_expiring', NEW.task_id, NULL, NEW.member, NEW.expires_at, NEW.expires_at - least((NEW.expires_at - NEW.given_at) / 10, interval '7 days'));
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER consents_told AFTER INSERT ON nw.consents FOR EACH ROW EXECUTE FUNCTION nw.tell_consent();

-- +goose StatementBegin
CREATE FUNCTION nw.untell_consent() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  DELETE FROM notices WHERE matter = NEW.ref AND kind = 'consent_expiring' AND state = 'due';
  IF NEW.state <> 'revoked' THEN PERFORM nw.untell_pause(NEW.task_id); END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER consents_untold AFTER UPDATE OF state ON nw.consents FOR EACH ROW WHEN (OLD.state = 'active' AND NEW.state <> 'active')
  EXECUTE FUNCTION nw.untell_consent();

-- named finds who a member is, as the directory knows them, in the newest revision of a task that they owned. Only for whoever asks for an address now.
CREATE FUNCTION nw.named(p_task bigint, p_member bytea) RETURNS json LANGUAGE sql STABLE SET search_path = nw, pg_temp AS $$
  SELECT x.owner FROM (SELECT v.revision, convert_from(d.body, 'UTF8')::json->'owner' AS owner FROM task_revisions v JOIN documents d ON d.digest = v.document WHERE v.task_id = p_task) x
   WHERE sha256(convert_to('nightwarrant/member/v1', 'UTF8') || '\x00' || convert_to(x.owner->>'issuer', 'UTF8') || '\x00' || convert_to(x.owner->>'subject', 'UTF8')) = p_member
   ORDER BY x.revision DESC LIMIT 1 $$;

-- take_notices hands due notices of one channel to whoever delivers them, cards first. Taking one has already set the time of its next attempt, which is
-- twice as far away each time, up to a minute: what is not delivered comes again by itself. What was for channels that nobody takes is dropped after an hour.
-- +goose StatementBegin
CREATE FUNCTION nw.take_notices(p_channels text[], p_channel text, p_limit integer, p_again_ms integer) RETURNS TABLE (matter bytea, kind text, member bytea, owner json, task bytea,
  run bytea, due_at timestamptz, expires_at timestamptz, attempt integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE t timestamptz := clock_timestamp(); cards boolean; room integer := p_limit; n integer; other text;
BEGIN
  UPDATE telling SET channels = p_channels WHERE channels <> p_channels;
  FOREACH other IN ARRAY ARRAY['webhook', 'mail'] LOOP
    CONTINUE WHEN other = ANY (p_channels);
    DELETE FROM notices x WHERE (x.matter, x.kind, x.channel) IN (SELECT y.matter, y.kind, y.channel FROM notices y
      WHERE y.state = 'due' AND y.channel = other AND y.next_at <= t - interval '1 hour' LIMIT p_limit * 10 FOR UPDATE SKIP LOCKED);
  END LOOP;
  FOREACH cards IN ARRAY ARRAY[true, false] LOOP
    RETURN QUERY WITH ready AS (
        SELECT x.matter, x.kind FROM notices x WHERE x.state = 'due' AND x.channel = p_channel AND NOT x.daily AND x.card = cards AND x.next_at <= t AND (x.expires_at IS NULL OR x.expires_at > t)
         ORDER BY x.next_at LIMIT room FOR UPDATE SKIP LOCKED),
      taken AS (
        UPDATE notices x SET attempt = x.attempt + 1, next_at = nw.again(t, p_again_ms, x.attempt)
          FROM ready y WHERE x.matter = y.matter AND x.kind = y.kind AND x.channel = p_channel RETURNING x.*)
      SELECT x.matter, x.kind, x.member, CASE WHEN p_channel = 'mail' THEN nw.named(x.task_id, x.member) END, k.ref, r.ref, x.due_at, x.expires_at, x.attempt
        FROM taken x JOIN tasks k ON k.id = x.task_id LEFT JOIN runs r ON r.id = x.run_id;
    GET DIAGNOSTICS n = ROW_COUNT;
    room := room - n;
  END LOOP;
END $$;
-- +goose StatementEnd

CREATE FUNCTION nw.again(t timestamptz, p_again_ms integer, p_attempt integer) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
  SELECT t + least(make_interval(secs => p_again_ms / 1000.0 * 2 ^ least(p_attempt, 10)), interval '1 minute') $$;

-- take_digest does so with all that one member, who chose one mail a day, is to be told now.
-- +goose StatementBegin
CREATE FUNCTION nw.take_digest(p_limit integer, p_again_ms integer) RETURNS TABLE (matter bytea, kind text, member bytea, owner json, task bytea, run bytea, due_at timestamptz,
  expires_at timestamptz, attempt integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE t timestamptz := clock_timestamp(); whose bytea;
BEGIN
  SELECT x.member INTO whose FROM notices x WHERE x.state = 'due' AND x.channel = 'mail' AND x.daily AND NOT x.card AND x.next_at <= t AND (x.expires_at IS NULL OR x.expires_at > t)
   ORDER BY x.next_at LIMIT 1 FOR UPDATE SKIP LOCKED;
  IF whose IS NULL OR NOT pg_try_advisory_xact_lock(('x' || encode(substr(sha256('digest' || whose), 1, 8), 'hex'))::bit(64)::bigint) THEN RETURN; END IF;
  RETURN QUERY WITH ready AS (
      SELECT x.matter, x.kind FROM notices x WHERE x.member = whose AND x.state = 'due' AND x.channel = 'mail' AND x.daily AND x.next_at <= t AND (x.expires_at IS NULL OR x.expires_at > t)
       ORDER BY x.due_at LIMIT p_limit FOR UPDATE SKIP LOCKED),
    taken AS (
      UPDATE notices x SET attempt = x.attempt + 1, next_at = nw.again(t, p_again_ms, x.attempt)
        FROM ready y WHERE x.matter = y.matter AND x.kind = y.kind AND x.channel = 'mail' RETURNING x.*)
    SELECT x.matter, x.kind, x.member, nw.named(x.task_id, x.member), k.ref, r.ref, x.due_at, x.expires_at, x.attempt
      FROM taken x JOIN tasks k ON k.id = x.task_id LEFT JOIN runs r ON r.id = x.run_id ORDER BY x.due_at, x.matter;
END $$;
-- +goose StatementEnd

-- notice_delivered: the receiver has it. Whoever delivered it too, and comes later, finds nothing left to do.
-- +goose StatementBegin
CREATE FUNCTION nw.notice_delivered(p_matter bytea, p_kind text, p_channel text, OUT verdict text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE n notices;
BEGIN
  DELETE FROM notices x WHERE x.matter = p_matter AND x.kind = p_kind AND x.channel = p_channel RETURNING * INTO n;
  verdict := CASE WHEN n.matter IS NULL THEN 'not_found' ELSE 'ok' END;
  IF verdict = 'ok' THEN
    PERFORM nw.note('notice', 'ok', n.task_id, n.run_id, NULL, json_build_object('matter', nw.hex(p_matter), 'kind', p_kind, 'channel', p_channel, 'attempts', n.attempt, 'state', 'delivered'));
  END IF;
END $$;
-- +goose StatementEnd

-- notice_refused: the receiver is there and would not have it. After eight times it is given up, and stays for operators to see. A receiver that is
-- away refuses nothing, however long.
-- +goose StatementBegin
CREATE FUNCTION nw.notice_refused(p_matter bytea, p_kind text, p_channel text, OUT dead boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE n notices;
BEGIN
  UPDATE notices x SET refusals = x.refusals + 1, state = CASE WHEN x.refusals + 1 >= 8 THEN 'dead' ELSE 'due' END
   WHERE x.matter = p_matter AND x.kind = p_kind AND x.channel = p_channel AND x.state = 'due' RETURNING x.* INTO n;
  dead := coalesce(n.state = 'dead', false);
  IF dead THEN
    PERFORM nw.note('notice', 'ok', n.task_id, n.run_id, NULL, json_build_object('matter', nw.hex(p_matter), 'kind', p_kind, 'channel', p_channel, 'attempts', n.attempt, 'state', 'dead'));
  END IF;
END $$;
-- +goose StatementEnd

-- notices_health: how many are due by one channel, for how long the oldest card has been due whose owner was not told, and how many were given up.
-- +goose StatementBegin
CREATE FUNCTION nw.notices_health(p_channel text, OUT due bigint, OUT untold_ms bigint, OUT dead bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE t timestamptz := clock_timestamp();
BEGIN
  SELECT count(*) FILTER (WHERE n.state = 'due'), coalesce(floor(extract(epoch FROM t - min(n.due_at) FILTER (WHERE n.state = 'due' AND n.card)) * 1000)::bigint, 0),
         count(*) FILTER (WHERE n.state = 'dead') INTO due, untold_ms, dead
    FROM notices n WHERE n.channel = p_channel AND n.due_at <= t AND (n.state = 'dead' OR n.next_at <= t OR NOT n.daily) AND (n.state = 'dead' OR n.expires_at IS NULL OR n.expires_at > t);
END $$;
-- +goose StatementEnd

-- show_notices is what operators see: what was given up, and what waits, oldest first. Who owns the task is not among it.
-- +goose StatementBegin
CREATE FUNCTION nw.show_notices(p_limit integer) RETURNS TABLE (matter bytea, kind text, channel text, task bytea, state text, due_at timestamptz, attempt integer, refusals smallint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT n.matter, n.kind, n.channel, k.ref, n.state, n.due_at, n.attempt, n.refusals FROM notices n JOIN tasks k ON k.id = n.task_id
   WHERE n.channel IN (SELECT unnest(channels) FROM telling) AND n.due_at <= clock_timestamp() AND (n.state = 'dead' OR n.attempt > 0 OR NOT n.daily) ORDER BY n.state, n.due_at LIMIT p_limit;
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

-- set_notices is a member's choice: one mail a day at an hour of UTC, or none of that (NULL), and then each at once. It also holds for what waits.
-- +goose StatementBegin
CREATE FUNCTION nw.set_notices(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_hour smallint, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  verdict := CASE WHEN p_hour NOT BETWEEN 0 AND 23 THEN 'invalid_request' ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('notice', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  IF p_hour IS NULL THEN
    DELETE FROM notice_settings WHERE member = p_member;
  ELSE
    INSERT INTO notice_settings (member, hour) VALUES (p_member, p_hour) ON CONFLICT (member) DO UPDATE SET hour = p_hour;
  END IF;
  UPDATE notices n SET daily = p_hour IS NOT NULL, next_at = coalesce(nw.next_hour(greatest(n.due_at, clock_timestamp()), p_hour), n.due_at)
   WHERE n.member = p_member AND n.channel = 'mail' AND n.state = 'due' AND NOT n.card;
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note_about(p_member, 'notice', 'ok', NULL, NULL, NULL, json_build_object('state', CASE WHEN p_hour IS NULL THEN 'at_once' ELSE 'daily' END, 'hour', p_hour));
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION nw.show_notice_settings(p_member bytea, OUT hour smallint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  SELECT s.hour INTO hour FROM notice_settings s WHERE s.member = p_member;
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nw.take_notices, nw.take_digest, nw.notice_delivered, nw.notice_refused, nw.notices_health TO nw_scheduler;
GRANT EXECUTE ON FUNCTION nw.set_notices, nw.show_notice_settings TO nw_authority;
GRANT EXECUTE ON FUNCTION nw.show_notices, nw.retry_notices TO nw_operator;
RESET ROLE;
