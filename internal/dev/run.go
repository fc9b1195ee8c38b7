package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// projection is a token that is kept fresh in a file.
type projection struct {
	file   string
	claims map[string]any
}

// RunWorkloads serves the workload issuer and keeps its files fresh, until ctx ends.
func RunWorkloads(ctx context.Context, c *Workloads, log *slog.Logger) error {
	return run(ctx, &c.Common, (*Issuer).Handler, c.projections(), log)
}

// RunPeople serves the identity provider and keeps its files fresh, until ctx ends.
func RunPeople(ctx context.Context, c *People, log *slog.Logger) error {
	return run(ctx, &c.Common, func(i *Issuer) http.Handler { return NewProvider(i, c).Handler() }, c.projections(), log)
}

// Renew puts a fresh token of a service account into its file, as a kubelet does
// for a pod that starts: an assertion belongs to the first key that uses it.
func (i *Issuer) Renew(a Account, audience string, lifetime time.Duration) error {
	token, err := i.Token(a.claims(audience), time.Now(), lifetime)
	if err != nil {
		return err
	}
	return replaceFile(a.File, []byte(token))
}

// run listens before it writes: a token that can be read can be verified.
func run(ctx context.Context, c *Common, answer func(*Issuer) http.Handler, all []projection, log *slog.Logger) error {
	issuer, err := NewIssuer(c.URL(), c.Algorithm, c.Dir)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	server := &http.Server{Handler: answer(issuer), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	group.Go(func() error {
		return issuer.project(ctx, all, c.Lifetime.Std(), func() {
			log.LogAttrs(ctx, slog.LevelInfo, "tokens are current", slog.String("issuer", c.URL()), slog.Int("files", len(all)))
		})
	})
	return group.Wait()
}

// project writes each token at once and again when four fifths of its life are
// over, as a kubelet does. done is called after each round.
func (i *Issuer) project(ctx context.Context, all []projection, lifetime time.Duration, done func()) error {
	ticker := time.NewTicker(lifetime * 4 / 5)
	defer ticker.Stop()
	for {
		for _, p := range all {
			token, err := i.Token(p.claims, time.Now(), lifetime)
			if err != nil {
				return err
			}
			if err := replaceFile(p.file, []byte(token)); err != nil {
				return fmt.Errorf("dev: a token cannot be written: %w", err)
			}
		}
		done()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// replaceFile writes a file of mode 0600 that appears whole: a reader gets the
// old content or the new.
func replaceFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
