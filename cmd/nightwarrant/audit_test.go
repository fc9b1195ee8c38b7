package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// logged is a database with a replica's log in it, and what an anchor and a witness have of that.
type logged struct {
	*testing.T
	site    *site
	hand    env
	super   *pgxpool.Pool
	key     string
	witness string // its key
	anchors string // files
	seen    string
	signed  time.Time // before the last of it was
}

// newLogged has a replica write a log in two parts, and keeps the tables as they were in between.
func newLogged(t *testing.T) *logged {
	db := teststack.Database(t)
	l := &logged{T: t, site: newSite(t, db.URL("nw_authority")), hand: env{"NIGHTWARRANT_DATABASE_URL": db.URL("nw_operator")}, super: db.Pool(t, teststack.Superuser)}
	require.Equal(t, exitOK, l.site.register(t, db).code)
	l.key = strings.TrimSpace(l.hand.good(t, "audit", "key"))
	assert.Regexp(t, `^nightwarrant/audit/[0-9a-f]{32}\+[0-9a-f]{8}\+\S+$`, l.key)
	l.anchors = filepath.Join(t.TempDir(), "anchors")

	secret := filepath.Join(t.TempDir(), "witness.key")
	l.witness = strings.TrimSpace(env{}.good(t, "audit", "witness-key", "--name", "witness.example/w1", "--key-file", secret))
	env{}.run(t, "audit", "witness-key", "--name", "witness.example/w1", "--key-file", secret).bad(t, exitFailed, "exists")
	w := env{}.start(t, `"msg":"witnessing"`, "audit", "witness", "--listen", "127.0.0.1:0", "--key-file", secret, "--log-key", l.key, "--state", filepath.Join(t.TempDir(), "state"))
	url := "http://" + regexp.MustCompile(`"listen":"([^"]+)"`).FindStringSubmatch(w.log.String())[1]

	r := l.serve("audit: {anchors: [" + l.anchors + "], witnesses: [{url: \"" + url + "\", key: \"" + l.witness + "\"}]}")
	l.write(8, "audit_cosignatures")
	l.keep("early")
	l.signed = time.Now()
	l.write(8, "audit_cosignatures")
	assert.Equal(t, exitOK, r.end(), r.log)
	l.keep("whole")
	l.seen = write(t, t.TempDir(), "seen", l.get(url+"/checkpoints"))
	assert.Equal(t, exitOK, w.end(), w.log)
	return l
}

// serve runs a replica with one more line in its file.
func (l *logged) serve(line string) *running {
	l.Helper()
	return env{}.start(l, `"msg":"serving"`, "serve", "--config", l.site.with(l, "instance: one\n", "instance: one\n"+line+"\n"))
}

// write writes audit rows, and waits until all are signed by who keeps that in a table.
func (l *logged) write(n int, signed string) {
	l.Helper()
	l.exec(`SELECT nw.note('present', 'ok', NULL, NULL, NULL, json_build_object('n', x)) FROM generate_series(1, $1) x`, n)
	require.Eventually(l, func() bool {
		var covered bool
		err := l.super.QueryRow(l.Context(), `SELECT (SELECT max(size) FROM nw.`+signed+`) = (SELECT count(*) FROM nw.audit)`).Scan(&covered)
		return err == nil && covered
	}, testWithin, 50*time.Millisecond)
}

func (l *logged) exec(sql string, args ...any) {
	l.Helper()
	_, err := l.super.Exec(l.Context(), sql, args...)
	require.NoError(l, err, sql)
}

var logTables = []string{"audit", "audit_waiting", "audit_leaves", "audit_head", "audit_checkpoints", "audit_cosignatures"}

// keep copies the log's tables.
func (l *logged) keep(as string) {
	l.Helper()
	for _, table := range logTables {
		l.exec(`CREATE TABLE public.` + as + `_` + table + ` AS TABLE nw.` + table)
	}
}

