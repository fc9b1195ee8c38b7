package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/fips"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
	"github.com/nightwarrant/nightwarrant/keys/provenance"
)

// facts are what no token says: only people know it.
type facts struct {
	Days          int64            `yaml:"days"` // for which record and key are good
	Supersedes    string           `yaml:"supersedes"`
	RevocationRef string           `yaml:"revocation_ref"`
	Provider      string           `yaml:"provider"`
	Serials       []string         `yaml:"serials"`       // of further members of a cluster of tokens
	LibraryFiles  []string         `yaml:"library_files"` // further files of the library that replicas may load
	Ceremony      ceremonyFacts    `yaml:"ceremony"`
	Module        moduleFacts      `yaml:"module"`
	Attestation   attestationFacts `yaml:"attestation"`
	Application   applicationFacts `yaml:"application"`
}

type ceremonyFacts struct {
	Origin         string   `yaml:"origin"`
	At             string   `yaml:"at"`
	ID             string   `yaml:"id"`
	Witnesses      []string `yaml:"witnesses"`
	TranscriptFile string   `yaml:"transcript_file"`
	StatementFile  string   `yaml:"statement_file"`
	SourceRecordID string   `yaml:"source_record_id"`
}

type moduleFacts struct {
	Certificate          int64  `yaml:"certificate"`
	Hardware             string `yaml:"hardware"`
	Firmware             string `yaml:"firmware"`
	Software             string `yaml:"software"`
	TestedConfiguration  string `yaml:"tested_configuration"`
	ApprovedMode         string `yaml:"approved_mode"`
	ApprovedModeObserved string `yaml:"approved_mode_observed"`
	SecurityPolicyFile   string `yaml:"security_policy_file"`
}

type attestationFacts struct {
	Format      string   `yaml:"format"`
	File        string   `yaml:"file"`
	ChainSHA256 []string `yaml:"chain_sha256"`
	RootSHA256  string   `yaml:"root_sha256"`
	Verifier    string   `yaml:"verifier"`
	Result      string   `yaml:"result"`
}

type applicationFacts struct {
	Certificate         int64    `yaml:"certificate"`
	Version             string   `yaml:"version"`
	Build               string   `yaml:"build"` // of this program, when empty
	ZipSHA256           string   `yaml:"zip_sha256"`
	TestedConfiguration string   `yaml:"tested_configuration"`
	Go                  string   `yaml:"go"`
	Binaries            []string `yaml:"binaries"` // files of the programs that may use the key; none: any of that build
}

// Check implements config.Document; what is wrong in a record is said of the record.
func (f *facts) Check(func(string) string) error {
	if f.Days < 1 || f.Days > 366 {
		return config.Wrong("days", "must be between 1 and 366: a record ends with its key, which is rotated before")
	}
	return nil
}

func (p program) provenanceDraft() *cobra.Command {
	var file, out, cluster, snapshot, key string
	c := &cobra.Command{Use: "draft", Short: "Write a record from what a live token shows and what people know, for officers to sign", Args: cobra.NoArgs}
	h := &config.Host{}
	c.Flags().StringVar(&h.Socket, "keyhost", "", "`SOCKET` of nightwarrant-keyhost")
	c.Flags().StringVar(&h.User, "keyhost-user", "", "`USER` as whom the key host runs; the same as this command when not given")
	c.Flags().StringVar(&key, "key-id", "", "`CKA_ID` of the signing key, when the key host serves several")
	c.Flags().StringVar(&file, "facts", "", "YAML `FILE` of what only people know")
	c.Flags().StringVar(&snapshot, "snapshot", "", "`FILE` of the snapshot of the CMVP that the record is made from")
	c.Flags().StringVar(&cluster, "cluster", "", "the `CLUSTER` whose next key it is; a new cluster's identifier is made when not given")
	c.Flags().StringVarP(&out, "out", "o", "", "`FILE` to write; it must not be there")
	for _, name := range []string{"keyhost", "facts", "snapshot", "out"} {
		_ = c.MarkFlagRequired(name)
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var f facts
		if err := config.Load(file, &f, p.env); err != nil {
			return err
		}
		d, err := newDrafting(cmd.Context(), *h, key, snapshot)
		if err != nil {
			return err
		}
		r, err := d.record(f, cluster, time.Now())
		if err != nil {
			return err
		}
		document, err := r.Spell()
		if err != nil {
			return fmt.Errorf("no record can be made of this: %w", err)
		}
		if err := writeEvidence(out, document.Bytes); err != nil {
			return err
		}
		return p.say("%s is the draft of record %s for cluster %s.\nIt speaks of the key %s.\nOfficers sign it: `nightwarrant keys provenance sign %s`.\n", out, r.RecordID, r.ClusterID, r.Key.JWKThumbprint, out)
	}
	return c
}

