package localstack

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// binDir lays programs that print a line, as the server's programs do. Another
// process writes them: where this one did, a child that another test starts
// meanwhile would inherit the open file, and the kernel runs no program that
// somebody may write to.
func binDir(t *testing.T, lines map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, line := range lines {
		write := exec.Command("sh", "-c", `printf '#!/bin/sh\necho "%s"\n' "$1" >"$2" && chmod +x "$2"`, "sh", line, filepath.Join(dir, name))
		require.NoError(t, write.Run())
	}
	return dir
}

func TestFirstUsablePassesOverWhatCannotServe(t *testing.T) {
	t.Parallel()
	const good = "postgres (PostgreSQL) 16.2 (Debian 16.2-1)"
	unusable := map[string]string{
		"empty":          t.TempDir(),
		"absent":         filepath.Join(t.TempDir(), "none"),
		"too old":        binDir(t, map[string]string{"postgres": "postgres (PostgreSQL) 14.9", "initdb": ""}),
		"other program":  binDir(t, map[string]string{"postgres": "not a database 99", "initdb": ""}),
		"without initdb": binDir(t, map[string]string{"postgres": good}),
	}
	usable := binDir(t, map[string]string{"postgres": good, "initdb": ""})
	for name, dir := range unusable {
		_, _, err := firstUsable([]string{dir})
		require.ErrorIs(t, err, ErrNoPostgres, name)

		found, version, err := firstUsable([]string{dir, usable})
		require.NoError(t, err, name)
		assert.Equal(t, usable, found, name)
		assert.Equal(t, good+"\n", version, name)
	}
}

func TestFindPostgresTakesWhatIsOnPath(t *testing.T) {
	dir := binDir(t, map[string]string{"postgres": "postgres (PostgreSQL) 99.0", "initdb": ""})
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	found, _, err := FindPostgres()
	require.NoError(t, err)
	real, err := filepath.EvalSymlinks(dir)
	require.NoError(t, err)
	assert.Equal(t, real, found)
}

func TestMajorVersion(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]int{
		"":                            0,
		"PostgreSQL 15":               0,
		"postgres (PostgreSQL) x.1":   0,
		"postgres (PostgreSQL) 12345": 0,
		" postgres (PostgreSQL) 15.1": 0,
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": 15,
		"postgres (PostgreSQL) 18beta1\n":                        18,
		"postgres (PostgreSQL) 17.0\n":                           17,
	} {
		assert.Equal(t, want, majorVersion(line), "%q", line)
	}
}

func TestPackagedMajor(t *testing.T) {
	t.Parallel()
	assert.Equal(t, 0, packagedMajor("/usr/lib/postgresql/bin"))
	assert.Equal(t, 9, packagedMajor("/usr/lib/postgresql/9/bin"))
	assert.Equal(t, 17, packagedMajor("/usr/lib/postgresql/17/bin"))
}
