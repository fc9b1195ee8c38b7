package keys

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawPosition(t *rapid.T) (p [16]byte) {
	copy(p[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "position"))
	return p
}

func drawScope(t *rapid.T, name string) (s [32]byte) {
	copy(s[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, name))
	return s
}

// A cursor is good where it was made, and nowhere else; not one bit of it is idle.
func TestCursorPropertyAnyBitCounts(t *testing.T) {
	t.Parallel()
	c, stranger := makeBundle(t).open(t).Cursors(), makeBundle(t).open(t).Cursors()
	rapid.Check(t, func(t *rapid.T) {
		scope, position := drawScope(t, "scope"), drawPosition(t)
		s := c.Seal(scope, position)
		require.Len(t, s, cursorLen)
		got, err := c.Open(scope, s)
		require.NoError(t, err)
		require.Equal(t, position, got)
		require.Equal(t, s, c.Seal(scope, position), "the same page again has the same cursor")

		other := scope
		bit := rapid.IntRange(0, 255).Draw(t, "bit of the scope")
		other[bit/8] ^= 1 << (bit % 8)
		_, err = c.Open(other, s)
		require.ErrorIs(t, err, ErrCursor)
		_, err = stranger.Open(scope, s)
		require.ErrorIs(t, err, ErrCursor)

		raw, err := base64.RawURLEncoding.DecodeString(s)
		require.NoError(t, err)
		bit = rapid.IntRange(0, len(raw)*8-1).Draw(t, "bit of the cursor")
		raw[bit/8] ^= 1 << (bit % 8)
		_, err = c.Open(scope, base64.RawURLEncoding.EncodeToString(raw))
		require.ErrorIs(t, err, ErrCursor)
	})
}

// What stands in a cursor is not to be read: positions of one list have nothing in common
// on the outside, though they differ in one bit.
func TestCursorsSayNothing(t *testing.T) {
	t.Parallel()
	c := makeBundle(t).open(t).Cursors()
	var position [16]byte
	first := c.Seal([32]byte{}, position)
	position[15] = 1
	second := c.Seal([32]byte{}, position)
	a, err := base64.RawURLEncoding.DecodeString(first)
	require.NoError(t, err)
	b, err := base64.RawURLEncoding.DecodeString(second)
	require.NoError(t, err)
	same := 0
	for i := 1; i < len(a); i++ {
		if a[i] == b[i] {
			same++
		}
	}
	require.Less(t, same, 6, "of 32 bytes, about an eighth of one is the same by chance")
	require.NotEqual(t, a[17:], make([]byte, 16))
}

func TestCursorsOfAnyReplica(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	s := m.open(t).Cursors().Seal([32]byte{1}, [16]byte{2})
	got, err := m.open(t).Cursors().Open([32]byte{1}, s)
	require.NoError(t, err)
	require.Equal(t, [16]byte{2}, got)
}

func TestMalformedCursors(t *testing.T) {
	t.Parallel()
	c := makeBundle(t).open(t).Cursors()
	good := c.Seal([32]byte{}, [16]byte{})
	for name, s := range map[string]string{
		"empty": "", "short": good[:43], "long": good + "A", "a line end": good[:43] + "\n", "line ends": good[:42] + "\r\n", "padded": good[:43] + "=",
		"another alphabet": good[:43] + "+", "zero": strings.Repeat("A", 44), "another version": "Ag" + good[2:], "not ASCII": good[:42] + "é",
	} {
		_, err := c.Open([32]byte{}, s)
		require.ErrorIs(t, err, ErrCursor, name)
	}
}

func FuzzCursor(f *testing.F) {
	c := makeBundle(f).open(f).Cursors()
	good := c.Seal([32]byte{7}, [16]byte{9})
	f.Add(good, []byte{7})
	f.Add(good, []byte{8})
	f.Add(good[:43]+"\n", []byte{7})
	f.Add(strings.Repeat("A", 44), []byte{})
	f.Fuzz(func(t *testing.T, cursor string, named []byte) {
		var scope [32]byte
		copy(scope[:], named)
		position, err := c.Open(scope, cursor)
		require.Equal(t, cursor == good && scope == [32]byte{7}, err == nil)
		if err == nil {
			require.Equal(t, cursor, c.Seal(scope, position))
		}
	})
}
