package scrub

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// class is the set of bytes that one position takes.
type class [4]uint64

func (c *class) add(b byte)      { c[b/64] |= 1 << (b % 64) }
func (c *class) has(b byte) bool { return c[b/64]&(1<<(b%64)) != 0 }

func (c *class) join(other class) {
	for i := range c {
		c[i] |= other[i]
	}
}

func classOf(bytes ...byte) (c class) {
	for _, b := range bytes {
		c.add(b)
	}
	return c
}

// pattern is one encoding of one secret, whatever stands around it.
type pattern struct {
	symbols []class
	gap     string // bytes that an encoder puts between symbols, to break lines or for the eye
}

// derived is the secret, and what it is made of.
func derived(secret []byte) [][]byte {
	all := [][]byte{secret}
	text := strings.TrimRight(string(secret), "=")
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		plain, err := encoding.DecodeString(text)
		_, password, found := bytes.Cut(plain, []byte(":"))
		if err == nil && found && isText(plain) {
			return append(all, password)
		}
	}
	return all
}

func isText(b []byte) bool {
	return utf8.Valid(b) && !strings.ContainsFunc(string(b), unicode.IsControl)
}

func patternsOf(secret []byte) []pattern {
	all := []pattern{plain(secret)}
	for _, source := range sources(secret) {
		all = append(all, inHex(source))
		for alignment := range 3 {
			all = append(all, inBase64(source, alignment))
		}
	}
	return all
}

// sources are the spellings of a secret that are encoded as a whole in turn.
func sources(secret []byte) [][]byte {
	text := string(secret)
	quoted, _ := json.Marshal(text) // a string always encodes
	all := [][]byte{secret}
	for _, spelling := range []string{url.QueryEscape(text), url.PathEscape(text), string(quoted[1 : len(quoted)-1])} {
		known := false
		for _, one := range all {
			known = known || string(one) == spelling
		}
		if !known {
			all = append(all, []byte(spelling))
		}
	}
	return all
}

func plain(secret []byte) (p pattern) {
	for _, b := range secret {
		symbol := classOf(b)
		if b == ' ' {
			symbol.add('+') // of forms
		}
		p.symbols = append(p.symbols, symbol)
	}
	return p
}

func inHex(source []byte) pattern {
	const lower, upper = "0123456789abcdef", "0123456789ABCDEF"
	p := pattern{gap: " :\r\n"}
	for _, b := range source {
		for _, half := range []byte{b >> 4, b & 15} {
			p.symbols = append(p.symbols, classOf(lower[half], upper[half]))
		}
	}
	return p
}

// inBase64 is the source in the middle of a longer text, of which alignment bytes (0 to 2) belong to the same group
// (RFC 4648 §4, §5). Its first and last characters also hold bits of what stands beside it: all of those are taken.
func inBase64(source []byte, alignment int) pattern {
	const std, url = "+/", "-_"
	const common = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	p := pattern{gap: "\r\n"}
	end := alignment + len(source)
	for bit := alignment * 8 / 6 * 6; bit < end*8; bit += 6 {
		var symbol class
		known, value := sextet(source, alignment, bit)
		for v := range byte(64) {
			switch {
			case v&known != value:
			case v < 62:
				symbol.add(common[v])
			default:
				symbol.add(std[v-62])
				symbol.add(url[v-62])
			}
		}
		p.symbols = append(p.symbols, symbol)
	}
	return p
}

// sextet is the six bits from bit on: which of them are the source's, and their value.
func sextet(source []byte, alignment, bit int) (known, value byte) {
	for i := range 6 {
		known, value = known<<1, value<<1
		at := bit + i - alignment*8
		if at >= 0 && at < len(source)*8 {
			known |= 1
			value |= source[at/8] >> (7 - at%8) & 1
		}
	}
	return known, value
}
