package audit_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/audit/audittest"
)

// cut is the log's bundle without its first records, of which the edge of a tree is told.
func (l *log) cut(size int64, edge []byte) *audit.Bundle {
	var out bytes.Buffer
	w, err := audit.NewWriter(&out, origin, l.start)
	require.NoError(l.t, err)
	require.NoError(l.t, w.Cut(size, edge))
	for _, r := range l.records[size:] {
		require.NoError(l.t, w.Record(r))
	}
	for _, c := range l.checkpoints {
		require.NoError(l.t, w.Checkpoint(c))
	}
	b, err := audit.ReadBundle(&out, nil)
	require.NoError(l.t, err)
	return b
}

// edgeAt is the edge of the log's tree when it had so many records.
func (l *log) edgeAt(size int64) []byte {
	t := &audit.Tree{}
	for _, r := range l.records[:size] {
		t.Append(r.Digest)
	}
	return t.Edge()
}

func TestBundleWithoutItsBeginning(t *testing.T) {
	t.Parallel()
	l := newLog(t, 47)
	anchors := l.checkpoints
	b := l.cut(20, l.edgeAt(20))
	r, err := audit.Verify(b, l.key.Verifier, anchors)
	require.NoError(t, err)
	assert.True(t, r.OK(), r.Findings)
	assert.EqualValues(t, 20, r.From)
	assert.EqualValues(t, 27, r.Records)
	assert.EqualValues(t, 47, r.Covered)

	for _, leaf := range []int64{20, 33, 46} {
		p, err := b.Prove(leaf, l.key.Verifier)
		require.NoError(t, err)
		require.NoError(t, p.Check(l.key.Verifier))
	}
	_, err = b.Prove(19, l.key.Verifier)
	require.Error(t, err, "it is not here any more")

	for name, c := range map[string]struct {
		size int64
		edge []byte
		want audit.Tamper
	}{
		"another edge":                   {20, append(l.edgeAt(20)[:32:32], make([]byte, 32)...), audit.Edited},
		"a cut that nobody signed":       {21, l.edgeAt(21), audit.Edited},
		"a record hidden behind the cut": {30, l.edgeAt(30), ""},
	} {
		r, err := audit.Verify(l.cut(c.size, c.edge), l.key.Verifier, nil)
		require.NoError(t, err)
		if c.want == "" {
			assert.True(t, r.OK(), name)
			continue
		}
		require.Len(t, r.Findings, 1, name)
		assert.Equal(t, c.want, r.Findings[0].Tamper, name)
	}
}

// What is done to the rest of a log that was cut is named as in a whole one.
func TestTamperBehindACut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tamper func(l *log)
		want   audit.Tamper
	}{
		"edit": {func(l *log) {
			l.records[33].Body = []byte("x")
			l.records[33].Digest = sha256.Sum256([]byte("x"))
		}, audit.Edited},
		"delete in the middle": {func(l *log) { l.records = append(l.records[:33:33], l.records[35:]...) }, audit.DeletedMiddle},
		"delete at the tail":   {func(l *log) { l.records = l.records[:35] }, audit.DeletedTail},
		"delete all":           {func(l *log) { l.records = l.records[:20] }, audit.DeletedAll},
		"reorder":              {func(l *log) { l.records[33], l.records[37] = l.records[37], l.records[33] }, audit.Reordered},
		"insert": {func(l *log) {
			l.records = append(l.records[:33:33], append([]audit.Record{{ID: 105, Digest: Digest("x")}}, l.records[33:]...)...)
			l.renumber()
		}, audit.Inserted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLog(t, 47)
			edge := l.edgeAt(20)
			c.tamper(l)
			r, err := audit.Verify(l.cut(20, edge), l.key.Verifier, nil)
			require.NoError(t, err)
			require.Len(t, r.Findings, 1, r.Findings)
			assert.Equal(t, c.want, r.Findings[0].Tamper, r.Findings[0].Why)
		})
	}
}

