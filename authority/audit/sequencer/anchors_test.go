package sequencer_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/authority/audit/witness"
)

// watching is a witness with its client; away, it answers nobody.
type watching struct {
	*witness.Client
	key    audit.Witness
	server *witness.Server
	away   atomic.Bool
}

func (h *house) witness() *watching {
	h.Helper()
	secret, public, err := audit.GenerateCosigner("witness.example/w1")
	require.NoError(h, err)
	cosigner, err := audit.NewCosigner(secret, time.Now)
	require.NoError(h, err)
	w := &watching{key: public}
	w.server, err = witness.NewServer(witness.Config{Key: cosigner, Logs: []note.Verifier{h.key}, File: filepath.Join(h.TempDir(), "state"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(h, err)
	s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if w.away.Load() {
			out.WriteHeader(http.StatusBadGateway)
			return
		}
		w.server.ServeHTTP(out, r)
	}))
	h.Cleanup(s.Close)
	transport := &http.Transport{}
	h.Cleanup(transport.CloseIdleConnections)
	w.Client = witness.NewClient(s.URL, public, h.key, sequencer.Store{Pool: h.pool, Key: h.key}, transport)
	return w
}

// kept is what it has of each log.
func (w *watching) kept(t *testing.T) [][]byte {
	t.Helper()
	out := httptest.NewRecorder()
	w.server.ServeHTTP(out, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/checkpoints", nil))
	all, err := audit.ReadAnchors(out.Body)
	require.NoError(t, err)
	return all
}

func TestWitnessesSignTheLog(t *testing.T) {
	h := newHouse(t)
	w := h.witness()
	for _, who := range []string{"a", "b"} { // each finds the witness further on than it knows
		h.write(5)
		h.later()
		h.covered(h.replica(who, w))
	}
	assert.EqualValues(t, h.number(`SELECT count(*) FROM nw.audit_checkpoints`), h.number(`SELECT count(DISTINCT (size, at)) FROM nw.audit_cosignatures`))
	r := h.verifyWith([]audit.Witness{w.key}, w.kept(t)...)
	assert.True(t, r.OK(), r.Findings)
	require.Len(t, r.Witnessed, 1)
	assert.Equal(t, r.Covered, r.Witnessed[0].Records)

	_, stranger, err := audit.GenerateCosigner("witness.example/w1")
	require.NoError(t, err)
	r = h.verifyWith([]audit.Witness{stranger})
	require.Len(t, r.Findings, 1)
	assert.Equal(t, audit.SwappedCheckpoint, r.Findings[0].Tamper)
}

// A witness that does not answer holds no record up, and closes by its name.
func TestAWitnessThatIsAwayCloses(t *testing.T) {
	h := newHouse(t)
	w, file := h.witness(), sequencer.File(filepath.Join(t.TempDir(), "anchors"))
	s := h.replica("a", w, file)
	h.write(1)
	h.round(s)
	w.away.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	h.write(1)
	require.Eventually(t, func() bool { return s.Health() != nil }, 30*time.Second, 10*time.Millisecond)
	require.EqualError(t, s.Health(), "the witness witness.example/w1: the witness answered 502")
	h.write(1)
	require.Eventually(t, func() bool {
		return h.number(`SELECT max(size) FROM nw.audit_checkpoints`) == h.number(`SELECT count(*) FROM nw.audit`)
	}, 30*time.Second, 50*time.Millisecond, "the log goes on")
	assert.Len(t, readAnchors(t, file), int(h.number(`SELECT count(*) FROM nw.audit_checkpoints`)), "an anchor that has a checkpoint is not asked again for another's sake")
	w.away.Store(false)
	require.Eventually(t, func() bool { return s.Health() == nil }, 30*time.Second, 10*time.Millisecond)
	cancel()
	<-done
	assert.True(t, h.verifyWith([]audit.Witness{w.key}, w.kept(t)...).OK())
}

// Before an anchor has been asked, nothing is signed.
func TestNothingIsSignedUnseen(t *testing.T) {
	h := newHouse(t)
	w := h.witness()
	w.away.Store(true)
	h.write(3)
	_, err := h.replica("a", w).Round(h.soon())
	require.ErrorContains(t, err, "the witness witness.example/w1")
	assert.Zero(t, h.number(`SELECT count(*) FROM nw.audit_checkpoints`))
}

// back brings the log back to what public.backup has of it.
var back = []string{
	`DELETE FROM nw.audit_cosignatures`, `DELETE FROM nw.audit_checkpoints`, `INSERT INTO nw.audit_checkpoints SELECT * FROM public.backup`,
	`DELETE FROM nw.audit_leaves WHERE leaf >= (SELECT max(size) FROM public.backup)`, `UPDATE nw.audit_head SET size = (SELECT max(size) FROM public.backup)`,
	`DELETE FROM nw.audit WHERE id > (SELECT max(audit_id) FROM nw.audit_leaves)`, `DELETE FROM nw.audit_waiting`,
}

// What was signed and is not in the database is found before anything more is
// signed, by a replica that starts now, whoever kept it.
func TestWhatAnAnchorKnowsMustBeThere(t *testing.T) {
	const before = `CREATE TABLE public.backup AS SELECT * FROM nw.audit_checkpoints`
	for name, c := range map[string]struct {
		statements []string
		write      int
		kinds      []string
	}{
		"less":                                 {back, 0, []string{"file"}},
		"less, and gone on":                    {back, 2, []string{"witness"}},
		"as much, other":                       {back, 5, []string{"file"}},
		"more, other":                          {back, 9, []string{"file", "witness"}},
		"nothing":                              {[]string{back[0], back[1], `DELETE FROM nw.audit_leaves`, `UPDATE nw.audit_head SET size = 0`}, 0, []string{"witness"}},
		"as much, other, in a new incarnation": {append(slices.Clone(back), `UPDATE nw.readiness_decision SET incarnation = incarnation + 1`), 5, []string{"memory"}},
	} {
		for _, kind := range c.kinds {
			t.Run(name+", "+kind, func(t *testing.T) {
				h := newHouse(t)
				var anchors []sequencer.Anchor
				switch kind {
				case "file":
					anchors = append(anchors, sequencer.File(filepath.Join(t.TempDir(), "anchors")))
				case "witness":
					anchors = append(anchors, h.witness())
				}
				s := h.replica("a", anchors...)
				h.write(4)
				h.covered(s)
				h.exec(before)
				h.write(5)
				h.covered(s)
				h.tampering(append(slices.Clone(c.statements), `UPDATE nw.audit_head SET led_until = '-infinity'`)...)
				h.write(c.write)
				if kind == "memory" { // it numbers what was written in place of what it knows
					h.exec(`SELECT nw.audit_append(leader, size, ARRAY(SELECT audit_id FROM nw.audit_waiting ORDER BY 1)) FROM nw.audit_head`)
				} else {
					s = h.replica("b", anchors...)
				}
				signed := h.number(`SELECT count(*) FROM nw.audit_checkpoints`)
				_, err := s.Round(h.soon())
				require.ErrorIs(t, err, sequencer.ErrDiffers)
				assert.Equal(t, signed, h.number(`SELECT count(*) FROM nw.audit_checkpoints`))
			})
		}
	}
}

// again is the replica "a", started anew with one anchor.
func (h *house) again(a sequencer.Anchor) *sequencer.Sequencer { return h.replica("a", a) }

// An operator who has lost records for good says so, and the log goes on as
// another one that names what was lost.
func TestResume(t *testing.T) {
	h := newHouse(t)
	w, file := h.witness(), sequencer.File(filepath.Join(t.TempDir(), "anchors"))
	s := h.replica("a", w, file)
	h.write(4)
	h.covered(s)
	h.exec(`CREATE TABLE public.backup AS SELECT * FROM nw.audit_checkpoints`)
	shared := h.number(`SELECT max(size) FROM public.backup`)
	h.write(5)
	h.covered(s)
	lost, err := audit.Longest(append(readAnchors(t, file), w.kept(t)...), h.key)
	require.NoError(t, err)
	require.Equal(t, shared+5, lost.Size)
	h.tampering(back...)
	h.write(9)
	_, err = s.Round(h.soon())
	require.ErrorIs(t, err, sequencer.ErrDiffers)

	early := lost
	early.Size = shared
	_, _, err = sequencer.Resume(h.soon(), h.hand, early)
	require.ErrorIs(t, err, sequencer.ErrNothingLost)
	less := lost
	less.Size--
	_, _, err = sequencer.Resume(h.soon(), h.hand, less)
	require.NoError(t, err)
	for _, a := range []sequencer.Anchor{w, file} {
		_, err = h.again(a).Round(h.soon())
		require.ErrorIs(t, err, sequencer.ErrDiffers, "more is known than was given up")
	}
	incarnation, from, err := sequencer.Resume(h.soon(), h.hand, lost)
	require.NoError(t, err)
	assert.Equal(t, shared, from)
	assert.Equal(t, incarnation, h.number(`SELECT incarnation FROM nw.readiness_decision WHERE state = 'closed'`))
	h.covered(s)
	h.write(2)
	h.later()
	h.covered(h.replica("b", w, file))

	anchors := append(readAnchors(t, file), w.kept(t)...)
	r := h.verifyWith([]audit.Witness{w.key}, anchors...)
	assert.True(t, r.OK(), r.Findings)
	assert.Equal(t, []audit.Resumed{{Incarnation: incarnation, From: shared, Lost: lost.Size}}, r.Resumed)

	_, _, err = sequencer.Resume(h.soon(), h.hand, lost)
	require.ErrorIs(t, err, sequencer.ErrNothingLost, "the log was resumed since")
	h.tampering(back...)
	h.tampering(`DELETE FROM nw.audit_resumptions`, `UPDATE nw.audit_head SET led_until = '-infinity'`)
	_, err = h.replica("c", file).Round(h.soon())
	require.ErrorIs(t, err, sequencer.ErrDiffers, "a backup from before the decision")
	r = h.verify(anchors...)
	require.NotEmpty(t, r.Findings)
	assert.Equal(t, audit.OldBackup, r.Findings[0].Tamper)
}
