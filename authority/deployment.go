package authority

import (
	"context"
	"encoding/json"

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
	var cluster, kid, provenance, audit []byte
	err = a.look(ctx, `SELECT cluster, generation, kid, provenance, audit_key FROM nw.identity()`, nil, &cluster, &i.Generation, &kid, &provenance, &audit)
	i.Cluster, i.KeyID, i.Provenance, i.AuditKey = encode(cluster), encode(kid), encode(provenance), encode(audit)
	return i, err
}

func (a *Authority) replicas(ctx context.Context) ([]api.Replica, error) {
	return list(ctx, a, func(from pgx.CollectableRow) (r api.Replica, err error) {
		var body, instance, binary []byte
		var release *int32
		var module *string
		var fips *bool
		err = from.Scan(&r.Kind, &body, &instance, &r.Boot, &r.Since, &r.Seen, &r.Live, &binary, &release, &module, &fips)
		r.Instance, r.Since, r.Seen, r.Component = encode(instance), r.Since.UTC(), r.Seen.UTC(), nameOf(body)
		if binary != nil {
			r.Build = &api.Build{BinarySHA256: encode(binary), Module: deref(module), FIPS: fips != nil && *fips}
			if release != nil {
				r.Build.Go = builds.GoRelease(*release)
			}
		}
		return r, err
	}, `SELECT kind, component, instance, boot, since, seen, live, binary_sha, go, module, fips FROM nw.show_builds()`)
}

// nameOf is the name in a document; without a document there is none.
func nameOf(body []byte) string {
	var d struct{ Name string }
	_ = json.Unmarshal(body, &d)
	return d.Name
}
