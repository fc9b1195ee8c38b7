package audit_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/audit/audittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const origin = "nightwarrant/audit/test"

// exported is when bundles of these tests were, long after every checkpoint.
var exported = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)

// log is a log of n records with a checkpoint after each ten.
type log struct {
	t           require.TestingT
	key         audittest.Key
	witness     *audit.Cosigner
	records     []audit.Record
	checkpoints [][]byte
	made        [][]audit.Cosignature
	tree        audit.Tree
	incarnation int64
	resumed     audit.Resumption
	start       time.Time
}

func newLog(t require.TestingT, n int) *log {
	l := &log{t: t, key: audittest.NewKey(t, origin), witness: newWitness(t), incarnation: 1, start: time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)}
	l.grow("record", n)
	if n%10 > 0 {
		l.keep()
	}
	return l
}

func newWitness(t require.TestingT) *audit.Cosigner {
	secret, _, err := audit.GenerateCosigner("witness.example/w1")
	require.NoError(t, err)
	w, err := audit.NewCosigner(secret, func() time.Time { return exported })
	require.NoError(t, err)
	return w
}

// keep signs the log as it is, and has the witness sign that; where there is none, it has seen another history.
func (l *log) keep() {
	signed := l.sign(l.key)
	l.checkpoints = append(l.checkpoints, signed)
	var made []audit.Cosignature
	if l.witness != nil {
		made = append(made, l.cosign(l.witness))
	}
	l.made = append(l.made, made)
}

func (l *log) cosign(by *audit.Cosigner) audit.Cosignature {
	signature, err := by.Sign([]byte(l.checkpoint().Text()))
	require.NoError(l.t, err)
	return append(binary.BigEndian.AppendUint32(nil, by.KeyHash()), signature...)
}

// witnessed is what the witness has: the log's checkpoint with its own signature.
func (l *log) witnessed() []byte {
	made := l.made[len(l.made)-1][0]
	return append(slices.Clone(l.checkpoints[len(l.checkpoints)-1]), audit.SignatureLine(l.witness.Name(), l.witness.KeyHash(), made[4:])...)
}

func (l *log) grow(word string, n int) {
	for range n {
		i := int64(len(l.records))
		body := fmt.Appendf(nil, `{"%s":%d}`, word, i)
		r := audit.Record{Leaf: i, ID: 3*i + 7, Digest: sha256.Sum256(body), Body: body}
		l.records = append(l.records, r)
		l.tree.Append(r.Digest)
		if l.tree.Size()%10 == 0 {
			l.keep()
		}
	}
}

func (l *log) checkpoint() audit.Checkpoint {
	at := l.start.Add(time.Duration(l.tree.Size()) * time.Second)
	return audit.Checkpoint{Origin: origin, Size: l.tree.Size(), Root: l.tree.Root(), At: at, Incarnation: l.incarnation, Epoch: 1, Resumed: l.resumed}
}

func (l *log) sign(by audittest.Key) []byte {
	c := l.checkpoint()
	c.Origin = by.Name()
	signed, err := audit.Sign(c, by.Signer)
	require.NoError(l.t, err)
	return signed
}

func (l *log) forget() { l.records, l.checkpoints, l.made, l.tree = nil, nil, nil, audit.Tree{} }

func (l *log) renumber() {
	for i := range l.records {
		l.records[i].Leaf = int64(i)
	}
}

func (l *log) bundle() *audit.Bundle {
	var out bytes.Buffer
	w, err := audit.NewWriter(&out, origin, exported)
	require.NoError(l.t, err)
	for _, r := range l.records {
		require.NoError(l.t, w.Record(r))
	}
	for i, c := range l.checkpoints {
		var made []audit.Cosignature
		if i < len(l.made) {
			made = l.made[i]
		}
		require.NoError(l.t, w.Checkpoint(c, made...))
	}
	b, err := audit.ReadBundle(&out, nil)
	require.NoError(l.t, err)
	return b
}

