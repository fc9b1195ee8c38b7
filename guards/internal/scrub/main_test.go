package scrub

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = `sk_live/4+9Q "z"&%41\=é`

func set(t require.TestingT, secrets ...string) *Set {
	var all [][]byte
	for _, s := range secrets {
		all = append(all, []byte(s))
	}
	s, err := New(all...)
	require.NoError(t, err)
	return s
}

func each(format string) func(string) string {
	return func(s string) string {
		var out strings.Builder
		for _, b := range []byte(s) {
			fmt.Fprintf(&out, format, b)
		}
		return out.String()
	}
}

func eachRune(format string) func(string) string {
	return func(s string) string {
		var out strings.Builder
		for _, r := range s {
			fmt.Fprintf(&out, format, r)
		}
		return out.String()
	}
}

// some spells every second byte.
func some(whole func(string) string) func(string) string {
	return func(s string) string {
		var out strings.Builder
		for i, b := range []byte(s) {
			if i%2 == 0 || b >= 0x80 || strings.ContainsRune(`%\&"`, rune(b)) {
				out.WriteString(whole(string([]byte{b})))
			} else {
				out.WriteByte(b)
			}
		}
		return out.String()
	}
}

func inJSON(s string) string {
	b, _ := json.Marshal(s)
	return string(b[1 : len(b)-1])
}

func inPlainJSON(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s)
	return strings.TrimSpace(b.String())[1 : b.Len()-2]
}

func base64In(e *base64.Encoding, before, after string) func(string) string {
	return func(s string) string { return e.EncodeToString([]byte(before + s + after)) }
}

func wrapped(s string) string {
	var out strings.Builder
	for len(s) > 20 {
		out.WriteString(s[:20] + "\r\n")
		s = s[20:]
	}
	return out.String() + s
}

func after(first, second func(string) string) func(string) string {
	return func(s string) string { return second(first(s)) }
}

// encodings are the usual ones, by name.
var encodings = map[string]func(string) string{
	"as it is":                     func(s string) string { return s },
	"base64":                       base64In(base64.StdEncoding, "", ""),
	"base64 without padding":       base64In(base64.RawStdEncoding, "", ""),
	"base64url":                    base64In(base64.URLEncoding, "", ""),
	"base64url without padding":    base64In(base64.RawURLEncoding, "", ""),
	"base64 of user:secret":        base64In(base64.StdEncoding, "user:", ""),
	"base64 of user2:secret":       base64In(base64.StdEncoding, "user2:", ""),
	"base64 of user:secret in":     base64In(base64.RawURLEncoding, "me:", "\r\n"),
	"base64 of JSON":               base64In(base64.StdEncoding, `{"key":"`, `"}`),
	"base64 in lines":              after(base64In(base64.StdEncoding, "", ""), wrapped),
	"base64 in lines in JSON":      after(after(base64In(base64.StdEncoding, "", ""), wrapped), inJSON),
	"hex":                          func(s string) string { return hex.EncodeToString([]byte(s)) },
	"hex in capitals":              each("%02X"),
	"hex with colons":              each("%02x:"),
	"percent":                      each("%%%02x"),
	"percent in capitals":          each("%%%02X"),
	"percent where needed, path":   url.PathEscape,
	"percent where needed, query":  url.QueryEscape,
	"percent here and there":       some(each("%%%02x")),
	"percent twice":                after(each("%%%02X"), url.QueryEscape),
	"JSON":                         inJSON,
	"JSON without HTML":            inPlainJSON,
	"JSON twice":                   after(inJSON, inJSON),
	"JSON three times":             after(after(inJSON, inJSON), inJSON),
	"JSON, each":                   eachRune(`\u%04x`),
	"JSON, each in capitals":       eachRune(`\u%04X`),
	"backslash x":                  each(`\x%02x`),
	"Go":                           func(s string) string { q := strconv.QuoteToASCII(s); return q[1 : len(q)-1] },
	"HTML":                         html.EscapeString,
	"HTML, each":                   eachRune("&#%d;"),
	"HTML, each in hex":            eachRune("&#x%X;"),
	"HTML, each with zeros":        eachRune("&#%05d;"),
	"HTML in JSON":                 after(html.EscapeString, inJSON),
	"JSON in percent":              after(inJSON, url.QueryEscape),
	"percent in JSON in HTML":      after(after(url.QueryEscape, inJSON), html.EscapeString),
	"base64 in percent":            after(base64In(base64.StdEncoding, "user:", ""), url.QueryEscape),
	"base64 in JSON, each":         after(base64In(base64.StdEncoding, "", ""), eachRune(`\u%04x`)),
	"hex in percent":               after(each("%02x"), each("%%%02x")),
	"percent in base64":            after(url.QueryEscape, base64In(base64.StdEncoding, "x=", "")),
	"JSON in base64":               after(inJSON, base64In(base64.RawURLEncoding, `{"k":"`, "")),
	"slashes of JSON with escapes": func(s string) string { return strings.ReplaceAll(inPlainJSON(s), "/", `\/`) },
}

var (
	base64Runs = regexp.MustCompile(`[A-Za-z0-9+/_-]{8,}`)
	hexRuns    = regexp.MustCompile(`[0-9A-Fa-f]{16,}`)
	percents   = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
	slashes    = regexp.MustCompile(`\\(?:u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|["\\/])`)
)

// views are what other readers would make of a text; they share no code with this package.
func views(text string) []string {
	all := []string{
		html.UnescapeString(text), strings.ReplaceAll(text, "+", " "),
		percents.ReplaceAllStringFunc(text, func(s string) string { b, _ := hex.DecodeString(s[1:]); return string(b) }),
		slashes.ReplaceAllStringFunc(text, func(s string) string {
			if s[1] != 'u' && s[1] != 'x' {
				return s[1:]
			}
			n, _ := strconv.ParseUint(s[2:], 16, 32)
			if s[1] == 'x' {
				return string([]byte{byte(n)})
			}
			return string(rune(n))
		}),
	}
	for _, run := range base64Runs.FindAllString(text, -1) {
		run = strings.NewReplacer("-", "+", "_", "/").Replace(run)
		for skip := range 4 {
			whole := run[skip:]
			for len(whole)%4 == 1 {
				whole = whole[:len(whole)-1]
			}
			plain, _ := base64.RawStdEncoding.DecodeString(whole)
			all = append(all, string(plain))
		}
	}
	for _, run := range hexRuns.FindAllString(text, -1) {
		for skip := range 2 {
			whole := run[skip:]
			plain, _ := hex.DecodeString(whole[:len(whole)/2*2])
			all = append(all, string(plain))
		}
	}
	return all
}

// shows tells whether a reader of a text can find a secret, with so many decodings.
func shows(text, secret string, depth int) bool {
	if strings.Contains(text, secret) {
		return true
	}
	if depth == 0 {
		return false
	}
	for _, v := range views(text) {
		if v != text && shows(v, secret, depth-1) {
			return true
		}
	}
	return false
}

// cutInto reads a text in pieces of the given sizes, over and over.
type pieces struct {
	text  string
	sizes []int
	turn  int
}

func (p *pieces) Read(into []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	size := min(len(p.text), len(into), p.sizes[p.turn%len(p.sizes)])
	p.turn++
	n := copy(into, p.text[:size])
	p.text = p.text[n:]
	return n, nil
}

func scrubbed(t require.TestingT, s *Set, text string, sizes ...int) string {
	if len(sizes) == 0 {
		sizes = []int{1 << 20}
	}
	out, err := io.ReadAll(s.Reader(&pieces{text: text, sizes: sizes}))
	require.NoError(t, err)
	return string(out)
}
