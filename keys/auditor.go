package keys

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"golang.org/x/mod/sumdb/note"
)

// Auditor signs the audit log's checkpoints; it is a note.Signer, and its name
// is the log's origin.
type Auditor struct {
	name   string
	hash   uint32
	public ed25519.PublicKey
	sign   func(message []byte) []byte
}

// AuditOrigin names the audit log of a cluster.
func AuditOrigin(cluster [16]byte) string {
	return "nightwarrant/audit/" + hex.EncodeToString(cluster[:])
}

func newAuditor(cluster [16]byte, seed []byte) *Auditor {
	private := ed25519.NewKeyFromSeed(seed)
	a := &Auditor{name: AuditOrigin(cluster), public: auditKey(seed), sign: func(m []byte) []byte { return ed25519.Sign(private, m) }}
	a.hash = noteHash(a.name, a.public)
	return a
}

// auditKey is the public key of a seed.
func auditKey(seed []byte) ed25519.PublicKey {
	return ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
}

// noteEd25519 is the signature type of Ed25519 in C2SP signed-note.
const noteEd25519 = 1

// noteHash is the key ID of C2SP signed-note.
func noteHash(name string, public []byte) uint32 {
	sum := sha256.Sum256(append([]byte(name+"\n"), append([]byte{noteEd25519}, public...)...))
	return binary.BigEndian.Uint32(sum[:])
}

// AuditVerifier opens what the auditor of a registered identity has signed.
func (i Identity) AuditVerifier() note.Verifier {
	return noteVerifier{name: AuditOrigin(i.ClusterID), public: i.AuditKey[:]}
}

type noteVerifier struct {
	name   string
	public ed25519.PublicKey
}

func (v noteVerifier) Name() string            { return v.name }
func (v noteVerifier) KeyHash() uint32         { return noteHash(v.name, v.public) }
func (v noteVerifier) Verify(m, s []byte) bool { return ed25519.Verify(v.public, m, s) }

// Verifier opens what Sign has signed.
func (a *Auditor) Verifier() note.Verifier { return noteVerifier{a.name, a.public} }

// Name is the log's origin.
func (a *Auditor) Name() string { return a.name }

// KeyHash is the key's ID.
func (a *Auditor) KeyHash() uint32 { return a.hash }

// Sign signs a checkpoint's text.
func (a *Auditor) Sign(message []byte) ([]byte, error) { return a.sign(message), nil }
