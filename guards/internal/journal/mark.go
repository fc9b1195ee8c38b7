package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nightwarrant/nightwarrant/guards"
)

// state is how far a journal has come.
type state struct {
	ID   guards.Ref
	Boot int64 // how often it was opened
	TxID int64 // of its last commit
	ms   int64 // of its clock; not in the mark
}

// mark is a small file that follows the journal's commits without an fsync of its own. It never knows of a commit that is not durable,
// so a journal that is behind its mark is an older copy. After a power cut the mark may be behind; then only openings are compared.
type mark struct {
	file *os.File
	next int64 // write; two slots alternate, so that a torn write spoils one of them
}

const (
	slotSize  = 512
	markMagic = "nwmark1\n"
	markSize  = len(markMagic) + 16 + 3*8 + sha256.Size
)

var (
	errOlder     = errors.New("the journal is older than its mark: an older copy was put back")
	errMark      = errors.New("the mark is missing, damaged or of another journal")
	errOlderMark = errors.New("the mark is older than the journal: an older copy was put back")
)

// openMark compares the mark with the journal that was found beside it. A journal that was never opened has none yet.
func openMark(path string, found state) (*mark, error) {
	flag := os.O_RDWR | unix.O_NOFOLLOW
	if found.Boot == 0 {
		flag |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, errMark
	}
	m := &mark{file: f}
	if err := m.compare(found); err != nil {
		_ = f.Close()
		return nil, err
	}
	return m, nil
}

func (m *mark) compare(found state) error {
	known, err := m.read()
	switch {
	case errors.Is(err, errMark) && found.Boot == 0:
		return nil
	case err != nil:
		return err
	case known.ID != found.ID:
		return errMark
	case found.Boot < known.Boot || found.TxID < known.TxID:
		return errOlder
	case found.Boot > known.Boot+1:
		return errOlderMark
	}
	return nil
}

// read returns the newer slot that is whole.
func (m *mark) read() (newest state, err error) {
	b := make([]byte, 2*slotSize)
	if _, err := m.file.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return state{}, err
	}
	for _, slot := range [][]byte{b[:markSize], b[slotSize : slotSize+markSize]} {
		body, sum := slot[:markSize-sha256.Size], slot[markSize-sha256.Size:]
		want := sha256.Sum256(body)
		if !bytes.Equal(sum, want[:]) || !bytes.HasPrefix(body, []byte(markMagic)) {
			continue
		}
		body = body[len(markMagic):]
		if number := int64(binary.BigEndian.Uint64(body[32:])); number >= m.next {
			m.next = number + 1
			newest = state{ID: guards.Ref(body[:16]), Boot: int64(binary.BigEndian.Uint64(body[16:])), TxID: int64(binary.BigEndian.Uint64(body[24:]))}
		}
	}
	if m.next == 0 {
		return state{}, errMark
	}
	return newest, nil
}

func (m *mark) write(s state) error {
	b := make([]byte, 0, slotSize)
	b = append(append(b, markMagic...), s.ID[:]...)
	for _, n := range []int64{s.Boot, s.TxID, m.next} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	sum := sha256.Sum256(b)
	b = append(b, sum[:]...)
	_, err := m.file.WriteAt(b[:slotSize], m.next%2*slotSize)
	m.next++
	return err
}

// sync makes what is known durable.
func (m *mark) sync(s state) error {
	return errors.Join(m.write(s), m.file.Sync())
}

func (m *mark) close() error { return errors.Join(m.file.Sync(), m.file.Close()) }
