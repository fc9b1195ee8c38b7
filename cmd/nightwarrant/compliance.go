package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	sumnote "golang.org/x/mod/sumdb/note"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/docs"
	"github.com/nightwarrant/nightwarrant/internal/compliance"
	"github.com/nightwarrant/nightwarrant/internal/config"
)

// complianceFlags name the files of evidence and of the report.
type complianceFlags struct {
	provenance, tripwire, release string
	bundle, auditKey              string
	anchors, witnesses            []string
	html, oscal                   string
	fips                          bool
}

func (p program) compliance() *cobra.Command {
	return group("compliance", "Evidence for auditors", p.complianceReport())
}

func (p program) complianceReport() *cobra.Command {
	var f complianceFlags
	c := p.personal("report", "Report what an auditor can see of a deployment, and what is open", cobra.NoArgs, func(ctx context.Context, who *person, asJSON bool, _ []string) error {
		return p.comply(ctx, who, f, asJSON)
	})
	c.Flags().BoolVar(&f.fips, "fips", false, "hold everything against the FIPS profile")
	c.Flags().StringVar(&f.provenance, "provenance", "", "`FILE` that `nightwarrant keys provenance verify --json` wrote")
	c.Flags().StringVar(&f.tripwire, "tripwire", "", "`FILE` that `nightwarrant tripwire --json` wrote")
	c.Flags().StringVar(&f.release, "release", "", "`FILE` with the SHA-256 digests of released executables, as sha256sum writes it")
	c.Flags().StringVar(&f.bundle, "bundle", "", "`FILE` that `nightwarrant audit export` wrote")
	c.Flags().StringVar(&f.auditKey, "audit-key", "", "the log's `KEY`, as `nightwarrant audit key` prints it; needed with --bundle")
	c.Flags().StringArrayVar(&f.anchors, "anchors", nil, "`FILE` of an anchor; may be given several times")
	c.Flags().StringArrayVar(&f.witnesses, "witness-key", nil, "`KEY` of a witness that must have signed the log; may be given several times")
	c.Flags().StringVar(&f.html, "html", "", "`FILE` to write the printable page to; it must not be there")
	c.Flags().StringVar(&f.oscal, "oscal", "", "`FILE` to write NIST OSCAL assessment results to; it must not be there. --json prints the same")
	c.MarkFlagsRequiredTogether("bundle", "audit-key")
	return c
}

// comply writes the report and fails where something is open.
func (p program) comply(ctx context.Context, who *person, f complianceFlags, asJSON bool) error {
	key, by, err := f.logKeys()
	if err != nil {
		return err
	}
	b := thisBuild()
	e := compliance.Evidence{Authority: who.origin, Tool: b.Version + ", revision " + b.revision(), FIPS: f.fips, Start: time.Now(), Model: compliance.ReadModel(docs.ThreatModel)}
	who.attest(ctx, &e)
	files := f.read(&e, key, by)
	e.End = time.Now()
	r := compliance.New(e)
	oscal, err := r.OSCAL(files...)
	if err != nil {
		return err
	}
	if err := errors.Join(create(f.oscal, func(w io.Writer) error { _, err := w.Write(append(oscal, '\n')); return err }), create(f.html, r.HTML)); err != nil {
		return err
	}
	if err := p.print(asJSON, json.RawMessage(oscal), func(s *strings.Builder) { tellCompliance(s, r) }); err != nil {
		return err
	}
	if n := len(r.Open()); n > 0 {
		return &exitError{exitFailed, fmt.Errorf("%d of %d lines are open", n, len(r.Lines))}
	}
	return nil
}

func tellCompliance(s *strings.Builder, r compliance.Report) {
	for _, l := range r.Open() {
		fmt.Fprintf(s, "%s: %s, %s: %s\n", l.Section, l.Subject, l.State, l.Found)
	}
	fmt.Fprintf(s, "%d lines, %d of them open.\n", len(r.Lines), len(r.Open()))
}

// create writes a new file, if it has a name.
func create(name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(write(out), out.Sync(), out.Close())
}

// attest asks the authority. An answer that does not come is part of the evidence.
func (w *person) attest(ctx context.Context, e *compliance.Evidence) {
	e.Deployment = ask(api.PathDeployment, func() (d api.Deployment, err error) {
		return d, w.json(ctx, http.MethodGet, api.PathDeployment, nil, &d)
	})
	e.Board = ask(api.PathBoard, func() (b api.Board, err error) { return b, w.json(ctx, http.MethodGet, api.PathBoard, nil, &b) })
	e.KeySet = ask(api.PathJWKS, func() ([]string, error) { return w.keySet(ctx) })
	profiles := api.PathRegistry + "/" + document.KindProfile
	e.Profiles = ask(profiles, func() ([]api.Entry, error) { return everyPage[api.Entry](ctx, w, profiles) })
	e.Requirement = ask(api.PathRequirements, func() ([]string, error) { return w.requiredProfiles(ctx) })
}

