-- The ledger of a guard, in the database that it guards. Its rows are the proof of what was applied: they are inserted once and never
-- changed, and the guard's role reaches them through these functions only. Each guard of a database has a schema of its own.
CREATE SCHEMA nightwarrant_guard;
REVOKE ALL ON SCHEMA nightwarrant_guard FROM PUBLIC;

CREATE TABLE nightwarrant_guard.versions (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp());

-- What the ledger knows of itself: which data it stands beside, how long it has been at work, and the highest of what it has forgotten.
-- Days are counted while a guard runs, so that no step of a clock makes the ledger forget.
CREATE TABLE nightwarrant_guard.ledger (
  one       boolean PRIMARY KEY DEFAULT true CHECK (one),
  dataset   bytea NOT NULL DEFAULT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())) CHECK (octet_length(dataset) = 32),
  day       integer NOT NULL DEFAULT 0,
  worked    interval NOT NULL DEFAULT '0', -- of this day
  seen      timestamptz NOT NULL DEFAULT clock_timestamp(),
  fence     bigint NOT NULL DEFAULT 0,
  admission bigint NOT NULL DEFAULT 0);
INSERT INTO nightwarrant_guard.ledger DEFAULT VALUES;

-- The highest fence that was applied in a lane. An operation holds its lane's row until it ends, so a lane's effects land one by one.
CREATE TABLE nightwarrant_guard.fences (
  lane  bytea PRIMARY KEY CHECK (octet_length(lane) = 16),
  fence bigint NOT NULL CHECK (fence > 0),
  day   integer NOT NULL); -- of its last use
CREATE INDEX fences_highest ON nightwarrant_guard.fences (fence);
CREATE INDEX fences_day ON nightwarrant_guard.fences (day);

-- What a guard was about to ask the authority for, the last time for each effect. Evidence only: nothing is decided by it.
CREATE TABLE nightwarrant_guard.intents (
  effect   bytea PRIMARY KEY CHECK (octet_length(effect) = 16),
  attempt  bytea NOT NULL CHECK (octet_length(attempt) = 16),
  attempts integer NOT NULL DEFAULT 1 CHECK (attempts > 0),
  action   text NOT NULL CHECK (octet_length(action) BETWEEN 1 AND 64),
  digest   bytea NOT NULL CHECK (octet_length(digest) = 32),
  day      integer NOT NULL,
  at       timestamptz NOT NULL DEFAULT clock_timestamp()) WITH (fillfactor = 80);
CREATE INDEX intents_day ON nightwarrant_guard.intents (day);

-- The end of an effect, once: committed together with what the operation did, or a tombstone that keeps it from ever being so.
CREATE TABLE nightwarrant_guard.effects (
  effect    bytea PRIMARY KEY CHECK (octet_length(effect) = 16),
  attempt   bytea NOT NULL CHECK (octet_length(attempt) = 16),
  outcome   text NOT NULL CHECK (outcome IN ('committed', 'tombstone')),
  lane      bytea CHECK (octet_length(lane) = 16),
  fence     bigint CHECK (fence > 0),
  admission bigint CHECK (admission > 0),
  digest    bytea CHECK (octet_length(digest) = 32),
  day       integer NOT NULL,
  at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (outcome = 'tombstone' OR num_nulls(lane, fence, admission, digest) = 0));
CREATE INDEX effects_admission ON nightwarrant_guard.effects (admission) WHERE admission IS NOT NULL;
CREATE INDEX effects_day ON nightwarrant_guard.effects (day);

CREATE FUNCTION nightwarrant_guard.forbid() RETURNS trigger LANGUAGE plpgsql SET search_path = nightwarrant_guard, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'nightwarrant: % of % is forbidden', TG_OP, TG_TABLE_NAME USING ERRCODE = 'NW001';
END $$;

