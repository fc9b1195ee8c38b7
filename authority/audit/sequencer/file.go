package sequencer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"

	"github.com/nightwarrant/nightwarrant/authority/audit"
)

// File is an anchor: a file that only grows, on a path that is not the
// database's. Give the process the right to append to it and to nobody the
// right to cut it (chattr +a, or a share with object lock).
type File string

// Name is the file's.
func (f File) Name() string { return "the anchor " + string(f) }

// Anchor appends a checkpoint; it lies on the disk when there is no error.
func (f File) Anchor(_ context.Context, signed []byte) (err error) {
	line := audit.AnchorLine(signed)
	out, err := os.OpenFile(string(f), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	torn, err := endsTorn(out)
	if err != nil {
		return err
	}
	if torn { // a line that was not written to its end is nobody's
		line = append([]byte("\n"), line...)
	}
	if _, err := out.Write(line); err != nil {
		return err
	}
	return out.Sync()
}

func endsTorn(f *os.File) (bool, error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return false, err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, end-1); err != nil {
		return false, err
	}
	return last[0] != '\n', nil
}

// Newest is the last whole checkpoint of the file.
func (f File) Newest(context.Context, []byte) (signed []byte, err error) {
	in, err := os.Open(string(f))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	end, err := in.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	tail := make([]byte, min(end, 2*audit.MaxAnchorLine))
	if _, err := in.ReadAt(tail, end-int64(len(tail))); err != nil {
		return nil, err
	}
	if int64(len(tail)) < end { // it begins within a line
		tail = tail[bytes.IndexByte(tail, '\n')+1:]
	}
	all, err := audit.ReadAnchors(bytes.NewReader(tail))
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[len(all)-1], nil
}
