package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	sumnote "golang.org/x/mod/sumdb/note"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/keys"
)

// exportTimeout bounds an export: of a long log it takes minutes.
const exportTimeout = time.Hour

func (p program) audit() *cobra.Command {
	return group("audit", "Export the audit log, and check an export without the service", p.auditKey(), p.auditExport(), p.auditVerify(), p.auditProve(), p.auditWitness(), p.auditWitnessKey(), p.auditResume(),
		p.auditRedact(), p.auditKeep(), p.auditPrune())
}

// registeredKey is the key of the log in a database.
func registeredKey(ctx context.Context, pool *pgxpool.Pool) (keys.Identity, error) {
	id, found, err := authority.ReadIdentity(ctx, pool)
	if err == nil && !found {
		err = &config.Error{Sentence: "no key bundle is registered in this database: run `nightwarrant keys register`"}
	}
	return id, err
}

func (p program) auditKey() *cobra.Command {
	c := &cobra.Command{Use: "key", Short: "Print the key that checkpoints are checked with; hand it on by a way of its own", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			id, err := registeredKey(ctx, pool)
			if err != nil {
				return err
			}
			text, err := sumnote.NewEd25519VerifierKey(keys.AuditOrigin(id.ClusterID), id.AuditKey[:])
			if err != nil {
				return err
			}
			return p.say("%s\n", text)
		})
	}
	return c
}

func (p program) auditExport() *cobra.Command {
	var file string
	var fromCut bool
	c := &cobra.Command{Use: "export", Short: "Write the whole audit log to a file", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	c.Flags().StringVarP(&file, "out", "o", "", "`FILE` to write; it must not be there")
	_ = c.MarkFlagRequired("out")
	c.Flags().BoolVar(&fromCut, "from-cut", false, "without what was pruned, of which only the edge of the tree is left")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return d.within(cmd.Context(), exportTimeout, func(ctx context.Context, pool *pgxpool.Pool) error {
			id, err := registeredKey(ctx, pool)
			if err != nil {
				return err
			}
			records, err := exportTo(ctx, pool, id.AuditVerifier(), file, fromCut)
			if err != nil {
				return fmt.Errorf("%s is not whole: %w", file, err)
			}
			return p.say("%d records are in %s.\n", records, file)
		})
	}
	return c
}

func exportTo(ctx context.Context, pool *pgxpool.Pool, key sumnote.Verifier, file string, fromCut bool) (records int64, err error) {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buffer := bufio.NewWriterSize(out, 1<<20)
	export := sequencer.Export
	if fromCut {
		export = sequencer.ExportFromCut
	}
	if records, err = export(ctx, pool, key, buffer); err != nil {
		return records, err
	}
	return records, errors.Join(buffer.Flush(), out.Sync())
}

// keyFlag takes the log's key, which must not come from the log.
func keyFlag(c *cobra.Command, name string) func() (sumnote.Verifier, error) {
	var text string
	c.Flags().StringVar(&text, name, "", "the log's `KEY`, as `nightwarrant audit key` prints it")
	_ = c.MarkFlagRequired(name)
	return func() (sumnote.Verifier, error) {
		v, err := sumnote.NewVerifier(text)
		if err != nil {
			return nil, config.Wrong("--"+name, "is not the key of a log")
		}
		return v, nil
	}
}

func readBundle(file string, visit func(audit.Record) error) (b *audit.Bundle, err error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	return audit.ReadBundle(in, visit)
}

func (p program) auditVerify() *cobra.Command {
	var anchors, witnesses []string
	var proof bool
	var asJSON bool
	c := &cobra.Command{Use: "verify FILE", Short: "Check an exported log, or a proof, with the log's key and what anchors have kept", Args: cobra.ExactArgs(1)}
	key := keyFlag(c, "key")
	c.Flags().StringArrayVar(&anchors, "anchors", nil, "`FILE` of an anchor; may be given several times. Without one, a log that was cut short looks whole")
	c.Flags().StringArrayVar(&witnesses, "witness-key", nil, "`KEY` of a witness that must have signed the log; may be given several times")
	c.Flags().BoolVar(&proof, "proof", false, "FILE is a proof, as `nightwarrant audit prove` writes it")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.MarkFlagsMutuallyExclusive("anchors", "proof")
	c.MarkFlagsMutuallyExclusive("witness-key", "proof")
	c.RunE = func(_ *cobra.Command, args []string) error {
		v, err := key()
		if err != nil {
			return err
		}
		if proof {
			return p.verifyProof(args[0], v)
		}
		by, err := witnessKeys(witnesses)
		if err != nil {
			return err
		}
		kept, err := readAnchors(anchors)
		if err != nil {
			return err
		}
		b, err := readBundle(args[0], nil)
		if err != nil {
			return err
		}
		report, err := audit.Verify(b, v, kept, by...)
		if err != nil {
			return err
		}
		if err := p.print(asJSON, report, func(s *strings.Builder) { tellReport(s, report) }); err != nil {
			return err
		}
		switch {
		case len(report.Findings) > 0:
			return &exitError{exitFailed, fmt.Errorf("the log was tampered with: %s", report.Findings[0].Tamper)}
		case report.ExportAgain:
			return &exitError{exitFailed, errors.New("an anchor is younger than the bundle, and knows more: export again")}
		}
		return nil
	}
	return c
}

