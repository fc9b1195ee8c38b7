package audit

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"golang.org/x/mod/sumdb/note"
)

// Witness is the key of somebody who signs a checkpoint only when it goes on
// from the last one that he signed (C2SP tlog-cosignature, Ed25519). It is a note.Verifier.
type Witness struct {
	name   string
	public ed25519.PublicKey
}

const (
	cosignatureType = 4          // of Ed25519 cosignatures in C2SP signed-note
	cosignatureSize = 4 + 8 + 64 // key ID, seconds since 1970, signature
	privatePrefix   = "PRIVATE+KEY+"
)

var errWitness = errors.New("not the key of a witness")

// NewWitness reads a key as it is handed on: a C2SP vkey of type 0x04.
func NewWitness(vkey string) (Witness, error) {
	name, key, err := parseKey(vkey)
	w := Witness{name, key}
	if err != nil || w.String() != vkey {
		return Witness{}, errWitness
	}
	return w, nil
}

// parseKey takes name, key ID and type off a key; the caller holds the ID against the name.
func parseKey(text string) (name string, key []byte, err error) {
	parts := strings.SplitN(text, "+", 3)
	if len(parts) != 3 || parts[0] == "" || len(parts[0]) > 255 || strings.IndexFunc(parts[0], unicode.IsSpace) >= 0 {
		return "", nil, errWitness
	}
	key, err = base64.StdEncoding.DecodeString(parts[2])
	if err != nil || len(key) != 1+ed25519.PublicKeySize || key[0] != cosignatureType {
		return "", nil, errWitness
	}
	return parts[0], key[1:], nil
}

// String is the vkey.
func (w Witness) String() string { return w.name + "+" + w.keyed(w.public) }

func (w Witness) keyed(key []byte) string {
	return fmt.Sprintf("%08x+%s", w.KeyHash(), base64.StdEncoding.EncodeToString(append([]byte{cosignatureType}, key...)))
}

// Name is the witness' own.
func (w Witness) Name() string { return w.name }

// KeyHash is the key's ID.
func (w Witness) KeyHash() uint32 {
	sum := sha256.Sum256(append([]byte(w.name+"\n"), append([]byte{cosignatureType}, w.public...)...))
	return binary.BigEndian.Uint32(sum[:])
}

// Verify holds a timestamped signature against a checkpoint's text.
func (w Witness) Verify(text, signature []byte) bool {
	if len(signature) != cosignatureSize-4 {
		return false
	}
	at := binary.BigEndian.Uint64(signature)
	return at <= math.MaxInt64 && ed25519.Verify(w.public, cosigned(at, text), signature[8:])
}

func cosigned(at uint64, text []byte) []byte {
	return append(fmt.Appendf(nil, "cosignature/v1\ntime %d\n", at), text...)
}

// Cosignature is what a witness has made of a checkpoint, and when: key ID, time and signature, 76 bytes.
type Cosignature []byte

// At is when it was made, by the witness' clock, to the second.
func (c Cosignature) At() time.Time { return time.Unix(int64(binary.BigEndian.Uint64(c[4:])), 0).UTC() } //nolint:gosec // Verify has bounded it

// Of returns the witness' signature on a signed checkpoint.
func (w Witness) Of(signed []byte) (Cosignature, error) {
	n, err := note.Open(signed, note.VerifierList(w))
	if err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(n.Sigs[0].Base64)
}

// made tells whether the witness has signed that text so.
func (w Witness) made(c Cosignature, text string) bool {
	return len(c) == cosignatureSize && binary.BigEndian.Uint32(c) == w.KeyHash() && w.Verify([]byte(text), c[4:])
}

// Cosigner signs as a witness. It is a note.Signer.
type Cosigner struct {
	Witness
	private ed25519.PrivateKey
	now     func() time.Time
}

// NewCosigner reads a private key as GenerateCosigner writes it.
func NewCosigner(skey string, now func() time.Time) (*Cosigner, error) {
	text, ok := strings.CutPrefix(skey, privatePrefix)
	name, seed, err := parseKey(text)
	if !ok || err != nil {
		return nil, errWitness
	}
	c := newCosigner(name, seed, now)
	if c.secret() != skey {
		return nil, errWitness
	}
	return c, nil
}

func newCosigner(name string, seed []byte, now func() time.Time) *Cosigner {
	private := ed25519.NewKeyFromSeed(seed)
	return &Cosigner{Witness{name, private.Public().(ed25519.PublicKey)}, private, now}
}

func (c *Cosigner) secret() string { return privatePrefix + c.name + "+" + c.keyed(c.private.Seed()) }

// GenerateCosigner makes the key of a new witness: what it keeps, and what it hands on.
func GenerateCosigner(name string) (skey string, w Witness, err error) {
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed) // never fails (crypto/rand)
	c := newCosigner(name, seed, nil)
	if w, err = NewWitness(c.String()); err != nil {
		return "", Witness{}, err
	}
	return c.secret(), w, nil
}

// Sign cosigns a checkpoint's text, now.
func (c *Cosigner) Sign(text []byte) ([]byte, error) {
	at := uint64(c.now().Unix()) //nolint:gosec // after 1970
	return append(binary.BigEndian.AppendUint64(nil, at), ed25519.Sign(c.private, cosigned(at, text))...), nil
}
