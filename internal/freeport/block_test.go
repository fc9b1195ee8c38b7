package freeport

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestABlockIsFree(t *testing.T) {
	t.Parallel()
	from, err := Block()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, from, 10_000)
	assert.LessOrEqual(t, from+BlockSize, first, "nobody else chooses there")
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(from+BlockSize-1)))
	require.NoError(t, err)
	assert.False(t, free(from), "one of its ports is taken")
	require.NoError(t, l.Close())
}
