package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/internal/bench"
	"github.com/nightwarrant/nightwarrant/internal/config"
)

const benchPagesIn = 15 * time.Minute

func (p program) benchPages() *cobra.Command {
	asJSON, o := false, bench.PagesOptions{Tasks: 10_000, Runs: 1_000_000, Each: 200}
	c := &cobra.Command{Use: "pages", Short: "Measure what a member with many tasks and runs waits for", Args: cobra.NoArgs}
	c.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON at the end")
	c.Flags().IntVar(&o.Tasks, "tasks", o.Tasks, "of the member, 100 to 100000")
	c.Flags().IntVar(&o.Runs, "runs", o.Runs, "of the member, 1000 to 10000000")
	c.Flags().IntVar(&o.Each, "each", o.Each, "how often each page is read, 100 to 100000")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.Tasks < 100 || o.Tasks > 100_000 || o.Runs < 1000 || o.Runs > 10_000_000 || o.Each < 100 || o.Each > 100_000 {
			return &config.Error{Sentence: "--tasks, --runs or --each is out of its range"}
		}
		return p.measurePages(cmd.Context(), o, asJSON)
	}
	return c
}

func (p program) measurePages(ctx context.Context, o bench.PagesOptions, asJSON bool) error {
	dir, err := benchDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // scratch
	o.Dir = dir
	ctx, cancel := context.WithTimeout(ctx, benchPagesIn)
	defer cancel()
	result, err := bench.Pages(ctx, o, p.out)
	if err != nil || !asJSON {
		return err
	}
	text, err := json.Marshal(result)
	fmt.Fprintln(p.out, string(text))
	return err
}

// benchDir is a scratch directory. It is passable, not readable: PostgreSQL runs as an
// unprivileged account, which must get to its own.
func benchDir() (string, error) {
	dir, err := os.MkdirTemp("/var/tmp", "nightwarrant-bench-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o711) //nolint:gosec // see above
}
