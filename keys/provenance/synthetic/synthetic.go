// Package synthetic takes a software token for a module, and a root whose key
// everybody knows for a manufacturer's, so that tests can show that good evidence
// is accepted: no real device was ever tried. No program that is shipped has it.
package synthetic

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math/big"
	"time"

	"github.com/nightwarrant/nightwarrant/keys/provenance"
)

// Names that a record uses.
const (
	Provider = "synthetic"
	Format   = "synthetic-x509"
)

// Profile is SoftHSM's, measured (keys.md §2.2).
func Profile() provenance.Profile {
	made := func(mechanism string) provenance.Attributes {
		return provenance.Attributes{Local: "true", KeyGenMechanism: mechanism, AlwaysSensitive: "true", NeverExtractable: "true", Extractable: "false", Sensitive: "true"}
	}
	cloned := provenance.Attributes{Local: "false", AlwaysSensitive: "false", NeverExtractable: "false", Extractable: "false", Sensitive: "true"}
	return provenance.Profile{Provider: Provider, EntryPoint: "C_GetFunctionList", Signing: made("0x1040"), Nonce: made("0x350"), Cloned: &cloned, Software: true}
}

// Attesting is Profile where a device must have attested the key.
func Attesting() provenance.Profile {
	p := Profile()
	p.Provider, p.Attestation = Provider+"-attesting", Format
	return p
}

// says is the extension in which the synthetic manufacturer's device speaks of a key.
var says = asn1.ObjectIdentifier{2, 999, 6, 1} // the arc of examples (ITU-T X.660)

type said struct {
	Origin      string `asn1:"utf8"`
	Extractable bool
}

// Device signs for keys.
type Device struct {
	root, middle       *x509.Certificate
	rootKey, middleKey *ecdsa.PrivateKey
}

// NewDevice is a device of the manufacturer whose key is made of that name.
func NewDevice(manufacturer string) (*Device, error) {
	d := &Device{}
	var err error
	if d.rootKey, err = known(manufacturer); err == nil {
		d.middleKey, err = known(manufacturer + "'s devices")
	}
	if err == nil {
		d.root, err = authority(manufacturer, nil, &d.rootKey.PublicKey, d.rootKey)
	}
	if err == nil {
		d.middle, err = authority(manufacturer+"'s devices", d.root, &d.middleKey.PublicKey, d.rootKey)
	}
	return d, err
}

// known is a key that everybody can make.
func known(name string) (*ecdsa.PrivateKey, error) {
	scalar := sha256.Sum256([]byte(name))
	return ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar[:])
}

func authority(name string, parent *x509.Certificate, public *ecdsa.PublicKey, by *ecdsa.PrivateKey) (*x509.Certificate, error) {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)}
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Attest is what the device says of a key from then on: its certificates, leaf first.
func (d *Device) Attest(public *ecdsa.PublicKey, origin string, extractable bool, from time.Time) ([]byte, error) {
	value, err := asn1.Marshal(said{origin, extractable})
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "a key"}, NotBefore: from, NotAfter: from.AddDate(2, 0, 0),
		ExtraExtensions: []pkix.Extension{{Id: says, Value: value}}}
	leaf, err := x509.CreateCertificate(rand.Reader, template, d.middle, public, d.middleKey)
	return append(leaf, d.middle.Raw...), err
}

// Verify implements provenance.Verifier with the device's root.
func (d *Device) Verify(blob []byte, at time.Time) (provenance.Attested, error) {
	all, err := x509.ParseCertificates(blob)
	if err != nil || len(all) == 0 || len(all) > 5 {
		return provenance.Attested{}, errors.New("it is no chain of certificates")
	}
	roots, others := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(d.root)
	for _, c := range all[1:] {
		others.AddCert(c)
	}
	chains, err := all[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: others, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return provenance.Attested{}, errors.New("it does not lead to the pinned root")
	}
	out := provenance.Attested{SPKI: all[0].RawSubjectPublicKeyInfo}
	path := chains[0]
	for _, c := range path[:len(path)-1] {
		out.Chain = append(out.Chain, sha256.Sum256(c.Raw))
	}
	out.Root = sha256.Sum256(path[len(path)-1].RawSubjectPublicKeyInfo)
	for _, e := range all[0].Extensions {
		var s said
		if rest, err := asn1.Unmarshal(e.Value, &s); e.Id.Equal(says) && err == nil && len(rest) == 0 {
			out.Origin, out.Extractable = s.Origin, s.Extractable
			return out, nil
		}
	}
	return provenance.Attested{}, errors.New("the device says nothing of the key's origin")
}
