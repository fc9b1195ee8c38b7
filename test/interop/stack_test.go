package interop

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/internal/demo"
	"github.com/nightwarrant/nightwarrant/internal/dev"
	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/testbinary"
	"github.com/nightwarrant/nightwarrant/keys"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

// environment is all that a client is told: what an operator tells the author of a worker.
type environment struct {
	Issuer             string `json:"issuer"`
	Guard              string `json:"guard"`
	Client             string `json:"client"`  // the product's registered client
	Product            string `json:"product"` // its component
	Run                string `json:"run"`     // reference, as the queue delivers it
	ComponentAssertion string `json:"componentAssertion"`
	WorkerAssertion    string `json:"workerAssertion"`
	AssertionFile      string `json:"assertionFile"`  // the worker's again
	StaleAuthority     string `json:"staleAuthority"` // genuine nonces of yesterday
	StaleGuard         string `json:"staleGuard"`
}

// house is a stack without workers, in which a run is due every second.
type house struct {
	*demo.Stack
	t           *testing.T
	dir, binary string
	issuer      *dev.Issuer
	yesterday   *keys.Nonces
}

// registered is what the demo's registry does not have: a product of its own name.
const registered = `kind: AttestationProfile
name: shop
issuer: WORKLOADS
subject: system:serviceaccount:jobs:shop
binding: first_key
max_lifetime_s: 3600
---
kind: Product
name: shop
title: The product whose tasks run
profile: shop
`

const task = `kind: Task
name: interop
client: books
role: bookkeeper
role_revision: 1
policy: default
policy_revision: 1
revision: 1
owner: {issuer: PEOPLE, subject: member-7f3a}
title: What clients of all kinds do
schedule: {every_s: 1, anchor: "2026-01-01T00:00:00Z", zone: Europe/Berlin}
dial: low
grants:
  - {guard: ledger, action: row.append, resource: "table:entries"}
limits: {runtime_s: 900, effects: 6}
consent: {days: 7}
`

func newHouse(t *testing.T) *house {
	t.Helper()
	if _, _, err := localstack.FindPostgres(); err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "nightwarrant-interop-")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711)) //nolint:gosec // PostgreSQL runs as another account
	h := &house{t: t, dir: dir, binary: testbinary.Nightwarrant(t)}
	private := func(string) string { return "" } // servers of its own, whatever the environment names
	h.Stack, err = demo.New(demo.Options{Binary: h.binary, Dir: dir, Env: private, Lease: 30 * time.Second})
	require.NoError(t, err)
	t.Cleanup(h.Stop)
	ctx := h.within(3 * time.Minute)
	for _, step := range []func(context.Context) error{h.Start, h.Register, h.register, h.StartRest, h.open, h.consent, h.open} {
		require.NoError(t, step(ctx), "logs: %s", h.logs())
	}
	bundle, err := keys.Open(filepath.Join(dir, "keys", "bundle"), filepath.Join(dir, "keys", "identity"))
	require.NoError(t, err)
	h.yesterday = bundle.Nonces()
	h.yesterday.Now = func() time.Time { return time.Now().Add(-24 * time.Hour) }
	return h
}

// on is the same house for a part of the test.
func (h *house) on(t *testing.T) *house {
	one := *h
	one.t = t
	return &one
}

func (h *house) open(ctx context.Context) error { return h.WaitOpen(ctx, 90*time.Second) }

// register applies the product as the operator, and gets ready to project tokens, as its cluster does.
func (h *house) register(ctx context.Context) error {
	workloads := h.url("issuer.yaml")
	if err := h.write("interop.yaml", strings.ReplaceAll(registered, "WORKLOADS", workloads)); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, h.binary, "admin", "apply", "-f", filepath.Join(h.dir, "config", "interop.yaml"), "--authority", h.Origin(),
		"--envelope-file", filepath.Join(h.dir, "people", "operator"), "--key-file", filepath.Join(h.dir, "people", "operator.key"))
	if out, err := c.CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	var err error
	h.issuer, err = dev.NewIssuer(workloads, "ES256", filepath.Join(h.dir, "issuer"))
	return err
}

