// Package modelserver is a little OpenAI-compatible server, for tests, the demo
// and dev: it answers /v1/models, /v1/chat/completions and /v1/responses, whole
// or as a stream, always the same for the same request, and can be told to fail
// in the ways in which providers do.
package modelserver

import (
	"crypto/subtle"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

const maxBody = 17 << 20

// Config is who may call and what for.
type Config struct {
	Key    string   // the one that is accepted, as a bearer
	Models []string // ids
}

// Usage is what a call used, in tokens.
type Usage struct {
	Input, Output int64
}

// Server is an http.Handler. It is safe for concurrent use.
type Server struct {
	config Config
	mux    *http.ServeMux

	mu    sync.Mutex
	fault Fault
	calls []Usage // that were answered
	asked int     // calls with a good key
	hold  chan struct{}
}

// New makes a server without faults.
func New(c Config) *Server {
	s := &Server{config: c, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("POST /v1/chat/completions", s.answer(chat{}))
	s.mux.HandleFunc("POST /v1/responses", s.answer(responses{}))
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || subtle.ConstantTimeCompare([]byte(given), []byte(s.config.Key)) != 1 {
		fail(w, http.StatusUnauthorized, "Incorrect API key provided: "+given)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// Asked is how many calls came with a good key.
func (s *Server) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// Calls are those that were answered, in order.
func (s *Server) Calls() []Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *Server) begin() (Fault, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.fault, s.hold
}

func (s *Server) answered(u Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, u)
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		OwnedBy string `json:"owned_by"`
	}
	list := []model{}
	for _, id := range s.config.Models {
		list = append(list, model{id, "model", "nightwarrant"})
	}
	write(w, map[string]any{"object": "list", "data": list})
}

// request is what both forms have in common.
type request struct {
	Model    string          `json:"model"`
	Stream   bool            `json:"stream"`
	Messages json.RawMessage `json:"messages"`
	Input    json.RawMessage `json:"input"`

	MaxOutputTokens     int64 `json:"max_output_tokens"`
	MaxTokens           int64 `json:"max_tokens"`
	MaxCompletionTokens int64 `json:"max_completion_tokens"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`

	text  string // that is answered
	usage Usage
	tell  bool // usage
	key   string
}

// spelling is one of the two forms of answers.
type spelling interface {
	whole(q request) any
	stream(q request, words []string, send func(name string, v any) bool) bool
}

func (s *Server) answer(form spelling) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		var q request
		if err != nil || json.Unmarshal(body, &q) != nil {
			fail(w, http.StatusBadRequest, "We could not parse the JSON body of your request.")
			return
		}
		if !slices.Contains(s.config.Models, q.Model) {
			fail(w, http.StatusNotFound, "The model `"+q.Model+"` does not exist.")
			return
		}
		fault, hold := s.begin()
		q.prepare(body, s.config.Key, fault)
		if fault.before(w, r, hold, q) {
			return
		}
		s.answered(q.usage)
		if !q.Stream {
			write(w, form.whole(q))
			return
		}
		stream(w, r, form, q, fault, hold)
	}
}

// prepare decides what is answered: the length of the request in, and as many words out as are asked for.
func (q *request) prepare(body []byte, key string, fault Fault) {
	most := max(q.MaxOutputTokens, q.MaxTokens, q.MaxCompletionTokens, 1)
	words := strings.Fields("The answer of a little model that says the same to everybody who asks it the same.")
	q.key, q.tell = key, true
	q.usage = Usage{Input: int64(len(body)+3) / 4, Output: min(most, int64(len(words)))}
	q.text = strings.Join(words[:q.usage.Output], " ")
	fault.spoil(q)
}

func write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// fail is an error as providers word it: with what must not go further.
func fail(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message, "type": "provider_error", "param": nil, "code": nil}})
}
