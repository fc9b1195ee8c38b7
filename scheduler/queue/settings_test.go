package queue

import (
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func settingOf(t testing.TB, err error) *SettingError {
	t.Helper()
	wrong, ok := errors.AsType[*SettingError](err)
	require.True(t, ok, "a *SettingError, not %v", err)
	return wrong
}

func TestSettingsOfAnOperator(t *testing.T) {
	t.Parallel()
	for _, s := range []Settings{{}, {Replicas: 2}, {Replicas: -1}, {Replicas: 7}, {Replicas: 1, MaxBytes: 1}, {Replicas: 1, MaxBytes: -1}} {
		require.Error(t, s.check(), "%+v", s)
		require.Error(t, Ensure(within(t), nil, s, nil), "%+v", s)
	}
	for _, s := range []Settings{{Replicas: 1}, {Replicas: 3, MaxBytes: minMaxBytes}, {Replicas: 5}} {
		require.NoError(t, s.check(), "%+v", s)
	}
}

// other returns any other value of a setting's type.
func other(v reflect.Value) reflect.Value {
	changed := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Bool:
		changed.SetBool(!v.Bool())
	case reflect.String:
		changed.SetString(v.String() + "x")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		changed.SetInt(v.Int() + 1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		changed.SetUint(v.Uint() + 1)
	case reflect.Pointer:
		changed.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		changed.Set(reflect.MakeSlice(v.Type(), v.Len()+1, v.Len()+1))
	case reflect.Map:
		changed.Set(reflect.MakeMap(v.Type()))
		changed.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.Struct:
		changed.Set(v)
		changed.Field(0).Set(other(v.Field(0)))
	}
	return changed
}

// Every setting that the client library knows, now or later, is compared.
func TestEverySettingIsCompared(t *testing.T) {
	t.Parallel()
	for _, want := range []any{Settings{Replicas: 3}.stream(), queueConsumer(newRef())} {
		require.NoError(t, differs("it", want, want))
		for i := range reflect.TypeOf(want).NumField() {
			setting, _, _ := strings.Cut(reflect.TypeOf(want).Field(i).Tag.Get("json"), ",")
			got := reflect.New(reflect.TypeOf(want)).Elem()
			got.Set(reflect.ValueOf(want))
			got.Field(i).Set(other(got.Field(i)))
			err := differs("it", want, got.Interface())
			if free[setting] {
				require.NoError(t, err, setting)
				continue
			}
			require.Equal(t, setting, settingOf(t, err).Setting)
		}
	}
}

func TestEnsureCreatesOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	queues := []Ref{newRef(), newRef()}
	require.ErrorContains(t, Check(within(t), b.js, Settings{Replicas: 1}, queues), "does not exist")

	// Several at once, as replicas start together.
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() { assert.NoError(t, Ensure(within(t), b.js, Settings{Replicas: 1}, queues)) })
	}
	group.Wait()
	require.NoError(t, Check(within(t), b.js, Settings{Replicas: 1}, queues))

	more := append(queues, newRef())
	require.Equal(t, "absent", settingOf(t, Check(within(t), b.js, Settings{Replicas: 1}, more)).Setting)
	require.NoError(t, Ensure(within(t), b.js, Settings{Replicas: 1}, more))
	require.NoError(t, Check(within(t), b.js, Settings{Replicas: 1}, more))
}

