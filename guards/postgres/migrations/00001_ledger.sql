-- The ledger of a guard, in the database that it guards. Its rows are the proof of what was applied: they are inserted once and never
-- changed, and the guard's role reaches them through these functions only.
CREATE SCHEMA nightwarrant_guard;
REVOKE ALL ON SCHEMA nightwarrant_guard FROM PUBLIC;

CREATE TABLE nightwarrant_guard.versions (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp());

-- The highest fence that was applied in a lane. An operation holds its lane's row until it ends, so a lane's effects land one by one.
CREATE TABLE nightwarrant_guard.fences (
  lane  bytea PRIMARY KEY CHECK (octet_length(lane) = 16),
  fence bigint NOT NULL CHECK (fence > 0));
CREATE INDEX fences_highest ON nightwarrant_guard.fences (fence);

-- What a guard was about to ask the authority for, the last time for each effect. Evidence only: nothing is decided by it.
CREATE TABLE nightwarrant_guard.intents (
  effect   bytea PRIMARY KEY CHECK (octet_length(effect) = 16),
  attempt  bytea NOT NULL CHECK (octet_length(attempt) = 16),
  attempts integer NOT NULL DEFAULT 1 CHECK (attempts > 0),
  action   text NOT NULL CHECK (octet_length(action) BETWEEN 1 AND 64),
  digest   bytea NOT NULL CHECK (octet_length(digest) = 32),
  at       timestamptz NOT NULL DEFAULT clock_timestamp()) WITH (fillfactor = 80);

-- The end of an effect, once: committed together with what the operation did, or a tombstone that keeps it from ever being so.
CREATE TABLE nightwarrant_guard.effects (
  effect    bytea PRIMARY KEY CHECK (octet_length(effect) = 16),
  attempt   bytea NOT NULL CHECK (octet_length(attempt) = 16),
  outcome   text NOT NULL CHECK (outcome IN ('committed', 'tombstone')),
  lane      bytea CHECK (octet_length(lane) = 16),
  fence     bigint CHECK (fence > 0),
  admission bigint CHECK (admission > 0),
  digest    bytea CHECK (octet_length(digest) = 32),
  at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (outcome = 'tombstone' OR num_nulls(lane, fence, admission, digest) = 0));
CREATE INDEX effects_admission ON nightwarrant_guard.effects (admission) WHERE admission IS NOT NULL;

CREATE FUNCTION nightwarrant_guard.forbid() RETURNS trigger LANGUAGE plpgsql SET search_path = nightwarrant_guard, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'nightwarrant: % of % is forbidden', TG_OP, TG_TABLE_NAME USING ERRCODE = 'NW001';
END $$;
CREATE TRIGGER only_rises BEFORE UPDATE ON nightwarrant_guard.fences FOR EACH ROW
  WHEN (NEW.fence < OLD.fence OR NEW.lane <> OLD.lane) EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER kept BEFORE DELETE ON nightwarrant_guard.fences FOR EACH ROW EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER kept_all BEFORE TRUNCATE ON nightwarrant_guard.fences EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE ON nightwarrant_guard.effects FOR EACH ROW EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER kept_all BEFORE TRUNCATE ON nightwarrant_guard.effects EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER kept BEFORE UPDATE ON nightwarrant_guard.intents FOR EACH ROW
  WHEN (NEW.effect <> OLD.effect OR NEW.digest <> OLD.digest OR NEW.action <> OLD.action OR NEW.attempts <= OLD.attempts)
  EXECUTE FUNCTION nightwarrant_guard.forbid();

-- intend writes an attempt ahead; false says that the effect already has its end.
CREATE FUNCTION nightwarrant_guard.intend(p_effect bytea, p_attempt bytea, p_action text, p_digest bytea) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nightwarrant_guard, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM effects WHERE effect = p_effect) THEN RETURN false; END IF;
  INSERT INTO intents AS i (effect, attempt, action, digest) VALUES (p_effect, p_attempt, p_action, p_digest)
    ON CONFLICT (effect) DO UPDATE SET attempt = EXCLUDED.attempt, attempts = i.attempts + 1, digest = EXCLUDED.digest, action = EXCLUDED.action,
       at = clock_timestamp();
  RETURN true;
