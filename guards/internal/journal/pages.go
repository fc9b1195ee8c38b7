package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
)

// bbolt believes the pages of its file: where one is damaged it may panic, read outside its mapping or never end. So the pages are
// looked at first, as the file's format of version 2 has them (go.etcd.io/bbolt, internal/common).
const (
	pageSize    = 4096 // of every journal, whatever the machine's is
	headerSize  = 16   // id uint64, flags uint16, count uint16, overflow uint32
	elementSize = 16   // branch: pos, key size uint32, page uint64; leaf: flags, pos, key size, value size uint32
	bucketSize  = 16   // root uint64, sequence uint64

	branchPage   = 1
	leafPage     = 2
	freelistPage = 16
	bucketValue  = 1

	boltMagic   = 0xED0CDAED
	boltVersion = 2
	metaSize    = 56 // before its checksum
)

var native = binary.NativeEndian

var errPage = errors.New("a page is not what it should be")

// pages are those of a file that were come across, each once.
type pages struct {
	file io.ReaderAt
	size int64
	high uint64 // the first that was never used
	seen map[uint64]bool
}

// checkPages follows every pointer from the newer whole meta page on.
func checkPages(file io.ReaderAt, size int64) error {
	p := &pages{file: file, size: size, seen: map[uint64]bool{}}
	root, free, err := p.meta()
	if err != nil {
		return err
	}
	if p.high > uint64(size/pageSize) {
		return fmt.Errorf("the journal was cut off: %d of %d pages", size/pageSize, p.high)
	}
	if err := p.walk(root); err != nil {
		return err
	}
	return p.freelist(free)
}

// meta reads the two meta pages. That one of them is torn is nothing unusual: the mark tells whether it is the last.
func (p *pages) meta() (root, free uint64, err error) {
	found, newest := false, uint64(0)
	for n := range int64(2) {
		b := make([]byte, metaSize+8)
		if _, err := p.file.ReadAt(b, n*pageSize+headerSize); err != nil {
			return 0, 0, err
		}
		h := fnv.New64a()
		_, _ = h.Write(b[:metaSize])
		if native.Uint32(b) != boltMagic || native.Uint32(b[4:]) != boltVersion || native.Uint32(b[8:]) != pageSize || native.Uint64(b[metaSize:]) != h.Sum64() {
			continue
		}
		if tx := native.Uint64(b[48:]); !found || tx > newest {
			found, newest = true, tx
			root, free, p.high = native.Uint64(b[16:]), native.Uint64(b[32:]), native.Uint64(b[40:])
		}
	}
	if !found {
		return 0, 0, errors.New("the journal has no meta page")
	}
	return root, free, nil
}

// take reads a page with all that overflows from it, and remembers those.
func (p *pages) take(id uint64) (b []byte, flags, count uint16, err error) {
	var header [headerSize]byte
	if id < 2 || id >= p.high {
		return nil, 0, 0, errPage
	}
	if _, err := p.file.ReadAt(header[:], int64(id)*pageSize); err != nil {
		return nil, 0, 0, err
	}
	more := uint64(native.Uint32(header[12:]))
	if native.Uint64(header[:]) != id || id+more >= p.high {
		return nil, 0, 0, errPage
	}
	for n := id; n <= id+more; n++ {
		if p.seen[n] {
			return nil, 0, 0, errPage
		}
		p.seen[n] = true
	}
	b = make([]byte, (1+more)*pageSize)
	_, err = p.file.ReadAt(b, int64(id)*pageSize)
	return b, native.Uint16(header[8:]), native.Uint16(header[10:]), err
}

// walk follows a tree down.
func (p *pages) walk(id uint64) error {
	b, flags, count, err := p.take(id)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	switch {
	case flags == leafPage:
		return p.leaf(b, count)
	case flags != branchPage || count == 0 || !fits(b, count):
		return fmt.Errorf("page %d: %w", id, errPage)
	}
	for n := range int(count) {
		at := headerSize + n*elementSize
		if _, err := part(b, at, native.Uint32(b[at:]), native.Uint32(b[at+4:])); err != nil {
			return err
		}
		if err := p.walk(native.Uint64(b[at+8:])); err != nil {
			return err
		}
	}
	return nil
}

func fits(b []byte, count uint16) bool { return headerSize+int(count)*elementSize <= len(b) }

// part is what an element points to, counted from where the element is.
func part(b []byte, at int, pos, size uint32) ([]byte, error) {
	from := uint64(at) + uint64(pos)
	if to := from + uint64(size); to <= uint64(len(b)) {
		return b[from:to], nil
	}
	return nil, errPage
}

func (p *pages) leaf(b []byte, count uint16) error {
	if !fits(b, count) {
		return errPage
	}
	for n := range int(count) {
		at := headerSize + n*elementSize
		flags, pos, keySize, valueSize := native.Uint32(b[at:]), native.Uint32(b[at+4:]), native.Uint32(b[at+8:]), native.Uint32(b[at+12:])
		if keySize > math.MaxUint16 || flags > bucketValue {
			return errPage
		}
		both, err := part(b, at, pos, keySize+valueSize)
		if err != nil || uint64(keySize)+uint64(valueSize) > math.MaxUint32 {
			return errPage
		}
		if flags == bucketValue {
			err = p.bucket(both[keySize:])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket is a tree of its own, or a leaf within its parent's while it is small.
func (p *pages) bucket(value []byte) error {
	if len(value) < bucketSize {
		return errPage
	}
	if root := native.Uint64(value); root != 0 {
		return p.walk(root)
	}
	inline := value[bucketSize:]
	if len(inline) < headerSize || native.Uint16(inline[8:]) != leafPage {
		return errPage
	}
	return p.leaf(inline, native.Uint16(inline[10:]))
}

// freelist must hold no page that is in use, or it would be written over.
func (p *pages) freelist(id uint64) error {
	b, flags, short, err := p.take(id)
	if err != nil || flags != freelistPage {
		return fmt.Errorf("the free list: %w", errors.Join(err, errPage))
	}
	count, b := uint64(short), b[headerSize:]
	if count == math.MaxUint16 {
		count, b = native.Uint64(b), b[8:]
	}
	if count > uint64(len(b)/8) {
		return errPage
	}
	for n := range count {
		free := native.Uint64(b[8*n:])
		if free < 2 || free >= p.high || p.seen[free] {
			return fmt.Errorf("the free list: %w", errPage)
		}
		p.seen[free] = true
	}
	return nil
}
