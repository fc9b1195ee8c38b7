package modelserver

import (
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Fault is a way in which a provider fails.
type Fault int

// The faults. Those of streams do nothing to an answer that comes at once, where not said otherwise.
const (
	None         Fault = iota
	Silent             // takes the request and never answers, until Let
	Slow               // stops in the middle of a stream, until Let
	Endless            // a stream that never ends, and an answer of any length
	Broken             // the connection ends in the middle, of an answer at once too
	Undone             // the stream ends in order, and too early
	Unauthorized       // 401
	Limited            // 429
	Failing            // 500, with secrets in its words
	Overloaded         // 503
	Moved              // 307 to another place
	NoUsage            // usage is not told
	ZeroUsage          // usage of nothing
	NegativeUsage
	AbsurdUsage // more than any call can have
	Overrun     // a hundred times as much output as was asked for
	Other       // answers as another model
	Dated       // answers as the model's dated name
	Bomb        // a small compressed answer that would be large
	Garbage     // no JSON
	Complaining // 200, and an error in the answer
	Echo        // says the key, in twelve encodings
	HangUp      // ends the connection before any answer
)

// Secrets stand in the words of errors, beside the key.
var Secrets = []string{"org-InternalAccount42", "postgres://billing:hunter22@db.internal/usage"}

// Set changes how the next calls fail.
func (s *Server) Set(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
	s.hold = make(chan struct{})
}

// Let lets go of the calls that Silent and Slow hold.
func (s *Server) Let() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold != nil {
		close(s.hold)
		s.hold = make(chan struct{})
	}
}

// spoil changes what is answered.
func (f Fault) spoil(q *request) {
	switch f {
	case NoUsage:
		q.tell = false
	case ZeroUsage:
		q.usage = Usage{}
	case NegativeUsage:
		q.usage = Usage{Input: -5, Output: -1 << 40}
	case AbsurdUsage:
		q.usage = Usage{Input: 1 << 52, Output: 1 << 52}
	case Overrun:
		q.usage.Output *= 100
	case Other:
		q.Model = "cheaper-model"
	case Dated:
		q.Model += "-2026-01-01"
	case Echo:
		q.text = strings.Join(Encodings(q.key), " ")
	}
}

// Encodings of a key, twelve of them.
func Encodings(key string) []string {
	b := []byte(key)
	var escaped, percent, entities strings.Builder
	for _, c := range b {
		escaped.WriteString(`\u00` + hex.EncodeToString([]byte{c}))
		percent.WriteString("%" + strings.ToUpper(hex.EncodeToString([]byte{c})))
		entities.WriteString("&#" + strconv.Itoa(int(c)) + ";")
	}
	return []string{key, "Bearer " + key, base64.StdEncoding.EncodeToString(b), base64.RawStdEncoding.EncodeToString(b), base64.URLEncoding.EncodeToString(append([]byte("x"), b...)),
		base64.RawURLEncoding.EncodeToString(append([]byte("xy"), b...)), hex.EncodeToString(b), strings.ToUpper(hex.EncodeToString(b)), url.QueryEscape(key), percent.String(), escaped.String(), entities.String()}
}

// before answers instead of the model, or not at all.
func (f Fault) before(w http.ResponseWriter, r *http.Request, hold chan struct{}, q request) (done bool) {
	words := "key " + q.key + " of " + strings.Join(Secrets, ", ")
	switch f {
	case Silent:
		wait(r, hold)
		panic(http.ErrAbortHandler)
	case HangUp:
		panic(http.ErrAbortHandler)
	case Unauthorized:
		fail(w, http.StatusUnauthorized, "Incorrect "+words)
	case Limited:
		w.Header().Set("Retry-After", "7")
		fail(w, http.StatusTooManyRequests, "Rate limit reached for "+words)
	case Failing:
		fail(w, http.StatusInternalServerError, "Traceback: "+words)
	case Overloaded:
		fail(w, http.StatusServiceUnavailable, "Overloaded: "+words)
	case Moved:
		w.Header().Set("Location", "http://169.254.169.254/latest/meta-data/")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case Garbage:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "<html>"+words)
	case Complaining:
		complain(w, q, words)
	case Bomb:
		bomb(w)
	default:
		return !q.Stream && f.spoilWhole(w)
	}
	return true
}

// spoilWhole is what faults of streams do to an answer at once.
func (f Fault) spoilWhole(w http.ResponseWriter) bool {
	switch f {
	case Broken:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"chatcmpl-1","choices":[`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case Endless:
		w.Header().Set("Content-Type", "application/json")
		_, err := io.WriteString(w, `{"id":"`)
		for err == nil {
			_, err = io.WriteString(w, strings.Repeat("x", 32<<10))
		}
		return true
	}
	return false
}

func complain(w http.ResponseWriter, q request, words string) {
	err := object{"message": words, "code": words}
	if !q.Stream {
		write(w, object{"id": "1", "object": "error", "model": q.Model, "error": err, "detail": words, "usage": chatUsage(q.usage)})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, o := range []object{{"error": err, "detail": words}, {"type": "error", "message": words, "code": words}} {
		text, _ := json.Marshal(o)
		_ = event(w, "", string(text))
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// bomb is 10 MiB of nothing, in 10 KiB.
func bomb(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	for range 320 {
		_, _ = z.Write(make([]byte, 32<<10))
	}
	_ = z.Close()
}

// during is false when a stream goes on no further.
func (f Fault) during(_ http.ResponseWriter, r *http.Request, hold chan struct{}, sent int) bool {
	if sent != 3 {
		return true
	}
	switch f {
	case Slow:
		return wait(r, hold)
	case Undone:
		return false
	case Broken:
		panic(http.ErrAbortHandler)
	}
	return true
}

func wait(r *http.Request, hold chan struct{}) bool {
	select {
	case <-hold:
		return true
	case <-r.Context().Done():
		return false
	}
}
