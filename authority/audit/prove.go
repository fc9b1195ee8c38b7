package audit

import (
	"crypto/sha256"
	"errors"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Proof shows that a record is in the log, to whoever has its checkpoint's key (RFC 9162 §2.1.3).
type Proof struct {
	Leaf       int64            `json:"leaf"`
	Digest     string           `json:"digest"`         // base64url
	Body       string           `json:"body,omitempty"` // as it was written
	Hashes     tlog.RecordProof `json:"hashes"`
	Checkpoint string           `json:"checkpoint"` // signed
}

var (
	errNoRecord = errors.New("the log has no such record under a good checkpoint")
	errProof    = errors.New("the proof does not show that the record is in the log")
)

// Prove returns the proof of a record under the newest checkpoint of the bundle
// that key has signed. The body is the caller's to add.
func (b *Bundle) Prove(leaf int64, key note.Verifier) (Proof, error) {
	var best Checkpoint
	var signed []byte
	for _, text := range b.Checkpoints {
		if c, err := OpenCheckpoint(text, key); err == nil && c.Size >= best.Size && c.Size <= b.From()+int64(len(b.records)) {
			best, signed = c, text
		}
	}
	if leaf < b.From() || leaf >= best.Size {
		return Proof{}, errNoRecord
	}
	first, edge := tlog.StoredHashIndex(0, b.From()), b.cut.places()
	var hashes []tlog.Hash // from the first record on
	tree := b.cut.Clone()
	for _, r := range b.records[:best.Size-b.From()] {
		hashes = tree.append(r.digest, hashes)
	}
	reader := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(at))
		for i, x := range at {
			h, ok := edge[x]
			if x >= first {
				h, ok = hashes[x-first], true
			}
			if !ok {
				return nil, errNoRecord
			}
			out[i] = h
		}
		return out, nil
	})
	proof, err := tlog.ProveRecord(best.Size, leaf, reader)
	if err != nil {
		return Proof{}, err
	}
	p := Proof{Leaf: leaf, Digest: encode(b.records[leaf-b.From()].digest), Hashes: proof, Checkpoint: string(signed)}
	return p, p.Check(key)
}

// Check holds a proof against the log's key.
func (p Proof) Check(key note.Verifier) error {
	c, err := OpenCheckpoint([]byte(p.Checkpoint), key)
	if err != nil {
		return err
	}
	digest, ok := decode(p.Digest)
	if !ok || p.Body != "" && sha256.Sum256([]byte(p.Body)) != digest {
		return errProof
	}
	if tlog.CheckRecord(p.Hashes, c.Size, c.Root, p.Leaf, tlog.RecordHash(digest[:])) != nil {
		return errProof
	}
	return nil
}
