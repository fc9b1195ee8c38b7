// Package authoritytest gives a test a whole authority: a database of its own,
// a key bundle, issuers of assertions and envelopes, and the HTTP surface on a
// loopback listener. Everything is what production runs; only the gate is
// opened by the database's owner, because no guard reports.
package authoritytest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/internal/directory/directorytest"
	"github.com/nightwarrant/nightwarrant/internal/fsck"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
	"github.com/nightwarrant/nightwarrant/internal/leaks"
	"github.com/nightwarrant/nightwarrant/internal/leaks/leakstest"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/internal/server"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/readiness"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// Names that the standard registry uses.
const (
	GuardURI     = "http://127.0.0.9:9001/ledger"
	GuardName    = "ledger"
	WorkerClaim  = "system:serviceaccount:jobs:bookkeeper"
	GuardClaim   = "system:serviceaccount:guards:ledger"
	Audience     = "https://platform.example/nightwarrant"
	OperatorName = "operator-1"
	AuditorName  = "auditor-1"
	MemberName   = "member-1"
)

// House is a running authority. Fields may be read by tests, not changed.
type House struct {
	T         testing.TB
	DB        *teststack.DB
	Owner     *pgxpool.Pool // reads and plants; production has no such pool
	Pool      *pgxpool.Pool // as nw_authority
	Bundle    *keys.Bundle
	Trust     Trust
	Workloads *jwkstest.Issuer
	Platform  *jwkstest.Issuer
	People    *directorytest.People // who is a member: everybody, until a test says otherwise
	Authority *authority.Authority
	Gate      *readiness.Gate
	Server    *server.Server
	URL       string // the public origin and issuer
	KeysDir   string
	Identity  string
	Log       *Log
	errors    safeBuffer // every refusal that was answered
	secrets   [][]byte   // of the bundle
	unsound   bool
	looked    atomic.Pointer[time.Time]
}

// New starts a house with an open gate and the standard registry applied.
func New(t testing.TB) *House {
	t.Helper()
	h := Bare(t)
	h.Apply(Registry(h.Workloads.URL))
	h.Open()
	return h
}

// Bare starts a house with a registered key bundle, an empty registry and a closed gate.
func Bare(t testing.TB) *House { return Trusting(t, Trust{}) }

// Trust is who may say which workload is calling, beside the house's own issuer,
// and what a rotation of keys waits for.
type Trust struct {
	Issuers []jwks.Issuer
	Reviews map[string]attestation.Reviewer
	Waits   authority.Waits
}

// Trusting is Bare with further issuers of workloads.
func Trusting(t testing.TB, trust Trust) *House {
	t.Helper()
	if trust.Waits == (authority.Waits{}) {
		trust.Waits = authority.DefaultWaits
	}
	db := teststack.Database(t)
	h := &House{T: t, DB: db, Owner: db.Pool(t, teststack.Owner), Pool: db.Pool(t, "nw_authority"), Workloads: jwkstest.New(t), Platform: jwkstest.New(t), People: &directorytest.People{}, Trust: trust,
		Log: &Log{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(h.Log.String())
		}
	})
	t.Cleanup(func() {
		if !h.unsound {
			h.Sound()
		}
	})
	dir := t.TempDir()
	h.KeysDir, h.Identity = filepath.Join(dir, "bundle"), filepath.Join(dir, "identity")
	require.NoError(t, keys.NewIdentity(h.Identity))
	id, err := keys.Init(h.KeysDir, h.Identity)
	require.NoError(t, err)
	h.secrets = leakstest.Material(t, h.KeysDir, h.Identity)
	require.NoError(t, authority.RegisterIdentity(context.Background(), h.Owner, id, trust.Waits))
	h.Bundle, err = keys.Open(h.KeysDir, h.Identity)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h.URL = "http://" + listener.Addr().String()
	h.Authority, h.Gate, h.Server = h.Replica(h.Bundle)
	h.watch()
	s := &httptest.Server{Listener: listener, Config: &http.Server{Handler: h.Young(h.Server.Handler()), ReadHeaderTimeout: time.Second}}
	s.Start()
	t.Cleanup(s.Close)
	return h
}

