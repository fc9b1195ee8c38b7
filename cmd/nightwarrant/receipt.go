package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// consent is everything that can act as a member, and what could.
func (p program) consent() *cobra.Command {
	list := listed[api.ConsentRecord]{command: "consent list", short: "List everything that can act as you, and what could within two years", path: plain(api.PathConsents),
		none: "Nothing can act as you.", head: "CONSENT\tTASK\tSTATE\tGIVEN\tUNTIL\tTITLE", row: func(c api.ConsentRecord) string {
			return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", c.Consent, c.Task, oneLine(c.State, 20), when(c.GivenAt), when(c.ExpiresAt), oneLine(c.Title, 80))
		}}
	return group("consent", "See what you have agreed to", list.make(p), about(p, "show CONSENT", "Show the receipt of a consent, and exactly what it allows", "a consent", api.PathConsents+"/", "", showReceipt))
}

func showReceipt(b *strings.Builder, r api.ConsentRecord) {
	fmt.Fprintf(b, "Receipt\n  consent  %s\n  task     %s, revision %d\n  title    %s\n  state    %s\n  given    %s\n  until    %s\n", r.Consent, r.Task, r.TaskRevision, oneLine(r.Title, 120), oneLine(r.State, 20), when(r.GivenAt), when(r.ExpiresAt))
	if r.EndedAt != nil {
		fmt.Fprintf(b, "  ended    %s\n", when(*r.EndedAt))
	}
	fmt.Fprintf(b, "  digest   %s\n", r.Digest)
	c, err := document.ParseConsent(r.Document)
	if err != nil {
		b.WriteString("\nWhat it allows is in a document that this program does not know.\n")
		return
	}
	if digest, err := c.Digest(); err != nil || digest.String() != r.Digest {
		b.WriteString("\nThis document has another digest than the receipt names: tell an operator.\n")
		return
	}
	fmt.Fprintf(b, "\nWho acts\n  %s, in its workload role %s, revision %d\n\nWhat it may do\n", oneLine(c.Client, 64), oneLine(c.WorkloadRole, 64), c.RoleRevision)
	for _, g := range c.Grants {
		showGrant(b, g, c.Dial)
	}
	showLimits(b, c)
	if r.State == "active" {
		fmt.Fprintf(b, "\nTo stop it: nightwarrant revoke %s\n", r.Task)
	}
}

// about makes a command that shows one thing by its reference.
func about[T any](p program, use, short, what, before, after string, show func(*strings.Builder, T)) *cobra.Command {
	return p.personal(use, short, cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) error {
		ref, err := reference(what, args[0])
		if err != nil {
			return err
		}
		return answer(ctx, p, who, asJSON, "GET", before+ref+after, nil, show)
	})
}
