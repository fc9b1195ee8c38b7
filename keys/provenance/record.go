package provenance

import (
	"bytes"
	"encoding/hex"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// What is signed, and the domains that keep one from being the other.
const (
	RecordSchema   = "key-provenance/v1"
	DomainRecord   = "nightwarrant/provenance-record/v1"
	SnapshotSchema = "cmvp-snapshot/v1"
	DomainSnapshot = "nightwarrant/cmvp-snapshot/v1"
)

// PurposeSigning is the purpose of the key that signs capabilities, readiness
// decisions and receipts. Its record speaks of the nonce key beside it, too.
const PurposeSigning = "capability-signing"

// Origins of a key.
const (
	OriginGenerated = "generated_in_module"
	OriginCloned    = "cloned_in_module"
	OriginUnwrapped = "unwrapped_from_module"
	OriginImported  = "imported_plaintext"
)

// Longest life of a record: its key is rotated before.
const maxLife = 366 * 24 * time.Hour

// Record is where one key comes from (keys.md §3.4). It has one spelling, its
// canonical form (RFC 8785); every member is there, and an empty text is a
// statement of nothing.
type Record struct {
	Schema          string      `json:"schema"`    // key-provenance/v1
	RecordID        string      `json:"record_id"` // 16 random bytes, hex
	ClusterID       string      `json:"cluster_id"`
	Purpose         string      `json:"purpose"` // capability-signing
	IssuedAt        Time        `json:"issued_at"`
	ExpiresAt       Time        `json:"expires_at"`     // at most 366 days after issued_at
	Supersedes      string      `json:"supersedes"`     // record_id of the record before
	RevocationRef   string      `json:"revocation_ref"` // where officers would say that they have withdrawn it
	Key             Key         `json:"key"`
	Ceremony        Ceremony    `json:"ceremony"`
	Module          Module      `json:"module"`
	Token           Token       `json:"token"`
	Attributes      Attributes  `json:"attributes"`       // that the signing key must have
	NonceAttributes Attributes  `json:"nonce_attributes"` // that the nonce key must have
	Attestation     Attestation `json:"attestation"`
	Application     Application `json:"application"`
}

// Key is the public identity of the signing key.
type Key struct {
	Algorithm     string `json:"algorithm"`      // ES256
	Curve         string `json:"curve"`          // 1.2.840.10045.3.1.7
	SPKISHA256    Hash   `json:"spki_sha256"`    // of the SubjectPublicKeyInfo (RFC 5480)
	JWKThumbprint string `json:"jwk_thumbprint"` // RFC 7638, which is the kid
	NotBefore     Time   `json:"not_before"`
	NotAfter      Time   `json:"not_after"`
}

// Ceremony is how the key came to be.
type Ceremony struct {
	Origin           string   `json:"origin"`    // generated_in_module, cloned_in_module, unwrapped_from_module or imported_plaintext
	Mechanism        string   `json:"mechanism"` // 0x1040
	At               Time     `json:"at"`
	ID               string   `json:"id"`
	Witnesses        []string `json:"witnesses"`         // at least two persons for evidence of class B
	TranscriptSHA256 Hash     `json:"transcript_sha256"` // of what they signed by hand or recorded
	StatementSHA256  Hash     `json:"statement_sha256"`  // of what the provider of the module has stated
	SourceRecordID   string   `json:"source_record_id"`  // of the key that this one is a clone of
}

// Module is the validated module in which the signing key lies (keys.md §3.1).
type Module struct {
	Certificate          int64    `json:"cmvp_certificate"` // 0: there is none
	Standard             string   `json:"standard"`         // FIPS 140-3
	Level                int64    `json:"overall_level"`
	Vendor               string   `json:"vendor"`
	Name                 string   `json:"name"`
	Versions             Versions `json:"versions"`
	TestedConfiguration  string   `json:"tested_configuration"`   // one that the certificate lists, word for word
	ApprovedMode         string   `json:"approved_mode"`          // what the module shows when it is in its approved mode
	ApprovedModeObserved string   `json:"approved_mode_observed"` // how and by whom that was seen
	SecurityPolicySHA256 Hash     `json:"security_policy_sha256"`
	Caveat               string   `json:"caveat"`
	Status               string   `json:"status"` // active, when the officers looked
	StatusCheckedAt      Time     `json:"status_checked_at"`
	SnapshotSHA256       Hash     `json:"snapshot_sha256"` // digest of the snapshot in which they looked
	Sunset               Time     `json:"sunset"`
}

// Versions are those of a certificate; an empty one is none that it speaks of.
type Versions struct {
	Hardware string `json:"hardware"`
	Firmware string `json:"firmware"`
	Software string `json:"software"`
}

// Token is which token holds the key, as the token and its library call themselves.
type Token struct {
	Provider            string   `json:"provider"` // name of the profile that says what its attributes mean
	Manufacturer        string   `json:"manufacturer"`
	Model               string   `json:"model"`
	Serials             []string `json:"serials"` // of every member of a cluster of tokens
	Label               string   `json:"label"`
	Hardware            string   `json:"hardware"`
	Firmware            string   `json:"firmware"`
	Cryptoki            string   `json:"cryptoki"`
	LibraryManufacturer string   `json:"library_manufacturer"`
	LibraryDescription  string   `json:"library_description"`
	LibraryVersion      string   `json:"library_version"`
	LibrarySHA256       []Hash   `json:"library_sha256"` // of the files that may be loaded
	EntryPoint          string   `json:"entry_point"`
	KeyID               string   `json:"key_id"`       // CKA_ID of the signing key, hex
	NonceKeyID          string   `json:"nonce_key_id"` // CKA_ID of the nonce key, hex
}

// Attributes are what a token says of a key: true, false, unsupported, and of
// the mechanism its number or unavailable.
type Attributes struct {
	Local            string `json:"local"`
	KeyGenMechanism  string `json:"key_gen_mechanism"`
	AlwaysSensitive  string `json:"always_sensitive"`
	NeverExtractable string `json:"never_extractable"`
	Extractable      string `json:"extractable"`
	Sensitive        string `json:"sensitive"`
	Modifiable       string `json:"modifiable"`
	Copyable         string `json:"copyable"`
	WrapWithTrusted  string `json:"wrap_with_trusted"`
}

// Attestation is what a device has signed of the key; without a format there is none.
type Attestation struct {
	Format      string `json:"format"`
	BlobSHA256  Hash   `json:"blob_sha256"`
	ChainSHA256 []Hash `json:"chain_sha256"` // of its certificates, leaf first
	RootSHA256  Hash   `json:"root_sha256"`
	Verifier    string `json:"verifier"` // what checked it at the ceremony, with its version
	Result      string `json:"result"`
}

// Application is the module of the program that uses the key: this one.
type Application struct {
	Certificate         int64  `json:"cmvp_certificate"` // 5247
	Version             string `json:"version"`          // as the certificate has it: v1.0.0
	Build               string `json:"build"`            // exact GOFIPS140 of the program: v1.0.0-c2097c7c
	ZipSHA256           Hash   `json:"zip_sha256"`       // of the module's source in the toolchain
	TestedConfiguration string `json:"tested_configuration"`
	Go                  string `json:"go"`            // empty: any toolchain with that build
	BinarySHA256        []Hash `json:"binary_sha256"` // of the programs that may use the key; empty: any with that build
}

// Document is what officers sign: its one spelling, and the digest of its domain and of that.
type Document struct {
	Domain string
	Bytes  []byte
	Digest Hash
}

// Message is what is hashed and signed, for who signs with another program:
// domain ‖ 0x00 ‖ bytes.
func (d Document) Message() []byte { return slices.Concat([]byte(d.Domain), []byte{0}, d.Bytes) }

var errDocument = errors.New("it is not a document in its one spelling")

// ParseRecord reads a record: canonical, complete and within bounds.
func ParseRecord(b []byte) (*Record, Document, error) {
	var r Record
	d, err := parse(b, &r, DomainRecord)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return nil, Document{}, err
	}
	return &r, d, nil
}

