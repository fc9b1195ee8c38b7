package localstack

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startNATS starts a server that the test stops.
func startNATS(t *testing.T, options NATSOptions) *NATS {
	t.Helper()
	options.Dir = t.TempDir()
	n, err := StartNATS(soon(t, 30*time.Second), options)
	require.NoError(t, err)
	t.Cleanup(n.Stop)
	return n
}

func dial(t *testing.T, url string, options ...nats.Option) (*nats.Conn, error) {
	t.Helper()
	conn, err := nats.Connect(url, append([]nats.Option{nats.NoReconnect()}, options...)...)
	if err == nil {
		t.Cleanup(conn.Close)
	}
	return conn, err
}

var everything = NATSUser{Name: "all", Publish: []string{">"}, Subscribe: []string{">"}}

func TestStartNATSRefusesAServerOpenToAll(t *testing.T) {
	t.Parallel()
	_, err := StartNATS(context.Background(), NATSOptions{Dir: t.TempDir()})
	require.Error(t, err)
	_, err = StartNATS(context.Background(), NATSOptions{Users: []NATSUser{everything}})
	require.Error(t, err)
}

func TestNATSAdmitsItsUsersOnly(t *testing.T) {
	t.Parallel()
	n := startNATS(t, NATSOptions{Users: []NATSUser{everything, {Name: "known", Password: "given"}}})
	for _, url := range []string{
		n.URL("unknown"),
		n.URL(""),
		strings.Replace(n.URL("known"), "given", "guessed", 1),
		"nats://" + n.host(false),
	} {
		_, err := dial(t, url)
		require.ErrorIs(t, err, nats.ErrAuthorization, url)
	}
	for _, user := range []string{"all", "known"} {
		_, err := dial(t, n.URL(user))
		require.NoError(t, err, user)
	}
}

func TestNATSUserMayUseItsSubjectsOnly(t *testing.T) {
	t.Parallel()
	n := startNATS(t, NATSOptions{Users: []NATSUser{everything, {Name: "none"}, {Name: "some", Publish: []string{"q.a"}, Subscribe: []string{"q.a"}}}})
	for _, c := range []struct {
		user, subject string
		allowed       bool
	}{{"none", "q.a", false}, {"some", "q.b", false}, {"some", "q.a", true}, {"all", "q.b", true}} {
		refused := make(chan error, 4)
		conn, err := dial(t, n.URL(c.user), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
		require.NoError(t, err)
		sub, err := conn.SubscribeSync(c.subject)
		require.NoError(t, err)
		require.NoError(t, conn.Publish(c.subject, []byte("x")))
		require.NoError(t, conn.FlushTimeout(10*time.Second))
		if c.allowed {
			_, err := sub.NextMsg(10 * time.Second)
			require.NoError(t, err, c)
			continue
		}
		require.ErrorIs(t, <-refused, nats.ErrPermissionViolation, c)
		require.ErrorIs(t, <-refused, nats.ErrPermissionViolation, c) // one to subscribe, one to publish
	}
}

func TestNATSSyncsEveryWrite(t *testing.T) {
	t.Parallel()
	assert.True(t, syncAlways(t, startNATS(t, NATSOptions{Users: []NATSUser{everything}})))
	assert.False(t, syncAlways(t, startNATS(t, NATSOptions{Users: []NATSUser{everything}, Lazy: true})))
}

// syncAlways is what the server says of itself, as readiness asks it.
func syncAlways(t *testing.T, n *NATS) bool {
	t.Helper()
	request, err := http.NewRequestWithContext(soon(t, 10*time.Second), http.MethodGet, n.MonitorURL()+"/varz", nil)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	require.NoError(t, err)
	var varz struct {
		Host      string `json:"host"`
		JetStream struct {
			Config struct {
				SyncAlways bool   `json:"sync_always"`
				StoreDir   string `json:"store_dir"`
			} `json:"config"`
		} `json:"jetstream"`
	}
	require.NoError(t, json.Unmarshal(body, &varz))
	assert.Equal(t, loopback, varz.Host)
	assert.True(t, strings.HasPrefix(varz.JetStream.Config.StoreDir, n.Dir()))
	return varz.JetStream.Config.SyncAlways
}

func TestNATSKeepsStreamsAndAddressesOverARestart(t *testing.T) {
	t.Parallel()
	n := startNATS(t, NATSOptions{Users: []NATSUser{everything}})
	url, monitor := n.URL("all"), n.MonitorURL()
	closed := make(chan struct{})
	conn, err := dial(t, url, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	require.NoError(t, err)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	ctx := soon(t, 30*time.Second)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "KEPT", Subjects: []string{"kept"}, Storage: jetstream.FileStorage})
	require.NoError(t, err)
	_, err = js.Publish(ctx, "kept", []byte("reference"))
	require.NoError(t, err)

	n.Stop()
	<-closed
	_, err = dial(t, url)
	require.Error(t, err)
	n.Stop() // twice is no error
	require.NoError(t, n.Restart(ctx))
	assert.Equal(t, url, n.URL("all"))
	assert.Equal(t, monitor, n.MonitorURL())

	conn, err = dial(t, url)
	require.NoError(t, err)
	js, err = jetstream.New(conn)
	require.NoError(t, err)
	stream, err := js.Stream(ctx, "KEPT")
	require.NoError(t, err)
	message, err := stream.GetLastMsgForSubject(ctx, "kept")
	require.NoError(t, err)
	assert.Equal(t, "reference", string(message.Data))
}

func TestNATSLogsWhereItIsTold(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	n := startNATS(t, NATSOptions{Users: []NATSUser{everything}, Logs: slog.NewTextHandler(&lines, nil)})
	n.Stop()
	assert.Contains(t, lines.String(), "Server is ready")
	assert.NotContains(t, lines.String(), n.users["all"])
}

func TestNATSSaysWhyItCannotStart(t *testing.T) {
	t.Parallel()
	n := startNATS(t, NATSOptions{Users: []NATSUser{everything}})
	_, err := StartNATS(soon(t, 30*time.Second), NATSOptions{Dir: t.TempDir(), Users: []NATSUser{everything}, Port: n.options.Port})
	require.ErrorContains(t, err, "address already in use")
}
