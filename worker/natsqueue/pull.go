package natsqueue

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nightwarrant/nightwarrant/worker"
)

// Pull waits for the next reference. It waits out what passes by itself, a lost connection or a change of leader, and
// answers ErrGone or ErrUnreachable when the queue has failed for all of its patience, ErrConfiguration when its
// consumer was altered, and the context's error when that ends.
func (q *Queue) Pull(ctx context.Context) (worker.Message, error) {
	well := time.Now()
	troubled := false
	for {
		m, err := q.next(ctx, troubled)
		switch {
		case m != nil:
			return message{m}, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil:
			well, troubled = time.Now(), false
			continue
		}
		err = q.diagnose(ctx, err)
		if final := errors.Is(err, ErrClosed) || errors.Is(err, ErrConfiguration); final || time.Since(well) >= q.patience {
			return nil, err
		}
		troubled = true
		q.log.Warn("cannot pull from the queue", "error", err)
		wait(ctx, pause)
	}
}

// next is one pull request. It answers neither message nor error when the request has expired or its message was no
// reference. After trouble it looks at the consumer first: it may have come back as another.
func (q *Queue) next(ctx context.Context, troubled bool) (jetstream.Msg, error) {
	if !q.conn.IsConnected() {
		return nil, nats.ErrDisconnected
	}
	if troubled {
		if err := q.examine(ctx); err != nil {
			return nil, err
		}
	}
	// A deadline of ctx would become the request's expiry, which may not be shorter than two heartbeats.
	endless, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	batch, err := q.consumer.Fetch(1, jetstream.FetchContext(endless), jetstream.FetchHeartbeat(pullHeart))
	if err != nil {
		return nil, err
	}
	m, ok := <-batch.Messages()
	if !ok {
		return nil, batch.Error()
	}
	if !isReference(m.Data()) {
		q.terminate(m)
		return nil, nil
	}
	return m, nil
}

// terminate keeps what is no reference from coming back. Its text goes nowhere.
func (q *Queue) terminate(m jetstream.Msg) {
	q.terminated.Add(1)
	err := m.TermWithReason("not a reference")
	q.log.Error("terminated a message that is no reference", "bytes", len(m.Data()), "error", err)
}

// diagnose asks the server what is wrong with a queue whose pull failed.
func (q *Queue) diagnose(ctx context.Context, pulled error) error {
	if q.conn.IsClosed() {
		return ErrClosed
	}
	if !q.conn.IsConnected() {
		return fmt.Errorf("%w: there is no connection", ErrUnreachable)
	}
	if err := q.examine(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, pulled)
}

func (q *Queue) examine(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := q.consumer.Info(ctx)
	if err != nil {
		return consumerError(err)
	}
	return q.checkConsumer(info.Config)
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

var strict64 = base64.RawURLEncoding.Strict()

// isReference tells 16 bytes in base64url without padding. The decoder skips line breaks, so the length is asked twice.
func isReference(b []byte) bool {
	var raw [18]byte
	if len(b) != 22 {
		return false
	}
	n, err := strict64.Decode(raw[:], b)
	return err == nil && n == 16
}

// message is a delivered reference.
type message struct{ m jetstream.Msg }

func (m message) Reference() string { return string(m.m.Data()) }

func (m message) Ack() error { return m.m.Ack() }

// Nak asks for another delivery after delay; the server counts it.
func (m message) Nak(delay time.Duration) error { return m.m.NakWithDelay(delay) }