// Spell is the record's one spelling; only one that ParseRecord would take is spelled.
func (r *Record) Spell() (Document, error) {
	if err := r.check(); err != nil {
		return Document{}, err
	}
	return spell(r, DomainRecord)
}

func parse(b []byte, into any, domain string) (Document, error) {
	if err := canonical.Decode(b, into); err != nil {
		return Document{}, err
	}
	d, err := spell(into, domain)
	if err == nil && !bytes.Equal(d.Bytes, b) {
		err = errDocument
	}
	return d, err
}

func spell(v any, domain string) (Document, error) {
	b, err := canonical.CanonicalizeValue(v)
	if err != nil {
		return Document{}, err
	}
	return Document{domain, b, canonical.Digest(domain, b)}, nil
}

var (
	id128     = regexp.MustCompile(`^[0-9a-f]{32}$`)
	thumb     = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)
	keyID     = regexp.MustCompile(`^([0-9a-f]{2}){1,64}$`)
	attribute = regexp.MustCompile(`^(true|false|unsupported)$`)
	mechanism = regexp.MustCompile(`^(0x[0-9a-f]{1,8}|unsupported|unavailable)$`)
)

// check holds a record to its form; what it means is judged elsewhere.
func (r *Record) check() error {
	t, k := r.Token, r.Key
	switch {
	case r.Schema != RecordSchema:
		return errors.New("schema is not " + RecordSchema)
	case !id128.MatchString(r.RecordID) || !id128.MatchString(r.ClusterID) || !optional(id128, r.Supersedes) || !optional(id128, r.Ceremony.SourceRecordID):
		return errors.New("record_id, cluster_id, supersedes and source_record_id are 16 bytes in hexadecimal")
	case r.IssuedAt.IsZero() || r.ExpiresAt.IsZero() || k.NotBefore.IsZero() || k.NotAfter.IsZero():
		return errors.New("a date is missing")
	case !r.IssuedAt.Before(r.ExpiresAt.Time) || r.ExpiresAt.Sub(r.IssuedAt.Time) > maxLife || !k.NotBefore.Before(k.NotAfter.Time):
		return errors.New("a record lives for a year at most, and ends after it begins")
	case !slices.Contains([]string{OriginGenerated, OriginCloned, OriginUnwrapped, OriginImported}, r.Ceremony.Origin):
		return errors.New("ceremony.origin is none that there is")
	case k.SPKISHA256.IsZero() || !thumb.MatchString(k.JWKThumbprint):
		return errors.New("key is not named by its digest and thumbprint")
	case !keyID.MatchString(t.KeyID) || !keyID.MatchString(t.NonceKeyID) || t.KeyID == t.NonceKeyID:
		return errors.New("token.key_id and token.nonce_key_id are two CKA_IDs in hexadecimal")
	case len(t.Serials) == 0 || slices.Contains(t.Serials, "") || len(t.LibrarySHA256) == 0:
		return errors.New("token.serials or token.library_sha256 names nothing")
	case !r.Attributes.wellFormed() || !r.NonceAttributes.wellFormed():
		return errors.New("an attribute is neither true, false nor unsupported")
	case r.Module.Certificate < 0 || r.Application.Certificate < 0:
		return errors.New("a certificate's number is below zero")
	}
	return bounded(r.texts(), len(t.Serials), len(t.LibrarySHA256), len(r.Ceremony.Witnesses), len(r.Attestation.ChainSHA256), len(r.Application.BinarySHA256))
}