func ask[T any](path string, call func() (T, error)) compliance.Given[T] {
	g := compliance.Given[T]{Source: path, At: time.Now()}
	var err error
	if g.Body, err = call(); err != nil {
		g.Wrong = err.Error()
	}
	return g
}

// pagesMost bounds how many pages of a list are read.
const pagesMost = 50

func everyPage[T any](ctx context.Context, who *person, path string) (all []T, err error) {
	cursor := ""
	for range pagesMost {
		var page api.Page[T]
		if err := who.json(ctx, http.MethodGet, with(path, "cursor", cursor), nil, &page); err != nil {
			return nil, err
		}
		if all, cursor = append(all, page.Items...), page.Next; cursor == "" {
			return all, nil
		}
	}
	return nil, fmt.Errorf("it has more than %d pages", pagesMost)
}

// keySet is read as everybody reads it.
func (w *person) keySet(ctx context.Context) (ids []string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.origin+api.PathJWKS, nil)
	if err != nil {
		return nil, err
	}
	var set struct {
		Keys []struct {
			ID string `json:"kid"`
		} `json:"keys"`
	}
	if _, err := exchange(w.http, r, &set); err != nil {
		return nil, err
	}
	for _, k := range set.Keys {
		ids = append(ids, k.ID)
	}
	return ids, nil
}

// requiredProfiles are those that the requirement in force names.
func (w *person) requiredProfiles(ctx context.Context) ([]string, error) {
	all, err := everyPage[api.Requirement](ctx, w, api.PathRequirements)
	if err != nil {
		return nil, err
	}
	n := slices.IndexFunc(all, func(q api.Requirement) bool { return q.InForce })
	if n < 0 {
		return nil, errors.New("no requirement is in force")
	}
	var d document.Requirement
	if len(all[n].Document) > 0 && json.Unmarshal(all[n].Document, &d) != nil {
		return nil, errors.New("the requirement in force cannot be read")
	}
	return d.Profiles, nil
}

// logKeys are what an exported log is checked with.
func (f complianceFlags) logKeys() (key sumnote.Verifier, by []audit.Witness, err error) {
	if f.bundle == "" {
		return nil, nil, nil
	}
	if key, err = sumnote.NewVerifier(f.auditKey); err != nil {
		return nil, nil, config.Wrong("--audit-key", "is not the key of a log")
	}
	by, err = witnessKeys(f.witnesses)
	return key, by, err
}

// read takes in the files that were given. What is wrong with one is part of the evidence.
func (f complianceFlags) read(e *compliance.Evidence, key sumnote.Verifier, by []audit.Witness) (files []compliance.File) {
	e.Provenance, files = evidenceOf(f.provenance, compliance.ReadProvenance, files)
	e.SelfAudit, files = evidenceOf(f.tripwire, compliance.ReadSelfAudit, files)
	e.Release, files = evidenceOf(f.release, compliance.ReadRelease, files)
	if f.bundle == "" {
		return files
	}
	e.Log = compliance.Given[compliance.Log]{Source: filepath.Base(f.bundle), At: time.Now()}
	digest, err := digestOf(f.bundle)
	if err == nil {
		e.Log.Digest = digest
		files = append(files, compliance.File{Name: e.Log.Source, Digest: digest})
		e.Log.Body, err = f.checkLog(key, by)
	}
	if err != nil {
		e.Log.Wrong = err.Error()
	}
	return files
}

func evidenceOf[T any](path string, parse func([]byte) (T, error), files []compliance.File) (g compliance.Given[T], all []compliance.File) {
	if path == "" {
		return g, files
	}
	name := filepath.Base(path)
	text, err := readAtMost(path, compliance.MaxFile)
	if err != nil {
		return compliance.Given[T]{Source: name, At: time.Now(), Wrong: err.Error()}, files
	}
	g = compliance.Read(name, time.Now(), text, parse)
	return g, append(files, compliance.File{Name: name, Digest: g.Digest})
}

// readAtMost reads a file, and one byte more than most of one that is longer.
func readAtMost(path string, most int64) ([]byte, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	return text, errors.Join(err, in.Close())
}

func digestOf(path string) (sum [32]byte, err error) {
	in, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	_, err = io.Copy(h, in)
	h.Sum(sum[:0])
	return sum, errors.Join(err, in.Close())
}

func (f complianceFlags) checkLog(key sumnote.Verifier, by []audit.Witness) (l compliance.Log, err error) {
	kept, err := readAnchors(f.anchors)
	if err != nil {
		return l, err
	}
	b, err := readBundle(f.bundle, nil)
	if err != nil {
		return l, err
	}
	report, err := audit.Verify(b, key, kept, by...)
	if err != nil {
		return l, err
	}
	// A verifier's text is name+hash+key, whose first byte is the algorithm; it was parsed before.
	parts := strings.SplitN(f.auditKey, "+", 3)
	raw, err := base64.StdEncoding.DecodeString(parts[2])
	return compliance.Log{Report: *report, Key: base64.RawURLEncoding.EncodeToString(raw[1:])}, err
}
