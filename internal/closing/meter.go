package closing

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
	ledger "github.com/nightwarrant/nightwarrant/guards/postgres"
)

// meter is a guard on the library like every other, in this process: it notes
// when each effect was applied, and can be told to report something else than
// it is.
type meter struct {
	uri    string
	guard  *guards.Guard
	server *http.Server
	pool   *pgxpool.Pool
	*clocked
	*liar

	stop context.CancelFunc
	done sync.WaitGroup
}

// What the meter serves, as the requirement lists it, and what it must not.
var (
	model, foreignModel     = sha256.Sum256([]byte("the meter's model")), sha256.Sum256([]byte("another model"))
	dataset, foreignDataset = sha256.Sum256([]byte("the meter's dataset")), sha256.Sum256([]byte("another dataset"))
)

func encode(d [32]byte) string { return base64.RawURLEncoding.EncodeToString(d[:]) }

// startMeter serves on a listener. uri is the registered one; assertion reads its token.
func startMeter(ctx context.Context, listener net.Listener, uri, authority, database string, assertion func(context.Context) (string, error), log *slog.Logger) (*meter, error) {
	pool, err := ledger.Open(ctx, database)
	if err != nil {
		return nil, err
	}
	entries, err := ledger.New(ledger.Config{Pool: pool, Tables: map[string]ledger.Table{"entries": {Columns: []string{"memo", "cents"}}}, Logger: log})
	if err != nil {
		pool.Close()
		return nil, err
	}
	m := &meter{uri: uri, pool: pool, clocked: &clocked{Ledger: entries}, liar: &liar{by: http.DefaultTransport.(*http.Transport).Clone()}}
	m.guard, err = guards.New(guards.Config{URI: uri, Name: "meter", Issuer: authority, Assertion: assertion, Ledger: m.clocked, Operations: entries.Operations(), Catalogue: entries.Catalogue(),
		Models: [][32]byte{model}, Datasets: [][32]byte{dataset}, HTTPClient: &http.Client{Timeout: 10 * time.Second, Transport: m.liar}, Logger: log})
	if err != nil {
		pool.Close()
		return nil, err
	}
	m.server = &http.Server{Handler: m.guard, ReadHeaderTimeout: 5 * time.Second}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	m.done.Go(func() { _ = m.server.Serve(listener) }) // until it is closed
	m.done.Go(func() { _ = m.guard.Run(background) })  // until it is stopped; nobody else is this guard
	return m, nil
}

func (m *meter) close() {
	_ = m.server.Close() // nobody waits for an answer any more
	m.stop()
	m.done.Wait()
	m.pool.Close()
}

// clocked notes when effects were applied, on this process's monotonic clock.
type clocked struct {
	guards.Ledger
	mu      sync.Mutex
	applied []application
}

type application struct {
	number int64 // of the admission
	at     time.Time
}

// Apply implements guards.Ledger.
func (c *clocked) Apply(ctx context.Context, a guards.Admitted) (guards.Ending, error) {
	ending, err := c.Ledger.Apply(ctx, a)
	if err == nil && ending.Outcome == guards.Committed {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.applied = append(c.applied, application{a.Number, time.Now()})
	}
	return ending, err
}

// latest is when the last effect with an admission up to this number was applied.
func (c *clocked) latest(number int64) (at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.applied {
		if a.number <= number && a.at.After(at) {
			at = a.at
		}
	}
	return at
}

// forget drops what was applied before a time.
func (c *clocked) forget(before time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applied = slices.DeleteFunc(c.applied, func(a application) bool { return a.at.Before(before) })
}

// liar alters reports on their way: a proof signs no body.
type liar struct {
	by http.RoundTripper

	mu  sync.Mutex
	lie func(*api.Report)
}

// tell makes every report from now on go through lie; nil is the truth.
func (l *liar) tell(lie func(*api.Report)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lie = lie
}

// RoundTrip implements http.RoundTripper.
func (l *liar) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	lie := l.lie
	l.mu.Unlock()
	if lie == nil || r.Method != http.MethodPut || !strings.HasPrefix(r.URL.Path, api.PathReports) {
		return l.by.RoundTrip(r)
	}
	var report api.Report
	err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&report)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	lie(&report)
	body, err := json.Marshal(report)
	if err != nil {
		return nil, err
	}
	altered := r.Clone(r.Context())
	altered.Body, altered.ContentLength, altered.GetBody = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	return l.by.RoundTrip(altered)
}

// CloseIdleConnections lets a client end what it keeps.
func (l *liar) CloseIdleConnections() {
	if t, ok := l.by.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}
