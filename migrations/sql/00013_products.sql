-- +goose Up
-- Narrowing: what a member allows of an offer is the offer or less, whoever asks. What the authority has computed is compared here once more,
-- from the stored documents themselves. Then the offers that products start, and what a product may learn and end of what came of them.
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
  PERFORM nw.note_about(p_member, 'narrow', 'ok', o.task_id, NULL, NULL, json_build_object('offer', nw.hex(p_offer), 'digest', nw.hex(p_digest)));
END $$;
-- +goose StatementEnd

-- may_offer says whether a task and a way back are among those that the operator has written for a product.
-- +goose StatementBegin
CREATE FUNCTION nw.may_offer(p_product bigint, i json, p_back bytea) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = nw, pg_temp AS $$
DECLARE o jsonb := (SELECT convert_from(d.body, 'UTF8')::jsonb->'offers' FROM registry g JOIN documents d ON d.digest = g.document WHERE g.id = p_product);
BEGIN
  RETURN coalesce(i->>'kind' = 'task' AND i->>'client' = nw.hex(nw.named('name', o->>'client'))
    AND EXISTS (SELECT FROM jsonb_array_elements_text(o->'roles') x WHERE nw.hex(nw.named('name', x.value)) = i->>'role')
    AND EXISTS (SELECT FROM jsonb_array_elements_text(o->'policies') x WHERE nw.hex(nw.named('name', x.value)) = i->>'policy')
    AND o->'return_uris' ? (convert_from(p_back, 'UTF8')::jsonb->>'return_uri'), false);
END $$;
-- +goose StatementEnd

-- too_many says whether a product may ask nobody, or this person, any more: by what waits for an answer, and by twenty offers to one person a day.
-- +goose StatementBegin
CREATE FUNCTION nw.too_many(p_product bigint, p_member bytea, p_task bigint, t timestamptz) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = nw, pg_temp AS $$
DECLARE o jsonb := (SELECT convert_from(d.body, 'UTF8')::jsonb->'offers' FROM registry g JOIN documents d ON d.digest = g.document WHERE g.id = p_product); ceiling bigint := (o->>'max_open')::bigint;
BEGIN
  RETURN coalesce((SELECT count(*) FROM (SELECT FROM offers WHERE product_id = p_product AND state = 'open' AND expires_at > t AND task_id IS DISTINCT FROM p_task LIMIT ceiling) x) >= ceiling
    OR (SELECT count(*) FROM offers WHERE product_id = p_product AND member = p_member AND state = 'open' AND expires_at > t AND task_id IS DISTINCT FROM p_task) >= (o->>'max_open_member')::bigint
    OR (SELECT count(*) FROM (SELECT FROM offers WHERE product_id = p_product AND member = p_member AND expires_at > t + interval '6 days' LIMIT 20) x) >= 20, true);
END $$;
-- +goose StatementEnd

