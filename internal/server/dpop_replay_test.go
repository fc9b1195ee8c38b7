package server_test

import (
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/keys"
)

// replayCase is a case that takes several requests: of section H, and of G where time passes.
type replayCase struct {
	number, name string
	run          func(t *testing.T, b *bound)
}

var replayCases = []replayCase{
	{"89", "twice", func(t *testing.T, b *bound) {
		proof := b.taken(t)
		b.refused(t, b.with(proof), http.StatusUnauthorized, api.ProofReplayed)
	}},
	{"50, 98", "with another signature of the same key", func(t *testing.T, b *bound) {
		proof := b.taken(t)
		b.refused(t, b.with(b.key.compact()), http.StatusUnauthorized, api.ProofReplayed)
		last := strings.LastIndex(proof, ".")
		sig, err := rawURL(proof[last+1:])
		require.NoError(t, err)
		s := new(big.Int).Sub(order, new(big.Int).SetBytes(sig[32:]))
		b.refused(t, b.with(proof[:last+1]+b64(append(sig[:32:32], pad(s)...))), http.StatusUnauthorized, api.ProofReplayed)
	}},
	{"98", "with htu and jti spelled otherwise", func(t *testing.T, b *bound) {
		b.taken(t)
		b.key.payload["htu"] = strings.Replace(b.key.payload["htu"].(string), "http://", "HTTP://", 1)
		b.refused(t, b.with(b.key.compact()), http.StatusUnauthorized, api.ProofReplayed)
		jti := b.key.payload["jti"].(string)
		again := *b.key
		again.payloadText = strings.Replace(text(again.payload), jti, fmt.Sprintf(`\u%04x`, jti[0])+jti[1:], 1)
		b.refused(t, b.with(again.compact()), http.StatusUnauthorized, api.ProofReplayed)
	}},
	{"94", "the same jti for another URI", func(t *testing.T, b *bound) {
		b.taken(t)
		b.key.payload["htu"], b.key.payload["htm"] = b.h.URL+api.PathUnsettled, "GET"
		other := b.h.Request("GET", api.PathUnsettled, "", nil)
		other.Header.Set("Authorization", "DPoP "+b.token.Reveal())
		other.Header.Set("DPoP", b.key.compact())
		b.refused(t, other, http.StatusUnauthorized, api.ProofReplayed)
	}},
	{"83", "the same nonce, another jti; P29 the same jti under a nonce of another minute", func(t *testing.T, b *bound) {
		b.taken(t)
		nonce, jti := b.key.payload["nonce"], b.key.payload["jti"]
		assert.Equal(t, http.StatusOK, b.h.Send(b.changed(set(inPayload, "nonce", nonce))).Status)
		a := b.h.Send(b.changed(func(r *raw) { r.payload["jti"], r.payload["nonce"] = jti, nonceOf(t, b.h, 61*time.Second) }))
		assert.Equal(t, http.StatusOK, a.Status, string(a.Body))
	}},
	{"87", "an old nonce once more, after an answer has brought a new one", func(t *testing.T, b *bound) {
		b.taken(t)
		old := b.key.payload["nonce"]
		a := b.h.Send(b.request())
		require.Equal(t, http.StatusOK, a.Status)
		require.NotEqual(t, old, a.Header.Get("DPoP-Nonce"))
		assert.Equal(t, http.StatusOK, b.h.Send(b.changed(set(inPayload, "nonce", old))).Status)
	}},
	{"81", "without a nonce, after one was given", func(t *testing.T, b *bound) {
		b.taken(t)
		b.refused(t, b.changed(unset(inPayload, "nonce")), http.StatusUnauthorized, api.UseDPoPNonce)
	}},
	{"90, 91", "many copies to two replicas", func(t *testing.T, b *bound) {
		bundle, err := keys.Open(b.h.KeysDir, b.h.Identity)
		require.NoError(t, err)
		second, _, _ := b.h.Replica(bundle)
		proof := b.request().Header.Get("DPoP")
		var won, lost int
		var lock sync.Mutex
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				var ok bool
				if i%2 == 0 {
					ok = b.h.Send(b.with(proof)).Status == http.StatusOK
				} else {
					_, err := second.Nonces(t.Context(), callOf(b.h, proof), b.token, 1)
					ok = err == nil
				}
				lock.Lock()
				defer lock.Unlock()
				if ok {
					won++
				} else {
					lost++
				}
			})
		}
		all.Wait()
		assert.Equal(t, 1, won)
		assert.Equal(t, 15, lost)
	}},
	{"92", "dated ahead, and sent again when its nonce is nearly over", func(t *testing.T, b *bound) {
		ahead := func(r *raw) {
			r.payload["iat"], r.payload["nonce"] = time.Now().Unix()+3600, nonceOf(t, b.h, 100*time.Second)
		}
		first := b.changed(ahead)
		proof := first.Header.Get("DPoP")
		require.Equal(t, http.StatusOK, b.h.Send(first).Status)
		b.refused(t, b.with(proof), http.StatusUnauthorized, api.ProofReplayed)
	}},
	{"93", "the same jti with another key", func(t *testing.T, b *bound) {
		b.taken(t)
		jti := b.key.payload["jti"]
		other := newRaw(t)
		other.prepare(b.h, "POST", api.PathToken, "")
		other.payload["jti"] = jti
		b.key, b.token = other, b.boot(other)
	}},
	{"95", "an invalid proof does not burn a victim's jti", func(t *testing.T, b *bound) {
		good := b.request()
		jti, nonce := b.key.payload["jti"], b.key.payload["nonce"]
		thief := newRaw(t)
		thief.prepare(b.h, "POST", api.PathNonces, b.token)
		thief.payload["jti"], thief.payload["nonce"] = jti, nonce
		b.refused(t, b.with(thief.compact()), http.StatusUnauthorized, api.InvalidToken)
		assert.Equal(t, http.StatusOK, b.h.Send(good).Status)
	}},
	{"96", "a flood of other proofs displaces none", func(t *testing.T, b *bound) {
		proof := b.taken(t)
		b.h.Exec(`INSERT INTO nw.replay SELECT slot, minute, sha256(i::text::bytea) FROM (SELECT slot, minute FROM nw.replay ORDER BY minute DESC LIMIT 1) r, generate_series(1, 20000) i`)
		b.refused(t, b.with(proof), http.StatusUnauthorized, api.ProofReplayed)
	}},
	{"78, 88", "a challenge spends nothing: the same assertion and jti with the nonce", func(t *testing.T, b *bound) {
		k := newRaw(t)
		k.prepare(b.h, "POST", api.PathToken, "")
		delete(k.payload, "nonce")
		request := b.component(k)
		a := b.refused(t, request, http.StatusBadRequest, api.UseDPoPNonce)
		k.payload["nonce"] = a.Header.Get("DPoP-Nonce")
		again := request.Clone(t.Context())
		again.Body, _ = request.GetBody()
		again.Header.Set("DPoP", k.compact())
		assert.Equal(t, http.StatusOK, b.h.Send(again).Status)
	}},
	{"43", "a key whose x begins with a zero byte", func(t *testing.T, b *bound) {
		k := newRaw(t)
		for point, _ := k.key.PublicKey.Bytes(); point[1] != 0; point, _ = k.key.PublicKey.Bytes() {
			k = newRaw(t)
		}
		k.prepare(b.h, "POST", api.PathToken, "")
		b.key, b.token = k, b.boot(k)
		b.taken(t)
	}},
	{"105", "cnf.jkt is the thumbprint of the proof's key", func(t *testing.T, b *bound) {
		header, payload := parts(b.token)
		assert.Equal(t, "at+jwt", header["typ"])
		public, err := b.key.key.PublicKey.Bytes()
		require.NoError(t, err)
		require.Len(t, public, 65)
		jkt, err := capability.JKT(&b.key.key.PublicKey)
		require.NoError(t, err)
		assert.Equal(t, map[string]any{"jkt": jkt.String()}, payload["cnf"])
	}},
	{"104", "a run capability exchanged without its key's proof", func(t *testing.T, b *bound) {
		w := b.h.Claim(b.h.Plan(b.h.Consent(b.h.Task("exchange"))))
		form := authoritytest.MintForm(w.Token, "book", "rent")
		b.refused(t, b.h.Form(b.h.Key(), form), http.StatusBadRequest, api.InvalidToken)
		var out api.TokenResponse
		b.h.Into(b.h.Send(b.h.Form(w.Key, form)), &out)
		assert.Equal(t, "DPoP", out.TokenType)
		_, payload := parts(capability.Token(out.AccessToken))
		assert.Equal(t, map[string]any{"jkt": w.Key.Thumbprint().String()}, payload["cnf"], "the key stays the same")
	}},
}

// Section H: one proof is good once, at every replica, whatever is done to its spelling.
func TestDPoPReplay(t *testing.T) {
	t.Parallel()
	b := newBound(t)
	for _, c := range replayCases {
		t.Run(c.number+" "+c.name, func(t *testing.T) { c.run(t, b) })
	}
}

// taken sends a correct request, and returns the proof that is spent with it.
func (b *bound) taken(t *testing.T) (proof string) {
	t.Helper()
	r := b.request()
	require.Equal(t, http.StatusOK, b.h.Send(r).Status)
	return r.Header.Get("DPoP")
}

// nonceOf is a nonce that a replica minted a while ago.
func nonceOf(t *testing.T, h *authoritytest.House, ago time.Duration) string {
	t.Helper()
	replica, err := keys.Open(h.KeysDir, h.Identity)
	require.NoError(t, err)
	nonces := replica.Nonces()
	nonces.Now = func() time.Time { return time.Now().Add(-ago) }
	return nonces.Mint(h.URL)
}
