package testbinary

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A program is the shipped one, is linked once, and stays a test's own when another is built in its place.
func TestPrograms(t *testing.T) {
	t.Parallel()
	one, two := Nightwarrant(t), Nightwarrant(t)
	first, err := os.Stat(one)
	require.NoError(t, err)
	second, err := os.Stat(two)
	require.NoError(t, err)
	assert.True(t, os.SameFile(first, second))
	assert.NotEqual(t, one, two)
	settings := settings(t, one)
	assert.Equal(t, "true", settings["-trimpath"])
	assert.Equal(t, "0", settings["CGO_ENABLED"])
	require.NoError(t, os.Remove(one))
	assert.NoError(t, exec.Command(two, "version").Run())
}

func settings(t *testing.T, program string) map[string]string {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	require.NoError(t, err)
	all := map[string]string{}
	for _, s := range info.Settings {
		all[s.Key] = s.Value
	}
	return all
}
