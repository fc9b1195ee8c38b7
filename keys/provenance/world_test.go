package provenance_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/fips"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
	"github.com/nightwarrant/nightwarrant/keys/provenance"
	"github.com/nightwarrant/nightwarrant/keys/provenance/synthetic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is when everything here happens.
var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// world is a deployment in which everything is right. What a test changes in it
// is signed anew, unless the test spoils what was signed.
type world struct {
	policy      provenance.Policy
	officers    []*ecdsa.PrivateKey
	key         *ecdsa.PrivateKey
	record      *provenance.Record
	snapshot    *provenance.Snapshot
	observation keyhost.Observation
	module      fips.Module
	device      *synthetic.Device
	attestation []byte
	spoil       func(*provenance.Evidence)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

func spkiOf(t testing.TB, public *ecdsa.PublicKey) provenance.Hash {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	return sha256.Sum256(der)
}

func kidOf(t testing.TB, public *ecdsa.PublicKey) string {
	t.Helper()
	jkt, err := capability.JKT(public)
	require.NoError(t, err)
	return jkt.String()
}

// p256 is the DER of the named curve.
var p256 = []byte{0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07}

func attributes(mechanism string) map[string]string {
	return map[string]string{"LOCAL": "true", "KEY_GEN_MECHANISM": mechanism, "ALWAYS_SENSITIVE": "true", "NEVER_EXTRACTABLE": "true", "EXTRACTABLE": "false", "SENSITIVE": "true",
		"MODIFIABLE": "true", "COPYABLE": "true", "WRAP_WITH_TRUSTED": "false"}
}

func at(days int) provenance.Time { return provenance.At(now.AddDate(0, 0, days)) }

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{key: newKey(t)}
	device, err := synthetic.NewDevice("Example Devices")
	require.NoError(t, err)
	w.device = device
	w.policy = provenance.Policy{ClusterID: [16]byte{1, 2, 3}, Threshold: 2, Now: func() time.Time { return now },
		Profiles:     append(provenance.Profiles(), synthetic.Profile(), synthetic.Attesting()),
		Attestations: map[string]provenance.Verifier{synthetic.Format: device}}
	for _, o := range []string{"anna security", "ben operations", "cleo audit"} {
		key := newKey(t)
		id, role, _ := cut(o)
		w.officers = append(w.officers, key)
		w.policy.Officers = append(w.policy.Officers, provenance.Officer{ID: id, Role: role, PublicKey: &key.PublicKey})
	}
	w.module = fips.Module{Enabled: true, Version: "v1.0.0", Build: "v1.0.0-c2097c7c", Go: "go1.26.8", BinarySHA256: [32]byte{7}}
	w.observe(t)
	w.record = w.newRecord(t)
	w.snapshot = newSnapshot()
	return w
}

