package localstack

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// account is the unprivileged user that PostgreSQL runs as when the caller is
// root, which PostgreSQL refuses. A nil account is the caller itself.
type account struct {
	name     string
	uid, gid int
}

// serviceAccount returns nil unless the caller is root.
func serviceAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if found, err := user.Lookup(name); err == nil {
			return newAccount(found)
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as: run this as an ordinary user")
}

func newAccount(u *user.User) (*account, error) {
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return nil, fmt.Errorf("user %s: %w", u.Username, err)
	}
	return &account{name: u.Username, uid: uid, gid: gid}, nil
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// own hands one path to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// passable is the mode of a directory that the account must walk through.
func (a *account) passable() os.FileMode {
	if a == nil {
		return 0o700
	}
	return 0o711
}

// mkdir makes one new directory that only the account may use.
func (a *account) mkdir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return a.own(path)
}
