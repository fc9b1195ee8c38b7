package sequencer_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

const origin = "nightwarrant/audit/test"

// key signs as the audit key of a bundle does.
type key struct{ private ed25519.PrivateKey }

func newKey(t *testing.T) key {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	return key{private}
}

func (k key) public() ed25519.PublicKey { return k.private.Public().(ed25519.PublicKey) }
func (k key) Name() string              { return origin }
func (k key) KeyHash() uint32 {
	sum := sha256.Sum256(append([]byte(origin+"\n\x01"), k.public()...))
	return binary.BigEndian.Uint32(sum[:])
}
func (k key) Sign(m []byte) ([]byte, error) { return ed25519.Sign(k.private, m), nil }
func (k key) Verify(m, s []byte) bool       { return ed25519.Verify(k.public(), m, s) }
func (k key) Verifier() note.Verifier       { return k }

// house is a database with a log in it.
type house struct {
	*testing.T
	key   key
	pool  *pgxpool.Pool // of the authority
	super *pgxpool.Pool
	hand  *pgxpool.Pool // of an operator
	db    *teststack.DB
}

func newHouse(t *testing.T) *house {
	t.Parallel()
	db := teststack.Database(t)
	return &house{t, newKey(t), db.Pool(t, "nw_authority"), db.Pool(t, teststack.Superuser), db.Pool(t, "nw_operator"), db}
}

func (h *house) soon() context.Context {
	ctx, cancel := context.WithTimeout(h.Context(), 30*time.Second)
	h.Cleanup(cancel)
	return ctx
}

func (h *house) replica(who string, anchors ...sequencer.Anchor) *sequencer.Sequencer {
	return sequencer.New(sequencer.Config{Pool: h.pool, Key: h.key, Who: sha256.Sum256([]byte(who)), Anchors: anchors, Log: slog.New(slog.DiscardHandler)})
}

func (h *house) exec(sql string, args ...any) {
	h.Helper()
	_, err := h.super.Exec(h.soon(), sql, args...)
	require.NoError(h, err)
}

func (h *house) number(sql string) (n int64) {
	h.Helper()
	require.NoError(h, h.super.QueryRow(h.soon(), sql).Scan(&n))
	return n
}

// write has the verbs' own function write audit rows.
func (h *house) write(n int) {
	h.Helper()
	h.exec(`SELECT nw.note('present', 'ok', NULL, NULL, NULL, json_build_object('n', x)) FROM generate_series(1, $1) x`, n)
}

// round plays a round that must go well.
func (h *house) round(s *sequencer.Sequencer) {
	h.Helper()
	_, err := s.Round(h.soon())
	require.NoError(h, err)
}

// covered plays rounds until everything is signed, which is a second after the last time.
func (h *house) covered(s *sequencer.Sequencer) {
	h.Helper()
	require.Eventually(h, func() bool {
		h.round(s)
		return h.number(`SELECT coalesce(max(size), 0) FROM nw.audit_checkpoints`) == h.number(`SELECT count(*) FROM nw.audit`)
	}, 30*time.Second, 50*time.Millisecond)
}

// later lets the leader's time be over, and the last checkpoint's second.
func (h *house) later() {
	h.Helper()
	h.exec(`UPDATE nw.audit_head SET led_until = '-infinity'`)
	h.tampering(`UPDATE nw.audit_checkpoints SET at = at WHERE false`)
}

// tampering is what the owner of the database does, past every trigger.
func (h *house) tampering(statements ...string) {
	h.Helper()
	tx, err := h.super.Begin(h.soon())
	require.NoError(h, err)
	for _, sql := range append([]string{`SET LOCAL session_replication_role = replica`}, statements...) {
		_, err := tx.Exec(h.soon(), sql)
		require.NoError(h, err, sql)
	}
	require.NoError(h, tx.Commit(h.soon()))
}

func (h *house) verify(anchors ...[]byte) *audit.Report {
	h.Helper()
	return h.verifyWith(nil, anchors...)
}

func (h *house) verifyWith(witnesses []audit.Witness, anchors ...[]byte) *audit.Report {
	h.Helper()
	r, err := audit.Verify(h.export(), h.key, anchors, witnesses...)
	require.NoError(h, err)
	return r
}

// export reads the log as it is, in an hour: then no checkpoint is on its way any more.
func (h *house) export() *audit.Bundle {
	h.Helper()
	var out bytes.Buffer
	_, err := sequencer.Export(h.soon(), h.hand, h.key, &out)
	require.NoError(h, err)
	b, err := audit.ReadBundle(&out, nil)
	require.NoError(h, err)
	assert.WithinDuration(h, time.Now(), b.At, time.Minute)
	b.At = b.At.Add(time.Hour)
	return b
}

