package provenance_test

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/nightwarrant/nightwarrant/keys/provenance"
)

func sum(b []byte) []byte {
	s := sha256.Sum256(b)
	return s[:]
}

func TestRecordsThatAreRefused(t *testing.T) {
	t.Parallel()
	many := make([]string, 65)
	for name, change := range map[string]func(*Record){
		"another schema":            func(r *Record) { r.Schema = "key-provenance/v2" },
		"no id":                     func(r *Record) { r.RecordID = "" },
		"an id in capitals":         func(r *Record) { r.RecordID = strings.ToUpper(r.RecordID) },
		"no cluster":                func(r *Record) { r.ClusterID = "" },
		"supersedes what is no id":  func(r *Record) { r.Supersedes = "the old one" },
		"no beginning":              func(r *Record) { r.IssuedAt = Time{} },
		"no end":                    func(r *Record) { r.ExpiresAt = Time{} },
		"ends before it begins":     func(r *Record) { r.ExpiresAt = r.IssuedAt },
		"lives for two years":       func(r *Record) { r.ExpiresAt = at(720) },
		"the key has no end":        func(r *Record) { r.Key.NotAfter = Time{} },
		"no such origin":            func(r *Record) { r.Ceremony.Origin = "found" },
		"no key":                    func(r *Record) { r.Key.SPKISHA256 = Hash{} },
		"no thumbprint":             func(r *Record) { r.Key.JWKThumbprint = "x" },
		"no CKA_ID":                 func(r *Record) { r.Token.KeyID = "" },
		"one CKA_ID for both keys":  func(r *Record) { r.Token.NonceKeyID = r.Token.KeyID },
		"no serial":                 func(r *Record) { r.Token.Serials = nil },
		"an empty serial":           func(r *Record) { r.Token.Serials = []string{""} },
		"no library":                func(r *Record) { r.Token.LibrarySHA256 = nil },
		"an attribute that is none": func(r *Record) { r.Attributes.Local = "yes" },
		"a mechanism that is none":  func(r *Record) { r.Attributes.KeyGenMechanism = "1040" },
		"an attribute of the nonce key that is none": func(r *Record) { r.NonceAttributes.Extractable = "" },
		"a certificate below zero":                   func(r *Record) { r.Module.Certificate = -1 },
		"a long text":                                func(r *Record) { r.Module.Caveat = strings.Repeat("x", 501) },
		"what cannot be shown":                       func(r *Record) { r.Module.Vendor = "x\x1b[31m" },
		"blanks around a text":                       func(r *Record) { r.Module.Vendor = " x" },
		"a long list":                                func(r *Record) { r.Ceremony.Witnesses = many },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newWorld(t).record
			change(r)
			_, err := r.Spell()
			require.Error(t, err)
		})
	}
}

func TestSnapshotsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Snapshot){
		"another schema":          func(s *Snapshot) { s.Schema = "" },
		"no time":                 func(s *Snapshot) { s.TakenAt = Time{} },
		"no source":               func(s *Snapshot) { s.Source = "" },
		"one certificate twice":   func(s *Snapshot) { s.Certificates[1].Number = s.Certificates[0].Number },
		"no number":               func(s *Snapshot) { s.Certificates[0].Number = 0 },
		"no such status":          func(s *Snapshot) { s.Certificates[0].Status = "Active" },
		"no such standard":        func(s *Snapshot) { s.Certificates[0].Standard = "140-3" },
		"what cannot be shown":    func(s *Snapshot) { s.Certificates[0].Name = "x\u200b\n" },
		"a withdrawal of nothing": func(s *Snapshot) { s.Withdrawn = []Withdrawal{{"", WithdrawnRevoked, at(0)}} },
		"withdrawn for fun":       func(s *Snapshot) { s.Withdrawn = []Withdrawal{{"00112233445566778899aabbccddeeff", "fun", at(0)}} },
		"withdrawn at no time": func(s *Snapshot) {
			s.Withdrawn = []Withdrawal{{"00112233445566778899aabbccddeeff", WithdrawnRevoked, Time{}}}
		},
		"too many certificates": func(s *Snapshot) {
			for i := range 64 {
				c := s.Certificates[0]
				c.Number = int64(i + 1)
				s.Certificates = append(s.Certificates, c)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSnapshot()
			change(s)
			_, err := s.Spell()
			require.Error(t, err)
		})
	}
}

