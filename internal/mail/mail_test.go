package mail_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	netmail "net/mail"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/internal/mail"
	"github.com/nightwarrant/nightwarrant/internal/mail/sink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const sender = "notices@nightwarrant.example"

func aMessage() mail.Message {
	return mail.Message{To: "ada@people.example", ID: "AQEBAQEBAQEBAQEBAQEBAQ", Subject: "A task of yours waits", Text: "One line.\n.and one with a dot\nhttps://console.example/\n"}
}

// certified is a server's certificate for 127.0.0.1, with who vouches for it.
func certified(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	t.Cleanup(s.Close)
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates}, pool //nolint:gosec // the client decides on versions
}

func server(t testing.TB, c sink.Config) *sink.Server {
	t.Helper()
	s, err := sink.Start(t.Context(), "127.0.0.1:0", c)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func client(t testing.TB, scheme string, s *sink.Server, change ...func(*mail.Config)) *mail.Client {
	t.Helper()
	c := mail.Config{URL: scheme + "://" + s.Address(), From: sender}
	for _, f := range change {
		f(&c)
	}
	m, err := mail.New(c)
	require.NoError(t, err)
	t.Cleanup(m.Close)
	return m
}

func trusting(pool *x509.CertPool) func(*mail.Config) { return func(c *mail.Config) { c.Roots = pool } }

func as(user, password string) func(*mail.Config) {
	return func(c *mail.Config) { c.User, c.Password = user, func() string { return password } }
}

func TestServersThatAreNone(t *testing.T) {
	t.Parallel()
	good := mail.Config{URL: "smtps://mail.example", From: sender}
	_, err := mail.New(good)
	require.NoError(t, err)
	for name, change := range map[string]func(*mail.Config){
		"no URL": func(c *mail.Config) { c.URL = "" }, "http": func(c *mail.Config) { c.URL = "http://mail.example" }, "no host": func(c *mail.Config) { c.URL = "smtp://:25" },
		"a user in it": func(c *mail.Config) { c.URL = "smtp://a:b@mail.example" }, "a path": func(c *mail.Config) { c.URL = "smtp://mail.example/x" },
		"a query": func(c *mail.Config) { c.URL = "smtp://mail.example?tls=none" }, "no sender": func(c *mail.Config) { c.From = "" }, "a sender with a name": func(c *mail.Config) { c.From = "A <a@b.example>" },
		"a user without password": func(c *mail.Config) { c.User = "u" }, "a password without user": func(c *mail.Config) { c.Password = func() string { return "p" } },
	} {
		c := good
		change(&c)
		_, err := mail.New(c)
		assert.Error(t, err, name)
	}
}

// What arrives is exactly this, over each way there is.
func TestAMessageArrives(t *testing.T) {
	t.Parallel()
	config, pool := certified(t)
	for name, c := range map[string]struct {
		scheme string
		sink   sink.Config
		change []func(*mail.Config)
	}{
		"in the clear, on this machine": {"smtp", sink.Config{}, nil},
		"STARTTLS":                      {"smtp", sink.Config{TLS: config}, []func(*mail.Config){trusting(pool)}},
		"TLS":                           {"smtps", sink.Config{TLS: config, Implicit: true}, []func(*mail.Config){trusting(pool)}},
		"STARTTLS and a password":       {"smtp", sink.Config{TLS: config, User: "u", Password: "p w"}, []func(*mail.Config){trusting(pool), as("u", "p w")}},
		"TLS and a password":            {"smtps", sink.Config{TLS: config, Implicit: true, User: "u", Password: "p"}, []func(*mail.Config){trusting(pool), as("u", "p")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := server(t, c.sink)
			require.NoError(t, client(t, c.scheme, s, c.change...).Send(t.Context(), aMessage()))
			got := s.Mails()
			require.Len(t, got, 1)
			assert.Equal(t, sink.Mail{From: sender, To: "ada@people.example", Data: got[0].Data}, got[0])
			m, err := netmail.ReadMessage(strings.NewReader(got[0].Data))
			require.NoError(t, err)
			at, err := m.Header.Date()
			require.NoError(t, err)
			assert.WithinDuration(t, time.Now(), at, time.Minute)
			delete(m.Header, "Date")
			assert.Equal(t, netmail.Header{"From": {"<" + sender + ">"}, "To": {"<ada@people.example>"}, "Subject": {"A task of yours waits"}, "Message-Id": {"<AQEBAQEBAQEBAQEBAQEBAQ@nightwarrant.example>"},
				"Mime-Version": {"1.0"}, "Content-Type": {"text/plain; charset=us-ascii"}, "Content-Transfer-Encoding": {"7bit"}, "Auto-Submitted": {"auto-generated"}}, m.Header)
			_, body, _ := strings.Cut(got[0].Data, "\r\n\r\n")
			assert.Equal(t, "One line.\r\n.and one with a dot\r\nhttps://console.example/\r\n", body)
		})
	}
}

// Nothing in a message begins a header, a command or another message.
func TestNothingIsInjected(t *testing.T) {
	t.Parallel()
	s := server(t, sink.Config{})
	c := client(t, "smtp", s)
	for name, change := range map[string]func(*mail.Message){
		"a header in the subject":  func(m *mail.Message) { m.Subject = "x\r\nBcc: eve@example.net" },
		"a line in the subject":    func(m *mail.Message) { m.Subject = "x\ny" },
		"no subject":               func(m *mail.Message) { m.Subject = "" },
		"a long subject":           func(m *mail.Message) { m.Subject = strings.Repeat("x", 201) },
		"a carriage return":        func(m *mail.Message) { m.Text = "a\r.\r\nMAIL FROM:<eve@example.net>" },
		"another script":           func(m *mail.Message) { m.Text = "\u202eevil" },
		"a tab":                    func(m *mail.Message) { m.Text = "a\tb" },
		"a long line":              func(m *mail.Message) { m.Text = strings.Repeat("x", 901) },
		"a long text":              func(m *mail.Message) { m.Text = strings.Repeat("x\n", 40000) },
		"a command in the address": func(m *mail.Message) { m.To = "a@b.example>\r\nRCPT TO:<eve@example.net" },
		"two addresses":            func(m *mail.Message) { m.To = "a@b.example, eve@example.net" },
		"a source route":           func(m *mail.Message) { m.To = "@c.example:a@b.example" },
		"a quoted address":         func(m *mail.Message) { m.To = `"a b"@b.example` },
		"an address literal":       func(m *mail.Message) { m.To = "a@[127.0.0.1]" },
		"a parameter":              func(m *mail.Message) { m.To = "a@b.example> NOTIFY=NEVER" },
		"a name":                   func(m *mail.Message) { m.To = "Ada <a@b.example>" },
		"a script in the address":  func(m *mail.Message) { m.To = "\u00e4@b.example" },
		"no address":               func(m *mail.Message) { m.To = "" },
		"a header in the id":       func(m *mail.Message) { m.ID = "x>\r\nBcc: <eve@example.net" },
		"no id":                    func(m *mail.Message) { m.ID = "" },
	} {
		m := aMessage()
		change(&m)
		err := c.Send(t.Context(), m)
		if assert.Error(t, err, name) {
			assert.NotContains(t, err.Error(), "@", name)
		}
	}
	assert.Zero(t, s.Connections(), "nobody was asked")
}

// Whatever the texts are, a message that is sent has these headers and this body.
func TestEveryMessageIsOne(t *testing.T) {
	t.Parallel()
	s := server(t, sink.Config{})
	c := client(t, "smtp", s)
	rapid.Check(t, func(rt *rapid.T) {
		m := mail.Message{To: "ada@people.example", ID: "x", Subject: rapid.String().Draw(rt, "subject"), Text: rapid.String().Draw(rt, "text")}
		before := len(s.Mails())
		if c.Send(t.Context(), m) != nil {
			require.Len(rt, s.Mails(), before)
			return
		}
		all := s.Mails()
		require.Len(rt, all, before+1)
		got, err := netmail.ReadMessage(strings.NewReader(all[before].Data))
		require.NoError(rt, err)
		require.Len(rt, got.Header, 9)
		require.Equal(rt, "ada@people.example", all[before].To)
	})
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{"a@b.example": true, "a.b+c@x-y.example": true, "o'neil@b": true, "a@b..example": false, ".a@b.example": false, "a.@b.example": false, "a@-b.example": false,
		"a@b.example.": false, "a b@c.example": false, "a@b@c.example": false, "@b.example": false, "a@": false, "a": false, "": false, "a@b.example\n": false, "a@b.example\x00": false,
		strings.Repeat("a", 65) + "@b.example": false, "a@" + strings.Repeat("b.", 130) + "example": false} {
		assert.Equal(t, good, mail.IsAddress(text), text)
	}
}

// A permanent answer about a message is a refusal; every other one says that the server is away.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"MAIL", "RCPT", "DATA", "."} {
		for answer, refused := range map[string]int{"550 no": 550, "554 5.7.1 no": 554, "421 closing": 0, "450 later": 0, "452 full": 0, "999 what": 0, "nonsense": 0} {
			s := server(t, sink.Config{Answer: func(line string) string {
				if strings.HasPrefix(line, at) {
					return answer
				}
				return ""
			}})
			err := client(t, "smtp", s).Send(t.Context(), aMessage())
			require.Error(t, err, "%s %s", at, answer)
			r, is := errors.AsType[*mail.Refused](err)
			assert.Equal(t, refused > 0, is, "%s %s: %v", at, answer, err)
			if is {
				assert.Equal(t, refused, r.Code)
			}
			assert.NotContains(t, err.Error(), "people.example")
			assert.Empty(t, s.Mails())
		}
	}
}

