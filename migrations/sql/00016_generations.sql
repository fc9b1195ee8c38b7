-- +goose Up
-- The generations of the cluster's keys (A11, B13, P27). Which of the keys that replicas hold are published, which one signs and which still verify is
-- decided here and nowhere else: replicas read it, so that they cannot differ. One step of a rotation is one transaction of nw_operator.
SET LOCAL ROLE nw_owner;

CREATE TABLE nw.key_generations (
  generation   bigint PRIMARY KEY CHECK (generation > 0),
  state        text NOT NULL CHECK (state IN ('next', 'current', 'previous', 'retired', 'withdrawn', 'cut_off')),
  kid          bytea NOT NULL UNIQUE CHECK (octet_length(kid) = 32),
  public_key   bytea NOT NULL UNIQUE CHECK (octet_length(public_key) = 65),
  nonce_check  bytea NOT NULL UNIQUE CHECK (octet_length(nonce_check) = 32),
  provenance   bytea NOT NULL CHECK (octet_length(provenance) = 32),
  published_at timestamptz NOT NULL,
  usable_at    timestamptz NOT NULL, -- before this somebody may not have heard of it
  activated_at timestamptz,
  needed_until timestamptz, -- what it signed may be good until then
  ended_at     timestamptz,
  CHECK ((activated_at IS NULL) = (state IN ('next', 'withdrawn')) OR state = 'cut_off'),
  CHECK ((ended_at IS NULL) = (state IN ('next', 'current', 'previous'))));
