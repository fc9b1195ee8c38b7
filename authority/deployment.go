package authority

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/builds"
)

// Deployment is what is known of the processes and of the keys of this cluster.
func (a *Authority) Deployment(ctx context.Context, m Actor) (d api.Deployment, err error) {
	if err := a.inspect(ctx, m); err != nil {
		return d, err
	}
	now, err := a.databaseTime(ctx)
	if err != nil {
		return d, err
	}
	d.At = now.UTC()
	if d.Identity, err = a.registered(ctx); err != nil {
		return d, err
	}
	if d.Replicas, err = a.replicas(ctx); err != nil {
		return d, err
	}
	err = a.look(ctx, `SELECT effects, oldest FROM nw.show_uncertain()`, nil, &d.Uncertain.Effects, &d.Uncertain.Oldest)
	d.Uncertain.Oldest = utc(d.Uncertain.Oldest)
	return d, err
}

func (a *Authority) registered(ctx context.Context) (i api.Identity, err error) {
	var cluster, audit, generations []byte
	if err = a.look(ctx, `SELECT cluster, audit_key, generations::text::bytea FROM nw.key_state(true)`, nil, &cluster, &audit, &generations); err != nil {
		return i, err
	}
	i.Cluster, i.AuditKey = encode(cluster), encode(audit)
	if err = json.Unmarshal(generations, &i.Generations); err != nil {
		return i, fmt.Errorf("read the generations of keys: %w", err)
	}
	for n := range i.Generations {
		g := &i.Generations[n]
		g.KeyID, g.Provenance = unhexed(g.KeyID), unhexed(g.Provenance)
		g.PublishedAt, g.ActivatedAt, g.EndedAt = g.PublishedAt.UTC(), utc(g.ActivatedAt), utc(g.EndedAt)
	}
	return i, nil
}

// unhexed spells what the database put into JSON as the wire does.
func unhexed(text string) string {
	b, _ := hex.DecodeString(text) // the database's own
	return encode(b)
}

func (a *Authority) replicas(ctx context.Context) ([]api.Replica, error) {
	return list(ctx, a, func(from pgx.CollectableRow) (r api.Replica, err error) {
		var body, instance, binary []byte
		var release *int32
		var module *string
		var fips *bool
		err = from.Scan(&r.Kind, &body, &instance, &r.Boot, &r.Since, &r.Seen, &r.Live, &binary, &release, &module, &fips, &r.BuildSince)
		r.Instance, r.Since, r.Seen, r.Component, r.BuildSince = encode(instance), r.Since.UTC(), r.Seen.UTC(), nameOf(body), utc(r.BuildSince)
		if binary != nil {
			r.Build = &api.Build{BinarySHA256: encode(binary), Module: deref(module), FIPS: fips != nil && *fips}
			if release != nil {
				r.Build.Go = builds.GoRelease(*release)
			}
		}
		return r, err
	}, `SELECT kind, component, instance, boot, since, seen, live, binary_sha, go, module, fips, build_since FROM nw.show_builds()`)
}

// nameOf is the name in a document; without a document there is none.
func nameOf(body []byte) string {
	var d struct{ Name string }
	_ = json.Unmarshal(body, &d)
	return d.Name
}
