package pg_test

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// proxy stands between pgx and the server's socket.
type proxy struct {
	dir      string
	listener net.Listener
	server   string
	cut      atomic.Bool
	accepted atomic.Int64
	running  sync.WaitGroup
}

const socketName = ".s.PGSQL.5432"

func startProxy(t *testing.T, db *teststack.DB) *proxy {
	t.Helper()
	server, err := url.Parse(db.URL(teststack.Owner))
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "nw-proxy-")
	require.NoError(t, err)
	listener, err := net.Listen("unix", filepath.Join(dir, socketName))
	require.NoError(t, err)
	p := &proxy{dir: dir, listener: listener, server: filepath.Join(server.Query().Get("host"), socketName)}
	p.running.Go(p.serve)
	t.Cleanup(func() {
		assert.NoError(t, p.listener.Close())
		p.running.Wait()
		assert.NoError(t, os.RemoveAll(dir))
	})
	return p
}

// pool goes through the proxy.
func (p *proxy) pool(t *testing.T, db *teststack.DB) *pgxpool.Pool {
	t.Helper()
	through, err := url.Parse(db.URL(teststack.Owner))
	require.NoError(t, err)
	query := through.Query()
	query.Set("host", p.dir)
	through.RawQuery = query.Encode()
	pool, err := pg.Open(soon(t), pg.Config{URL: through.String()})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// cutNextAnswer loses what the server says next, and with it the connection.
func (p *proxy) cutNextAnswer() { p.cut.Store(true) }

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.accepted.Add(1)
		server, err := net.Dial("unix", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.running.Go(func() { pump(server, client, nil) })
		p.running.Go(func() { pump(client, server, &p.cut) })
	}
}

// pump copies until either side ends, or cut is set when something arrives.
func pump(to, from net.Conn, cut *atomic.Bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil || (cut != nil && cut.Load()) {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
