package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/internal/closing"
	"github.com/nightwarrant/nightwarrant/internal/config"
)

// benchClosing runs on private servers only: it breaks them.
func (p program) benchClosing() *cobra.Command {
	o, asJSON, kinds := closing.Options{}, false, ""
	c := &cobra.Command{Use: "closing", Short: "Break each part of a running stack, and measure how soon everything is closed", Args: cobra.NoArgs}
	f := c.Flags()
	f.BoolVar(&asJSON, "json", false, "print one line of JSON at the end")
	f.IntVar(&o.Injections, "injections", 5, "of each kind of fault")
	f.IntVar(&o.Explicit, "explicit", 200, "closes by hand, under saturated admission")
	f.StringVar(&kinds, "kinds", "all", "`KINDS` of fault, joined by commas")
	f.IntVar(&o.Stacks, "stacks", 3, "that run at once, each with its own faults")
	f.IntVar(&o.Rate, "rate", 200, "renewals a second at each stack, in an open loop")
	f.DurationVar(&o.Clean, "clean", time.Minute, "without any fault, to count false closes")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Kinds = closing.Kinds()
		if kinds != "all" {
			o.Kinds = strings.Split(kinds, ",")
		}
		if err := checkClosing(o); err != nil {
			return err
		}
		return p.close(cmd.Context(), o, asJSON)
	}
	return c
}

func checkClosing(o closing.Options) error {
	for _, k := range o.Kinds {
		if !slices.Contains(closing.Kinds(), k) {
			return &config.Error{Sentence: fmt.Sprintf("--kinds may name %s", strings.Join(closing.Kinds(), ", "))}
		}
	}
	if o.Injections < 1 || o.Explicit < 1 || o.Stacks < 1 || o.Stacks > 8 || o.Rate < 10 || o.Rate > 2000 || o.Clean < time.Second {
		return &config.Error{Sentence: "there must be at least one injection and one close by hand, 1 to 8 stacks, 10 to 2000 renewals a second and a clean second"}
	}
	return nil
}

func (p program) close(ctx context.Context, o closing.Options, asJSON bool) (err error) {
	if o.Binary, err = os.Executable(); err != nil {
		return err
	}
	if o.Dir, err = os.MkdirTemp("/var/tmp", "nightwarrant-closing-"); err != nil {
		return err
	}
	// Passable, not readable: PostgreSQL runs as an unprivileged account, which must get to its own directory.
	if err := os.Chmod(o.Dir, 0o711); err != nil { //nolint:gosec // see above
		return err
	}
	result, err := closing.Run(ctx, o, p.out, p.err)
	if asJSON && len(result.Faults) == len(o.Kinds) {
		text, failed := json.Marshal(result)
		err = errors.Join(err, failed)
		_, _ = fmt.Fprintln(p.out, string(text)) // whoever reads it finds it incomplete
	}
	if err == nil { // else the logs tell why
		err = os.RemoveAll(o.Dir)
	}
	return err
}
