package teststack

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nightwarrant/nightwarrant/internal/disk"
)

// scratchDir is a directory of one running cluster. Its lock file is locked for
// as long as the test binary lives, however that ends.
type scratchDir struct {
	path string
	lock *os.File
}

// shm is a file system in memory, on Linux. A clone is some 700 files: where
// there is a disk below, making and removing them is most of what it costs.
const shm = "/dev/shm"

// inMemory is where a cluster lives that nobody wants on a disk: in memory, when
// that has room for what a few test binaries have at a time.
func inMemory() string {
	room := disk.Watch{Paths: []string{shm}, Free: 4 << 30}
	if room.Check() != nil || unix.Access(shm, unix.W_OK|unix.X_OK) != nil {
		return os.TempDir()
	}
	return shm
}

// newScratch makes one below parent. Its caller holds the cache's lock, so
// nobody takes it for abandoned before it is locked.
func newScratch(parent string) (*scratchDir, error) {
	path, err := os.MkdirTemp(parent, scratchPrefix)
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(path+inUse, syscall.LOCK_NB)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return &scratchDir{path: path, lock: lock}, nil
}

// inUse ends the name of a directory's lock file, which stands beside it.
const inUse = ".inuse"

func (d *scratchDir) remove() error {
	return errors.Join(os.RemoveAll(d.path), os.Remove(d.path+inUse), d.lock.Close())
}

func copyScratch(ctx context.Context, from, parent string) (*scratchDir, error) {
	dir, err := newScratch(parent)
	if err != nil {
		return nil, err
	}
	if err := copyInto(ctx, from, dir.path); err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	return dir, nil
}

// removeAbandoned removes the directories of test binaries that were killed.
// Other users' directories cannot be locked by us and stay.
func removeAbandoned() {
	onDisk, _ := filepath.Glob(filepath.Join(os.TempDir(), scratchPrefix+"*"+inUse))
	above, _ := filepath.Glob(filepath.Join(shm, scratchPrefix+"*"+inUse))
	for _, path := range append(onDisk, above...) {
		lock, err := lockFile(path, syscall.LOCK_NB)
		if err != nil {
			continue
		}
		dir := &scratchDir{path: path[:len(path)-len(inUse)], lock: lock}
		_ = dir.remove()
	}
}

// lockFile takes an exclusive lock, at once or not at all with LOCK_NB.
func lockFile(path string, flag int) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|flag); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// modified is the zero time for what is not there.
func modified(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
