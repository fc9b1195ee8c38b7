package bench

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/migrations"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// Goals of pages: server time at the 99th percentile, and bytes as they are sent.
const (
	goalPage   = 50 * time.Millisecond
	goalWeight = 100_000
)

const (
	pagesMember   = "member-1"
	pagesOperator = "operator-1"
	pagesIssuer   = "https://idp.bench.example"
	pagesOwn      = "https://authority.bench.example"
)

// PagesOptions say how much one member has, and how often each page is read.
type PagesOptions struct {
	Dir         string // for a scratch cluster
	Tasks, Runs int
	Each        int
}

// PagesResult is what one run measured. Reads are methods of the authority; pages
// are what a browser gets.
type PagesResult struct {
	Tasks   int             `json:"tasks"`
	Runs    int             `json:"runs"`
	Seeded  float64         `json:"seeded_s"`
	Reads   map[string]Page `json:"reads"`
	Pages   map[string]Page `json:"pages"`
	Goal    float64         `json:"goal_ms"` // of p99
	Weight  int             `json:"goal_bytes"`
	Met     bool            `json:"met"`
	Machine Machine         `json:"machine"`
}

// Page is one page's server time and weight.
type Page struct {
	Best  float64 `json:"best_ms"` // what it costs when nothing else runs
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Bytes int     `json:"bytes"` // the largest, with all that it needs
}

// Pages measures what a member with many tasks and runs waits for, in one process with a
// database beside it.
func Pages(ctx context.Context, o PagesOptions, out io.Writer) (PagesResult, error) {
	r := PagesResult{Tasks: o.Tasks, Runs: o.Runs, Reads: map[string]Page{}, Pages: map[string]Page{}, Goal: milli(goalPage), Weight: goalWeight,
		Machine: Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}}
	h := &pagesHouse{password: rand.Text()}
	defer h.stop()
	if err := h.prepare(ctx, o.Dir); err != nil {
		return r, err
	}
	began := time.Now()
	if err := h.seed(ctx, o.Tasks, o.Runs); err != nil {
		return r, fmt.Errorf("the store cannot be filled: %w", err)
	}
	r.Seeded = time.Since(began).Seconds()
	fmt.Fprintf(out, "%d tasks and %d runs of one member, in %.0f s\n", o.Tasks, o.Runs, r.Seeded)
	if err := h.open(ctx, o.Dir); err != nil {
		return r, err
	}
	if err := h.store.QueryRow(ctx, `SHOW server_version`).Scan(&r.Machine.Postgres); err != nil {
		return r, err
	}
	r.Met = true
	for _, part := range []struct {
		what string
		make func(context.Context) (map[string]func() (int, error), error)
		into map[string]Page
	}{{"read", h.reads, r.Reads}, {"page", h.pages, r.Pages}} {
		these, err := part.make(ctx)
		if err != nil {
			return r, err
		}
		for _, name := range slices.Sorted(maps.Keys(these)) {
			p, err := timed(o.Each, these[name])
			if err != nil {
				return r, fmt.Errorf("%s: %w", name, err)
			}
			part.into[name] = p
			r.Met = r.Met && p.P99 <= r.Goal && (part.what == "read" || p.Bytes <= r.Weight)
			p.print(out, part.what, name)
		}
	}
	return r, nil
}

func (p Page) print(out io.Writer, what, name string) {
	fmt.Fprintf(out, "%s  %-30s best %6.2f ms  p50 %6.2f ms  p99 %6.2f ms  %7d bytes\n", what, name, p.Best, p.P50, p.P99, p.Bytes)
}

// timed reads a page often enough to tell its 99th percentile.
func timed(each int, read func() (int, error)) (p Page, err error) {
	took := make([]time.Duration, each)
	for i := range took {
		began := time.Now()
		n, err := read()
		took[i] = time.Since(began)
		if err != nil {
			return p, err
		}
		p.Bytes = max(p.Bytes, n)
	}
	slices.Sort(took)
	p.Best, p.P50, p.P99 = milli(took[0]), milli(percentile(took, 50)), milli(percentile(took, 99))
	return p, nil
}

// pagesHouse is an authority in this process with a database of its own.
type pagesHouse struct {
	password  string // of the process roles
	postgres  *localstack.Postgres
	pool      *pgxpool.Pool
	store     *pgx.Conn // as the superuser
	authority *authority.Authority
	people    *principal.Envelopes
}

// pagesSettings trade durability for speed: this cluster is thrown away, and only reads are measured.
var pagesSettings = map[string]string{"fsync": "off", "full_page_writes": "off", "shared_buffers": "512MB", "maintenance_work_mem": "256MB", "max_wal_size": "4GB", "jit": "off"}

