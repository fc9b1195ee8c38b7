package keys

import (
	"context"
	"crypto/ecdsa"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// under arranges a bundle with these identities in these states.
func under(t testing.TB, b *Bundle, registered ...Registered) *Bundle {
	t.Helper()
	out, err := b.Under(registered)
	require.NoError(t, err)
	return out
}

func published(t testing.TB, b *Bundle) (generations []int64) {
	t.Helper()
	var raw struct{ Keys []struct{ Generation int64 } }
	require.NoError(t, json.Unmarshal(b.JWKS(), &raw))
	for _, k := range raw.Keys {
		generations = append(generations, k.Generation)
	}
	return generations
}

// The same files sign with the one key and then with the other, as the database
// says; a replica that has not the newer file yet publishes the same.
func TestRotation(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	old := m.open(t)
	first := old.Identity()
	successor := made{m.dir + ".2", m.identity}
	next, err := Prepare(m.dir, m.identity, successor.dir, 1, 1, nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, next.Generation)
	held := successor.open(t)
	require.Equal(t, first, held.Identity(), "nobody has registered the next yet")
	require.Equal(t, old.JWKS(), held.JWKS())

	steady := []Registered{{first, Current}}
	announced := []Registered{{next, Next}, {first, Current}}
	activated := []Registered{{next, Current}, {first, Previous}}
	retired := []Registered{{next, Current}, {first, Retired}}
	require.Equal(t, under(t, old, steady...).JWKS(), under(t, held, steady...).JWKS())
	require.Equal(t, []int64{1}, published(t, under(t, held, steady...)))
	require.Equal(t, under(t, old, announced...).JWKS(), under(t, held, announced...).JWKS())
	require.Equal(t, []int64{1, 2}, published(t, under(t, held, announced...)))
	require.Equal(t, []int64{2, 1}, published(t, under(t, held, activated...)))
	require.Equal(t, []int64{2}, published(t, under(t, held, retired...)))
	require.Equal(t, []int64{1}, under(t, old, announced...).Holds())
	require.Equal(t, []int64{1, 2}, under(t, held, announced...).Holds())

	require.Equal(t, first, under(t, held, announced...).Identity())
	require.Equal(t, next, under(t, held, activated...).Identity())
	require.Equal(t, next.KID, under(t, held, activated...).Signer().KeyID())
	_, err = old.Under(activated)
	requireMaterial(t, err, "another generation")
	_, err = old.Under(nil)
	requireMaterial(t, err, "no key bundle is registered")

	before, during, after, last := under(t, held, steady...), under(t, held, announced...), under(t, held, activated...), under(t, held, retired...)
	opens := func(by, of *Bundle) bool {
		n, err := by.Nonces().Open(of.Nonces().Mint("a"), "a")
		require.True(t, err != nil || n.Generation == of.Identity().Generation)
		_, err2 := by.Cursors().Open([32]byte{1}, of.Cursors().Seal([32]byte{1}, [16]byte{2}))
		require.Equal(t, err == nil, err2 == nil)
		return err == nil
	}
	assert.False(t, opens(before, after), "that is why it is announced first")
	assert.True(t, opens(during, after))
	assert.True(t, opens(after, during))
	assert.True(t, opens(last, after))
	assert.False(t, opens(last, before))
	for _, b := range []*Bundle{during, after} {
		for _, id := range []Identity{first, next} {
			public, generation, ok := b.Key(id.KID)
			require.True(t, ok)
			assert.Equal(t, id.Generation, generation)
			assert.True(t, id.PublicKey.Equal(public))
		}
	}
	_, _, ok := before.Key(next.KID)
	assert.False(t, ok)
	_, _, ok = last.Key(first.KID)
	assert.False(t, ok)
}

// What the database says of a key that this replica holds must be true of it.
func TestUnderRefusesEveryDifference(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	next, err := Prepare(m.dir, m.identity, m.dir+".2", 1, 1, nil)
	require.NoError(t, err)
	b := made{m.dir + ".2", m.identity}.open(t)
	first, foreign := b.Identity(), makeBundle(t).open(t).Identity()
	foreign.Generation = 2
	other := next
	other.PublicKey = foreign.PublicKey
	lacking := foreign
	lacking.ClusterID, lacking.AuditKey = first.ClusterID, first.AuditKey
	for word, registered := range map[string][]Registered{
		"another cluster":              {{foreign, Current}},
		"another generation":           {{withGeneration(first, 7), Current}},
		"signing key is not":           {{first, Current}, {other, Next}},
		"signing key":                  {{lacking, Current}, {first, Previous}},
		"no key bundle is registered":  {{next, Next}, {first, Retired}},
		"no key bundle is registered ": {{first, CutOff}, {next, Withdrawn}},
	} {
		_, err := b.Under(registered)
		requireMaterial(t, err, word[:len(word)-1])
	}
}

func withGeneration(i Identity, g int64) Identity {
	i.Generation = g
	return i
}

// A verification key that only the database has is published, and nothing here
// verifies under it.
func TestAKeyThatOnlyTheDatabaseHasVerifiesNothing(t *testing.T) {
	t.Parallel()
	b := makeBundle(t).open(t)
	planted := makeBundle(t).open(t).Identity()
	planted.ClusterID, planted.AuditKey, planted.Generation = b.Identity().ClusterID, b.Identity().AuditKey, 2
	now := under(t, b, Registered{planted, Next}, Registered{b.Identity(), Current})
	assert.Equal(t, []int64{1, 2}, published(t, now))
	_, _, ok := now.Key(planted.KID)
	assert.False(t, ok)
}

// Each rotation's bundle has the key that signs and the next one, and nothing older.
func TestRotationsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	at := makeBundle(t)
	for i := int64(1); i <= 3; i++ {
		next := made{fmt.Sprint(at.dir, ".", i), at.identity}
		id, err := Prepare(at.dir, at.identity, next.dir, i, i, nil)
		require.NoError(t, err)
		require.Equal(t, i+1, id.Generation)
		require.Len(t, next.open(t).held, 2)
		at = next
	}
	assert.Equal(t, []int64{3, 4}, []int64{at.open(t).held[0].Generation, at.open(t).held[1].Generation})
	_, err := Prepare(at.dir, at.identity, at.dir+".x", 2, 4, nil)
	requireMaterial(t, err, "does not hold the generation that signs")
	id, err := Trim(at.dir, at.identity, at.dir+".trimmed", 4, nil)
	require.NoError(t, err)
	require.EqualValues(t, 4, id.Generation)
	trimmed := made{at.dir + ".trimmed", at.identity}.open(t)
	require.Len(t, trimmed.held, 1)
	require.NoError(t, trimmed.Prove(id))
	withdrawn, err := Prepare(at.dir, at.identity, at.dir+".y", 3, 9, nil)
	require.NoError(t, err)
	require.EqualValues(t, 10, withdrawn.Generation, "a number is never used twice")
}

