package keyhost_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// token is one in memory, which may go wrong.
type token struct {
	private *ecdsa.PrivateKey
	lies    atomic.Bool           // signs with another key
	fails   atomic.Pointer[error] // instead of signing
	shows   atomic.Pointer[keyhost.Observation]
	late    chan struct{} // until it is closed the token does not answer, and then says so
	stuck   chan struct{} // until it is closed, when it is there
}

func newToken(t testing.TB) *token {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return &token{private: private}
}

func (k *token) Describe() keyhost.Descriptor {
	public, _ := k.private.PublicKey.Bytes()
	return keyhost.Descriptor{Pairs: []keyhost.Pair{{Signing: "01", Nonce: "02", PublicKey: public}}}
}

func (k *token) Observe(context.Context) (keyhost.Observation, error) {
	return *k.shows.Load(), nil
}

func (k *token) SignDigest(ctx context.Context, _ string, digest [32]byte) (out [64]byte, err error) {
	if e := k.fails.Load(); e != nil {
		return out, *e
	}
	if k.late != nil {
		<-k.late
		return out, &keyhost.Error{Code: keyhost.KeyChallengeTimeout}
	}
	if k.stuck != nil {
		select {
		case <-k.stuck:
		case <-ctx.Done():
			return out, &keyhost.Error{Code: keyhost.KeyBusy}
		}
	}
	private := k.private
	if k.lies.Load() {
		private, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	r, s, err := ecdsa.Sign(rand.Reader, private, digest[:])
	if err == nil {
		r.FillBytes(out[:32])
		s.FillBytes(out[32:])
	}
	return out, err
}

func (k *token) MAC(_ context.Context, _ string, message []byte) ([32]byte, error) {
	return sha256.Sum256(message), nil
}

// host is a running server.
type host struct {
	path string
	end  chan error
}

func serve(t testing.TB, k keyhost.Keys) host {
	t.Helper()
	h := host{filepath.Join(t.TempDir(), "s"), make(chan error, 1)}
	s := &keyhost.Server{Keys: k, UIDs: []int{os.Getuid()}, Purposes: []string{keyhost.PurposeCapability}, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		h.end <- s.Serve(ctx, func() (*net.UnixListener, error) {
			return net.ListenUnix("unix", &net.UnixAddr{Name: h.path, Net: "unix"})
		})
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return h
}

func (h host) client(t testing.TB) *keyhost.Client {
	t.Helper()
	c := keyhost.NewClient(h.path, os.Getuid())
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	require.Eventually(t, func() bool {
		_, err := c.Describe(t.Context())
		return err == nil
	}, 30*time.Second, time.Millisecond)
	return c
}

func codeOf(t testing.TB, err error) keyhost.Code {
	t.Helper()
	e, ok := errors.AsType[*keyhost.Error](err)
	require.True(t, ok, "%v", err)
	return e.Code
}

var digest = sha256.Sum256([]byte("x"))

func TestSignaturesOfAnotherKeyDoNotLeave(t *testing.T) {
	t.Parallel()
	k := newToken(t)
	h := serve(t, k)
	c := h.client(t)
	_, err := c.SignDigest(t.Context(), "01", keyhost.PurposeCapability, digest)
	require.NoError(t, err)
	k.lies.Store(true)
	signature, err := c.SignDigest(t.Context(), "01", keyhost.PurposeCapability, digest)
	assert.Equal(t, keyhost.KeyChallengeFailed, codeOf(t, err))
	assert.Zero(t, signature)
	assert.Equal(t, keyhost.KeyChallengeFailed, codeOf(t, <-h.end), "and the host ends")
}

func TestATokenThatLiesIsNotServed(t *testing.T) {
	t.Parallel()
	k := newToken(t)
	k.lies.Store(true)
	assert.Equal(t, keyhost.KeyChallengeFailed, codeOf(t, <-serve(t, k).end))
}

func TestOnlySuspicionEndsTheHost(t *testing.T) {
	t.Parallel()
	k := newToken(t)
	h := serve(t, k)
	c := h.client(t)
	busy := error(&keyhost.Error{Code: keyhost.KeyBusy})
	require.NoError(t, c.Health(t.Context()))
	k.fails.Store(&busy)
	assert.Equal(t, keyhost.KeyBusy, codeOf(t, c.Health(t.Context())))
	k.fails.Store(nil)
	_, err := c.SignDigest(t.Context(), "01", keyhost.PurposeReceipt, digest)
	assert.Equal(t, keyhost.PurposeRefused, codeOf(t, err))
	_, err = c.MAC(t.Context(), "02", []byte("m"))
	require.NoError(t, err)
	require.NoError(t, c.Health(t.Context()))

	gone := errors.New("what no code was given to")
	k.fails.Store(&gone)
	assert.Equal(t, keyhost.TokenUnavailable, codeOf(t, c.Health(t.Context())))
	k.fails.Store(nil)
	require.NoError(t, c.Health(t.Context()))

	suspect := error(&keyhost.Error{Code: keyhost.TokenUnavailable, Why: "CKR 0x32"})
	k.fails.Store(&suspect)
	assert.ErrorContains(t, c.Health(t.Context()), "CKR 0x32")
	assert.Equal(t, keyhost.TokenUnavailable, codeOf(t, <-h.end))
	assert.Equal(t, keyhost.TokenUnavailable, codeOf(t, c.Health(t.Context())), "nobody is there any more")
}

func TestAClientWaitsNoLongerThanItSays(t *testing.T) {
	t.Parallel()
	k := newToken(t)
	h := serve(t, k)
	c := h.client(t)
	require.NoError(t, c.Health(t.Context()))
	k.stuck = make(chan struct{})
	defer close(k.stuck)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := c.SignDigest(ctx, "01", keyhost.PurposeCapability, digest)
	require.Error(t, err)
	assert.Less(t, time.Since(began), 5*time.Second)
}

// A host that runs late into a call that does not come back ends, though the client that asked has gone long ago.
func TestATokenThatIsTooLateEndsTheHost(t *testing.T) {
	t.Parallel()
	k := newToken(t)
	h := serve(t, k)
	c := h.client(t)
	k.late = make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.SignDigest(ctx, "01", keyhost.PurposeCapability, digest)
	assert.Equal(t, keyhost.TokenUnavailable, codeOf(t, err))
	require.NoError(t, c.Close())
	close(k.late)
	assert.Equal(t, keyhost.KeyChallengeTimeout, codeOf(t, <-h.end))
}

func TestAKeyThatIsNotServed(t *testing.T) {
	t.Parallel()
	c := serve(t, newToken(t)).client(t)
	_, err := c.SignDigest(t.Context(), "02", keyhost.PurposeCapability, digest)
	assert.Equal(t, keyhost.KeyUnknown, codeOf(t, err))
	require.NoError(t, c.Health(t.Context()))
}

func TestJunkIsNotAnswered(t *testing.T) {
	t.Parallel()
	h := serve(t, newToken(t))
	require.NoError(t, h.client(t).Health(t.Context()))
	for name, message := range map[string][]byte{
		"nothing":          {0, 0, 0, 0},
		"too much":         binary.BigEndian.AppendUint32(nil, 1<<20),
		"not as we say it": append(binary.BigEndian.AppendUint32(nil, 15), `{"op": "health"}`[:15]...),
		"another word":     append(binary.BigEndian.AppendUint32(nil, 24), `{"op":"health","more":1}`...),
		"twice":            append(binary.BigEndian.AppendUint32(nil, 30), `{"op":"describe","op":"health"}`[:30]...),
		"no JSON":          append(binary.BigEndian.AppendUint32(nil, 3), "abc"...),
		"half a message":   append(binary.BigEndian.AppendUint32(nil, 30), "{"...),
	} {
		conn, err := net.Dial("unix", h.path)
		require.NoError(t, err)
		_, err = conn.Write(message)
		require.NoError(t, err)
		require.NoError(t, conn.(*net.UnixConn).CloseWrite())
		got, _ := io.ReadAll(conn)
		assert.Empty(t, got, name)
		require.NoError(t, conn.Close())
	}
	for _, q := range []string{`{"op":"no such"}`, `{"op":"sign","key":"01","purpose":"capability","data":"AAAA"}`} {
		conn, err := net.Dial("unix", h.path)
		require.NoError(t, err)
		_, err = conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(q))), q...))
		require.NoError(t, err)
		head := make([]byte, 4)
		_, err = io.ReadFull(conn, head)
		require.NoError(t, err)
		text := make([]byte, binary.BigEndian.Uint32(head))
		_, err = io.ReadFull(conn, text)
		require.NoError(t, err)
		assert.Contains(t, string(text), keyhost.RequestMalformed)
		require.NoError(t, conn.Close())
	}
	require.NoError(t, h.client(t).Health(t.Context()))
}
