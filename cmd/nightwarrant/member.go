package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// personal is a command by which a person calls the authority.
func (p program) personal(use, short string, args cobra.PositionalArgs, act func(ctx context.Context, who *person, asJSON bool, args []string) error) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: args}
	f := p.personFlags(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		who, err := f.person()
		if err != nil {
			return err
		}
		return act(cmd.Context(), who, f.asJSON, args)
	}
	return c
}

// answer makes one call and prints what came back.
func answer[T any](ctx context.Context, p program, who *person, asJSON bool, method, path string, in any, show func(*strings.Builder, T)) error {
	var out T
	if err := who.json(ctx, method, path, in, &out); err != nil {
		return err
	}
	return p.print(asJSON, out, func(b *strings.Builder) { show(b, out) })
}

// table prints rows in columns, whose cells are divided by tabs; none is said in words.
func table[T any](b *strings.Builder, none string, items []T, head string, row func(T) string) {
	if len(items) == 0 {
		b.WriteString(none + "\n")
		return
	}
	lines := []string{head}
	for _, i := range items {
		lines = append(lines, row(i))
	}
	t := tabwriter.NewWriter(b, 0, 4, 2, ' ', 0)
	_, _ = io.WriteString(t, strings.Join(lines, "\n")+"\n") // into memory
	_ = t.Flush()
}

func (p program) offer() *cobra.Command {
	return group("offer", "See what you are asked to consent to, and answer", p.offerList(), p.offerShow(), p.offerNarrow(), p.offerAccept(), p.offerDecline())
}

func (p program) offerList() *cobra.Command {
	return p.personal("list", "List your offers", cobra.NoArgs, func(ctx context.Context, who *person, asJSON bool, _ []string) error {
		return answer(ctx, p, who, asJSON, "GET", api.PathOffers, nil, func(b *strings.Builder, page api.Page[api.Offer]) {
			table(b, "Nobody asks you for anything.", page.Items, "OFFER\tSTATE\tOPEN UNTIL\tTITLE", func(o api.Offer) string {
				return fmt.Sprintf("%s\t%s\t%s\t%s", o.Offer, o.State, when(o.ExpiresAt), consentTitle(o.Document))
			})
		})
	})
}

func consentTitle(text []byte) string {
	c, err := document.ParseConsent(text)
	if err != nil {
		return "(a document that this program does not know)"
	}
	return c.Title
}

func (p program) offerShow() *cobra.Command {
	return p.personal("show OFFER", "Show exactly what an offer asks for", cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) error {
		ref, err := reference("an offer", args[0])
		if err != nil {
			return err
		}
		var o api.Offer
		if err := who.json(ctx, "GET", api.PathOffers+"/"+ref, nil, &o); err != nil {
			return err
		}
		c, err := checkedConsent(o)
		if err != nil {
			return err
		}
		d, err := askReadiness(ctx, who.origin)
		if err != nil {
			d = api.Decision{Reasons: []string{"unknown, its readiness could not be asked"}}
		}
		return p.print(asJSON, o, func(b *strings.Builder) { showOffer(b, o, c, d, time.Now()) })
	})
}

// answering is accept and decline: both carry the digest of what was shown.
func (p program) answering(use, what, short string, act func(ctx context.Context, who *person, asJSON bool, ref string, in api.Answer) error) *cobra.Command {
	var digest string
	_, noun, _ := strings.Cut(what, " ")
	c := p.personal(use+" "+strings.ToUpper(noun), short, cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) error {
		ref, err := reference(what, args[0])
		if err != nil {
			return err
		}
		return act(ctx, who, asJSON, ref, api.Answer{Digest: digest})
	})
	c.Flags().StringVar(&digest, "digest", "", "the `DIGEST` that `"+noun+" show` printed")
	_ = c.MarkFlagRequired("digest") // the flag is defined above
	return c
}

func (p program) offerAccept() *cobra.Command {
	return p.answering("accept", "an offer", "Say yes to exactly the offer with this digest", func(ctx context.Context, who *person, asJSON bool, ref string, in api.Answer) error {
		return answer(ctx, p, who, asJSON, "POST", api.PathOffers+"/"+ref+"/consent", in, func(b *strings.Builder, c api.Consent) {
			fmt.Fprintf(b, "You have allowed this until %s.\n\nReceipt\n  consent  %s\n  task     %s\n  given    %s\n  digest   %s\n  epoch    %d\n\nTo stop it: nightwarrant task revoke %s\n",
				when(c.ExpiresAt), c.Consent, c.Task, when(c.GivenAt), c.Digest, c.ActivationEpoch, c.Task)
		})
	})
}

