package main

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// aged is an authority with a log of which two checkpoints are four hundred days old.
type aged struct {
	*testing.T
	house    *authoritytest.House
	super    *pgxpool.Pool
	log      *sequencer.Sequencer
	operator env
	dir, key string
	at       time.Time
	anchors  string // a file
}

func newAged(t *testing.T) *aged {
	h := authoritytest.New(t)
	a := &aged{house: h, T: t, super: h.DB.Pool(t, teststack.Superuser), operator: env{"NIGHTWARRANT_DATABASE_URL": h.DB.URL("nw_operator")}, dir: t.TempDir(),
		at:  time.Now().UTC().Truncate(time.Second).Add(-400 * 24 * time.Hour),
		log: sequencer.New(sequencer.Config{Pool: h.Pool, Key: h.Bundle.Auditor(), Who: sha256.Sum256([]byte("here")), Log: slog.New(slog.DiscardHandler)})}
	a.key = strings.TrimSpace(a.operator.good(t, "audit", "key"))
	a.anchors = filepath.Join(a.dir, "anchors")
	return a
}

// grow writes records and has them signed; the log is size records long then.
func (a *aged) grow(n int) (size int64) {
	a.Helper()
	_, err := a.super.Exec(a.Context(), `SELECT nw.note('present', 'ok', NULL, NULL, NULL, json_build_object('n', x)) FROM generate_series(1, $1) x`, n)
	require.NoError(a, err)
	require.Eventually(a, func() bool {
		_, err := a.log.Round(a.Context())
		require.NoError(a, err)
		size = a.house.Count(`SELECT max(size) FROM nw.audit_checkpoints`)
		return a.house.Count(`SELECT count(*) FROM nw.audit_waiting`) == 0 && a.house.Count(`SELECT count(*) FROM nw.audit_leaves`) == size
	}, testWithin, 20*time.Millisecond)
	return size
}

// age has everything in the log have happened then, and has its last checkpoint say so, instead of those of today.
func (a *aged) age(then time.Time) {
	a.Helper()
	text, err := os.ReadFile(a.export())
	require.NoError(a, err)
	b, err := audit.ReadBundle(strings.NewReader(string(text)), nil)
	require.NoError(a, err)
	c, err := audit.OpenCheckpoint(b.Checkpoints[len(b.Checkpoints)-1], a.house.Bundle.Auditor().Verifier())
	require.NoError(a, err)
	c.At = then
	signature, err := a.house.Bundle.Auditor().Sign([]byte(c.Text()))
	require.NoError(a, err)
	a.house.Exec(`INSERT INTO nw.audit_checkpoints (size, at, root, edge, incarnation, epoch, signature)
		SELECT size, $2, root, edge, incarnation, epoch, $3 FROM nw.audit_checkpoints WHERE size = $1 LIMIT 1`, c.Size, c.At, signature)
	_, err = a.super.Exec(a.Context(), `SET session_replication_role = replica; UPDATE nw.audit SET at = '`+then.Format(time.RFC3339)+`';
		DELETE FROM nw.audit_checkpoints WHERE at > '`+a.at.Format(time.RFC3339)+`'; RESET session_replication_role`)
	require.NoError(a, err)
}

func (a *aged) export() string {
	a.Helper()
	file := filepath.Join(a.TempDir(), "log.jsonl")
	a.operator.good(a, "audit", "export", "--out", file)
	return file
}

// anchor keeps the checkpoints of an export.
func (a *aged) anchor(export string) {
	a.Helper()
	in, err := os.Open(export)
	require.NoError(a, err)
	defer in.Close()
	b, err := audit.ReadBundle(in, nil)
	require.NoError(a, err)
	var lines []byte
	for _, signed := range b.Checkpoints {
		lines = append(lines, audit.AnchorLine(signed)...)
	}
	write(a, a.dir, "anchors", string(lines))
}

func (a *aged) prune(export string, changes ...string) result {
	a.Helper()
	args := append([]string{"audit", "prune", "--before", a.day(), "--export", export, "--anchors", a.anchors, "--key", a.key}, changes...)
	return a.operator.run(a, args...)
}

func (a *aged) day() string { return a.at.Add(200 * 24 * time.Hour).Format(time.DateOnly) }

func (a *aged) whole() {
	a.Helper()
	assert.Contains(a, env{}.good(a, "audit", "verify", a.export(), "--key", a.key, "--anchors", a.anchors), "Nothing is wrong.")
}

