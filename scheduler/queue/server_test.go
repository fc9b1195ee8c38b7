package queue

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// own is a bench on a server whose configuration the test chooses.
type own struct {
	*bench
	dir    string
	limits limits
	server *server.Server
	client int // ports that stay
	pages  int
}

// limits of what may be stored, in bytes; -1 is none.
type limits struct{ server, account int }

const ownConfiguration = `
jetstream { store_dir: %q, sync_interval: %s, max_file_store: %d }
accounts { NW { jetstream { max_file: %d }, users: [{ user: u, password: p }] } }
`

func newOwn(t testing.TB, l limits) *own {
	t.Helper()
	o := &own{bench: &bench{}, dir: t.TempDir(), limits: l, client: -1, pages: -1}
	o.start(t, "always")
	t.Cleanup(o.stop)
	conn, err := nats.Connect(o.server.ClientURL(), nats.UserInfo("u", "p"), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	o.js, err = jetstream.New(conn)
	require.NoError(t, err)
	o.queue, err = New(Config{Conn: conn, Settings: Settings{Replicas: 1, MaxBytes: minMaxBytes}, Instance: [32]byte{1},
		Monitors: []string{"http://" + o.server.MonitorAddr().String()}})
	require.NoError(t, err)
	return o
}

// start runs the server, on the ports and files that it had before.
func (o *own) start(t testing.TB, sync string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, ownConfiguration, o.dir, sync, o.limits.server, o.limits.account), 0o600))
	options, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	options.Host, options.Port, options.HTTPHost, options.HTTPPort, options.NoLog, options.NoSigs = "127.0.0.1", o.client, "127.0.0.1", o.pages, true, true
	o.server, err = server.NewServer(options)
	require.NoError(t, err)
	o.server.Start()
	require.True(t, o.server.ReadyForConnections(testWithin))
	o.client, o.pages = options.Port, o.server.MonitorAddr().Port
}

func (o *own) stop() {
	o.server.Shutdown()
	o.server.WaitForShutdown()
}

// A server that comes back with another way of writing is found out by the next
// probe, and forgiven by the one after it was set right.
func TestAServerThatNoLongerSyncs(t *testing.T) {
	t.Parallel()
	o := newOwn(t, limits{64 << 20, -1})
	require.NoError(t, o.queue.Prepare(within(t), []Ref{newRef()}))
	requireReason(t, Good, o.queue.Canary(within(t)))
	for sync, want := range map[string]Reason{"2m": Wrong, "1s": Wrong, "always": Good} {
		o.stop()
		requireReason(t, Unreachable, o.queue.Canary(within(t)))
		o.start(t, sync)
		o.awaitConnection(t)
		health := o.queue.Canary(within(t))
		requireReason(t, want, health)
		if want == Wrong {
			require.Equal(t, "sync_interval", settingOf(t, health.Err).Setting)
		}
	}
}

func (o *own) awaitConnection(t testing.TB) {
	t.Helper()
	require.Eventually(t, o.queue.Connected, testWithin, 10*time.Millisecond)
}