func TestAWrongStreamIsNamedAndNotRepaired(t *testing.T) {
	t.Parallel()
	cases := map[string]func(*jetstream.StreamConfig){
		"storage":              func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"retention":            func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy },
		"discard":              func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld },
		"duplicate_window":     func(c *jetstream.StreamConfig) { c.Duplicates = time.Second },
		"persist_mode":         func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode },
		"max_age":              func(c *jetstream.StreamConfig) { c.MaxAge = 0 },
		"max_msgs":             func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 },
		"max_bytes":            func(c *jetstream.StreamConfig) { c.MaxBytes = minMaxBytes },
		"max_msgs_per_subject": func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 },
		"subjects":             func(c *jetstream.StreamConfig) { c.Subjects = []string{"nw.>"} },
		"no_ack":               func(c *jetstream.StreamConfig) { c.NoAck = true },
		"deny_purge":           func(c *jetstream.StreamConfig) { c.DenyPurge = false },
		"republish":            func(c *jetstream.StreamConfig) { c.RePublish = &jetstream.RePublish{Destination: "elsewhere.>"} },
	}
	for setting, change := range cases {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			settings := Settings{Replicas: 1, MaxBytes: 2 * minMaxBytes}
			b.queue.settings = settings
			config := settings.stream()
			change(&config)
			before, err := b.js.CreateStream(within(t), config)
			require.NoError(t, err)
			require.Equal(t, setting, settingOf(t, Ensure(within(t), b.js, settings, []Ref{newRef()})).Setting)
			require.Equal(t, setting, settingOf(t, b.queue.Prepare(within(t), nil)).Setting)
			after, err := b.js.Stream(within(t), Stream)
			require.NoError(t, err)
			require.Equal(t, before.CachedInfo().Config, after.CachedInfo().Config)
			require.Zero(t, after.CachedInfo().State.Consumers)
		})
	}
}

func TestAWrongConsumerIsNamedAndNotRepaired(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.queue.Prepare(within(t), nil))
	cases := map[string]func(*jetstream.ConsumerConfig){
		"max_deliver":        func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 3 },
		"ack_wait":           func(c *jetstream.ConsumerConfig) { c.AckWait = time.Hour },
		"backoff":            func(c *jetstream.ConsumerConfig) { c.BackOff = []time.Duration{ackWait} },
		"filter_subject":     func(c *jetstream.ConsumerConfig) { c.FilterSubject = Subject(newRef()) },
		"mem_storage":        func(c *jetstream.ConsumerConfig) { c.MemoryStorage = true },
		"inactive_threshold": func(c *jetstream.ConsumerConfig) { c.InactiveThreshold = time.Hour },
		"max_batch":          func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch = 0 },
		"headers_only":       func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true },
		"pause_until": func(c *jetstream.ConsumerConfig) {
			until := time.Now().Add(time.Hour)
			c.PauseUntil = &until
		},
	}
	for setting, change := range cases {
		queue := newRef()
		config := queueConsumer(queue)
		change(&config)
		_, err := b.js.CreateConsumer(within(t), Stream, config)
		require.NoError(t, err, setting)
		for range 2 {
			require.Equal(t, setting, settingOf(t, Ensure(within(t), b.js, Settings{Replicas: 1}, []Ref{queue})).Setting)
			require.Equal(t, setting, settingOf(t, Check(within(t), b.js, Settings{Replicas: 1}, []Ref{queue})).Setting)
		}
		require.Equal(t, setting, settingOf(t, b.queue.Prepare(within(t), []Ref{queue})).Setting)
	}
}

func TestASettingErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	require.EqualError(t, &SettingError{"stream NW_RUNS", "storage", "file", "memory"}, "stream NW_RUNS has storage memory and must have file")
	require.EqualError(t, &SettingError{Of: "consumer q_x", Setting: absent},
		"consumer q_x does not exist; restart the scheduler or run nightwarrant admin nats-config --apply")
}

func TestManyConsumersAreChecked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	queues := make([]Ref, 260) // more than one page of the list
	for i := range queues {
		queues[i] = newRef()
	}
	require.NoError(t, b.queue.Prepare(within(t), queues))
	require.NoError(t, Check(within(t), b.js, Settings{Replicas: 1}, queues))
	require.NoError(t, b.js.DeleteConsumer(within(t), Stream, Consumer(queues[123])))
	require.Equal(t, "consumer "+Consumer(queues[123]), settingOf(t, Check(within(t), b.js, Settings{Replicas: 1}, queues)).Of)
}
