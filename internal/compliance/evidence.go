package compliance

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/keys/provenance"
)

// Given is one piece of evidence: an answer of the authority, or a file. The
// zero value says that nobody gave it.
type Given[T any] struct {
	Source string    // path of the call, or base name of the file
	At     time.Time // it was read
	Digest [32]byte  // of a file's bytes
	Body   T
	Wrong  string // why there is nothing in Body
}

// Evidence is all that a report is made of.
type Evidence struct {
	Authority  string // issuer
	Tool       string // version of this program
	FIPS       bool   // hold everything against the FIPS profile
	Start, End time.Time
	Model      Model

	Deployment  Given[api.Deployment]
	Board       Given[api.Board]
	KeySet      Given[[]string] // key identifiers that are served
	Profiles    Given[[]api.Entry]
	Requirement Given[[]string] // profiles that the requirement in force names; none: it names no set
	Provenance  Given[provenance.Report]
	SelfAudit   Given[SelfAudited]
	Log         Given[Log]
	Release     Given[map[[32]byte]string] // names of released executables by digest
}

// Log is what became of checking an exported audit log.
type Log struct {
	Report audit.Report
	Key    string // that it was checked with: the Ed25519 public key, base64url
}

// SelfAudited is what `nightwarrant tripwire --json` writes.
type SelfAudited struct {
	Target       string        `json:"target"`
	Build        string        `json:"build"`
	BinarySHA256 string        `json:"binary_sha256"` // hexadecimal, of the executable that audited
	StartedAt    time.Time     `json:"started_at"`
	Lines        []SelfAuditOf `json:"lines"`
}

// SelfAuditOf is one thing that a self-audit tried.
type SelfAuditOf struct {
	ID           string   `json:"id"`
	Title        string   `json:"title"`
	Verdict      string   `json:"verdict"` // pass, fail or not_applicable
	Evidence     string   `json:"evidence"`
	Requirements []string `json:"requirements"`
}

// MaxFile bounds a file of evidence, in bytes; maxItems what is in it.
const (
	MaxFile  = 1 << 20
	maxItems = 1000
)

// Read makes evidence of a file's bytes. What is wrong with them is part of it.
func Read[T any](name string, at time.Time, b []byte, parse func([]byte) (T, error)) Given[T] {
	g := Given[T]{Source: name, At: at, Digest: sha256.Sum256(b)}
	var err error
	if g.Body, err = parse(b); err != nil {
		g.Wrong = err.Error()
	}
	return g
}

// ReadSelfAudit parses the result of a self-audit.
func ReadSelfAudit(b []byte) (s SelfAudited, err error) {
	switch err := readJSON(b, &s); {
	case err != nil:
		return SelfAudited{}, err
	case len(s.Lines) == 0 || len(s.Lines) > maxItems:
		return SelfAudited{}, fmt.Errorf("it has %d lines, and not 1 to %d", len(s.Lines), maxItems)
	case s.StartedAt.IsZero():
		return SelfAudited{}, errors.New("it does not say when it began")
	}
	return s, nil
}

// ReadProvenance parses the report of `nightwarrant keys provenance verify --json`.
func ReadProvenance(b []byte) (r provenance.Report, err error) {
	switch err := readJSON(b, &r); {
	case err != nil:
		return provenance.Report{}, err
	case len(r.Steps) == 0 || len(r.Steps) > 9:
		return provenance.Report{}, fmt.Errorf("it has %d steps, and not 1 to 9", len(r.Steps))
	}
	return r, nil
}

func readJSON(b []byte, into any) error {
	if len(b) > MaxFile {
		return fmt.Errorf("it has more than %d bytes", MaxFile)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(into); err != nil {
		return errors.New("it is not the JSON that was expected")
	}
	if d.More() {
		return errors.New("something follows the JSON")
	}
	return nil
}

// ReadRelease parses the list that sha256sum writes of released executables.
func ReadRelease(b []byte) (map[[32]byte]string, error) {
	if len(b) > MaxFile {
		return nil, fmt.Errorf("it has more than %d bytes", MaxFile)
	}
	out := map[[32]byte]string{}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		digest, name, ok := strings.Cut(lines.Text(), " ")
		if lines.Text() == "" {
			continue
		}
		raw, err := hex.DecodeString(digest)
		if !ok || err != nil || len(raw) != 32 {
			return nil, errors.New("a line of it is not a SHA-256 digest and a name")
		}
		out[[32]byte(raw)] = strings.TrimLeft(name, " *")
	}
	if len(out) == 0 || len(out) > maxItems {
		return nil, fmt.Errorf("it lists %d executables, and not 1 to %d", len(out), maxItems)
	}
	return out, nil
}

// lacks fills in a line for evidence that there is not, and says whether that is so.
func lacks[T any](g Given[T], l *Line, notGiven string) bool {
	l.Source, l.At = g.Source, g.At
	switch {
	case g.Source == "":
		l.State, l.Found, l.Source = NotObserved, notGiven, "nobody"
	case g.Wrong != "":
		l.State, l.Found = Open, "This evidence cannot be used: "+g.Wrong
	default:
		return false
	}
	return true
}
