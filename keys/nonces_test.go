package keys

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const guard = "https://guard.example/db"

func nonces(t testing.TB, at time.Time) *Nonces {
	t.Helper()
	n := makeBundle(t).open(t).Nonces()
	n.Now = func() time.Time { return at }
	return n
}

func TestNonceRefused(t *testing.T) {
	t.Parallel()
	n, foreign := nonces(t, time.Now()), nonces(t, time.Now())
	good := n.Mint(guard)
	_, err := n.Open(good, guard)
	require.NoError(t, err)
	for name, tc := range map[string]struct{ nonce, audience string }{
		"empty":             {"", guard},
		"other audience":    {good, guard + "/"},
		"no audience":       {good, ""},
		"short":             {good[1:], guard},
		"long":              {good + "A", guard},
		"padded":            {good + "=", guard},
		"line end":          {good[:30] + "\n" + good[30:59], guard},
		"line ends":         {good[:56] + "\r\n\r\n", guard},
		"standard alphabet": {strings.NewReplacer("-", "+", "_", "/").Replace(withBoth(n)), guard},
		"blank":             {" " + good[1:], guard},
		"zero":              {strings.Repeat("A", nonceLen), guard},
		"other bundle":      {foreign.Mint(guard), guard},
		"huge":              {strings.Repeat("A", 1<<20), guard},
	} {
		_, err := n.Open(tc.nonce, tc.audience)
		require.ErrorIs(t, err, ErrNonce, name)
	}
}

// The decoder skips line ends. Where a MAC happens to end in zeros, a nonce that
// lacks its end must still not pass.
func TestNonceWithLineEndsForItsEnd(t *testing.T) {
	t.Parallel()
	n := newNonces([]nonceKey{{macKey: func([]byte) ([32]byte, bool) { return [32]byte{}, true }}})
	s := n.Mint(guard)
	_, err := n.Open(s, guard)
	require.NoError(t, err)
	_, err = n.Open(s[:56]+"\r\n\r\n", guard)
	require.ErrorIs(t, err, ErrNonce)
}

// withBoth mints until the nonce has a character in which the alphabets differ.
func withBoth(n *Nonces) string {
	for {
		if s := n.Mint(guard); strings.ContainsAny(s, "-_") {
			return s
		}
	}
}

func TestNonceSyntaxAndContent(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 59, 999_999_000, time.UTC)
	n := nonces(t, at)
	s := n.Mint(guard)
	require.Len(t, s, 60)
	for _, c := range s { // NQCHAR (RFC 6749 appendix A)
		require.True(t, c == 0x21 || c >= 0x23 && c <= 0x5b || c >= 0x5d && c <= 0x7e)
	}
	got, err := n.Open(s, guard)
	require.NoError(t, err)
	require.Equal(t, at, got.IssuedAt)
	require.Equal(t, at.Unix()/60, got.Minute)
	require.NotEqual(t, s, n.Mint(guard), "a challenge brings a nonce that differs from the last")

	require.True(t, got.Plausible(at, 0))
	require.True(t, got.Plausible(at.Add(time.Minute), time.Minute))
	require.True(t, got.Plausible(at.Add(-time.Minute), time.Minute))
	require.False(t, got.Plausible(at.Add(time.Minute+1), time.Minute))
	require.False(t, got.Plausible(at.Add(-time.Minute-1), time.Minute))
	require.False(t, Nonce{}.Plausible(at, 100*time.Hour))
}

// A restart and another replica are the same thing: the bundle opened again.
func TestNonceOfAnyReplica(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	s := m.open(t).Nonces().Mint(guard)
	_, err := m.open(t).Nonces().Open(s, guard)
	require.NoError(t, err)
}

func TestNoncePropertyAnyBitCounts(t *testing.T) {
	t.Parallel()
	n := nonces(t, time.Now())
	rapid.Check(t, func(t *rapid.T) {
		audience := rapid.String().Draw(t, "audience")
		good := n.Mint(audience)
		_, err := n.Open(good, audience)
		require.NoError(t, err)

		raw, err := base64.RawURLEncoding.DecodeString(good)
		require.NoError(t, err)
		bit := rapid.IntRange(0, len(raw)*8-1).Draw(t, "bit")
		raw[bit/8] ^= 1 << (bit % 8)
		_, err = n.Open(base64.RawURLEncoding.EncodeToString(raw), audience)
		require.ErrorIs(t, err, ErrNonce)

		other := rapid.String().Filter(func(s string) bool { return s != audience }).Draw(t, "other")
		_, err = n.Open(good, other)
		require.ErrorIs(t, err, ErrNonce)
	})
}

func TestNoncesAreDistinct(t *testing.T) {
	t.Parallel()
	n := nonces(t, time.Unix(1_800_000_000, 0))
	seen := map[string]bool{}
	for range 10_000 {
		s := n.Mint(guard)
		require.False(t, seen[s])
		seen[s] = true
	}
}

func TestNoncesConcurrently(t *testing.T) {
	t.Parallel()
	n := nonces(t, time.Now())
	failed := make(chan error, 8)
	for range 8 {
		go func() {
			var last error
			for range 500 {
				if _, err := n.Open(n.Mint(guard), guard); err != nil {
					last = err
				}
			}
			failed <- last
		}()
	}
	for range 8 {
		require.NoError(t, <-failed)
	}
}

func FuzzNonce(f *testing.F) {
	n := nonces(f, time.Now())
	good := n.Mint(guard)
	f.Add(good, guard)
	f.Add(good, "")
	f.Add(good[:59]+"\n", guard)
	f.Fuzz(func(t *testing.T, nonce, audience string) {
		_, err := n.Open(nonce, audience)
		require.Equal(t, nonce == good && audience == guard, err == nil)
	})
}

func BenchmarkNonceMint(b *testing.B) {
	n := makeBundle(b).open(b).Nonces()
	b.ReportAllocs()
	for b.Loop() {
		n.Mint(guard)
	}
}

func BenchmarkNonceOpen(b *testing.B) {
	n := makeBundle(b).open(b).Nonces()
	s := n.Mint(guard)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := n.Open(s, guard); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSign(b *testing.B) {
	s := makeBundle(b).open(b).Signer()
	for b.Loop() {
		if _, err := s.SignES256([32]byte{1}); err != nil {
			b.Fatal(err)
		}
	}
}
