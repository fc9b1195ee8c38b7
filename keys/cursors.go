package keys

import (
	"crypto/hmac"
	"encoding/base64"
	"errors"
)

// A cursor is version (1 byte) ‖ tag (16) ‖ sealed position (16), base64url. The
// tag is a MAC of scope and position, and the position is hidden under a MAC of
// the tag: deterministic authenticated encryption in the manner of SIV (RFC 5297
// §2), so that a page asked for twice gives the same cursor.
const (
	cursorVersion = 1
	cursorTag     = 16
	cursorBody    = 16
	cursorLen     = (1 + cursorTag + cursorBody) / 3 * 4 // 44 characters, no padding
)

// ErrCursor says that a cursor was not given for that scope.
var ErrCursor = errors.New("keys: not a cursor of this authority for this scope")

// Cursors seals positions in lists. A cursor is good for the scope for which it
// was made, which names who asked and what for; it grants nothing and says
// nothing. Any replica that holds the bundle opens any other's.
type Cursors struct {
	keys []nonceKey // the first seals, all open
}

// Cursors seals and opens cursors under this bundle's nonce keys.
func (b *Bundle) Cursors() Cursors { return Cursors{b.nonces} }

// unreachable is the cursor of a list whose rest cannot be named just now: following it is refused, where none at all would say that the list ends.
const unreachable = "-"

// Seal makes the cursor of a position in a scope.
func (c Cursors) Seal(scope [32]byte, position [cursorBody]byte) string {
	raw := make([]byte, 0, 1+cursorTag+cursorBody)
	raw = append(raw, cursorVersion)
	tag, ok := cursorTagOf(c.keys[0].macKey, scope, position[:])
	if !ok {
		return unreachable
	}
	raw = append(raw, tag[:cursorTag]...)
	body, ok := hide(c.keys[0].macKey, raw[1:], position[:])
	if !ok {
		return unreachable
	}
	raw = append(raw, body...)
	return base64.RawURLEncoding.EncodeToString(raw)
}

// Open returns the position of a cursor, or ErrCursor.
func (c Cursors) Open(scope [32]byte, cursor string) (position [cursorBody]byte, err error) {
	if len(cursor) != cursorLen {
		return position, ErrCursor
	}
	var raw [1 + cursorTag + cursorBody]byte
	// The decoder skips line ends: a cursor with one in it comes out short.
	got, err := base64.RawURLEncoding.Decode(raw[:], []byte(cursor))
	if err != nil || got != len(raw) || raw[0] != cursorVersion {
		return position, ErrCursor
	}
	tag, body := raw[1:1+cursorTag], raw[1+cursorTag:]
	for _, key := range c.keys {
		plain, hidden := hide(key.macKey, tag, body)
		want, ok := cursorTagOf(key.macKey, scope, plain)
		if hidden && ok && hmac.Equal(tag, want[:cursorTag]) {
			return [cursorBody]byte(plain), nil
		}
	}
	return position, ErrCursor
}

func cursorTagOf(key macKey, scope [32]byte, position []byte) ([32]byte, bool) {
	return key(labelled(domainCursor, append(scope[:], position...)))
}

// hide covers a position with what only the key and the tag give; done twice it uncovers.
func hide(key macKey, tag, position []byte) ([]byte, bool) {
	pad, ok := key(labelled(domainCursorPad, tag))
	out := make([]byte, cursorBody)
	for i := range out {
		out[i] = position[i] ^ pad[i]
	}
	return out, ok
}
