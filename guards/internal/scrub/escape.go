package scrub

import (
	"html"
	"unicode/utf8"
)

// openers are the bytes with which an escape begins.
const openers = `%\&`

// continued are the bytes that may come after an opener, or stand for one that does.
const continued = openers + `"'/#0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz`

// window bounds one spelled character, in bytes of the stream: %25255C%75… is read, and escapes of escapes without end
// are not.
const window = 32

const maxName = 8 // of an HTML entity between & and ;

// escape is a spelled character that is read byte by byte; each of its bytes may itself be spelled.
type escape struct {
	start int64
	depth uint8
	kind  byte // the opener, then u or x after a backslash
	count uint8
	value rune
	name  [maxName]byte
}

// begun tells whether a character opens an escape.
func begun(u unit) (escape, bool) {
	switch b := u.text[0]; b {
	case '%', '\\', '&':
		return escape{start: u.start, depth: u.depth, kind: b}, true
	}
	return escape{}, false
}

// opener is the byte that opened it.
func (e *escape) opener() byte {
	if e.kind == 'u' || e.kind == 'x' {
		return '\\'
	}
	return e.kind
}

type progress byte

const (
	dead progress = iota
	alive
	finished
)

// take reads the next byte of an escape.
func (e *escape) take(b byte) progress {
	switch e.kind {
	case '%', 'x': // %41, \x41
		return e.digit(b, 2)
	case 'u': // \u0041
		return e.digit(b, 4)
	case '&':
		return e.entity(b)
	}
	return e.backslash(b)
}

func (e *escape) digit(b byte, of uint8) progress {
	v, ok := hexValue(b)
	if !ok {
		return dead
	}
	e.value, e.count = e.value<<4|rune(v), e.count+1
	if e.count < of {
		return alive
	}
	return finished
}

// backslash reads what follows one (RFC 8259 §7, and the \x41 of logs and programs).
func (e *escape) backslash(b byte) progress {
	switch b {
	case 'u', 'x':
		e.kind = b
		return alive
	case '"', '\\', '/', '\'':
		e.value = rune(b)
	case 'b':
		e.value = '\b'
	case 'f':
		e.value = '\f'
	case 'n':
		e.value = '\n'
	case 'r':
		e.value = '\r'
	case 't':
		e.value = '\t'
	default:
		return dead
	}
	return finished
}

// entity reads &amp; &#38; &#x26; up to the semicolon.
func (e *escape) entity(b byte) progress {
	if b != ';' {
		if int(e.count) == maxName || !isName(b) {
			return dead
		}
		e.name[e.count] = b
		e.count++
		return alive
	}
	text := "&" + string(e.name[:e.count]) + ";"
	plain := html.UnescapeString(text)
	r, size := utf8.DecodeRuneInString(plain)
	if plain == text || size != len(plain) {
		return dead
	}
	e.value = r
	return finished
}

// bytes is the character that was spelled, as it would stand in the stream.
func (e *escape) bytes(into []byte) []byte {
	if e.kind == '%' || e.kind == 'x' {
		return append(into, byte(e.value))
	}
	return utf8.AppendRune(into, e.value)
}

func isName(b byte) bool {
	return b == '#' || b >= '0' && b <= '9' || b >= 'A' && b <= 'Z' || b >= 'a' && b <= 'z'
}

func hexValue(b byte) (byte, bool) {
	switch {
	case b >= '0' && b <= '9':
		return b - '0', true
	case b >= 'a' && b <= 'f':
		return b - 'a' + 10, true
	case b >= 'A' && b <= 'F':
		return b - 'A' + 10, true
	}
	return 0, false
}
