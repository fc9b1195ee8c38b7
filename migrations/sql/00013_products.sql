-- +goose Up
-- Narrowing: what a member allows of an offer is the offer or less, whoever asks. What the authority has computed is compared here once more,
-- from the stored documents themselves.
SET LOCAL ROLE nw_owner;

-- named is the digest under which verbs know a name, an action, a resource or a key.
CREATE FUNCTION nw.named(p_domain text, p_name text) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
  $$ SELECT sha256(convert_to('nightwarrant/' || p_domain || '/v1', 'UTF8') || '\x00'::bytea || convert_to(p_name, 'UTF8')) $$;

-- rank is a risk's number, or NULL for a word that is none.
CREATE FUNCTION nw.rank(p_risk text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT array_position(ARRAY['none', 'read', 'low', 'high'], p_risk) - 1 $$;

-- limits_within compares limits. Of a day or month 0 is no bound.
CREATE FUNCTION nw.limits_within(g jsonb, o jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT bool_and(coalesce((g->>f)::bigint, 0) >= 0 AND CASE
      WHEN f IN ('effects_day', 'effects_month', 'spend_day', 'spend_month') THEN coalesce((o->>f)::bigint, 0) = 0 OR (g->>f)::bigint BETWEEN 1 AND (o->>f)::bigint
      ELSE coalesce((g->>f)::bigint, 0) <= coalesce((o->>f)::bigint, 0) END)
    AND g->>'currency' IS NOT DISTINCT FROM o->>'currency'
    FROM unnest(ARRAY['runtime_s', 'effects', 'steps', 'repeats', 'spend', 'effects_day', 'effects_month', 'spend_day', 'spend_month']) f $$;

-- grant_within says that a grant is one of the offer, or less of it.
CREATE FUNCTION nw.grant_within(g jsonb, o jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT g - ARRAY['max_amount', 'pre_approved'] = o - ARRAY['max_amount', 'pre_approved']
     AND coalesce((g->>'max_amount')::bigint, 0) BETWEEN 0 AND coalesce((o->>'max_amount')::bigint, 0)
     AND NOT EXISTS (SELECT value FROM jsonb_array_elements(coalesce(g->'pre_approved', '[]')) EXCEPT SELECT value FROM jsonb_array_elements(coalesce(o->'pre_approved', '[]'))) $$;

-- within says that a consent document is the same as an offered one, or less: no other or wider grant, every required one, no higher limit or dial,
-- no later end, and nothing else that differs but what happens when more is needed.
-- +goose StatementBegin
CREATE FUNCTION nw.within(p_granted bytea, p_offered bytea) RETURNS boolean LANGUAGE plpgsql IMMUTABLE SET search_path = nw, pg_temp AS $$
DECLARE g jsonb := convert_from(p_granted, 'UTF8')::jsonb; o jsonb := convert_from(p_offered, 'UTF8')::jsonb; free text[] := ARRAY['grants', 'limits', 'dial', 'expires', 'when_more_is_needed'];
BEGIN
  RETURN coalesce(p_granted = p_offered OR (
    g - free = o - free AND g->>'when_more_is_needed' IN ('wait', 'stop')
    AND nw.rank(g->>'dial') <= nw.rank(o->>'dial') AND (g->>'expires')::timestamptz <= (o->>'expires')::timestamptz
    AND nw.limits_within(g->'limits', o->'limits')
    AND jsonb_array_length(g->'grants') > 0
    AND NOT EXISTS (SELECT FROM jsonb_array_elements(g->'grants') x WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(o->'grants') y WHERE nw.grant_within(x.value, y.value)))
    AND NOT EXISTS (SELECT FROM jsonb_array_elements(o->'grants') y WHERE NOT coalesce((y.value->>'optional')::boolean, false)
      AND NOT EXISTS (SELECT FROM jsonb_array_elements(g->'grants') x WHERE nw.grant_within(x.value, y.value)))), false);
END $$;
-- +goose StatementEnd

-- says compares the lines of a consent with its document, line by line.
-- +goose StatementBegin
CREATE FUNCTION nw.says(p_body bytea, p_terms json) RETURNS boolean LANGUAGE plpgsql IMMUTABLE SET search_path = nw, pg_temp AS $$
DECLARE c json := convert_from(p_body, 'UTF8')::json; l json := c->'limits'; lines jsonb;
BEGIN
  SELECT jsonb_agg(jsonb_build_object('guard', nw.hex(nw.named('name', g->>'guard')), 'action', nw.hex(nw.named('action', g->>'action')),
      'resource', nw.hex(nw.named('resource', g->>'resource')), 'risk', nw.rank(g->>'risk'), 'max_amount', coalesce((g->>'max_amount')::bigint, 0),
      'currency', nw.hex(nw.named('name', g->>'currency')),
      'keys', (SELECT jsonb_agg(nw.hex(nw.named('pre-approved-key', y.value::text)) ORDER BY y.ordinality) FROM json_array_elements(g->'pre_approved') WITH ORDINALITY y)) ORDER BY n)
    INTO lines FROM json_array_elements(c->'grants') WITH ORDINALITY x(g, n);
  RETURN coalesce((c->>'not_before')::timestamptz = (p_terms->>'not_before')::timestamptz AND (c->>'expires')::timestamptz = (p_terms->>'expires_at')::timestamptz
    AND jsonb_strip_nulls(p_terms::jsonb) - ARRAY['first_at', 'zone', 'not_before', 'expires_at'] = jsonb_strip_nulls(jsonb_build_object(
      'dial', nw.rank(c->>'dial'), 'run_limit_ms', (l->>'runtime_s')::bigint * 1000, 'max_effects', (l->>'effects')::bigint, 'max_steps', (l->>'steps')::bigint,
      'max_repeats', (l->>'repeats')::bigint, 'max_spend', coalesce((l->>'spend')::bigint, 0), 'currency', nw.hex(nw.named('name', l->>'currency')),
      'effects_day', coalesce((l->>'effects_day')::bigint, 0), 'effects_month', coalesce((l->>'effects_month')::bigint, 0),
      'spend_day', coalesce((l->>'spend_day')::bigint, 0), 'spend_month', coalesce((l->>'spend_month')::bigint, 0),
      'member_spend_day', coalesce((c->>'member_spend_day')::bigint, 0), 'member_spend_month', coalesce((c->>'member_spend_month')::bigint, 0),
      'silence', c->>'when_more_is_needed', 'window_ms', (c->>'decision_window_s')::bigint * 1000, 'grants', lines)), false);
END $$;
-- +goose StatementEnd

-- What can be agreed to lies within what was offered, and only that is agreed to.
-- +goose StatementBegin
CREATE FUNCTION nw.offer_narrows() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
DECLARE most bytea := (SELECT body FROM documents WHERE digest = coalesce(NEW.most, NEW.digest));
BEGIN
  IF EXISTS (SELECT FROM documents d WHERE d.digest IN (NEW.digest, NEW.variant) AND NOT nw.within(d.body, most)) THEN
    RAISE EXCEPTION 'nightwarrant: what can be agreed to lies within the offer' USING ERRCODE = 'NW001';
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER offers_within BEFORE INSERT ON nw.offers FOR EACH ROW WHEN (NEW.most IS NOT NULL OR NEW.variant IS NOT NULL) EXECUTE FUNCTION nw.offer_narrows();
CREATE TRIGGER offers_narrowed BEFORE UPDATE ON nw.offers FOR EACH ROW WHEN (NEW.variant IS DISTINCT FROM OLD.variant) EXECUTE FUNCTION nw.offer_narrows();

-- +goose StatementBegin
CREATE FUNCTION nw.consent_offered() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM offers o WHERE o.id = NEW.offer_id AND NEW.digest IN (o.digest, o.variant) AND o.member = NEW.member
      AND (o.task_id, o.task_revision) = (NEW.task_id, NEW.task_revision)) THEN
    RAISE EXCEPTION 'nightwarrant: a consent is to what was offered' USING ERRCODE = 'NW001';
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER consents_offered BEFORE INSERT ON nw.consents FOR EACH ROW EXECUTE FUNCTION nw.consent_offered();

-- narrow keeps what a member has chosen of an open offer, so that it can be shown before the yes. Without a document the choice was for more
-- than was offered. It answers nothing: the offer stays open, and a yes to it as it was stays possible.
-- +goose StatementBegin
CREATE FUNCTION nw.narrow(p_member bytea, p_envelope bytea, p_until timestamptz, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_offer bytea, p_digest bytea, p_body bytea, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; o offers; offered bytea;
BEGIN
  PERFORM nw.enter();
  SELECT * INTO o FROM offers WHERE ref = p_offer FOR NO KEY UPDATE;
  SELECT body INTO offered FROM documents WHERE digest = coalesce(o.most, o.digest);
  d := nw.admitting();
  verdict := CASE
    WHEN o.id IS NULL OR o.member <> p_member THEN 'not_found'
    WHEN d.state IS NULL THEN 'admission_closed'
    WHEN o.state <> 'open' OR o.expires_at <= clock_timestamp() THEN 'offer_ended'
    WHEN p_digest IS NULL OR p_digest <> nw.named('offer', convert_from(p_body, 'UTF8')) OR NOT nw.within(p_body, offered) THEN 'not_offered'
    ELSE nw.envelope_verdict(p_envelope, p_until, p_jkt, p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('narrow', verdict, o.task_id, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  PERFORM nw.keep(p_digest, 'consent', p_body);
  UPDATE offers SET variant = p_digest WHERE id = o.id AND state = 'open';
  PERFORM nw.own_assertion(p_envelope, p_until, p_jkt);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note('narrow', 'ok', o.task_id, NULL, NULL, json_build_object('offer', nw.hex(p_offer), 'digest', nw.hex(p_digest), 'member', nw.hex(p_member)));
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nw.narrow TO nw_authority;
RESET ROLE;