// drafting is what a draft is made from.
type drafting struct {
	observed keyhost.Observation
	pair     keyhost.Pair
	public   *ecdsa.PublicKey
	snapshot *provenance.Snapshot
	digest   provenance.Hash // of the snapshot
}

func newDrafting(ctx context.Context, h config.Host, key, snapshot string) (d drafting, err error) {
	text, err := readEvidence("--snapshot", snapshot)
	if err != nil {
		return d, err
	}
	var document provenance.Document
	if d.snapshot, document, err = provenance.ParseSnapshot(text); err != nil {
		return d, config.Wrong("--snapshot", "names a file that is no snapshot: %s", err)
	}
	d.digest = document.Digest
	client, err := clientOf(h)
	if err != nil {
		return d, err
	}
	defer client.Close() //nolint:errcheck // nothing is written
	served, err := client.Describe(ctx)
	if err != nil {
		return d, err
	}
	for _, p := range served.Pairs {
		if p.Signing == key || key == "" && len(served.Pairs) == 1 {
			d.pair = p
		}
	}
	if d.public, err = ecdsa.ParseUncompressedPublicKey(elliptic.P256(), d.pair.PublicKey); err != nil {
		return d, config.Wrong("--key-id", "must name one of the %d signing keys that the key host serves", len(served.Pairs))
	}
	d.observed, err = client.Observe(ctx)
	return d, err
}

// record puts together what the token shows, the snapshot says and people know.
func (d drafting) record(f facts, cluster string, now time.Time) (*provenance.Record, error) {
	r := &provenance.Record{Schema: provenance.RecordSchema, RecordID: fresh(), ClusterID: cluster, Purpose: provenance.PurposeSigning,
		IssuedAt: provenance.At(now), ExpiresAt: provenance.At(now.AddDate(0, 0, int(f.Days))), Supersedes: f.Supersedes, RevocationRef: f.RevocationRef}
	if cluster == "" {
		var id [16]byte
		_, _ = rand.Read(id[:]) // never fails (crypto/rand)
		fips.Mark(&id)
		r.ClusterID = hex.EncodeToString(id[:])
	}
	spki, err := x509.MarshalPKIXPublicKey(d.public)
	if err != nil {
		return nil, err
	}
	jkt, err := capability.JKT(d.public)
	if err != nil {
		return nil, err
	}
	r.Key = provenance.Key{Algorithm: "ES256", Curve: "1.2.840.10045.3.1.7", SPKISHA256: sha256.Sum256(spki), JWKThumbprint: jkt.String(), NotBefore: r.IssuedAt, NotAfter: r.ExpiresAt}
	h := &hashing{}
	d.token(r, f, h)
	f.Ceremony.into(r, h)
	d.module(r, f.Module, h)
	f.Attestation.into(r, h)
	f.Application.into(r, h)
	return r, h.err
}

func fresh() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return hex.EncodeToString(id[:])
}

