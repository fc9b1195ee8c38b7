// Package natsqueue pulls run references from JetStream. It binds to the durable pull consumer of a queue that the
// relay or an operator has made, and never creates or alters one.
package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nightwarrant/nightwarrant/worker"
)

// Where references travel.
const (
	Stream = "NW_RUNS"

	subjectPrefix  = "nw.run."
	consumerPrefix = "q_"
)

// Defaults and bounds.
const (
	DefaultPatience = 30 * time.Second

	pullHeart    = 2 * time.Second // the server's sign of life while a pull waits
	askTimeout   = 5 * time.Second // of one question to the server
	pause        = time.Second     // after a pull that failed
	closeTimeout = 5 * time.Second
)

// Errors of Open and Pull; compare with errors.Is.
var (
	ErrGone          = errors.New("natsqueue: the stream or its consumer does not exist")
	ErrUnreachable   = errors.New("natsqueue: the queue does not answer")
	ErrConfiguration = errors.New("natsqueue: the consumer is not the one that this queue needs")
	ErrClosed        = errors.New("natsqueue: closed")
)

// Config of a Queue. It does not print, because its URL may hold a password.
type Config struct {
	URL         string        // nats:// or tls://, one or several joined by commas
	Queue       string        // opaque reference of the queue, 22 characters
	Credentials string        // file with the user's JWT and seed; optional
	User        string        // optional, with Password
	Password    string        // optional
	Options     []nats.Option // further ones, such as roots of its own
	Patience    time.Duration // how long a queue may fail before Pull says so; 0 is DefaultPatience
	Logger      *slog.Logger  // nil discards
}

func (c Config) String() string { return "queue " + c.Queue }

// Format prints the queue only, under every verb.
func (c Config) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue is the queue only.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText is the queue only.
func (c Config) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Queue is a worker.Source. It is safe for concurrent use.
type Queue struct {
	conn       *nats.Conn
	consumer   jetstream.Consumer
	subject    string
	patience   time.Duration
	log        *slog.Logger
	closed     chan struct{} // when the connection has ended
	terminated atomic.Int64
}

var _ worker.Source = (*Queue)(nil)

// Subjects are what the NATS user of a worker of one queue needs, and nothing else.
func Subjects(queue string) (publish, subscribe []string) {
	consumer := Stream + "." + consumerPrefix + queue
	return []string{"$JS.API.CONSUMER.INFO." + consumer, "$JS.API.CONSUMER.MSG.NEXT." + consumer, "$JS.ACK." + consumer + ".>"},
		[]string{inbox(queue) + ".>"}
}

// inbox is one of the queue's own, so that one worker role cannot listen to the answers for another.
func inbox(queue string) string { return "_INBOX_" + queue }

// Open connects and binds to the queue's consumer. It answers ErrUnreachable, ErrGone or ErrConfiguration at once,
// and never text that holds the URL.
func Open(ctx context.Context, c Config) (*Queue, error) {
	if !isReference([]byte(c.Queue)) {
		return nil, fmt.Errorf("%w: its reference must be 22 characters of base64url", ErrConfiguration)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Patience <= 0 {
		c.Patience = DefaultPatience
	}
	q := &Queue{subject: subjectPrefix + c.Queue, patience: c.Patience, log: c.Logger, closed: make(chan struct{})}
	var err error
	if q.conn, err = nats.Connect(c.URL, q.options(c)...); err != nil {
		return nil, connectError(err)
	}
	if err = q.bind(ctx, consumerPrefix+c.Queue); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

func (q *Queue) options(c Config) []nats.Option {
	options := []nats.Option{
		nats.Name("nightwarrant worker"), nats.CustomInboxPrefix(inbox(c.Queue)),
		nats.Timeout(askTimeout), nats.MaxReconnects(-1), nats.ReconnectWait(pause),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				q.log.Warn("lost the connection to the queue")
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { q.log.Info("connected to the queue again") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			q.log.Error("the queue reports an error", "error", err)
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(q.closed) }),
	}
	if c.Credentials != "" {
		options = append(options, nats.UserCredentials(c.Credentials))
	}
	if c.User != "" {
		options = append(options, nats.UserInfo(c.User, c.Password))
	}
	return append(options, c.Options...)
}

// connectError keeps the errors that nats.go made itself; others may repeat the URL.
func connectError(err error) error {
	for _, known := range []error{nats.ErrNoServers, nats.ErrAuthorization, nats.ErrTimeout} {
		if errors.Is(err, known) {
			return fmt.Errorf("%w: %w", ErrUnreachable, known)
		}
	}
	return fmt.Errorf("%w: cannot connect with this URL and these credentials", ErrUnreachable)
}

func (q *Queue) bind(ctx context.Context, consumer string) error {
	js, err := jetstream.New(q.conn)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if q.consumer, err = js.Consumer(ctx, Stream, consumer); err != nil {
		return consumerError(err)
	}
	return q.checkConsumer(q.consumer.CachedInfo().Config)
}

func consumerError(err error) error {
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return ErrGone
	}
	if errors.Is(err, jetstream.ErrNotPullConsumer) {
		return fmt.Errorf("%w: it is not a pull consumer", ErrConfiguration)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// checkConsumer refuses a consumer that would lose references or hand out those of another role.
func (q *Queue) checkConsumer(c jetstream.ConsumerConfig) error {
	switch {
	case c.Durable == "":
		return fmt.Errorf("%w: it is not durable", ErrConfiguration)
	case c.AckPolicy != jetstream.AckExplicitPolicy:
		return fmt.Errorf("%w: its acknowledgements are not explicit", ErrConfiguration)
	case c.MaxDeliver > 0:
		return fmt.Errorf("%w: it gives up after %d deliveries", ErrConfiguration, c.MaxDeliver)
	case c.FilterSubject != q.subject || len(c.FilterSubjects) > 0:
		return fmt.Errorf("%w: it reads other subjects", ErrConfiguration)
	}
	return nil
}

// Terminated counts the messages that were no reference.
func (q *Queue) Terminated() int64 { return q.terminated.Load() }

// Close sends what is pending, within a bound, and returns when the connection and its goroutines have ended. Calling
// it again does nothing.
func (q *Queue) Close() error {
	var err error
	if q.conn.IsConnected() {
		err = q.conn.FlushTimeout(closeTimeout)
	}
	q.conn.Close()
	select {
	case <-q.closed:
		return err
	case <-time.After(closeTimeout):
		return errors.Join(err, errors.New("natsqueue: the connection did not close in time"))
	}
}
