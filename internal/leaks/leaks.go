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
	"strings"

	"github.com/jackc/pgx/v5"
)

// token is anything that looks like a signed token: capabilities, proofs, assertions and envelopes all do.
var token = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}`)

// hexToken is the beginning of one, as PostgreSQL prints bytes.
var hexToken = regexp.MustCompile(`65794a[0-9a-f]{16,}2e65794a[0-9a-f]{16,}2e`)

// private are the members and headers of private keys.
var private = regexp.MustCompile(`"d"\s*:\s*"[A-Za-z0-9_-]{40,}"|PRIVATE KEY-----|AGE-SECRET-KEY-1`)

// Search returns where something secret stands in text. known are secret values
// that must not be there in any usual spelling either.
func Search(name string, text []byte, known ...[]byte) []string {
	var found []string
	for kind, pattern := range map[string]*regexp.Regexp{"a token": token, "a token in hex": hexToken, "a private key": private} {
		if at := pattern.FindIndex(text); at != nil {
			found = append(found, fmt.Sprintf("%s: %s at byte %d", name, kind, at[0]))
		}
	}
	for i, secret := range known {
		for spelling, form := range spellings(secret) {
			if at := bytes.Index(text, []byte(form)); at >= 0 {
				found = append(found, fmt.Sprintf("%s: known secret %d in %s at byte %d", name, i, spelling, at))
			}
		}
	}
	return found
}

func spellings(secret []byte) map[string]string {
	return map[string]string{"raw form": string(secret), "hex": hex.EncodeToString(secret), "base64url": base64.RawURLEncoding.EncodeToString(secret),
		"base64": strings.TrimRight(base64.StdEncoding.EncodeToString(secret), "=")}
}

// Database is everything that stands in the tables of a database's own schemas.
func Database(ctx context.Context, url string) ([]byte, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is pending on it
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
