package freeport_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/freeport"
)

func TestOutgoingConnectionsTakeNoneOfThese(t *testing.T) {
	t.Parallel()
	for range 50 {
		port, err := freeport.Port()
		require.NoError(t, err)
		assert.GreaterOrEqual(t, port, 20_000)
		assert.Less(t, port, 32_768)
	}
}

func TestTheAddressIsFree(t *testing.T) {
	t.Parallel()
	address, err := freeport.Address()
	require.NoError(t, err)
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
