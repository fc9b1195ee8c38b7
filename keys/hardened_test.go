package keys

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Where another user could exchange a file, nothing is opened.
func TestPlacesThatOthersMayChange(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	for _, dir := range []string{m.dir, filepath.Dir(m.identity)} {
		for _, mode := range []fs.FileMode{0o770, 0o707, 0o722} {
			require.NoError(t, os.Chmod(dir, mode)) //nolint:gosec // that is what is refused
			_, err := Open(m.dir, m.identity)
			requireMaterial(t, err, "open to others")
		}
		require.NoError(t, os.Chmod(dir, 0o777|fs.ModeSticky)) //nolint:gosec // as secrets are mounted
		_, err := Open(m.dir, m.identity)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(dir, 0o700)) //nolint:gosec // a directory
	}
}

// What belongs to another user is nobody's secret and nobody's word.
func TestWhatBelongsToAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	m := makeBundle(t)
	for _, path := range []string{m.identity, filepath.Join(m.dir, publicFile), filepath.Join(m.dir, secretsFile), m.dir} {
		require.NoError(t, os.Chown(path, 65534, 65534))
		_, err := Open(m.dir, m.identity)
		requireMaterial(t, err, "belongs to another user")
		require.NoError(t, os.Chown(path, 0, 0))
	}
	m.open(t)
}

// Nobody who reads along while a bundle is made sees a key: what lies there, under whatever name, is sealed.
func TestNothingPlainWhileWriting(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	identity := filepath.Join(root, "identity")
	require.NoError(t, NewIdentity(identity))
	stop, seen := make(chan struct{}), make(chan map[string]bool)
	go func() {
		all := map[string]bool{}
		for {
			_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() && path != identity {
					text, _ := os.ReadFile(path) // it may be gone
					all[string(text)] = true
				}
				return nil
			})
			select {
			case <-stop:
				seen <- all
				return
			default:
			}
		}
	}()
	var spelled []string
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		dir := filepath.Join(root, name)
		_, err := Init(dir, identity)
		require.NoError(t, err)
		spelled = append(spelled, spellings(secretsOf(t, made{dir, identity}))...)
	}
	close(stop)
	all := <-seen
	require.GreaterOrEqual(t, len(all), 16, "two files of each bundle at least")
	for text := range all {
		for _, s := range spelled {
			assert.NotContains(t, text, s)
		}
	}
}
