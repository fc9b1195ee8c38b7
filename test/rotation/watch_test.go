package rotation

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// reading is what one replica published at some instant between two.
type reading struct {
	replica  int
	from, to time.Time
	set      string
}

// watch reads what all replicas publish, again and again.
type watch struct {
	urls     []string
	client   *http.Client
	mu       sync.Mutex
	readings []reading
	order    []string // of the sets, as the steps of rotations made them
	failed   int
}

func newWatch(urls ...string) *watch {
	return &watch{urls: urls, client: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}}
}

func (w *watch) run(ctx context.Context) {
	var all sync.WaitGroup
	for i := range w.urls {
		all.Go(func() {
			for tick := time.NewTicker(40 * time.Millisecond); ; {
				select {
				case <-ctx.Done():
					tick.Stop()
					return
				case <-tick.C:
				}
				r, err := w.read(ctx, i)
				w.mu.Lock()
				if err == nil {
					w.readings = append(w.readings, r)
				} else if ctx.Err() == nil {
					w.failed++
				}
				w.mu.Unlock()
			}
		})
	}
	all.Wait()
	w.client.CloseIdleConnections()
}

func (w *watch) read(ctx context.Context, i int) (r reading, err error) {
	r = reading{replica: i, from: time.Now()}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, w.urls[i]+api.PathJWKS, nil)
	if err != nil {
		return r, err
	}
	answer, err := w.client.Do(q)
	if err != nil {
		return r, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d: %s", answer.StatusCode, body)
	}
	r.to, r.set = time.Now(), string(body)
	return r, err
}

// stepped enters the set that a step has made: it has committed, so that this is it.
func (w *watch) stepped(t testing.TB) {
	r, err := w.read(t.Context(), 0)
	require.NoError(t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.order = append(w.order, r.set)
}

// differences are readings that no single register can have answered: of a set
// that no step made, or of an older one than somebody was given before.
func differences(readings []reading, order []string) (out []string) {
	byStart := slices.SortedFunc(slices.Values(readings), func(a, b reading) int { return a.from.Compare(b.from) })
	byEnd := slices.SortedFunc(slices.Values(readings), func(a, b reading) int { return a.to.Compare(b.to) })
	newest, ended := 0, 0
	for _, r := range byStart {
		for ; ended < len(byEnd) && byEnd[ended].to.Before(r.from); ended++ {
			newest = max(newest, slices.Index(order, byEnd[ended].set))
		}
		switch at := slices.Index(order, r.set); {
		case at < 0:
			out = append(out, fmt.Sprintf("replica %d published what no step has made: %s", r.replica, r.set))
		case at < newest:
			out = append(out, fmt.Sprintf("replica %d published set %d after set %d was given to somebody", r.replica, at, newest))
		}
	}
	return out
}

// A checker that cannot fail would prove nothing.
func TestSetsThatDifferAreFound(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(replica int, from, to time.Duration, set string) reading {
		return reading{replica, start.Add(from), start.Add(to), set}
	}
	order := []string{"a", "b", "c"}
	for name, c := range map[string]struct {
		readings []reading
		wrong    int
	}{
		"the same":                          {[]reading{at(0, 0, 1, "a"), at(1, 2, 3, "a"), at(2, 4, 5, "b")}, 0},
		"while it changes, either":          {[]reading{at(0, 0, 9, "b"), at(1, 1, 8, "a"), at(2, 2, 7, "b"), at(0, 10, 11, "b")}, 0},
		"one replica is behind":             {[]reading{at(0, 0, 1, "a"), at(1, 2, 3, "b"), at(2, 4, 5, "a")}, 1},
		"one goes back":                     {[]reading{at(0, 0, 1, "c"), at(0, 2, 3, "b"), at(0, 4, 5, "c")}, 1},
		"behind, though another is as slow": {[]reading{at(0, 0, 1, "b"), at(1, 0, 9, "a"), at(2, 2, 3, "a")}, 1},
		"unknown":                           {[]reading{at(0, 0, 1, "x")}, 1},
	} {
		assert.Len(t, differences(c.readings, order), c.wrong, name)
	}
}