// Records go by one command, to which an export and an anchor are shown; and when it breaks off, by the same command once more.
func TestPrune(t *testing.T) {
	t.Parallel()
	a := newAged(t)
	first := a.grow(20)
	short := a.export()
	a.age(a.at.Add(-24 * time.Hour))
	second := a.grow(20)
	a.age(a.at)
	a.grow(5)
	export := a.export()
	a.anchor(export)
	text, err := os.ReadFile(export)
	require.NoError(t, err)
	edited := write(t, a.dir, "edited", strings.Replace(string(text), `\"verb\"`, `\"verv\"`, 1))

	a.prune(export).bad(t, exitFailed, "nothing was taken out: nobody has set how long audit rows stay")
	a.operator.run(t, "audit", "keep", "--days", "184").bad(t, exitMisconfigured, "must be 185 to 36500")
	assert.Contains(t, a.operator.good(t, "audit", "keep", "--days", "190"), "Nothing is taken out before")
	all := a.house.Count(`SELECT count(*) FROM nw.audit`)
	for name, c := range map[string]struct {
		r        result
		code     int
		sentence string
	}{
		"no day":              {a.prune(export, "--before", "yesterday"), exitMisconfigured, "--before must be a day"},
		"too young":           {a.prune(export, "--before", time.Now().Format(time.DateOnly)), exitFailed, "nothing was taken out: rows from before that instant must stay longer"},
		"older than all":      {a.prune(export, "--before", a.at.Add(-72*time.Hour).Format(time.DateOnly)), exitFailed, "nothing was taken out: no checkpoint is as old as that"},
		"an older export":     {a.prune(short), exitFailed, ""},
		"an export edited":    {a.prune(edited), exitFailed, "the export was tampered with: edited"},
		"no export":           {a.prune(filepath.Join(a.dir, "none")), exitFailed, "no such file"},
		"anchors of nobody":   {a.prune(export, "--anchors", filepath.Join(a.dir, "none")), exitFailed, "no such file"},
		"another log's key":   {a.prune(export, "--key", "x+1+y"), exitMisconfigured, "--key"},
		"not by the replicas": {env{"NIGHTWARRANT_DATABASE_URL": a.house.DB.URL("nw_authority")}.run(t, "audit", "prune", "--before", a.day(), "--export", export, "--anchors", a.anchors, "--key", a.key), exitFailed, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) { c.r.bad(t, c.code, c.sentence) })
	}
	kept, err := os.ReadFile(a.anchors)
	require.NoError(t, err)
	write(t, a.dir, "anchors", "")
	a.prune(export).bad(t, exitFailed, "nothing was taken out: ")
	write(t, a.dir, "anchors", string(kept))

	tx, err := a.super.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE nw.audit IN SHARE MODE`)
	require.NoError(t, err)
	a.prune(export).bad(t, exitFailed, "0 records were taken out, and not the others: ask again")
	require.NoError(t, tx.Rollback(t.Context()))
	assert.Equal(t, all, a.house.Count(`SELECT count(*) FROM nw.audit`))
	a.whole()

	// A step that was committed before the command was killed.
	_, err = a.house.DB.Pool(t, "nw_operator").Exec(t.Context(), `SELECT nw.audit_prune($1, size, root, 1) FROM nw.audit_plan($1)`, a.at.Add(200*24*time.Hour))
	require.NoError(t, err)
	assert.Equal(t, first, a.house.Count(`SELECT max(size) FROM nw.audit_cuts`))
	a.whole()

	before := a.house.Count(`SELECT count(*) FROM nw.audit`)
	r := a.prune(export)
	require.Equal(t, exitOK, r.code, r.err)
	gone := before + 1 - a.house.Count(`SELECT count(*) FROM nw.audit`) // what says so is a record, too
	assert.Equal(t, fmt.Sprintf("%d records before number %d were taken out. Their digests stay, and so does every proof; keep %s.\n", gone, second, export), r.out)
	assert.Equal(t, second-first, gone)
	a.prune(export).bad(t, exitFailed, "nothing was taken out: no checkpoint is as old as that and not pruned yet")
	a.grow(1)
	a.whole()
	assert.Contains(t, env{}.good(t, "audit", "verify", export, "--key", a.key, "--anchors", a.anchors), "Nothing is wrong.")
}
