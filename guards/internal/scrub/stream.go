package scrub

import "io"

const piece = 8 << 10 // bytes that are read at once

// Reader is an io.Reader without secrets.
type Reader struct {
	machine *machine
	from    io.Reader
	in      []byte
	out     []byte // clean, and not read yet
	given   int    // of out
	found   bool
	err     error
}

// Found tells whether there was a secret in what was read so far.
func (r *Reader) Found() bool { return r.found }

// Read implements io.Reader. An error of the underlying reader comes after everything that was read before it.
func (r *Reader) Read(p []byte) (int, error) {
	for r.given == len(r.out) && len(p) > 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.fill()
	}
	n := copy(p, r.out[r.given:])
	r.given += n
	return n, nil
}

func (r *Reader) fill() {
	if r.in == nil {
		r.in = make([]byte, piece)
	}
	n, err := r.from.Read(r.in)
	r.machine.take(r.in[:n])
	before := r.machine.settled()
	if err != nil {
		r.err, before = err, r.machine.at
	}
	r.out, r.given, r.found = r.machine.give(r.out[:0], before), 0, r.machine.found
	if err != nil {
		r.machine = r.machine.release()
	}
}

// Writer is an io.WriteCloser without secrets.
type Writer struct {
	machine *machine
	to      io.Writer
	out     []byte
	found   bool
	err     error
}

// Found tells whether there was a secret in what was written so far.
func (w *Writer) Found() bool { return w.found }

// Write implements io.Writer. What may be the beginning of a secret is held back.
func (w *Writer) Write(p []byte) (n int, err error) {
	for n < len(p) && w.err == nil {
		next := min(len(p), n+piece)
		w.machine.take(p[n:next])
		w.flush(w.machine.settled())
		n = next
	}
	return n, w.err
}

// Close writes what was held back. Nothing can be written after it.
func (w *Writer) Close() error {
	if w.machine == nil {
		return nil
	}
	if w.err == nil {
		w.flush(w.machine.at)
	}
	w.machine = w.machine.release()
	err := w.err
	w.err = io.ErrClosedPipe
	return err
}

func (w *Writer) flush(before int64) {
	w.out, w.found = w.machine.give(w.out[:0], before), w.machine.found
	if len(w.out) > 0 {
		_, w.err = w.to.Write(w.out)
	}
}
