package sequencer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// File is an anchor: a file that only grows, on a path that is not the
// database's. Give the process the right to append to it and to nobody the
// right to cut it (chattr +a, or a share with object lock).
type File string

// maxAnchored bounds a line of an anchor's file, in bytes.
const maxAnchored = 16 << 10

type anchored struct {
	Checkpoint string `json:"checkpoint"`
}

// Anchor appends a checkpoint; it lies on the disk when there is no error.
func (f File) Anchor(_ context.Context, signed []byte) (err error) {
	line, err := json.Marshal(anchored{string(signed)})
	if err != nil {
		return err
	}
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
	if _, err := out.Write(append(line, '\n')); err != nil {
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
func (f File) Newest(context.Context) (signed []byte, err error) {
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
	tail := make([]byte, min(end, 2*maxAnchored))
	if _, err := in.ReadAt(tail, end-int64(len(tail))); err != nil {
		return nil, err
	}
	if int64(len(tail)) < end { // it begins within a line
		tail = tail[bytes.IndexByte(tail, '\n')+1:]
	}
	all, err := ReadAnchors(bytes.NewReader(tail))
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[len(all)-1], nil
}

var errAnchors = errors.New("not the file of an anchor")

// ReadAnchors reads the checkpoints of an anchor's file. Lines that were cut
// off by a crash are left out.
func ReadAnchors(r io.Reader) (signed [][]byte, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxAnchored)
	for lines.Scan() {
		var l anchored
		switch err := json.Unmarshal(lines.Bytes(), &l); {
		case err == nil && l.Checkpoint != "":
			signed = append(signed, []byte(l.Checkpoint))
		case bytes.HasSuffix(lines.Bytes(), []byte("}")) || !bytes.HasPrefix(lines.Bytes(), []byte("{")):
			return nil, errAnchors
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("an anchor's file: %w", err)
	}
	return signed, nil
}
