package guardtest

import (
	"errors"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// groupOfItsOwn also ends with the thread that started it: no guard outlives its test.
func groupOfItsOwn() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// live keeps the thread that starts the process for as long as the process lives.
func (c *command) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.wait(started)
}

func (c *command) awaitStop() {
	for {
		if err := unix.Waitid(unix.P_PID, c.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