func (d drafting) token(r *provenance.Record, f facts, h *hashing) {
	o := d.observed
	r.Token = provenance.Token{Provider: f.Provider, Manufacturer: o.Token.Manufacturer, Model: o.Token.Model, Serials: append([]string{o.Token.Serial}, f.Serials...), Label: o.Token.Label,
		Hardware: o.Token.HardwareVersion, Firmware: o.Token.FirmwareVersion, Cryptoki: o.Library.Cryptoki, LibraryManufacturer: o.Library.Manufacturer, LibraryDescription: o.Library.Description,
		LibraryVersion: o.Library.Version, LibrarySHA256: append([]provenance.Hash{provenance.Hash(o.Library.FileSHA256)}, h.files(f.LibraryFiles)...), EntryPoint: o.Library.EntryPoint,
		KeyID: d.pair.Signing, NonceKeyID: d.pair.Nonce}
	for _, k := range o.Keys {
		switch id := hex.EncodeToString(k.ID); {
		case k.Class == keyhost.ClassPrivate && id == d.pair.Signing:
			r.Attributes = provenance.AttributesOf(k.Attributes)
		case k.Class == keyhost.ClassSecret && id == d.pair.Nonce:
			r.NonceAttributes = provenance.AttributesOf(k.Attributes)
		}
	}
}

func (c ceremonyFacts) into(r *provenance.Record, h *hashing) {
	r.Ceremony = provenance.Ceremony{Origin: c.Origin, Mechanism: r.Attributes.KeyGenMechanism, At: h.time("ceremony.at", c.At), ID: c.ID, Witnesses: append([]string{}, c.Witnesses...),
		TranscriptSHA256: h.file(c.TranscriptFile), StatementSHA256: h.file(c.StatementFile), SourceRecordID: c.SourceRecordID}
}

// module takes from the snapshot what stands there.
func (d drafting) module(r *provenance.Record, f moduleFacts, h *hashing) {
	m := provenance.Module{Certificate: f.Certificate, Versions: provenance.Versions{Hardware: f.Hardware, Firmware: f.Firmware, Software: f.Software}, TestedConfiguration: f.TestedConfiguration,
		ApprovedMode: f.ApprovedMode, ApprovedModeObserved: f.ApprovedModeObserved, SecurityPolicySHA256: h.file(f.SecurityPolicyFile), StatusCheckedAt: d.snapshot.TakenAt, SnapshotSHA256: d.digest}
	for _, c := range d.snapshot.Certificates {
		if c.Number == f.Certificate {
			m.Standard, m.Level, m.Vendor, m.Name, m.Caveat, m.Status, m.Sunset = c.Standard, c.Level, c.Vendor, c.Name, c.Caveat, c.Status, c.Sunset
		}
	}
	r.Module = m
}

func (a attestationFacts) into(r *provenance.Record, h *hashing) {
	r.Attestation = provenance.Attestation{Format: a.Format, BlobSHA256: h.file(a.File), ChainSHA256: []provenance.Hash{}, RootSHA256: h.text("attestation.root_sha256", a.RootSHA256), Verifier: a.Verifier, Result: a.Result}
	for _, text := range a.ChainSHA256 {
		r.Attestation.ChainSHA256 = append(r.Attestation.ChainSHA256, h.text("attestation.chain_sha256", text))
	}
}

func (a applicationFacts) into(r *provenance.Record, h *hashing) {
	if a.Build == "" {
		m, err := fips.Running()
		h.fail(err)
		a.Build = m.Build
	}
	r.Application = provenance.Application{Certificate: a.Certificate, Version: a.Version, Build: a.Build, ZipSHA256: h.text("application.zip_sha256", a.ZipSHA256), TestedConfiguration: a.TestedConfiguration,
		Go: a.Go, BinarySHA256: h.files(a.Binaries)}
}

// hashing reads what a draft names, and keeps the first error.
type hashing struct{ err error }

func (h *hashing) fail(err error) {
	if h.err == nil {
		h.err = err
	}
}

// file is a file's digest; of no file there is none.
func (h *hashing) file(path string) (out provenance.Hash) {
	if path == "" {
		return out
	}
	f, err := os.Open(path)
	if err != nil {
		h.fail(err)
		return out
	}
	defer f.Close() //nolint:errcheck // it is only read
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		h.fail(err)
	}
	sum.Sum(out[:0])
	return out
}

func (h *hashing) files(paths []string) []provenance.Hash {
	out := make([]provenance.Hash, len(paths))
	for i, path := range paths {
		out[i] = h.file(path)
	}
	return out
}

