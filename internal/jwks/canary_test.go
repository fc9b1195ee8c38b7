package jwks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCanary(t *testing.T) {
	t.Parallel()
	require.NoError(t, canary(expect, time.Now()))
	require.ErrorIs(t, canary(Expect{}, time.Now()), errCanary, "a verifier that accepts nothing is not healthy")
	require.ErrorIs(t, canary(expect, time.Time{}), errCanary)
}
