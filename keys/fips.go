package keys

import (
	"path/filepath"

	"github.com/nightwarrant/nightwarrant/internal/fips"
)

// InFIPS refuses, before anything is opened, a bundle that seals its signing key
// itself, and a seal that the FIPS module cannot open. Every error is a
// *MaterialError.
func InFIPS(dir, identityFile string) error {
	public, err := readGuarded(filepath.Join(dir, publicFile), noWriters)
	if err != nil {
		return err
	}
	p, err := parsePublic(public)
	if err != nil {
		return material("the bundle's public part is malformed", err)
	}
	if p.Provenance.Origin != originToken {
		return material(fips.LocalKey+": the bundle seals its signing key itself, and fips is required", nil)
	}
	text, err := readGuarded(identityFile, ownerOnly)
	if err != nil {
		return err
	}
	defer clear(text)
	if _, is, err := sealKey(text); !is || err != nil {
		return material(fips.NonApproved+": the bundle is sealed by age, and fips is required: its seal must be a seal key's", nil)
	}
	return nil
}
