package jwks

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

// Bounds of a JSON document from outside.
const (
	maxDepth   = 16
	maxMembers = 4096
)

var errNotStrict = errors.New("not strict JSON")

// decodeObject reads exactly one JSON object: UTF-8, no duplicate member at any
// depth, no lone surrogate, bounded depth and size, nothing after it. Numbers
// stay json.Number. Go's own decoder keeps the last of two equal members and
// matches names without case, so it cannot be asked directly.
func decodeObject(b []byte) (map[string]any, error) {
	d := strictDecoder{dec: json.NewDecoder(bytes.NewReader(b))}
	d.dec.UseNumber()
	v, err := d.value(0)
	if err != nil {
		return nil, err
	}
	object, ok := v.(map[string]any)
	if _, err := d.dec.Token(); !ok || !errors.Is(err, io.EOF) {
		return nil, errNotStrict
	}
	return object, nil
}

type strictDecoder struct {
	dec     *json.Decoder
	members int
}

func (d *strictDecoder) value(depth int) (any, error) {
	t, err := d.token()
	if err != nil {
		return nil, err
	}
	delim, ok := t.(json.Delim)
	if !ok {
		return t, nil
	}
	if depth == maxDepth {
		return nil, errNotStrict
	}
	if delim == '{' {
		return d.object(depth + 1)
	}
	return d.array(depth + 1)
}

func (d *strictDecoder) object(depth int) (any, error) {
	out := map[string]any{}
	for d.dec.More() {
		t, err := d.token()
		if err != nil {
			return nil, err
		}
		name, ok := t.(string)
		if _, twice := out[name]; !ok || twice {
			return nil, errNotStrict
		}
		if out[name], err = d.value(depth); err != nil {
			return nil, err
		}
	}
	_, err := d.token()
	return out, err
}

func (d *strictDecoder) array(depth int) (any, error) {
	out := []any{}
	for d.dec.More() {
		v, err := d.value(depth)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	_, err := d.token()
	return out, err
}

// token counts every token, so that no document becomes large in memory, and
// refuses strings in which Go's decoder has replaced bad UTF-8 or a lone
// surrogate: two of them could be equal after decoding.
func (d *strictDecoder) token() (json.Token, error) {
	if d.members++; d.members > maxMembers {
		return nil, errNotStrict
	}
	t, err := d.dec.Token()
	if err != nil {
		return nil, errNotStrict
	}
	if s, ok := t.(string); ok && strings.ContainsRune(s, utf8.RuneError) {
		return nil, errNotStrict
	}
	return t, nil
}

// decodeBase64 reads unpadded base64url (RFC 7515 §2) in its one canonical
// spelling. The alphabet is checked first because Go's decoder skips line ends.
func decodeBase64(s string) ([]byte, error) {
	for i := range len(s) {
		if !isBase64URL(s[i]) {
			return nil, errNotStrict
		}
	}
	return base64.RawURLEncoding.Strict().DecodeString(s)
}

func isBase64URL(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}
