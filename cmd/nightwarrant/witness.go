package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	sumnote "golang.org/x/mod/sumdb/note"
	"golang.org/x/sync/errgroup"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/authority/audit/witness"
	"github.com/nightwarrant/nightwarrant/internal/config"
)

// sequence is how this replica goes on with the audit log when it leads.
func (r *replica) sequence() (sequencer.Config, error) {
	key := r.keys.Auditor()
	c := sequencer.Config{Pool: r.watching, Key: key, Who: instanceOf("sequencer", r.config.Instance), Log: r.log}
	for _, file := range r.config.Audit.Anchors {
		c.Anchors = append(c.Anchors, sequencer.File(file))
	}
	for i, w := range r.config.Audit.Witnesses {
		k, err := audit.NewWitness(w.Key)
		if err != nil {
			return c, config.Wrong(fmt.Sprintf("audit.witnesses[%d].key", i), "is not the key of a witness")
		}
		c.Anchors = append(c.Anchors, witness.NewClient(w.URL, k, key.Verifier(), sequencer.Store{Pool: r.watching, Key: key}, withoutProxy()))
	}
	return c, nil
}

func (p program) auditWitness() *cobra.Command {
	var listenAt, keyFile, state string
	var logs []string
	c := &cobra.Command{Use: "witness", Short: "Run a witness, which signs a log's checkpoints as long as each goes on from the last", Args: cobra.NoArgs}
	c.Flags().StringVar(&listenAt, "listen", "127.0.0.1:8446", "`ADDRESS` to listen on; whatever ends TLS stands in front")
	c.Flags().StringVar(&keyFile, "key-file", "", "`FILE` of mode 0600 with the witness's key, as `nightwarrant audit witness-key` writes it")
	c.Flags().StringVar(&state, "state", "", "`FILE` that remembers what was signed; never restore an older one")
	c.Flags().StringArrayVar(&logs, "log-key", nil, "`KEY` of a log, as `nightwarrant audit key` prints it; may be given several times")
	for _, f := range []string{"key-file", "state", "log-key"} {
		_ = c.MarkFlagRequired(f)
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		w := witness.Config{File: state, Log: p.log()}
		for _, text := range logs {
			v, err := sumnote.NewVerifier(text)
			if err != nil {
				return config.Wrong("--log-key", "is not the key of a log")
			}
			w.Logs = append(w.Logs, v)
		}
		secret, err := config.ReadSecret(keyFile)
		if err == nil {
			w.Key, err = audit.NewCosigner(secret.Reveal(), time.Now)
		}
		if err != nil {
			return config.Wrong("--key-file", "%s", err)
		}
		return runWitness(cmd.Context(), w, listenAt)
	}
	return c
}

func runWitness(ctx context.Context, c witness.Config, at string) error {
	s, err := witness.NewServer(c)
	if err != nil {
		return config.Wrong("--state", "cannot be gone on from: %s", err)
	}
	l, _, err := listen(ctx, at, "")
	if err != nil {
		return err
	}
	c.Log.LogAttrs(ctx, slog.LevelInfo, "witnessing", addressOf("listen", l), slog.String("key", c.Key.String()))
	tasks, ctx := errgroup.WithContext(ctx)
	serveOn(ctx, tasks, l, s, c.Log)
	return tasks.Wait()
}

func (p program) auditWitnessKey() *cobra.Command {
	var name, file string
	c := &cobra.Command{Use: "witness-key", Short: "Make the key of a new witness, and print what is handed on of it", Args: cobra.NoArgs}
	c.Flags().StringVar(&name, "name", "", "the witness's `NAME`, such as witness.example/audit")
	c.Flags().StringVar(&file, "key-file", "", "`FILE` to write; it must not be there")
	_ = c.MarkFlagRequired("name")
	_ = c.MarkFlagRequired("key-file")
	c.RunE = func(*cobra.Command, []string) error {
		secret, w, err := audit.GenerateCosigner(name)
		if err != nil {
			return config.Wrong("--name", "must have no space and no plus sign")
		}
		out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = out.WriteString(secret + "\n")
		if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
			return err
		}
		return p.say("%s\n", w)
	}
	return c
}
