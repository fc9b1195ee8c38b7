package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/internal/bench"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/demo"
)

// benchLease is the longest lease there is: none runs out while something is measured.
const benchLease = 60 * time.Second

func (p program) bench() *cobra.Command {
	asJSON, seconds := false, 10
	c := &cobra.Command{Use: "bench", Short: "Measure this machine's speed against its own floors", Args: cobra.NoArgs}
	c.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON at the end")
	c.Flags().IntVar(&seconds, "seconds", seconds, "how long each measurement takes, 1 to 60")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if seconds < 1 || seconds > 60 {
			return &config.Error{Sentence: "--seconds must be between 1 and 60"}
		}
		return p.measure(cmd.Context(), time.Duration(seconds)*time.Second, asJSON)
	}
	c.AddCommand(p.benchClosing(), p.benchPages())
	return c
}

func (p program) measure(ctx context.Context, each time.Duration, asJSON bool) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := benchDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // scratch
	ctx, cancel := context.WithTimeout(ctx, 6*time.Minute+15*each)
	defer cancel()
	result, failed := bench.Run(ctx, demo.Options{Binary: binary, Dir: dir, Env: p.env, Lease: benchLease}, each, p.out)
	if asJSON && result.Complete() {
		text, err := json.Marshal(result)
		if err != nil {
			return errors.Join(failed, err)
		}
		fmt.Fprintln(p.out, string(text))
	}
	return failed
}
