package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// A bundle is an exported log: lines of JSON, first what it is, then the edge of
// the tree before its first record if that is not the log's first, then its records by their numbers, then its checkpoints by their sizes, each with its cosignatures.

// Format is the version that a bundle's first line names.
const Format = "nightwarrant-audit/v1"

// maxLine bounds a line of a bundle, in bytes.
const maxLine = 64 << 10

// Record is an audit row in a bundle.
type Record struct {
	Leaf   int64  // its number in the log, from 0
	ID     int64  // of the row
	Digest Digest // of Body
	Body   []byte // nil when it has gone by retention
	// Disclosures open what Body commits to, as long as they have not been redacted.
	Disclosures []Disclosure
}

type line struct {
	Format       string        `json:"format,omitempty"`
	Origin       string        `json:"origin,omitempty"`
	At           *time.Time    `json:"at,omitempty"`
	Cut          *cutLine      `json:"cut,omitempty"`
	Record       *recordLine   `json:"record,omitempty"`
	Checkpoint   string        `json:"checkpoint,omitempty"`   // signed
	Cosignatures []Cosignature `json:"cosignatures,omitempty"` // of it; base64
}

type recordLine struct {
	Leaf   int64   `json:"leaf"`
	ID     int64   `json:"id"`
	Digest string  `json:"digest"` // base64url
	Body   *string `json:"body,omitempty"`

	Disclosures []Disclosure `json:"disclosures,omitempty"`
}

// cutLine is the tree of what is not in a bundle, because it was pruned.
type cutLine struct {
	Size int64  `json:"size"`
	Edge []byte `json:"edge"`
}

// Writer writes a bundle.
type Writer struct {
	out *json.Encoder
}

// NewWriter begins the bundle of a log, at a time of the database's clock before anything was read.
func NewWriter(w io.Writer, origin string, at time.Time) (*Writer, error) {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	at = at.UTC()
	return &Writer{out}, out.Encode(line{Format: Format, Origin: origin, At: &at})
}

// Cut says, before the first record, of what tree the records before it were.
func (w *Writer) Cut(size int64, edge []byte) error {
	return w.out.Encode(line{Cut: &cutLine{size, edge}})
}

// Record writes the next record.
func (w *Writer) Record(r Record) error {
	l := recordLine{Leaf: r.Leaf, ID: r.ID, Digest: encode(r.Digest), Disclosures: r.Disclosures}
	if r.Body != nil {
		body := string(r.Body)
		l.Body = &body
	}
	return w.out.Encode(line{Record: &l})
}

// Checkpoint writes a signed checkpoint, with what witnesses have made of it.
func (w *Writer) Checkpoint(signed []byte, made ...Cosignature) error {
	return w.out.Encode(line{Checkpoint: string(signed), Cosignatures: made})
}

var errBundle = errors.New("not a bundle of an audit log")

// Bundle is an exported log without its bodies, as it was read.
type Bundle struct {
	Origin      string
	At          time.Time // when its export began, by the database's clock
	Checkpoints [][]byte  // signed, as they came
	made        [][]Cosignature
	cut         *Tree // of the records before the first
	records     []record
}

// From is the number of the first record.
func (b *Bundle) From() int64 { return b.cut.size }

type record struct {
	leaf, id int64
	digest   Digest
	body     bool  // it was there
	edited   bool  // and is not what the digest is of
	open     int64 // fields that are disclosed
	redacted int64
	untrue   bool // another value is disclosed than the body commits to
}

// ReadBundle reads a bundle and holds each body against its digest; more is
// Verify's. visit, when it is there, sees each record as it is written.
func ReadBundle(r io.Reader, visit func(Record) error) (*Bundle, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, maxLine), maxLine)
	var b *Bundle
	for n := 1; lines.Scan(); n++ {
		l, err := parseLine(lines.Bytes())
		switch {
		case err != nil:
		case b == nil && l.Format == Format && l.Origin != "" && l.At != nil:
			b = &Bundle{Origin: l.Origin, At: *l.At, cut: &Tree{}}
		case b == nil || l.Format != "":
			err = errBundle
		case l.Cut != nil && len(b.records) == 0 && b.cut.size == 0:
			b.cut, err = OpenTree(l.Cut.Size, l.Cut.Edge)
		case l.Record != nil:
			err = b.take(*l.Record, visit)
		case l.Checkpoint != "":
			b.Checkpoints, b.made = append(b.Checkpoints, []byte(l.Checkpoint)), append(b.made, l.Cosignatures)
		default:
			err = errBundle
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", errBundle, err)
	}
	if b == nil {
		return nil, errBundle
	}
	return b, nil
}

func parseLine(text []byte) (l line, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode(&l) != nil || d.More() {
		return line{}, errBundle
	}
	return l, nil
}

func (b *Bundle) take(l recordLine, visit func(Record) error) error {
	digest, ok := decode(l.Digest)
	if !ok || l.Leaf < 0 {
		return errBundle
	}
	r := Record{Leaf: l.Leaf, ID: l.ID, Digest: digest, Disclosures: l.Disclosures}
	if l.Body != nil {
		r.Body = []byte(*l.Body)
	}
	kept := record{leaf: r.Leaf, id: r.ID, digest: r.Digest, body: l.Body != nil, edited: l.Body != nil && sha256.Sum256(r.Body) != r.Digest}
	open, redacted, right := disclosed(r.Body, r.Disclosures)
	kept.open, kept.redacted, kept.untrue = open, redacted, !right
	b.records = append(b.records, kept)
	if visit == nil {
		return nil
	}
	return visit(r)
}

func encode(d Digest) string { return base64.RawURLEncoding.EncodeToString(d[:]) }

func decode(s string) (d Digest, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	ok = err == nil && len(b) == len(d)
	copy(d[:], b)
	return d, ok
}
