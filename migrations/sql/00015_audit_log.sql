-- +goose Up
-- The audit log over the audit rows: numbers in the order in which rows were seen committed, and checkpoints that the log's own key has signed (B14).
-- Verbs of admission only leave a row waiting, so they wait for nobody; one replica at a time numbers what waits.
SET LOCAL ROLE nw_owner;

-- Rows without a number yet: few, and gone within a fraction of a second.
CREATE TABLE nw.audit_waiting (audit_id bigint PRIMARY KEY) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
SELECT nw.classify('audit_waiting', 'audit_id number');

-- The digest stands here too, so that every proof stays when a row's body goes.
CREATE TABLE nw.audit_leaves (
  leaf     bigint PRIMARY KEY CHECK (leaf >= 0),
  audit_id bigint NOT NULL UNIQUE,
  digest   bytea NOT NULL CHECK (octet_length(digest) = 32));
SELECT nw.classify('audit_leaves', 'leaf number, audit_id number, digest digest');

CREATE TABLE nw.audit_head (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  size      bigint NOT NULL CHECK (size >= 0),
  leader    bytea CHECK (octet_length(leader) = 32),
  led_until timestamptz NOT NULL DEFAULT '-infinity') WITH (fillfactor = 20);
SELECT nw.classify('audit_head', 'singleton flag, size number, leader digest, led_until time');
INSERT INTO nw.audit_head (size) VALUES (0);

CREATE TABLE nw.audit_checkpoints (
  size        bigint NOT NULL CHECK (size > 0),
  at          timestamptz NOT NULL CHECK (at = date_trunc('milliseconds', at)),
  root        bytea NOT NULL CHECK (octet_length(root) = 32),
  edge        bytea NOT NULL CHECK (octet_length(edge) % 32 = 0), -- of the tree, to go on from
  incarnation bigint NOT NULL,
  epoch       bigint NOT NULL,
  signature   bytea NOT NULL CHECK (octet_length(signature) = 64),
  PRIMARY KEY (size, at));
SELECT nw.classify('audit_checkpoints', 'size number, at time, root digest, edge digest, incarnation number, epoch number, signature digest');

-- What witnesses have made of a checkpoint: the key's ID, the time and the signature (C2SP tlog-cosignature).
CREATE TABLE nw.audit_cosignatures (
  size        bigint NOT NULL,
  at          timestamptz NOT NULL,
  cosignature bytea NOT NULL CHECK (octet_length(cosignature) = 76),
  PRIMARY KEY (size, at, cosignature),
  FOREIGN KEY (size, at) REFERENCES nw.audit_checkpoints);
SELECT nw.classify('audit_cosignatures', 'size number, at time, cosignature digest');

-- An operator's decisions to go on from fewer records than an anchor knows, each by the incarnation that it began: how many records the log has in common with what is given up,
-- and the checkpoint that is given up.
CREATE TABLE nw.audit_resumptions (
  incarnation bigint PRIMARY KEY CHECK (incarnation > 1),
  size        bigint NOT NULL CHECK (size >= 0),
  lost_size   bigint NOT NULL CHECK (lost_size > size),
  lost_root   bytea NOT NULL CHECK (octet_length(lost_root) = 32),
  lost_of     bigint NOT NULL CHECK (lost_of >= 0 AND lost_of < incarnation));
SELECT nw.classify('audit_resumptions', 'incarnation number, size number, lost_size number, lost_root digest, lost_of number');

