// Package disk says whether the file systems that matter have room left, before
// what writes to them finds out.
package disk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Watch is what must stay free. The zero Watch watches nothing and finds
// nothing wrong.
type Watch struct {
	Paths   []string // each stands for the file system that it is on
	Free    uint64   // bytes that must be free
	Percent uint64   // and how much of the whole, of bytes and of files
}

// Check asks for the first path that has too little room, or about which
// nothing can be learned. It blocks for as long as the file system does, which
// no context ends.
func (w Watch) Check() error {
	for _, path := range w.Paths {
		r, err := roomAt(path)
		if err == nil {
			err = w.enough(r)
		}
		if err != nil {
			return fmt.Errorf("disk: %q %w", path, err)
		}
	}
	return nil
}

// room is what a file system has, and has left for whoever is not root.
type room struct{ bytes, free, files, freeFiles uint64 }

func roomAt(path string) (room, error) {
	var s unix.Statfs_t
	if err := ignoringSignals(func() error { return unix.Statfs(path, &s) }); err != nil {
		return room{}, fmt.Errorf("cannot be examined: %w", err)
	}
	block := uint64(s.Bsize)
	return room{s.Blocks * block, s.Bavail * block, s.Files, s.Ffree}, nil
}

func ignoringSignals(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// enough judges what was learned. Some file systems count no files, but each has
// a size.
func (w Watch) enough(r room) error {
	switch {
	case r.bytes == 0:
		return errors.New("is on a file system without a size")
	case r.free < w.Free || r.free < share(r.bytes, w.Percent):
		return fmt.Errorf("has %d of %d bytes free", r.free, r.bytes)
	case r.freeFiles < share(r.files, w.Percent):
		return fmt.Errorf("has %d of %d files free", r.freeFiles, r.files)
	}
	return nil
}

// share is so many hundredths of a whole, which times a hundred may be too large.
func share(whole, percent uint64) uint64 { return whole/100*percent + whole%100*percent/100 }
