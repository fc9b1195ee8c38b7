package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/keys"
)

// The whole of a rotation by the command line, under a replica that is never
// started anew: each step may be repeated, and is refused before its time.
func TestKeysAreRotatedUnderAReplicaThatRuns(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	s := newSite(t, db.URL("nw_authority"))
	operator := env{config.EnvDatabaseURL: db.URL("nw_operator")}
	at := func(dir string) []string {
		return []string{"--dir", filepath.Join(s.dir, dir), "--identity-file", filepath.Join(s.dir, "identity")}
	}
	ask := func(dir string, command ...string) result { return operator.run(t, append(command, at(dir)...)...) }
	operator.run(t, "keys", "show").bad(t, exitFailed, "no key bundle is registered")
	ask("bundle", "keys", "register", "--cache", "500ms").bad(t, exitMisconfigured, "--cache must be 1s to 5m0s")
	require.Equal(t, exitOK, ask("bundle", "keys", "register", "--cache", "1s", "--margin", "1s", "--lifetime", "1s").code)
	require.NoError(t, os.Rename(filepath.Join(s.dir, "bundle"), filepath.Join(s.dir, "one")))
	project := func(dir string) {
		require.NoError(t, errors.Join(os.Symlink(dir, filepath.Join(s.dir, "link")), os.Rename(filepath.Join(s.dir, "link"), filepath.Join(s.dir, "bundle"))))
	}
	project("one")
	r := env{}.start(t, `"msg":"serving"`, "serve", "--config", s.file)
	published := func() (kids []string) {
		answer, err := http.Get(s.url + api.PathJWKS) //nolint:noctx // a test
		require.NoError(t, err)
		defer answer.Body.Close()
		require.Equal(t, "public, max-age=1", answer.Header.Get("Cache-Control"))
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		var set struct{ Keys []struct{ Kid string } }
		require.NoError(t, json.Unmarshal(text, &set))
		for _, k := range set.Keys {
			kids = append(kids, k.Kid)
		}
		return kids
	}
	show := func() (k shownKeys) {
		require.NoError(t, json.Unmarshal([]byte(operator.good(t, "keys", "show", "--json")), &k))
		return k
	}
	step := func(command string) {
		t.Helper()
		var last result
		require.Eventually(t, func() bool { last = operator.run(t, "keys", "rotate", command); return last.code == exitOK }, testWithin, 100*time.Millisecond, "%v", &last)
		assert.Equal(t, exitOK, operator.run(t, "keys", "rotate", command).code, "again")
	}
	first := published()
	require.Len(t, first, 1)
	assert.Equal(t, "keys rotate prepare, now", show().Next)
	ask("bundle", "keys", "rotate", "publish").bad(t, exitFailed, "holds no generation after the one that signs")
	two := filepath.Join(s.dir, "two")
	require.Equal(t, exitOK, ask("bundle", "keys", "rotate", "prepare", "--to", two).code)
	require.Equal(t, exitOK, ask("bundle", "keys", "rotate", "prepare", "--to", two).code)
	assert.Equal(t, first, published(), "nobody was told")

	require.Equal(t, exitOK, ask("two", "keys", "rotate", "publish").code)
	require.Equal(t, exitOK, ask("two", "keys", "rotate", "publish").code)
	require.Eventually(t, func() bool { return strings.HasPrefix(show().Next, "roll the bundle out: 1 of 1 replicas") }, testWithin, 50*time.Millisecond)
	both := published()
	require.Len(t, both, 2)
	assert.Equal(t, first[0], both[0])
	assert.Regexp(t, "roll the bundle out first|too early", operator.run(t, "keys", "rotate", "activate").err)
	project("two")
	step("activate")
	assert.Equal(t, []string{both[1], both[0]}, published())
	ask("two", "keys", "rotate", "prepare", "--to", filepath.Join(s.dir, "three")).bad(t, exitFailed, "the rotation before is not over")
	assert.Contains(t, show().Next, "keys rotate retire")
	step("retire")
	assert.Equal(t, both[1:], published())
	require.Equal(t, exitOK, ask("two", "keys", "rotate", "trim", "--to", filepath.Join(s.dir, "three")).code)
	project("three")

	require.Equal(t, exitOK, ask("three", "keys", "rotate", "prepare", "--to", filepath.Join(s.dir, "four")).code)
	require.Equal(t, exitOK, ask("four", "keys", "rotate", "publish").code)
	step("withdraw")
	assert.Equal(t, both[1:], published())
	ask("four", "keys", "rotate", "publish").bad(t, exitMisconfigured, "was registered before")
	require.Equal(t, exitOK, ask("three", "keys", "rotate", "prepare", "--to", filepath.Join(s.dir, "five")).code)
	require.Equal(t, exitOK, ask("five", "keys", "rotate", "publish").code)
	project("five")
	operator.run(t, "keys", "cut-off", "--generation", "3").bad(t, exitFailed, "generation 3 neither signs nor is published")
	require.Contains(t, operator.good(t, "keys", "cut-off", "--generation", "4"), "1 older ones are dead")
	require.Eventually(t, func() bool {
		answer, err := http.Get(s.url + api.PathJWKS) //nolint:noctx // a test
		require.NoError(t, err)
		return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	}, testWithin, 50*time.Millisecond, "as soon as it has the bundle")
	require.Len(t, published(), 1)
	var states []keys.State
	for _, g := range show().Generations {
		states = append(states, g.State)
	}
	assert.Equal(t, []keys.State{keys.Current, keys.Withdrawn, keys.CutOff, keys.Retired}, states)
	assert.Contains(t, operator.good(t, "keys", "show"), "next: keys rotate prepare, now")
	assert.Equal(t, exitOK, r.end(), r.log)
}
