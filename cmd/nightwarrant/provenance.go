package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/asn1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/keys/provenance"
)

func (p program) keysProvenance() *cobra.Command {
	return group("provenance", "Record where a token's key comes from, have officers sign it, and check it", p.provenanceDraft(), p.sign("record", parsedRecord), p.provenanceVerify(), p.provenanceShow())
}

func (p program) keysSnapshot() *cobra.Command {
	return group("snapshot", "Record what the CMVP says of modules, have officers sign it, and check it", p.snapshotDraft(), p.sign("snapshot", parsedSnapshot), p.snapshotVerify(), p.snapshotShow())
}

// maxEvidence bounds a file of evidence, in bytes.
const maxEvidence = 64 << 10

func readEvidence(key, file string) ([]byte, error) {
	text, err := config.ReadBounded(file, maxEvidence)
	if err != nil {
		return nil, config.Wrong(key, "%s", err)
	}
	return text, nil
}

func parsedRecord(text []byte) (provenance.Document, error) {
	_, d, err := provenance.ParseRecord(text)
	return d, err
}

func parsedSnapshot(text []byte) (provenance.Document, error) {
	_, d, err := provenance.ParseSnapshot(text)
	return d, err
}

// sign adds one officer's signature, made here with a key file or elsewhere.
func (p program) sign(what string, parse func([]byte) (provenance.Document, error)) *cobra.Command {
	var approvals, id, role, keyFile, signature, public string
	var message bool
	c := &cobra.Command{Use: "sign FILE", Short: "Add one officer's signature to those of a " + what + ", or write what another program has to sign", Args: cobra.ExactArgs(1)}
	f := c.Flags()
	f.BoolVar(&message, "message", false, "write the bytes to be signed with ECDSA and SHA-256, and nothing else")
	f.StringVar(&approvals, "approvals", "", "`FILE` of the signatures; made when it is not there")
	f.StringVar(&id, "officer", "", "the officer's `ID`, as the authority's file has it")
	f.StringVar(&role, "role", "", "the officer's `ROLE`, as the authority's file has it")
	f.StringVar(&keyFile, "key-file", "", "the officer's private key: a PEM `FILE` of mode 0600")
	f.StringVar(&signature, "signature", "", "instead: `FILE` of a signature that another program has made of the message, in DER or as r and s")
	f.StringVar(&public, "public-key", "", "with --signature: PEM `FILE` of the officer's public key")
	c.MarkFlagsMutuallyExclusive("message", "key-file", "signature")
	c.MarkFlagsOneRequired("message", "key-file", "signature")
	c.MarkFlagsRequiredTogether("signature", "public-key")
	c.RunE = func(_ *cobra.Command, args []string) error {
		text, err := readEvidence("FILE", args[0])
		if err != nil {
			return err
		}
		d, err := parse(text)
		if err != nil {
			return fmt.Errorf("%s is no %s that can be signed: %w", args[0], what, err)
		}
		if message {
			_, err := p.out.Write(d.Message())
			return err
		}
		if approvals == "" || id == "" || role == "" {
			return config.Wrong("--approvals, --officer and --role", "are missing")
		}
		by := provenance.Officer{ID: id, Role: role}
		var raw [64]byte
		if keyFile != "" {
			raw, err = signHere(d, keyFile, &by)
		} else {
			raw, err = signedElsewhere(signature, public, &by)
		}
		if err != nil {
			return err
		}
		return p.addApproval(d, approvals, by, raw)
	}
	return c
}

func signHere(d provenance.Document, keyFile string, by *provenance.Officer) ([64]byte, error) {
	private, err := config.ReadPrivateKey(keyFile)
	if err != nil {
		return [64]byte{}, config.Wrong("--key-file", "%s", err)
	}
	by.PublicKey = &private.PublicKey
	return provenance.Sign(d, private)
}

func signedElsewhere(file, public string, by *provenance.Officer) (raw [64]byte, err error) {
	if by.PublicKey, err = config.ReadPublicKey(public); err != nil {
		return raw, config.Wrong("--public-key", "%s", err)
	}
	text, err := readEvidence("--signature", file)
	if err != nil {
		return raw, err
	}
	var der struct{ R, S *big.Int }
	rest, err := asn1.Unmarshal(text, &der)
	switch {
	case len(text) == len(raw):
		copy(raw[:], text)
	case err != nil || len(rest) > 0 || der.R.Sign() < 1 || der.S.Sign() < 1 || der.R.BitLen() > 256 || der.S.BitLen() > 256:
		return raw, config.Wrong("--signature", "names a file that is no ECDSA signature of P-256")
	default:
		der.R.FillBytes(raw[:32])
		der.S.FillBytes(raw[32:])
	}
	return raw, nil
}

