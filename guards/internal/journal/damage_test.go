package journal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nightwarrant/nightwarrant/guards"
)

func TestDirectoriesThatOthersMayReachAreRefused(t *testing.T) {
	t.Parallel()
	for _, mode := range []os.FileMode{0o750, 0o705, 0o710, 0o777, 0o701} {
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, mode))
		require.ErrorContains(t, refused(t, dir), fmt.Sprintf("%04o", mode))
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, files, "nothing was written")
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	require.ErrorContains(t, refused(t, file), "not a directory")
	require.ErrorContains(t, refused(t, filepath.Join(file, "below")), "not a directory")
	require.ErrorContains(t, refused(t, filepath.Join(t.TempDir(), "a", "b")), "no such file", "only the last folder is made")

	for _, name := range []string{fileName, markName} {
		j, dir := create(t)
		require.NoError(t, j.Close())
		require.NoError(t, os.Chmod(filepath.Join(dir, name), 0o640))
		require.ErrorContains(t, refused(t, dir), name+" must be a file of mode 0600")
		require.NoError(t, os.Rename(filepath.Join(dir, name), filepath.Join(dir, "elsewhere")))
		require.NoError(t, os.Symlink("elsewhere", filepath.Join(dir, name)))
		require.ErrorContains(t, refused(t, dir), name+" must be a file")
	}
}

func TestFilesAreTheOwnersOnly(t *testing.T) {
	t.Parallel()
	_, dir := create(t)
	for _, path := range []string{dir, filepath.Join(dir, fileName), filepath.Join(dir, markName), filepath.Join(dir, lockName)} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, path)
	}
}

func TestAJournalThatIsLostIsNotMadeAnew(t *testing.T) {
	t.Parallel()
	unmounted := filepath.Join(t.TempDir(), "ledger")
	require.NoError(t, os.Mkdir(unmounted, 0o700))
	_, err := Open(unmounted, Options{})
	require.ErrorIs(t, err, guards.ErrSettings, "as when its volume is not mounted")
	require.ErrorContains(t, err, "no journal")

	j, dir := create(t)
	require.NoError(t, j.Close())
	require.NoError(t, os.Remove(filepath.Join(dir, fileName)))
	require.ErrorContains(t, refused(t, dir), "gone")
	require.NoError(t, os.WriteFile(filepath.Join(dir, fileName), nil, 0o600))
	require.ErrorContains(t, refused(t, dir), "EOF")

	j, dir = create(t)
	require.NoError(t, j.Close())
	require.NoError(t, os.Remove(filepath.Join(dir, markName)))
	require.ErrorIs(t, refused(t, dir), errMark)
	require.NoError(t, os.WriteFile(filepath.Join(dir, markName), []byte("x"), 0o600))
	require.ErrorIs(t, refused(t, dir), errMark)
	require.NoError(t, os.WriteFile(filepath.Join(dir, markName), nil, 0o600))
	require.ErrorIs(t, refused(t, dir), errMark)
}

// TestAJournalThatWasHalfMade is made to the end.
func TestAJournalThatWasHalfMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, fileName+".new"), []byte("half"), 0o600))
	w := &writer{dir: dir}
	require.NoError(t, w.create()) // and no mark yet
	for _, empty := range []bool{true, false} {
		if empty {
			require.NoError(t, os.WriteFile(filepath.Join(dir, markName), nil, 0o600))
		}
		j := reopen(t, dir, Options{})
		_, err := probe(j)
		require.NoError(t, err)
		require.NoError(t, j.Close())
	}
}

func TestSecondOpenerIsRefused(t *testing.T) {
	t.Parallel()
	j, dir := create(t)
	_, err := Open(dir, Options{})
	require.ErrorContains(t, err, "another process holds")
	require.NoError(t, j.Intend(attempt()))
	require.NoError(t, j.Close())
	require.NoError(t, j.Close())
	require.ErrorIs(t, j.Intend(attempt()), errClosed)
	_, err = probe(j)
	require.ErrorIs(t, err, errClosed)
	require.NoError(t, reopen(t, dir, Options{}).Close())
}

