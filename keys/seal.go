package keys

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"io"
	"path/filepath"
	"strings"

	"filippo.io/age"
)

// sealer is what an identity file holds: it seals what a bundle hides, and opens
// that again.
type sealer interface {
	seal(plain []byte) ([]byte, error)
	unseal(sealed []byte) ([]byte, error)
}

func seal(plain []byte, by sealer) ([]byte, error) { return by.seal(plain) }

func unseal(sealed []byte, by sealer) ([]byte, error) { return by.unseal(sealed) }

// ageSeal is an age identity: X25519 and ChaCha20-Poly1305, which are outside the
// FIPS module.
type ageSeal struct{ *age.X25519Identity }

func (s ageSeal) seal(plain []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := age.Encrypt(&out, s.Recipient())
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil { // writes the last block
		return nil, err
	}
	return out.Bytes(), nil
}

func (s ageSeal) unseal(sealed []byte) ([]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(sealed), s.X25519Identity)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, maxFile))
}

// sealKeyHead begins the one line of an identity file that holds a key for
// AES-256-GCM with random nonces (SP 800-38D §8.2.2), which the FIPS module has.
const sealKeyHead = "nightwarrant-seal-key-v1 "

// aesSeal is such a key, in a closure's reach only.
type aesSeal struct{ of func() (cipher.AEAD, error) }

func newAESSeal(key [32]byte) aesSeal {
	return aesSeal{func() (cipher.AEAD, error) {
		block, err := aes.NewCipher(key[:])
		if err != nil {
			return nil, err
		}
		return cipher.NewGCMWithRandomNonce(block)
	}}
}

func (s aesSeal) seal(plain []byte) ([]byte, error) {
	a, err := s.of()
	if err != nil {
		return nil, err
	}
	return a.Seal(nil, nil, plain, []byte(sealKeyHead)), nil //nolint:gosec // the AEAD makes its nonce itself
}

func (s aesSeal) unseal(sealed []byte) ([]byte, error) {
	a, err := s.of()
	if err != nil {
		return nil, err
	}
	return a.Open(nil, nil, sealed, []byte(sealKeyHead))
}

// NewSealKey makes an identity file of mode 0600 whose seal is made by the FIPS
// module alone. It refuses to overwrite anything.
func NewSealKey(path string) error {
	var key [32]byte
	rand.Read(key[:])
	defer clear(key[:])
	if err := writeNew(path, []byte(sealKeyHead+encode(key[:])+"\n"), 0o600); err != nil {
		return material("the identity file cannot be written, or exists", err)
	}
	return syncDir(filepath.Dir(path))
}

// sealKey reads the line of NewSealKey; is tells whether it was one at all.
func sealKey(text []byte) (by sealer, is bool, err error) {
	line, is := strings.CutPrefix(string(text), sealKeyHead)
	if !is {
		return nil, false, nil
	}
	var key [32]byte
	if !fill(key[:], strings.TrimSuffix(line, "\n")) {
		return nil, true, material("the identity file does not hold exactly one seal key", nil)
	}
	return newAESSeal(key), true, nil
}