func (h *house) consent(ctx context.Context) error {
	if err := h.write("interop-task.yaml", strings.ReplaceAll(task, "PEOPLE", h.url("idp.yaml"))); err != nil {
		return err
	}
	_, err := h.Consent(ctx, "interop-task.yaml")
	return err
}

func (h *house) write(name, text string) error {
	return os.WriteFile(filepath.Join(h.dir, "config", name), []byte(text), 0o600)
}

// url is where an issuer listens, by its own configuration.
func (h *house) url(config string) string {
	text, err := os.ReadFile(filepath.Join(h.dir, "config", config))
	require.NoError(h.t, err)
	_, address, found := strings.Cut(string(text), "listen: ")
	require.True(h.t, found)
	address, _, _ = strings.Cut(address, "\n")
	return (&url.URL{Scheme: "http", Host: address}).String()
}

func (h *house) logs() string {
	var all strings.Builder
	files, _ := filepath.Glob(filepath.Join(h.dir, "logs", "*.log"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		all.WriteString(filepath.Base(f) + ":\n" + string(text[max(0, len(text)-2000):]) + "\n")
	}
	return all.String()
}

func (h *house) within(limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	h.t.Cleanup(cancel)
	return ctx
}

// newcomer is what the next client is told: a run that is due, and tokens that nobody has used.
func (h *house) newcomer(name string) environment {
	e := environment{Issuer: h.Origin(), Guard: h.GuardURI(), Client: "books", Product: "shop", Run: h.due(),
		ComponentAssertion: h.projected("shop"), WorkerAssertion: h.projected("bookkeeper"),
		StaleAuthority: h.yesterday.Mint(h.Origin()), StaleGuard: h.yesterday.Mint(h.GuardURI())}
	e.AssertionFile = filepath.Join(h.dir, "tokens", "interop-"+name)
	require.NoError(h.t, os.WriteFile(e.AssertionFile, []byte(e.WorkerAssertion), 0o600))
	return e
}

// file writes it where a client reads it.
func (h *house) file(name string, e environment) string {
	text, err := json.Marshal(e)
	require.NoError(h.t, err)
	path := filepath.Join(h.dir, "config", "interop-"+name+".json")
	require.NoError(h.t, os.WriteFile(path, text, 0o600))
	return path
}

// due waits for a run that has most of its time before it. It is what the queue delivers.
func (h *house) due() string {
	ctx := h.within(2 * time.Minute)
	c, err := pgx.Connect(ctx, h.Databases()[0])
	require.NoError(h.t, err)
	defer c.Close(ctx) //nolint:errcheck // nothing is pending on it
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var ref []byte
		err := c.QueryRow(ctx, `SELECT ref FROM nw.runs WHERE state = 'queued' AND deadline > clock_timestamp() + interval '2 minutes' ORDER BY id LIMIT 1`).Scan(&ref)
		if err == nil {
			return base64.RawURLEncoding.EncodeToString(ref)
		}
		require.ErrorIs(h.t, err, pgx.ErrNoRows)
		select {
		case <-tick.C:
		case <-ctx.Done():
			require.FailNow(h.t, "no run became due", h.logs())
		}
	}
}

// projected is a fresh token of a service account, in a pod of its own.
func (h *house) projected(account string) string {
	token, err := h.issuer.Token(map[string]any{"sub": "system:serviceaccount:jobs:" + account, "aud": []string{h.Origin()},
		"kubernetes.io": map[string]any{"namespace": "jobs", "serviceaccount": map[string]any{"name": account}, "pod": map[string]any{"name": account + "-" + strings.ToLower(rand.Text())}}},
		time.Now(), 10*time.Minute)
	require.NoError(h.t, err)
	return token
}
