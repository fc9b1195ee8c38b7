package keys

import (
	"slices"
	"time"
)

// Rotate makes the two successors of the bundle in dir, each in a directory of
// its own (new or empty). Roll out prepared first: it is the same bundle, but it
// publishes the next key and accepts nonces of the next nonce key. After the
// JWKS cache time plus a margin (protocol P27), register the returned identity
// and roll out activated, which signs with generation + 1 and still verifies
// what the old key signed. Every error is a *MaterialError.
func Rotate(dir, identityFile, prepared, activated string) (Identity, error) {
	o, err := openParts(dir, identityFile, nil)
	if err != nil {
		return Identity{}, err
	}
	p, m := o.public, o.keys
	if len(p.Next) > 0 {
		return Identity{}, material("the bundle is prepared for a rotation already; roll out its successor first", nil)
	}
	next, err := newMaterial()
	if err != nil {
		return Identity{}, material("the keys cannot be generated", err)
	}
	announced, err := dated(p.Generation+1, &next.private.PublicKey)
	if err != nil {
		return Identity{}, material("the keys cannot be encoded", err)
	}
	before, after := *p, *p
	before.Next = []datedKey{announced}
	after.Generation++
	after.Provenance = newProvenance(time.Now())
	after.Previous = append([]datedKey{{Generation: p.Generation, KID: p.KID, Key: p.Key}}, p.Previous...)
	old := &sealedKeys{private: m.private, nonce: m.nonce, audit: m.audit, accepted: append(slices.Clone(m.accepted), next.nonce)}
	next.audit = m.audit // the log goes on
	next.accepted = append(slices.Clone(m.accepted), m.nonce)
	if err := old.write(prepared, before, o.to); err != nil {
		return Identity{}, err
	}
	if err := next.write(activated, after, o.to); err != nil {
		return Identity{}, err
	}
	if _, err := reopen(prepared, identityFile, nil); err != nil {
		return Identity{}, err
	}
	return reopen(activated, identityFile, nil)
}

// Retire makes the successor of the bundle in dir that verifies with its current
// key and opens with its current nonce key only. Roll it out after the longest
// lifetime of anything signed plus skew (P27). The identity stays the same.
func Retire(dir, identityFile, retired string) (Identity, error) {
	o, err := openParts(dir, identityFile, nil)
	if err != nil {
		return Identity{}, err
	}
	p, m := o.public, o.keys
	if len(p.Next) > 0 {
		return Identity{}, material("the bundle is prepared for a rotation; its successor has something to retire, it has not", nil)
	}
	p.Previous = []datedKey{}
	m.accepted = nil
	if err := m.write(retired, *p, o.to); err != nil {
		return Identity{}, err
	}
	return reopen(retired, identityFile, nil)
}
