package teststack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/migrations"
)

const (
	cacheFormat   = "3" // change it when buildTemplate changes
	keyLength     = 24  // hex digits
	keptTemplates = 3
	scratchPrefix = "nw-test-"
)

// copyCached gives a fresh copy of the cached cluster below parent. One process of this user
// at a time is in here: it may build the cache, and it removes what killed test
// runs left behind.
func copyCached(ctx context.Context, parent string) (*scratchDir, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(cache, "lock"), 0)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	removeAbandoned()
	key, err := cacheKey()
	if err != nil {
		return nil, err
	}
	cached := filepath.Join(cache, key)
	if _, err := os.Stat(cached); err != nil {
		if err := fillCache(ctx, cached); err != nil {
			return nil, err
		}
	}
	return copyScratch(ctx, cached, parent)
}

// cacheDir is the user's cache, or a private directory for a user without a home.
func cacheDir() (string, error) {
	if base, err := os.UserCacheDir(); err == nil {
		dir := filepath.Join(base, "nightwarrant", "teststack")
		if os.MkdirAll(dir, 0o700) == nil {
			return dir, nil
		}
	}
	dir := filepath.Join(os.TempDir(), "nightwarrant-cache-"+strconv.Itoa(os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, mustBeMine(dir)
}

// mustBeMine refuses a directory that another user laid under a guessed name.
func mustBeMine(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Getuid() || info.Mode().Perm() != 0o700 {
		return fmt.Errorf("%s is not a private directory of this user", dir)
	}
	return nil
}

// cacheKey names what a cached cluster depends on: the server and the migrations.
func cacheKey() (string, error) {
	_, version, err := localstack.FindPostgres()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\x00%s\x00", cacheFormat, version)
	err = fs.WalkDir(migrations.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(migrations.FS(), path)
		fmt.Fprintf(hash, "%s\x00%d\x00%s", path, len(content), content)
		return err
	})
	return hex.EncodeToString(hash.Sum(nil))[:keyLength], err
}

// fillCache builds a template and moves it under its name when it is complete
// and on disk, so that neither a kill nor a power cut leaves half of one.
func fillCache(ctx context.Context, cached string) error {
	dir, err := newScratch(inMemory())
	if err != nil {
		return err
	}
	err = buildTemplate(ctx, dir.path)
	if err == nil {
		err = copyCluster(ctx, dir.path, cached+".new")
	}
	if err = errors.Join(err, dir.remove()); err != nil {
		return err
	}
	if err := exec.CommandContext(ctx, "sync").Run(); err != nil {
		return err
	}
	if err := os.Rename(cached+".new", cached); err != nil {
		return err
	}
	forgetOld(filepath.Dir(cached))
	return nil
}

// copyCluster copies what a stopped cluster consists of, with owners and modes.
func copyCluster(ctx context.Context, from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	return copyInto(ctx, from, to)
}

func copyInto(ctx context.Context, from, to string) error {
	out, err := exec.CommandContext(ctx, "cp", "-a", filepath.Join(from, "data"), filepath.Join(from, "superuser"), to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copying the cluster: %w: %s", err, out)
	}
	return nil
}

// forgetOld removes all cached clusters but the newest few.
func forgetOld(cache string) {
	entries, _ := filepath.Glob(filepath.Join(cache, strings.Repeat("?", keyLength)+"*"))
	slices.SortFunc(entries, func(a, b string) int { return modified(b).Compare(modified(a)) })
	for _, old := range entries[min(len(entries), keptTemplates):] {
		_ = os.RemoveAll(old)
	}
}
