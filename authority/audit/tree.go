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
	"fmt"
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

// Digest is the SHA-256 of an audit row's body, and a record of the tree.
type Digest = [sha256.Size]byte

// Tree is a Merkle tree (RFC 9162 §2.1) of which only the right edge is kept:
// what it takes to grow and to know the root. The zero value is empty.
type Tree struct {
	size int64
	edge map[int64]tlog.Hash // by tlog.StoredHashIndex
}

var errEdge = errors.New("the tree's edge does not fit its size")

// OpenTree returns the tree of that size with the edge that Edge gave.
func OpenTree(size int64, edge []byte) (*Tree, error) {
	if size < 0 || len(edge) != tlog.HashSize*bits.OnesCount64(uint64(size)) {
		return nil, errEdge
	}
	t := &Tree{size: size, edge: map[int64]tlog.Hash{}}
	for i, at := range edgeOf(size) {
		t.edge[at] = tlog.Hash(edge[i*tlog.HashSize:])
	}
	return t, nil
}

// edgeOf lists where the roots of the complete subtrees are, the largest first.
func edgeOf(size int64) []int64 {
	var at []int64
	for start := int64(0); start < size; {
		level := bits.Len64(uint64(size-start)) - 1
		at = append(at, tlog.StoredHashIndex(level, start>>level))
		start += 1 << level
	}
	return at
}

// Size is how many records there are.
func (t *Tree) Size() int64 { return t.size }

// Edge is what is kept of the tree: one hash for each bit of its size, 32 bytes each.
func (t *Tree) Edge() []byte {
	var out []byte
	for _, at := range edgeOf(t.size) {
		h := t.edge[at]
		out = append(out, h[:]...)
	}
	return out
}

// Clone returns a tree that grows by itself.
func (t *Tree) Clone() *Tree {
	c := &Tree{size: t.size, edge: make(map[int64]tlog.Hash, len(t.edge))}
	for at, h := range t.edge {
		c.edge[at] = h
	}
	return c
}

// Append adds records.
func (t *Tree) Append(records ...Digest) error {
	for _, d := range records {
		if err := t.append(tlog.RecordHash(d[:])); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) append(h tlog.Hash) error {
	stored, err := tlog.StoredHashesForRecordHash(t.size, h, t)
	if err != nil {
		return err
	}
	grown := make(map[int64]tlog.Hash, len(t.edge)+1)
	first := tlog.StoredHashIndex(0, t.size)
	for _, at := range edgeOf(t.size + 1) {
		if at >= first {
			grown[at] = stored[at-first]
		} else {
			grown[at] = t.edge[at]
		}
	}
	t.size, t.edge = t.size+1, grown
	return nil
}

// Root is the tree's hash.
func (t *Tree) Root() (tlog.Hash, error) { return tlog.TreeHash(t.size, t) }

// ReadHashes makes a Tree a tlog.HashReader of its edge.
func (t *Tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, at := range indexes {
		h, ok := t.edge[at]
		if !ok {
			return nil, fmt.Errorf("hash %d is not on the edge", at)
		}
		out[i] = h
	}
	return out, nil
}
