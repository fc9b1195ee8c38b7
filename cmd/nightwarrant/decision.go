package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// decision is a member's inbox: what their tasks ask for, one exact effect at a time.
func (p program) decision() *cobra.Command {
	list := listed[api.OwnerDecision]{command: "decision list", short: "List what your tasks ask you to decide", path: plain(api.PathDecisions), none: "Nothing waits for you.",
		head: "DECISION\tSTATE\tUNTIL\tRISK\tTASK", row: func(d api.OwnerDecision) string {
			return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", d.Decision, oneLine(d.State, 20), when(d.ExpiresAt), oneLine(d.Risk, 10), oneLine(d.Title, 80))
		}}.make(p)
	show := p.personal("show DECISION", "Show exactly what you are asked, and how to answer", cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) error {
		ref, err := reference("a decision", args[0])
		if err != nil {
			return err
		}
		return answer(ctx, p, who, asJSON, "GET", api.PathDecisions+"/"+ref, nil, showDecision)
	})
	return group("decision", "Decide on one exact effect above a task's dial, once", list, show,
		p.decide("approve", "Say yes to exactly the effect with this digest", "You have said yes to this, once. The run goes on."),
		p.decide("deny", "Say no to exactly the effect with this digest", "You have said no to this. The run goes on without it and does not count as a success."))
}

func (p program) decide(verb, short, said string) *cobra.Command {
	return p.answering(verb, "a decision", short, func(ctx context.Context, who *person, asJSON bool, ref string, in api.Answer) error {
		return answer(ctx, p, who, asJSON, "POST", api.PathDecisions+"/"+ref+"/"+verb, in, func(b *strings.Builder, _ struct{}) { b.WriteString(said + "\n") })
	})
}

// showDecision shows the exact arguments, marked as the workload's own words.
func showDecision(b *strings.Builder, d api.OwnerDecision) {
	fmt.Fprintf(b, "%s asks you to decide, until %s.\n\n", oneLine(d.Title, 120), when(d.ExpiresAt))
	fmt.Fprintf(b, "Exactly this (written by the workload; all of it is done as it stands, or none)\n")
	fmt.Fprintf(b, "  %s\n", pretty(d.Effect, "(it cannot be shown; do not approve it)"))
	fmt.Fprintf(b, "\nRisk %s. Without an answer the run %s.\n", oneLine(d.Risk, 10), map[string]string{"stop": "stops then", "wait": "has waited until then, and ends"}[d.Silence])
	if d.State != "pending" {
		fmt.Fprintf(b, "\nThis is %s; there is nothing to answer.\n", oneLine(d.State, 20))
		return
	}
	fmt.Fprintf(b, "\nYour answer, to exactly this\n  Allow once\n    nightwarrant decision approve %s --digest %s\n  Do not allow\n    nightwarrant decision deny %s --digest %s\n", d.Decision, d.Digest, d.Decision, d.Digest)
}

// pretty spreads JSON over lines that a terminal only shows.
func pretty(text json.RawMessage, otherwise string) string {
	var out bytes.Buffer
	if err := json.Indent(&out, text, "  ", "  "); err != nil {
		return otherwise
	}
	return inkOnly(out.String())
}

// inkOnly writes what a terminal would hide or act on as JSON escapes, so that
// what is read is what would be done. Nothing is left out.
func inkOnly(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || unicode.IsPrint(r) && !unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r):
			b.WriteRune(r)
		default:
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, "\\u%04x", u)
			}
		}
	}
	return b.String()
}