func cut(s string) (string, string, bool) {
	for i := range s {
		if s[i] == ' ' {
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

// observe is what the token shows.
func (w *world) observe(t testing.TB) {
	t.Helper()
	point, err := w.key.PublicKey.Bytes()
	require.NoError(t, err)
	w.observation = keyhost.Observation{
		Library: keyhost.Library{Cryptoki: "2.40", Manufacturer: "Example", Description: "Example PKCS#11", Version: "2.6", File: "libexample.so", FileSHA256: [32]byte{9}, EntryPoint: "C_GetFunctionList"},
		Token:   keyhost.Token{Manufacturer: "Example project", Model: "Example HSM", Serial: "98c45bcc52e97a4a", Label: "night", HardwareVersion: "2.6", FirmwareVersion: "2.6", Flags: 0x42d},
		Keys: []keyhost.Object{
			{Purpose: keyhost.PairSigning, Class: keyhost.ClassPrivate, ID: []byte{1}, Mechanisms: []string{"0x1041"}, Attributes: attributes("0x1040"), ECParams: p256},
			{Purpose: keyhost.PairSigning, Class: keyhost.ClassPublic, ID: []byte{1}, Attributes: map[string]string{}, ECParams: p256, Point: point},
			{Purpose: keyhost.PairNonce, Class: keyhost.ClassSecret, ID: []byte{2}, Mechanisms: []string{"0x251"}, Attributes: attributes("0x350")},
		}, At: now,
	}
}

func (w *world) newRecord(t testing.TB) *provenance.Record {
	t.Helper()
	o := w.observation
	return &provenance.Record{
		Schema: provenance.RecordSchema, RecordID: "00112233445566778899aabbccddeeff", ClusterID: "01020300000000000000000000000000", Purpose: provenance.PurposeSigning,
		IssuedAt: at(-10), ExpiresAt: at(300), RevocationRef: "https://example.test/withdrawn",
		Key: provenance.Key{Algorithm: "ES256", Curve: "1.2.840.10045.3.1.7", SPKISHA256: spkiOf(t, &w.key.PublicKey), JWKThumbprint: kidOf(t, &w.key.PublicKey), NotBefore: at(-11), NotAfter: at(310)},
		Ceremony: provenance.Ceremony{Origin: provenance.OriginGenerated, Mechanism: "0x1040", At: at(-11), ID: "ceremony 1", Witnesses: []string{"Anna A.", "Ben B."},
			TranscriptSHA256: provenance.Hash{1}, StatementSHA256: provenance.Hash{2}},
		Module: provenance.Module{Certificate: 4711, Standard: provenance.Standard3, Level: 3, Vendor: "Example", Name: "Example HSM", Versions: provenance.Versions{Hardware: "A", Firmware: "2.6.1"},
			TestedConfiguration: "Example appliance", ApprovedMode: "FIPS mode: on", ApprovedModeObserved: "seen on the console by both witnesses", SecurityPolicySHA256: provenance.Hash{3},
			Status: provenance.StatusActive, StatusCheckedAt: at(-12), SnapshotSHA256: provenance.Hash{4}, Sunset: at(1000)},
		Token: provenance.Token{Provider: synthetic.Provider, Manufacturer: o.Token.Manufacturer, Model: o.Token.Model, Serials: []string{o.Token.Serial}, Label: o.Token.Label, Hardware: "2.6", Firmware: "2.6",
			Cryptoki: "2.40", LibraryManufacturer: o.Library.Manufacturer, LibraryDescription: o.Library.Description, LibraryVersion: "2.6", LibrarySHA256: []provenance.Hash{{9}}, EntryPoint: "C_GetFunctionList", KeyID: "01", NonceKeyID: "02"},
		Attributes: provenance.AttributesOf(o.Keys[0].Attributes), NonceAttributes: provenance.AttributesOf(o.Keys[2].Attributes),
		Attestation: provenance.Attestation{ChainSHA256: []provenance.Hash{}},
		Application: provenance.Application{Certificate: 5247, Version: "v1.0.0", Build: "v1.0.0-c2097c7c", TestedConfiguration: "Debian 12 on x86_64", BinarySHA256: []provenance.Hash{}},
	}
}

func newSnapshot() *provenance.Snapshot {
	return &provenance.Snapshot{Schema: provenance.SnapshotSchema, TakenAt: at(-3), Source: "https://csrc.nist.gov/projects/cryptographic-module-validation-program", Withdrawn: []provenance.Withdrawal{},
		Certificates: []provenance.Certificate{
			{Number: 4711, Status: provenance.StatusActive, Standard: provenance.Standard3, Level: 3, Vendor: "Example", Name: "Example HSM", Hardware: []string{"A", "B"}, Firmware: []string{"2.6.0", "2.6.1"}, Software: []string{},
				Environments: []string{"Example appliance"}, Sunset: at(1000)},
			{Number: 5247, Status: provenance.StatusActive, Standard: provenance.Standard3, Level: 1, Vendor: "Geomys", Name: "Go Cryptographic Module", Hardware: []string{}, Firmware: []string{}, Software: []string{"v1.0.0"},
				Environments: []string{"Debian 12 on x86_64"}, Sunset: at(1500)},
		}}
}

// attest has the device speak of the key, and records what it said.
func (w *world) attest(t testing.TB, by *synthetic.Device, of *ecdsa.PublicKey, origin string, extractable bool) {
	t.Helper()
	blob, err := by.Attest(of, origin, extractable, now.AddDate(0, 0, -11))
	require.NoError(t, err)
	w.attestation = blob
	w.record.Attestation = provenance.Attestation{Format: synthetic.Format, BlobSHA256: sha256.Sum256(blob), ChainSHA256: []provenance.Hash{}, Verifier: "synthetic 1", Result: "good"}
	if a, err := by.Verify(blob, now); err == nil {
		w.record.Attestation.ChainSHA256, w.record.Attestation.RootSHA256 = a.Chain, a.Root
	}
}

// signed are the signatures of the officers with those numbers.
func (w *world) signed(t testing.TB, d provenance.Document, by ...int) []byte {
	t.Helper()
	a := provenance.NewApprovals(d)
	for _, i := range by {
		signature, err := provenance.Sign(d, w.officers[i])
		require.NoError(t, err)
		require.NoError(t, a.Approve(d, w.policy.Officers[i], signature))
	}
	text, err := a.Spell()
	require.NoError(t, err)
	return text
}

// evidence is signed by two officers, and then spoiled.
func (w *world) evidence(t testing.TB) provenance.Evidence {
	t.Helper()
	record, err := w.record.Spell()
	require.NoError(t, err)
	snapshot, err := w.snapshot.Spell()
	require.NoError(t, err)
	e := provenance.Evidence{
		Record: record.Bytes, Approvals: w.signed(t, record, 0, 1), Snapshot: snapshot.Bytes, SnapshotApprovals: w.signed(t, snapshot, 1, 2),
		Attestation: w.attestation, Module: w.module, PublicKey: &w.key.PublicKey, Replica: [32]byte{5},
		Registered: provenance.Registered{ClusterID: w.policy.ClusterID, KID: kidOf(t, &w.key.PublicKey), PublicKey: &w.key.PublicKey, ProvenanceDigest: record.Digest},
		Observe:    func(context.Context) (keyhost.Observation, error) { return w.observation, nil },
		Challenge:  func(_ context.Context, digest [32]byte) ([64]byte, error) { return signDigest(w.key, digest) },
	}
	if w.spoil != nil {
		w.spoil(&e)
	}
	return e
}

func signDigest(key *ecdsa.PrivateKey, digest [32]byte) (out [64]byte, err error) {
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err == nil {
		r.FillBytes(out[:32])
		s.FillBytes(out[32:])
	}
	return out, err
}

func (w *world) verify(t testing.TB) provenance.Report {
	t.Helper()
	return w.policy.Verify(t.Context(), w.evidence(t))
}