-- +goose StatementBegin
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['audit_leaves', 'audit_checkpoints', 'audit_cosignatures', 'audit_resumptions'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE ON nw.%I FOR EACH ROW EXECUTE FUNCTION nw.refuse_change(''rows are only inserted'')', t || '_fixed', t);
    EXECUTE format('CREATE TRIGGER %I BEFORE DELETE ON nw.%I FOR EACH ROW EXECUTE FUNCTION nw.refuse_change(''rows are never deleted'')', t || '_kept', t);
    EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON nw.%I FOR EACH STATEMENT EXECUTE FUNCTION nw.refuse_change(''rows are never deleted'')', t || '_whole', t);
  END LOOP;
END $$;
-- +goose StatementEnd

-- A row that is written waits, whoever wrote it.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_wait() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO nw.audit_waiting (audit_id) VALUES (NEW.id);
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER audit_waits AFTER INSERT ON nw.audit FOR EACH ROW EXECUTE FUNCTION nw.audit_wait();

-- audit_resumed is the decision under which a checkpoint of an incarnation was signed; no row for a log that goes on as it began.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_resumed(p_incarnation bigint) RETURNS SETOF nw.audit_resumptions LANGUAGE plpgsql STABLE SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT r.* FROM audit_resumptions r WHERE r.incarnation <= p_incarnation ORDER BY r.incarnation DESC LIMIT 1;
END $$;
-- +goose StatementEnd

-- audit_lead makes a replica the one that numbers, or keeps it so for two seconds more, and hands it what waits. No row: another one is.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_lead(p_who bytea, p_limit integer) RETURNS TABLE (at timestamptz, size bigint, incarnation bigint, epoch bigint, ids bigint[], digests bytea[],
  resumed bigint, resumed_from bigint, lost_size bigint, lost_root bytea, lost_of bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE t timestamptz := clock_timestamp(); n bigint;
BEGIN
  UPDATE audit_head h SET leader = p_who, led_until = t + interval '2 seconds' WHERE h.leader = p_who OR h.led_until < t RETURNING h.size INTO n;
  IF NOT FOUND THEN RETURN; END IF;
  RETURN QUERY SELECT date_trunc('milliseconds', t), n, d.incarnation, d.epoch, w.ids, w.digests, r.incarnation, r.size, r.lost_size, r.lost_root, r.lost_of
    FROM readiness_decision d LEFT JOIN LATERAL nw.audit_resumed(d.incarnation) r ON true,
    (SELECT coalesce(array_agg(x.audit_id ORDER BY x.audit_id), '{}') AS ids, coalesce(array_agg(x.digest ORDER BY x.audit_id), '{}') AS digests
       FROM (SELECT y.audit_id, a.digest FROM audit_waiting y JOIN audit a ON a.id = y.audit_id ORDER BY y.audit_id LIMIT p_limit) x) w;
END $$;
-- +goose StatementEnd

-- audit_append numbers rows after the first p_size, all or none. What was numbered in the meantime by another refuses it.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_append(p_who bytea, p_size bigint, p_ids bigint[], OUT appended boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE n bigint;
BEGIN
  UPDATE audit_head h SET size = h.size + cardinality(p_ids) WHERE h.size = p_size AND h.leader = p_who;
  appended := FOUND;
  IF NOT appended THEN RETURN; END IF;
  DELETE FROM audit_waiting WHERE audit_id = ANY (p_ids);
  INSERT INTO audit_leaves (leaf, audit_id, digest) SELECT p_size + x.n - 1, x.id, a.digest FROM unnest(p_ids) WITH ORDINALITY x(id, n) JOIN audit a ON a.id = x.id;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n <> cardinality(p_ids) THEN RAISE EXCEPTION 'nightwarrant: a row to be numbered is not there' USING ERRCODE = 'NW001'; END IF;
END $$;
-- +goose StatementEnd

-- audit_sign keeps the checkpoint of a size that the log has, or had under the same leader.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_sign(p_who bytea, p_size bigint, p_at timestamptz, p_root bytea, p_edge bytea, p_incarnation bigint, p_epoch bigint, p_signature bytea, OUT kept boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  INSERT INTO audit_checkpoints (size, at, root, edge, incarnation, epoch, signature) SELECT p_size, p_at, p_root, p_edge, p_incarnation, p_epoch, p_signature
    FROM audit_head h WHERE h.leader = p_who AND h.size >= p_size AND p_size >= coalesce((SELECT max(c.size) FROM audit_checkpoints c), 0);
  kept := FOUND;
END $$;
-- +goose StatementEnd

-- audit_cosign keeps what a witness has made of a checkpoint.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_cosign(p_size bigint, p_at timestamptz, p_cosignature bytea, OUT kept boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  INSERT INTO audit_cosignatures (size, at, cosignature) SELECT c.size, c.at, p_cosignature FROM audit_checkpoints c WHERE c.size = p_size AND c.at = p_at ON CONFLICT DO NOTHING;
  kept := FOUND;
END $$;
-- +goose StatementEnd

-- audit_last is the newest checkpoint of at most a size, from which a replica that begins to number goes on.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_last(p_most bigint DEFAULT 9223372036854775807) RETURNS TABLE (size bigint, at timestamptz, root bytea, edge bytea, incarnation bigint, epoch bigint, signature bytea,
  resumed bigint, resumed_from bigint, lost_size bigint, lost_root bytea, lost_of bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT c.*, r.* FROM audit_checkpoints c LEFT JOIN LATERAL nw.audit_resumed(c.incarnation) r ON true WHERE c.size <= p_most ORDER BY c.size DESC, c.at DESC LIMIT 1;
END $$;
-- +goose StatementEnd

-- audit_resume is an operator's decision that the log goes on from what this database holds, although more was signed: a new incarnation begins, and every checkpoint of the log
-- names from now on what was lost. What is lost is the longest checkpoint that an anchor or a witness has; a decision that gave up too little can be made again as long as
-- nothing was signed under it.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_resume(p_lost bigint, p_root bytea, p_of bigint, p_incarnation bigint, OUT incarnation bigint, OUT size bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  PERFORM nw.alone();
  size := coalesce((SELECT max(c.size) FROM audit_checkpoints c), 0);
  IF p_lost <= size OR EXISTS (SELECT FROM audit_resumptions r JOIN audit_checkpoints c ON c.incarnation >= r.incarnation WHERE r.incarnation > p_of) THEN RAISE EXCEPTION 'invalid_request' USING ERRCODE = 'NW409'; END IF;
  PERFORM nw.reincarnate('restored', p_incarnation);
  SELECT d.incarnation INTO STRICT incarnation FROM readiness_decision d;
  INSERT INTO audit_resumptions VALUES (incarnation, size, p_lost, p_root, p_of);
  PERFORM nw.operator_note('resume_log', json_build_object('incarnation', incarnation, 'from', size, 'lost', p_lost, 'root', nw.hex(p_root), 'of', p_of));
END $$;
-- +goose StatementEnd

-- Exporting: records by their numbers, checkpoints by their sizes. Keyset: what is numbered stays where it is.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_records(p_from bigint, p_limit integer) RETURNS TABLE (leaf bigint, audit_id bigint, digest bytea, body bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT l.leaf, l.audit_id, l.digest, a.body FROM audit_leaves l LEFT JOIN audit a ON a.id = l.audit_id WHERE l.leaf >= p_from ORDER BY l.leaf LIMIT p_limit;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION nw.audit_notes(p_size bigint, p_at timestamptz, p_limit integer) RETURNS TABLE (size bigint, at timestamptz, root bytea, edge bytea, incarnation bigint, epoch bigint, signature bytea,
  resumed bigint, resumed_from bigint, lost_size bigint, lost_root bytea, lost_of bigint, cosignatures bytea[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT c.*, r.*, ARRAY(SELECT w.cosignature FROM audit_cosignatures w WHERE w.size = c.size AND w.at = c.at)
    FROM audit_checkpoints c LEFT JOIN LATERAL nw.audit_resumed(c.incarnation) r ON true WHERE (c.size, c.at) > (p_size, p_at) ORDER BY c.size, c.at LIMIT p_limit;
END $$;
-- +goose StatementEnd

-- audit_lag is how long a row has waited for a number, or a number for a signature, in milliseconds.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_lag(OUT waiting_ms bigint, OUT unsigned_ms bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE t timestamptz := clock_timestamp();
BEGIN
  waiting_ms := coalesce((SELECT extract(epoch FROM t - a.at) * 1000 FROM audit a WHERE a.id = (SELECT min(w.audit_id) FROM audit_waiting w)), 0)::bigint;
  unsigned_ms := coalesce((SELECT extract(epoch FROM t - a.at) * 1000 FROM audit_leaves l JOIN audit a ON a.id = l.audit_id
    WHERE l.leaf = coalesce((SELECT max(c.size) FROM audit_checkpoints c), 0)), 0)::bigint;
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nw.audit_lead, nw.audit_append, nw.audit_sign, nw.audit_cosign, nw.audit_last, nw.audit_records, nw.audit_lag TO nw_authority;
GRANT EXECUTE ON FUNCTION nw.audit_records, nw.audit_notes, nw.audit_resume TO nw_operator;
RESET ROLE;