// filled is a closed journal of many effects in all stages, and what each was told.
func filledJournal(t *testing.T) (dir string, told map[guards.Ref]guards.Outcome, attempts map[guards.Ref]guards.Ref) {
	t.Helper()
	j, dir := create(t)
	require.NoError(t, hurried(j))
	told, attempts = map[guards.Ref]guards.Outcome{}, map[guards.Ref]guards.Ref{}
	for n := range 32 { // of 16 pages of every kind, nearly all in use
		a := attempt()
		a.Params = []byte(`{"text":"` + strings.Repeat("x", n*17%300) + `"}`)
		require.NoError(t, j.Intend(a))
		told[a.Effect], attempts[a.Effect] = guards.NotApplied, a.ID
		if n%4 > 0 {
			require.NoError(t, j.Start(admitted(a, guards.Ref{byte(n % 5)}, 1)))
		}
		if n%4 > 1 {
			require.NoError(t, j.Sending(a.Effect, sentAt))
			told[a.Effect] = guards.Ambiguous
		}
		if n%4 > 2 {
			require.NoError(t, j.End(a.Effect, committed))
			told[a.Effect] = guards.Committed
		}
	}
	require.NoError(t, j.Close())
	return dir, told, attempts
}

// refusedOrWhole: a damaged journal is refused, or was damaged where nothing is. Which pages are free is
// found out when one is needed; whatever it proved until then is right.
func refusedOrWhole(t *testing.T, dir string, told map[guards.Ref]guards.Outcome, attempts map[guards.Ref]guards.Ref) (whole bool) {
	t.Helper()
	j, err := Open(dir, Options{Free: 1})
	if err != nil {
		require.ErrorIs(t, err, guards.ErrSettings)
		return false
	}
	defer func() { require.NoError(t, j.Close()) }()
	require.NoError(t, hurried(j))
	var group sync.WaitGroup
	var refused atomic.Bool
	for effect, outcome := range told {
		group.Go(func() {
			ending, err := j.Prove(effect, attempts[effect])
			if errors.Is(err, guards.ErrSettings) {
				refused.Store(true)
				return
			}
			assert.NoError(t, err)
			assert.Equal(t, outcome, ending.Outcome)
		})
	}
	group.Wait()
	return !refused.Load()
}

// copied makes a directory with the same files, the journal's bytes changed.
func copied(t *testing.T, dir string, change func([]byte) []byte) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "ledger")
	require.NoError(t, os.Mkdir(to, 0o700))
	for _, name := range []string{fileName, markName} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		if name == fileName {
			b = change(slices.Clone(b))
		}
		require.NoError(t, os.WriteFile(filepath.Join(to, name), b, 0o600))
	}
	return to
}

