package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/scheduler"
)

// notice is what owners have not been told, for an operator with the database alone.
func (p program) notice() *cobra.Command {
	return group("notice", "See what owners could not be told, and let it be told after all", p.noticeList(),
		p.gateCommand("retry", "Let what was given up be delivered after all", func(ctx context.Context, pool *pgxpool.Pool) (string, error) {
			n, err := scheduler.RetryUntold(ctx, pool)
			return fmt.Sprintf("%d notices that were given up are due again.", n), err
		}))
}

// untold is one of them, as it is printed.
type untold struct {
	Matter   string    `json:"matter"`
	Kind     string    `json:"kind"`
	Channel  string    `json:"channel"`
	Task     string    `json:"task"`
	State    string    `json:"state"`
	Due      time.Time `json:"due"`
	Attempts int       `json:"attempts"`
	Refusals int       `json:"refusals"`
}

func (p program) noticeList() *cobra.Command {
	asJSON := false
	c := &cobra.Command{Use: "list", Short: "List what was given up, and what waits for its delivery", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			list, err := scheduler.ListUntold(ctx, pool)
			if err != nil {
				return err
			}
			out := make([]untold, len(list))
			for i, u := range list {
				out[i] = untold{base64.RawURLEncoding.EncodeToString(u.Matter), u.Kind, u.Channel, base64.RawURLEncoding.EncodeToString(u.Task), u.State, u.Due.UTC(), u.Attempts, u.Refusals}
			}
			return p.print(asJSON, out, func(b *strings.Builder) { writeUntold(b, out) })
		})
	}
	return c
}

func writeUntold(b *strings.Builder, list []untold) {
	if len(list) == 0 {
		b.WriteString("Every owner has been told.\n")
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "STATE\tKIND\tCHANNEL\tMATTER\tTASK\tDUE\tATTEMPTS\tREFUSALS") // into memory, like the rest
	for _, u := range list {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\n", u.State, u.Kind, u.Channel, u.Matter, u.Task, u.Due.Format(time.RFC3339), u.Attempts, u.Refusals)
	}
	_ = t.Flush()
}
