package authority

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/keys"
)

// Waits are the times that a rotation of keys waits for (P27). They are
// registered with the cluster's first keys and stay as they are.
type Waits struct {
	Cache    time.Duration // how long a relying party may keep the published keys
	Margin   time.Duration // on top of every wait
	Lifetime time.Duration // the longest of anything that is signed
}

// DefaultWaits let a rotation begin to sign after two minutes, and end after six more.
var DefaultWaits = Waits{Cache: time.Minute, Margin: time.Minute, Lifetime: capability.MaxLifetime}

// KeyState is what the database says of the cluster's keys.
type KeyState struct {
	Waits
	Cluster     [16]byte
	Now         time.Time    // of the database's clock
	Generations []Generation // newest first
}

// Generation is one of them, with its times by the database's clock.
type Generation struct {
	keys.Registered
	PublishedAt, UsableAt, ActivatedAt, NeededUntil, EndedAt time.Time
	Replicas, Lacking                                        int64 // that report, and of those the ones that have not proved to hold it
}

// Of returns the generation in a state, of which there is one at most while it is in force.
func (s KeyState) Of(state keys.State) (Generation, bool) {
	i := slices.IndexFunc(s.Generations, func(g Generation) bool { return g.State == state })
	if i < 0 {
		return Generation{}, false
	}
	return s.Generations[i], true
}

// Newest is the highest number that a generation ever had.
func (s KeyState) Newest() int64 {
	if len(s.Generations) == 0 {
		return 0
	}
	return s.Generations[0].Generation
}

func (s KeyState) registered() []keys.Registered {
	out := make([]keys.Registered, len(s.Generations))
	for i, g := range s.Generations {
		out[i] = g.Registered
	}
	return out
}

// generationRow is one line of nw.key_state.
type generationRow struct {
	Generation  int64      `json:"generation"`
	State       keys.State `json:"state"`
	KID         string     `json:"kid"` // hex, like the next three
	PublicKey   string     `json:"public_key"`
	NonceCheck  string     `json:"nonce_check"`
	Provenance  string     `json:"provenance"`
	PublishedAt time.Time  `json:"published_at"`
	UsableAt    time.Time  `json:"usable_at"`
	ActivatedAt time.Time  `json:"activated_at"`
	NeededUntil time.Time  `json:"needed_until"`
	EndedAt     time.Time  `json:"ended_at"`
	Replicas    int64      `json:"replicas"`
	Lacking     int64      `json:"lacking"`
}

type generationRows []generationRow

func (g *generationRows) Scan(src any) error { return scanJSON(src, (*[]generationRow)(g)) }

// ReadKeys reads the generations in force, or all that there ever were. A
// database without registered keys has none.
func ReadKeys(ctx context.Context, pool *pgxpool.Pool, all bool) (s KeyState, err error) {
	var cluster, audit []byte
	var cache, margin, lifetime int64
	var rows generationRows
	if _, err = pg.Call(ctx, pool, `SELECT cluster, audit_key, coalesce(cache_ms, 0), coalesce(margin_ms, 0), coalesce(lifetime_ms, 0), db_now, generations FROM nw.key_state($1)`,
		[]any{all}, &cluster, &audit, &cache, &margin, &lifetime, &s.Now, &rows); err != nil {
		return s, err
	}
	copy(s.Cluster[:], cluster)
	s.Waits = Waits{time.Duration(cache) * time.Millisecond, time.Duration(margin) * time.Millisecond, time.Duration(lifetime) * time.Millisecond}
	for _, r := range rows {
		g, err := r.read(s.Cluster, audit)
		if err != nil {
			return s, fmt.Errorf("generation %d of the registered keys cannot be read: %w", r.Generation, err)
		}
		s.Generations = append(s.Generations, g)
	}
	return s, nil
}

func (r generationRow) read(cluster [16]byte, audit []byte) (g Generation, err error) {
	g = Generation{PublishedAt: r.PublishedAt, UsableAt: r.UsableAt, ActivatedAt: r.ActivatedAt, NeededUntil: r.NeededUntil, EndedAt: r.EndedAt, Replicas: r.Replicas, Lacking: r.Lacking}
	g.State, g.Registered.Generation, g.ClusterID, g.KID = r.State, r.Generation, cluster, reencode(r.KID)
	copy(g.AuditKey[:], audit)
	for text, into := range map[string]*[32]byte{r.NonceCheck: &g.NonceCheck, r.Provenance: &g.ProvenanceDigest} {
		if n, err := hex.Decode(into[:], []byte(text)); err != nil || n != len(into) {
			return g, fmt.Errorf("a digest is malformed: %w", err)
		}
	}
	g.PublicKey, err = publicKey(r.PublicKey)
	return g, err
}

