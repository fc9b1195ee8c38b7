-- +goose Up
-- Run receipts: what one signed document says of a finished run, with the place of each of its audit rows in the signed log (B14).
SET LOCAL ROLE nw_owner;

CREATE INDEX audit_consents ON nw.audit (task_id, id) WHERE verb = 'consent';

-- show_receipt is what a run receipt is made of: audit rows of the run and of its consent, and the first checkpoint that covers them all.
-- +goose StatementBegin
CREATE FUNCTION nw.show_receipt(p_member bytea, p_all boolean, p_run bytea, p_most integer,
  OUT verdict text, OUT number bigint, OUT task bytea, OUT revision bigint, OUT nominal_at timestamptz, OUT steps bigint, OUT currency text, OUT effects json, OUT profiles json, OUT records json,
  OUT size bigint, OUT at timestamptz, OUT root bytea, OUT incarnation bigint, OUT epoch bigint, OUT signature bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE r runs; c consents; these bigint[]; agreed bigint; last bigint; numbered bigint;
BEGIN
  SELECT runs.* INTO r FROM runs WHERE ref = p_run AND (member = p_member OR p_all);
  SELECT consents.* INTO c FROM consents WHERE id = r.consent_id;
  SELECT a.id INTO agreed FROM audit a WHERE a.verb = 'consent' AND a.task_id = r.task_id AND convert_from(a.body, 'UTF8')::json->'more'->>'consent' = nw.hex(c.ref);
  these := ARRAY(SELECT a.id FROM audit a WHERE a.run_id = r.id AND a.verdict = 'ok'
    AND a.verb IN ('plan', 'claim', 'ask', 'decide', 'mint', 'admit', 'settle_effect', 'expire_effect', 'requeue', 'settle_run', 'end_run') ORDER BY a.id LIMIT p_most);
  SELECT count(*), max(l.leaf) INTO numbered, last FROM audit_leaves l WHERE l.audit_id = ANY (these);
  SELECT k.size, k.at, k.root, k.incarnation, k.epoch, k.signature INTO size, at, root, incarnation, epoch, signature FROM audit_checkpoints k WHERE k.size > last ORDER BY k.size, k.at LIMIT 1;
  verdict := CASE
    WHEN r.id IS NULL THEN 'not_found'
    WHEN r.ended_at IS NULL THEN 'receipt_pending'
    WHEN agreed IS NULL OR NOT EXISTS (SELECT FROM audit a WHERE a.id = these[1] AND a.verb = 'plan') THEN 'receipt_gone'
    WHEN cardinality(these) = p_most THEN 'receipt_too_large'
    WHEN numbered < cardinality(these) OR size IS NULL THEN 'receipt_pending'
    ELSE 'ok' END;
  IF verdict <> 'ok' THEN RETURN; END IF;

  number := r.id; revision := c.task_revision; nominal_at := r.nominal_at; steps := r.steps;
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

REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nw.show_receipt, nw.audit_stretches TO nw_authority;
RESET ROLE;
