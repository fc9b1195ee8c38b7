// Package queue is the JetStream side of the scheduler: one stream of run
// references with one durable pull consumer for each opaque queue.
//
// A message is a hint. PostgreSQL holds the truth, so that a lost, repeated or
// forged message costs a claim that is refused or a wait until the next attempt
// and nothing else.
package queue

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nightwarrant/nightwarrant/internal/disk"
)

// Ref is an opaque reference: 128 random bits, 22 characters of base64url when
// written.
type Ref [16]byte

// String returns the 22 characters.
func (r Ref) String() string { return base64.RawURLEncoding.EncodeToString(r[:]) }

// ScanBytes reads the 16 bytes of a database column.
func (r *Ref) ScanBytes(b []byte) error {
	if len(b) != len(r) {
		return fmt.Errorf("a reference has %d bytes, not %d", len(r), len(b))
	}
	copy(r[:], b)
	return nil
}

const (
	// Stream is the one stream of all queues.
	Stream = "NW_RUNS"

	runSubjects    = "nw.run."
	canarySubjects = "nw.canary."
	queuePrefix    = "q_"
	canaryPrefix   = "canary_"
)

// Subject is where the runs of a queue are published.
func Subject(queue Ref) string { return runSubjects + queue.String() }

// Consumer is the durable consumer that the workers of a queue share.
func Consumer(queue Ref) string { return queuePrefix + queue.String() }

const (
	ackWithin   = 2 * time.Second // for one publish
	apiWithin   = 5 * time.Second // for one call of JetStream's API
	probeWithin = 2 * time.Second // for one canary, all of it
)

// Config says which server to use. Conn belongs to the caller, who closes it.
type Config struct {
	Conn     *nats.Conn
	Settings Settings
	Monitors []string // the monitoring URL of each server, such as http://127.0.0.1:8222
	Instance [32]byte // this process, whose canary is its own
	Disk     disk.Watch
	Roots    *x509.CertPool // that alone are trusted for the monitoring pages; nil means the system's
	Approved bool           // no server may serve what a FIPS deployment refuses, as far as its page says
}

// Queue publishes references and judges the health of what it publishes to.
// It is safe for concurrent use.
type Queue struct {
	conn     *nats.Conn
	js       jetstream.JetStream
	settings Settings
	monitors []string
	disk     disk.Watch
	name     string // of the instance
	pages    *http.Client
	approved bool

	mu     sync.Mutex
	booted bool
	known  map[Ref]bool // queues whose consumers this process has seen

	probing sync.Mutex
	canary  jetstream.Consumer // nil until it was created
}

// New returns a Queue. It sends nothing.
func New(c Config) (*Queue, error) {
	if c.Conn == nil || len(c.Monitors) == 0 {
		return nil, errors.New("a queue needs a connection and the monitoring URL of each server")
	}
	if err := c.Settings.check(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(c.Conn, jetstream.WithDefaultTimeout(apiWithin))
	if err != nil {
		return nil, fmt.Errorf("opening JetStream: %w", err)
	}
	return &Queue{
		conn: c.Conn, js: js, settings: c.Settings, monitors: c.Monitors, disk: c.Disk, known: map[Ref]bool{},
		name: base64.RawURLEncoding.EncodeToString(c.Instance[:]), pages: monitor(c.Roots), approved: c.Approved,
	}, nil
}

// Connected says whether publishing can be tried at all.
func (q *Queue) Connected() bool { return q.conn.IsConnected() }

// Prepare makes the queues ready: at its first success as [Ensure] does, and
// afterwards by creating the consumers of queues that it has never seen. What
// it has seen once and what is gone since then it leaves alone, for
// [Queue.Canary] to report.
func (q *Queue) Prepare(ctx context.Context, queues []Ref) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var fresh []Ref
	for _, queue := range queues {
		if !q.known[queue] {
			fresh = append(fresh, queue)
		}
	}
	switch {
	case !q.booted:
		if err := Ensure(ctx, q.js, q.settings, queues); err != nil {
			return err
		}
	case len(fresh) > 0:
		if err := ensureConsumers(ctx, q.js, fresh); err != nil {
			return err
		}
	}
	q.booted = true
	for _, queue := range fresh {
		q.known[queue] = true
	}
	return nil
}

// Publish stores a run's reference for the workers of a queue and returns when
// the server has it on disk. An error says nothing: the message may be stored.
// A repeated attempt is stored once within the stream's duplicate window.
func (q *Queue) Publish(ctx context.Context, queue, run Ref, attempt int) error {
	ctx, cancel := context.WithTimeout(ctx, ackWithin)
	defer cancel()
	_, err := q.js.Publish(ctx, Subject(queue), []byte(run.String()),
		jetstream.WithMsgID(run.String()+"."+strconv.Itoa(attempt)), jetstream.WithExpectStream(Stream))
	return err
}