func witnessKeys(texts []string) (all []audit.Witness, err error) {
	for _, text := range texts {
		w, err := audit.NewWitness(text)
		if err != nil {
			return nil, config.Wrong("--witness-key", "is not the key of a witness")
		}
		all = append(all, w)
	}
	return all, nil
}

func tellReport(s *strings.Builder, r *audit.Report) {
	fmt.Fprintf(s, "%s: %d records, %d checkpoints, %d anchors.\n", r.Origin, r.Records, r.Checkpoints, r.Anchors)
	if r.Covered > 0 {
		fmt.Fprintf(s, "%d records are covered by the newest good checkpoint, of %s.\n", r.Covered, r.At.Format(time.RFC3339))
	}
	if more := r.Records - r.Covered; more > 0 && r.OK() {
		fmt.Fprintf(s, "%d records after it are the database's word alone.\n", more)
	}
	if r.Gone > 0 {
		fmt.Fprintf(s, "%d records have lost their bodies by retention.\n", r.Gone)
	}
	if r.From > 0 {
		fmt.Fprintf(s, "The %d records before were pruned. What is left of them is what was signed.\n", r.From)
	}
	if r.Disclosed+r.Redacted > 0 {
		fmt.Fprintf(s, "%d personal fields are disclosed, and are what their records commit to; %d were redacted.\n", r.Disclosed, r.Redacted)
	}
	if r.Anchors == 0 {
		s.WriteString("No anchor was given: a log that was cut short together with its checkpoints would look whole.\n")
	}
	for _, w := range r.Witnessed {
		fmt.Fprintf(s, "%s has signed %d records, last at %s.\n", w.Witness, w.Records, w.At.Format(time.RFC3339))
	}
	for _, d := range r.Resumed {
		fmt.Fprintf(s, "RESUMED by an operator's decision, incarnation %d: %d records were signed before, and the log goes on from %d.\n", d.Incarnation, d.Lost, d.From)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(s, "TAMPERED %s, records %d to %d: %s.\n", f.Tamper, f.From, f.Through, f.Why)
	}
	if r.ExportAgain {
		s.WriteString("An anchor is younger than this bundle, and knows more. Export again: if it knows more then too, records were lost.\n")
	}
	if r.OK() {
		s.WriteString("Nothing is wrong.\n")
	}
}

func readAnchors(files []string) (all [][]byte, err error) {
	for _, file := range files {
		in, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		kept, err := audit.ReadAnchors(in)
		if err := errors.Join(err, in.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, kept...)
	}
	return all, nil
}

// maxProof bounds a proof's file, in bytes.
const maxProof = 256 << 10

func (p program) verifyProof(file string, key sumnote.Verifier) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(in, maxProof))
	if err := errors.Join(err, in.Close()); err != nil {
		return err
	}
	var proof audit.Proof
	if json.Unmarshal(text, &proof) != nil {
		return errors.New("this is not a proof")
	}
	if err := proof.Check(key); err != nil {
		return err
	}
	return p.say("Record %d is in the log.\n", proof.Leaf)
}

func (p program) auditProve() *cobra.Command {
	var leaf int64
	c := &cobra.Command{Use: "prove FILE", Short: "Write the proof that a record of an exported log is in it", Args: cobra.ExactArgs(1)}
	key := keyFlag(c, "key")
	c.Flags().Int64Var(&leaf, "record", -1, "the record's `NUMBER` in the log")
	_ = c.MarkFlagRequired("record")
	c.RunE = func(_ *cobra.Command, args []string) error {
		v, err := key()
		if err != nil {
			return err
		}
		var body string
		b, err := readBundle(args[0], func(r audit.Record) error {
			if r.Leaf == leaf {
				body = string(r.Body)
			}
			return nil
		})
		if err != nil {
			return err
		}
		proof, err := b.Prove(leaf, v)
		if err != nil {
			return err
		}
		proof.Body = body
		return p.print(true, proof, nil)
	}
	return c
}

func (p program) auditResume() *cobra.Command {
	var anchors []string
	c := &cobra.Command{Use: "resume", Short: "Decide, on record, that the log goes on from a restored database that lacks records which were signed", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	c.Flags().StringArrayVar(&anchors, "anchors", nil, "`FILE` of what an anchor or a witness has; give all of them")
	_ = c.MarkFlagRequired("anchors")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		kept, err := readAnchors(anchors)
		if err != nil {
			return err
		}
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			id, err := registeredKey(ctx, pool)
			if err != nil {
				return err
			}
			lost, err := audit.Longest(kept, id.AuditVerifier())
			if err != nil {
				return err
			}
			incarnation, from, err := sequencer.Resume(ctx, pool, lost)
			if err != nil {
				return err
			}
			return p.say("Incarnation %d goes on from %d records. The checkpoint of %d records that was signed at %s is given up, and every checkpoint says so.\n",
				incarnation, from, lost.Size, lost.At.Format(time.RFC3339))
		})
	}
	return c
}
