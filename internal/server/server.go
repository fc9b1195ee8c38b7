// Package server is the authority's HTTP surface: one mux, one envelope around
// every request, one error mapper. Handlers only decode, call and encode.
package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/time/rate"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/openapi"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// Bounds of a request.
const (
	maxBody     = 64 << 10
	maxRegistry = 1 << 20
	maxHeaders  = 64 << 10
)

// Server answers for one authority.
type Server struct {
	authority *authority.Authority
	gate      *readiness.Gate
	origin    string
	log       *slog.Logger
	metrics   metrics
	registry  *prometheus.Registry
	questions *rate.Limiter  // about readiness
	unsigned  rate.Sometimes // is told to the operators
	api       *openapi.API
	routes    []Route
}

// New returns the server of an authority whose public origin is its issuer.
func New(a *authority.Authority, gate *readiness.Gate, log *slog.Logger) *Server {
	s := &Server{authority: a, gate: gate, origin: a.Issuer, log: log, registry: prometheus.NewRegistry(),
		questions: rate.NewLimiter(questions, questions), unsigned: rate.Sometimes{Interval: time.Second}}
	s.metrics = newMetrics(s.registry)
	s.registry.MustRegister(a.Collectors()...)
	s.api = openapi.New("1", s.enter)
	s.workloads()
	s.members()
	s.operators()
	s.products()
	return s
}

// Route is one entry of the authority. Gated ones apply the readiness decision;
// the others are those that stay possible while it is closed (design.md §3).
type Route struct {
	Method, Path string
	Gated        bool
	Access       openapi.Access
	handle       handler
}

type handler = openapi.Handler

// Routes lists every entry of the public listener.
func (s *Server) Routes() []Route { return s.routes }

// Handler is the public listener's handler.
func (s *Server) Handler() http.Handler {
	methods := map[string]map[string]handler{}
	for _, r := range s.routes {
		if methods[r.Path] == nil {
			methods[r.Path] = map[string]handler{}
		}
		methods[r.Path][r.Method] = r.handle
	}
	mux := http.NewServeMux()
	for path, of := range methods {
		mux.Handle(path, s.wrap(path, dispatch(of)))
	}
	other := s.wrap("other", refuse(api.NotFound))
	mux.Handle("/", other)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !Plain(r.URL.Path) {
			other.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// Plain tells a path that stands in its one spelling. Any other would be redirected by a mux, and a proof that was made for one path sent to
// another.
func Plain(p string) bool {
	clean := path.Clean(p)
	return p == clean || p == clean+"/"
}

// dispatch answers only the methods of a path. The mux's own 405 is not a problem document.
func dispatch(of map[string]handler) handler {
	allow := strings.Join(slices.Sorted(maps.Keys(of)), ", ")
	return func(w http.ResponseWriter, r *http.Request) error {
		h, ok := of[r.Method]
		if !ok {
			w.Header().Set("Allow", allow)
			return api.Refuse(api.MethodNotAllowed)
		}
		return h(w, r)
	}
}

func refuse(code api.Code) handler {
	return func(http.ResponseWriter, *http.Request) error { return api.Refuse(code) }
}

// Admin is the operators' listener: metrics and the two probes. It is never public.
func (s *Server) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{Timeout: 5 * time.Second}))
	mux.Handle("GET /healthz", s.wrap("/healthz", s.healthz))
	mux.Handle("GET /readyz", s.wrap("/readyz", s.readyz))
	return mux
}

// wrap is the envelope of every request: bounded, measured, uncacheable, with a
// fresh nonce, and safe from its handler's panic.
func (s *Server) wrap(route string, h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		out := &recorder{ResponseWriter: w, status: http.StatusOK}
		head := out.Header()
		head.Set("Cache-Control", "no-store")
		head.Set("X-Content-Type-Options", "nosniff")
		if nonce := s.authority.Nonce(); nonce != "" { // the nonce key is away: readiness says so
			head.Set(api.HeaderNonce, nonce)
		}
		head.Set("Access-Control-Expose-Headers", "DPoP-Nonce, WWW-Authenticate, Retry-After")
		limit := int64(maxBody)
		if route == api.PathRegistry {
			limit = maxRegistry
		}
		r.Body = http.MaxBytesReader(out, r.Body, limit)
		code := s.serve(out, r, route, h)
		s.metrics.observe(route, out.status, code, time.Since(began))
	})
}

// serve runs a handler and answers what it refused. Its result is the refusal's code, or empty.
func (s *Server) serve(w *recorder, r *http.Request, route string, h handler) (code api.Code) {
	defer func() {
		if p := recover(); p != nil {
			s.log.LogAttrs(r.Context(), slog.LevelError, "a handler panicked", slog.String("route", route), slog.Any("panic", p))
			code = s.answer(w, r, route, api.Refuse(api.Internal))
		}
	}()
	if err := h(w, r); err != nil {
		return s.answer(w, r, route, err)
	}
	return ""
}

// Serve serves handler on a listener until ctx ends, then lets requests finish.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: h, MaxHeaderBytes: maxHeaders, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 20 * time.Second, IdleTimeout: time.Minute,
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := server.Shutdown(stop)
	if served := <-done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// call is what the request itself says, under the configured origin (I-11).
func (s *Server) call(r *http.Request) (authority.Call, error) {
	c := authority.Call{Method: r.Method, URL: s.origin + r.URL.EscapedPath()}
	proof, err := capability.HeaderProof(r.Header)
	if err != nil {
		return c, authority.ProofRefusal(err)
	}
	c.Proof = proof
	return c, nil
}

// bearer is the capability of a /v1 call. Without one there is nothing to say but the challenge.
func (s *Server) bearer(r *http.Request) (authority.Call, capability.Token, error) {
	if r.URL.Query().Has("access_token") { // a second way to send one, or the only one and into every log (RFC 6750 §2, §5.3)
		return authority.Call{}, "", api.Refusef(api.InvalidRequest, "Send the capability in one Authorization header, and nowhere else.")
	}
	token, err := capability.HeaderToken(r.Header)
	if err != nil {
		return authority.Call{}, "", authority.ProofRefusal(err)
	}
	c, err := s.call(r)
	return c, token, err
}

// envelope is the platform envelope of a member's call.
func (s *Server) envelope(r *http.Request) (authority.Call, capability.Token, error) {
	lines := r.Header.Values(api.HeaderEnvelope)
	if len(lines) != 1 || lines[0] == "" {
		return authority.Call{}, "", api.Refuse(api.InvalidEnvelope)
	}
	c, err := s.call(r)
	return c, capability.Token(lines[0]), err
}

// recorder remembers the status that was sent.
type recorder struct {
	http.ResponseWriter
	status int
	wrote  bool
}

// Unwrap lets a deadline reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	r.status, r.wrote = status, true
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.wrote = true
	return r.ResponseWriter.Write(b)
}
