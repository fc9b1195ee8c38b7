-- +goose Up
-- Run receipts: what one signed document says of a finished run, with the place of each of its audit rows in the signed log (B14).
SET LOCAL ROLE nw_owner;

CREATE INDEX audit_consents ON nw.audit (task_id, id) WHERE verb = 'consent';

-- show_receipt is what a run receipt is made of: audit rows of the run and of its consent, which a checkpoint covers. The last of them is record number `last`.
-- +goose StatementBegin
CREATE FUNCTION nw.show_receipt(p_member bytea, p_all boolean, p_run bytea, p_most integer,
  OUT verdict text, OUT task bytea, OUT revision bigint, OUT nominal_at timestamptz, OUT steps bigint, OUT currency text, OUT effects json, OUT profiles json, OUT records json, OUT last bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE r runs; c consents; these bigint[]; agreed bigint; numbered bigint;
BEGIN
  SELECT runs.* INTO r FROM runs WHERE ref = p_run AND (member = p_member OR p_all);
  SELECT consents.* INTO c FROM consents WHERE id = r.consent_id;
  SELECT a.id INTO agreed FROM audit a WHERE a.verb = 'consent' AND a.task_id = r.task_id AND convert_from(a.body, 'UTF8')::json->'more'->>'consent' = nw.hex(c.ref);
  these := ARRAY(SELECT a.id FROM audit a WHERE a.run_id = r.id AND a.verdict = 'ok'
    AND a.verb IN ('plan', 'claim', 'ask', 'decide', 'mint', 'admit', 'settle_effect', 'expire_effect', 'requeue', 'settle_run', 'end_run') ORDER BY a.id LIMIT p_most);
  SELECT count(*), max(l.leaf) INTO numbered, last FROM audit_leaves l WHERE l.audit_id = ANY (these);
  verdict := CASE
    WHEN r.id IS NULL THEN 'not_found'
    WHEN r.ended_at IS NULL THEN 'receipt_pending'
    WHEN agreed IS NULL OR NOT EXISTS (SELECT FROM audit a WHERE a.id = these[1] AND a.verb = 'plan') THEN 'receipt_gone'
    WHEN cardinality(these) = p_most THEN 'receipt_too_large'
    WHEN numbered < cardinality(these) OR NOT EXISTS (SELECT FROM audit_checkpoints k WHERE k.size > last) THEN 'receipt_pending'
    ELSE 'ok' END;
  IF verdict <> 'ok' THEN RETURN; END IF;

  revision := c.task_revision; nominal_at := r.nominal_at; steps := r.steps;
  SELECT k.ref INTO task FROM tasks k WHERE k.id = r.task_id;
  SELECT CASE WHEN c.max_spend > 0 THEN nw.currency_of(d.body) END INTO currency FROM documents d WHERE d.digest = c.digest;
  SELECT json_agg(json_build_object('number', e.id, 'guard', nw.hex(g.name), 'action', nw.hex(e.action), 'resource', nw.hex(e.resource)) ORDER BY e.id)
    INTO effects FROM nw.effects e JOIN registry g ON g.id = e.guard_id WHERE e.run_id = r.id;
  SELECT json_agg(json_build_object('number', g.id, 'name', nw.hex(g.name), 'revision', g.revision) ORDER BY g.id)
    INTO profiles FROM role_profiles p JOIN registry g ON g.id = p.profile_id WHERE p.role_id = r.role_id;
  SELECT json_agg(json_build_object('leaf', l.leaf, 'body', convert_from(a.body, 'UTF8')) ORDER BY l.leaf)
    INTO records FROM audit a JOIN audit_leaves l ON l.audit_id = a.id WHERE a.id = ANY (these || agreed);
END $$;
-- +goose StatementEnd

-- audit_stretches gives, for each of some records, the edge of the tree at the last checkpoint before it, and the digests from there to it: what it takes to know every
-- hash of the tree that this record completes. Checkpoints are a second apart, so a stretch is short.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_stretches(p_leaves bigint[]) RETURNS TABLE (leaf bigint, size bigint, edge bytea, digests bytea[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT x.leaf, coalesce(c.size, 0), coalesce(c.edge, ''), ARRAY(SELECT l.digest FROM audit_leaves l WHERE l.leaf >= coalesce(c.size, 0) AND l.leaf <= x.leaf ORDER BY l.leaf LIMIT 100000)
    FROM unnest(p_leaves) WITH ORDINALITY x(leaf, n) LEFT JOIN LATERAL (SELECT k.size, k.edge FROM audit_checkpoints k WHERE k.size <= x.leaf ORDER BY k.size DESC LIMIT 1) c ON true ORDER BY x.n;
END $$;
-- +goose StatementEnd

-- Disclosures --------------------------------------------------------------------------------------------------------

-- What an audit row holds a commitment to. A row here can go, and nothing that was signed changes; who has seen it before may still know.
CREATE TABLE nw.audit_disclosures (
  audit_id bigint NOT NULL,
  field    text NOT NULL CHECK (field = ANY (ARRAY['member'])),
  salt     bytea NOT NULL CHECK (octet_length(salt) = 32),
  value    bytea NOT NULL CHECK (octet_length(value) = 32),
  PRIMARY KEY (audit_id, field));
CREATE INDEX audit_disclosures_of ON nw.audit_disclosures (value, audit_id);
SELECT nw.classify('audit_disclosures', 'audit_id number, field state, salt reference, value reference');
CREATE TRIGGER audit_disclosures_fixed BEFORE UPDATE ON nw.audit_disclosures FOR EACH ROW EXECUTE FUNCTION nw.refuse_change('rows are inserted, and go');
CREATE TRIGGER audit_disclosures_whole BEFORE TRUNCATE ON nw.audit_disclosures FOR EACH STATEMENT EXECUTE FUNCTION nw.refuse_change('rows go by name');

-- audit_redact takes what is disclosed of a member out of at most p_limit rows, of all or of the named ones, for a reason that is on record; the member is not.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_redact(p_member bytea, p_rows bigint[], p_reason text, p_limit integer, OUT redacted bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE these bigint[];
BEGIN
  IF p_reason IS NULL OR p_reason NOT IN ('erasure', 'mistake', 'retention', 'other') OR p_member IS NULL THEN RAISE EXCEPTION 'invalid_request' USING ERRCODE = 'NW409'; END IF;
  these := ARRAY(SELECT x.audit_id FROM audit_disclosures x WHERE x.value = p_member AND (p_rows IS NULL OR x.audit_id = ANY (p_rows)) ORDER BY x.audit_id LIMIT p_limit FOR UPDATE);
  DELETE FROM audit_disclosures x WHERE x.audit_id = ANY (these) AND x.value = p_member;
  GET DIAGNOSTICS redacted = ROW_COUNT;
  IF redacted > 0 THEN PERFORM nw.operator_note('redact', json_build_object('reason', p_reason, 'rows', redacted, 'from', these[1], 'through', these[cardinality(these)])); END IF;
END $$;
-- +goose StatementEnd

-- audit_disclosed is what is disclosed of records [p_from, p_from + p_count), for an export.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_disclosed(p_from bigint, p_count bigint) RETURNS TABLE (leaf bigint, field text, salt bytea, value bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT l.leaf, x.field, x.salt, x.value FROM audit_leaves l JOIN audit_disclosures x ON x.audit_id = l.audit_id WHERE l.leaf >= p_from AND l.leaf < p_from + p_count ORDER BY l.leaf;
END $$;
-- +goose StatementEnd

-- Retention ----------------------------------------------------------------------------------------------------------

-- How many days audit rows stay. None: for ever. The least is the six months that a deployer of a high-risk system owes (Regulation (EU) 2024/1689, Article 26(6)), and a day.
CREATE FUNCTION nw.audit_least() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 185';
CREATE TABLE nw.audit_retention (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  keep_days integer NOT NULL CHECK (keep_days BETWEEN nw.audit_least() AND 36500));
SELECT nw.classify('audit_retention', 'singleton flag, keep_days number');

-- Up to where rows have gone: each time to the end of a signed checkpoint.
CREATE TABLE nw.audit_cuts (
  size bigint PRIMARY KEY CHECK (size > 0),
  at   timestamptz NOT NULL DEFAULT clock_timestamp());
SELECT nw.classify('audit_cuts', 'size number, at time');
CREATE TRIGGER audit_cuts_fixed BEFORE UPDATE ON nw.audit_cuts FOR EACH ROW EXECUTE FUNCTION nw.refuse_change('rows are only inserted');
CREATE TRIGGER audit_cuts_kept BEFORE DELETE ON nw.audit_cuts FOR EACH ROW EXECUTE FUNCTION nw.refuse_change('rows are never deleted');
CREATE TRIGGER audit_cuts_whole BEFORE TRUNCATE ON nw.audit_cuts FOR EACH STATEMENT EXECUTE FUNCTION nw.refuse_change('rows are never deleted');

-- A row goes only behind a cut. Its digest stays in nw.audit_leaves, and so does every proof.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_goes() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM audit_leaves l WHERE l.audit_id = OLD.id AND l.leaf < (SELECT max(c.size) FROM audit_cuts c)) THEN RETURN OLD; END IF;
  RAISE EXCEPTION 'nightwarrant: % on %: rows go only behind a cut', TG_OP, TG_TABLE_NAME USING ERRCODE = 'NW001';
END $$;
-- +goose StatementEnd
DROP TRIGGER audit_kept ON nw.audit;
CREATE TRIGGER audit_kept BEFORE DELETE ON nw.audit FOR EACH ROW EXECUTE FUNCTION nw.audit_goes();

-- audit_keep sets how long rows stay.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_keep(p_days integer, OUT least_days integer, OUT kept boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  least_days := nw.audit_least();
  kept := p_days BETWEEN least_days AND 36500;
  IF NOT kept THEN RETURN; END IF;
  INSERT INTO audit_retention (keep_days) VALUES (p_days) ON CONFLICT (singleton) DO UPDATE SET keep_days = EXCLUDED.keep_days;
  PERFORM nw.operator_note('retention', json_build_object('days', p_days));
END $$;
-- +goose StatementEnd

-- audit_plan says what a prune of rows before an instant could cut: from the last cut to the newest checkpoint all of whose rows are older.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_plan(p_before timestamptz, OUT keep_days integer, OUT too_young boolean, OUT from_size bigint, OUT size bigint, OUT root bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  SELECT r.keep_days, p_before > clock_timestamp() - make_interval(days => r.keep_days) INTO keep_days, too_young FROM audit_retention r;
  from_size := coalesce((SELECT max(c.size) FROM audit_cuts c), 0);
  SELECT c.size, c.root INTO size, root FROM audit_checkpoints c WHERE c.size > from_size AND c.at < p_before ORDER BY c.size DESC LIMIT 1;
END $$;
-- +goose StatementEnd

-- audit_prune takes the next rows out, at most about p_most and to the end of a checkpoint that is not beyond the one with this size and root, which the caller has found in
-- an export and at the anchors. What a consent that still stands rests on stays, until it has ended as long ago.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_prune(p_before timestamptz, p_size bigint, p_root bytea, p_most bigint, OUT cut bigint, OUT gone bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE last bigint; these bigint[]; days integer;
BEGIN
  SELECT r.keep_days INTO days FROM audit_retention r FOR UPDATE;
  IF days IS NULL OR p_before > clock_timestamp() - make_interval(days => days) OR NOT EXISTS (SELECT FROM audit_checkpoints c WHERE c.size = p_size AND c.root = p_root) THEN
    RAISE EXCEPTION 'invalid_request' USING ERRCODE = 'NW409';
  END IF;
  last := coalesce((SELECT max(c.size) FROM audit_cuts c), 0);
  gone := 0;
  SELECT c.size INTO cut FROM audit_checkpoints c WHERE c.size > last AND c.size <= least(p_size, greatest(last + p_most, (SELECT min(d.size) FROM audit_checkpoints d WHERE d.size > last)))
    ORDER BY c.size DESC LIMIT 1;
  IF cut IS NULL THEN RETURN; END IF;
  these := ARRAY(SELECT l.audit_id FROM audit_leaves l WHERE l.leaf >= last AND l.leaf < cut);
  IF EXISTS (SELECT FROM audit a WHERE a.id = ANY (these) AND a.at >= p_before) THEN RAISE EXCEPTION 'invalid_request' USING ERRCODE = 'NW409'; END IF;
  INSERT INTO audit_cuts (size) VALUES (cut);
  these := these || ARRAY(SELECT a.id FROM audit a JOIN audit_leaves l ON l.audit_id = a.id WHERE a.verb = 'consent' AND l.leaf < last);
  DELETE FROM audit a WHERE a.id = ANY (these) AND NOT (a.verb = 'consent' AND EXISTS (SELECT FROM consents c WHERE c.task_id = a.task_id AND (c.state = 'active' OR c.ended_at >= p_before)));
  GET DIAGNOSTICS gone = ROW_COUNT;
  DELETE FROM audit_disclosures x WHERE x.audit_id = ANY (these) AND NOT EXISTS (SELECT FROM audit a WHERE a.id = x.audit_id);
  PERFORM nw.operator_note('prune', json_build_object('from', last, 'to', cut, 'rows', gone, 'before', floor(extract(epoch FROM p_before))::bigint, 'root', nw.hex(p_root)));
END $$;
-- +goose StatementEnd

-- audit_cut is the edge of the tree at the last cut, from which an export may begin.
-- +goose StatementBegin
CREATE FUNCTION nw.audit_cut(OUT size bigint, OUT edge bytea) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  SELECT c.size, c.edge INTO size, edge FROM audit_checkpoints c WHERE c.size = (SELECT max(x.size) FROM audit_cuts x) LIMIT 1;
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nw.show_receipt, nw.audit_stretches, nw.audit_notes TO nw_authority;
GRANT EXECUTE ON FUNCTION nw.audit_redact, nw.audit_disclosed, nw.audit_keep, nw.audit_plan, nw.audit_prune, nw.audit_cut TO nw_operator;
RESET ROLE;