func (l *log) verify(anchors ...[]byte) *audit.Report {
	r, err := audit.Verify(l.bundle(), l.key.Verifier, anchors)
	require.NoError(l.t, err)
	return r
}

func TestWholeLog(t *testing.T) {
	t.Parallel()
	l := newLog(t, 47)
	r := l.verify(l.checkpoints...)
	assert.True(t, r.OK(), r.Findings)
	assert.EqualValues(t, 47, r.Records)
	assert.EqualValues(t, 47, r.Covered)
	assert.Equal(t, 5, r.Checkpoints)
	assert.Zero(t, r.Gone)

	l.records[12].Body = nil
	r = l.verify()
	assert.True(t, r.OK(), "what went by retention proves nothing against the rest: %v", r.Findings)
	assert.EqualValues(t, 1, r.Gone)
	assert.True(t, newLog(t, 0).verify().OK())
}

func TestTamper(t *testing.T) {
	t.Parallel()
	edit := func(r *audit.Record, whole bool) {
		r.Body = []byte(`{"record":"another"}`)
		if whole {
			r.Digest = sha256.Sum256(r.Body)
		}
	}
	for name, c := range map[string]struct {
		tamper   func(l *log)
		anchored bool
		want     audit.Tamper
		from     int64
	}{
		"edit":                 {func(l *log) { edit(&l.records[13], false) }, false, audit.Edited, 13},
		"edit with the digest": {func(l *log) { edit(&l.records[13], true) }, false, audit.Edited, 10},
		"delete in the middle": {func(l *log) { l.records = slices.Delete(l.records, 13, 15) }, false, audit.DeletedMiddle, 13},
		"delete in the middle, numbers closed up": {func(l *log) { l.records = slices.Delete(l.records, 13, 15); l.renumber() }, false, audit.DeletedMiddle, 10},
		"delete the first":                        {func(l *log) { l.records = l.records[1:] }, false, audit.DeletedMiddle, 0},
		"delete at the tail":                      {func(l *log) { l.records = l.records[:35] }, false, audit.DeletedTail, 35},
		"delete at the tail with checkpoints":     {func(l *log) { l.records, l.checkpoints = l.records[:35], l.checkpoints[:3] }, true, audit.OldBackup, 35},
		"delete all":                              {func(l *log) { l.records = nil }, false, audit.DeletedAll, 0},
		"delete all with checkpoints":             {func(l *log) { l.records, l.checkpoints = nil, nil }, true, audit.DeletedAll, 0},
		"reorder":                                 {func(l *log) { l.records[13], l.records[17] = l.records[17], l.records[13] }, false, audit.Reordered, 14},
		"reorder, numbers made to fit": {func(l *log) {
			l.records[13], l.records[17] = l.records[17], l.records[13]
			l.renumber()
		}, false, audit.Reordered, 10},
		"reorder, numbers and rows made to fit": {func(l *log) {
			l.records[13], l.records[14] = l.records[14], l.records[13]
			l.records[13].ID, l.records[14].ID = l.records[14].ID, l.records[13].ID
			l.renumber()
		}, false, audit.Reordered, 10},
		"insert": {func(l *log) {
			l.records = slices.Insert(l.records, 13, l.records[12])
		}, false, audit.Inserted, 12},
		"insert, numbers moved up": {func(l *log) {
			extra := audit.Record{ID: 45, Body: []byte(`{}`), Digest: sha256.Sum256([]byte(`{}`))}
			l.records = slices.Insert(l.records, 13, extra)
			l.renumber()
		}, false, audit.Inserted, 13},
		"fork": {func(l *log) {
			l.forget()
			l.grow("record", 20)
			l.witness = nil
			l.grow("other", 27)
			l.keep()
			l.start = l.start.Add(time.Millisecond)
		}, true, audit.Forked, 0},
		"fork in one bundle": {func(l *log) {
			other := &log{t: l.t, key: l.key, incarnation: 1, start: l.start}
			other.grow("other", 10)
			l.checkpoints = append(l.checkpoints, other.checkpoints...)
		}, false, audit.Forked, 10},
		"swapped checkpoint": {func(l *log) {
			l.checkpoints[2] = l.sign(audittest.NewKey(l.t, origin))
		}, false, audit.SwappedCheckpoint, 0},
		"checkpoint of another log": {func(l *log) {
			l.checkpoints[2] = l.sign(audittest.NewKey(l.t, "nightwarrant/audit/other"))
		}, false, audit.SwappedCheckpoint, 0},
		"checkpoint with another root": {func(l *log) {
			l.checkpoints[2] = bytes.Replace(l.checkpoints[2], []byte("\n30\n"), []byte("\n29\n"), 1)
		}, false, audit.SwappedCheckpoint, 0},
		"old backup restored": {func(l *log) { l.records, l.checkpoints = l.records[:20], l.checkpoints[:2] }, true, audit.OldBackup, 20},
		"old backup restored and gone on": {func(l *log) {
			l.forget()
			l.grow("record", 20)
			l.witness, l.incarnation = nil, 2
			l.grow("other", 27)
			l.keep()
		}, true, audit.OldBackup, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLog(t, 47)
			anchored, witnessed, witness := slices.Clone(l.checkpoints), l.witnessed(), l.witness.Witness
			c.tamper(l)
			named := func(by string, anchors [][]byte, witnesses ...audit.Witness) {
				r, err := audit.Verify(l.bundle(), l.key.Verifier, anchors, witnesses...)
				require.NoError(t, err, by)
				require.Len(t, r.Findings, 1, "%s: %v", by, r.Findings)
				assert.Equal(t, c.want, r.Findings[0].Tamper, "%s: %s", by, r.Findings[0].Why)
				assert.NotEmpty(t, r.Findings[0].Why, by)
				if by != "what a witness has" || c.anchored || len(l.checkpoints) > 0 {
					assert.Equal(t, c.from, r.Findings[0].From, by)
				}
			}
			if !c.anchored {
				named("the log's key", nil)
			}
			named("an anchor", anchored)
			named("what a witness has", [][]byte{witnessed}, witness)
		})
	}
}