// Replica makes another authority of the same cluster: same issuer, same
// database, its own memory.
func (h *House) Replica(b *keys.Bundle) (*authority.Authority, *readiness.Gate, *server.Server) {
	h.T.Helper()
	log := slog.New(slog.NewJSONHandler(h.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cache, err := jwks.New(jwks.Config{Own: h.URL, Pause: time.Second, Issuers: append([]jwks.Issuer{{URL: h.Workloads.URL, JWKSURL: h.Workloads.JWKSURL(), Algorithms: []string{"ES256", "RS256"}}}, h.Trust.Issuers...)})
	require.NoError(h.T, err)
	assertions, err := attestation.New(attestation.Config{Keys: cache, Audience: h.URL, Reviews: h.Trust.Reviews})
	require.NoError(h.T, err)
	people, err := jwks.New(jwks.Config{Own: h.URL, Pause: time.Second, Issuers: []jwks.Issuer{{URL: h.Platform.URL, JWKSURL: h.Platform.JWKSURL(), Algorithms: []string{"ES256"}}}})
	require.NoError(h.T, err)
	envelopes, err := principal.New(principal.Config{Keys: people, Issuer: h.Platform.URL, Audience: Audience, Own: h.URL, MaxAge: time.Hour,
		Operators: []principal.OperatorRef{{Issuer: h.Platform.URL, Subject: OperatorName}},
		Auditors:  []principal.OperatorRef{{Issuer: h.Platform.URL, Subject: AuditorName}}})
	require.NoError(h.T, err)
	gate := readiness.NewGate(h.Pool, log)
	a, err := authority.New(context.Background(), authority.Config{Pool: h.Pool, Bundle: b, Assertions: assertions, Envelopes: envelopes, Gate: gate, Directory: h.People,
		Issuer: h.URL, Lease: 30 * time.Second, Log: log})
	require.NoError(h.T, err)
	return a, gate, server.New(a, gate, log)
}

// Open opens the gate for an hour by the owner's hand, with a good report of
// every required family, and lets the replica see it.
func (h *House) Open() { h.openFor("1 hour") }

func (h *House) openFor(valid string) {
	h.T.Helper()
	h.Exec(`UPDATE nw.readiness_decision SET state = 'open', epoch = epoch + 1, sequence = sequence + 1, reason = 'good', held = false, since = clock_timestamp(),
		valid_until = clock_timestamp() + $1::interval WHERE state = 'closed'`, valid)
	h.Exec(`INSERT INTO nw.readiness_log (state, epoch, incarnation, requirement, reason, inputs) SELECT state, epoch, incarnation, requirement, reason, sha256('by hand') FROM nw.readiness_decision ON CONFLICT DO NOTHING`)
	h.allGood()
	h.See()
}

// allGood lets every required family and every active guard report good for an hour.
func (h *House) allGood() {
	h.T.Helper()
	h.Exec(`INSERT INTO nw.instances (kind, instance) VALUES ('authority', sha256('by hand')) ON CONFLICT DO NOTHING`)
	h.Exec(`INSERT INTO nw.instances (kind, component_id, instance, jkt) SELECT 'component', id, sha256('by hand'), sha256('by hand') FROM nw.registry
		WHERE kind = 'guard' AND state = 'active' ON CONFLICT DO NOTHING`)
	h.Exec(`INSERT INTO nw.readiness_reports AS r (instance_id, family, boot, sequence, healthy, reason, began_at, expires_at, changed_at, protocol, catalogue)
		SELECT i.id, f.family, i.boot, 1, true, 'good', t, t + interval '1 hour', t, CASE f.family WHEN 'guards' THEN 1 END, k.catalogue
		  FROM clock_timestamp() t, nw.instances i JOIN (SELECT unnest(nw.always()) AS family, 'authority' AS kind UNION ALL SELECT 'guards', 'component') f ON f.kind = i.kind
		  LEFT JOIN nw.components k ON k.id = i.component_id
		 WHERE i.instance = sha256('by hand')
		ON CONFLICT (instance_id, family) DO UPDATE SET sequence = r.sequence + 1, began_at = EXCLUDED.began_at, expires_at = EXCLUDED.expires_at`)
}

// Catalogue is what a postgres guard reports that it can do.
func Catalogue() string {
	d := catalogue.DigestOf(catalogue.Actions(catalogue.Postgres)...)
	return base64.RawURLEncoding.EncodeToString(d[:])
}

// Close closes the gate as a bad report does.
func (h *House) Close() {
	h.T.Helper()
	h.Exec(`SELECT nw.alone()`)
	h.Exec(`SELECT nw.shut('unhealthy', 'queue', false)`)
}

// look keeps the replica's copy of the decision young, as its evaluator would, and says when.
// It does not evaluate: the owner's hand opens and closes.
func (h *House) look(ctx context.Context) {
	asked := time.Now()
	if _, err := h.Gate.Current(ctx); err == nil { // what it cannot learn, it refuses
		h.looked.Store(&asked)
	}
}

// watch looks all the time.
func (h *House) watch() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(readiness.MaxCacheAge / 4); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				h.look(ctx)
			}
		}
	}()
	h.T.Cleanup(func() {
		stop()
		<-done
	})
}