func TestRowsAreNumberedAndSigned(t *testing.T) {
	h := newHouse(t)
	s := h.replica("a")
	h.round(s)
	before := h.number(`SELECT size FROM nw.audit_head`)
	h.write(5)
	assert.EqualValues(t, 5, h.number(`SELECT count(*) FROM nw.audit_waiting`))
	h.round(s)
	assert.EqualValues(t, before+5, h.number(`SELECT count(*) FROM nw.audit_leaves`))
	assert.Zero(t, h.number(`SELECT count(*) FROM nw.audit_waiting`))
	assert.Zero(t, h.number(`SELECT waiting_ms FROM nw.audit_lag()`))
	r := h.verify()
	assert.True(t, r.OK(), r.Findings)
	assert.Equal(t, before+5, r.Records)
	assert.Equal(t, before+5, r.Covered)
}

// A transaction that commits late gets a later number, whatever its row's id is.
func TestLateCommitsAreNotLost(t *testing.T) {
	h := newHouse(t)
	s := h.replica("a")
	tx, err := h.super.Begin(h.soon())
	require.NoError(t, err)
	_, err = tx.Exec(h.soon(), `SELECT nw.note('present', 'ok', NULL, NULL, NULL)`)
	require.NoError(t, err)
	h.write(3)
	h.round(s)
	numbered := h.number(`SELECT size FROM nw.audit_head`)
	require.NoError(t, tx.Commit(h.soon()))
	h.round(s)
	assert.Equal(t, numbered+1, h.number(`SELECT size FROM nw.audit_head`))
	assert.EqualValues(t, 1, h.number(`SELECT count(*) FROM nw.audit_leaves x JOIN nw.audit_leaves y ON y.leaf = x.leaf - 1 AND y.audit_id > x.audit_id`))
	assert.True(t, h.verify().OK())
}

func TestOneLeads(t *testing.T) {
	h := newHouse(t)
	a, b := h.replica("a"), h.replica("b")
	h.write(2)
	h.round(a)
	size := h.number(`SELECT size FROM nw.audit_head`)
	h.write(2)
	h.round(b)
	assert.Equal(t, size, h.number(`SELECT size FROM nw.audit_head`), "another one leads")
	h.later()
	h.round(b)
	assert.Equal(t, size+2, h.number(`SELECT size FROM nw.audit_head`))
	h.write(2)
	h.round(a)
	assert.Equal(t, size+2, h.number(`SELECT size FROM nw.audit_head`))
	h.later()
	h.round(a)
	assert.Equal(t, size+4, h.number(`SELECT size FROM nw.audit_head`))
	assert.True(t, h.verify().OK())
}

// A leader that was away while another one went on numbers nothing twice.
func TestAppendIsRefusedToWhoWasOvertaken(t *testing.T) {
	h := newHouse(t)
	h.write(2)
	var appended bool
	who := sha256.Sum256([]byte("a"))
	const sql = `SELECT appended FROM nw.audit_append($1, $2, ARRAY(SELECT audit_id FROM nw.audit_waiting))`
	require.NoError(t, h.super.QueryRow(h.soon(), sql, who[:], 0).Scan(&appended))
	assert.False(t, appended, "nobody leads")
	h.round(h.replica("a"))
	h.write(1)
	require.NoError(t, h.super.QueryRow(h.soon(), sql, who[:], 0).Scan(&appended))
	assert.False(t, appended, "its size is not the log's")
	_, err := h.super.Exec(h.soon(), `SELECT nw.audit_append($1, (SELECT size FROM nw.audit_head), ARRAY[987654321]::bigint[])`, who[:])
	require.ErrorContains(t, err, "not there")
}