-- offer_task enters a product's task, or its next revision, with an offer to its owner. The same question again has the same offer, whether it waits or
-- has been agreed to; a no is a no to this revision. Only the product that entered a task may change it, and it does not hand it over.
-- +goose StatementBegin
CREATE FUNCTION nw.offer_task(p_product bytea, p_instance bytea, p_boot bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_item json, p_back bytea, p_back_body bytea,
  OUT verdict text, OUT offer bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE d readiness_decision; who record; k tasks; l lanes; o offers; again boolean; t timestamptz;
BEGIN
  PERFORM nw.enter();
  SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT id FROM tasks WHERE name = decode(p_item->>'name', 'hex')) FOR NO KEY UPDATE;
  PERFORM FROM components WHERE id = (SELECT id FROM registry WHERE kind = 'product' AND name = p_product AND registry.state = 'active') FOR NO KEY UPDATE; -- counts hold
  d := nw.admitting();
  t := clock_timestamp();
  SELECT * INTO who FROM nw.component_verdict(p_product, 'product', p_instance, p_boot, p_jkt);
  SELECT * INTO k FROM tasks WHERE name = decode(p_item->>'name', 'hex');
  SELECT x.* INTO o FROM offers x JOIN task_revisions v ON v.task_id = x.task_id AND v.revision = x.task_revision
   WHERE x.task_id = k.id AND x.task_revision = (p_item->>'revision')::bigint AND v.document = decode(p_item->>'digest', 'hex') ORDER BY x.id DESC LIMIT 1;
  again := o.state = 'open' AND o.expires_at > t AND o.back = p_back OR o.state = 'accepted' AND EXISTS (SELECT FROM consents c WHERE c.offer_id = o.id AND c.state = 'active');
  verdict := CASE
    WHEN who.verdict <> 'ok' THEN who.verdict
    WHEN d.state IS NULL THEN 'admission_closed'
    WHEN NOT nw.may_offer(who.component, p_item, p_back_body) OR k.id IS NOT NULL AND (k.product_id IS DISTINCT FROM who.component OR k.owner <> decode(p_item->>'owner', 'hex')) THEN 'forbidden'
    WHEN l.task_revision > (p_item->>'revision')::bigint THEN 'revision_stale'
    WHEN again THEN nw.nonce_verdict(p_nonce_at)
    WHEN o.state = 'declined' THEN 'offer_ended'
    WHEN nw.too_many(who.component, decode(p_item->>'owner', 'hex'), k.id, t) THEN 'too_many_offers'
    ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('offer', verdict, k.id, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  offer := o.ref;
  IF again THEN RETURN; END IF;
  UPDATE offers SET state = 'replaced' WHERE id = o.id AND state = 'open';
  PERFORM nw.keep(p_back, 'return', p_back_body);
  PERFORM nw.put_task((p_item::jsonb || jsonb_build_object('product', who.component, 'back', nw.hex(p_back)))::json);
  offer := decode(p_item->>'offer', 'hex');
  PERFORM nw.note('apply', 'ok', NULL, NULL, NULL, json_build_object('kind', 'task', 'name', p_item->>'name', 'revision', (p_item->>'revision')::bigint,
    'digest', p_item->>'digest', 'product', nw.hex(p_product)));
END $$;
-- +goose StatementEnd

-- product_offer tells a product what came of an offer of its own. What is another's is not there.
-- +goose StatementBegin
CREATE FUNCTION nw.product_offer(p_product bytea, p_instance bytea, p_boot bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_offer bytea,
  OUT verdict text, OUT task bytea, OUT standing text, OUT until timestamptz, OUT consent bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE who record; o offers;
BEGIN
  SELECT * INTO who FROM nw.component_verdict(p_product, 'product', p_instance, p_boot, p_jkt);
  SELECT * INTO o FROM offers WHERE ref = p_offer AND product_id = who.component;
  verdict := CASE WHEN who.verdict <> 'ok' THEN who.verdict WHEN o.id IS NULL THEN 'not_found' ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('present', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  task := (SELECT k.ref FROM tasks k WHERE k.id = o.task_id);
  standing := CASE WHEN o.state = 'open' AND o.expires_at <= clock_timestamp() THEN 'expired' ELSE o.state END;
  until := o.expires_at;
  consent := (SELECT c.ref FROM consents c WHERE c.offer_id = o.id);
END $$;
-- +goose StatementEnd

-- product_withdraw takes back an offer that waits for its answer. Less is always possible.
-- +goose StatementBegin
CREATE FUNCTION nw.product_withdraw(p_product bytea, p_instance bytea, p_boot bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_offer bytea, OUT verdict text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE who record; o offers;
BEGIN
  SELECT * INTO o FROM offers WHERE ref = p_offer FOR NO KEY UPDATE;
  SELECT * INTO who FROM nw.component_verdict(p_product, 'product', p_instance, p_boot, p_jkt);
  verdict := CASE
    WHEN who.verdict <> 'ok' THEN who.verdict
    WHEN o.id IS NULL OR o.product_id IS DISTINCT FROM who.component THEN 'not_found'
    WHEN o.state <> 'open' THEN 'offer_ended'
    ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('offer', verdict, o.task_id, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  UPDATE offers SET state = 'replaced' WHERE id = o.id AND state = 'open';
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note('offer', 'ok', o.task_id, NULL, NULL, json_build_object('offer', nw.hex(p_offer), 'withdrawn', true, 'product', nw.hex(p_product)));
END $$;
-- +goose StatementEnd

-- product_consent tells a product of a consent to an offer of its own: whether it holds, and exactly what was granted.
-- +goose StatementBegin
CREATE FUNCTION nw.product_consent(p_product bytea, p_instance bytea, p_boot bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_consent bytea,
  OUT verdict text, OUT task bytea, OUT digest bytea, OUT standing text, OUT epoch bigint, OUT given_at timestamptz, OUT until timestamptz, OUT body bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE who record; c consents;
BEGIN
  SELECT * INTO who FROM nw.component_verdict(p_product, 'product', p_instance, p_boot, p_jkt);
  SELECT x.* INTO c FROM consents x JOIN offers o ON o.id = x.offer_id WHERE x.ref = p_consent AND o.product_id = who.component;
  verdict := CASE WHEN who.verdict <> 'ok' THEN who.verdict WHEN c.id IS NULL THEN 'not_found' ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('present', verdict, NULL, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  task := (SELECT k.ref FROM tasks k WHERE k.id = c.task_id);
  standing := CASE WHEN c.state = 'active' AND c.expires_at <= clock_timestamp() THEN 'expired' ELSE c.state END;
  digest := c.digest; epoch := c.epoch; given_at := c.given_at; until := c.expires_at;
  body := (SELECT d.body FROM documents d WHERE d.digest = c.digest);
END $$;
-- +goose StatementEnd

-- product_revoke ends a consent to an offer of the product's own. It returns when the new epoch is committed.
-- +goose StatementBegin
CREATE FUNCTION nw.product_revoke(p_product bytea, p_instance bytea, p_boot bigint, p_jkt bytea, p_nonce_at timestamptz, p_proof bytea, p_consent bytea,
  OUT verdict text, OUT task bytea, OUT epoch bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE who record; c consents; l lanes;
BEGIN
  PERFORM nw.enter();
  SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT x.task_id FROM consents x WHERE x.ref = p_consent) FOR NO KEY UPDATE;
  SELECT * INTO who FROM nw.component_verdict(p_product, 'product', p_instance, p_boot, p_jkt);
  SELECT x.* INTO c FROM consents x JOIN offers o ON o.id = x.offer_id WHERE x.ref = p_consent AND o.product_id = who.component;
  verdict := CASE
    WHEN who.verdict <> 'ok' THEN who.verdict
    WHEN c.id IS NULL THEN 'not_found'
    WHEN c.state <> 'active' THEN 'consent_ended'
    ELSE nw.nonce_verdict(p_nonce_at) END;
  IF verdict <> 'ok' THEN
    verdict := nw.refused('revoke', verdict, c.task_id, NULL, NULL, p_jkt);
    RETURN;
  END IF;
  epoch := nw.end_consent(c.task_id, 'revoked');
  task := (SELECT k.ref FROM tasks k WHERE k.id = c.task_id);
  PERFORM nw.spend_proof(p_nonce_at, p_proof);
  PERFORM nw.note('revoke', 'ok', c.task_id, NULL, NULL, json_build_object('epoch', epoch, 'product', nw.hex(p_product)));
END $$;
-- +goose StatementEnd

-- A product asks about tasks of its own only.
-- +goose StatementBegin
CREATE FUNCTION nw.offer_of_task() RETURNS trigger LANGUAGE plpgsql SET search_path = nw, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM tasks WHERE id = NEW.task_id AND product_id = NEW.product_id) THEN
    RAISE EXCEPTION 'nightwarrant: a product offers tasks of its own' USING ERRCODE = 'NW001';
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER offers_of_their_task BEFORE INSERT ON nw.offers FOR EACH ROW WHEN (NEW.product_id IS NOT NULL) EXECUTE FUNCTION nw.offer_of_task();

REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nw.narrow, nw.offer_task, nw.product_offer, nw.product_withdraw, nw.product_consent, nw.product_revoke TO nw_authority;
RESET ROLE;