func publicKey(text string) (*ecdsa.PublicKey, error) {
	point, err := hex.DecodeString(text)
	if err != nil {
		return nil, err
	}
	return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
}

// ReadIdentity reads the public identity of the cluster's keys that sign now.
func ReadIdentity(ctx context.Context, pool *pgxpool.Pool) (id keys.Identity, found bool, err error) {
	s, err := ReadKeys(ctx, pool, false)
	if err != nil {
		return id, false, err
	}
	g, found := s.Of(keys.Current)
	return g.Identity, found, nil
}

// columns are an identity as the verbs take it.
func columns(id keys.Identity) ([]any, error) {
	kid, ok := decode(id.KID, 32)
	public, err := id.PublicKey.Bytes()
	if !ok || err != nil {
		return nil, &keys.MaterialError{Sentence: "the key bundle's identity is malformed"}
	}
	return []any{kid, public, id.NonceCheck[:], id.ProvenanceDigest[:], id.AuditKey[:]}, nil
}

// RegisterIdentity enters the public identity of the cluster's keys, once, with
// the times that every rotation of them will wait for. pool is the operator's
// database role. Registering the same again is no change; another one is refused.
func RegisterIdentity(ctx context.Context, pool *pgxpool.Pool, id keys.Identity, w Waits) error {
	of, err := columns(id)
	if err != nil {
		return err
	}
	var verdict string
	_, err = pg.Call(ctx, pool, `SELECT verdict FROM nw.register_keys($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		append(append([]any{id.ClusterID[:], id.Generation}, of...), w.Cache.Milliseconds(), w.Margin.Milliseconds(), w.Lifetime.Milliseconds()), &verdict)
	if err == nil && verdict != "ok" {
		return &keys.MaterialError{Sentence: "another key bundle is registered for this cluster; nothing was changed"}
	}
	return err
}

// Step is one step of a rotation.
type Step string

// The steps of a rotation.
const (
	Publish  Step = "publish"
	Activate Step = "activate"
	Retire   Step = "retire"
	Withdraw Step = "withdraw"
)

// Stepped is what became of a step: ok, again when it was taken before, or why it
// was not: too_early, lacking, stale, unfinished, foreign, not_found.
type Stepped struct {
	Verdict string
	Wait    time.Duration // of too_early
	Lacking int64         // replicas, of lacking
}

// Rotate takes a step of a rotation from the generation that signs now, by
// compare-and-set. next is the one that is published, activated or withdrawn; of
// Publish its whole identity, else its cluster and generation. pool is the
// operator's database role.
func Rotate(ctx context.Context, pool *pgxpool.Pool, step Step, current int64, next keys.Identity) (s Stepped, err error) {
	of := []any{nil, nil, nil, nil, nil}
	if step == Publish {
		if of, err = columns(next); err != nil {
			return s, err
		}
	}
	var wait int64
	_, err = pg.Call(ctx, pool, `SELECT verdict, coalesce(wait_ms, 0), coalesce(lacking, 0) FROM nw.rotate_keys($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		append([]any{string(step), next.ClusterID[:], current, next.Generation}, of...), &s.Verdict, &wait, &s.Lacking)
	s.Wait = time.Duration(wait) * time.Millisecond
	return s, err
}

// CutOff ends every older generation than this one, in one transaction: what was
// signed with them, and their nonces. The verdict is ok, stale, foreign or not_found.
func CutOff(ctx context.Context, pool *pgxpool.Pool, cluster [16]byte, generation int64) (verdict string, dead int64, err error) {
	_, err = pg.Call(ctx, pool, `SELECT verdict, dead FROM nw.cut_off_keys($1, $2)`, []any{cluster[:], generation}, &verdict, &dead)
	return verdict, dead, err
}

// standing is the bundle as the database has arranged it.
type standing struct {
	bundle   *keys.Bundle
	state    KeyState
	lifetime time.Duration
}

// generations follow the database. What is served changes as a whole, and never
// goes back to what was read before.
type generations struct {
	now     atomic.Pointer[standing]
	reading sync.Mutex // of one at a time
	mu      sync.Mutex
	next    *turn
}

// turn is a reading that has not begun. Whoever comes before it begins shares it,
// so that many callers cost no more readings than one.
type turn struct {
	done chan struct{}
	err  error
}

// follow reads what the database says, after now, and arranges the keys by it: the bundle
// that is given, or the one in memory. When that fails, all stays as it was.
func (a *Authority) follow(ctx context.Context, opened *keys.Bundle) error {
	a.generations.reading.Lock()
	defer a.generations.reading.Unlock()
	return a.arrange(ctx, opened)
}

func (a *Authority) arrange(ctx context.Context, opened *keys.Bundle) error {
	s, err := ReadKeys(ctx, a.Pool, false)
	if err != nil {
		return fmt.Errorf("read the registered keys: %w", err)
	}
	was := a.generations.now.Load()
	if opened == nil {
		if was.same(s) {
			return nil
		}
		opened = was.bundle
	}
	b, err := opened.Under(s.registered())
	if err != nil {
		return err
	}
	a.generations.now.Store(&standing{b, s, min(s.Lifetime, capability.MaxLifetime)})
	if was != nil && !was.same(s) {
		a.Log.LogAttrs(ctx, slog.LevelInfo, "the generations of keys have changed", slog.Int64("signs", b.Identity().Generation), slog.Any("holds", b.Holds()))
	}
	return nil
}

// same tells that nothing was said that is not heeded yet.
func (k *standing) same(s KeyState) bool {
	return slices.EqualFunc(k.state.Generations, s.Generations, func(x, y Generation) bool {
		return x.State == y.State && x.Registered.Generation == y.Registered.Generation && x.KID == y.KID
	})
}

// heed is follow for anybody who asks, as often as they like.
func (a *Authority) heed(ctx context.Context) error {
	g := &a.generations
	g.mu.Lock()
	t := g.next
	if t != nil {
		g.mu.Unlock()
		select {
		case <-t.done:
			return t.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	t = &turn{done: make(chan struct{})}
	g.next = t
	g.mu.Unlock()
	defer close(t.done)
	g.reading.Lock()
	defer g.reading.Unlock()
	g.mu.Lock()
	g.next = nil // who comes from now on wants a later answer
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	t.err = a.arrange(ctx, nil)
	return t.err
}

// JWKS is the published key set as the database has it at some instant of this
// call, and how long it may be kept. All replicas read the same rows, so that at
// no instant any two of them differ.
func (a *Authority) JWKS(ctx context.Context) (set []byte, keep time.Duration, err error) {
	if err := a.heed(ctx); err != nil {
		return nil, 0, unavailable(err)
	}
	now := a.generations.now.Load()
	return now.bundle.JWKS(), now.state.Cache, nil
}

// Keys are the cluster's keys as they stand now: of two calls the second may be
// told of another generation that signs.
func (a *Authority) Keys() *keys.Bundle { return a.generations.now.Load().bundle }

// Hold has the authority use a bundle that was just opened, if it is the
// registered one or its announced successor, and returns the generations in force
// that it has proved to hold. When it is neither, the one before stays in use.
func (a *Authority) Hold(ctx context.Context, opened *keys.Bundle) ([]int64, error) {
	if err := a.follow(ctx, opened); err != nil {
		return nil, err
	}
	return a.Keys().Holds(), nil
}

// Marks make and open nonces under whichever keys are in force.
func (a *Authority) Marks() Marks { return Marks{a} }

// Marks are nonces whose keys change with the cluster's.
type Marks struct{ of *Authority }

// Mint is keys.Nonces.Mint.
func (m Marks) Mint(audience string) string { return m.of.Keys().Nonces().Mint(audience) }

// Open is keys.Nonces.Open.
func (m Marks) Open(mark, audience string) (keys.Nonce, error) {
	return m.of.Keys().Nonces().Open(mark, audience)
}

// signing is the key that signs now, and enters its generation (P25).
func (a *Authority) signing(h *capability.Header) *keys.Signer {
	b := a.Keys()
	h.Generation = b.Identity().Generation
	return b.Signer()
}
