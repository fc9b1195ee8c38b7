// Package scrub keeps exact secrets out of a stream, in whatever usual encoding
// they stand there: as they are, base64 of either alphabet at any alignment,
// hex, and each character of those spelled by percent-encoding, escapes of JSON
// and entities of HTML, also one in the other.
//
// A stream is read once. What is held back of it depends on the secrets and not
// on its length.
package scrub

import (
	"errors"
	"io"
	"sync"
)

// Bounds of one secret, in bytes. A shorter one cannot be told from other text.
const (
	MinSecret = 8
	MaxSecret = 4 << 10
)

// Marker stands where a secret stood.
const Marker = "[redacted]"

// ErrSecret says that a secret cannot be kept out of text.
var ErrSecret = errors.New("scrub: a secret must have between 8 and 4096 bytes")

// Set is a set of secrets. It is safe for concurrent use and must not be copied; the zero Set is empty
// and changes nothing.
type Set struct {
	takes  [256][]uint64 // by byte, a bit for each position that takes it
	begins [256][]int32  // by byte, the first positions that take it
	gaps   [256][]uint64 // by byte, a bit for each position before which it may stand without a meaning
	last   []bool        // by position: a pattern ends with it

	follows  [256]class // by byte that something may begin with, the bytes that may come next
	machines sync.Pool
}

// New makes a set. Text that reads as base64 of user:password stands for its
// password too (RFC 7617 §2).
func New(secrets ...[]byte) (*Set, error) {
	s := &Set{}
	var all []pattern
	for _, secret := range secrets {
		for _, one := range derived(secret) {
			if len(one) < MinSecret || len(one) > MaxSecret {
				return nil, ErrSecret
			}
			all = append(all, patternsOf(one)...)
		}
	}
	s.compile(all)
	return s, nil
}

// String hides what the set holds.
func (s *Set) String() string { return "(secrets)" }

// GoString hides what the set holds.
func (s *Set) GoString() string { return "(secrets)" }

// Bytes returns text without the secrets, and whether there were any.
func (s *Set) Bytes(text []byte) (clean []byte, found bool) {
	m := s.machine()
	defer m.release()
	m.take(text)
	return m.give(make([]byte, 0, len(text)), m.at), m.found
}

func (s *Set) compile(all []pattern) {
	positions := 0
	for _, p := range all {
		positions += len(p.symbols)
	}
	words := (positions + 63) / 64
	s.last = make([]bool, positions)
	table := make([]uint64, 2*256*words)
	for b := range 256 {
		s.takes[b], table = table[:words], table[words:]
		s.gaps[b], table = table[:words], table[words:]
	}
	at := 0
	for _, p := range all {
		for i, symbol := range p.symbols {
			s.place(at+i, symbol, p.gap, i > 0)
		}
		for b := range 256 {
			if p.symbols[0].has(byte(b)) {
				s.begins[b] = append(s.begins[b], int32(at))
				s.follows[b].join(p.symbols[1]) // there is one: see MinSecret
				s.follows[b].join(classOf([]byte(openers + p.gap)...))
			}
		}
		at += len(p.symbols)
		s.last[at-1] = true
	}
	for _, opener := range []byte(openers) {
		if positions > 0 {
			s.follows[opener].join(classOf([]byte(continued)...))
		}
	}
}

func (s *Set) place(position int, symbol class, gap string, inside bool) {
	word, bit := position/64, uint64(1)<<(position%64)
	for b := range 256 {
		if symbol.has(byte(b)) {
			s.takes[b][word] |= bit
		}
	}
	for i := 0; inside && i < len(gap); i++ {
		if !symbol.has(gap[i]) {
			s.gaps[gap[i]][word] |= bit
		}
	}
}

func has(bits []uint64, position int32) bool {
	return bits[position/64]&(1<<(position%64)) != 0
}

// Reader reads r without the secrets.
func (s *Set) Reader(r io.Reader) *Reader {
	return &Reader{machine: s.machine(), from: r}
}

// Writer writes to w without the secrets. What is held back is written by Close,
// which does not close w.
func (s *Set) Writer(w io.Writer) *Writer {
	return &Writer{machine: s.machine(), to: w}
}
