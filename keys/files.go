package keys

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"filippo.io/age"
)

// The files of a bundle directory.
const (
	publicFile  = "bundle.json"
	secretsFile = "secrets.age"
	maxFile     = 64 << 10
)

// Who may do what with a file, as the permission bits that must be absent.
const (
	ownerOnly     fs.FileMode = 0o077 // the identity that opens the seal
	noWriters     fs.FileMode = 0o022 // public, but not for others to change
	noOtherAccess fs.FileMode = 0o027 // sealed: a group may read, as projected secrets need
)

// readGuarded reads a small regular file whose mode has none of the forbidden
// bits. The mode is read from the open file, so that it is this file's.
func readGuarded(path string, forbidden fs.FileMode) ([]byte, error) {
	name := filepath.Base(path)
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, material(fmt.Sprintf("the key material %q cannot be read", name), err)
	}
	defer f.Close() //nolint:errcheck // it is only read
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, material(fmt.Sprintf("the key material %q is not a regular file", name), err)
	}
	if info.Mode().Perm()&forbidden != 0 {
		return nil, material(fmt.Sprintf("the key material %q is open to others (mode %04o)", name, info.Mode().Perm()), nil)
	}
	if !owned(info) {
		return nil, material(fmt.Sprintf("the key material %q belongs to another user", name), nil)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil || len(b) > maxFile {
		return nil, material(fmt.Sprintf("the key material %q cannot be read or is too large", name), err)
	}
	return b, nil
}

// owned tells whether something belongs to this process's user or to root, who
// projects it.
func owned(info fs.FileInfo) bool {
	s, is := info.Sys().(*syscall.Stat_t)
	return is && (s.Uid == 0 || int(s.Uid) == os.Geteuid())
}

// checkPlaces refuses directories in which another user could exchange a file.
// In one with the sticky bit nobody can but its owner (as secrets are mounted).
func checkPlaces(dir, identityFile string) error {
	for _, d := range []string{dir, filepath.Dir(identityFile)} {
		info, err := os.Stat(d)
		switch {
		case err != nil || !info.IsDir():
			return material("the bundle directory or the identity file cannot be found", err)
		case info.Mode().Perm()&noWriters != 0 && info.Mode()&fs.ModeSticky == 0:
			return material(fmt.Sprintf("the directory %q of key material is open to others (mode %04o)", filepath.Base(d), info.Mode().Perm()), nil)
		case !owned(info):
			return material(fmt.Sprintf("the directory %q of key material belongs to another user", filepath.Base(d)), nil)
		}
	}
	return nil
}

// checkOutside refuses an identity file inside the bundle directory, by name,
// through links or as a link: whoever copies the one must not get the other.
func checkOutside(dir, identityFile string) error {
	dirs, dirErr := places(dir)
	files, fileErr := places(identityFile)
	if err := errors.Join(dirErr, fileErr); err != nil {
		return material("the bundle directory or the identity file cannot be found", err)
	}
	for _, d := range dirs {
		for _, f := range files {
			if strings.HasPrefix(f, strings.TrimSuffix(d, "/")+"/") {
				return material("the identity file lies inside the bundle directory", nil)
			}
		}
	}
	return nil
}

// places are the names of one path: as written, as an entry of its real parent,
// and with its links followed where it exists.
func places(path string) ([]string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return nil, err
	}
	out := []string{abs, filepath.Join(parent, filepath.Base(abs))}
	followed, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	return append(out, followed), err
}

// NewIdentity makes an age identity file of mode 0600 that opens sealed
// bundles. It refuses to overwrite anything.
func NewIdentity(path string) error {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return material("the identity cannot be generated", err)
	}
	text := fmt.Sprintf("# public key: %s\n%s\n", id.Recipient(), id)
	if err := writeNew(path, []byte(text), 0o600); err != nil {
		return material("the identity file cannot be written, or exists", err)
	}
	return syncDir(filepath.Dir(path))
}

// readIdentity reads the one X25519 identity of an age identity file, or the one
// key of NewSealKey.
func readIdentity(path string) (sealer, error) {
	text, err := readGuarded(path, ownerOnly)
	if err != nil {
		return nil, err
	}
	defer clear(text)
	if by, is, err := sealKey(text); is {
		return by, err
	}
	ids, err := age.ParseIdentities(bytes.NewReader(text))
	if err != nil || len(ids) != 1 {
		// The cause may quote the line: it stays here.
		return nil, material("the identity file does not hold exactly one age identity", nil)
	}
	id, ok := ids[0].(*age.X25519Identity)
	if !ok {
		return nil, material("the identity is not an age X25519 identity", nil)
	}
	return ageSeal{id}, nil
}

// publishDir writes the files into a new directory beside dir and renames it
// into place, which succeeds only where nothing or an empty directory is: a
// bundle appears whole or not at all, and is never overwritten.
func publishDir(dir string, files map[string][]byte) error {
	dir = filepath.Clean(dir)
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".bundle-*")
	if err != nil {
		return material("the bundle directory's parent cannot be written", err)
	}
	defer os.RemoveAll(temp) //nolint:errcheck // it is gone when it was renamed
	for name, content := range files {
		if err := writeNew(filepath.Join(temp, name), content, 0o600); err != nil {
			return material("the bundle cannot be written", err)
		}
	}
	if err := syncDir(temp); err != nil {
		return err
	}
	// os.Rename refuses any existing directory; the system call refuses a non-empty one.
	if err := syscall.Rename(temp, dir); err != nil {
		return material("the bundle directory exists and is not empty, or is a mount point; a bundle is never overwritten", err)
	}
	return syncDir(filepath.Dir(dir))
}

func writeNew(path string, content []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return material("the directory cannot be opened", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return material("the directory cannot be written to disk", err)
	}
	return nil
}
