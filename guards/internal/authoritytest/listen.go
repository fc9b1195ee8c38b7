package authoritytest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Server is an authority on a listener of its own, for guards that are processes, with faults between what is asked and
// what is answered.
type Server struct {
	*Authority
	http   *http.Server
	served chan error
	closed chan struct{}

	mu      sync.Mutex
	catches []*Catch
	rules   map[string]Rule
}

// Rule answers every call of a path, or breaks its connection with Break. act lets the authority do what is asked.
type Rule func(w http.ResponseWriter, act func() *http.Response)

// Break breaks the connection without an answer.
func Break(http.ResponseWriter, func() *http.Response) { panic(http.ErrAbortHandler) }

// LoseAnswer lets the authority act and breaks the connection.
func LoseAnswer(_ http.ResponseWriter, act func() *http.Response) {
	act()
	panic(http.ErrAbortHandler)
}

// Redirect sends the caller elsewhere, in the way that makes clients repeat a POST.
func Redirect(to string) Rule {
	return func(w http.ResponseWriter, _ func() *http.Response) {
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
}

// Say answers with a status and a body of JSON, and does nothing.
func Say(status int, body string) Rule {
	return func(w http.ResponseWriter, _ func() *http.Response) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// Listen starts an authority on a loopback address, which is its issuer.
func Listen() (*Server, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{Authority: New(), served: make(chan error, 1), closed: make(chan struct{}), rules: map[string]Rule{}}
	s.Issuer = "http://" + listener.Addr().String()
	s.http = &http.Server{Handler: http.HandlerFunc(s.handle), ReadHeaderTimeout: 10 * time.Second}
	go func() { s.served <- s.http.Serve(listener) }()
	return s, nil
}

// Close breaks every connection and lets go of every call that is caught.
func (s *Server) Close() {
	close(s.closed)
	_ = s.http.Close()
	<-s.served
}

// Rule sets what becomes of the calls of a path; nil is what an authority does.
func (s *Server) Rule(path string, r Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules[path] = r
}

// Catch holds the next call of a path, about an effect if one is given, until it is let go.
func (s *Server) Catch(path, effect string) *Catch {
	c := &Catch{path: path, effect: effect, closed: s.closed, arrived: make(chan struct{}), steps: make(chan step), done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catches = append(s.catches, c)
	return c
}

// Forgo takes back a catch that nothing was caught with.
func (s *Server) Forgo(c *Catch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(c)
}

func (s *Server) remove(c *Catch) {
	for i, other := range s.catches {
		if other == c {
			s.catches = append(s.catches[:i], s.catches[i+1:]...)
			return
		}
	}
}

func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return // whoever asked is gone
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	act := func() *http.Response {
		recorder := httptest.NewRecorder()
		s.Authority.ServeHTTP(recorder, r)
		return recorder.Result()
	}
	caught, rule := s.fate(r.URL.Path, body)
	switch {
	case caught != nil:
		caught.serve(w, act)
	case rule != nil:
		rule(w, act)
	default:
		copyTo(w, act())
	}
}

func (s *Server) fate(path string, body []byte) (*Catch, Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	effect := effectOf(path, body)
	for _, c := range s.catches {
		if c.path == path && (c.effect == "" || c.effect == effect) {
			s.remove(c)
			return c, nil
		}
	}
	return nil, s.rules[path]
}

// effectOf is the effect that a call is about, unverified.
func effectOf(path string, body []byte) string {
	if path == api.PathAdmit {
		var q api.AdmitRequest
		_ = json.Unmarshal(body, &q)
		_, payload, _ := strings.Cut(q.Capability, ".")
		payload, _, _ = strings.Cut(payload, ".")
		body, _ = base64.RawURLEncoding.DecodeString(payload)
	}
	var about struct {
		Effect string `json:"effect"`
	}
	_ = json.Unmarshal(body, &about)
	return about.Effect
}

func copyTo(w http.ResponseWriter, answer *http.Response) {
	defer answer.Body.Close() //nolint:errcheck // a recorder's
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body)
}

// Catch is one call that is held.
type Catch struct {
	path, effect string
	closed       chan struct{}
	arrived      chan struct{}
	steps        chan step
	done         chan struct{} // of the step that was asked for
}

type step int

const (
	act step = iota
	deliver
	lose
)

// Arrived is closed when the question is here; nothing has been done about it yet.
func (c *Catch) Arrived() <-chan struct{} { return c.arrived }

// Act lets the authority do what is asked, and keeps the answer.
func (c *Catch) Act() { c.take(act) }

// Deliver sends the answer, after acting if that has not been done.
func (c *Catch) Deliver() { c.take(deliver) }

// Lose breaks the connection.
func (c *Catch) Lose() { c.take(lose) }

func (c *Catch) take(what step) {
	select {
	case c.steps <- what:
		<-c.done
	case <-c.closed:
	}
}

func (c *Catch) serve(w http.ResponseWriter, ask func() *http.Response) {
	close(c.arrived)
	var answer *http.Response
	for {
		var what step
		select {
		case what = <-c.steps:
		case <-c.closed:
			panic(http.ErrAbortHandler)
		}
		if what != lose && answer == nil {
			answer = ask()
		}
		if what == deliver {
			copyTo(w, answer)
			_ = http.NewResponseController(w).Flush()
		}
		c.done <- struct{}{}
		switch what {
		case deliver:
			return
		case lose:
			panic(http.ErrAbortHandler)
		}
	}
}
