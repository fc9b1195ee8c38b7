package exec

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"
)

// output keeps the first bytes that a command prints in a file that its owner alone may read, and drops the rest, so that
// neither the disk fills nor the command blocks.
type output struct {
	path   string
	file   *os.File
	read   *os.File // our end of the command's pipe
	left   int64
	total  int64
	digest hash.Hash
	err    error
	done   chan struct{}
}

const maxSameName = 100 // starts of a command under one hold

// openOutput makes the file and a pipe. The caller closes the end that the command gets.
func openOutput(dir, name string, most int64) (o *output, write *os.File, err error) {
	o = &output{left: most, digest: sha256.New(), done: make(chan struct{})}
	for n := 1; n <= maxSameName; n++ {
		o.path = filepath.Join(dir, fmt.Sprintf("%s.%d.log", name, n))
		if o.file, err = os.OpenFile(o.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); !errors.Is(err, os.ErrExist) {
			break
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if o.read, write, err = os.Pipe(); err != nil {
		return nil, nil, errors.Join(err, o.file.Close())
	}
	go o.copy()
	return o, write, nil
}

// copy goes on to the end of the pipe whatever becomes of the file.
func (o *output) copy() {
	defer close(o.done)
	_, err := io.Copy(writeOnly{o}, o.read)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		o.err = errors.Join(o.err, err)
	}
}

type writeOnly struct{ o *output }

func (w writeOnly) Write(p []byte) (int, error) {
	w.o.total += int64(len(p))
	keep := p[:min(int64(len(p)), w.o.left)]
	w.o.left -= int64(len(keep))
	if w.o.err == nil && len(keep) > 0 {
		if _, w.o.err = w.o.file.Write(keep); w.o.err == nil {
			w.o.digest.Write(keep)
		}
	}
	return len(p), nil
}

const drainWithin = time.Second // after everything that could write has ended

// end returns when the pipe is empty, and says what is in the file.
func (o *output) end(r *Report) error {
	_ = o.read.SetReadDeadline(time.Now().Add(drainWithin)) // a pipe has deadlines
	<-o.done
	info, err := o.file.Stat()
	err = errors.Join(o.err, err, o.file.Close(), o.read.Close())
	r.Output, r.Printed, r.SHA256 = o.path, o.total, hex.EncodeToString(o.digest.Sum(nil))
	if info != nil {
		r.Kept = info.Size()
	}
	return err
}