func (h *pagesHouse) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	if h.pool != nil {
		h.pool.Close()
	}
	if h.store != nil {
		_ = h.store.Close(ctx) // nothing is pending on it
	}
	if h.postgres != nil {
		_ = h.postgres.Stop(ctx) // scratch
	}
}

// prepare makes the database, its roles and its schema.
func (h *pagesHouse) prepare(ctx context.Context, dir string) (err error) {
	if h.postgres, err = localstack.StartPostgres(ctx, localstack.PostgresOptions{Dir: filepath.Join(dir, "postgres"), Settings: pagesSettings}); err != nil {
		return err
	}
	admin, err := pgx.Connect(ctx, h.postgres.AdminURL("postgres"))
	if err != nil {
		return err
	}
	_, err = admin.Exec(ctx, "CREATE DATABASE pages")
	if err = errors.Join(err, admin.Close(ctx)); err != nil {
		return err
	}
	if err := migrations.Up(ctx, h.postgres.AdminURL("pages")); err != nil {
		return err
	}
	if h.store, err = pgx.Connect(ctx, h.postgres.AdminURL("pages")); err != nil {
		return err
	}
	for _, role := range []string{"nw_authority", "nw_operator"} {
		if _, err := h.store.Exec(ctx, fmt.Sprintf("ALTER ROLE %s PASSWORD '%s'", role, h.password)); err != nil {
			return err
		}
	}
	return nil
}

func (h *pagesHouse) keys(ctx context.Context, dir string) (*keys.Bundle, error) {
	bundle, identity := filepath.Join(dir, "bundle"), filepath.Join(dir, "identity")
	if err := keys.NewIdentity(identity); err != nil {
		return nil, err
	}
	id, err := keys.Init(bundle, identity)
	if err != nil {
		return nil, err
	}
	operator, err := pg.Open(ctx, pg.Config{URL: h.postgres.URL("nw_operator", h.password, "pages"), MaxConns: 1, Name: "bench"})
	if err != nil {
		return nil, err
	}
	defer operator.Close()
	if err := authority.RegisterIdentity(ctx, operator, id, authority.DefaultWaits); err != nil {
		return nil, err
	}
	return keys.Open(bundle, identity)
}

// open makes the authority. Nobody signs in here: people are resumed as a store of
// sessions resumes them, so no key of their issuer is ever fetched.
func (h *pagesHouse) open(ctx context.Context, dir string) error {
	bundle, err := h.keys(ctx, dir)
	if err != nil {
		return err
	}
	if h.pool, err = pg.Open(ctx, pg.Config{URL: h.postgres.URL("nw_authority", h.password, "pages"), MaxConns: 4, Name: "bench"}); err != nil {
		return err
	}
	cache, err := jwks.New(jwks.Config{Own: pagesOwn, Issuers: []jwks.Issuer{{URL: pagesIssuer, Algorithms: []string{"ES256"}}}})
	if err != nil {
		return err
	}
	assertions, err := attestation.New(attestation.Config{Keys: cache, Audience: pagesOwn})
	if err != nil {
		return err
	}
	if h.people, err = principal.New(principal.Config{Keys: cache, Issuer: pagesIssuer, Audience: "https://bench.example/pages", Own: pagesOwn, MaxAge: time.Hour,
		Operators: []principal.OperatorRef{{Issuer: pagesIssuer, Subject: pagesOperator}}}); err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	h.authority, err = authority.New(ctx, authority.Config{Pool: h.pool, Bundle: bundle, Assertions: assertions, Envelopes: h.people, Gate: readiness.NewGate(h.pool, log), Directory: everybody{},
		Issuer: pagesOwn, Lease: authority.MaxLease, Log: log})
	return err
}

// everybody is a member here: what a directory takes is its own.
type everybody struct{}

func (everybody) Member(context.Context, string, string) (directory.Answer, error) {
	return directory.Present, nil
}

// somebody is a person in a session.
func (h *pagesHouse) somebody(subject string) (authority.Actor, error) {
	session := [32]byte{1, byte(len(subject))}
	who, err := h.people.Resume(principal.Session{Issuer: pagesIssuer, Subject: subject, Digest: session, Expires: time.Now().Add(time.Hour)})
	return h.authority.FromSession(who, session), err
}

// weigh is how many bytes something is as JSON.
func weigh(v any, err error) (int, error) {
	if err != nil {
		return 0, errors.Join(err, authority.Cause(err))
	}
	text, err := json.Marshal(v)
	return len(text), err
}