// addApproval exchanges the file of signatures as a whole.
func (p program) addApproval(d provenance.Document, file string, by provenance.Officer, raw [64]byte) error {
	all := provenance.NewApprovals(d)
	if _, err := os.Lstat(file); err == nil {
		text, err := readEvidence("--approvals", file)
		if err != nil {
			return err
		}
		if all, err = provenance.ParseApprovals(text); err != nil {
			return config.Wrong("--approvals", "names a file that holds no signatures")
		}
	}
	if err := all.Approve(d, by, raw); err != nil {
		return err
	}
	text, err := all.Spell()
	if err == nil {
		err = replaceFile(file, text)
	}
	if err != nil {
		return err
	}
	return p.say("%s has signed %s; %d signatures.\n", by.ID, d.Digest, len(all.Approvals))
}

// replaceFile puts a file in the place of another, whole or not at all.
func replaceFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is gone when it was renamed
	_, err = f.Write(text)
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil { //nolint:gosec // signatures are public
		return err
	}
	return os.Rename(f.Name(), path)
}

// writeEvidence writes a document where nothing is.
func writeEvidence(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // it is public
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// officerFlags say whose signatures count where no authority's file does.
func officerFlags(c *cobra.Command) func() (provenance.Policy, error) {
	var officers []string
	var threshold int
	c.Flags().StringArrayVar(&officers, "officer", nil, "`ID:ROLE:FILE` of an officer's public key; given several times")
	c.Flags().IntVar(&threshold, "threshold", provenance.LeastThreshold, "how many `OFFICERS` must have signed")
	return func() (provenance.Policy, error) {
		policy := provenance.Policy{Threshold: threshold, Profiles: profiles, Now: time.Now}
		for _, text := range officers {
			parts := strings.SplitN(text, ":", 3)
			if len(parts) != 3 {
				return policy, config.Wrong("--officer", "must be an id, a role and a file, with colons between them")
			}
			key, err := config.ReadPublicKey(parts[2])
			if err != nil {
				return policy, config.Wrong("--officer", "%s", err)
			}
			policy.Officers = append(policy.Officers, provenance.Officer{ID: parts[0], Role: parts[1], PublicKey: key})
		}
		if err := policy.Check(); err != nil {
			return policy, config.Wrong("--officer", "%s", err)
		}
		return policy, nil
	}
}

// provenanceVerify checks documents alone, or everything as a replica does.
func (p program) provenanceVerify() *cobra.Command {
	var file, cluster string
	var asJSON bool
	given := map[string]*string{}
	c := &cobra.Command{Use: "verify [FILE]", Short: "Check a signed record offline, or with --config everything that a replica checks", Args: cobra.MaximumNArgs(1)}
	for _, name := range []string{"approvals", "snapshot", "snapshot-approvals", "attestation", "jwks"} {
		given[name] = c.Flags().String(name, "", map[string]string{"approvals": "`FILE` of the record's signatures", "snapshot": "`FILE` of the signed snapshot of the CMVP", "snapshot-approvals": "`FILE` of its signatures",
			"attestation": "`FILE` of what the device has signed, where the record names it", "jwks": "`FILE` of the authority's published keys: the first one must be the recorded one"}[name])
	}
	policy := officerFlags(c)
	c.Flags().StringVar(&cluster, "cluster", "", "the `CLUSTER` that the record must be for, as `nightwarrant keys init` prints it")
	c.Flags().StringVar(&file, "config", "", "the authority's YAML `FILE`: the token is looked at and the database is asked, too")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		var r provenance.Report
		switch {
		case file != "" && len(args) == 0:
			var err error
			if r, err = p.verifyLive(cmd.Context(), file); err != nil {
				return err
			}
		case file == "" && len(args) == 1:
			believed, err := policy()
			if err != nil {
				return err
			}
			if !decodeHex(believed.ClusterID[:], cluster) {
				return config.Wrong("--cluster", "must be 16 bytes in hexadecimal")
			}
			e, err := documents(args[0], given)
			if err != nil {
				return err
			}
			r = believed.VerifyDocuments(cmd.Context(), e)
		default:
			return config.Wrong("FILE or --config", "must be given, and not both")
		}
		if err := p.print(asJSON, r, func(s *strings.Builder) { tellProvenance(s, r) }); err != nil {
			return err
		}
		if err := r.Err(); err != nil {
			return &exitError{exitFailed, err}
		}
		return nil
	}
	return c
}

