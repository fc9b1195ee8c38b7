package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/fips"
	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
	"github.com/nightwarrant/nightwarrant/keys/provenance"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// Profiles and roots that this binary believes; one for tests has more.
var (
	profiles     = provenance.Profiles()
	attestations = map[string]provenance.Verifier{}
)

// vouching is how this process has its keys vouched for: by officers, not by a token.
type vouching struct {
	config   config.Provenance
	policy   provenance.Policy
	module   fips.Module
	instance [32]byte
	client   *keyhost.Client

	lock    sync.Mutex
	reports map[[32]byte]vouched // by the record's digest
}

// vouched is what became of one key, and when.
type vouched struct {
	provenance.Report
	at time.Time
}

// vouchingOf reads who is believed; nil where nothing is configured.
func vouchingOf(k config.Keys, instance [32]byte) (*vouching, error) {
	if !k.Provenance.Configured() {
		return nil, nil
	}
	v := &vouching{config: k.Provenance, instance: instance, reports: map[[32]byte]vouched{},
		policy: provenance.Policy{Threshold: int(k.Provenance.Threshold), Profiles: profiles, Attestations: attestations, Now: time.Now}}
	for i, o := range k.Provenance.Officers {
		key, err := config.ReadPublicKey(o.KeyFile)
		if err != nil {
			return nil, config.Wrong(fmt.Sprintf("keys.provenance.officers[%d].key_file", i), "%s", err)
		}
		v.policy.Officers = append(v.policy.Officers, provenance.Officer{ID: o.ID, Role: o.Role, PublicKey: key})
	}
	if err := v.policy.Check(); err != nil {
		return nil, config.Wrong("keys.provenance.officers", "cannot decide: %s", err)
	}
	var err error
	if v.module, err = fips.Running(); err != nil {
		return nil, err
	}
	v.client, err = clientOf(k.Host)
	return v, err
}

// verify takes all steps anew for a registered key: files are read, the token is
// looked at, and the key signs a challenge.
func (v *vouching) verify(ctx context.Context, registered keys.Identity) provenance.Report {
	policy := v.policy
	policy.ClusterID = registered.ClusterID
	e := v.files(registered.ProvenanceDigest)
	e.Module, e.PublicKey, e.Replica, e.Observe = v.module, registered.PublicKey, v.instance, v.client.Observe
	e.Registered = provenance.Registered{ClusterID: registered.ClusterID, KID: registered.KID, PublicKey: registered.PublicKey, ProvenanceDigest: registered.ProvenanceDigest}
	if r, _, err := provenance.ParseRecord(e.Record); err == nil {
		e.Challenge = func(ctx context.Context, digest [32]byte) ([64]byte, error) {
			return v.client.SignDigest(ctx, r.Token.KeyID, keyhost.PurposeChallenge, digest)
		}
	}
	r := policy.Verify(ctx, e)
	v.lock.Lock()
	defer v.lock.Unlock()
	v.reports[registered.ProvenanceDigest] = vouched{r, time.Now()}
	return r
}

// files reads the record with that digest, or the first one, and what belongs to
// it. What cannot be read is absent, and absence is judged.
func (v *vouching) files(digest provenance.Hash) (e provenance.Evidence) {
	read := func(file string) []byte {
		text, err := config.ReadBounded(file, maxEvidence)
		if err != nil {
			return nil
		}
		return text
	}
	for i, r := range v.config.Records {
		text := read(r.File)
		if d, err := parsedRecord(text); i == 0 || err == nil && d.Digest == digest {
			e.Record, e.Approvals, e.Attestation = text, read(r.Approvals), read(r.Attestation)
		}
	}
	e.Snapshot, e.SnapshotApprovals = read(v.config.Snapshot), read(v.config.SnapshotApprovals)
	return e
}

// recordedNow is the key that signs, when it is bound to a record.
func recordedNow(b *keys.Bundle) (keys.Identity, bool) {
	for _, id := range b.Recorded() {
		if id.Generation == b.Identity().Generation {
			return id, true
		}
	}
	return keys.Identity{}, false
}

