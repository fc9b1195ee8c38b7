package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

const (
	answerIn  = 10 * time.Second
	maxAnswer = 1 << 16 // bytes
	noAnswer  = "no_answer"
)

var (
	errWrongSignature = errors.New("bench: a signature did not verify")
	errWrongNonce     = errors.New("bench: a nonce was not the one that was sent")
)

// tally is what came of one measurement.
type tally struct {
	latencies []time.Duration // of what was granted, sorted
	refused   map[string]int  // by code
	elapsed   time.Duration
	answers   [][]byte // by request, where they were to be kept; nil where nothing was granted
}

// add takes another measurement of the same into this one. Answers are not added.
func (t *tally) add(o tally) {
	t.latencies = append(t.latencies, o.latencies...)
	slices.Sort(t.latencies)
	if t.refused == nil {
		t.refused = map[string]int{}
	}
	for code, n := range o.refused {
		t.refused[code] += n
	}
	t.elapsed += o.elapsed
}

func (t tally) done() int { return len(t.latencies) }

func (t tally) sent() int {
	n := t.done()
	for _, count := range t.refused {
		n += count
	}
	return n
}

func (t tally) perSecond() float64 { return float64(t.done()) / t.elapsed.Seconds() }

// schedule says when each of n requests is due, from the beginning, at a fixed rate.
func schedule(n, perSecond int) []time.Duration {
	due := make([]time.Duration, n)
	for i := range due {
		due[i] = time.Duration(i) * time.Second / time.Duration(perSecond)
	}
	return due
}

// percentile of sorted values: the smallest that at least p of 100 do not exceed. 0 when there are none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// run is what the senders of one measurement share.
type run struct {
	address  string
	requests [][]byte
	due      []time.Duration // nil: as soon as a connection is free
	limit    time.Duration   // no request begins later; 0 is no limit
	keep     bool            // the answers
	began    time.Time
	next     atomic.Int64
	answers  [][]byte
}

// taken is how many requests, from the first one, have perhaps been sent.
func (r *run) taken() int { return min(int(r.next.Load()), len(r.requests)) }

// drive sends requests over connections that stay open. With due it is an open
// loop: latency counts from when a request was due, so that a request which had to
// wait for a slow one before it shows that wait.
func drive(ctx context.Context, r *run) (tally, error) {
	senders := make([]*sender, inFlight)
	defer func() {
		for _, s := range senders {
			s.close()
		}
	}()
	for i := range senders {
		senders[i] = &sender{refused: map[string]int{}}
		if err := senders[i].dial(ctx, r.address); err != nil {
			return tally{}, err
		}
	}
	if r.keep {
		r.answers = make([][]byte, len(r.requests))
	}
	r.began = time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range senders {
		g.Go(func() error { return s.send(ctx, r) })
	}
	err := g.Wait()
	t := sum(senders, time.Since(r.began))
	t.answers = r.answers
	return t, err
}

func sum(senders []*sender, elapsed time.Duration) tally {
	t := tally{refused: map[string]int{}, elapsed: elapsed}
	for _, s := range senders {
		t.latencies = append(t.latencies, s.latencies...)
		for code, n := range s.refused {
			t.refused[code] += n
		}
	}
	slices.Sort(t.latencies)
	return t
}

// sender is one connection. It speaks just enough HTTP/1.1 to leave the CPU to the server.
type sender struct {
	conn      net.Conn
	in        *bufio.Reader
	latencies []time.Duration
	refused   map[string]int
}

func (s *sender) dial(ctx context.Context, address string) (err error) {
	s.close()
	if s.conn, err = (&net.Dialer{Timeout: answerIn}).DialContext(ctx, "tcp", address); err != nil {
		return err
	}
	s.in = bufio.NewReader(s.conn)
	return nil
}

func (s *sender) close() {
	if s != nil && s.conn != nil {
		_ = s.conn.Close() // nothing is pending that counts
	}
}

// send takes the next request until there is none or time is over.
func (s *sender) send(ctx context.Context, r *run) error {
	for {
		i := int(r.next.Add(1)) - 1
		if i >= len(r.requests) || r.limit > 0 && time.Since(r.began) > r.limit {
			return nil
		}
		from := time.Now()
		if r.due != nil {
			from = r.began.Add(r.due[i])
			if err := until(ctx, from); err != nil {
				return err
			}
		}
		answer, code, err := s.ask(r.requests[i])
		switch {
		case err != nil:
			s.refused[noAnswer]++
			if err := s.dial(ctx, r.address); err != nil {
				return err
			}
		case code != "":
			s.refused[code]++
		default:
			s.latencies = append(s.latencies, time.Since(from))
			if r.keep {
				r.answers[i] = answer
			}
		}
	}
}

// until waits for a time that may have passed.
func until(ctx context.Context, at time.Time) error {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ask sends one request and reads its answer: when it was not granted, its code.
func (s *sender) ask(request []byte) (body []byte, code string, err error) {
	if err := s.conn.SetDeadline(time.Now().Add(answerIn)); err != nil {
		return nil, "", err
	}
	if _, err := s.conn.Write(request); err != nil {
		return nil, "", err
	}
	answer, err := http.ReadResponse(s.in, nil)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close() //nolint:errcheck // read to its end below
	body, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil || answer.StatusCode == http.StatusOK {
		return body, "", err
	}
	var problem api.Problem
	if json.Unmarshal(body, &problem) != nil || problem.Code == "" {
		return nil, fmt.Sprintf("status_%d", answer.StatusCode), nil
	}
	return nil, string(problem.Code), nil
}
