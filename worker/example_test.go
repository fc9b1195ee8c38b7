package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/nightwarrant/nightwarrant/worker"
	"github.com/nightwarrant/nightwarrant/worker/natsqueue"
)

// A worker that does one thing in each run, and leaves the rest to the next worker when it may not go on.
func Example() {
	ctx := context.Background()
	queue, err := natsqueue.Open(ctx, natsqueue.Config{URL: "nats://queue.example:4222", Queue: "mkSAn6bwwVXYPgOqk3vGNA"})
	if err != nil {
		panic(err)
	}
	defer queue.Close() //nolint:errcheck // the process ends
	w, err := worker.New(worker.Config{
		Authority: "https://night.example",
		Client:    "books",
		Assertion: func(context.Context) (string, error) {
			token, err := os.ReadFile("/var/run/secrets/nightwarrant/token")
			return strings.TrimSpace(string(token)), err
		},
		Source: queue,
		Logger: slog.Default(),
	})
	if err != nil {
		panic(err)
	}
	err = w.Run(ctx, func(ctx context.Context, run *worker.Run) error {
		if run.WrapUp() {
			return nil // begin nothing new
		}
		_, err := run.Do(ctx, worker.Effect{Key: "close", Guard: "https://ledger.example/v1", Action: "row.append", Resource: "table:totals",
			Parameters: map[string]any{"table": "totals", "values": map[string]any{"day": "2026-06-01", "cents": 1250}}})
		return err
	})
	fmt.Println(err)
}

// What became of an effect that is not committed.
func ExampleRun_Do() {
	handler := func(ctx context.Context, run *worker.Run) error {
		_, err := run.Do(ctx, worker.Effect{Key: "pay", Guard: "https://pay.example/v1", Action: "payment.create", Resource: "https://api.example/accounts/7/payments",
			Parameters: map[string]any{"account": "7", "cents": 1250}, Amount: 1250, Currency: "EUR"})
		switch {
		case errors.Is(err, worker.ErrLimit):
			return nil // the owner allowed no more: that is the end of this run, and no failure
		case errors.Is(err, worker.ErrNotApplied):
			return errors.New("the payment was refused; nothing happened")
		case errors.Is(err, worker.ErrAmbiguous):
			return errors.New("somebody must find out whether the payment happened; nobody may repeat it")
		case errors.Is(err, worker.ErrFenceLost), errors.Is(err, worker.ErrAdmissionClosed):
			return err // another worker goes on, or later
		}
		return err
	}
	_ = handler
}

// A client that knows OAuth and not us.
func ExampleTransport() {
	key, err := worker.NewKey() // it lives in memory only
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: &worker.Transport{Key: key}}
	_ = client // hand it to x/oauth2, say, as oauth2.HTTPClient
	fmt.Println(strings.HasPrefix(key.String(), "key "))
	// Output: true
}