// documents reads what is checked offline.
func documents(record string, given map[string]*string) (e provenance.Evidence, err error) {
	if e.Record, err = readEvidence("FILE", record); err != nil {
		return e, err
	}
	for name, into := range map[string]*[]byte{"approvals": &e.Approvals, "snapshot": &e.Snapshot, "snapshot-approvals": &e.SnapshotApprovals, "attestation": &e.Attestation} {
		if *given[name] == "" {
			continue // its absence is judged with the rest
		}
		if *into, err = readEvidence("--"+name, *given[name]); err != nil {
			return e, err
		}
	}
	if *given["jwks"] == "" {
		return e, nil
	}
	text, err := readEvidence("--jwks", *given["jwks"])
	if err == nil {
		e.PublicKey, err = firstKey(text)
	}
	return e, err
}

func tellProvenance(s *strings.Builder, r provenance.Report) {
	fmt.Fprintf(s, "Record %s, digest %s.\n", orNone(r.RecordID), r.Digest)
	table(s, "", r.Steps, "STEP\tWHAT\tVERDICT\tDETAIL", func(t provenance.Step) string {
		verdict := "good"
		if !t.OK {
			verdict = orNone(string(t.Code))
		}
		return fmt.Sprintf("%d\t%s\t%s\t%s", t.Number, t.Name, verdict, oneLine(t.Detail, 300))
	})
	fmt.Fprintf(s, "Evidence of the classes: %s.\n", orNone(strings.Join(r.EvidenceClasses, ", ")))
	for _, w := range r.Warnings {
		fmt.Fprintf(s, "Soon: %s.\n", w)
	}
	switch {
	case r.Accepted():
		fmt.Fprintf(s, "Everything is good until %s.\n", r.GoodUntil.Format(time.RFC3339))
	case r.Good():
		s.WriteString("The documents are good. No token was looked at: what they say of it was not tried here.\n")
	default:
		fmt.Fprintf(s, "REFUSED %s\n", r.Refusal)
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func decodeHex(dst []byte, text string) bool {
	b, err := hex.DecodeString(text)
	return err == nil && len(b) == len(dst) && copy(dst, b) == len(dst)
}

func (p program) snapshotVerify() *cobra.Command {
	var approvals string
	var asJSON bool
	c := &cobra.Command{Use: "verify FILE", Short: "Check a signed snapshot offline", Args: cobra.ExactArgs(1)}
	policy := officerFlags(c)
	c.Flags().StringVar(&approvals, "approvals", "", "`FILE` of its signatures")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	_ = c.MarkFlagRequired("approvals")
	c.RunE = func(_ *cobra.Command, args []string) error {
		believed, err := policy()
		if err != nil {
			return err
		}
		text, err := readEvidence("FILE", args[0])
		if err != nil {
			return err
		}
		signatures, err := readEvidence("--approvals", approvals)
		if err != nil {
			return err
		}
		refusal := believed.VerifySnapshot(text, signatures)
		err = p.print(asJSON, map[string]any{"refusal": refusal}, func(s *strings.Builder) {
			if refusal == nil {
				s.WriteString("The snapshot is signed, and fresh.\n")
			}
		})
		if err == nil && refusal != nil {
			err = &exitError{exitFailed, refusal}
		}
		return err
	}
	return c
}

func (p program) provenanceShow() *cobra.Command {
	return &cobra.Command{Use: "show FILE", Short: "Print a record for people; its signatures are not checked", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		text, err := readEvidence("FILE", args[0])
		if err != nil {
			return err
		}
		r, d, err := provenance.ParseRecord(text)
		if err != nil {
			return fmt.Errorf("%s is no record: %w", args[0], err)
		}
		return p.print(false, nil, func(s *strings.Builder) { tellRecord(s, r, d) })
	}}
}

func tellRecord(s *strings.Builder, r *provenance.Record, d provenance.Document) {
	c, m, t := r.Ceremony, r.Module, r.Token
	rows := [][2]string{
		{"record", r.RecordID}, {"digest", d.Digest.String()}, {"cluster", r.ClusterID}, {"purpose", r.Purpose}, {"in force", inForceFor(r.IssuedAt, r.ExpiresAt)}, {"supersedes", r.Supersedes},
		{"key", r.Key.Algorithm + " " + r.Key.JWKThumbprint}, {"key in force", inForceFor(r.Key.NotBefore, r.Key.NotAfter)},
		{"origin", c.Origin + " on " + c.At.Format(time.DateOnly)}, {"ceremony", c.ID}, {"witnesses", strings.Join(c.Witnesses, ", ")}, {"transcript", c.TranscriptSHA256.String()}, {"statement", c.StatementSHA256.String()},
		{"module", fmt.Sprintf("%s %s, CMVP %d, %s level %d, %s, sunset %s", m.Vendor, m.Name, m.Certificate, m.Standard, m.Level, m.Status, m.Sunset.Format(time.DateOnly))},
		{"versions", strings.Join(slices.DeleteFunc([]string{m.Versions.Hardware, m.Versions.Firmware, m.Versions.Software}, func(v string) bool { return v == "" }), ", ")},
		{"environment", m.TestedConfiguration}, {"approved mode", m.ApprovedMode + ": " + m.ApprovedModeObserved}, {"caveat", m.Caveat},
		{"provider", t.Provider}, {"token", fmt.Sprintf("%s %s, %s, serial %s", t.Manufacturer, t.Model, t.Label, strings.Join(t.Serials, ", "))}, {"library", t.LibraryDescription + " " + t.LibraryVersion + ", " + t.EntryPoint},
		{"attestation", r.Attestation.Format}, {"program", fmt.Sprintf("%s, CMVP %d", r.Application.Build, r.Application.Certificate)},
	}
	for _, row := range rows {
		fmt.Fprintf(s, "%-14s %s\n", row[0], orNone(row[1]))
	}
	s.WriteString("This is what the file says. Whether it was signed, `nightwarrant keys provenance verify` tells.\n")
}

func inForceFor(from, to provenance.Time) string {
	return from.Format(time.RFC3339) + " to " + to.Format(time.RFC3339)
}

func (p program) snapshotShow() *cobra.Command {
	return &cobra.Command{Use: "show FILE", Short: "Print a snapshot for people; its signatures are not checked", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		text, err := readEvidence("FILE", args[0])
		if err != nil {
			return err
		}
		snapshot, d, err := provenance.ParseSnapshot(text)
		if err != nil {
			return fmt.Errorf("%s is no snapshot: %w", args[0], err)
		}
		return p.print(false, nil, func(s *strings.Builder) {
			fmt.Fprintf(s, "Taken on %s from %s, digest %s.\n", snapshot.TakenAt.Format(time.RFC3339), snapshot.Source, d.Digest)
			table(s, "It names no certificate.", snapshot.Certificates, "CERTIFICATE\tSTATUS\tSTANDARD\tMODULE\tSUNSET", func(c provenance.Certificate) string {
				return fmt.Sprintf("%d\t%s\t%s\t%s %s\t%s", c.Number, c.Status, c.Standard, c.Vendor, c.Name, c.Sunset.Format(time.DateOnly))
			})
			for _, w := range snapshot.Withdrawn {
				fmt.Fprintf(s, "Record %s was %s on %s.\n", w.RecordID, w.Why, w.At.Format(time.DateOnly))
			}
			s.WriteString("This is what the file says. Whether it was signed, `nightwarrant keys snapshot verify` tells.\n")
		})
	}}
}

