package exec

import (
	"errors"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Protect makes this process the one that orphans of a command come back to, and one that others of its account can
// neither trace nor read (prctl(2), PR_SET_CHILD_SUBREAPER and PR_SET_DUMPABLE).
func Protect() error {
	return errors.Join(adopt(), unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

func adopt() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// process is a command and everything that it starts, also what has left its group or its parent.
type process struct {
	cmd    *osexec.Cmd
	pid    int
	uid    uint32
	before map[int]bool  // children that this process had before
	exited chan struct{} // closed when the command itself has ended; it is not reaped before its tree has ended
}

// start starts a command in a session of its own. It cannot gain privileges, and it dies with this process.
func start(cmd *osexec.Cmd, as *Credential) (*process, error) {
	if err := adopt(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, uid: uint32(os.Geteuid()), before: map[int]bool{}, exited: make(chan struct{})} //nolint:gosec // an account's number
	if err := p.remember(); err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if as != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: as.UID, Gid: as.GID}
		p.uid = as.UID
	}
	if err := startWithoutPrivileges(cmd); err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	go func() {
		defer close(p.exited)
		for errors.Is(unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		}
	}()
	return p, nil
}

// remember notes the children that there are. The kernel lists them by the thread that made them, where it was built to.
func (p *process) remember() error {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is one
	for _, list := range lists {
		text, _ := os.ReadFile(list) // a thread may have ended: its children are another's then
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				p.before[pid] = true
			}
		}
	}
	if len(lists) > 0 {
		return nil
	}
	table, err := processes()
	for pid, s := range table {
		p.before[pid] = s.parent == os.Getpid()
	}
	return err
}

// startWithoutPrivileges forks on a thread that can gain none (PR_SET_NO_NEW_PRIVS), which the command inherits: a
// set-user-id program would be one that we may not end.
func startWithoutPrivileges(cmd *osexec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread() // the thread lives on: its end would be a death of the command's parent
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	return <-started
}

// stat is what /proc/PID/stat says of a process.
type stat struct {
	parent, session int
	ended           bool   // and not reaped yet
	began           string // in ticks; with the pid it is one process and no other
}

func processes() (map[int]stat, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // it was only read
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	table := make(map[int]stat, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if s, ok := statOf(pid); ok {
				table[pid] = s
			}
		}
	}
	return table, nil
}

func statOf(pid int) (s stat, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, false
	}
	at := strings.LastIndexByte(string(text), ')') // a name may hold anything
	fields := strings.Fields(string(text[at+1:]))
	if at < 0 || len(fields) < 20 {
		return s, false
	}
	s.ended, s.began = fields[0] == "Z" || fields[0] == "X", fields[19]
	s.parent, err = strconv.Atoi(fields[1])
	s.session, _ = strconv.Atoi(fields[3])
	return s, err == nil
}

// tree is what belongs to the command and lives, and reaps what came back to us and has ended.
func (p *process) tree() map[int]stat {
	table, err := processes()
	if err != nil {
		return nil
	}
	living := map[int]stat{}
	for pid, s := range table {
		switch {
		case !p.owns(table, pid, s):
		case !s.ended:
			living[pid] = s
		case s.parent == os.Getpid() && pid != p.pid:
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
	return living
}

// owns tells a process of the command: of its session, below it, or below an orphan that came to us after it began.
func (p *process) owns(table map[int]stat, pid int, s stat) bool {
	if pid == os.Getpid() {
		return false
	}
	if s.session == p.pid {
		return true
	}
	for n := 0; n < len(table); n++ {
		if s.parent == os.Getpid() {
			return pid == p.pid || !p.before[pid]
		}
		pid = s.parent
		var known bool
		if s, known = table[pid]; !known {
			return false
		}
	}
	return false
}

// signal reaches all that live, each as the very process that was seen.
func (p *process) signal(tree map[int]stat, sig syscall.Signal) {
	for pid, seen := range tree {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		if now, ok := statOf(pid); ok && now.began == seen.began {
			_ = unix.PidfdSendSignal(fd, sig, nil, 0) // it may have ended
		}
		_ = unix.Close(fd)
	}
}

const (
	look       = 10 * time.Millisecond
	killWithin = 10 * time.Second
)

// end asks the whole tree to end, kills what has not after grace, and reaps the command. It reports what could not be killed.
func (p *process) end(grace time.Duration) error {
	tree := p.tree()
	if len(tree) > 0 && grace > 0 {
		p.signal(tree, syscall.SIGTERM)
		p.signal(tree, syscall.SIGCONT)
	}
	for until := time.Now().Add(grace); len(tree) > 0 && time.Now().Before(until); tree = p.tree() {
		time.Sleep(look) //nolint:forbidigo // the kernel tells nobody that the last of a tree has ended
	}
	for until := time.Now().Add(killWithin); len(tree) > 0 && time.Now().Before(until); tree = p.tree() {
		p.signal(tree, syscall.SIGSTOP) // nothing forks while it is listed again
		p.signal(p.tree(), syscall.SIGKILL)
		_ = syscall.Kill(-p.pid, syscall.SIGKILL) // the number is ours until the command is reaped
		time.Sleep(look)                          //nolint:forbidigo // the kernel tells nobody that the last of a tree has ended
	}
	if len(tree) > 0 {
		return fmt.Errorf("%d processes of the command could not be ended", len(tree))
	}
	<-p.exited
	_ = p.cmd.Wait() // its status is in ProcessState
	return nil
}

// allows tells a peer of a socket by what the kernel says of it: the account, and a process of the command.
func (p *process) allows(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	if raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return false
	}
	return peer.Pid > 0 && peer.Uid == p.uid && p.member(int(peer.Pid))
}

func (p *process) member(pid int) bool {
	session, err := unix.Getsid(pid)
	return err == nil && session == p.pid
}
