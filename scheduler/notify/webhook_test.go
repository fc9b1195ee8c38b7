package notify

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/webhook"
)

func testSecret(t testing.TB) webhook.Secret {
	t.Helper()
	s, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	require.NoError(t, err)
	return s
}

// to is a webhook to a server that answers with h.
func to(t testing.TB, h http.HandlerFunc) *Webhook {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	w, err := NewWebhook(s.URL+"/hook", testSecret(t))
	require.NoError(t, err)
	return w
}

func TestAddressesThatAreNone(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "://", "ftp://a.example/", "https://", "/hook", "https://u:p@a.example/"} {
		_, err := NewWebhook(address, testSecret(t))
		require.Error(t, err, address)
	}
	_, err := NewWebhook("https://a.example/hook", webhook.Secret{})
	require.Error(t, err)
}

// What arrives is signed, and is what a receiver of the other package takes.
func TestAReceiverTakesIt(t *testing.T) {
	t.Parallel()
	var got []string
	w := to(t, webhook.Handler(testSecret(t), time.Now, func(id string, body []byte) error {
		got = append(got, id+" "+string(body))
		return nil
	}).ServeHTTP)
	require.NoError(t, w.Post(t.Context(), "one", []byte(`{}`)))
	assert.Equal(t, []string{"one {}"}, got)
	w.now = func() time.Time { return time.Now().Add(-webhook.Window - 2*time.Second) }
	var refused *Refused
	require.ErrorAs(t, w.Post(t.Context(), "two", []byte(`{}`)), &refused)
	assert.Equal(t, 400, refused.Status)
	assert.Len(t, got, 1)
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{200: "", 202: "", 204: "", 299: "", 300: "refused", 301: "refused", 304: "refused", 307: "refused", 400: "refused", 401: "refused", 404: "refused",
		408: "away", 410: "refused", 413: "refused", 425: "away", 429: "away", 500: "away", 502: "away", 503: "away", 599: "away"} {
		err := to(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }).Post(t.Context(), "one", nil)
		refused, is := errors.AsType[*Refused](err)
		switch want {
		case "":
			assert.NoError(t, err, status)
		case "refused":
			if assert.True(t, is, status) {
				assert.Equal(t, status, refused.Status)
			}
		default:
			assert.Error(t, err, status)
			assert.False(t, is, status)
		}
	}
}

// No redirect is followed: neither the message nor its signature goes anywhere else.
func TestNoRedirectIsFollowed(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		err := to(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, status) }).Post(t.Context(), "one", []byte("{}"))
		require.Error(t, err)
	}
	assert.Zero(t, elsewhere.Load())
}

// A proxy of the environment is not asked.
func TestNoProxy(t *testing.T) {
	var asked atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(proxy.Close)
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	w, err := NewWebhook("https://receiver.invalid/hook", testSecret(t))
	require.NoError(t, err)
	require.Error(t, w.Post(t.Context(), "one", nil))
	assert.Zero(t, asked.Load())
	assert.Nil(t, w.client.Transport.(*http.Transport).Proxy)
}

// Errors tell what went wrong, and neither the path nor the secret.
func TestErrorsNameNoURL(t *testing.T) {
	t.Parallel()
	w, err := NewWebhook("http://127.0.0.1:1/only-we-know", testSecret(t))
	require.NoError(t, err)
	err = w.Post(t.Context(), "one", nil)
	require.ErrorContains(t, err, "refused")
	assert.NotContains(t, err.Error(), "only-we-know")
}

// http goes to this machine and no other, whatever a name resolves to.
func TestInTheClearToALoopbackAddressOnly(t *testing.T) {
	t.Parallel()
	w, err := NewWebhook("http://192.0.2.1:9/hook", testSecret(t))
	require.NoError(t, err)
	require.ErrorContains(t, w.Post(t.Context(), "one", nil), "loopback")
	for address, good := range map[string]bool{"127.0.0.1:80": true, "[::1]:80": true, "127.9.9.9:1": true, "[::ffff:127.0.0.1]:80": true, "10.0.0.1:80": false, "[::ffff:10.0.0.1]:80": false,
		"169.254.169.254:80": false, "[fe80::1%eth0]:80": false, "nowhere": false, "": false} {
		assert.Equal(t, good, loopbackOnly("tcp", address, nil) == nil, address)
	}
}

// A certificate that nobody vouches for is a receiver that is away, and so is an old protocol.
func TestTLS(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was reached") }))
	t.Cleanup(s.Close)
	w, err := NewWebhook(s.URL, testSecret(t))
	require.NoError(t, err)
	require.ErrorContains(t, w.Post(t.Context(), "one", nil), "certificate")

	taken := 0
	old := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { taken++ }))
	old.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11} //nolint:gosec // that is the point
	old.StartTLS()
	t.Cleanup(old.Close)
	w, err = NewWebhook(old.URL, testSecret(t))
	require.NoError(t, err)
	w.client.Transport.(*http.Transport).TLSClientConfig.RootCAs = old.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	require.ErrorContains(t, w.Post(t.Context(), "one", nil), "protocol version")
	assert.Zero(t, taken)
}

// Hostile receivers cost no memory and no more than their deadline.
func TestHostileReceivers(t *testing.T) {
	t.Parallel()
	w := to(t, func(w http.ResponseWriter, _ *http.Request) { // a body without end
		w.WriteHeader(http.StatusOK)
		for chunk := make([]byte, 1<<16); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	require.NoError(t, w.Post(t.Context(), "one", nil), "what nobody reads does not matter")
	w = to(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 64<<10)) })
	require.Error(t, w.Post(t.Context(), "one", nil), "long headers")

	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	w, err = NewWebhook("http://"+l.Addr().String(), testSecret(t))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, w.Post(ctx, "one", nil), context.DeadlineExceeded)
	assert.Equal(t, postWithin, w.client.Timeout)
}

// One attempt is one request, also when the connection breaks.
func TestOneAttemptIsOneRequest(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	w := to(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			_ = conn.Close()
		}
	})
	for want := int32(1); want <= 3; want++ {
		require.Error(t, w.Post(t.Context(), "one", []byte("{}")))
		assert.Equal(t, want, requests.Load())
	}
}