// Who has the log's key can write another history, and cannot have had it seen.
func TestWhoHasTheLogsKeyIsSeen(t *testing.T) {
	t.Parallel()
	rewrite := func(l *log) { l.forget(); l.witness = nil; l.grow("other", 47); l.keep() }
	for name, c := range map[string]struct {
		tamper   func(l *log)
		anchored bool
		want     audit.Tamper
	}{
		"rewritten": {rewrite, false, audit.SwappedCheckpoint},
		"rewritten, the signatures of before left": {func(l *log) { made := l.made[4]; rewrite(l); l.made[4] = made }, false, audit.SwappedCheckpoint},
		"rewritten, signed by somebody else":       {func(l *log) { rewrite(l); l.made[4] = []audit.Cosignature{l.cosign(newWitness(l.t))} }, false, audit.SwappedCheckpoint},
		"rewritten, and the witness asked":         {rewrite, true, audit.Forked},
		"cut short, and the witness asked":         {func(l *log) { l.records, l.checkpoints, l.made = l.records[:35], l.checkpoints[:3], l.made[:3] }, true, audit.OldBackup},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLog(t, 47)
			witnessed, witness := l.witnessed(), l.witness.Witness
			c.tamper(l)
			assert.True(t, l.verify().OK(), "the key alone proves nothing against who has it")
			var anchors [][]byte
			if c.anchored {
				anchors = append(anchors, witnessed)
			}
			r, err := audit.Verify(l.bundle(), l.key.Verifier, anchors, witness)
			require.NoError(t, err)
			require.NotEmpty(t, r.Findings)
			assert.Equal(t, c.want, r.Findings[0].Tamper, r.Findings)
		})
	}
}

