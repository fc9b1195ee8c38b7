package canonical

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Error says why a document was refused and at which byte. It never repeats the document.
type Error struct {
	Reason string
	Offset int
}

func (e *Error) Error() string {
	return fmt.Sprintf("canonical: %s (byte %d)", e.Reason, e.Offset)
}

// Value is one member's value, already known to be well-formed JSON.
type Value struct {
	Raw []byte // as spelled, without surrounding white space
}

// Text is the value of a string, unescaped; ok is false for any other type.
func (v Value) Text() (text string, ok bool) {
	b, ok := v.Bytes()
	return string(b), ok
}

// Bytes is Text without a copy where nothing is escaped.
func (v Value) Bytes() (text []byte, ok bool) {
	if !v.IsText() {
		return nil, false
	}
	return unescape(v.Raw[1 : len(v.Raw)-1]), true
}

// Is tells a string of this value.
func (v Value) Is(text string) bool {
	b, ok := v.Bytes()
	return ok && string(b) == text
}

// Int is the value of a safe integer spelled without fraction, exponent or minus zero.
func (v Value) Int() (n int64, ok bool) {
	if !safeInteger(v.Raw) {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v.Raw), 10, 64)
	return n, err == nil
}

// IsText tells a string.
func (v Value) IsText() bool { return len(v.Raw) > 0 && v.Raw[0] == '"' }

// IsObject tells an object.
func (v Value) IsObject() bool { return len(v.Raw) > 0 && v.Raw[0] == '{' }

// Members checks one JSON object (I-JSON: UTF-8, paired surrogates, no name twice at any depth, nothing after it) and
// hands each of its members to visit in order, the name unescaped. Unlike Check it lets null and any number that a double
// can hold stand, because foreign objects have members that are not ours. An error of visit ends the walk and is returned as it is;
// a duplicate name is only known at the end, so visited members count for nothing until Members has returned nil.
func Members(in []byte, visit func(name []byte, v Value) error) error {
	return MembersWithin(MaxSize, in, visit)
}

// MembersWithin is Members for an object of up to most bytes.
func MembersWithin(most int, in []byte, visit func(name []byte, v Value) error) error {
	s := scanner{in: in, visit: visit}
	return s.document(most)
}

// Elements walks a checked array the way Members walks an object.
func Elements(array Value, visit func(v Value) error) error {
	s := scanner{in: array.Raw, element: visit}
	if array.Raw[0] != '[' {
		return s.fail("not an array")
	}
	return s.value()
}

// scanner reads JSON by RFC 8259's grammar, byte by byte: encoding/json forgives lone surrogates, bad UTF-8, names in
// another case and names given twice.
type scanner struct {
	in      []byte
	pos     int
	depth   int
	plain   bool // no null, safe integers only, no noncharacters
	lower   bool // names of [a-z0-9_] only
	visit   func(name []byte, v Value) error
	element func(v Value) error
}

func (s *scanner) fail(reason string) error {
	return &Error{Reason: reason, Offset: s.pos}
}

func (s *scanner) document(limit int) error {
	if len(s.in) > limit {
		return s.fail("the document is too large")
	}
	s.space()
	if s.peek() != '{' {
		return s.fail("the document is not an object")
	}
	if err := s.value(); err != nil {
		return err
	}
	s.space()
	if s.pos != len(s.in) {
		return s.fail("there is something after the document")
	}
	return nil
}

// peek is the next byte, or 0 at the end, which no rule of the grammar accepts.
func (s *scanner) peek() byte {
	if s.pos < len(s.in) {
		return s.in[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	for s.pos < len(s.in) {
		switch s.in[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) value() error {
	switch c := s.peek(); c {
	case '{', '[':
		return s.nested(c)
	case '"':
		_, err := s.text()
		return err
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		if s.plain {
			return s.fail("null is not allowed")
		}
		return s.literal("null")
	default:
		return s.number()
	}
}

func (s *scanner) nested(opening byte) (err error) {
	if s.depth++; s.depth > MaxDepth {
		return s.fail("the document is nested too deeply")
	}
	s.pos++
	if opening == '{' {
		err = s.object()
	} else {
		err = s.array()
	}
	s.depth--
	return err
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.in[s.pos:], []byte(word)) {
		return s.fail("not a JSON value")
	}
	s.pos += len(word)
	return nil
}

func (s *scanner) object() error {
	var room [16][]byte
	names := room[:0]
	for s.space(); s.peek() != '}'; {
		name, err := s.member()
		if err != nil {
			return err
		}
		names = append(names, name)
		if err := s.next('}'); err != nil {
			return err
		}
	}
	s.pos++
	return s.unique(names)
}

func (s *scanner) array() error {
	for s.space(); s.peek() != ']'; {
		start := s.pos
		if err := s.value(); err != nil {
			return err
		}
		if s.depth == 1 && s.element != nil {
			if err := s.element(Value{Raw: s.in[start:s.pos]}); err != nil {
				return err
			}
		}
		if err := s.next(']'); err != nil {
			return err
		}
	}
	s.pos++
	return nil
}

// next leaves the scanner at the closing byte or at the value after a comma.
func (s *scanner) next(closing byte) error {
	s.space()
	if s.peek() == closing {
		return nil
	}
	if s.peek() != ',' {
		return s.fail("a comma or the end is missing")
	}
	s.pos++
	s.space()
	if s.peek() == closing {
		return s.fail("nothing follows the comma")
	}
	return nil
}

// member reads one name and its value and returns the name, unescaped.
func (s *scanner) member() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.fail("a member name is missing")
	}
	name, err := s.text()
	if err != nil {
		return nil, err
	}
	name = unescape(name)
	if s.lower && !isLower(name) {
		return nil, s.fail("a member name is unknown")
	}
	if s.space(); s.peek() != ':' {
		return nil, s.fail("a colon is missing")
	}
	s.pos++
	s.space()
	start := s.pos
	if err := s.value(); err != nil {
		return nil, err
	}
	if s.depth == 1 && s.visit != nil {
		return name, s.visit(name, Value{Raw: s.in[start:s.pos]})
	}
	return name, nil
}

// unique closes an object: its names must differ after unescaping.
func (s *scanner) unique(names [][]byte) error {
	slices.SortFunc(names, bytes.Compare)
	for i := 1; i < len(names); i++ {
		if bytes.Equal(names[i-1], names[i]) {
			return s.fail("a member name is given twice")
		}
	}
	return nil
}

func isLower(name []byte) bool {
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return len(name) > 0
}

// text reads a string and returns what stands between its quotes, still escaped.
func (s *scanner) text() ([]byte, error) {
	s.pos++
	start := s.pos
	for {
		switch c := s.peek(); {
		case c == '"':
			s.pos++
			return s.in[start : s.pos-1], nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return nil, err
			}
		case c < 0x20:
			return nil, s.fail("a string is not ended or holds a control character")
		case c < utf8.RuneSelf:
			s.pos++
		default:
			if err := s.rune(); err != nil {
				return nil, err
			}
		}
	}
}

