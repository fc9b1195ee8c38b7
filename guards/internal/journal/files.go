package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/nightwarrant/nightwarrant/guards"
)

const (
	lockTries = 50
	lockPause = 10 * time.Millisecond

	fileName = "journal.db"
	markName = "mark"
	lockName = "lock"
)

func (w *writer) path(name string) string { return filepath.Join(w.dir, name) }

// open takes the directory for this process, and what is in it.
func (w *writer) open(create bool) (err error) {
	if err := private(w.dir, create); err != nil {
		return settings(err)
	}
	if w.lock, err = hold(w.path(lockName)); err != nil {
		return err
	}
	err = w.load(create)
	if err != nil {
		_ = w.close()
	}
	return err
}

func (w *writer) load(create bool) error {
	made, err := w.exists()
	if err != nil {
		return settings(err)
	}
	if !made {
		if !create {
			return settings(errors.New("there is no journal in the directory"))
		}
		if err := w.create(); err != nil {
			return err
		}
	}
	return w.start()
}

// reopen is what a restart of the process would do. What a failed commit left in memory, in the mapping or in the kernel's cache is
// not believed: a commit on top of it shows what is true.
func (w *writer) reopen() error {
	if err := w.release(); err != nil {
		w.log.Warn("the journal did not close", "error", err)
	}
	err := w.load(false)
	if err == nil {
		w.broken = nil
		w.log.Info("the journal can be written again")
	}
	return err
}

// release closes the file and the mark and keeps the lock.
func (w *writer) release() (err error) {
	if w.db != nil {
		err = protected(w.db.Close)
	} else if w.file != nil {
		_ = unix.Flock(int(w.file.Fd()), unix.LOCK_UN) // bbolt's own, which its mapping would keep
		_ = w.file.Close()
	}
	if w.mark != nil {
		err = errors.Join(err, w.mark.close())
	}
	w.db, w.file, w.mark = nil, nil, nil
	return err
}

func (w *writer) close() error {
	err := w.release()
	if w.lock != nil {
		err = errors.Join(err, w.lock.Close())
	}
	return err
}

// private refuses a directory that somebody else may look into.
func private(dir string, create bool) error {
	if create {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return errors.New("it is not a directory")
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("the directory has mode %04o, and only its owner may have rights (0700)", info.Mode().Perm())
	}
	return nil
}

// hold takes the lock of a directory, which the kernel gives back whatever becomes of this process.
func hold(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, settings(err)
	}
	// For a moment somebody may still hold it who is gone: a process that ends, or a child that has not yet become another program.
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for try := 0; errors.Is(err, unix.EWOULDBLOCK) && try < lockTries; try++ {
		<-time.After(lockPause)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		_ = f.Close()
		return nil, errors.New("another process holds the journal")
	}
	return f, nil
}

// exists tells whether the journal was made. A mark without it says that it was lost.
func (w *writer) exists() (bool, error) {
	made, err := ours(w.path(fileName))
	if err != nil {
		return false, err
	}
	marked, err := ours(w.path(markName))
	if err == nil && marked && !made {
		err = errors.New("the journal is gone, and its mark is not")
	}
	return made, err
}

// ours tells whether a file is there, and refuses one that is not private.
func ours(path string) (bool, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0:
		return false, fmt.Errorf("%s must be a file of mode 0600", filepath.Base(path))
	}
	return true, nil
}

// create makes a journal under another name first, so that half of one is never found.
func (w *writer) create() error {
	path := w.path(fileName + ".new")
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, Timeout: time.Millisecond, PageSize: pageSize})
	if err != nil {
		return err
	}
	err = errors.Join(db.Update(lay), db.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(path, w.path(fileName)); err != nil {
		return err
	}
	return syncDir(w.dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// start opens what is there, looks at all of it, compares it with the mark, and writes that it was opened.
func (w *writer) start() error {
	previous := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(previous)
	if err := w.checkFile(); err != nil {
		return settings(err)
	}
	if err := protected(w.openFile); err != nil {
		return settings(err)
	}
	var found state
	err := protected(func() error {
		return w.db.View(func(tx *bbolt.Tx) (err error) {
			found, err = w.inspect(tx)
			return err
		})
	})
	if err != nil {
		return settings(err)
	}
	if w.mark, err = openMark(w.path(markName), found); err != nil {
		return settings(err)
	}
	w.clock = clock{last: w.now(), ms: found.ms}
	return protected(func() error { return w.boot(found) })
}

func (w *writer) checkFile() error {
	f, err := os.OpenFile(w.path(fileName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return checkPages(f, info.Size())
}

// openFile waits for no lock of bbolt's: who holds the directory is alone.
func (w *writer) openFile() (err error) {
	w.db, err = bbolt.Open(w.path(fileName), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, Timeout: time.Millisecond,
		OpenFile: func(path string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(path, flag&^os.O_CREATE|unix.O_NOFOLLOW, mode)
			w.file = f
			return f, err
		}})
	return err
}

// boot counts this opening, in the file first and then in the mark.
func (w *writer) boot(found state) error {
	if err := w.mark.sync(found); err != nil {
		return err
	}
	tx, err := w.db.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit there is nothing to roll back
	t, err := w.begin(tx)
	if err != nil {
		return err
	}
	t.meta.Boot++
	if err := w.finish(t); err != nil {
		return err
	}
	return w.mark.file.Sync()
}

// unmoved finds out that the files that are open are no longer those in the directory.
func (w *writer) unmoved() error {
	for name, f := range map[string]*os.File{fileName: w.file, markName: w.mark.file} {
		there, err := os.Lstat(w.path(name))
		if err != nil {
			return err
		}
		open, err := f.Stat()
		if err != nil {
			return err
		}
		if !os.SameFile(there, open) {
			return fmt.Errorf("%s was replaced", name)
		}
	}
	return nil
}

func settings(err error) error {
	if errors.Is(err, guards.ErrSettings) {
		return err
	}
	return fmt.Errorf("guards/journal: %w: %w", guards.ErrSettings, err)
}
