package audit

import (
	"errors"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Why a bundle does not stand for records that are to go.
var (
	errNotKept   = errors.New("the export does not have all these records with their bodies")
	errOtherTree = errors.New("the export has no checkpoint of that size with the root that the database has")
	errNoAnchor  = errors.New("no anchor has a checkpoint over all these records")
)

// Keeps tells whether a bundle that Verify has found good has the records from
// up to and without size, with their bodies, under a checkpoint of that size and
// root, and whether an anchor has a checkpoint over all of them.
func (b *Bundle) Keeps(from, size int64, root tlog.Hash, key note.Verifier, anchors [][]byte) error {
	at := func(all [][]byte, is func(Checkpoint) bool) bool {
		for _, text := range all {
			if c, err := OpenCheckpoint(text, key); err == nil && is(c) {
				return true
			}
		}
		return false
	}
	switch {
	case from < b.From() || size > b.From()+int64(len(b.records)):
		return errNotKept
	case !at(b.Checkpoints, func(c Checkpoint) bool { return c.Size == size && c.Root == root }):
		return errOtherTree
	case !at(anchors, func(c Checkpoint) bool { return c.Size >= size }):
		return errNoAnchor
	}
	for _, r := range b.records[from-b.From() : size-b.From()] {
		if !r.body {
			return errNotKept
		}
	}
	return nil
}