// A document has one spelling: whatever differs in a byte is another one, or none.
func TestOneSpelling(t *testing.T) {
	t.Parallel()
	d, err := newWorld(t).record.Spell()
	require.NoError(t, err)
	good := string(d.Bytes)
	for name, bad := range map[string]string{
		"a blank":             strings.Replace(good, ":", ": ", 1),
		"a line end":          good + "\n",
		"a member more":       strings.Replace(good, "{", `{"a":1,`, 1),
		"a member less":       strings.Replace(good, `,"supersedes":""`, "", 1),
		"a member twice":      strings.Replace(good, `"supersedes":""`, `"supersedes":"","supersedes":""`, 1),
		"null":                strings.Replace(good, `"supersedes":""`, `"supersedes":null`, 1),
		"a hash in capitals":  strings.Replace(good, `"transcript_sha256":"01`, `"transcript_sha256":"0A`, 1),
		"half a hash":         strings.Replace(good, `"transcript_sha256":"01`, `"transcript_sha256":"`, 1),
		"a time with a zone":  strings.Replace(good, `12:00:00Z","key"`, `12:00:00+00:00","key"`, 1),
		"a time in fractions": strings.Replace(good, `12:00:00Z","key"`, `12:00:00.0Z","key"`, 1),
		"a number as text":    strings.Replace(good, `"cmvp_certificate":4711`, `"cmvp_certificate":"4711"`, 1),
		"an escape":           strings.Replace(good, "ceremony 1", `ceremony \u0031`, 1),
		"nothing":             "",
		"too much":            strings.Repeat(" ", 70_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NotEqual(t, good, bad, "nothing was changed")
			_, _, err := ParseRecord([]byte(bad))
			require.Error(t, err)
		})
	}
	again, spelled, err := ParseRecord(d.Bytes)
	require.NoError(t, err)
	assert.Equal(t, d, spelled)
	assert.Equal(t, "ceremony 1", again.Ceremony.ID)
	for _, bad := range []string{`{}`, `{"approvals":[],"digest":"","schema":"x"}`, `{"approvals":null,"digest":"","schema":"approvals/v1"}`, `{"approvals":[],"digest":"","schema":"approvals/v1"} `} {
		_, err := ParseApprovals([]byte(bad))
		assert.Error(t, err, bad)
	}
}

// Whatever is parsed spells itself as it was; parse returns what is refused as it is.
func fuzz(f *testing.F, seed []byte, parse func([]byte) ([]byte, error)) {
	f.Add(seed)
	for i := 0; i < len(seed); i += 97 {
		f.Add(append(append([]byte{}, seed[:i]...), seed[i+1:]...))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := parse(in)
		require.NoError(t, err, "what was parsed can be spelled")
		assert.Equal(t, string(in), string(out))
	})
}

func FuzzParseRecord(f *testing.F) {
	d, err := newWorld(f).record.Spell()
	require.NoError(f, err)
	fuzz(f, d.Bytes, func(in []byte) ([]byte, error) {
		r, d, err := ParseRecord(in)
		if err != nil {
			return in, nil //nolint:nilerr // what is refused is left as it is
		}
		again, err := r.Spell()
		if err == nil && d.Digest != again.Digest {
			err = errors.New("another digest")
		}
		return again.Bytes, err
	})
}

func FuzzParseSnapshot(f *testing.F) {
	d, err := newSnapshot().Spell()
	require.NoError(f, err)
	fuzz(f, d.Bytes, func(in []byte) ([]byte, error) {
		s, _, err := ParseSnapshot(in)
		if err != nil {
			return in, nil //nolint:nilerr // what is refused is left as it is
		}
		again, err := s.Spell()
		return again.Bytes, err
	})
}

func FuzzParseApprovals(f *testing.F) {
	w := newWorld(f)
	d, err := w.record.Spell()
	require.NoError(f, err)
	fuzz(f, w.signed(f, d, 0, 1), func(in []byte) ([]byte, error) {
		a, err := ParseApprovals(in)
		if err != nil {
			return in, nil //nolint:nilerr // what is refused is left as it is
		}
		return a.Spell()
	})
}
