package fips

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"time"
)

const (
	dialWithin = 5 * time.Second
	maxInfo    = 32 << 10
)

// QueueDialer connects to NATS servers that are themselves in FIPS mode: one that
// is not announces an X25519 key (xkey) in the first line that it sends. It is a
// nats.CustomDialer, so that each connection, now and later, is looked at before
// anything is answered.
type QueueDialer struct{}

// Dial implements nats.CustomDialer.
func (QueueDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, dialWithin) //nolint:noctx // nats.CustomDialer has no context
	if err != nil {
		return nil, err
	}
	a, err := announced(c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return a, nil
}

// conn is a connection whose first line was read already.
type conn struct {
	net.Conn
	from *bufio.Reader
}

func (c *conn) Read(p []byte) (int, error) { return c.from.Read(p) }

// announced reads a server's first line and leaves it to be read once more.
func announced(c net.Conn) (net.Conn, error) {
	if err := c.SetReadDeadline(time.Now().Add(dialWithin)); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(c, maxInfo)
	line, err := peekLine(r)
	if err != nil {
		return nil, err
	}
	if err := approvedQueue(line); err != nil {
		return nil, err
	}
	return &conn{c, r}, c.SetReadDeadline(time.Time{})
}

func peekLine(r *bufio.Reader) ([]byte, error) {
	for {
		_, err := r.Peek(r.Buffered() + 1) // waits for more than there is
		seen, _ := r.Peek(r.Buffered())
		if end := bytes.IndexByte(seen, '\n'); end >= 0 {
			return seen[:end], nil
		}
		if err != nil {
			return nil, err
		}
	}
}

var errNoQueue = errors.New("fips: the queue's server did not begin with INFO")

func approvedQueue(line []byte) error {
	text, is := bytes.CutPrefix(line, []byte("INFO "))
	var info struct {
		XKey string   `json:"xkey"`
		WS   []string `json:"ws_connect_urls"`
	}
	if !is || json.Unmarshal(text, &info) != nil {
		return errNoQueue
	}
	switch {
	case info.XKey != "":
		return &Refused{NonApproved, "the queue's server is not in FIPS mode: it announces a curve key (xkey)"}
	case len(info.WS) > 0:
		return &Refused{NonApproved, "the queue's server has a WebSocket listener"}
	}
	return nil
}