// Whoever is stopped in the middle asks again, and ends with one successor.
func TestASuccessorIsMadeOnce(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	next, err := Prepare(m.dir, m.identity, m.dir+".2", 1, 1, nil)
	require.NoError(t, err)
	again, err := Prepare(m.dir, m.identity, m.dir+".2", 1, 1, nil)
	require.NoError(t, err)
	require.Equal(t, next, again)
	_, err = Trim(m.dir, m.identity, m.dir+".2", 1, nil)
	requireMaterial(t, err, "another bundle")
	other := makeBundle(t)
	_, err = Prepare(m.dir, m.identity, other.dir, 1, 1, nil)
	requireMaterial(t, err, "never overwritten")
	require.NoError(t, os.WriteFile(m.dir+".file", nil, 0o600))
	_, err = Prepare(m.dir, m.identity, m.dir+".file", 1, 1, nil)
	requireMaterial(t, err, "")
	left, err := filepath.Glob(filepath.Join(filepath.Dir(m.dir), ".bundle-*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

// tokens is a key host that serves several pairs.
type tokens []*hardware

func (h tokens) Describe(ctx context.Context) (out keyhost.Descriptor, err error) {
	for i, one := range h {
		d, err := one.Describe(ctx)
		if err != nil {
			return d, err
		}
		d.Pairs[0].Signing, d.Pairs[0].Nonce = fmt.Sprint(i), fmt.Sprint(i)
		out.Pairs = append(out.Pairs, d.Pairs...)
	}
	return out, nil
}

func (h tokens) SignDigest(ctx context.Context, key, purpose string, digest [32]byte) ([64]byte, error) {
	return h.of(key).SignDigest(ctx, key, purpose, digest)
}

func (h tokens) MAC(ctx context.Context, key string, message []byte) ([32]byte, error) {
	return h.of(key).MAC(ctx, key, message)
}

func (h tokens) of(key string) *hardware {
	return h[slices.IndexFunc(h, func(x *hardware) bool { return fmt.Sprint(slices.Index(h, x)) == key })]
}

// A sealed bundle goes over to a token, and from one pair in a token to the
// next, by rotations like any other; the nonce key goes with the signing key.
func TestRotationIntoAToken(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	sealed := m.open(t).Identity()
	host := tokens{newHardware(t)}
	prepare := func(from, to string, current int64) Identity {
		id, err := Prepare(from, m.identity, to, current, current, host)
		require.NoError(t, err)
		again, err := Prepare(from, m.identity, to, current, current, host)
		require.NoError(t, err)
		require.Equal(t, id, again)
		return id
	}
	second := prepare(m.dir, m.dir+".2", 1)
	assert.True(t, second.PublicKey.Equal(&host[0].private.PublicKey))
	_, err := Open(m.dir+".2", m.identity)
	requireMaterial(t, err, "key host")
	both, err := OpenWith(m.dir+".2", m.identity, host)
	require.NoError(t, err)
	signs := func(b *Bundle, by *ecdsa.PublicKey) {
		digest := [32]byte{1}
		sig, err := b.Signer().SignES256(digest)
		require.NoError(t, err)
		assert.True(t, verifyES256(by, digest, sig))
	}
	signs(under(t, both, Registered{sealed, Current}, Registered{second, Next}), sealed.PublicKey)
	moved := under(t, both, Registered{second, Current}, Registered{sealed, Previous})
	signs(moved, second.PublicKey)
	nonce := moved.Nonces().Mint("a")
	n, err := both.Nonces().Open(nonce, "a")
	require.ErrorIs(t, err, ErrNonce, "%v", n)

	host = append(host, newHardware(t))
	third := prepare(m.dir+".2", m.dir+".3", 2)
	assert.True(t, third.PublicKey.Equal(&host[1].private.PublicKey))
	inToken, err := OpenWith(m.dir+".3", m.identity, host)
	require.NoError(t, err)
	last := under(t, inToken, Registered{third, Current}, Registered{second, Previous})
	signs(last, third.PublicKey)
	_, err = last.Nonces().Open(nonce, "a")
	require.NoError(t, err, "the token opens what its other key made")

	_, err = Prepare(m.dir+".3", m.identity, m.dir+".4", 3, 3, host)
	requireMaterial(t, err, "must serve one")
	_, err = Trim(m.dir+".3", m.identity, m.dir+".5", 3, host)
	require.NoError(t, err)
	_, err = Trim(m.dir+".2", m.identity, m.dir+".6", 1, host)
	require.NoError(t, err, "back to what was, when the move is withdrawn")
	require.Equal(t, sealed, made{m.dir + ".6", m.identity}.open(t).Identity())
}
