package fips

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// saying is a server that says something to each who connects, and then listens.
func saying(t *testing.T, text string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, text)
			if strings.Contains(text, "\n") {
				_, _ = io.Copy(io.Discard, c)
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

func TestQueueDialer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ says, refused string }{
		"in FIPS mode":       {"INFO {\"server_id\":\"N\"} \r\nPING\r\n", ""},
		"outside":            {"INFO {\"xkey\":\"XABC\"} \r\n", "xkey"},
		"websocket":          {"INFO {\"ws_connect_urls\":[\"10.0.0.1:80\"]} \r\n", "WebSocket"},
		"another protocol":   {"HTTP/1.1 400 Bad Request\r\n", "did not begin with INFO"},
		"no JSON":            {"INFO xkey\r\n", "did not begin with INFO"},
		"it hangs up":        {"INFO {", "EOF"},
		"it never ends":      {"INFO {" + strings.Repeat(" ", maxInfo) + "\n", "buffer full"},
		"a key with a quote": {"INFO {\"XKEY\":\"XABC\"} \r\n", "xkey"},
	} {
		conn, err := QueueDialer{}.Dial("tcp", saying(t, c.says))
		if c.refused != "" {
			require.ErrorContains(t, err, c.refused, name)
			continue
		}
		require.NoError(t, err, name)
		line, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, c.says[:len(line)], line, "the line is there to be read")
		require.NoError(t, conn.Close())
	}
	_, err := QueueDialer{}.Dial("tcp", "127.0.0.1:1")
	require.Error(t, err)
}