// restore brings the tables back, and does more, past every trigger, as the owner of the database can.
func (l *logged) restore(from string, more ...string) {
	l.Helper()
	tx, err := l.super.Begin(l.Context())
	require.NoError(l, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	statements := []string{`SET LOCAL session_replication_role = replica`}
	for _, table := range logTables {
		statements = append(statements, `DELETE FROM nw.`+table, `INSERT INTO nw.`+table+` OVERRIDING SYSTEM VALUE SELECT * FROM public.`+from+`_`+table)
	}
	for _, sql := range append(statements, more...) {
		_, err := tx.Exec(l.Context(), sql)
		require.NoError(l, err, sql)
	}
	require.NoError(l, tx.Commit(l.Context()))
}

func (l *logged) get(url string) string {
	l.Helper()
	req, err := http.NewRequestWithContext(l.Context(), http.MethodGet, url, nil)
	require.NoError(l, err)
	req.Close = true
	answer, err := http.DefaultClient.Do(req)
	require.NoError(l, err)
	text, err := io.ReadAll(answer.Body)
	require.NoError(l, errors.Join(err, answer.Body.Close()))
	return string(text)
}

// export exports the log as it is in the database.
func (l *logged) export() string {
	l.Helper()
	file := filepath.Join(l.TempDir(), "log.jsonl")
	assert.Regexp(l, `^\d+ records are in `, l.hand.good(l, "audit", "export", "--out", file))
	return file
}

// dated is an export as it would be at another time.
func (l *logged) dated(file string, when time.Time) string {
	l.Helper()
	text, err := os.ReadFile(file)
	require.NoError(l, err)
	at := regexp.MustCompile(`"at":"[^"]+"`)
	then := when.UTC().Format(`"at":"` + time.RFC3339 + `"`)
	head, rest, _ := strings.Cut(string(text), "\n")
	return write(l, l.TempDir(), "log.jsonl", at.ReplaceAllLiteralString(head, then)+"\n"+rest)
}

func (l *logged) verify(file string, args ...string) result {
	l.Helper()
	return env{}.run(l, append([]string{"audit", "verify", file, "--key", l.key}, args...)...)
}

// named holds what is found against a tamper, with what the anchor kept and with what the witness has.
func (l *logged) named(tamper, file string) {
	l.Helper()
	for _, args := range [][]string{{"--anchors", l.anchors}, {"--anchors", l.seen, "--witness-key", l.witness}} {
		r := l.verify(file, args...)
		assert.Equal(l, exitFailed, r.code)
		assert.Equal(l, "nightwarrant: the log was tampered with: "+tamper+"\n", r.err, args)
		assert.Contains(l, r.out, "TAMPERED "+tamper)
		assert.NotContains(l, r.out, "Nothing is wrong")
	}
}

// A replica's log, exported and checked by somebody who has only the keys and what an anchor and a witness kept; then everything that the
// owner of the database can do to it.
func TestAuditLogIsCheckedWithoutUs(t *testing.T) {
	t.Parallel()
	l := newLogged(t)
	file := l.export()
	l.hand.run(t, "audit", "export", "--out", file).bad(t, exitFailed, "exists")
	l.complies(file)
	out := env{}.good(t, "audit", "verify", file, "--key", l.key, "--anchors", l.anchors, "--anchors", l.seen, "--witness-key", l.witness)
	assert.Contains(t, out, "Nothing is wrong.")
	assert.Contains(t, out, "witness.example/w1 has signed ")
	assert.NotContains(t, out, "No anchor")
	assert.Contains(t, env{}.good(t, "audit", "verify", file, "--key", l.key), "No anchor was given")

	proof := write(t, t.TempDir(), "proof", env{}.good(t, "audit", "prove", file, "--key", l.key, "--record", "0"))
	assert.Equal(t, "Record 0 is in the log.\n", env{}.good(t, "audit", "verify", proof, "--proof", "--key", l.key))
	env{}.run(t, "audit", "prove", file, "--key", l.key, "--record", "99999").bad(t, exitFailed, "no such record")
	env{}.run(t, "audit", "verify", file, "--key", "x+1+y").bad(t, exitMisconfigured, "--key")
	env{}.run(t, "audit", "verify", file, "--key", l.key, "--witness-key", l.key).bad(t, exitMisconfigured, "--witness-key")

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	head, rest, _ := strings.Cut(string(text), "\n")
	empty := write(t, t.TempDir(), "log", head+"\n")
	env{}.good(t, "audit", "verify", empty, "--key", l.key)
	for tamper, bundle := range map[string]string{
		"edited":                strings.Replace(string(text), `\"verb\"`, `\"verv\"`, 1),
		"deleted_all":           head + "\n",
		"deleted_in_the_middle": head + rest[strings.Index(rest, "\n"):],
	} {
		l.named(tamper, write(t, t.TempDir(), "log", bundle))
	}
	l.tampered()
}

// tampered does the nine in the database.
func (l *logged) tampered() {
	l.exec(`ALTER TABLE nw.audit DROP CONSTRAINT audit_check`) // it is the owner who does all this
	l.exec(`ALTER TABLE nw.audit_leaves DROP CONSTRAINT audit_leaves_audit_id_key`)
	const early = `(SELECT max(size) FROM public.early_audit_checkpoints)`
	for _, c := range []struct {
		tamper string
		sql    []string
	}{
		{"edited", []string{`UPDATE nw.audit SET body = convert_to(replace(convert_from(body, 'UTF8'), 'present', 'presenT'), 'UTF8') WHERE id = (SELECT audit_id FROM nw.audit_leaves WHERE leaf = ` + early + ` + 2)`}},
		{"edited", []string{`WITH x AS (UPDATE nw.audit SET body = 'x', digest = sha256('x') WHERE id = (SELECT audit_id FROM nw.audit_leaves WHERE leaf = ` + early + ` + 2)) UPDATE nw.audit_leaves SET digest = sha256('x') WHERE leaf = ` + early + ` + 2`}},
		{"deleted_in_the_middle", []string{`DELETE FROM nw.audit_leaves WHERE leaf = ` + early + ` + 2`}},
		{"deleted_at_the_tail", []string{`DELETE FROM nw.audit_leaves WHERE leaf > ` + early + ` + 2`}},
		{"deleted_all", []string{`WITH x AS (DELETE FROM nw.audit_checkpoints) DELETE FROM nw.audit_leaves`}},
		{"reordered", []string{`UPDATE nw.audit_leaves x SET audit_id = y.audit_id, digest = y.digest FROM nw.audit_leaves y WHERE x.leaf + y.leaf = 2 * ` + early + ` + 5 AND abs(x.leaf - y.leaf) = 1`}},
		{"inserted", []string{`UPDATE nw.audit_leaves SET leaf = leaf + 1000 WHERE leaf > ` + early, `UPDATE nw.audit_leaves SET leaf = leaf - 999 WHERE leaf > 1000`, `INSERT INTO nw.audit_leaves VALUES (` + early + ` + 1, 0, sha256('x'))`}},
		{"swapped_checkpoint", []string{`UPDATE nw.audit_checkpoints x SET signature = y.signature FROM nw.audit_checkpoints y WHERE x.size = ` + early + ` AND y.size = (SELECT max(size) FROM nw.audit_checkpoints)`}},
	} {
		l.restore("whole", c.sql...)
		l.named(c.tamper, l.export())
	}

	l.restore("early")
	old := l.export()
	l.named("old_backup_restored", l.dated(old, l.signed.Add(24*time.Hour)))
	again := l.verify(l.dated(old, l.signed), "--anchors", l.anchors) // no anchor is older
	assert.Equal(l, exitFailed, again.code)
	assert.Contains(l, again.err, "export again")

	// Another replica with the same keys, which nobody has told of the anchor and the witness, goes on from the backup.
	r := l.serve("")
	l.write(30, "audit_checkpoints")
	assert.Equal(l, exitOK, r.end(), r.log)
	l.named("forked", l.export())

	// The way out of a restored backup: with the anchor nothing is signed, until an operator has decided what is given up.
	l.restore("early")
	line := "audit: {anchors: [" + l.anchors + "]}"
	r = l.serve(line)
	require.Eventually(l, func() bool { return strings.Contains(r.log.String(), "not the one that was signed") }, testWithin, 50*time.Millisecond)
	assert.Equal(l, exitOK, r.end(), r.log)
	out := l.hand.good(l, "audit", "resume", "--anchors", l.anchors, "--anchors", l.seen)
	assert.Regexp(l, `^Incarnation 2 goes on from \d+ records. The checkpoint of \d+ records that was signed at \S+ is given up, and every checkpoint says so.\n$`, out)
	r = l.serve(line)
	l.write(3, "audit_checkpoints")
	assert.Equal(l, exitOK, r.end(), r.log)
	out = env{}.good(l, "audit", "verify", l.export(), "--key", l.key, "--anchors", l.anchors, "--anchors", l.seen, "--witness-key", l.witness)
	assert.Contains(l, out, "RESUMED by an operator's decision, incarnation 2")
	assert.Contains(l, out, "Nothing is wrong.")
	l.hand.run(l, "audit", "resume", "--anchors", l.seen).bad(l, exitFailed, "nothing is given up")
}
