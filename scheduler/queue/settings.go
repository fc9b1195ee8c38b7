package queue

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Settings are what an operator chooses about the stream. All else is fixed.
type Settings struct {
	Replicas int   // 1, 3 or 5
	MaxBytes int64 // of the stream, well below its volume; 0 means 256 MiB
}

const (
	defaultMaxBytes = 256 << 20
	minMaxBytes     = 1 << 20

	// hintsFor bounds what a queue without workers piles up: a run that nobody
	// has claimed by then has been published again.
	hintsFor        = 10 * time.Minute
	duplicatesFor   = 2 * time.Minute
	maxMessage      = 512 // bytes: a reference, its message id and the headers around it
	ackWait         = 30 * time.Second
	maxAckPending   = 4096
	maxWaiting      = 512
	canaryForgotten = 10 * time.Minute
)

func (s Settings) check() error {
	if s.Replicas != 1 && s.Replicas != 3 && s.Replicas != 5 {
		return fmt.Errorf("the stream has 1, 3 or 5 replicas, not %d", s.Replicas)
	}
	if s.MaxBytes != 0 && s.MaxBytes < minMaxBytes {
		return fmt.Errorf("the stream needs room for at least %d bytes", minMaxBytes)
	}
	return nil
}

// stream is the configuration that the stream must have.
func (s Settings) stream() jetstream.StreamConfig {
	if s.MaxBytes == 0 {
		s.MaxBytes = defaultMaxBytes
	}
	return jetstream.StreamConfig{
		Name:              Stream,
		Subjects:          []string{runSubjects + "*", canarySubjects + "*"},
		Retention:         jetstream.WorkQueuePolicy,
		MaxConsumers:      -1,
		MaxMsgs:           -1,
		MaxMsgsPerSubject: -1,
		MaxBytes:          s.MaxBytes,
		MaxAge:            hintsFor,
		MaxMsgSize:        maxMessage,
		Discard:           jetstream.DiscardNew, // a full stream refuses, it does not forget
		Storage:           jetstream.FileStorage,
		Replicas:          s.Replicas,
		Duplicates:        duplicatesFor,
		DenyDelete:        true,
		DenyPurge:         true,
		PersistMode:       jetstream.DefaultPersistMode, // async would switch sync_always off
	}
}

// consumer is the configuration that each consumer must have.
func consumer(name, subject string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Name:            name,
		Durable:         name,
		FilterSubject:   subject,
		DeliverPolicy:   jetstream.DeliverAllPolicy,
		AckPolicy:       jetstream.AckExplicitPolicy,
		AckWait:         ackWait,
		MaxDeliver:      -1, // a message that was delivered often enough would stay for ever, and be delivered never
		ReplayPolicy:    jetstream.ReplayInstantPolicy,
		MaxWaiting:      maxWaiting,
		MaxAckPending:   maxAckPending,
		MaxRequestBatch: 1, // nobody hoards messages that another worker could take
	}
}

func queueConsumer(queue Ref) jetstream.ConsumerConfig {
	return consumer(Consumer(queue), Subject(queue))
}

// SettingError names the first setting that is not as it must be.
type SettingError struct {
	Of        string // "stream NW_RUNS" or "consumer q_…"
	Setting   string // as JetStream's API spells it; "absent" when there is no such stream or consumer
	Want, Got string
}

func (e *SettingError) Error() string {
	if e.Setting == absent {
		return e.Of + " does not exist; restart the scheduler or run nightwarrant admin nats-config --apply"
	}
	return fmt.Sprintf("%s has %s %s and must have %s", e.Of, e.Setting, e.Got, e.Want)
}

const absent = "absent"

// free are settings that change nothing about which messages arrive.
var free = map[string]bool{"description": true, "metadata": true, "placement": true}

// differs compares two configurations of one type, setting by setting. A
// setting that this text has never heard of must have its zero value.
func differs(of string, want, got any) error {
	w, g := reflect.ValueOf(want), reflect.ValueOf(got)
	for i := range w.NumField() {
		setting, _, _ := strings.Cut(w.Type().Field(i).Tag.Get("json"), ",")
		a, b := w.Field(i).Interface(), g.Field(i).Interface()
		if !free[setting] && !reflect.DeepEqual(a, b) {
			return &SettingError{of, setting, fmt.Sprint(a), fmt.Sprint(b)}
		}
	}
	return nil
}

// Ensure creates the stream and each queue's consumer where they are absent,
// and checks those that exist without changing them: a *SettingError names the
// first setting that is wrong. It is a step of an operator or of a start; called
// again and again it would hide that something deletes the stream.
func Ensure(ctx context.Context, js jetstream.JetStream, s Settings, queues []Ref) error {
	if err := s.check(); err != nil {
		return err
	}
	stream, err := js.Stream(ctx, Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = js.CreateStream(ctx, s.stream())
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", Stream, err)
	}
	if err := differs("stream "+Stream, s.stream(), stream.CachedInfo().Config); err != nil {
		return err
	}
	return ensureConsumers(ctx, js, queues)
}

func ensureConsumers(ctx context.Context, js jetstream.JetStream, queues []Ref) error {
	for _, queue := range queues {
		want := queueConsumer(queue)
		found, err := js.Consumer(ctx, Stream, want.Name)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			found, err = js.CreateConsumer(ctx, Stream, want)
		}
		if err != nil {
			return fmt.Errorf("consumer %s: %w", want.Name, err)
		}
		if err := differs("consumer "+want.Name, want, found.CachedInfo().Config); err != nil {
			return err
		}
	}
	return nil
}

// Check is Ensure that creates nothing; besides, a *FullError says that the
// stream has little room left.
func Check(ctx context.Context, js jetstream.JetStream, s Settings, queues []Ref) error {
	stream, err := js.Stream(ctx, Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return &SettingError{Of: "stream " + Stream, Setting: absent}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", Stream, err)
	}
	info := stream.CachedInfo()
	if err := differs("stream "+Stream, s.stream(), info.Config); err != nil {
		return err
	}
	if err := checkConsumers(ctx, stream, queues); err != nil {
		return err
	}
	return hasRoom("stream "+Stream, info.State.Bytes, info.Config.MaxBytes)
}

// checkConsumers reads all consumers in pages, which costs one call for 256 of
// them.
func checkConsumers(ctx context.Context, stream jetstream.Stream, queues []Ref) error {
	found := map[string]jetstream.ConsumerConfig{}
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		found[info.Name] = info.Config
	}
	if err := list.Err(); err != nil {
		return fmt.Errorf("consumers of %s: %w", Stream, err)
	}
	for _, queue := range queues {
		want := queueConsumer(queue)
		got, ok := found[want.Name]
		if !ok {
			return &SettingError{Of: "consumer " + want.Name, Setting: absent}
		}
		if err := differs("consumer "+want.Name, want, got); err != nil {
			return err
		}
	}
	return nil
}
