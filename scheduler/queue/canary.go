package queue

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Reason is one word of the readiness reports' vocabulary.
type Reason string

// The reasons that a probe gives.
const (
	Good        Reason = "good"
	Unreachable Reason = "unreachable" // no connection, or a monitoring page does not answer
	Wrong       Reason = "settings"    // server, stream or a consumer is not as it must be, or is gone
	Full        Reason = "disk"        // a disk, a server, the account or the stream has little room left
	Silent      Reason = "canary"      // a message did not come back
)

// Health is the result of one probe. Err says more, for the log.
type Health struct {
	Reason Reason
	Err    error
}

// OK says whether all was good. The zero Health is not.
func (h Health) OK() bool { return h.Reason == Good }

// Canary sends a message through the stream and takes it out again, after it
// has compared the settings of every server, of the stream and of every
// consumer that [Queue.Prepare] has seen, and looked at the room that each has
// left. It ends within 2 s, unless a disk that is watched does not answer.
func (q *Queue) Canary(ctx context.Context) Health {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	q.probing.Lock()
	defer q.probing.Unlock()
	if err := q.disk.Check(); err != nil {
		return Health{Full, err}
	}
	if !q.conn.IsConnected() {
		return Health{Unreachable, errors.New("there is no connection to NATS")}
	}
	if err := q.checkServers(ctx); err != nil {
		return judged(err, Unreachable)
	}
	if err := Check(ctx, q.js, q.settings, q.seen()); err != nil {
		return judged(err, Unreachable)
	}
	if err := q.checkAccount(ctx); err != nil {
		return judged(err, Unreachable)
	}
	if err := q.roundTrip(ctx); err != nil {
		return judged(err, Silent)
	}
	return Health{Reason: Good}
}

// judged tells a wrong setting and a lack of room from other failures.
func judged(err error, otherwise Reason) Health {
	if _, ok := errors.AsType[*SettingError](err); ok {
		return Health{Wrong, err}
	}
	if _, ok := errors.AsType[*FullError](err); ok {
		return Health{Full, err}
	}
	return Health{otherwise, err}
}

func (q *Queue) seen() []Ref {
	q.mu.Lock()
	defer q.mu.Unlock()
	queues := make([]Ref, 0, len(q.known))
	for queue := range q.known {
		queues = append(queues, queue)
	}
	return queues
}

// roundTrip uses a durable consumer that lives as long as the process does,
// like those of the workers: one that stopped delivering would stop here too.
func (q *Queue) roundTrip(ctx context.Context) error {
	subject := canarySubjects + q.name
	if q.canary == nil {
		want := consumer(canaryPrefix+q.name, subject)
		want.InactiveThreshold = canaryForgotten                       // a process that never comes back leaves nothing
		created, err := q.js.CreateOrUpdateConsumer(ctx, Stream, want) // it is this process's own
		if err != nil {
			return fmt.Errorf("canary: %w", err)
		}
		q.canary = created
	}
	err := q.passes(ctx, subject)
	if err != nil {
		q.canary = nil // this probe has failed; the next one begins anew
	}
	return err
}

// passes publishes one message and reads until it comes; what an earlier probe
// left behind comes first.
func (q *Queue) passes(ctx context.Context, subject string) error {
	token := rand.Text()
	if _, err := q.js.Publish(ctx, subject, []byte(token), jetstream.WithExpectStream(Stream)); err != nil {
		return fmt.Errorf("canary: %w", err)
	}
	for {
		message, err := q.canary.Next(jetstream.FetchContext(ctx))
		if err != nil {
			return fmt.Errorf("canary: %w", err)
		}
		if err := message.DoubleAck(ctx); err != nil {
			return fmt.Errorf("canary: %w", err)
		}
		if string(message.Data()) == token {
			return nil
		}
	}
}

// varz is the part of a server's monitoring page that matters here.
type varz struct {
	ID        string `json:"server_id"`
	Websocket struct {
		Port int `json:"port"`
	} `json:"websocket"`
	JetStream struct {
		Config struct {
			SyncAlways bool  `json:"sync_always"`
			MaxStorage int64 `json:"max_storage"`
		} `json:"config"`
		Stats struct {
			Storage uint64 `json:"storage"`
		} `json:"stats"`
	} `json:"jetstream"`
}

const (
	maxVarz    = 1 << 20 // bytes
	pageWithin = time.Second
)

// monitor reads monitoring pages. A new connection for each keeps nothing alive
// behind the back of whoever stops the queue.
func monitor(roots *x509.CertPool) *http.Client {
	return &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
}

// Approved asks the servers whether they serve what a FIPS deployment refuses.
// Only a *SettingError says that one does.
func (q *Queue) Approved(ctx context.Context) error {
	pages, _ := q.readServers(ctx)
	for _, page := range pages {
		if err := page.hasApproved(); err != nil {
			return err
		}
	}
	return nil
}

// hasApproved refuses WebSocket, whose handshake needs SHA-1.
func (v varz) hasApproved() error {
	if v.Websocket.Port != 0 {
		return &SettingError{"server " + v.ID, "websocket", "none", "one"}
	}
	return nil
}

// checkServers asks the servers whether they sync what they acknowledge and
// have room for more. One that answers wrongly is enough to be bad; a minority
// may be away, as when a server of a cluster restarts. The server in use is one
// of those that answer.
func (q *Queue) checkServers(ctx context.Context) error {
	pages, away := q.readServers(ctx)
	if len(pages) <= len(q.monitors)/2 {
		return away
	}
	var ids []string
	for _, page := range pages {
		if err := page.hasApproved(); q.approved && err != nil {
			return err
		}
		if !page.JetStream.Config.SyncAlways {
			return &SettingError{"server " + page.ID, "sync_interval", "always", "something else"}
		}
		if err := hasRoom("server "+page.ID, page.JetStream.Stats.Storage, page.JetStream.Config.MaxStorage); err != nil {
			return err
		}
		ids = append(ids, page.ID)
	}
	if id := q.conn.ConnectedServerId(); !slices.Contains(ids, id) {
		return &SettingError{"the monitoring URLs", "server_id", id, strings.Join(ids, ", ")}
	}
	return nil
}

// readServers reads all pages at once, so that one that hangs costs no more
// than its own time.
func (q *Queue) readServers(ctx context.Context) (pages []varz, away error) {
	ctx, cancel := context.WithTimeout(ctx, pageWithin)
	defer cancel()
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, base := range q.monitors {
		group.Go(func() {
			page, err := readVarz(ctx, q.pages, base)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				away = errors.Join(away, err)
				return
			}
			pages = append(pages, page)
		})
	}
	group.Wait()
	return pages, away
}

func readVarz(ctx context.Context, pages *http.Client, base string) (varz, error) {
	var page varz
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+"/varz", nil)
	if err != nil {
		return page, fmt.Errorf("monitoring: %w", err)
	}
	response, err := pages.Do(request)
	if err != nil {
		return page, fmt.Errorf("monitoring: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read to its end
	if response.StatusCode != http.StatusOK {
		return page, fmt.Errorf("monitoring: status %d", response.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxVarz)).Decode(&page); err != nil {
		return page, fmt.Errorf("monitoring: %w", err)
	}
	return page, nil
}
