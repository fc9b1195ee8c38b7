package dev

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/config"
)

func TestWrongFilesOfAQueue(t *testing.T) {
	t.Parallel()
	const good = "port: 4222\nmonitor_port: 8222\ndir: d\nusers: [{name: n, password: p, publish: [\"a.>\"]}]\n"
	n := &NATS{}
	require.NoError(t, config.Parse("f", []byte(good), n, noEnv))
	assert.Equal(t, []string{"a.>"}, n.Users[0].Publish)
	assert.NotContains(t, fmt.Sprintf("%+v", n), "password:p ", "a password prints")
	for _, change := range [][2]string{
		{"port: 4222\n", "port: 0\n"}, {"port: 4222\n", "port: 65536\n"}, {"port: 4222\n", "port: -1\n"}, {"port: 4222\n", ""},
		{"monitor_port: 8222", "monitor_port: 4222"}, {"monitor_port: 8222\n", ""}, {"dir: d", `dir: ""`}, {"dir: d", "dir: d\nhost: 0.0.0.0"},
		{"users: [{name: n, password: p, publish: [\"a.>\"]}]\n", ""}, {"name: n, ", ""}, {"password: p, ", ""},
	} {
		require.Contains(t, good, change[0])
		var e *config.Error
		require.ErrorAs(t, config.Parse("f", []byte(strings.Replace(good, change[0], change[1], 1)), &NATS{}, noEnv), &e, "%v", change)
	}
}

// A queue is on the ports that it was told, open to its users only, and says of
// itself whether it syncs what it acknowledges.
func TestAQueueOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, lazy := range []bool{false, true} {
		n := &NATS{Port: portOf(t), MonitorPort: portOf(t), Dir: t.TempDir(), Lazy: lazy, Users: []User{{Name: "n", Password: "p", Publish: []string{"a"}, Subscribe: []string{"a"}}}}
		require.NoError(t, n.Check(noEnv))
		ctx, cancel := context.WithCancel(t.Context())
		ready := make(chan struct{})
		log := slog.New(slog.NewTextHandler(&line{want: "queueing", found: ready}, nil))
		ended := make(chan error, 1)
		go func() { ended <- RunNATS(ctx, n, log) }()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(30 * time.Second):
			t.Fatal("it is not ready")
		}
		at := fmt.Sprintf("nats://127.0.0.1:%d", n.Port)
		conn, err := nats.Connect(at, nats.UserInfo("n", "p"), nats.NoReconnect())
		require.NoError(t, err)
		_, err = nats.Connect(at, nats.UserInfo("n", "q"), nats.NoReconnect())
		require.ErrorIs(t, err, nats.ErrAuthorization)
		assert.Equal(t, !lazy, syncs(t, n.MonitorPort))
		require.Error(t, RunNATS(t.Context(), &NATS{Port: n.Port, MonitorPort: n.MonitorPort, Dir: t.TempDir(), Users: n.Users}, quiet()), "the ports are taken")
		conn.Close()
		cancel()
		require.NoError(t, <-ended)
	}
}

func portOf(t *testing.T) int64 {
	t.Helper()
	_, port, err := net.SplitHostPort(freePort(t))
	require.NoError(t, err)
	number, err := strconv.ParseInt(port, 10, 64)
	require.NoError(t, err)
	return number
}

func syncs(t *testing.T, monitor int64) bool {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/varz", monitor))
	require.NoError(t, err)
	defer answer.Body.Close()
	var page struct {
		JetStream struct {
			Config struct {
				SyncAlways bool `json:"sync_always"`
			} `json:"config"`
		} `json:"jetstream"`
	}
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&page))
	return page.JetStream.Config.SyncAlways
}

// line closes found at the first write that holds a text.
type line struct {
	want  string
	found chan struct{}
}

func (l *line) Write(b []byte) (int, error) {
	if l.found != nil && strings.Contains(string(b), l.want) {
		close(l.found)
		l.found = nil
	}
	return len(b), nil
}
