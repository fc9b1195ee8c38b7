package config

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
)

// Provenance says where the evidence of a token's keys is, and whose signatures
// it needs. The files are read anew each time that they are looked at.
type Provenance struct {
	Records           []ProvenanceRecord `yaml:"records"`            // of the current key, and of the next while keys are rotated
	Snapshot          string             `yaml:"snapshot"`           // of the CMVP
	SnapshotApprovals string             `yaml:"snapshot_approvals"` // its signatures
	Officers          []Officer          `yaml:"officers"`
	Threshold         int64              `yaml:"threshold"` // of officers who must have signed; at least 2, which is the default
}

// ProvenanceRecord is one record with what belongs to it.
type ProvenanceRecord struct {
	File        string `yaml:"file"`
	Approvals   string `yaml:"approvals"`   // its signatures
	Attestation string `yaml:"attestation"` // what the device has signed, where the record names it
}

// Officer is somebody whose signature counts.
type Officer struct {
	ID      string `yaml:"id"`
	Role    string `yaml:"role"`
	KeyFile string `yaml:"key_file"` // public key, PEM
}

// Configured tells that there is anything about provenance.
func (p *Provenance) Configured() bool {
	return len(p.Records) > 0 || p.Snapshot != "" || p.SnapshotApprovals != "" || len(p.Officers) > 0 || p.Threshold != 0
}

const provenance = "keys.provenance"

func (k *Keys) checkProvenance() error {
	p := &k.Provenance
	switch {
	case !p.Configured():
		return nil
	case k.Host.Socket == "":
		return Wrong(provenance, "needs keys.host: a record is of keys that lie in a token")
	case len(p.Records) == 0 || len(p.Records) > 2:
		return Wrong(provenance+".records", "must be one, or two while keys are rotated")
	}
	for i, r := range p.Records {
		key := fmt.Sprintf("%s.records[%d]", provenance, i)
		if err := first(absolute(key+".file", r.File), absolute(key+".approvals", r.Approvals)); err != nil {
			return err
		}
		if r.Attestation != "" && !filepath.IsAbs(r.Attestation) {
			return Wrong(key+".attestation", "must be an absolute path")
		}
	}
	return first(
		absolute(provenance+".snapshot", p.Snapshot),
		absolute(provenance+".snapshot_approvals", p.SnapshotApprovals),
		between(provenance+".threshold", &p.Threshold, 2, 2, 16),
		p.checkOfficers(),
	)
}

func (p *Provenance) checkOfficers() error {
	for i, o := range p.Officers {
		key := fmt.Sprintf("%s.officers[%d]", provenance, i)
		if err := first(required(key+".id", o.ID), required(key+".role", o.Role), absolute(key+".key_file", o.KeyFile)); err != nil {
			return err
		}
	}
	return nil
}

// ReadPublicKey reads a P-256 public key from a PEM file ("PUBLIC KEY").
func ReadPublicKey(path string) (*ecdsa.PublicKey, error) {
	text, err := readBounded(path, maxSecret, anyMode)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("names %.100q, which must hold exactly one PEM PUBLIC KEY", path)
	}
	if key, err := x509.ParsePKIXPublicKey(block.Bytes); err == nil {
		if public, is := key.(*ecdsa.PublicKey); is && public.Curve == elliptic.P256() {
			return public, nil
		}
	}
	return nil, fmt.Errorf("names %.100q, whose key is not one of P-256", path)
}

// ReadPrivateKey reads a P-256 private key from a PEM file of mode 0600 or 0400
// ("PRIVATE KEY", or openssl's "EC PRIVATE KEY").
func ReadPrivateKey(path string) (*ecdsa.PrivateKey, error) {
	text, err := readBounded(path, maxSecret, ownerMode)
	if err != nil {
		return nil, err
	}
	defer clear(text)
	wrong := fmt.Errorf("names %.100q, which holds no P-256 private key in PEM", path)
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "EC PARAMETERS" { // openssl writes them before the key
			continue
		}
		return privateKey(block, wrong)
	}
	return nil, wrong
}

func privateKey(block *pem.Block, wrong error) (*ecdsa.PrivateKey, error) {
	var key any
	err := errors.ErrUnsupported
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	}
	private, is := key.(*ecdsa.PrivateKey)
	if err != nil || !is || private.Curve != elliptic.P256() {
		return nil, wrong
	}
	return private, nil
}

// ReadBounded reads a small regular file of any mode.
func ReadBounded(path string, most int) ([]byte, error) { return readBounded(path, most, anyMode) }