// recorded is the key that signs, when officers vouch for it; it refuses one for
// which they must, and nothing says who.
func (r *replica) recorded(b *keys.Bundle) (id keys.Identity, is bool, err error) {
	id, is = recordedNow(b)
	switch {
	case !is && r.config.FIPSRequired():
		err = provenance.Required(true, false)
	case is && r.vouching == nil:
		err = provenance.Unconfigured()
	}
	return id, is, err
}

// startVouched refuses to start with a key that is not vouched for.
func (r *replica) startVouched(ctx context.Context, b *keys.Bundle) error {
	id, is, err := r.recorded(b)
	if err != nil || !is {
		return err
	}
	return r.vouching.verify(ctx, id).Err()
}

// run verifies the key that signs, and the next one before it does, every ten
// seconds, and each second while something is wrong.
func (v *vouching) run(ctx context.Context, log *slog.Logger, bundle func() *keys.Bundle) {
	if v == nil {
		return
	}
	defer v.client.Close() //nolint:errcheck // nothing is written
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		for _, id := range bundle().Recorded() {
			if was := v.was(id); !was.Accepted() || time.Since(was.at) >= provenance.Interval {
				tellChange(ctx, log, was.Report, v.verify(ctx, id))
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func tellChange(ctx context.Context, log *slog.Logger, was, is provenance.Report) {
	switch {
	case is.Accepted() && !was.Accepted():
		log.LogAttrs(ctx, slog.LevelInfo, "the key's provenance is good", slog.String("record", is.RecordID), slog.String("digest", is.Digest.String()),
			slog.Time("good_until", is.GoodUntil), slog.Any("warnings", is.Warnings))
	case is.Refusal != nil && (was.Refusal == nil || was.Refusal.Code != is.Refusal.Code) && ctx.Err() == nil:
		log.LogAttrs(ctx, slog.LevelError, "the key's provenance is refused", slog.String("record", is.RecordID), slog.String("code", string(is.Refusal.Code)),
			slog.Int("step", is.Refusal.Step), slog.String("detail", is.Refusal.Detail))
	}
}

func (v *vouching) was(id keys.Identity) vouched {
	v.lock.Lock()
	defer v.lock.Unlock()
	return v.reports[id.ProvenanceDigest]
}

// silence is how old the word for a key may be.
const silence = 3 * provenance.Interval

// health is the refusal of a key, or nil when it was accepted not long ago.
func (v *vouching) health(id keys.Identity) error {
	was := v.was(id)
	switch err := was.Err(); {
	case err != nil:
		return err
	case !was.Accepted():
		return errors.New("nothing is known yet of where the key comes from")
	case time.Since(was.at) > silence:
		return fmt.Errorf("where the key comes from was last verified %s ago", time.Since(was.at).Round(time.Second))
	}
	return nil
}

// lookAtVouched looks at the keys that sign, and at who vouches for them.
func (r *replica) lookAtVouched(ctx context.Context) (string, error) {
	reason, err := r.lookAtSigning(ctx)
	if err != nil {
		return reason, err
	}
	id, is, err := r.recorded(r.inForce())
	if err == nil && is {
		err = r.vouching.health(id)
	}
	if err != nil {
		return readiness.Material, err
	}
	return reason, nil
}

// verifyLive takes all nine steps with the parts of a deployment: its files, its
// database and its key host.
func (p program) verifyLive(ctx context.Context, file string) (r provenance.Report, err error) {
	c := &config.Authority{}
	if err := config.Load(file, c, p.env); err != nil {
		return r, err
	}
	v, err := vouchingOf(c.Keys, instanceOf("authority", c.Instance))
	if err != nil {
		return r, err
	}
	if v == nil {
		return r, &config.Error{File: file, Key: "keys.provenance", Sentence: "is missing: there is nothing to verify"}
	}
	defer v.client.Close() //nolint:errcheck // nothing is written
	pool, err := pg.Open(ctx, pg.Config{URL: c.DatabaseURL.Reveal(), MaxConns: 1, Name: "nightwarrant-provenance"})
	if err != nil {
		return r, err
	}
	defer pool.Close()
	registered, err := registeredKey(ctx, pool)
	if err != nil {
		return r, err
	}
	return v.verify(ctx, registered), nil
}
