package upstream

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a listener that does to each connection what a test says.
type server struct {
	url   *url.URL
	conns atomic.Int64
}

// serve gives each connection to what, after the head of a request was read.
func serve(t *testing.T, what func(c net.Conn, r *http.Request)) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{url: &url.URL{Scheme: "http", Host: l.Addr().String(), Path: "/orders/7"}}
	done := make(chan struct{})
	open := make(chan net.Conn, 100)
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.conns.Add(1)
			open <- c
			go func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err == nil {
					what(c, r)
				}
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		close(open)
		for c := range open {
			_ = c.Close()
		}
	})
	return s
}

// says answers with exactly that.
func says(t *testing.T, text string) *server {
	return serve(t, func(c net.Conn, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(c, text)
	})
}

// client may reach a server of this test.
func client(t *testing.T, servers ...*server) *Client {
	t.Helper()
	var list []string
	for _, s := range servers {
		list = append(list, s.url.Host)
	}
	private, err := ParsePrivate(list)
	require.NoError(t, err)
	return New(Config{Private: private, MaxAnswer: 64 << 10})
}

// get makes one whole exchange.
func get(t *testing.T, c *Client, u *url.URL, within time.Duration) (status int, body string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	conn, err := c.Connect(ctx, u)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	a, err := conn.Exchange(ctx, Request{Method: http.MethodPost, URL: u, Header: http.Header{"Authorization": {"Bearer hush"}}, Body: []byte(`{"a":1}`)})
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(a.Body)
	return a.Status, string(text), err
}

func requireCategory(t *testing.T, err error, want Category) {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, want, e.Category, err)
	require.NotContains(t, err.Error(), "hush")
}

// names is a resolver that answers each question with the next list.
type names struct {
	answers [][]string
	asked   atomic.Int64
}

func (n *names) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	turn := int(n.asked.Add(1)) - 1
	if turn >= len(n.answers) {
		return nil, &net.DNSError{IsNotFound: true}
	}
	var all []netip.Addr
	for _, text := range n.answers[turn] {
		all = append(all, netip.MustParseAddr(text))
	}
	return all, nil
}