// Young looks before a request where the one who watches is late, as on a machine
// with much to do: nothing passes with a copy that is too old.
func (h *House) Young(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if last := h.looked.Load(); last == nil || time.Since(*last) > readiness.MaxCacheAge/2 {
			h.look(r.Context())
		}
		next.ServeHTTP(w, r)
	})
}

// See lets this replica's cache take notice of the decision.
func (h *House) See() {
	h.T.Helper()
	_, err := h.Gate.Current(context.Background())
	require.NoError(h.T, err)
}

// Sound holds every invariant of the database, and searches tables, log and
// refusals for secrets. It runs by itself at the end of a test.
func (h *House) Sound() {
	h.T.Helper()
	conn, err := h.Owner.Acquire(context.Background())
	require.NoError(h.T, err)
	defer conn.Release()
	violations, err := fsck.On(context.Background(), conn.Conn())
	require.NoError(h.T, err)
	assert.Empty(h.T, violations)
	tables, err := leaks.Tables(context.Background(), conn.Conn())
	require.NoError(h.T, err)
	assert.Empty(h.T, leaks.Search("the tables", tables, h.secrets...))
	assert.Empty(h.T, leaks.Search("the log", []byte(h.Log.String()), h.secrets...))
	assert.Empty(h.T, leaks.Search("the refusals", []byte(h.errors.String()), h.secrets...))
}

// Unsound says that this test plants bugs, so that its database is not checked at the end.
func (h *House) Unsound() { h.unsound = true }

// Exec runs SQL as the owner.
func (h *House) Exec(sql string, args ...any) {
	h.T.Helper()
	_, err := h.Owner.Exec(context.Background(), sql, args...)
	require.NoError(h.T, err)
}

