package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/internal/demo"
)

// demoLease is the shortest lease there is, so that a crash is over soon.
const demoLease = 2 * time.Second

func (p program) demo() *cobra.Command {
	asJSON, keep, token := false, "", demo.Token{}
	c := &cobra.Command{Use: "demo", Short: "Run the main job for real on this machine, and attack it", Args: cobra.NoArgs}
	c.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON at the end")
	c.Flags().StringVar(&keep, "keep", "", "keep everything in this new `DIRECTORY`")
	c.Flags().StringVar(&token.KeyHost, "keyhost", "", "with the keys in a token and FIPS required, in a build of the synthetic profile: `BINARY` of nightwarrant-keyhost")
	c.Flags().StringVar(&token.Library, "softhsm", "/usr/lib/softhsm/libsofthsm2.so", "with --keyhost: SoftHSM's `LIBRARY`")
	c.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		dir := keep
		if dir == "" {
			if dir, err = os.MkdirTemp("/var/tmp", "nightwarrant-demo-"); err != nil {
				return err
			}
			defer func() {
				if err == nil { // else the logs tell why
					err = os.RemoveAll(dir)
				}
			}()
		}
		return p.tell(cmd.Context(), dir, token, asJSON)
	}
	return c
}

func (p program) tell(ctx context.Context, dir string, token demo.Token, asJSON bool) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	// Passable, not readable: PostgreSQL runs as an unprivileged account, which must get to its own directory.
	if err := errors.Join(os.MkdirAll(dir, 0o711), os.Chmod(dir, 0o711)); err != nil { //nolint:gosec // see above
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	o := demo.Options{Binary: binary, Dir: dir, Env: p.env, Lease: demoLease}
	if token.KeyHost != "" {
		o.Token = &token
	}
	summary, err := demo.Story(ctx, o, p.out)
	if err != nil {
		return err
	}
	if asJSON {
		text, err := json.Marshal(summary)
		if err != nil {
			return err
		}
		fmt.Fprintln(p.out, string(text))
	}
	if !summary.OK {
		return errors.New("the story did not hold; see above")
	}
	return nil
}

func (p program) dev() *cobra.Command {
	dir := ""
	c := &cobra.Command{Use: "dev", Short: "Keep the whole stack up on this machine, with data that survives a restart", Args: cobra.NoArgs}
	c.Flags().StringVar(&dir, "dir", ".dev", "`DIRECTORY` of the stack")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		binary, err := os.Executable()
		if err != nil {
			return err
		}
		return demo.Dev(cmd.Context(), demo.Options{Binary: binary, Dir: dir, Env: p.env, Lease: 30 * time.Second}, p.out)
	}
	return c
}

// demoWorker is hidden: the task of the demo and of dev.
func (p program) demoWorker() *cobra.Command {
	file := ""
	c := &cobra.Command{Use: "demo-worker", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		config, err := demo.ReadWorker(file)
		if err != nil {
			return err
		}
		return demo.RunWorker(cmd.Context(), config, p.log())
	}}
	c.Flags().StringVar(&file, "config", "", "the worker's `FILE`")
	return c
}
