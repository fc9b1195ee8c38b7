package localstack

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sysProcAttr puts the child into its own group, so that a Ctrl-C in the
// terminal reaches us alone, and ends it when we end.
func sysProcAttr(a *account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: a.credential(), Setpgid: true, Pdeathsig: quit}
}

// kill ends the process and its children as a power cut would: none of them
// runs another instruction that could write. It returns when all have ended.
//
// The parent is stopped first so that it neither forks nor reaps while its
// children are listed; a child that has ended then keeps its process id.
func (p *process) kill() {
	pid := p.cmd.Process.Pid
	if p.cmd.Process.Signal(syscall.SIGSTOP) == nil {
		_ = uninterrupted(func() error {
			return unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		})
	}
	var ends []int
	for _, child := range children(pid) {
		if fd, err := unix.PidfdOpen(child, 0); err == nil {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			ends = append(ends, fd)
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	for _, fd := range ends {
		awaitEnd(fd)
	}
}

// endTimeoutMillis bounds the wait for a killed child, which only a hung disk can delay.
const endTimeoutMillis = 10_000

func awaitEnd(pidfd int) {
	_ = uninterrupted(func() error {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, endTimeoutMillis)
		return err
	})
	_ = unix.Close(pidfd)
}

func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func children(pid int) []int {
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var pids []int
	for field := range strings.FieldsSeq(string(list)) {
		if child, err := strconv.Atoi(field); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}