func (h *hashing) text(key, text string) (out provenance.Hash) {
	if err := out.UnmarshalText([]byte(text)); err != nil {
		h.fail(config.Wrong(key, "must be a SHA-256 digest in hexadecimal"))
	}
	return out
}

func (h *hashing) time(key, text string) provenance.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil && text != "" {
		h.fail(config.Wrong(key, "must be a time such as 2026-11-29T10:00:00Z"))
	}
	return provenance.At(t)
}

// looked is what officers saw at the CMVP.
type looked struct {
	TakenAt      string             `yaml:"taken_at"` // now, when empty
	Source       string             `yaml:"source"`
	Certificates []certificateFacts `yaml:"certificates"`
	Withdrawn    []withdrawalFacts  `yaml:"withdrawn"`
}

type certificateFacts struct {
	Number             int64    `yaml:"number"`
	Status             string   `yaml:"status"`
	Standard           string   `yaml:"standard"`
	Level              int64    `yaml:"overall_level"`
	Vendor             string   `yaml:"vendor"`
	Name               string   `yaml:"name"`
	Hardware           []string `yaml:"hardware"`
	Firmware           []string `yaml:"firmware"`
	Software           []string `yaml:"software"`
	Environments       []string `yaml:"environments"`
	Caveat             string   `yaml:"caveat"`
	SecurityPolicyFile string   `yaml:"security_policy_file"`
	Sunset             string   `yaml:"sunset"`
}

type withdrawalFacts struct {
	RecordID string `yaml:"record_id"`
	Why      string `yaml:"why"`
	At       string `yaml:"at"`
}

// Check implements config.Document; what is wrong in a snapshot is said of the snapshot.
func (l *looked) Check(func(string) string) error { return nil }

func (l *looked) snapshot(now time.Time) (*provenance.Snapshot, error) {
	h := &hashing{}
	s := &provenance.Snapshot{Schema: provenance.SnapshotSchema, TakenAt: provenance.At(now), Source: l.Source, Certificates: []provenance.Certificate{}, Withdrawn: []provenance.Withdrawal{}}
	if l.TakenAt != "" {
		s.TakenAt = h.time("taken_at", l.TakenAt)
	}
	all := func(texts []string) []string { return append([]string{}, texts...) }
	for _, c := range l.Certificates {
		s.Certificates = append(s.Certificates, provenance.Certificate{Number: c.Number, Status: c.Status, Standard: c.Standard, Level: c.Level, Vendor: c.Vendor, Name: c.Name, Hardware: all(c.Hardware),
			Firmware: all(c.Firmware), Software: all(c.Software), Environments: all(c.Environments), Caveat: c.Caveat, SecurityPolicySHA256: h.file(c.SecurityPolicyFile), Sunset: h.time("certificates.sunset", c.Sunset)})
	}
	for _, w := range l.Withdrawn {
		s.Withdrawn = append(s.Withdrawn, provenance.Withdrawal{RecordID: w.RecordID, Why: w.Why, At: h.time("withdrawn.at", w.At)})
	}
	return s, h.err
}

func (p program) snapshotDraft() *cobra.Command {
	var file, out string
	c := &cobra.Command{Use: "draft", Short: "Write a snapshot from what officers saw at the CMVP, for them to sign", Args: cobra.NoArgs}
	c.Flags().StringVar(&file, "facts", "", "YAML `FILE` of what they saw")
	c.Flags().StringVarP(&out, "out", "o", "", "`FILE` to write; it must not be there")
	_, _ = c.MarkFlagRequired("facts"), c.MarkFlagRequired("out") // both are defined above
	c.RunE = func(*cobra.Command, []string) error {
		var l looked
		if err := config.Load(file, &l, p.env); err != nil {
			return err
		}
		s, err := l.snapshot(time.Now())
		if err != nil {
			return err
		}
		document, err := s.Spell()
		if err != nil {
			return fmt.Errorf("no snapshot can be made of this: %w", err)
		}
		if err := writeEvidence(out, document.Bytes); err != nil {
			return err
		}
		return p.say("%s is the draft of a snapshot with %d certificates.\nOfficers sign it: `nightwarrant keys snapshot sign %s`.\n", out, len(s.Certificates), out)
	}
	return c
}
