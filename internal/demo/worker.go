package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/nightwarrant/nightwarrant/worker"
	"github.com/nightwarrant/nightwarrant/worker/natsqueue"
)

// WorkerConfig is the file of the demo's workers.
type WorkerConfig struct {
	Authority, Client, AssertionFile, Guard string
	Mind, Model                             string // of an assistant
	NATS, Queue, User, Password             string
}

// ReadWorker reads a worker's file.
func ReadWorker(path string) (c WorkerConfig, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(text, &c)
}

// write writes a worker's file, which is for the worker only.
func (c WorkerConfig) write(path string) error {
	text, err := json.Marshal(c) //nolint:gosec // it holds the password of the worker's own queue
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// RunWorker is the demo's task: two entries in the ledger, each once for a run,
// whoever runs it and however often it is interrupted.
func RunWorker(ctx context.Context, c WorkerConfig, log *slog.Logger) error {
	queue, err := natsqueue.Open(ctx, natsqueue.Config{URL: c.NATS, Queue: c.Queue, User: c.User, Password: c.Password, Logger: log})
	if err != nil {
		return err
	}
	defer queue.Close() //nolint:errcheck // the process ends
	w, err := worker.New(worker.Config{Authority: c.Authority, Client: c.Client, Assertion: c.assertion, Source: queue, Logger: log})
	if err != nil {
		return err
	}
	return w.Run(ctx, func(ctx context.Context, run *worker.Run) error {
		if c.Mind != "" {
			return c.assist(ctx, run)
		}
		for _, step := range []string{"debit", "credit"} {
			if _, err := run.Do(ctx, c.entry(step)); err != nil {
				return fmt.Errorf("%s: %w", step, err)
			}
		}
		return nil
	})
}

// entry is one effect. Its key is the name of the step; what it writes is the
// same whoever asks, so that a second worker asks for the same effect.
func (c WorkerConfig) entry(step string) worker.Effect {
	return worker.Effect{Key: step, Guard: c.Guard, Action: "row.append", Resource: "table:entries",
		Parameters: map[string]any{"table": "entries", "values": map[string]any{"memo": step, "cents": 1250}}}
}

func (c WorkerConfig) assertion(context.Context) (string, error) {
	text, err := os.ReadFile(c.AssertionFile)
	return strings.TrimSpace(string(text)), err
}
