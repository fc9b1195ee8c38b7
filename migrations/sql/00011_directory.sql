-- +goose Up
-- Membership (B12): every run acts as the member who consented, and the directory says whether that is a member now. Who admits brings the answer with
-- the question; here it is judged, in the same transaction. An answer counts for its member and for two seconds. No copy of the directory is kept.
SET LOCAL ROLE nw_owner;

-- said tells whether the directory has said of a member, at most two seconds ago, that they are one. p_asked are times of this database's clock at or
-- before which each question was sent; p_members are those who were found present. Anything else is no answer, and no answer closes. STABLE, as what it calls is: else it is not inlined.
CREATE FUNCTION nw.said(p_members bytea[], p_asked timestamptz[], p_member bytea, t timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT coalesce(p_asked[array_position(p_members, p_member)] BETWEEN t - interval '2 seconds' AND t, false) $$;

-- known_as is whom the directory is to be asked about: the owner whom a task revision names. The answer goes to replicas, and stays in no table.
CREATE FUNCTION nw.known_as(p_task bigint, p_revision bigint) RETURNS text LANGUAGE sql STABLE SET search_path = nw, pg_temp AS $$
  SELECT (convert_from(d.body, 'UTF8')::json->'owner')::text FROM task_revisions v JOIN documents d ON d.digest = v.document WHERE v.task_id = p_task AND v.revision = p_revision $$;

-- Consents that ended because their member had left.
CREATE TABLE nw.departures (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  member     bytea NOT NULL CHECK (octet_length(member) = 32),
  task_id    bigint NOT NULL REFERENCES nw.tasks,
  consent_id bigint NOT NULL UNIQUE REFERENCES nw.consents,
  epoch      bigint NOT NULL, -- of the task, from then on
  at         timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX departures_task ON nw.departures (task_id, id);
SELECT nw.classify('departures', 'id number, member reference, task_id number, consent_id number, epoch number, at time');
CREATE TRIGGER departures_fixed BEFORE UPDATE ON nw.departures FOR EACH ROW EXECUTE FUNCTION nw.refuse_change('rows are only inserted');
CREATE TRIGGER departures_kept BEFORE DELETE ON nw.departures FOR EACH ROW EXECUTE FUNCTION nw.refuse_change('rows are never deleted');
CREATE TRIGGER departures_whole BEFORE TRUNCATE ON nw.departures FOR EACH STATEMENT EXECUTE FUNCTION nw.refuse_change('rows are never deleted');

-- depart ends the active consents of a member whom the directory does not know any more, at most so many at once, and returns how many: all within a
-- role's time-out, however many there are; what is left admits nothing meanwhile. Always possible, and nothing but a fresh answer does it.
-- Whoever comes back must consent again.
-- +goose StatementBegin
CREATE FUNCTION nw.depart(p_member bytea, p_asked timestamptz, p_limit integer, OUT verdict text, OUT ended bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE task bigint; c consents; e bigint; these bigint[];
BEGIN
  PERFORM nw.enter();
  ended := 0;
  verdict := CASE WHEN nw.said(ARRAY[p_member], ARRAY[p_asked], p_member, clock_timestamp()) THEN 'ok' ELSE 'ask_directory' END;
  IF verdict <> 'ok' THEN RETURN; END IF;
  DELETE FROM sessions WHERE member = p_member;
  these := ARRAY(SELECT l.task_id FROM consents o JOIN lanes l ON l.consent_id = o.id WHERE o.member = p_member AND o.state = 'active' ORDER BY l.task_id LIMIT p_limit);
  PERFORM FROM lanes WHERE task_id = ANY (these) ORDER BY task_id FOR NO KEY UPDATE;
  FOREACH task IN ARRAY these LOOP
    SELECT * INTO c FROM consents WHERE task_id = task AND member = p_member AND state = 'active';
    CONTINUE WHEN c.id IS NULL;
    e := nw.end_consent(task, 'revoked');
    INSERT INTO departures (member, task_id, consent_id, epoch) VALUES (p_member, task, c.id, e);
    PERFORM nw.note_about(p_member, 'depart', 'ok', task, NULL, NULL, json_build_object('consent', nw.hex(c.ref), 'epoch', e));
    ended := ended + 1;
  END LOOP;
END $$;
-- +goose StatementEnd

-- stranded lists tasks whose owner has left and whom nobody has consented to since: an operator hands them over, with a new revision for another owner.
-- Newest first; p_before is the id of the last one seen.
-- +goose StatementBegin
CREATE FUNCTION nw.stranded(p_before bigint, p_limit integer) RETURNS TABLE (id bigint, task bytea, member bytea, at timestamptz, body bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT x.id, k.ref, x.member, x.at, d.body
    FROM departures x JOIN tasks k ON k.id = x.task_id AND k.owner = x.member JOIN lanes l ON l.task_id = k.id AND l.consent_id IS NULL
    JOIN task_revisions v ON v.task_id = k.id AND v.revision = l.task_revision JOIN documents d ON d.digest = v.document
   WHERE (p_before IS NULL OR x.id < p_before) AND NOT EXISTS (SELECT FROM departures y WHERE y.task_id = x.task_id AND y.id > x.id) ORDER BY x.id DESC LIMIT p_limit;
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nw.depart, nw.stranded TO nw_authority;
RESET ROLE;