// TestTornPages: each page in turn is zeroed, half of it is, it is another page, or the file ends there.
func TestTornPages(t *testing.T) {
	t.Parallel()
	dir, told, attempts := filledJournal(t)
	const page = pageSize
	same := func(b []byte) []byte { return b }
	require.True(t, refusedOrWhole(t, copied(t, dir, same), told, attempts))
	size := len(read(t, filepath.Join(dir, fileName)))
	refusals := map[string]int{}
	for at := 0; at < size; at += page {
		for name, tear := range map[string]func(b []byte) []byte{
			"zeroed":      func(b []byte) []byte { clear(b[at : at+page]); return b },
			"half zeroed": func(b []byte) []byte { clear(b[at+page/2 : at+page]); return b },
			"another's":   func(b []byte) []byte { copy(b[at:at+page], b[(at+3*page)%size:]); return b },
			"garbage":     func(b []byte) []byte { copy(b[at:at+page], bytes.Repeat([]byte{0xa5}, page)); return b },
			"cut off":     func(b []byte) []byte { return b[:at] },
			"cut within":  func(b []byte) []byte { return b[:at+page/3] },
		} {
			if !refusedOrWhole(t, copied(t, dir, tear), told, attempts) {
				refusals[name]++
			}
		}
	}
	t.Logf("%d pages: %v", size/page, refusals)
	require.Len(t, refusals, 6)
	require.False(t, refusedOrWhole(t, copied(t, dir, func(b []byte) []byte { clear(b); return b }), told, attempts))
	require.False(t, refusedOrWhole(t, copied(t, dir, func([]byte) []byte { return nil }), told, attempts))
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// TestFlippedBytes, some hundred of them, each alone.
func TestFlippedBytes(t *testing.T) {
	t.Parallel()
	dir, told, attempts := filledJournal(t)
	refusals := 0
	for n := range 60 {
		random := rand.New(rand.NewPCG(1, uint64(n)))
		if !refusedOrWhole(t, copied(t, dir, func(b []byte) []byte {
			b[random.IntN(len(b))] ^= byte(1 + random.IntN(255))
			return b
		}), told, attempts) {
			refusals++
		}
	}
	t.Logf("%d refused", refusals)
	require.Positive(t, refusals)
}

// TestOlderCopiesAreFound: of the file, of the mark, taken while it was open or closed.
func TestOlderCopiesAreFound(t *testing.T) {
	t.Parallel()
	j, dir := create(t)
	file, markFile := filepath.Join(dir, fileName), filepath.Join(dir, markName)
	fresh, freshMark := read(t, file), read(t, markFile)
	a := goAhead(t, j, guards.NewRef(), 1)
	require.NoError(t, j.Start(a))
	before := read(t, file)
	require.NoError(t, j.Sending(a.Effect, sentAt))
	require.NoError(t, j.Close())
	now := read(t, file)
	for name, older := range map[string][]byte{"when it was new": fresh, "one commit ago": before} {
		require.NoError(t, os.WriteFile(file, older, 0o600), name)
		require.ErrorIs(t, refused(t, dir), errOlder, name)
	}
	require.NoError(t, os.WriteFile(file, now, 0o600))
	for range 2 {
		require.NoError(t, reopen(t, dir, Options{}).Close())
	}
	require.NoError(t, os.WriteFile(file, now, 0o600))
	require.ErrorIs(t, refused(t, dir), errOlder, "from before it was opened again")

	other, otherDir := create(t)
	require.NoError(t, other.Close())
	require.NoError(t, os.WriteFile(file, read(t, filepath.Join(otherDir, fileName)), 0o600))
	require.ErrorIs(t, refused(t, dir), errMark, "another journal")

	require.NoError(t, os.WriteFile(file, now, 0o600))
	require.NoError(t, os.WriteFile(markFile, freshMark, 0o600))
	require.NoError(t, reopen(t, dir, Options{}).Close(), "a mark may lag within an opening, as after a power cut")
	for range 2 {
		require.NoError(t, reopen(t, dir, Options{}).Close())
	}
	require.NoError(t, os.WriteFile(markFile, freshMark, 0o600))
	require.ErrorIs(t, refused(t, dir), errOlderMark)
}

// TestAnOlderCopyOfEverything cannot be told from within; it calls nothing not applied that it did not hear of.
func TestAnOlderCopyOfEverything(t *testing.T) {
	t.Parallel()
	j, dir := create(t)
	require.NoError(t, j.Close())
	older := copied(t, dir, func(b []byte) []byte { return b })
	j = reopen(t, dir, Options{})
	a := goAhead(t, j, guards.NewRef(), 1)
	require.NoError(t, j.StartSending(a, sentAt))
	require.NoError(t, j.Close())
	require.Equal(t, guards.Ambiguous, proven(t, reopen(t, older, Options{}), a.Attempt).Outcome)
}

// TestDamageWhileItIsOpen: the file becomes shorter, or is replaced, under the process's hands.
func TestDamageWhileItIsOpen(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(file string) error{
		"cut off":  func(file string) error { return os.Truncate(file, 2*pageSize) },
		"emptied":  func(file string) error { return os.Truncate(file, 0) },
		"removed":  os.Remove,
		"replaced": func(file string) error { return os.Rename(file+".copy", file) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, told, _ := filledJournal(t)
			file := filepath.Join(dir, fileName)
			require.NoError(t, os.WriteFile(file+".copy", read(t, file), 0o600))
			j := reopen(t, dir, Options{})
			require.NoError(t, spoil(file))
			for effect := range told {
				_ = j.Intend(guards.Attempt{Effect: effect, ID: guards.NewRef(), Action: "order.pay", Digest: [32]byte{1}}) // touches many pages
			}
			for range 2 {
				_, err := probe(j)
				require.ErrorIs(t, err, guards.ErrSettings)
				require.NotContains(t, err.Error(), "timeout")
			}
			require.NoError(t, j.Close())
		})
	}
}

