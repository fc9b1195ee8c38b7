// Package sink is a small SMTP server that keeps what it gets, for tests and for
// development. It hands nothing on.
package sink

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Mail is one message as it came.
type Mail struct {
	From, To string // of the envelope
	Data     string // header and text, with \r\n
}

// Config of a Server.
type Config struct {
	TLS      *tls.Config // nil: it offers none
	Implicit bool        // TLS from the first byte
	User     string      // empty: it asks nobody to log in
	Password string
	// Answer may change what is answered to a line, and to the data of a message,
	// which is the line "."; empty changes nothing.
	Answer func(line string) string
}

// Server is one that listens.
type Server struct {
	Config
	l     net.Listener
	open  sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]bool
	got   []Mail
	count int // connections ever
	tell  chan struct{}
}

const (
	maxLine  = 2 << 10
	maxMail  = 256 << 10
	maxMails = 10000
	patience = 30 * time.Second
)

// Start listens on an address of this machine until Close.
func Start(ctx context.Context, address string, c Config) (*Server, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	s := &Server{Config: c, l: l, conns: map[net.Conn]bool{}, tell: make(chan struct{}, 1)}
	s.open.Go(s.accept)
	return s, nil
}

// Address is where it listens.
func (s *Server) Address() string { return s.l.Addr().String() }

// Mails are those that came, and Arrived receives after each.
func (s *Server) Mails() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Mail(nil), s.got...)
}

// Arrived says that something came since it was last asked.
func (s *Server) Arrived() <-chan struct{} { return s.tell }

// Connections is how many there have been.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Hang breaks every connection off and takes new ones.
func (s *Server) Hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close() // nobody talks there any more
	}
}

// Close ends it with every connection.
func (s *Server) Close() {
	_ = s.l.Close() // once
	s.Hang()
	s.open.Wait()
}

func (s *Server) accept() {
	for {
		conn, err := s.l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[conn] = true
		s.count++
		s.mu.Unlock()
		s.open.Go(func() {
			s.talk(conn)
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
		})
	}
}

// talk is one connection.
type talk struct {
	*Server
	conn     net.Conn
	in       *bufio.Reader
	secure   bool
	let      bool
	from, to string
}

var errBye = errors.New("bye")

func (s *Server) talk(conn net.Conn) {
	defer func() { _ = conn.Close() }() // it is over
	t := &talk{Server: s, conn: conn, let: s.User == ""}
	if s.Implicit {
		t.turn()
	}
	t.in = bufio.NewReaderSize(t.conn, maxLine)
	if t.say("220 sink") != nil {
		return
	}
	for {
		line, err := t.line()
		if err != nil || t.answer(line) != nil {
			return
		}
	}
}

func (t *talk) turn() {
	t.conn, t.secure = tls.Server(t.conn, t.TLS), true
	t.in = bufio.NewReaderSize(t.conn, maxLine)
}

func (t *talk) line() (string, error) {
	if err := t.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	line, err := t.in.ReadSlice('\n') // and no longer than its buffer
	return strings.TrimRight(string(line), "\r\n"), err
}

func (t *talk) say(text string) error {
	_, err := io.WriteString(t.conn, strings.ReplaceAll(text, "\n", "\r\n")+"\r\n")
	return err
}

func (t *talk) answer(line string) error {
	if t.Answer != nil {
		if other := t.Answer(line); other != "" {
			return t.say(other)
		}
	}
	verb, rest, _ := strings.Cut(line, " ")
	switch strings.ToUpper(verb) {
	case "EHLO", "HELO":
		return t.say(t.greeting())
	case "STARTTLS":
		if t.TLS == nil || t.secure {
			return t.say("502 no")
		}
		if err := t.say("220 go on"); err != nil {
			return err
		}
		t.turn()
		return nil
	case "AUTH":
		return t.login(rest)
	case "NOOP", "RSET":
		return t.say("250 fine")
	case "QUIT":
		_ = t.say("221 bye") // it hangs up anyway
		return errBye
	case "MAIL", "RCPT", "DATA":
		return t.mail(strings.ToUpper(verb), rest)
	}
	return t.say("502 what?")
}

func (t *talk) greeting() string {
	lines := []string{"250-sink", "250-8BITMIME"}
	if t.TLS != nil && !t.secure {
		lines = append(lines, "250-STARTTLS")
	}
	if t.User != "" && (t.secure || t.TLS == nil) {
		lines = append(lines, "250-AUTH PLAIN")
	}
	return strings.Join(append(lines, "250 NOOP"), "\n")
}

func (t *talk) login(rest string) error {
	encoded, ok := strings.CutPrefix(rest, "PLAIN ")
	text, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || string(text) != "\x00"+t.User+"\x00"+t.Password {
		return t.say("535 no")
	}
	t.let = true
	return t.say("235 welcome")
}

func (t *talk) mail(verb, rest string) error {
	path := func(prefix string) string {
		rest = strings.TrimPrefix(strings.TrimPrefix(rest, prefix), "<")
		inside, _, _ := strings.Cut(rest, ">")
		return inside
	}
	switch {
	case !t.let:
		return t.say("530 who are you?")
	case verb == "MAIL":
		t.from, t.to = path("FROM:"), ""
		return t.say("250 fine")
	case t.from == "":
		return t.say("503 from whom?")
	case verb == "RCPT":
		t.to = path("TO:")
		return t.say("250 fine")
	case t.to == "":
		return t.say("503 to whom?")
	}
	if err := t.say("354 go on"); err != nil {
		return err
	}
	return t.data()
}

func (t *talk) data() error {
	var b strings.Builder
	for {
		line, err := t.line()
		if err != nil {
			return err
		}
		if line == "." {
			break
		}
		if b.Len() > maxMail {
			return t.say("552 too much")
		}
		b.WriteString(strings.TrimPrefix(line, ".") + "\r\n")
	}
	if t.Answer != nil {
		if other := t.Answer("."); other != "" {
			return t.say(other)
		}
	}
	t.keep(Mail{t.from, t.to, b.String()})
	t.from, t.to = "", ""
	return t.say("250 kept")
}

func (t *talk) keep(m Mail) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.got) < maxMails {
		t.got = append(t.got, m)
	}
	select {
	case t.tell <- struct{}{}:
	default:
	}
}