-- forgettable is a row's day before which the authority cannot ask any more: deadlines are seven days away at most, a row may be written
-- while its day ends, and one more is to spare.
CREATE FUNCTION nightwarrant_guard.forgettable() RETURNS integer LANGUAGE sql STABLE SET search_path = nightwarrant_guard, pg_temp
AS $$ SELECT day - 9 FROM ledger $$;

CREATE FUNCTION nightwarrant_guard.keep() RETURNS trigger LANGUAGE plpgsql SET search_path = nightwarrant_guard, pg_temp AS $$
BEGIN
  IF OLD.day >= forgettable() THEN
    RAISE EXCEPTION 'nightwarrant: % of % is forbidden so early', TG_OP, TG_TABLE_NAME USING ERRCODE = 'NW001';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER only_rises BEFORE UPDATE ON nightwarrant_guard.fences FOR EACH ROW
  WHEN (NEW.fence < OLD.fence OR NEW.day < OLD.day OR NEW.lane <> OLD.lane) EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER kept BEFORE DELETE ON nightwarrant_guard.fences FOR EACH ROW EXECUTE FUNCTION nightwarrant_guard.keep();
CREATE TRIGGER kept_all BEFORE TRUNCATE ON nightwarrant_guard.fences EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER fixed BEFORE UPDATE ON nightwarrant_guard.effects FOR EACH ROW EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER kept BEFORE DELETE ON nightwarrant_guard.effects FOR EACH ROW EXECUTE FUNCTION nightwarrant_guard.keep();
CREATE TRIGGER only_rises BEFORE UPDATE ON nightwarrant_guard.ledger FOR EACH ROW
  WHEN (NEW.dataset <> OLD.dataset OR NEW.fence < OLD.fence OR NEW.admission < OLD.admission OR NEW.day NOT IN (OLD.day, OLD.day + 1)
        OR NEW.worked > OLD.worked + interval '5 minutes' OR (NEW.day > OLD.day AND OLD.worked < interval '23 hours 55 minutes'))
  EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER kept BEFORE DELETE ON nightwarrant_guard.ledger FOR EACH ROW EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER kept_all BEFORE TRUNCATE ON nightwarrant_guard.ledger EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER kept_all BEFORE TRUNCATE ON nightwarrant_guard.effects EXECUTE FUNCTION nightwarrant_guard.forbid();
CREATE TRIGGER kept BEFORE UPDATE ON nightwarrant_guard.intents FOR EACH ROW
  WHEN (NEW.effect <> OLD.effect OR NEW.digest <> OLD.digest OR NEW.action <> OLD.action OR NEW.attempts <= OLD.attempts)
  EXECUTE FUNCTION nightwarrant_guard.forbid();

-- intend writes an attempt ahead; false says that the effect already has its end.
CREATE FUNCTION nightwarrant_guard.intend(p_effect bytea, p_attempt bytea, p_action text, p_digest bytea) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nightwarrant_guard, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM effects WHERE effect = p_effect) THEN RETURN false; END IF;
  INSERT INTO intents AS i (effect, attempt, action, digest, day) SELECT p_effect, p_attempt, p_action, p_digest, l.day FROM ledger l
    ON CONFLICT (effect) DO UPDATE SET attempt = EXCLUDED.attempt, attempts = i.attempts + 1, digest = EXCLUDED.digest, action = EXCLUDED.action,
       day = EXCLUDED.day, at = clock_timestamp();
  RETURN true;
END $$;