func TestWhatTheDatabaseLosesIsNotSignedOver(t *testing.T) {
	for name, act := range map[string]string{
		"the tail":              `WITH x AS (DELETE FROM nw.audit_leaves WHERE leaf >= 3 RETURNING 1) UPDATE nw.audit_head SET size = 3`,
		"a record":              `DELETE FROM nw.audit_leaves WHERE leaf = (SELECT max(leaf) FROM nw.audit_leaves)`,
		"the checkpoint's root": `UPDATE nw.audit_checkpoints SET root = sha256('x')`,
		"the checkpoint's edge": `UPDATE nw.audit_checkpoints SET edge = set_byte(edge, 0, 255 - get_byte(edge, 0))`,
		"the signature":         `UPDATE nw.audit_checkpoints SET signature = set_byte(signature, 0, 255 - get_byte(signature, 0))`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.write(6)
			h.round(h.replica("a"))
			if name == "a record" { // what no checkpoint covers
				h.write(6)
				h.tampering(`INSERT INTO nw.audit_leaves SELECT 100, id, digest FROM nw.audit ORDER BY id DESC LIMIT 1`, `UPDATE nw.audit_head SET size = 102`)
			}
			h.tampering(act)
			h.later()
			h.write(6)
			signed := h.number(`SELECT count(*) FROM nw.audit_checkpoints`)
			_, err := h.replica("b").Round(h.soon())
			require.ErrorIs(t, err, sequencer.ErrDiffers)
			assert.Equal(t, signed, h.number(`SELECT count(*) FROM nw.audit_checkpoints`))
			assert.Positive(t, h.number(`SELECT count(*) FROM nw.audit_waiting`))
		})
	}
}

func TestAnchorsRememberMoreThanABackup(t *testing.T) {
	h := newHouse(t)
	file := sequencer.File(filepath.Join(t.TempDir(), "anchors"))
	h.write(4)
	h.round(h.replica("a", file))
	anchors := readAnchors(t, file)
	require.Len(t, anchors, 1)
	assert.True(t, h.verify(anchors...).OK())

	h.tampering(`DELETE FROM nw.audit_leaves`, `DELETE FROM nw.audit_checkpoints`, `UPDATE nw.audit_head SET size = 0, led_until = '-infinity'`)
	h.write(1)
	_, err := h.replica("b", file).Round(h.soon())
	require.ErrorIs(t, err, sequencer.ErrDiffers)
	r := h.verify(anchors...)
	require.Len(t, r.Findings, 1)
	assert.Equal(t, audit.DeletedAll, r.Findings[0].Tamper)
}

func readAnchors(t *testing.T, f sequencer.File) [][]byte {
	text, err := os.ReadFile(string(f))
	require.NoError(t, err)
	all, err := audit.ReadAnchors(bytes.NewReader(text))
	require.NoError(t, err)
	return all
}

func TestFile(t *testing.T) {
	t.Parallel()
	f := sequencer.File(filepath.Join(t.TempDir(), "anchors"))
	newest := func() string {
		text, err := f.Newest(t.Context(), nil)
		require.NoError(t, err)
		return string(text)
	}
	assert.Empty(t, newest())
	for _, text := range []string{"one", "two"} {
		require.NoError(t, f.Anchor(t.Context(), []byte(text)))
		assert.Equal(t, text, newest())
	}
	out, err := os.OpenFile(string(f), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = out.WriteString(`{"checkpoint":"cut o`)
	require.NoError(t, errors.Join(err, out.Close()))
	assert.Equal(t, "two", newest(), "a crash cuts a line off")
	require.NoError(t, f.Anchor(t.Context(), []byte("three")))
	assert.Equal(t, "three", newest())
	assert.Len(t, readAnchors(t, f), 3)
	for range 400 {
		require.NoError(t, f.Anchor(t.Context(), []byte(strings.Repeat("x", 200))))
	}
	assert.Equal(t, strings.Repeat("x", 200), newest())
	info, err := os.Stat(string(f))
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())

	for _, junk := range []string{"junk\n", "{\"checkpoint\":1}\n", "{}\n"} {
		_, err := audit.ReadAnchors(strings.NewReader(junk))
		require.Error(t, err, junk)
	}
}

func BenchmarkSequencing(b *testing.B) {
	db := teststack.Database(b)
	super := db.Pool(b, teststack.Superuser)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(b, err)
	s := sequencer.New(sequencer.Config{Pool: db.Pool(b, "nw_authority"), Key: key{private}, Log: slog.New(slog.DiscardHandler)})
	const rows = 20_000
	for b.Loop() {
		b.StopTimer()
		_, err := super.Exec(b.Context(), `SELECT nw.note('present', 'ok', NULL, NULL, NULL, json_build_object('n', x)) FROM generate_series(1, $1) x`, rows)
		require.NoError(b, err)
		b.StartTimer()
		for more := true; more; {
			more, err = s.Round(b.Context())
			require.NoError(b, err)
		}
	}
	b.ReportMetric(float64(b.N)*rows/b.Elapsed().Seconds(), "records/s")
}
