-- +goose Up
-- Sessions of people who sign in at the console. A cookie's token stands nowhere: a session is found by its digest, and who it is can be read only with
-- the token. What is signed into is the one thing that a session is for; what its person may do is decided by the verbs, as for an envelope.
SET LOCAL ROLE nw_owner;

CREATE TABLE nw.sessions (
  digest     bytea PRIMARY KEY CHECK (octet_length(digest) = 32), -- of the cookie's token
  member     bytea NOT NULL CHECK (octet_length(member) = 32),
  sealed     bytea NOT NULL CHECK (octet_length(sealed) BETWEEN 29 AND 4096), -- issuer and pairwise subject, under a key that the token makes
  idle_ms    integer NOT NULL CHECK (idle_ms BETWEEN 60000 AND 43200000),
  began_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  idle_until timestamptz NOT NULL,
  ends_at    timestamptz NOT NULL CHECK (ends_at > began_at AND ends_at <= began_at + interval '12 hours 1 minute'),
  CHECK (idle_until <= ends_at));
CREATE INDEX sessions_over ON nw.sessions (idle_until);
CREATE INDEX sessions_member ON nw.sessions (member, began_at);
SELECT nw.classify('sessions', 'digest digest, member reference, sealed sealed, idle_ms number, began_at time, idle_until time, ends_at time');

-- A session is somebody's from its beginning, and its end never moves.
-- +goose StatementBegin
CREATE FUNCTION nw.sessions_fixed() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  IF (NEW.digest, NEW.member, NEW.sealed, NEW.idle_ms, NEW.began_at, NEW.ends_at) IS DISTINCT FROM (OLD.digest, OLD.member, OLD.sealed, OLD.idle_ms, OLD.began_at, OLD.ends_at)
     OR OLD.idle_until <= clock_timestamp() THEN
    RAISE EXCEPTION 'a session only stays awake' USING ERRCODE = 'NW001';
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER sessions_fixed BEFORE UPDATE ON nw.sessions FOR EACH ROW EXECUTE FUNCTION nw.sessions_fixed();

-- begin_session begins a session with an ID token and with the attempt to sign in that it answers. Both belong to it from now on, so that neither begins
-- another one (A3). A member has at most 20 sessions: the one that was used longest ago gives way.
-- +goose StatementBegin
CREATE FUNCTION nw.begin_session(p_session bytea, p_member bytea, p_sealed bytea, p_envelope bytea, p_until timestamptz, p_attempt bytea, p_attempt_until timestamptz,
  p_idle_ms integer, p_life_ms integer, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE t timestamptz := clock_timestamp(); life interval := make_interval(secs => p_life_ms / 1000.0);
BEGIN
  verdict := nw.owner_verdict(p_envelope, p_until, p_session);
  IF verdict = 'ok' THEN verdict := nw.owner_verdict(p_attempt, p_attempt_until, p_session); END IF;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('sign_in', CASE verdict WHEN 'invalid_client' THEN 'invalid_envelope' ELSE verdict END, NULL, NULL, NULL, p_session);
    RETURN;
  END IF;
  INSERT INTO sessions (digest, member, sealed, idle_ms, began_at, idle_until, ends_at)
    VALUES (p_session, p_member, p_sealed, p_idle_ms, t, t + least(life, make_interval(secs => p_idle_ms / 1000.0)), t + life);
  DELETE FROM sessions WHERE digest IN (SELECT s.digest FROM sessions s WHERE s.member = p_member AND s.digest <> p_session ORDER BY s.idle_until DESC OFFSET 19);
  PERFORM nw.own_assertion(p_envelope, p_until, p_session);
  PERFORM nw.own_assertion(p_attempt, p_attempt_until, p_session);
  PERFORM nw.note_about(p_member, 'sign_in', 'ok', NULL, NULL, NULL, NULL);
END $$;
-- +goose StatementEnd

-- find_session finds a session that lasts, and keeps it awake when its person did something. It writes at most twice a minute, and says when: that is
-- when the directory is asked about its member.
-- +goose StatementBegin
CREATE FUNCTION nw.find_session(p_session bytea, p_awake boolean, OUT member bytea, OUT sealed bytea, OUT idle_until timestamptz, OUT ends_at timestamptz, OUT db_now timestamptz,
  OUT woken boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE s sessions; awake timestamptz;
BEGIN
  db_now := clock_timestamp();
  SELECT x.* INTO s FROM sessions x WHERE x.digest = p_session AND x.idle_until > db_now;
  awake := least(s.ends_at, db_now + make_interval(secs => s.idle_ms / 1000.0));
  woken := coalesce(p_awake AND awake >= s.idle_until + interval '30 seconds', false);
  IF woken THEN
    UPDATE sessions x SET idle_until = awake WHERE x.digest = p_session AND x.idle_until > db_now RETURNING x.* INTO s; -- none when it ended meanwhile
  END IF;
  member := s.member; sealed := s.sealed; idle_until := s.idle_until; ends_at := s.ends_at;
END $$;
-- +goose StatementEnd

-- end_session ends a session, or all of its member's.
-- +goose StatementBegin
CREATE FUNCTION nw.end_session(p_session bytea, p_all boolean, OUT ended bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE whose bytea;
BEGIN
  SELECT s.member INTO whose FROM sessions s WHERE s.digest = p_session AND s.idle_until > clock_timestamp();
  DELETE FROM sessions s WHERE s.digest = p_session OR p_all AND s.member = whose;
  GET DIAGNOSTICS ended = ROW_COUNT;
  IF whose IS NOT NULL THEN
    PERFORM nw.note_about(whose, 'sign_out', 'ok', NULL, NULL, NULL, json_build_object('sessions', ended));
  END IF;
END $$;
-- +goose StatementEnd

-- expire_sessions forgets what is over.
-- +goose StatementBegin
CREATE FUNCTION nw.expire_sessions(p_limit integer, OUT expired bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  DELETE FROM sessions s WHERE s.digest IN (SELECT x.digest FROM sessions x WHERE x.idle_until <= clock_timestamp() LIMIT p_limit FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS expired = ROW_COUNT;
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nw.begin_session, nw.find_session, nw.end_session, nw.expire_sessions TO nw_authority;
RESET ROLE;
