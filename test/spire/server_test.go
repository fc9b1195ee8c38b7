//go:build spire

package spire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/freeport"
)

// domain is a trust domain: a SPIRE server with its bundle endpoint (https_web).
type domain struct {
	t         *testing.T
	dir, name string
	port      int
	bundleURL string
	roots     *x509.CertPool
}

const serverConf = `server {
  bind_address = "127.0.0.1"
  bind_port = "PORT"
  socket_path = "DIR/server.sock"
  trust_domain = "NAME"
  data_dir = "DIR/server"
  log_level = "INFO"
  ca_key_type = "ec-p256"
  federation {
    bundle_endpoint {
      address = "127.0.0.1"
      port = BUNDLE
      profile "https_web" {
        serving_cert_file {
          cert_file_path = "DIR/web.pem"
          key_file_path = "DIR/web.key"
          file_sync_interval = "1h"
        }
      }
    }
  }
}
plugins {
  DataStore "sql" {
    plugin_data {
      database_type = "sqlite3"
      connection_string = "DIR/server/data.sqlite3"
    }
  }
  NodeAttestor "join_token" {
    plugin_data {}
  }
  KeyManager "memory" {
    plugin_data {}
  }
}
`

const agentConf = `agent {
  data_dir = "DIR/agent"
  log_level = "INFO"
  server_address = "127.0.0.1"
  server_port = "PORT"
  socket_path = "DIR/agent.sock"
  trust_bundle_path = "DIR/bundle.pem"
  trust_domain = "NAME"
}
plugins {
  NodeAttestor "join_token" {
    plugin_data {}
  }
  KeyManager "memory" {
    plugin_data {}
  }
  WorkloadAttestor "unix" {
    plugin_data {}
  }
}
`

// serve starts a server and waits until it answers.
func serve(t *testing.T, name string) *domain {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "nw-spire-") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	d := &domain{t: t, dir: dir, name: name, port: freePort(t)}
	bundle := freePort(t)
	d.bundleURL = fmt.Sprintf("https://127.0.0.1:%d/", bundle)
	d.roots = d.certificate()
	for _, folder := range []string{"server", "agent"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, folder), 0o700))
	}
	d.configure("server.conf", strings.ReplaceAll(serverConf, "BUNDLE", strconv.Itoa(bundle)))
	d.start("spire-server", "run", "-config", d.path("server.conf"))
	d.eventually(func() bool { return d.server("healthcheck") != nil })
	return d
}

// attest starts an agent with a join token.
func (d *domain) attest() {
	d.configure("agent.conf", agentConf)
	d.write("bundle.pem", string(d.must("bundle", "show")))
	token := strings.TrimSpace(strings.TrimPrefix(string(d.must("token", "generate", "-spiffeID", d.id("/agent"))), "Token:"))
	d.start("spire-agent", "run", "-config", d.path("agent.conf"), "-joinToken", token)
	d.eventually(func() bool { return d.run("spire-agent", "healthcheck", "-socketPath", d.path("agent.sock")) != nil })
}

// register lets processes of this account have an id, in SVIDs of a short life.
func (d *domain) register(path string, ttl time.Duration) {
	d.must("entry", "create", "-parentID", d.id("/agent"), "-spiffeID", d.id(path), "-selector", "unix:uid:"+strconv.Itoa(os.Getuid()), "-jwtSVIDTTL", strconv.Itoa(int(ttl.Seconds())))
}

func (d *domain) id(path string) string { return "spiffe://" + d.name + path }

func (d *domain) path(name string) string { return filepath.Join(d.dir, name) }

// configure fills in what is this domain's.
func (d *domain) configure(name, text string) {
	d.write(name, strings.NewReplacer("DIR", d.dir, "NAME", d.name, "PORT", strconv.Itoa(d.port)).Replace(text))
}

func (d *domain) write(name, text string) {
	d.t.Helper()
	require.NoError(d.t, os.WriteFile(d.path(name), []byte(text), 0o600))
}

func binary(name string) string { return filepath.Join(os.Getenv("NIGHTWARRANT_SPIRE"), name) }

// run is one command, or nil when it fails.
func (d *domain) run(program string, args ...string) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary(program), args...).Output() //nolint:gosec // built by make spire
	if err != nil {
		return nil
	}
	return append(out, '\n')
}

func (d *domain) server(verb string, args ...string) []byte {
	words := append(strings.Fields(verb), "-socketPath", d.path("server.sock"))
	return d.run("spire-server", append(words, args...)...)
}

func (d *domain) must(noun, verb string, args ...string) []byte {
	d.t.Helper()
	out := d.server(noun+" "+verb, args...)
	require.NotNil(d.t, out, "spire-server %s %s", noun, verb)
	return out
}

// start runs a server until the test ends; its log is shown when that fails.
func (d *domain) start(program string, args ...string) {
	d.t.Helper()
	log, err := os.Create(d.path(program + ".log"))
	require.NoError(d.t, err)
	ctx, stop := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, binary(program), args...) //nolint:gosec // built by make spire
	c.Stdout, c.Stderr, c.WaitDelay = log, log, 5*time.Second
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	require.NoError(d.t, c.Start())
	d.t.Cleanup(func() {
		stop()
		_ = c.Wait() // it was told to end
		text, _ := os.ReadFile(log.Name())
		if d.t.Failed() {
			d.t.Log(program + ":\n" + string(text[max(0, len(text)-4000):]))
		}
		_ = log.Close() // nobody reads on
	})
}

func (d *domain) eventually(is func() bool) {
	d.t.Helper()
	require.Eventually(d.t, is, 2*time.Minute, 200*time.Millisecond)
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := freeport.Port()
	require.NoError(t, err)
	return port
}

// certificate is the bundle endpoint's own.
func (d *domain) certificate() *x509.CertPool {
	d.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(d.t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	require.NoError(d.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(d.t, err)
	d.write("web.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	d.write("web.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return roots
}
