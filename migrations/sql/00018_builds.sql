-- +goose Up
-- What each replica and each guard says that it was built from, and with which cryptographic module it runs: reported with a boot, judged by nobody here.
-- It is evidence for a report and opens nothing (mission C5).
SET LOCAL ROLE nw_owner;

-- GOFIPS140 as the Go toolchain writes it into a binary; unknown is what is written in no known way.
CREATE DOMAIN nw.module AS text CHECK (VALUE IN ('off', 'latest', 'unknown') OR VALUE ~ '^v[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(-[0-9a-f]{8})?$');

CREATE TABLE nw.builds (
  instance_id bigint PRIMARY KEY REFERENCES nw.instances,
  boot        bigint NOT NULL,
  binary_sha  bytea NOT NULL CHECK (octet_length(binary_sha) = 32),
  go          integer CHECK (go > 0), -- 12603 is go1.26.3; none: not a release
  module      nw.module NOT NULL,
  fips        boolean NOT NULL,       -- the module says that it is enabled
  since       timestamptz NOT NULL DEFAULT clock_timestamp()); -- this instance runs this executable, over boots
SELECT nw.classify('builds', 'instance_id number, boot number, binary_sha digest, go number, module state, fips flag, since time');

-- keep_build keeps what a boot says of itself; a boot that says the same again costs no write.
-- +goose StatementBegin
CREATE FUNCTION nw.keep_build(p_instance bigint, p_boot bigint, p_binary bytea, p_go integer, p_module text, p_fips boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = nw, pg_temp AS $$
BEGIN
  IF p_binary IS NULL THEN RETURN; END IF;
  INSERT INTO builds AS b (instance_id, boot, binary_sha, go, module, fips) VALUES (p_instance, p_boot, p_binary, p_go, p_module, p_fips)
    ON CONFLICT (instance_id) DO UPDATE SET boot = EXCLUDED.boot, binary_sha = EXCLUDED.binary_sha, go = EXCLUDED.go, module = EXCLUDED.module, fips = EXCLUDED.fips,
      since = CASE WHEN b.binary_sha = EXCLUDED.binary_sha THEN b.since ELSE EXCLUDED.since END
    WHERE (b.boot, b.binary_sha, b.go, b.module, b.fips) IS DISTINCT FROM (EXCLUDED.boot, EXCLUDED.binary_sha, EXCLUDED.go, EXCLUDED.module, EXCLUDED.fips);
END $$;
-- +goose StatementEnd

-- show_builds lists whoever reported within a day, with the build of its present boot where it has said one. live: a report of it counts now.
-- +goose StatementBegin
CREATE FUNCTION nw.show_builds() RETURNS TABLE (kind text, component bytea, instance bytea, boot bigint, since timestamptz, seen timestamptz, live boolean,
  binary_sha bytea, go integer, module text, fips boolean, build_since timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
DECLARE t timestamptz := clock_timestamp();
BEGIN
  RETURN QUERY SELECT coalesce(g.kind, i.kind), d.body, i.instance, i.boot, i.registered_at, r.seen, r.until > t, b.binary_sha, b.go, b.module::text, b.fips, b.since
    FROM instances i JOIN LATERAL (SELECT max(x.began_at) AS seen, max(x.expires_at) AS until FROM readiness_reports x WHERE x.instance_id = i.id AND x.boot = i.boot) r
      ON r.until > t - interval '1 day'
    LEFT JOIN builds b ON b.instance_id = i.id AND b.boot = i.boot LEFT JOIN registry g ON g.id = i.component_id LEFT JOIN documents d ON d.digest = g.document
   WHERE g.id IS NULL OR g.state = 'active'
   ORDER BY r.until > t DESC, 1, i.component_id, i.instance LIMIT 1000;
END $$;
-- +goose StatementEnd

-- show_uncertain counts the effects that are ambiguous and of which nobody has recorded what was found, up to ten thousand, and says since when the first is.
-- +goose StatementBegin
CREATE FUNCTION nw.show_uncertain(OUT effects bigint, OUT oldest timestamptz) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = nw, pg_temp AS $$
BEGIN
  SELECT count(*), min(x.admitted_at) INTO effects, oldest FROM (SELECT e.admitted_at FROM ambiguities a JOIN effects e ON e.id = a.effect_id
    WHERE NOT EXISTS (SELECT FROM findings f WHERE f.effect_id = a.effect_id) ORDER BY a.effect_id LIMIT 10000) x;
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL TABLES IN SCHEMA nw FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA nw FROM PUBLIC;
GRANT EXECUTE ON FUNCTION nw.show_builds, nw.show_uncertain TO nw_authority;
RESET ROLE;