// Who is not let in has not been refused a message; a look says that it is a refusal.
func TestWhoIsNotLetIn(t *testing.T) {
	t.Parallel()
	config, pool := certified(t)
	s := server(t, sink.Config{TLS: config, User: "u", Password: "right"})
	c := client(t, "smtp", s, trusting(pool), as("u", "wrong"))
	err := c.Send(t.Context(), aMessage())
	require.Error(t, err)
	_, is := errors.AsType[*mail.Refused](err)
	assert.False(t, is, "the message waits until somebody has mended the password")
	assert.NotContains(t, fmt.Sprintf("%v %+v %#v", err, c, c), "wrong")
	r, is := errors.AsType[*mail.Refused](c.Ready(t.Context()))
	require.True(t, is)
	assert.Equal(t, 535, r.Code)
}

// No TLS, no message: but on this machine.
func TestTLSIsRequired(t *testing.T) {
	t.Parallel()
	config, pool := certified(t)
	s := server(t, sink.Config{TLS: config})
	require.Error(t, client(t, "smtp", s).Send(t.Context(), aMessage()), "nobody vouches for it")
	require.Error(t, client(t, "smtps", s, trusting(pool)).Send(t.Context(), aMessage()), "it does not begin with TLS")
	old := server(t, sink.Config{TLS: &tls.Config{Certificates: config.Certificates, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}}) //nolint:gosec // that is the point
	require.ErrorContains(t, client(t, "smtp", old, trusting(pool)).Send(t.Context(), aMessage()), "protocol version")
	refusing := server(t, sink.Config{TLS: config, Answer: func(line string) string {
		if line == "STARTTLS" {
			return "454 not now"
		}
		return ""
	}})
	require.Error(t, client(t, "smtp", refusing, trusting(pool)).Send(t.Context(), aMessage()), "it offers TLS and then has none")
	for _, m := range []*sink.Server{s, old, refusing} {
		assert.Empty(t, m.Mails())
	}
	for address, good := range map[string]bool{"127.0.0.1:25": true, "[::1]:25": true, "[::ffff:127.0.0.1]:25": true, "10.0.0.1:25": false, "169.254.169.254:25": false, "nowhere": false} {
		assert.Equal(t, good, mail.Loopback(named(address)), address)
	}
}

