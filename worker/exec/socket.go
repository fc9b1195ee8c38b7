package exec

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	maxBody        = 256 << 10
	maxConnections = 32
	maxAsked       = 8 // effects at once
	maxNote        = 200
)

// socket is the only thing that a command can ask. It lives as long as the command and serves its processes only.
type socket struct {
	dir, path string
	listener  net.Listener
	server    *http.Server
	done      chan struct{}
}

// openSocket listens in a fresh directory that its owner alone may enter.
func openSocket(parent string, owner *Credential) (*socket, error) {
	dir, err := os.MkdirTemp(parent, "nightwarrant-") // 0700
	if err != nil {
		return nil, err
	}
	s := &socket{dir: dir, path: filepath.Join(dir, "s"), done: make(chan struct{})}
	if err := s.listen(owner); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func (s *socket) listen(owner *Credential) (err error) {
	if s.listener, err = (&net.ListenConfig{}).Listen(context.Background(), "unix", s.path); err != nil {
		return err
	}
	if err = os.Chmod(s.path, 0o600); err == nil && owner != nil {
		err = errors.Join(os.Chown(s.path, int(owner.UID), int(owner.GID)), os.Chown(s.dir, int(owner.UID), int(owner.GID)))
	}
	if err != nil {
		return errors.Join(err, s.listener.Close())
	}
	return nil
}

// serve answers peers that the job knows.
func (s *socket) serve(j *job) {
	mux := http.NewServeMux()
	asked := make(chan struct{}, maxAsked)
	mux.HandleFunc("POST /effects", func(w http.ResponseWriter, r *http.Request) { j.effects(w, r, asked) })
	mux.HandleFunc("POST /progress", j.progress)
	s.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second,
		MaxHeaderBytes: 8 << 10, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
	l := &peers{Listener: s.listener, allowed: j.allows, room: make(chan struct{}, maxConnections), closed: make(chan struct{})}
	go func() {
		defer close(s.done)
		_ = s.server.Serve(l) // it ends when it is closed
	}()
}

// close ends every connection and removes the directory.
func (s *socket) close() error {
	err := s.server.Close()
	<-s.done
	return errors.Join(err, os.RemoveAll(s.dir))
}

// peers is a listener that closes whoever is not allowed, and lets only so many in.
type peers struct {
	net.Listener
	allowed func(*net.UnixConn) bool
	room    chan struct{}
	once    sync.Once
	closed  chan struct{}
}

func (p *peers) Accept() (net.Conn, error) {
	select {
	case p.room <- struct{}{}:
	case <-p.closed:
		return nil, net.ErrClosed
	}
	for {
		c, err := p.Listener.Accept()
		if err != nil {
			<-p.room
			return nil, err
		}
		if u, ok := c.(*net.UnixConn); ok && p.allowed(u) {
			return &counted{Conn: c, leave: sync.OnceFunc(func() { <-p.room })}, nil
		}
		_ = c.Close() // it gets no answer
	}
}

func (p *peers) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Listener.Close()
}

type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

func (j *job) effects(w http.ResponseWriter, r *http.Request, asked chan struct{}) {
	select {
	case asked <- struct{}{}:
		defer func() { <-asked }()
	default:
		reply(w, errBusy)
		return
	}
	var in Request
	if err := read(w, r, &in); err != nil {
		reply(w, errInvalid)
		return
	}
	result, err := j.do(r.Context(), in.effect())
	a, status := answer(result, err)
	j.log.Info("effect", "outcome", a.Outcome, "effect", a.Effect, "refusal", a.Refusal)
	write(w, status, a)
}

// Progress is what a command may say at POST /progress. It goes into the worker's log only.
type Progress struct {
	Done int64  `json:"done,omitempty"`
	Of   int64  `json:"of,omitempty"`
	Note string `json:"note,omitempty"` // its first 200 bytes count
}

// Left is the answer: what the run may still use, as far as the worker knows.
type Left struct {
	LeftMS  int64  `json:"left_ms"` // to the deadline, which nothing extends
	Effects int64  `json:"effects"`
	Steps   int64  `json:"steps"`
	Spend   int64  `json:"spend"`   // minor units of the consent's currency
	WrapUp  string `json:"wrap_up"` // no, soon, now or stop
}

func (j *job) progress(w http.ResponseWriter, r *http.Request) {
	var in Progress
	if err := read(w, r, &in); err != nil {
		reply(w, errInvalid)
		return
	}
	h, err := j.held(r.Context(), 0)
	if err != nil {
		return // nobody listens any more
	}
	j.note(in)
	b := h.Budget()
	write(w, http.StatusOK, Left{LeftMS: h.Left().Milliseconds(), Effects: b.Effects, Steps: b.Steps, Spend: b.Spend, WrapUp: b.WrapUp})
}

func read(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errInvalid
	}
	return nil
}

func reply(w http.ResponseWriter, err error) {
	a, status := answer(worker0, err)
	write(w, status, a)
}

func write(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the peer may be gone
}

// Ask sends one request to the socket at a path, and returns its answer. The answer to POST /progress is a [Left].
func Ask(ctx context.Context, socket, path string, in, out any) error {
	var d net.Dialer
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", socket)
	}}}
	return ask(ctx, client, path, in, out)
}
