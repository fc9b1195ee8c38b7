package main

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/receipt"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/issuerkeys"
)

func (p program) runReceipt() *cobra.Command {
	return group("receipt", "Get the signed run receipt of a run, and check one without the service", p.receiptGet(), p.receiptVerify())
}

func (p program) receiptGet() *cobra.Command {
	var auditor bool
	c := p.personal("get RUN", "Print the run receipt of a run that has ended", cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) error {
		ref, err := reference("a run", args[0])
		if err != nil {
			return err
		}
		path := api.PathRuns + "/" + ref + "/receipt"
		if auditor {
			path = api.PathAudit + "/runs/" + ref + "/receipt"
		}
		return answer(ctx, p, who, asJSON, "GET", path, nil, func(b *strings.Builder, r api.RunReceipt) { b.WriteString(r.Receipt + "\n") })
	})
	c.Flags().BoolVar(&auditor, "auditor", false, "of anybody's run, for operators and auditors")
	return c
}

// maxRunReceipt bounds a run receipt's file, in bytes.
const maxRunReceipt = 8 << 20

func (p program) receiptVerify() *cobra.Command {
	var jwks string
	var asJSON bool
	c := &cobra.Command{Use: "verify FILE", Short: "Check a run receipt with the authority's keys and the audit log's, which must not come with it", Args: cobra.ExactArgs(1)}
	log := keyFlag(c, "audit-key")
	c.Flags().StringVar(&jwks, "jwks", "", "`FILE` with the authority's keys, as it publishes them")
	_ = c.MarkFlagRequired("jwks")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(_ *cobra.Command, args []string) error {
		v, err := log()
		if err != nil {
			return err
		}
		text, err := readBounded(jwks, maxProof)
		if err != nil {
			return err
		}
		keys, err := issuerkeys.Parse(text)
		if err != nil {
			return config.Wrong("--jwks", "names a file that does not hold the authority's keys")
		}
		signed, err := readBounded(args[0], maxRunReceipt)
		if err != nil {
			return err
		}
		r, err := receipt.Verify(strings.TrimSpace(string(signed)), keySet(keys), v)
		if err != nil {
			return fmt.Errorf("the run receipt is not good: %w", err)
		}
		return p.print(asJSON, r, func(s *strings.Builder) { tellReceipt(s, r) })
	}
	return c
}

// keySet are keys that were published, as the check of a signature asks for them.
type keySet map[string]issuerkeys.Key

func (s keySet) Key(kid string) (*ecdsa.PublicKey, int64, bool) {
	k, ok := s[kid]
	return k.Public, k.Generation, ok
}

// readBounded reads a file of at most so many bytes.
func readBounded(file string, most int64) ([]byte, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than what it should hold", file)
	}
	return text, errors.Join(err, in.Close())
}

func tellReceipt(s *strings.Builder, r *receipt.Receipt) {
	fmt.Fprintf(s, "Run %s of task %s, revision %d: %s.\n", r.Run.Reference, r.Run.Task, r.Run.TaskRevision, oneLine(r.Settlement.State, 40))
	fmt.Fprintf(s, "It rests on consent %s (%s).\n", r.Consent.Reference, r.Consent.SHA256)
	for _, c := range r.Claims {
		fmt.Fprintf(s, "Claimed with fence %d by the key %s, at readiness epoch %d.%d.\n", c.Fence, c.Thumbprint, c.Incarnation, c.Epoch)
	}
	for _, e := range r.Effects {
		fmt.Fprintf(s, "Effect %s: %s", e.Reference, oneLine(e.Outcome, 40))
		if e.Spent > 0 {
			fmt.Fprintf(s, ", %s", cost(e.Spent, e.Currency))
		}
		s.WriteString(".\n")
	}
	fmt.Fprintf(s, "%d audit records are in the signed log. Nothing is wrong.\n", len(r.Records))
}