type named string

func (named) Network() string  { return "tcp" }
func (n named) String() string { return string(n) }

// What a hostile peer says before TLS is not taken for what the server says in it (CVE-2011-0411).
func TestNothingIsInjectedBeforeTLS(t *testing.T) {
	t.Parallel()
	config, pool := certified(t)
	s := server(t, sink.Config{TLS: config, Answer: func(line string) string {
		if line == "STARTTLS" {
			return "220 go on\n250-sink\n250 AUTH PLAIN"
		}
		return ""
	}})
	require.Error(t, client(t, "smtp", s, trusting(pool), as("u", "p")).Send(t.Context(), aMessage()))
	assert.Empty(t, s.Mails())
}

// A look keeps its connection for a while, and finds out when it is gone.
func TestLooks(t *testing.T) {
	t.Parallel()
	config, pool := certified(t)
	s := server(t, sink.Config{TLS: config, User: "u", Password: "p"})
	c := client(t, "smtp", s, trusting(pool), as("u", "p"))
	look := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return c.Ready(ctx)
	}
	for range 20 {
		require.NoError(t, look())
	}
	assert.Equal(t, 1, s.Connections())
	for range 20 {
		require.NoError(t, look())
	}
	assert.Equal(t, 2, s.Connections(), "no connection is looked at for ever")
	s.Hang()
	require.NoError(t, look(), "a new one")
	assert.Equal(t, 3, s.Connections())
	s.Close()
	require.Error(t, look())
	require.Error(t, look())
	assert.Empty(t, s.Mails())
}

// A server that hangs or says too much costs its deadline and no memory.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	listen := func(serve func(net.Conn)) *mail.Client {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				serve(conn)
				_ = conn.Close()
			}
		}()
		t.Cleanup(func() { _ = l.Close(); <-done })
		c, err := mail.New(mail.Config{URL: "smtp://" + l.Addr().String(), From: sender})
		require.NoError(t, err)
		return c
	}
	endless := listen(func(c net.Conn) {
		for chunk := []byte(strings.Repeat("x", 4096)); ; {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	})
	require.ErrorContains(t, endless.Send(t.Context(), aMessage()), "too much")
	lines := listen(func(c net.Conn) {
		for {
			if _, err := c.Write([]byte("220-more\r\n")); err != nil {
				return
			}
		}
	})
	require.ErrorContains(t, lines.Ready(t.Context()), "too much")
	silent := listen(func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Error(t, silent.Send(ctx, aMessage()))
	cancelled, stop := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, stop)
	require.Error(t, silent.Ready(cancelled))
}
