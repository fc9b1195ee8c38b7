package keyhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Client asks the helper. It is safe for concurrent use: some questions are put
// at once, and the others wait for those.
type Client struct {
	path    string
	timeout time.Duration
	uid     int
	places  chan struct{}
	idle    chan *link
}

// Bounds of a client.
const (
	maxAtOnce      = 32
	defaultTimeout = 2 * time.Second
)

// NewClient returns the client of a helper's socket. The process behind it must
// be of the user uid; nobody is asked before the first question.
func NewClient(path string, uid int) *Client {
	return &Client{path: path, timeout: defaultTimeout, uid: uid, places: make(chan struct{}, maxAtOnce), idle: make(chan *link, maxAtOnce)}
}

// Describe returns the keys that the host serves.
func (c *Client) Describe(ctx context.Context) (Descriptor, error) {
	a, err := c.ask(ctx, question{Op: opDescribe})
	if err == nil && a.Descriptor == nil {
		err = errMessage
	}
	if err != nil {
		return Descriptor{}, err
	}
	return *a.Descriptor, nil
}

// SignDigest returns the ES256 signature r ‖ s of a SHA-256 digest, by the
// signing key of that CKA_ID. The helper has verified it.
func (c *Client) SignDigest(ctx context.Context, key, purpose string, digest [32]byte) (signature [64]byte, err error) {
	a, err := c.ask(ctx, question{Op: opSign, Key: key, Purpose: purpose, Data: digest[:]})
	if err == nil && len(a.Data) != len(signature) {
		err = errMessage
	}
	copy(signature[:], a.Data)
	return signature, err
}

// MAC returns HMAC-SHA-256 under the nonce key of that CKA_ID.
func (c *Client) MAC(ctx context.Context, key string, message []byte) (mac [32]byte, err error) {
	a, err := c.ask(ctx, question{Op: opMAC, Key: key, Data: message})
	if err == nil && len(a.Data) != len(mac) {
		err = errMessage
	}
	copy(mac[:], a.Data)
	return mac, err
}

// Health has every signing key sign a fresh challenge.
func (c *Client) Health(ctx context.Context) error {
	_, err := c.ask(ctx, question{Op: opHealth})
	return err
}

// Close ends the connections that are kept.
func (c *Client) Close() error {
	var all []error
	for {
		select {
		case conn := <-c.idle:
			all = append(all, conn.Close())
		default:
			return errors.Join(all...)
		}
	}
}

// ask puts one question. A connection may be of a helper that is going away:
// then a new one is asked once more, since every question may be put twice.
func (c *Client) ask(ctx context.Context, q question) (a answer, err error) {
	deadline := time.Now().Add(c.timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return answer{}, &Error{KeyBusy, "every connection to the key host is in use"}
	}
	for _, connect := range []func(context.Context) (*link, error){c.kept, c.dial} {
		var conn *link
		if conn, err = connect(ctx); err != nil {
			break
		}
		if a, err = c.on(conn, deadline, q); err == nil || isRefusal(err) {
			return a, err
		}
	}
	return answer{}, &Error{TokenUnavailable, fmt.Sprintf("the key host does not answer: %v", err)}
}

// kept is a connection that was used before, or a new one.
func (c *Client) kept(ctx context.Context) (*link, error) {
	select {
	case conn := <-c.idle:
		return conn, nil
	default:
		return c.dial(ctx)
	}
}

func isRefusal(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return ok
}

func (c *Client) on(conn *link, deadline time.Time, q question) (a answer, err error) {
	if err = conn.SetDeadline(deadline); err == nil {
		err = send(conn, q)
	}
	if err == nil {
		err = receive(conn, &a)
	}
	if err != nil {
		return answer{}, errors.Join(err, conn.Close())
	}
	c.idle <- conn // there are as many places
	if a.Code != "" {
		return answer{}, &Error{a.Code, a.Why}
	}
	return a, nil
}

func (c *Client) dial(ctx context.Context) (*link, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, err
	}
	uid, err := peer(conn.(*net.UnixConn))
	if err == nil && uid != c.uid {
		err = fmt.Errorf("it runs as user %d and not as %d", uid, c.uid)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return newLink(conn), nil
}

// peer is the user of the process at the other end.
func peer(conn *net.UnixConn) (uid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, failed
	}
	return int(cred.Uid), nil
}
