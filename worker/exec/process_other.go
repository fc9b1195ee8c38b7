//go:build !linux

package exec

import (
	"errors"
	"net"
	osexec "os/exec"
	"time"
)

var errPlatform = errors.New("commands are run on Linux only")

// Protect fails: there is no such platform but Linux.
func Protect() error { return errPlatform }

type process struct {
	cmd    *osexec.Cmd
	exited chan struct{}
}

func start(*osexec.Cmd, *Credential) (*process, error) { return nil, errPlatform }

func (p *process) tree() map[int]struct{} { return nil }

func (p *process) end(time.Duration) error { return errPlatform }

func (p *process) allows(*net.UnixConn) bool { return false }
