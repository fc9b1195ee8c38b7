// Package leaks searches what is left behind (logs, tables, messages, metrics
// and error texts) for what must never be there: tokens, proofs and keys.
package leaks

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// mark is what a secret looks like as text. The pattern is only tried where one of its words is.
type mark struct {
	kind    string
	words   []string
	pattern *regexp.Regexp
}

// marks are anything that is a signed token (capabilities, proofs, assertions and envelopes all are), and private keys as JWK, PEM, age and our
// own seal.
var marks = []mark{
	{"a token", []string{"eyJ"}, regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}`)},
	{"a private key", []string{`"d"`, "PRIVATE KEY-----", "AGE-SECRET-KEY-1", "nightwarrant-seal-key-v1 "},
		regexp.MustCompile(`"d"\s*:\s*"[A-Za-z0-9_-]{40,}"|PRIVATE KEY-----|AGE-SECRET-KEY-1|nightwarrant-seal-key-v1 `)},
}

// der is how private keys begin as bytes: version and kind, which a public key has not.
var der = map[string][]byte{
	"a private key (PKCS #8, EC)":      []byte("\x02\x01\x00\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01"),
	"a private key (PKCS #8, Ed25519)": []byte("\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70"),
	"a private key (SEC 1, P-256)":     []byte("\x02\x01\x01\x04\x20"),
}

// Search returns what secrets stand in text: as they are, and in hex, base64 and base64url, wherever those begin. known are secret values that
// must not be there either; of those the lists of numbers are known, too, in which Go prints bytes.
func Search(name string, text []byte, known ...[]byte) []string {
	found := in(text, known, name)
	for i, secret := range known {
		for _, between := range []string{" ", ",", ", "} {
			if bytes.Contains(text, []byte(numbers(secret, between))) {
				found = append(found, fmt.Sprintf("%s: known secret %d as numbers", name, i))
			}
		}
	}
	for _, f := range forms {
		for skip := range f.width { // a run may begin anywhere in a group of characters
			found = append(found, in(f.all(text, skip), known, name+", in "+f.name)...)
		}
	}
	return found
}

func in(text []byte, known [][]byte, name string) (found []string) {
	for _, m := range marks {
		for _, word := range m.words {
			if bytes.Contains(text, []byte(word)) && m.pattern.Match(text) {
				found = append(found, fmt.Sprintf("%s: %s at byte %d", name, m.kind, m.pattern.FindIndex(text)[0]))
				break
			}
		}
	}
	for kind, mark := range der {
		if at := bytes.Index(text, mark); at >= 0 {
			found = append(found, fmt.Sprintf("%s: %s at byte %d", name, kind, at))
		}
	}
	for i, secret := range known {
		if at := bytes.Index(text, secret); at >= 0 {
			found = append(found, fmt.Sprintf("%s: known secret %d at byte %d", name, i, at))
		}
	}
	return found
}

func numbers(secret []byte, between string) string {
	all := make([]string, len(secret))
	for i, b := range secret {
		all[i] = strconv.Itoa(int(b))
	}
	return strings.Join(all, between)
}

// form is a way to write bytes as text.
type form struct {
	name     string
	alphabet [256]bool
	width    int // of a group of characters
	least    int // shorter runs hold nothing that is searched for
	add      func(to, run []byte) []byte
}

var forms = []form{
	{"hex", alphabet("0123456789abcdefABCDEF"), 2, 40, func(to, run []byte) []byte {
		to, _ = hex.AppendDecode(to, run[:len(run)/2*2]) // of its own alphabet
		return to
	}},
	{"base64", alphabet("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"), 4, 27, func(to, run []byte) []byte {
		if isHex(run) { // as good as all digests
			return to
		}
		if len(run)%4 == 1 {
			run = run[:len(run)-1]
		}
		to, _ = base64.RawURLEncoding.AppendDecode(to, urlSafe(run)) // of its own alphabet
		return to
	}},
}

func alphabet(characters string) (set [256]bool) {
	for _, c := range []byte(characters) {
		set[c] = true
	}
	return set
}

func isHex(run []byte) bool {
	for _, c := range run {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func urlSafe(run []byte) []byte {
	out := bytes.Clone(run)
	for i, c := range out {
		switch c {
		case '+':
			out[i] = '-'
		case '/':
			out[i] = '_'
		}
	}
	return out
}

// all is every run of the alphabet in text, decoded from its skipth character on, a line each.
func (f form) all(text []byte, skip int) (out []byte) {
	for i := 0; i < len(text); i++ {
		from := i
		for i < len(text) && f.alphabet[text[i]] {
			i++
		}
		if i-from >= f.least {
			out = append(f.add(out, text[from+skip:i]), '\n')
		}
	}
	return out
}

// Database is everything that stands in the tables of a database's own schemas.
func Database(ctx context.Context, url string) ([]byte, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is pending on it
	return Tables(ctx, conn)
}

// Tables is Database on a connection that is there already. A table that it may not read is an error.
func Tables(ctx context.Context, conn *pgx.Conn) ([]byte, error) {
	rows, err := conn.Query(ctx, `SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND n.nspname NOT LIKE 'pg\_%' AND n.nspname <> 'information_schema' ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	for _, table := range tables {
		var text *string
		if err := conn.QueryRow(ctx, "SELECT string_agg(t::text, E'\\n') FROM "+table+" t").Scan(&text); err != nil {
			return nil, fmt.Errorf("%s: %w", table, err)
		}
		if text != nil {
			fmt.Fprintf(&all, "== %s\n%s\n", table, *text)
		}
	}
	return all.Bytes(), nil
}

// Files searches every file below a directory.
func Files(dir string, known ...[]byte) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found = append(found, Search(path, text, known...)...)
		return nil
	})
	return found, err
}