// An anchor that is younger than an export tells nothing about it, but that it is old.
func TestAnAnchorThatIsYoungerThanTheExport(t *testing.T) {
	t.Parallel()
	l := newLog(t, 47)
	anchors := slices.Clone(l.checkpoints)
	l.records, l.checkpoints = l.records[:35], l.checkpoints[:3]
	b := l.bundle()
	b.At = l.start.Add(40 * time.Second)
	r, err := audit.Verify(b, l.key.Verifier, anchors)
	require.NoError(t, err)
	assert.Empty(t, r.Findings)
	assert.True(t, r.ExportAgain)
	assert.False(t, r.OK(), "it may be cut short all the same")

	b.At = l.start.Add(51 * time.Second)
	r, err = audit.Verify(b, l.key.Verifier, anchors)
	require.NoError(t, err)
	require.Len(t, r.Findings, 1)
	assert.Equal(t, audit.OldBackup, r.Findings[0].Tamper, "the first that is missing had long been signed")

	l.checkpoints = slices.Clone(anchors)
	b = l.bundle()
	b.At = l.start
	r, err = audit.Verify(b, l.key.Verifier, anchors)
	require.NoError(t, err)
	require.Len(t, r.Findings, 1)
	assert.Equal(t, audit.DeletedTail, r.Findings[0].Tamper, "the log itself says that it is longer")
}

// A log that was resumed gives up what its decision names, and nothing else.
func TestResumedLog(t *testing.T) {
	t.Parallel()
	resume := func(t *testing.T) (l *log, before [][]byte) {
		l = newLog(t, 47)
		before = append(slices.Clone(l.checkpoints), l.witnessed())
		lost := l.checkpoint()
		l.forget()
		l.grow("record", 20)
		l.incarnation, l.resumed = 3, audit.Resumption{Number: 3, From: 20, Lost: lost.Size, LostRoot: lost.Root}
		l.start = l.start.Add(time.Hour)
		l.grow("after", 25)
		l.keep()
		return l, before
	}
	l, before := resume(t)
	r, err := audit.Verify(l.bundle(), l.key.Verifier, append(before, l.witnessed()), l.witness.Witness)
	require.NoError(t, err)
	assert.True(t, r.OK(), r.Findings)
	assert.Equal(t, []audit.Resumed{{Incarnation: 3, From: 20, Lost: 47}}, r.Resumed)
	assert.EqualValues(t, 45, r.Covered)

	// A decision that gave up too little, under which nothing was signed but that there is nothing, and then this one.
	first := &log{t: t, key: l.key, incarnation: 2, start: l.start, resumed: audit.Resumption{Number: 2, From: 20, Lost: 40}}
	assert.True(t, l.verify(append(before, first.sign(l.key))...).OK())

	other := &log{t: t, key: l.key, incarnation: 1, start: l.start}
	other.grow("record", 20)
	other.grow("else", 30)
	for name, anchor := range map[string][]byte{
		"more than was given up": other.checkpoints[4],
		"another log before it parted": func() []byte {
			o := &log{t: t, key: l.key, incarnation: 1, start: l.start}
			o.grow("else", 10)
			return o.checkpoints[0]
		}(),
		"more of the resumed log": func() []byte {
			l, _ := resume(t)
			l.key = other.key
			l.grow("more", 5)
			return l.checkpoints[len(l.checkpoints)-1]
		}(),
		"another decision under its number": func() []byte { l, _ := resume(t); l.key = other.key; l.resumed.Lost++; return l.sign(l.key) }(),
		"another one as long as was lost": func() []byte {
			o := &log{t: t, key: l.key, incarnation: 1, start: l.start}
			o.grow("else", 47)
			return o.sign(l.key)
		}(),
	} {
		r := l.verify(append(before, anchor)...)
		assert.NotEmpty(t, r.Findings, name)
	}

	// Restored once more, from before the decision, by somebody who says nothing of it.
	anchors := append(before, l.checkpoints...)
	l.forget()
	l.resumed, l.incarnation = audit.Resumption{}, 4
	l.grow("record", 20)
	l.grow("third", 30)
	assert.NotEmpty(t, l.verify(anchors...).Findings)

	for name, bad := range map[string]audit.Resumption{
		"nothing lost":         {Number: 3, From: 20, Lost: 20},
		"of itself":            {Number: 3, From: 20, Lost: 47, LostOf: 3},
		"negative":             {Number: 3, From: -1, Lost: 47},
		"more than once given": {Number: -3, From: 20, Lost: 47},
	} {
		l.resumed = bad
		_, err := audit.OpenCheckpoint(l.sign(l.key), l.key.Verifier)
		require.Error(t, err, name)
	}
}