func (s *scanner) rune() error {
	r, width := utf8.DecodeRune(s.in[s.pos:])
	if r == utf8.RuneError && width <= 1 {
		return s.fail("the text is not UTF-8")
	}
	s.pos += width
	return s.character(r)
}

// character refuses noncharacters (RFC 7493 §2.1).
func (s *scanner) character(r rune) error {
	if s.plain && (r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef) {
		return s.fail("a string holds a noncharacter")
	}
	return nil
}

func (s *scanner) escape() error {
	s.pos++
	switch s.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return nil
	case 'u':
		r, width := codePoint(s.in[s.pos-1:])
		if width == 0 {
			return s.fail("a string holds a bad escape or half a surrogate pair")
		}
		s.pos += width - 1
		return s.character(r)
	default:
		return s.fail("a string holds an unknown escape")
	}
}

// codePoint decodes the \uXXXX at the start of in, or the two of a surrogate pair; width 0 means neither.
func codePoint(in []byte) (r rune, width int) {
	high, ok := hex4(in)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(high) {
		return high, 6
	}
	low, ok := hex4(in[6:])
	if r = utf16.DecodeRune(high, low); !ok || r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

func hex4(in []byte) (r rune, ok bool) {
	if len(in) < 6 || in[0] != '\\' || in[1] != 'u' {
		return 0, false
	}
	for _, c := range in[2:6] {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// unescape expects what text has accepted, and copies only where there is an escape.
func unescape(in []byte) []byte {
	i := bytes.IndexByte(in, '\\')
	if i < 0 {
		return in
	}
	out := append(make([]byte, 0, len(in)), in[:i]...)
	for i < len(in) {
		switch {
		case in[i] != '\\':
			out = append(out, in[i])
			i++
		case in[i+1] == 'u':
			r, width := codePoint(in[i:])
			out = utf8.AppendRune(out, r)
			i += width
		default:
			out = append(out, short[in[i+1]])
			i += 2
		}
	}
	return out
}

var short = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (s *scanner) number() error {
	start := s.pos
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return s.fail("not a JSON value")
	}
	if s.peek() == '.' {
		if s.pos++; !s.digits() {
			return s.fail("a number is not complete")
		}
	}
	if s.peek()|0x20 == 'e' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		if !s.digits() {
			return s.fail("a number is not complete")
		}
	}
	return s.size(s.in[start:s.pos])
}

func (s *scanner) size(number []byte) error {
	if safeInteger(number) {
		return nil
	}
	if s.plain {
		return s.fail("a number is not a safe integer")
	}
	if _, err := strconv.ParseFloat(string(number), 64); err != nil {
		return s.fail("a number is too large")
	}
	return nil
}

func (s *scanner) digits() bool {
	start := s.pos
	for c := s.peek(); '0' <= c && c <= '9'; c = s.peek() {
		s.pos++
	}
	return s.pos > start
}

// safeInteger tells whether a well-formed JSON value is an integer of at most 53 bits in its one spelling.
func safeInteger(in []byte) bool {
	digits, negative := bytes.CutPrefix(in, []byte{'-'})
	if len(digits) == 0 || len(digits) > 16 || negative && digits[0] == '0' {
		return false
	}
	n := int64(0)
	for _, c := range digits {
		if c < '0' || c > '9' {
			return false
		}
		n = n*10 + int64(c-'0')
	}
	return n <= MaxInt
}