END $$;

-- take is the first statement of an operation's transaction: it takes the lane under this fence and writes the effect's end, which
-- counts when the transaction commits. Locks first, each in its own statement, hence READ COMMITTED. The rest of the transaction
-- may wait no longer than what is left.
CREATE FUNCTION nightwarrant_guard.take(p_effect bytea, p_attempt bytea, p_lane bytea, p_fence bigint, p_admission bigint, p_digest bytea, p_left_ms bigint)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nightwarrant_guard, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') = 'off' THEN
    RAISE EXCEPTION 'nightwarrant: an effect needs READ COMMITTED and synchronous commits' USING ERRCODE = 'NW002';
  END IF;
  PERFORM set_config(name, greatest(1, p_left_ms)::text, true)
     FROM unnest(ARRAY['lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout']) AS name;
  INSERT INTO fences AS f (lane, fence) VALUES (p_lane, p_fence)
    ON CONFLICT (lane) DO UPDATE SET fence = EXCLUDED.fence WHERE f.fence <= EXCLUDED.fence;
  IF NOT FOUND THEN RETURN 'fence_stale'; END IF;
  INSERT INTO effects (effect, attempt, outcome, lane, fence, admission, digest)
    VALUES (p_effect, p_attempt, 'committed', p_lane, p_fence, p_admission, p_digest) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN RETURN 'effect_settled'; END IF;
  RETURN 'ok';
END $$;

-- in_time is the last statement before COMMIT (protocol P18): it undoes everything when more has passed since the transaction began than was
-- left then. Deferred constraints are judged here, so that COMMIT has nothing left to do but to commit. It runs as its caller, for
-- the sake of those constraints' triggers.
CREATE FUNCTION nightwarrant_guard.in_time(p_left_ms bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = nightwarrant_guard, pg_temp AS $$
BEGIN
  SET CONSTRAINTS ALL IMMEDIATE;
  IF clock_timestamp() - transaction_timestamp() >= make_interval(secs => p_left_ms / 1000.0) THEN
    RAISE EXCEPTION 'nightwarrant: the time to apply has passed' USING ERRCODE = 'NW003';
  END IF;
END $$;

-- prove returns the end of an attempt. Where there is none it commits a tombstone under the key that take uses (P14): it waits for a
-- transaction that is under way, and one that comes later fails. The attempt of a committed effect is told, because only the admitted one can be.
CREATE FUNCTION nightwarrant_guard.prove(p_effect bytea, p_attempt bytea, OUT outcome text, OUT attempt bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nightwarrant_guard, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') = 'off' THEN
    RAISE EXCEPTION 'nightwarrant: a proof needs READ COMMITTED and synchronous commits' USING ERRCODE = 'NW002';
  END IF;
  PERFORM set_config('lock_timeout', '1500', true);
  INSERT INTO effects (effect, attempt, outcome) VALUES (p_effect, p_attempt, 'tombstone') ON CONFLICT DO NOTHING;
  SELECT e.outcome, e.attempt INTO STRICT prove.outcome, prove.attempt FROM effects e WHERE e.effect = p_effect;
END $$;

-- probe says whether an effect could be applied now, and the highest that was ever seen (P24).
CREATE FUNCTION nightwarrant_guard.probe(OUT version integer, OUT writable boolean, OUT durable boolean, OUT fence bigint, OUT admission bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nightwarrant_guard, pg_temp AS $$
BEGIN
  SELECT max(v.version) INTO probe.version FROM versions v;
  writable := NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off';
  durable := current_setting('synchronous_commit') <> 'off' AND current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on';
  SELECT coalesce(max(f.fence), 0) INTO probe.fence FROM fences f;
  SELECT coalesce(max(e.admission), 0) INTO probe.admission FROM effects e WHERE e.admission IS NOT NULL;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nightwarrant_guard FROM PUBLIC;