func (p program) offerDecline() *cobra.Command {
	return p.answering("decline", "an offer", "Say no to exactly the offer with this digest", func(ctx context.Context, who *person, asJSON bool, ref string, in api.Answer) error {
		return answer(ctx, p, who, asJSON, "POST", api.PathOffers+"/"+ref+"/decline", in, func(b *strings.Builder, _ struct{}) {
			b.WriteString("You have not allowed this. Nothing will run on it.\n")
		})
	})
}

var findings = []string{"happened", "did_not", "unknown"}

func (p program) finding() *cobra.Command {
	list := listed[api.AmbiguousEffect]{command: "finding list", short: "List effects of which nobody can prove whether they happened", path: plain(api.PathFindings), none: "There is nothing to find out.",
		head: "EFFECT\tADMITTED\tACTION\tRESOURCE\tGUARD\tFINDING", row: func(e api.AmbiguousEffect) string {
			return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", e.Effect, when(e.AdmittedAt), oneLine(e.Action, 64), oneLine(e.Resource, 80), oneLine(e.Guard, 64), findingOf(e))
		}}.make(p)
	show := p.personal("show EFFECT", "Show what is known of one of them: what was sent, when, and what answered", cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) error {
		var page api.Page[api.AmbiguousEffect]
		if err := who.json(ctx, "GET", api.PathFindings, nil, &page); err != nil {
			return err
		}
		i := slices.IndexFunc(page.Items, func(e api.AmbiguousEffect) bool { return e.Effect == args[0] })
		if i < 0 {
			return errors.New("there is no such effect among yours of which nobody can prove whether it happened")
		}
		return p.print(asJSON, page.Items[i], func(b *strings.Builder) { showEvidence(b, page.Items[i]) })
	})
	record := p.personal("record EFFECT happened|did_not|unknown", "Record what you have found out; nothing is done again", cobra.ExactArgs(2),
		func(ctx context.Context, who *person, asJSON bool, args []string) error {
			ref, err := reference("an effect", args[0])
			if err != nil {
				return err
			}
			if !slices.Contains(findings, args[1]) {
				return fmt.Errorf("a finding is one of %v", findings)
			}
			return answer(ctx, p, who, asJSON, "POST", api.PathFindings, api.Finding{Effect: ref, Finding: args[1]}, func(b *strings.Builder, _ api.Finding) {
				fmt.Fprintf(b, "Recorded for %s: %s.\n", ref, args[1])
			})
		})
	return group("finding", "See ambiguous effects, and record what you found", list, show, record)
}

// answered says in words what answered a guard.
var answered = map[string]string{
	api.AnsweredNothing: "nothing: the guard stopped before an answer came", api.AnsweredTimeout: "nothing in time", api.AnsweredConnection: "nothing: the connection broke",
	api.AnsweredMalformed: "something that cannot be read", api.AnsweredUnknown: "it is not known what",
}

func showEvidence(b *strings.Builder, e api.AmbiguousEffect) {
	fmt.Fprintf(b, "Nobody can prove whether this happened. It will not be done again by itself.\n\n  effect    %s\n  run       %s\n  task      %s\n  what      %s on %s at %s\n  admitted  %s\n",
		e.Effect, e.Run, e.Task, oneLine(e.Action, 64), oneLine(e.Resource, 255), oneLine(e.Guard, 64), when(e.AdmittedAt))
	switch {
	case e.Answered == "":
		b.WriteString("  sent      the guard has told nothing\n")
	case e.SentAt == nil:
		b.WriteString("  sent      nothing, as far as the guard knows\n")
	default:
		fmt.Fprintf(b, "  sent      %s, by the guard's clock\n", when(*e.SentAt))
	}
	switch text, known := answered[e.Answered]; {
	case known:
		fmt.Fprintf(b, "  answered  %s\n", text)
	case e.Answered == api.AnsweredStatus:
		fmt.Fprintf(b, "  answered  HTTP status %d\n", e.Status)
	}
	fmt.Fprintf(b, "  finding   %s\n", findingOf(e))
	if e.Sent != nil {
		fmt.Fprintf(b, "\nThe workload asked for exactly this:\n\n  %s\n", pretty(e.Sent, "(it cannot be shown)"))
	}
	if e.State != nil {
		fmt.Fprintf(b, "\nAfterwards the other side showed this (written by it):\n\n  %s\n", pretty(e.State, "(it cannot be shown)"))
	}
	fmt.Fprintf(b, "\nLook at the other side, then: nightwarrant finding record %s happened|did_not|unknown\n", e.Effect)
}

func findingOf(e api.AmbiguousEffect) string {
	switch {
	case e.Finding != "":
		return oneLine(e.Finding, 20)
	case e.Late != "":
		return "none yet; the guard says: " + oneLine(e.Late, 40)
	}
	return "none yet"
}
