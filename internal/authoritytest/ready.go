package authoritytest

// Ready lets an instance of each reporter say for an hour that every family is
// good, so that an open decision is also complete. It opens nothing.
func (h *House) Ready() {
	h.T.Helper()
	h.Exec(`INSERT INTO nw.instances (kind, component_id, instance, jkt)
		SELECT kind, NULL, sha256('ready'), NULL FROM unnest(ARRAY['authority', 'scheduler']) AS k(kind)
		UNION ALL SELECT 'component', c.id, sha256('ready'), sha256('ready') FROM nw.components c JOIN nw.registry g ON g.id = c.id WHERE g.kind = 'guard' AND g.state = 'active'`)
	h.Exec(`INSERT INTO nw.readiness_reports (instance_id, family, boot, sequence, healthy, reason, began_at, expires_at, changed_at, protocol)
		SELECT i.id, f.family, i.boot, 1, true, 'good', t.now, t.now + interval '1 hour', t.now, CASE f.family WHEN 'guards' THEN 1 END
		  FROM nw.instances i JOIN (SELECT unnest(nw.always()) UNION ALL SELECT 'guards') AS f(family)
		    ON i.kind = CASE f.family WHEN 'guards' THEN 'component' WHEN 'queue' THEN 'scheduler' ELSE 'authority' END, (SELECT clock_timestamp() AS now) t
		 WHERE i.instance = sha256('ready')`)
	h.See()
}