// TestFullDisk: nothing is acknowledged that is not there, the guard is unhealthy meanwhile, and well again with room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	mount := filepath.Join(t.TempDir(), "small")
	require.NoError(t, os.Mkdir(mount, 0o700))
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skipf("NOT TESTED: a full disk needs a small file system, and mounting one is not allowed here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	j := reopen(t, filepath.Join(mount, "ledger"), Options{Create: true})
	_, err := probe(j)
	require.NoError(t, err)
	acknowledged := map[guards.Ref]guards.Admitted{}
	var full error
	for full == nil {
		a := admitted(attempt(), guards.NewRef(), 1)
		a.Params = bytes.Repeat([]byte("x"), 20<<10)
		if full = j.Intend(a.Attempt); full == nil {
			if full = j.StartSending(a, sentAt); full == nil {
				acknowledged[a.Effect] = a
			}
		}
	}
	require.ErrorIs(t, full, guards.ErrSettings)
	require.ErrorIs(t, j.Intend(attempt()), guards.ErrSettings, "and so does everybody else, until it was looked after")
	filler := filepath.Join(mount, "filler")
	err = os.WriteFile(filler, make([]byte, 2<<20), 0o600)
	require.ErrorIs(t, err, unix.ENOSPC)
	_, err = probe(j)
	require.ErrorIs(t, err, guards.ErrSettings)
	require.NotEmpty(t, acknowledged)

	require.NoError(t, os.Remove(filler))
	require.NoError(t, unix.Mount("tmpfs", mount, "tmpfs", unix.MS_REMOUNT, "size=4m,mode=0700"))
	_, err = probe(j)
	require.NoError(t, err)
	for _, a := range acknowledged {
		ending := proven(t, j, a.Attempt)
		require.Equal(t, guards.Ambiguous, ending.Outcome)
		require.Equal(t, a.Params, ending.Evidence.Parameters)
	}
	require.NoError(t, j.Intend(attempt()))
}

func TestTooLittleRoomIsUnhealthyBeforeTheDiskIsFull(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "ledger")
	j, err := Open(dir, Options{Create: true, Free: 1 << 62})
	require.NoError(t, err)
	defer j.Close()
	_, err = probe(j)
	require.ErrorIs(t, err, guards.ErrSettings)
	require.NoError(t, j.Intend(attempt()), "what is under way goes on")
}

// FuzzPages: whatever a file holds, looking at its pages ends, and without a panic.
func FuzzPages(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "ledger")
	j, err := Open(dir, Options{Create: true})
	require.NoError(f, err)
	for range 20 {
		require.NoError(f, j.Intend(attempt()))
	}
	require.NoError(f, j.Close())
	whole, err := os.ReadFile(filepath.Join(dir, fileName))
	require.NoError(f, err)
	require.NoError(f, checkPages(bytes.NewReader(whole), int64(len(whole))))
	f.Add(uint32(0), []byte{0}, uint32(len(whole)))
	f.Add(uint32(pageSize+headerSize+40), []byte{0xff, 0xff}, uint32(len(whole)))
	f.Add(uint32(3*pageSize+8), []byte{1, 0, 0xff, 0xff, 0xff}, uint32(len(whole)))
	f.Add(uint32(4*pageSize+12), []byte{0xff, 0xff, 0xff, 0x7f}, uint32(5*pageSize))
	f.Fuzz(func(t *testing.T, at uint32, with []byte, size uint32) {
		b := slices.Clone(whole)
		copy(b[int(at)%len(b):], with)
		b = b[:int(size)%(len(b)+1)]
		_ = checkPages(bytes.NewReader(b), int64(len(b)))
	})
}