// Every record after any cut has its proof, from the edge of the tree before it.
func TestEveryCutCanBeProved(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := newLog(t, rapid.IntRange(11, 70).Draw(t, "records"))
		at := int64(10 * rapid.IntRange(1, (len(l.records)-1)/10).Draw(t, "cut"))
		b := l.cut(at, l.edgeAt(at))
		leaf := rapid.Int64Range(at, int64(len(l.records))-1).Draw(t, "leaf")
		p, err := b.Prove(leaf, l.key.Verifier)
		require.NoError(t, err)
		require.NoError(t, p.Check(l.key.Verifier))
	})
}

// What a checkpoint and the stretch after it give is the library's tree.
func TestNodesAgreeWithTheLibrary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 90).Draw(t, "records")
		every := rapid.Int64Range(1, 20).Draw(t, "checkpoints")
		digest := func(i int64) audit.Digest { return Digest(fmt.Sprint(i)) }
		nodes := &audit.Nodes{Read: func(leaves []int64) (out []audit.Stretch, err error) {
			for _, leaf := range leaves {
				s := audit.Stretch{Size: leaf / every * every}
				tree := &audit.Tree{}
				for i := range s.Size {
					tree.Append(digest(i))
				}
				s.Edge = tree.Edge()
				for i := s.Size; i <= leaf; i++ {
					s.Digests = append(s.Digests, digest(i))
				}
				out = append(out, s)
			}
			return out, nil
		}}
		tree := &audit.Tree{}
		for i := range n {
			tree.Append(digest(i))
		}
		leaf := rapid.Int64Range(0, n-1).Draw(t, "leaf")
		proof, err := tlog.ProveRecord(n, leaf, nodes)
		require.NoError(t, err)
		d := digest(leaf)
		require.NoError(t, tlog.CheckRecord(proof, n, tree.Root(), leaf, tlog.RecordHash(d[:])))
	})
	short := &audit.Nodes{Read: func(leaves []int64) ([]audit.Stretch, error) { return make([]audit.Stretch, len(leaves)), nil }}
	_, err := short.ReadHashes([]int64{0})
	require.Error(t, err, "a stretch that ends before its record")
}

// A personal field is what its record commits to, or it is redacted; nothing else.
func TestDisclosures(t *testing.T) {
	t.Parallel()
	salt, value := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	sum := sha256.Sum256([]byte("nightwarrant/audit-field/v1\x00" + string(salt) + "\x00member\x00" + string(value)))
	body := fmt.Appendf(nil, `{"v" : 1, "verb" : "sign_in", "more" : {"member" : "%s"}}`, hex.EncodeToString(sum[:]))
	good := audit.Disclosure{Field: "member", Salt: salt, Value: value}
	for name, c := range map[string]struct {
		body                []byte
		disclosures         []audit.Disclosure
		disclosed, redacted int64
		untrue              bool
	}{
		"disclosed":           {body, []audit.Disclosure{good}, 1, 0, false},
		"redacted":            {body, nil, 0, 1, false},
		"another member":      {body, []audit.Disclosure{{"member", salt, bytes.Repeat([]byte{3}, 32)}}, 0, 0, true},
		"another salt":        {body, []audit.Disclosure{{"member", value, value}}, 0, 0, true},
		"another field":       {body, []audit.Disclosure{{"owner", salt, value}}, 0, 0, true},
		"twice":               {body, []audit.Disclosure{good, good}, 0, 0, true},
		"of nothing":          {[]byte(`{"v" : 1}`), []audit.Disclosure{good}, 0, 0, true},
		"of a body that went": {nil, []audit.Disclosure{good}, 0, 0, true},
		"nothing personal":    {[]byte(`{"v" : 1}`), nil, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &log{t: t, key: audittest.NewKey(t, origin), incarnation: 1}
			r := audit.Record{Body: c.body, Digest: sha256.Sum256(c.body), Disclosures: c.disclosures}
			l.records = append(l.records, r)
			l.tree.Append(r.Digest)
			l.checkpoints = append(l.checkpoints, l.sign(l.key))
			report := l.verify()
			assert.Equal(t, c.disclosed, report.Disclosed)
			assert.Equal(t, c.redacted, report.Redacted)
			if !c.untrue {
				assert.True(t, report.OK(), report.Findings)
				return
			}
			require.Len(t, report.Findings, 1)
			assert.Equal(t, audit.UntrueDisclosure, report.Findings[0].Tamper)
		})
	}
}
