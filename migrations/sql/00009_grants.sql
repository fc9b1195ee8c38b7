-- +goose Up
-- Least grants (P4): each process role may EXECUTE its verbs and nothing else. Stolen database credentials of a replica cannot lower a fence,
-- forge a consent or read a document; the helpers that verbs share are callable by nobody.

-- +goose StatementBegin
DO $$
DECLARE f text; o record;
BEGIN
  -- Verbs run with the rights of nw_owner, which has none outside this schema.
  EXECUTE format('GRANT nw_owner TO %I', current_user);
  ALTER SCHEMA nw OWNER TO nw_owner;
  FOR o IN SELECT c.oid::regclass AS name, c.relkind FROM pg_class c WHERE c.relnamespace = 'nw'::regnamespace AND c.relkind IN ('r', 'p')
           UNION ALL SELECT c.oid::regclass, c.relkind FROM pg_class c WHERE c.oid = 'nw.admissions'::regclass LOOP
    EXECUTE format('ALTER %s %s OWNER TO nw_owner', CASE o.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, o.name);
  END LOOP;
  FOR o IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'nw'::regnamespace LOOP
    EXECUTE format('ALTER FUNCTION %s OWNER TO nw_owner', o.name);
  END LOOP;
  FOR o IN SELECT t.oid::regtype AS name FROM pg_type t WHERE t.typnamespace = 'nw'::regnamespace AND t.typtype = 'd' LOOP
    EXECUTE format('ALTER DOMAIN %s OWNER TO nw_owner', o.name);
  END LOOP;
  REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
  REVOKE ALL ON ALL SEQUENCES IN SCHEMA nw FROM PUBLIC;
  REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
  GRANT USAGE ON SCHEMA nw TO nw_authority, nw_scheduler, nw_operator;
  FOREACH f IN ARRAY ARRAY['claim', 'renew', 'mint', 'admit', 'settle_effect', 'effect_for_holder', 'unsettled', 'settle_run',
      'present', 'apply', 'require', 'retire', 'give_consent', 'decline', 'revoke', 'cut_off', 'withdraw', 'record_finding', 'show_offers',
      'approve', 'deny', 'task_reference', 'entries', 'note_refusal', 'count_refusals',
      'evaluate', 'register_replica', 'report_replica', 'report_component', 'boot_component', 'spend_component', 'decision', 'store_health', 'audit_health'] LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION nw.%I TO nw_authority', f);
  END LOOP;
  FOREACH f IN ARRAY ARRAY['due', 'plan', 'zones', 'rezone', 'take_outbox', 'queues', 'reapable', 'reap', 'expire_effects', 'expire_consents', 'expire_decisions', 'release_reservations', 'raise_floors', 'drain', 'recycle',
      'register_replica', 'report_replica', 'decision', 'store_health'] LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION nw.%I TO nw_scheduler', f);
  END LOOP;
  FOREACH f IN ARRAY ARRAY['gate_close', 'gate_release', 'gate_standby', 'decision', 'board', 'entries'] LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION nw.%I TO nw_operator', f);
  END LOOP;
END $$;
-- +goose StatementEnd

-- A replica that was built for another version of this schema must find that out.
GRANT SELECT ON goose_db_version TO nw_authority, nw_scheduler, nw_operator;
