// Package audit is the log of what the authority did, made so that whoever owns
// the database cannot change it unseen (mission B14): a Merkle tree over the
// audit rows in the order of their numbers, checkpoints of that tree signed by a
// key of the log's own, and the check of an exported log without us.
//
// A record of the tree is the digest of an audit row's body, so that a body can
// go, by retention, and every proof of the others stays.
package audit

import (
	"crypto/sha256"
	"errors"
	"math/bits"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// Digest is the SHA-256 of an audit row's body, and a record of the tree.
type Digest = [sha256.Size]byte

// Tree is a Merkle tree (RFC 9162 §2.1) of which only the right edge is kept:
// what it takes to grow and to know the root. The zero value is empty.
type Tree struct {
	size int64
	edge []tlog.Hash // the roots of its complete subtrees, the largest first
}

var errEdge = errors.New("the tree's edge does not fit its size")

// OpenTree returns the tree of that size with the edge that Edge gave.
func OpenTree(size int64, edge []byte) (*Tree, error) {
	if size < 0 || len(edge) != tlog.HashSize*bits.OnesCount64(uint64(size)) {
		return nil, errEdge
	}
	t := &Tree{size: size}
	for h := range slices.Chunk(edge, tlog.HashSize) {
		t.edge = append(t.edge, tlog.Hash(h))
	}
	return t, nil
}

// Size is how many records there are.
func (t *Tree) Size() int64 { return t.size }

// Edge is what is kept of the tree: one hash for each bit of its size, 32 bytes each.
func (t *Tree) Edge() []byte {
	var out []byte
	for _, h := range t.edge {
		out = append(out, h[:]...)
	}
	return out
}

// Clone returns a tree that grows by itself.
func (t *Tree) Clone() *Tree { return &Tree{t.size, slices.Clone(t.edge)} }

// Append adds records.
func (t *Tree) Append(records ...Digest) {
	for _, d := range records {
		t.append(d, nil)
	}
}

// append adds a record, and to stored what it completes, in the order of tlog.StoredHashIndex.
func (t *Tree) append(d Digest, stored []tlog.Hash) []tlog.Hash {
	h := tlog.RecordHash(d[:])
	stored = append(stored, h)
	for n := t.size; n&1 == 1; n >>= 1 {
		last := len(t.edge) - 1
		h = tlog.NodeHash(t.edge[last], h)
		t.edge = t.edge[:last]
		stored = append(stored, h)
	}
	t.size, t.edge = t.size+1, append(t.edge, h)
	return stored
}

// places are the edge's hashes by tlog.StoredHashIndex.
func (t *Tree) places() map[int64]tlog.Hash {
	at := map[int64]tlog.Hash{}
	var start int64
	for _, h := range t.edge {
		level := bits.Len64(uint64(t.size-start)) - 1
		at[tlog.StoredHashIndex(level, start>>level)] = h
		start += 1 << level
	}
	return at
}

// Root is the tree's hash.
func (t *Tree) Root() tlog.Hash {
	if t.size == 0 {
		return sha256.Sum256(nil)
	}
	last := len(t.edge) - 1
	h := t.edge[last]
	for i := last - 1; i >= 0; i-- {
		h = tlog.NodeHash(t.edge[i], h)
	}
	return h
}