func (r *Record) texts() []string {
	m, t, a := r.Module, r.Token, r.Attestation
	all := []string{r.Purpose, r.RevocationRef, r.Key.Algorithm, r.Key.Curve, r.Ceremony.Mechanism, r.Ceremony.ID, m.Standard, m.Vendor, m.Name, m.Versions.Hardware, m.Versions.Firmware,
		m.Versions.Software, m.TestedConfiguration, m.ApprovedMode, m.ApprovedModeObserved, m.Caveat, m.Status, t.Provider, t.Manufacturer, t.Model, t.Label, t.Hardware, t.Firmware, t.Cryptoki,
		t.LibraryManufacturer, t.LibraryDescription, t.LibraryVersion, t.EntryPoint, a.Format, a.Verifier, a.Result, r.Application.Version, r.Application.Build, r.Application.TestedConfiguration, r.Application.Go}
	return slices.Concat(all, t.Serials, r.Ceremony.Witnesses)
}

// Bounds of texts and lists.
const (
	maxText = 500 // bytes
	maxList = 64
)

// bounded holds texts to what is safe to show, and lists to a length.
func bounded(texts []string, lists ...int) error {
	if slices.Max(append(lists, 0)) > maxList {
		return errors.New("a list is longer than 64")
	}
	for _, s := range texts {
		if len(s) > maxText || s != strings.TrimSpace(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return errors.New("a text is longer than 500 bytes, or holds what cannot be shown")
		}
	}
	return nil
}

