package audit

import (
	"crypto/sha256"
	"errors"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Stretch is what lies between a checkpoint and a record after it.
type Stretch struct {
	Size    int64  // of the tree at the checkpoint; 0 where there is none before the record
	Edge    []byte // of that tree
	Digests []Digest
}

// Nodes are the hashes of a tree of which checkpoints keep the edges, and nobody
// the rest: each hash is complete with one record, and follows from the
// stretch before that record. It is a tlog.HashReader for one tree.
type Nodes struct {
	// Read gives the stretch up to and with each of these records.
	Read  func(leaves []int64) ([]Stretch, error)
	known map[int64]tlog.Hash
}

var errStretch = errors.New("a stretch of the log does not reach its record")

// ReadHashes makes Nodes a tlog.HashReader.
func (n *Nodes) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	if err := n.learn(indexes); err != nil {
		return nil, err
	}
	out := make([]tlog.Hash, len(indexes))
	for i, at := range indexes {
		out[i] = n.known[at]
	}
	return out, nil
}

func (n *Nodes) learn(indexes []int64) error {
	var leaves []int64
	for _, at := range indexes {
		if _, ok := n.known[at]; !ok {
			level, of := tlog.SplitStoredHashIndex(at)
			leaves = append(leaves, (of+1)<<level-1)
		}
	}
	if len(leaves) == 0 {
		return nil
	}
	stretches, err := n.Read(leaves)
	if err == nil && len(stretches) != len(leaves) {
		err = errStretch
	}
	for i := 0; err == nil && i < len(leaves); i++ {
		err = n.grow(stretches[i], leaves[i])
	}
	return err
}

func (n *Nodes) grow(s Stretch, leaf int64) error {
	if s.Size < 0 || s.Size+int64(len(s.Digests)) != leaf+1 {
		return errStretch
	}
	tree, err := OpenTree(s.Size, s.Edge)
	if err != nil {
		return err
	}
	if n.known == nil {
		n.known = map[int64]tlog.Hash{}
	}
	for _, d := range s.Digests {
		first := tlog.StoredHashIndex(0, tree.size)
		for i, h := range tree.append(d, nil) {
			n.known[first+int64(i)] = h
		}
	}
	return nil
}

// DigestOf is the digest of a body.
func DigestOf(body string) Digest { return sha256.Sum256([]byte(body)) }

// Prove returns the proof of a record under a signed checkpoint, which key has
// signed, of the tree that reader reads.
func Prove(reader tlog.HashReader, signed []byte, key note.Verifier, leaf int64, body string) (Proof, error) {
	c, err := OpenCheckpoint(signed, key)
	if err != nil {
		return Proof{}, err
	}
	if leaf < 0 || leaf >= c.Size {
		return Proof{}, errNoRecord
	}
	hashes, err := tlog.ProveRecord(c.Size, leaf, reader)
	if err != nil {
		return Proof{}, err
	}
	p := Proof{Leaf: leaf, Digest: encode(DigestOf(body)), Body: body, Hashes: hashes, Checkpoint: string(signed)}
	return p, p.Check(key)
}