// Whatever is done to what checkpoints cover is found, whether it is named rightly or not.
func TestEveryChangeIsFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := newLog(t, rapid.IntRange(10, 40).Draw(t, "records"))
		i := rapid.IntRange(0, len(l.records)-1).Draw(t, "at")
		anchors := slices.Clone(l.checkpoints)
		switch rapid.SampledFrom([]string{"edit", "delete", "insert", "move", "flip"}).Draw(t, "act") {
		case "edit":
			l.records[i].Body = []byte("x")
			l.records[i].Digest = sha256.Sum256([]byte("x"))
		case "delete":
			l.records = slices.Delete(l.records, i, i+1)
		case "insert":
			l.records = slices.Insert(l.records, i, audit.Record{Digest: Digest("x")})
		case "move":
			j := rapid.IntRange(0, len(l.records)-1).Filter(func(j int) bool { return j != i }).Draw(t, "to")
			l.records[i], l.records[j] = l.records[j], l.records[i]
		case "flip":
			l.records[i].Digest[rapid.IntRange(0, 31).Draw(t, "byte")] ^= 1
			l.records[i].Body = nil
		}
		if rapid.Bool().Draw(t, "renumbered") {
			l.renumber()
		}
		assert.False(t, l.verify(anchors...).OK())
	})
}

// The tree is the library's, whatever way it grew.
func TestTreeAgreesWithTheLibrary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 70).Draw(t, "records")
		var stored []tlog.Hash
		all := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
			out := make([]tlog.Hash, len(at))
			for i, x := range at {
				out[i] = stored[x]
			}
			return out, nil
		})
		tree := &audit.Tree{}
		for i := range n {
			d := Digest(fmt.Sprint(i))
			more, err := tlog.StoredHashes(int64(i), d[:], all)
			require.NoError(t, err)
			stored = append(stored, more...)
			tree.Append(d)
			if rapid.Bool().Draw(t, "reopened") {
				tree, err = audit.OpenTree(tree.Size(), tree.Edge())
				require.NoError(t, err)
			}
		}
		want, err := tlog.TreeHash(int64(n), all)
		require.NoError(t, err)
		assert.Equal(t, want, tree.Root())
		_, err = audit.OpenTree(int64(n), append(tree.Edge(), 0))
		require.Error(t, err)
	})
}

func Digest(s string) audit.Digest { return sha256.Sum256([]byte(s)) }

func TestProof(t *testing.T) {
	t.Parallel()
	l := newLog(t, 47)
	b := l.bundle()
	for _, leaf := range []int64{0, 13, 46} {
		p, err := b.Prove(leaf, l.key.Verifier)
		require.NoError(t, err)
		p.Body = string(l.records[leaf].Body)
		require.NoError(t, p.Check(l.key.Verifier))

		require.Error(t, p.Check(audittest.NewKey(t, origin).Verifier), "another key")
		for name, spoil := range map[string]func(*audit.Proof){
			"another record": func(p *audit.Proof) { p.Leaf++ },
			"another body":   func(p *audit.Proof) { p.Body += " " },
			"another digest": func(p *audit.Proof) { p.Body, p.Digest = "", p.Digest[1:]+"A" },
			"no hashes":      func(p *audit.Proof) { p.Hashes = nil },
			"no checkpoint":  func(p *audit.Proof) { p.Checkpoint = "" },
		} {
			bad := p
			spoil(&bad)
			require.Error(t, bad.Check(l.key.Verifier), name)
		}
	}
	_, err := b.Prove(47, l.key.Verifier)
	require.Error(t, err)
	_, err = b.Prove(-1, l.key.Verifier)
	require.Error(t, err)
	_, err = b.Prove(0, audittest.NewKey(t, origin).Verifier)
	require.Error(t, err)
}

