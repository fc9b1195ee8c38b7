package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// readiness prints the decision: as everybody sees it from an authority, or the
// operator's board from the database alone, which works when nothing else does.
func (p program) readiness() *cobra.Command {
	var origin string
	var asJSON bool
	c := &cobra.Command{Use: "readiness", Short: "Print the readiness decision: whether it is open, every family, and why not", Args: cobra.NoArgs}
	p.authorityFlag(c, &origin)
	d := p.databaseFlags(c, "nw_operator, for the operator's board")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if d.url != "" || d.file != "" || origin == "" && p.env(config.EnvDatabaseURL) != "" {
			return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error { return p.board(ctx, pool, asJSON) })
		}
		if err := config.Origin("--authority", origin); err != nil {
			return err
		}
		decision, err := askReadiness(cmd.Context(), origin)
		if err != nil {
			return err
		}
		return p.print(asJSON, decision, func(b *strings.Builder) { writeDecision(b, decision) })
	}
	return c
}

// board is what an operator looks at first when nothing runs.
type board struct {
	Open        bool             `json:"open"`
	Held        bool             `json:"held"`
	Epoch       int64            `json:"epoch"`
	Incarnation int64            `json:"incarnation"`
	Requirement int64            `json:"requirement"`
	Since       time.Time        `json:"since"`
	Reason      string           `json:"reason"`
	Family      string           `json:"family,omitempty"`
	Lines       []readiness.Line `json:"families"`
}

func (p program) board(ctx context.Context, pool *pgxpool.Pool, asJSON bool) error {
	d, lines, err := readiness.Board(ctx, pool)
	if err != nil {
		return err
	}
	out := board{Open: d.Open, Held: d.Held, Epoch: d.Epoch, Incarnation: d.Incarnation, Requirement: d.Requirement, Since: d.Since.UTC(), Reason: d.Reason, Family: d.Family, Lines: lines}
	return p.print(asJSON, out, func(b *strings.Builder) { out.write(b) })
}

func (o board) write(b *strings.Builder) {
	state := "closed: " + o.Reason
	switch {
	case o.Open:
		state = "open"
	case o.Held:
		state = "closed and held by hand"
	case o.Family != "":
		state = "closed: " + o.Family + ", " + o.Reason
	}
	fmt.Fprintf(b, "Admission is %s since %s. Epoch %d, incarnation %d, requirement %d.\n\n", state, o.Since.Format(time.RFC3339), o.Epoch, o.Incarnation, o.Requirement)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FAMILY\tCOMPONENT\tSTATE\tSINCE\tGOOD\tNEEDED\tAGE\tTASKS")
	for _, l := range o.Lines {
		state, since, age := "good", "never", "never"
		if !l.Good {
			state = l.Reason
		}
		if l.Since != nil {
			since = l.Since.UTC().Format(time.RFC3339)
		}
		if l.AgeMS >= 0 {
			age = (time.Duration(l.AgeMS) * time.Millisecond).String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%d\n", oneLine(l.Family, 70), oneLine(l.Component, 70), state, since, l.Instances, l.Required, age, l.Tasks)
	}
	_ = t.Flush() // into a strings.Builder
}

func writeDecision(b *strings.Builder, d api.Decision) {
	if d.Open {
		fmt.Fprintf(b, "Admission is open; readiness epoch %d, valid for %d ms.\n", d.Epoch, d.ValidMS)
		return
	}
	fmt.Fprintf(b, "Admission is closed; readiness epoch %d: %s.\n", d.Epoch, oneLine(strings.Join(d.Reasons, "; "), 200))
	for _, f := range d.Families {
		if !f.Good {
			fmt.Fprintf(b, "  %s: %s (%d of %d good)\n", oneLine(f.Family, 70), oneLine(f.Reason, 40), f.Instances, f.Required)
		}
	}
}

// askReadiness asks with a challenge, so that an old answer is not taken for a new one.
func askReadiness(ctx context.Context, origin string) (d api.Decision, err error) {
	challenge := rand.Text()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, origin+api.PathReadiness+"?challenge="+challenge, nil)
	if err != nil {
		return d, config.Wrong("--authority", "cannot be called: it is not a URL")
	}
	if _, err = exchange(plainClient(), r, &d); err == nil && d.Challenge != challenge {
		err = fmt.Errorf("%w (its readiness is not about this question)", errNoAnswer)
	}
	return d, err
}