// firstKey is the key that a published set begins with: the one that signs.
func firstKey(text []byte) (*ecdsa.PublicKey, error) {
	var set jose.JSONWebKeySet
	if json.Unmarshal(text, &set) == nil && len(set.Keys) > 0 {
		if key, is := set.Keys[0].Key.(*ecdsa.PublicKey); is && key.Curve == elliptic.P256() {
			return key, nil
		}
	}
	return nil, config.Wrong("--jwks", "names a file that begins with no key of P-256")
}

func provenanceFlag(c *cobra.Command) *string {
	return c.Flags().String("provenance", "", "signed record `FILE` of the key host's new key: the bundle is bound to it, and made for its cluster")
}

// recordedBy is a host whose new key a record is about.
func recordedBy(host keys.Host, file string) (keys.Host, error) {
	if file == "" {
		return host, nil
	}
	text, err := readEvidence("--provenance", file)
	if err != nil {
		return nil, err
	}
	r, d, err := provenance.ParseRecord(text)
	v := keys.Vouched{Host: host}
	switch {
	case err != nil:
		return nil, config.Wrong("--provenance", "names a file that is no record: %s", err)
	case host == nil:
		return nil, config.Wrong("--provenance", "needs --keyhost: a record is of a key that lies in a token")
	case !decodeHex(v.ClusterID[:], r.ClusterID):
		return nil, config.Wrong("--provenance", "names a record for no cluster")
	}
	v.KID, v.Digest = r.Key.JWKThumbprint, d.Digest
	return v, nil
}