// Count runs a query for one number as the owner.
func (h *House) Count(sql string, args ...any) (n int64) {
	h.T.Helper()
	require.NoError(h.T, h.Owner.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// Consumed is everything that a refused request must leave as it was.
func (h *House) Consumed() string {
	h.T.Helper()
	var s string
	require.NoError(h.T, h.Owner.QueryRow(context.Background(), `SELECT json_build_object(
		'replay', (SELECT count(*) FROM nw.replay), 'owners', (SELECT count(*) FROM nw.assertion_owners), 'runs', (SELECT json_agg(r ORDER BY id) FROM nw.runs r),
		'lanes', (SELECT json_agg(l ORDER BY task_id) FROM nw.lanes l), 'effects', (SELECT json_agg(e ORDER BY id) FROM nw.effects e), 'offers', (SELECT json_agg(o ORDER BY id) FROM nw.offers o),
		'consents', (SELECT json_agg(c ORDER BY id) FROM nw.consents c), 'registry', (SELECT count(*) FROM nw.registry), 'instances', (SELECT json_agg(i ORDER BY id) FROM nw.instances i),
		'reports', (SELECT json_agg(p ORDER BY instance_id) FROM nw.readiness_reports p), 'findings', (SELECT count(*) FROM nw.findings), 'ledgers', (SELECT json_agg(y ORDER BY holder, unit) FROM nw.ledgers y),
		'decisions', (SELECT json_agg(d ORDER BY id) FROM nw.decisions d), 'keys', (SELECT json_agg(y ORDER BY consent_id, guard_id, action, resource, key) FROM nw.consent_keys y),
		'known', (SELECT count(*) FROM nw.arguments) + (SELECT count(*) FROM nw.evidence) + (SELECT count(*) FROM nw.late_evidence))::text`).Scan(&s))
	return s
}

// Assertion is a projected token for a service account.
func (h *House) Assertion(subject string) string {
	now := time.Now()
	id := make([]byte, 8)
	fill(id)
	return h.Workloads.Token(map[string]any{"sub": subject, "aud": []string{h.URL}, "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(), "jti": jwkstest.B64(id)})
}

// Envelope is what the platform says of a person.
func (h *House) Envelope(subject string) string {
	now := time.Now()
	id := make([]byte, 8)
	fill(id)
	return h.Platform.Token(map[string]any{"sub": subject, "aud": Audience, "iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix(), "jti": jwkstest.B64(id),
		"email": subject + "@people.example"})
}

// Apply applies registry documents as the operator.
func (h *House) Apply(yaml string) api.Applied {
	h.T.Helper()
	var out api.Applied
	require.NoError(h.T, h.Person(OperatorName).Do("POST", api.PathRegistry, "application/yaml", []byte(yaml), &out))
	return out
}

// Consent applies a task and gives its owner's consent. It returns the task's reference.
func (h *House) Consent(taskYAML string) string {
	h.T.Helper()
	h.Apply(taskYAML)
	p := h.Person(MemberName)
	var offers api.Page[api.Offer]
	require.NoError(h.T, p.Do("GET", api.PathOffers, "", nil, &offers))
	require.NotEmpty(h.T, offers.Items)
	o := offers.Items[0]
	var c api.Consent
	require.NoError(h.T, p.JSON("POST", api.PathOffers+"/"+o.Offer+"/consent", api.Answer{Digest: o.Digest}, &c))
	return o.Task
}

// Plan makes the task's next run due now and plans it, as a scheduler would. It
// returns the run's reference.
func (h *House) Plan(task string) string {
	h.T.Helper()
	ctx := context.Background()
	h.Exec(`UPDATE nw.schedules SET next_at = date_trunc('second', clock_timestamp()) + make_interval(secs => (SELECT count(*) FROM nw.slots)) - interval '1 second'
		WHERE task_id = (SELECT id FROM nw.tasks WHERE ref = $1)`, Raw(task))
	var id, revision int64
	var next time.Time
	require.NoError(h.T, h.Owner.QueryRow(ctx, `SELECT s.task_id, l.task_revision, s.next_at FROM nw.schedules s JOIN nw.lanes l USING (task_id) JOIN nw.tasks k ON k.id = s.task_id WHERE k.ref = $1`,
		Raw(task)).Scan(&id, &revision, &next))
	slots, err := json.Marshal([]map[string]any{{"at": next}})
	require.NoError(h.T, err)
	run := make([]byte, 16)
	fill(run)
	zone := timetable.ZoneFingerprint(time.UTC, next)
	var verdict string
	require.NoError(h.T, h.Owner.QueryRow(ctx, `SELECT verdict FROM nw.plan($1, $2, $3, $4, $5, $6, $7, $8)`, id, revision, next, string(slots), next.Add(time.Hour), zone[:], run, 1000).Scan(&verdict))
	require.Equal(h.T, "ok", verdict)
	return jwkstest.B64(run)
}

// Registry is the standard registry: a client, a guard, a role and a policy.
func Registry(workloads string) string {
	return strings.ReplaceAll(`
kind: AttestationProfile
name: bookkeeper
issuer: WORKLOADS
subject: system:serviceaccount:jobs:bookkeeper
binding: first_key
max_lifetime_s: 3600
---
kind: AttestationProfile
name: ledger-guard
issuer: WORKLOADS
subject: system:serviceaccount:guards:ledger
binding: first_key
max_lifetime_s: 3600
---
kind: Client
name: books
title: The bookkeeping product
---
kind: Guard
name: ledger
title: The ledger
catalogue: postgres
uri: `+GuardURI+`
profile: ledger-guard
provable: true
max_call_ms: 60000
---
kind: WorkloadRole
name: bookkeeper
client: books
revision: 1
profiles: [bookkeeper]
actions:
  - {guard: ledger, action: row.append}
  - {guard: ledger, action: row.delete}
limits: {max_runtime_s: 3600, max_effects: 10}
---
kind: Policy
name: default
revision: 1
dial_max: high
limits: {max_runtime_s: 3600, max_effects: 10, max_consent_days: 90}
`, "WORKLOADS", workloads)
}

// Task is a task of the standard registry with an interval of one second.
func (h *House) Task(name string) string {
	return strings.NewReplacer("NAME", name, "PLATFORM", h.Platform.URL).Replace(`
kind: Task
name: NAME
client: books
role: bookkeeper
role_revision: 1
policy: default
policy_revision: 1
revision: 1
owner: {issuer: PLATFORM, subject: member-1}
title: Close the day
schedule: {every_s: 1, anchor: "2026-01-01T00:00:00Z", zone: UTC}
dial: low
grants:
  - {guard: ledger, action: row.append, resource: "table:entries"}
  - {guard: ledger, action: row.delete, resource: "table:entries"}
limits: {runtime_s: 600, effects: 5}
consent: {days: 30}
`)
}

// Log keeps what the authority logged.
type Log struct{ buffer safeBuffer }

// Write appends.
func (l *Log) Write(p []byte) (int, error) { return l.buffer.Write(p) }

// String is everything that was logged.
func (l *Log) String() string { return l.buffer.String() }

var _ io.Writer = (*Log)(nil)

// Key makes a client key.
func (h *House) Key() *capability.Key {
	h.T.Helper()
	k, err := capability.GenerateKey()
	require.NoError(h.T, err)
	return k
}