-- take is the first statement of an operation's transaction: it takes the lane under this fence and writes the effect's end, which
-- counts when the transaction commits. Locks first, each in its own statement, hence READ COMMITTED. The rest of the transaction
-- may wait no longer than what is left.
CREATE FUNCTION nightwarrant_guard.take(p_effect bytea, p_attempt bytea, p_lane bytea, p_fence bigint, p_admission bigint, p_digest bytea, p_left_ms bigint)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nightwarrant_guard, pg_temp AS $$
DECLARE today integer;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') = 'off' THEN
    RAISE EXCEPTION 'nightwarrant: an effect needs READ COMMITTED and synchronous commits' USING ERRCODE = 'NW002';
  END IF;
  PERFORM set_config(name, greatest(1, p_left_ms)::text, true)
     FROM unnest(ARRAY['lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout']) AS name;
  SELECT l.day INTO STRICT today FROM ledger l;
  INSERT INTO fences AS f (lane, fence, day) VALUES (p_lane, p_fence, today)
    ON CONFLICT (lane) DO UPDATE SET fence = EXCLUDED.fence, day = greatest(f.day, EXCLUDED.day) WHERE f.fence <= EXCLUDED.fence;
  IF NOT FOUND THEN RETURN 'fence_stale'; END IF;
  INSERT INTO effects (effect, attempt, outcome, lane, fence, admission, digest, day)
    VALUES (p_effect, p_attempt, 'committed', p_lane, p_fence, p_admission, p_digest, today) ON CONFLICT DO NOTHING;
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
  INSERT INTO effects (effect, attempt, outcome, day) SELECT p_effect, p_attempt, 'tombstone', l.day FROM ledger l ON CONFLICT DO NOTHING;
  SELECT e.outcome, e.attempt INTO STRICT prove.outcome, prove.attempt FROM effects e WHERE e.effect = p_effect;
END $$;

