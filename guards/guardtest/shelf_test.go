package guardtest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// shelf is a resource with a ledger: it counts, survives its guards, and can be stopped before and after it counts.
type shelf struct {
	mu            sync.Mutex
	count         map[int64]int
	ends          map[string]string // by effect
	fences        map[string]int64  // by lane
	fence, number int64             // highest
	before, after map[int64]*held
}

type held struct{ reached, released chan struct{} }

type shelfQuestion struct {
	Number                int64
	Effect, Attempt, Lane string
	Fence, Admission      int64
	UntilMS               int64
	Unkeyed, NoTombstone  bool
}

type shelfAnswer struct {
	Outcome       string
	Fence, Number int64
}

// newShelf returns one and its URL.
func newShelf(t *testing.T) (*shelf, string) {
	s := &shelf{count: map[int64]int{}, ends: map[string]string{}, fences: map[string]int64{}, before: map[int64]*held{}, after: map[int64]*held{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server.URL
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q shelfQuestion
	if json.NewDecoder(r.Body).Decode(&q) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var a shelfAnswer
	switch r.URL.Path {
	case "/apply":
		s.wait(s.before, q)
		a.Outcome = s.apply(q)
		s.wait(s.after, q)
	case "/prove":
		a.Outcome = s.prove(q)
	case "/seen":
		s.mu.Lock()
		a.Fence, a.Number = s.fence, s.number
		s.mu.Unlock()
	}
	_ = json.NewEncoder(w).Encode(a)
}

// wait stops an effect where it is held, whether or not its guard still waits for it.
func (s *shelf) wait(where map[int64]*held, q shelfQuestion) {
	s.mu.Lock()
	h := where[q.Number]
	delete(where, q.Number)
	s.mu.Unlock()
	if h != nil {
		close(h.reached)
		<-h.released
	}
}

func (s *shelf) apply(q shelfQuestion) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.Unkeyed {
		s.count[q.Number]++
		return api.Committed
	}
	if end := s.ends[q.Effect]; end != "" {
		return end
	}
	if q.Fence < s.fences[q.Lane] || time.Now().UnixMilli() >= q.UntilMS {
		s.ends[q.Effect] = api.NotApplied
		return api.NotApplied
	}
	if q.Fence < 1<<50 {
		s.fences[q.Lane], s.fence, s.number = q.Fence, max(s.fence, q.Fence), max(s.number, q.Admission)
	}
	s.ends[q.Effect] = api.Committed
	s.count[q.Number]++
	return api.Committed
}

func (s *shelf) prove(q shelfQuestion) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends[q.Effect] == api.Committed {
		return api.Committed
	}
	if !q.NoTombstone {
		s.ends[q.Effect] = api.NotApplied
	}
	return api.NotApplied
}

func (s *shelf) applied(n int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[int64(n)], nil
}

func (s *shelf) holdIn(where map[int64]*held) func(n int) (*Hold, error) {
	return func(n int) (*Hold, error) {
		h := &held{make(chan struct{}), make(chan struct{})}
		s.mu.Lock()
		defer s.mu.Unlock()
		where[int64(n)] = h
		return &Hold{Reached: h.reached, Release: func() { close(h.released) }}, nil
	}
}