func optional(p *regexp.Regexp, s string) bool { return s == "" || p.MatchString(s) }

func (a Attributes) wellFormed() bool {
	for _, v := range []string{a.Local, a.AlwaysSensitive, a.NeverExtractable, a.Extractable, a.Sensitive, a.Modifiable, a.Copyable, a.WrapWithTrusted} {
		if !attribute.MatchString(v) {
			return false
		}
	}
	return mechanism.MatchString(a.KeyGenMechanism)
}

// AttributesOf are those that a token has shown, by their PKCS#11 names; one
// that it did not show is unsupported.
func AttributesOf(shown map[string]string) Attributes {
	of := func(name string) string {
		if v := shown[name]; v != "" {
			return v
		}
		return "unsupported"
	}
	return Attributes{of("LOCAL"), of("KEY_GEN_MECHANISM"), of("ALWAYS_SENSITIVE"), of("NEVER_EXTRACTABLE"), of("EXTRACTABLE"), of("SENSITIVE"), of("MODIFIABLE"), of("COPYABLE"), of("WRAP_WITH_TRUSTED")}
}

// Hash is SHA-256, spelled in lower-case hexadecimal as sha256sum does; empty
// where there is none.
type Hash [32]byte

// IsZero tells that there is none.
func (h Hash) IsZero() bool { return h == Hash{} }

// MarshalText spells it.
func (h Hash) MarshalText() ([]byte, error) {
	if h.IsZero() {
		return []byte{}, nil
	}
	return hex.AppendEncode(nil, h[:]), nil
}

// UnmarshalText reads its one spelling.
func (h *Hash) UnmarshalText(b []byte) error {
	*h = Hash{}
	if len(b) == 0 {
		return nil
	}
	raw, err := hex.DecodeString(string(b))
	if err != nil || len(raw) != len(h) || bytes.ContainsAny(b, "ABCDEF") {
		return errDocument
	}
	copy(h[:], raw)
	return nil
}

func (h Hash) String() string {
	text, _ := h.MarshalText() // it never fails
	return string(text)
}

// Time is an instant in UTC, in whole seconds (RFC 3339 with Z); empty where
// there is none.
type Time struct{ time.Time }

const timeForm = "2006-01-02T15:04:05Z"

// At is an instant without what is below a second.
func At(t time.Time) Time { return Time{t.UTC().Truncate(time.Second)} }

// MarshalText spells it.
func (t Time) MarshalText() ([]byte, error) {
	if t.IsZero() {
		return []byte{}, nil
	}
	return []byte(t.UTC().Format(timeForm)), nil
}

// MarshalJSON is MarshalText, which the embedded type would hide.
func (t Time) MarshalJSON() ([]byte, error) {
	text, err := t.MarshalText()
	return []byte(`"` + string(text) + `"`), err
}

// UnmarshalJSON reads its one spelling.
func (t *Time) UnmarshalJSON(b []byte) (err error) {
	text := strings.Trim(string(b), `"`)
	*t = Time{}
	if text != "" {
		t.Time, err = time.Parse(timeForm, text)
	}
	return err
}