-- probe says whether an effect could be applied now, which data this is, and the highest that was ever seen (P24).
CREATE FUNCTION nightwarrant_guard.probe(OUT version integer, OUT writable boolean, OUT durable boolean, OUT dataset bytea, OUT fence bigint, OUT admission bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nightwarrant_guard, pg_temp AS $$
DECLARE l ledger;
BEGIN
  SELECT max(v.version) INTO probe.version FROM versions v;
  writable := NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off';
  durable := current_setting('synchronous_commit') <> 'off' AND current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on';
  SELECT * INTO STRICT l FROM ledger;
  dataset := l.dataset;
  SELECT greatest(l.fence, max(f.fence)) INTO probe.fence FROM fences f;
  SELECT greatest(l.admission, max(e.admission)) INTO probe.admission FROM effects e WHERE e.admission IS NOT NULL;
END $$;

-- purge lets the ledger's day go on and forgets at most so many rows of each table that the authority cannot ask for any more. Who comes while
-- another is at it does nothing; what is applied meanwhile waits for nothing.
CREATE FUNCTION nightwarrant_guard.purge(p_most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nightwarrant_guard, pg_temp AS $$
DECLARE l ledger; t timestamptz := clock_timestamp(); before integer := forgettable(); a bigint; f bigint; n integer; total integer := 0;
BEGIN
  SELECT * INTO l FROM ledger FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN RETURN 0; END IF;
  WITH old AS (SELECT effect FROM effects WHERE day < before ORDER BY day LIMIT p_most), gone AS (DELETE FROM effects e USING old WHERE e.effect = old.effect RETURNING admission)
    SELECT count(*), max(admission) INTO n, a FROM gone;
  total := total + n;
  WITH old AS (SELECT lane FROM fences WHERE day < before ORDER BY day LIMIT p_most FOR UPDATE SKIP LOCKED), gone AS (DELETE FROM fences x USING old WHERE x.lane = old.lane RETURNING fence)
    SELECT count(*), max(fence) INTO n, f FROM gone;
  total := total + n;
  DELETE FROM intents i USING (SELECT effect FROM intents WHERE day < before ORDER BY day LIMIT p_most FOR UPDATE SKIP LOCKED) old WHERE i.effect = old.effect;
  GET DIAGNOSTICS n = ROW_COUNT;
  total := total + n;
  l.worked := l.worked + greatest(interval '0', least(t - l.seen, interval '5 minutes'));
  UPDATE ledger SET seen = t, fence = greatest(ledger.fence, f), admission = greatest(ledger.admission, a),
    day = ledger.day + (l.worked >= interval '24 hours')::integer, worked = CASE WHEN l.worked >= interval '24 hours' THEN interval '0' ELSE l.worked END;
  RETURN total;
END $$;

-- shape describes tables, given as JSON: [[schema, name], …]. digest is over everything that decides what a statement does to them; problem names
-- the first table that cannot be guarded, because what happens to it is not in the effect's own transaction, or does not survive a crash.
CREATE FUNCTION nightwarrant_guard.shape(p_tables text, OUT problem text, OUT columns text, OUT digest bytea)
LANGUAGE sql STABLE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE rel AS (
    SELECT w->>0 AS schema, w->>1 AS name, c.oid, c.relkind, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity
      FROM json_array_elements(p_tables::json) w LEFT JOIN pg_namespace n ON n.nspname = w->>0 LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w->>1),
  part AS (SELECT oid AS root, oid FROM rel WHERE oid IS NOT NULL UNION SELECT p.root, i.inhrelid FROM part p JOIN pg_inherits i ON i.inhparent = p.oid),
  bad AS (
    SELECT schema, name, 'is not there' AS why FROM rel WHERE oid IS NULL
    UNION ALL SELECT schema, name, 'is not an ordinary table' FROM rel WHERE relkind NOT IN ('r', 'p')
    UNION ALL SELECT r.schema, r.name, 'or a part of it is foreign or unlogged' FROM rel r JOIN part p ON p.root = r.oid JOIN pg_class c ON c.oid = p.oid
      WHERE c.relkind = 'f' OR c.relpersistence <> 'p'),
  line AS (
    SELECT json_build_array('table', schema, name, relkind, relrowsecurity, relforcerowsecurity)::text AS l FROM rel
    UNION ALL SELECT json_build_array('column', schema, name, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
        a.attcollation::regcollation::text, pg_get_expr(d.adbin, d.adrelid))::text
      FROM rel JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    UNION ALL SELECT json_build_array('constraint', schema, name, k.conrelid::regclass::text, k.conname, pg_get_constraintdef(k.oid), k.convalidated)::text
      FROM rel JOIN pg_constraint k ON rel.oid IN (k.conrelid, k.confrelid)
    UNION ALL SELECT json_build_array('index', schema, name, pg_get_indexdef(i.indexrelid), i.indisvalid)::text
      FROM rel JOIN pg_index i ON i.indrelid = rel.oid WHERE i.indisunique
    UNION ALL SELECT json_build_array('trigger', schema, name, CASE WHEN NOT t.tgisinternal THEN pg_get_triggerdef(t.oid) END, k.conname, t.tgtype, t.tgenabled,
        p.oid::regproc::text, encode(sha256(convert_to(p.prosrc, 'UTF8')), 'hex'), p.prosecdef, p.proconfig::text)::text
      FROM rel JOIN pg_trigger t ON t.tgrelid = rel.oid JOIN pg_proc p ON p.oid = t.tgfoid LEFT JOIN pg_constraint k ON k.oid = t.tgconstraint
    UNION ALL SELECT json_build_array('rule', schema, name, pg_get_ruledef(w.oid), w.ev_enabled)::text FROM rel JOIN pg_rewrite w ON w.ev_class = rel.oid
    UNION ALL SELECT json_build_array('policy', schema, name, y.polname, y.polcmd, y.polpermissive, pg_get_expr(y.polqual, y.polrelid), pg_get_expr(y.polwithcheck, y.polrelid),
        ARRAY(SELECT CASE WHEN o = 0 THEN 'public' ELSE pg_get_userbyid(o)::text END FROM unnest(y.polroles) o ORDER BY 1))::text
      FROM rel JOIN pg_policy y ON y.polrelid = rel.oid)
  SELECT (SELECT format('%s.%s %s', schema, name, why) FROM bad ORDER BY 1 LIMIT 1),
    (SELECT coalesce(json_agg(json_build_array(schema, name, a.attname)), '[]')::text FROM rel JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped),
    (SELECT sha256(convert_to(coalesce(string_agg(l, E'\n' ORDER BY l COLLATE "C"), ''), 'UTF8')) FROM line) $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nightwarrant_guard FROM PUBLIC;