func FuzzBundle(f *testing.F) {
	l := newLog(f, 3)
	var out bytes.Buffer
	w, err := audit.NewWriter(&out, origin, exported)
	require.NoError(f, err)
	for _, r := range l.records {
		require.NoError(f, w.Record(r))
	}
	require.NoError(f, w.Checkpoint(l.checkpoints[0]))
	f.Add(out.Bytes())
	f.Add([]byte(`{"format":"nightwarrant-audit/v1","origin":"nightwarrant/audit/test","at":"2026-11-30T10:00:00Z"}` + "\n" + `{"record":{"leaf":-1,"id":0,"digest":""}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := audit.ReadBundle(bytes.NewReader(text), nil)
		if err != nil {
			return
		}
		r, err := audit.Verify(b, l.key.Verifier, l.checkpoints)
		if err == nil && r.OK() {
			require.GreaterOrEqual(t, r.Records, int64(3), "what was anchored is there")
		}
	})
}

func FuzzCheckpoint(f *testing.F) {
	l := newLog(f, 10)
	want := l.checkpoint()
	f.Add(l.checkpoints[0])
	f.Fuzz(func(t *testing.T, signed []byte) {
		c, err := audit.OpenCheckpoint(signed, l.key.Verifier)
		if err == nil {
			require.Equal(t, want, c, "nothing else was signed")
		}
	})
}

// A million records, as an export has them, with bodies and a checkpoint for each thousand: read from a file, held against its digests, and verified.
func BenchmarkMillion(b *testing.B) {
	const records = 1_000_000
	file := filepath.Join(b.TempDir(), "log.jsonl")
	key, witness := writeLong(b, file, records)
	b.ResetTimer()
	var most runtime.MemStats
	for b.Loop() {
		in, err := os.Open(file)
		require.NoError(b, err)
		bundle, err := audit.ReadBundle(in, nil)
		require.NoError(b, errors.Join(err, in.Close()))
		r, err := audit.Verify(bundle, key, nil, witness)
		require.NoError(b, err)
		require.True(b, r.OK(), r.Findings)
		require.EqualValues(b, records, r.Covered)
		runtime.ReadMemStats(&most)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/records, "ns/record")
	b.ReportMetric(float64(most.Sys)/(1<<20), "MiB-of-the-process")
}

func writeLong(b *testing.B, file string, records int64) (note.Verifier, audit.Witness) {
	out, err := os.Create(file)
	require.NoError(b, err)
	buffer := bufio.NewWriter(out)
	w, err := audit.NewWriter(buffer, origin, exported)
	require.NoError(b, err)
	l := newLog(b, 0)
	for i := range records {
		body := fmt.Appendf(nil, `{"v":1,"at":%d,"verb":"claim","verdict":"ok","task":%d,"run":%d,"effect":null,"more":{"capability":"%064x","assertion":"%064x","fence":%d}}`, i, i, i, i, i, i)
		r := audit.Record{Leaf: i, ID: i + 1, Digest: sha256.Sum256(body), Body: body}
		require.NoError(b, w.Record(r))
		l.tree.Append(r.Digest)
		if l.tree.Size()%1000 == 0 {
			l.keep()
		}
	}
	for i, c := range l.checkpoints {
		require.NoError(b, w.Checkpoint(c, l.made[i]...))
	}
	require.NoError(b, errors.Join(buffer.Flush(), out.Close()))
	return l.key.Verifier, l.witness.Witness
}
