package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// hardware is a token behind a real socket.
type hardware struct {
	private *ecdsa.PrivateKey
	secret  []byte
	away    atomic.Bool
	stuck   sync.RWMutex // while it is locked, no call comes back
}

func (h *hardware) Describe() keyhost.Descriptor {
	public, _ := h.private.PublicKey.Bytes()
	return keyhost.Descriptor{Pairs: []keyhost.Pair{{Signing: "01", Nonce: "02", PublicKey: public}}}
}

func (h *hardware) Observe(context.Context) (keyhost.Observation, error) {
	return keyhost.Observation{At: time.Now().UTC()}, nil
}

func (h *hardware) SignDigest(_ context.Context, _ string, digest [32]byte) (out [64]byte, err error) {
	h.stuck.RLock()
	defer h.stuck.RUnlock()
	if h.away.Load() {
		return out, &keyhost.Error{Code: keyhost.KeyBusy}
	}
	r, s, err := ecdsa.Sign(rand.Reader, h.private, digest[:])
	if err == nil {
		r.FillBytes(out[:32])
		s.FillBytes(out[32:])
	}
	return out, err
}

func (h *hardware) MAC(_ context.Context, _ string, message []byte) (out [32]byte, err error) {
	m := hmac.New(sha256.New, h.secret)
	m.Write(message)
	m.Sum(out[:0])
	return out, nil
}

// start serves on a socket until it is told to stop.
func (h *hardware) start(t testing.TB, socket string) (stop func()) {
	t.Helper()
	s := &keyhost.Server{Keys: h, UIDs: []int{os.Getuid()}, Log: slog.New(slog.DiscardHandler),
		Purposes: []string{keyhost.PurposeCapability, keyhost.PurposeReadiness, keyhost.PurposeReceipt, keyhost.PurposeChallenge}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- s.Serve(ctx, func() (*net.UnixListener, error) {
			return net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
		})
	}()
	c := keyhost.NewClient(socket, os.Getuid())
	require.Eventually(t, func() bool { return c.Health(t.Context()) == nil }, testWithin, time.Millisecond)
	require.NoError(t, c.Close())
	return sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-done)
	})
}

// A replica signs with a key that it does not hold, closes while the token does not sign, and goes on when it does again.
func TestServeSignsInAToken(t *testing.T) {
	t.Parallel()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	h := &hardware{private: private, secret: []byte(rand.Text())}
	socket := filepath.Join(t.TempDir(), "s")
	end := h.start(t, socket)
	db := teststack.Database(t)
	s := newSite(t, db.URL("nw_authority"))
	place := []string{"--dir", filepath.Join(s.dir, "token"), "--identity-file", filepath.Join(s.dir, "identity")}
	made := env{}.good(t, append([]string{"keys", "init", "--keyhost", socket}, place...)...)
	env{}.run(t, append([]string{"keys", "register", "--database-url", db.URL("nw_operator")}, place...)...).bad(t, exitMisconfigured, "name the socket of its key host")
	registered := env{}.good(t, append([]string{"keys", "register", "--keyhost", socket, "--database-url", db.URL("nw_operator")}, place...)...)
	assert.Equal(t, made[strings.IndexByte(made, '\n'):], registered[strings.IndexByte(registered, '\n'):])

	s.file = s.with(t, "/bundle,", "/token, host: {socket: "+socket+"},")
	r := env{}.start(t, `"msg":"serving"`, "serve", "--config", s.file)
	super := db.Pool(t, teststack.Superuser)
	family := func(want string) {
		t.Helper()
		var got string
		require.Eventually(t, func() bool {
			err := super.QueryRow(t.Context(), `SELECT coalesce(string_agg(reason, ' '), '') FROM nw.readiness_reports WHERE family = 'signing'`).Scan(&got)
			return err == nil && got == want
		}, testWithin, 50*time.Millisecond, "%s", &got)
	}
	family("good")
	h.away.Store(true)
	family("material")
	h.away.Store(false)
	family("good")

	h.stuck.Lock() // nobody can call a call into a library off: who waits for it does not wait long
	family("material")
	h.stuck.Unlock()
	family("good")

	end()
	family("material")
	t.Cleanup(h.start(t, socket))
	family("good")
	assert.Equal(t, exitOK, r.end(), r.log)

	text, err := os.ReadFile(s.file)
	require.NoError(t, err)
	for from, to := range map[string]string{socket: socket + "x", "/token,": "/bundle,", "{socket": "{user: nobody, socket"} {
		bad := write(t, t.TempDir(), "authority.yaml", strings.Replace(string(text), from, to, 1))
		env{}.run(t, "serve", "--config", bad).bad(t, exitMisconfigured, "key host")
	}
}
