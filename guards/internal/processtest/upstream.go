package processtest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/nightwarrant/nightwarrant/guards/guardtest"
)

// Upstream is a server behind a guard that counts the effects that reach it, by the words effect-N in a request's body,
// and can be stopped before it counts one and before it answers. What has reached it happens, whether or not anybody
// still waits for the answer.
type Upstream struct {
	URL string

	answer        http.Handler
	mu            sync.Mutex
	count         map[int]int
	before, after map[int]gate
}

type gate struct{ reached, released chan struct{} }

// NewUpstream starts one that answers as answer does.
func NewUpstream(t *testing.T, answer http.Handler) *Upstream {
	u := &Upstream{answer: answer, count: map[int]int{}, before: map[int]gate{}, after: map[int]gate{}}
	server := httptest.NewServer(u)
	t.Cleanup(server.Close)
	u.URL = server.URL
	return u
}

var numbered = regexp.MustCompile(`effect-(\d+)`)

// ServeHTTP implements http.Handler.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return // it has not arrived
	}
	if found := numbered.FindSubmatch(body); found != nil {
		n, _ := strconv.Atoi(string(found[1]))
		u.pass(u.before, n)
		u.mu.Lock()
		u.count[n]++
		u.mu.Unlock()
		u.pass(u.after, n)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	u.answer.ServeHTTP(w, r)
}

func (u *Upstream) pass(gates map[int]gate, n int) {
	u.mu.Lock()
	g, held := gates[n]
	delete(gates, n)
	u.mu.Unlock()
	if held {
		close(g.reached)
		<-g.released
	}
}

// Applied is guardtest.Guard.Applied.
func (u *Upstream) Applied(n int) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.count[n], nil
}

// HoldBefore is guardtest.Guard.HoldBefore.
func (u *Upstream) HoldBefore(n int) (*guardtest.Hold, error) { return u.hold(u.before, n), nil }

// HoldAfter is guardtest.Guard.HoldAfter.
func (u *Upstream) HoldAfter(n int) (*guardtest.Hold, error) { return u.hold(u.after, n), nil }

func (u *Upstream) hold(gates map[int]gate, n int) *guardtest.Hold {
	g := gate{make(chan struct{}), make(chan struct{})}
	u.mu.Lock()
	defer u.mu.Unlock()
	gates[n] = g
	return &guardtest.Hold{Reached: g.reached, Release: func() { close(g.released) }}
}
