package secret

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/guards/internal/credential"
	"github.com/nightwarrant/nightwarrant/guards/internal/scrub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// saying is a provider of one value, which may change.
type saying struct{ value string }

func (s *saying) Credential(context.Context) (credential.Credential, error) {
	return credential.Credential{Value: credential.Secret(s.value)}, nil
}

func TestWhatIsNoCredentialIsRefused(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{"empty": "", "blank": "        ", "short": "seven77", "two lines": "first-line\nsecond", "expired": "e30.eyJleHAiOjF9.c2ln",
		"a password that is too short to find": "YWxpY2U6c2hvcnQ"} { // alice:short
		_, err := New(&saying{value}, time.Now).Get(t.Context())
		require.Error(t, err, name)
		if value != "" {
			require.NotContains(t, err.Error(), value, name)
		}
	}
}

// TestTheSecretIsTheOneThatIsSaidNow, with its own tables, which are made once for each value.
func TestTheSecretIsTheOneThatIsSaidNow(t *testing.T) {
	t.Parallel()
	p := &saying{"correct-horse-1"}
	s := New(p, time.Now)
	first, err := s.Get(t.Context())
	require.NoError(t, err)
	again, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Same(t, first, again)
	p.value = "correct-horse-2"
	second, err := s.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, "correct-horse-2", second.Value.Reveal())
	for _, c := range []struct {
		of   *Secret
		text string
		want string
	}{{first, "a correct-horse-1", "a " + scrub.Marker}, {first, "a correct-horse-2", "a correct-horse-2"}, {second, "a correct-horse-2", "a " + scrub.Marker}} {
		clean, _ := c.of.Set().Bytes([]byte(c.text))
		require.Equal(t, c.want, string(clean))
	}
}

func TestWithoutAProviderNothingIsAddedAndNothingCut(t *testing.T) {
	t.Parallel()
	none, err := New(nil, time.Now).Get(t.Context())
	require.NoError(t, err)
	require.Empty(t, none.Value.Reveal())
	clean, found := none.Set().Bytes([]byte("any text"))
	require.False(t, found)
	require.Equal(t, "any text", string(clean))
}

func TestManyAskAtOnce(t *testing.T) {
	t.Parallel()
	s := New(&saying{"correct-horse-1"}, time.Now)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			got, err := s.Get(t.Context())
			assert.NoError(t, err)
			assert.Equal(t, "correct-horse-1", got.Value.Reveal())
		})
	}
	group.Wait()
}