CREATE UNIQUE INDEX key_generations_in_force ON nw.key_generations (state) WHERE state IN ('next', 'current', 'previous');
SELECT nw.classify('key_generations', 'generation number, state state, kid digest, public_key public_key, nonce_check digest, provenance digest,
  published_at time, usable_at time, activated_at time, needed_until time, ended_at time');

CREATE TRIGGER key_generations_go_on BEFORE UPDATE ON nw.key_generations FOR EACH ROW
  WHEN ((NEW.generation, NEW.kid, NEW.public_key, NEW.nonce_check, NEW.provenance, NEW.published_at, NEW.usable_at)
      IS DISTINCT FROM (OLD.generation, OLD.kid, OLD.public_key, OLD.nonce_check, OLD.provenance, OLD.published_at, OLD.usable_at)
    OR NOT (OLD.state, NEW.state) IN (('next', 'current'), ('next', 'withdrawn'), ('current', 'previous'), ('current', 'cut_off'), ('previous', 'retired'), ('previous', 'cut_off')))
  EXECUTE FUNCTION nw.refuse_change('a generation of keys only goes on');
CREATE TRIGGER key_generations_kept BEFORE DELETE ON nw.key_generations FOR EACH ROW EXECUTE FUNCTION nw.refuse_change('rows are never deleted');
CREATE TRIGGER key_generations_whole BEFORE TRUNCATE ON nw.key_generations FOR EACH STATEMENT EXECUTE FUNCTION nw.refuse_change('rows are never deleted');

-- Which generations each boot of a replica has proved to hold.
CREATE TABLE nw.key_holders (
  instance_id bigint REFERENCES nw.instances,
  generation  bigint NOT NULL,
  boot        bigint NOT NULL,
  PRIMARY KEY (instance_id, generation));
SELECT nw.classify('key_holders', 'instance_id number, generation number, boot number');

-- register_keys enters the cluster's public identity, once (A11), with the times that every rotation waits for. As the operator's database role, and audited as that.
-- +goose StatementBegin
CREATE FUNCTION nw.register_keys(p_cluster bytea, p_generation bigint, p_kid bytea, p_public_key bytea, p_nonce_check bytea, p_provenance bytea, p_audit_key bytea,
  p_cache_ms bigint DEFAULT 60000, p_margin_ms bigint DEFAULT 60000, p_lifetime_ms bigint DEFAULT 300000, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE i authority_identity; c key_generations; t timestamptz := clock_timestamp();
BEGIN
  INSERT INTO authority_identity (cluster, audit_key, cache_ms, margin_ms, lifetime_ms) VALUES (p_cluster, p_audit_key, p_cache_ms, p_margin_ms, p_lifetime_ms) ON CONFLICT DO NOTHING;
  IF FOUND THEN
    INSERT INTO key_generations (generation, state, kid, public_key, nonce_check, provenance, published_at, usable_at, activated_at)
      VALUES (p_generation, 'current', p_kid, p_public_key, p_nonce_check, p_provenance, t, t, t);
    PERFORM nw.note('register_keys', 'ok', NULL, NULL, NULL, json_build_object('cluster', nw.hex(p_cluster), 'generation', p_generation, 'kid', nw.hex(p_kid), 'role', 'nw_operator'));
    verdict := 'ok';
    RETURN;
  END IF;
  SELECT * INTO STRICT i FROM authority_identity;
  SELECT * INTO STRICT c FROM key_generations WHERE state = 'current';
  verdict := CASE WHEN (i.cluster, i.audit_key, i.cache_ms, i.margin_ms, i.lifetime_ms) = (p_cluster, p_audit_key, p_cache_ms, p_margin_ms, p_lifetime_ms)
    AND (c.generation, c.kid, c.public_key, c.nonce_check, c.provenance) = (p_generation, p_kid, p_public_key, p_nonce_check, p_provenance) THEN 'ok' ELSE 'revision_immutable' END;
END $$;
-- +goose StatementEnd

-- lacking counts the replicas that report and have not proved that they hold a generation.
-- +goose StatementBegin
CREATE FUNCTION nw.lacking(p_generation bigint, OUT replicas bigint, OUT lacking bigint) LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
BEGIN
  SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (SELECT FROM key_holders h WHERE h.instance_id = s.id AND h.boot = s.boot AND h.generation = p_generation))
    INTO replicas, lacking FROM instances s
   WHERE s.kind = 'authority' AND EXISTS (SELECT FROM readiness_reports r WHERE r.instance_id = s.id AND r.boot = s.boot AND r.expires_at > clock_timestamp());
END $$;
-- +goose StatementEnd

-- key_state is what replicas follow and operators look at: the generations in force, or all, newest first.
-- +goose StatementBegin
CREATE FUNCTION nw.key_state(p_all boolean, OUT cluster bytea, OUT audit_key bytea, OUT cache_ms bigint, OUT margin_ms bigint, OUT lifetime_ms bigint, OUT db_now timestamptz, OUT generations json)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  SELECT i.cluster, i.audit_key, i.cache_ms, i.margin_ms, i.lifetime_ms INTO cluster, audit_key, cache_ms, margin_ms, lifetime_ms FROM authority_identity i;
  db_now := clock_timestamp();
  SELECT coalesce(json_agg(json_build_object('generation', k.generation, 'state', k.state, 'kid', nw.hex(k.kid), 'public_key', nw.hex(k.public_key), 'nonce_check', nw.hex(k.nonce_check),
      'provenance', nw.hex(k.provenance), 'published_at', k.published_at, 'usable_at', k.usable_at, 'activated_at', k.activated_at, 'needed_until', k.needed_until, 'ended_at', k.ended_at,
      'replicas', l.replicas, 'lacking', l.lacking) ORDER BY k.generation DESC), '[]') INTO generations
    FROM key_generations k LEFT JOIN LATERAL nw.lacking(k.generation) l ON p_all WHERE k.ended_at IS NULL OR p_all;
END $$;
-- +goose StatementEnd

-- hold_keys takes a replica's word for the generations whose private keys it has just proved to itself.
-- +goose StatementBegin
CREATE FUNCTION nw.hold_keys(p_instance bigint, p_boot bigint, p_generations bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  DELETE FROM key_holders WHERE instance_id = p_instance AND boot <= p_boot AND (boot < p_boot OR generation <> ALL (p_generations));
  INSERT INTO key_holders (instance_id, generation, boot) SELECT s.id, g, s.boot FROM instances s, unnest(p_generations[1:8]) g
    WHERE s.id = p_instance AND s.boot = p_boot AND s.kind = 'authority' ON CONFLICT DO NOTHING;
END $$;
-- +goose StatementEnd

-- rotate_keys is one step of a rotation, by compare-and-set on the generation that signs. Asked again, a step that was taken is `again`.
--   publish   announces the next generation, which nothing is signed with yet
--   activate  signs with it, once everybody may have heard of it (P27) and every replica that reports holds it
--   retire    ends the one before, once nothing that it signed is good any more
--   withdraw  takes an announced generation back
-- +goose StatementBegin
CREATE FUNCTION nw.rotate_keys(p_step text, p_cluster bytea, p_current bigint, p_next bigint, p_kid bytea, p_public_key bytea, p_nonce_check bytea, p_provenance bytea, p_audit_key bytea,
  OUT verdict text, OUT wait_ms bigint, OUT lacking bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE i authority_identity; c key_generations; n key_generations; p key_generations; t timestamptz; until timestamptz;
BEGIN
  SELECT * INTO i FROM authority_identity FOR UPDATE;
  SELECT * INTO c FROM key_generations WHERE state = 'current';
  SELECT * INTO n FROM key_generations WHERE state = 'next';
  SELECT * INTO p FROM key_generations WHERE state = 'previous';
  SELECT l.lacking INTO lacking FROM nw.lacking(n.generation) l;
  t := clock_timestamp();
  until := CASE p_step WHEN 'activate' THEN n.usable_at WHEN 'retire' THEN p.needed_until END;
  wait_ms := greatest(0, ceil(extract(epoch FROM until - t) * 1000));
  verdict := CASE
    WHEN i.cluster IS NULL OR p_step NOT IN ('publish', 'activate', 'retire', 'withdraw') THEN 'not_found'
    WHEN i.cluster <> p_cluster THEN 'foreign'
    WHEN p_step = 'publish' AND (n.generation, n.kid, n.public_key, n.nonce_check, n.provenance) = (p_next, p_kid, p_public_key, p_nonce_check, p_provenance) THEN 'again'
    WHEN p_step = 'activate' AND n.generation IS NULL AND c.generation = p_next THEN 'again'
    WHEN p_step = 'retire' AND p.generation IS NULL AND c.generation = p_current THEN 'again'
    WHEN p_step = 'withdraw' AND EXISTS (SELECT FROM key_generations WHERE generation = p_next AND state = 'withdrawn') THEN 'again'
    WHEN c.generation <> p_current THEN 'stale'
    WHEN p_step = 'publish' AND (n.generation IS NOT NULL OR p.generation IS NOT NULL) THEN 'unfinished'
    WHEN p_step = 'publish' AND (p_next <= (SELECT max(generation) FROM key_generations) OR i.audit_key <> p_audit_key
      OR EXISTS (SELECT FROM key_generations k WHERE p_kid = k.kid OR p_public_key = k.public_key OR p_nonce_check = k.nonce_check)) THEN 'foreign'
    WHEN p_step IN ('activate', 'withdraw') AND n.generation IS DISTINCT FROM p_next THEN 'stale'
    WHEN wait_ms > 0 THEN 'too_early'
    WHEN p_step = 'activate' AND lacking > 0 THEN 'lacking'
    ELSE 'ok' END;
  IF verdict <> 'ok' THEN RETURN; END IF;

  CASE p_step
    WHEN 'publish' THEN
      INSERT INTO key_generations (generation, state, kid, public_key, nonce_check, provenance, published_at, usable_at)
        VALUES (p_next, 'next', p_kid, p_public_key, p_nonce_check, p_provenance, t, t + make_interval(secs => (i.cache_ms + i.margin_ms) / 1000.0));
    WHEN 'activate' THEN
      UPDATE key_generations SET state = 'previous', needed_until = t + make_interval(secs => (i.lifetime_ms + i.margin_ms) / 1000.0) WHERE generation = p_current AND state = 'current';
      UPDATE key_generations SET state = 'current', activated_at = t WHERE generation = p_next AND state = 'next';
    WHEN 'retire' THEN
      UPDATE key_generations SET state = 'retired', ended_at = t WHERE state = 'previous';
    WHEN 'withdraw' THEN
      UPDATE key_generations SET state = 'withdrawn', ended_at = t WHERE generation = p_next AND state = 'next';
  END CASE;
  PERFORM nw.note('rotate_keys', 'ok', NULL, NULL, NULL, json_build_object('step', p_step, 'current', p_current, 'next', p_next, 'kid', nw.hex(coalesce(p_kid, n.kid, p.kid)), 'role', 'nw_operator'));
END $$;
-- +goose StatementEnd

-- cut_off_keys is for keys that somebody else may have: every older generation than this one is dead when it has committed. An announced one signs at
-- once, whoever has heard of it. It holds the gate alone, so that an admission is before it or after it.
-- +goose StatementBegin
CREATE FUNCTION nw.cut_off_keys(p_cluster bytea, p_generation bigint, OUT verdict text, OUT dead bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE i authority_identity; k key_generations; t timestamptz;
BEGIN
  PERFORM nw.alone();
  SELECT * INTO i FROM authority_identity FOR UPDATE;
  SELECT * INTO k FROM key_generations WHERE generation = p_generation AND state IN ('next', 'current');
  verdict := CASE WHEN i.cluster IS NULL THEN 'not_found' WHEN i.cluster <> p_cluster THEN 'foreign' WHEN k.generation IS NULL THEN 'stale' ELSE 'ok' END;
  dead := 0;
  IF verdict <> 'ok' THEN RETURN; END IF;
  t := clock_timestamp();
  UPDATE key_generations SET state = 'cut_off', ended_at = t WHERE generation < p_generation AND state IN ('current', 'previous');
  GET DIAGNOSTICS dead = ROW_COUNT;
  UPDATE key_generations SET state = 'current', activated_at = t WHERE generation = p_generation AND state = 'next';
  PERFORM nw.note('cut_off_keys', 'ok', NULL, NULL, NULL, json_build_object('generation', p_generation, 'dead', dead, 'kid', nw.hex(k.kid), 'role', 'nw_operator'));
END $$;
-- +goose StatementEnd

-- alive undoes a verb that has said `ok` to what was proved with a dead generation: of the capability, or of the nonce key. Zero is none. It stands behind
-- the verb in one statement, so the verb's lock is held when this reads: a replica that has not heard of a cut-off admits nothing after it.
-- +goose StatementBegin
CREATE FUNCTION nw.alive(p_verdict text, p_capability bigint, p_nonce bigint) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  IF p_verdict <> 'ok' THEN RETURN; END IF;
  IF p_capability > 0 AND NOT EXISTS (SELECT FROM key_generations WHERE generation = p_capability AND ended_at IS NULL) THEN
    RAISE EXCEPTION 'invalid_token' USING ERRCODE = 'NW409';
  END IF;
  IF p_nonce > 0 AND NOT EXISTS (SELECT FROM key_generations WHERE generation = p_nonce AND ended_at IS NULL) THEN
    RAISE EXCEPTION 'use_dpop_nonce' USING ERRCODE = 'NW409';
  END IF;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
DO $$
DECLARE f text;
BEGIN
  REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
  FOREACH f IN ARRAY ARRAY['key_state', 'hold_keys', 'alive'] LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION nw.%I TO nw_authority', f);
  END LOOP;
  FOREACH f IN ARRAY ARRAY['register_keys', 'key_state', 'rotate_keys', 'cut_off_keys'] LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION nw.%I TO nw_operator', f);
  END LOOP;
END $$;
-- +goose StatementEnd

RESET ROLE;
