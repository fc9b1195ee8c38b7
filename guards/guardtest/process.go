package guardtest

import (
	"errors"
	"os/exec"
	"syscall"
	"time"
)

// command is a child process and everything that it starts.
type command struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// Command starts cmd in a process group of its own. The Process that it returns is a [Pauser].
func Command(cmd *exec.Cmd) (Process, error) {
	cmd.SysProcAttr = groupOfItsOwn()
	cmd.WaitDelay = 5 * time.Second
	c := &command{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go c.live(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

func (c *command) Kill() error {
	err := c.signal(syscall.SIGKILL)
	<-c.done
	return err
}

// Pause returns when the process has stopped: a signal that was sent has not yet arrived.
func (c *command) Pause() error {
	err := c.signal(syscall.SIGSTOP)
	if err == nil {
		c.awaitStop()
	}
	return err
}

func (c *command) Resume() error { return c.signal(syscall.SIGCONT) }

// signal reaches the whole group; one that has ended is no error.
func (c *command) signal(s syscall.Signal) error {
	err := syscall.Kill(-c.cmd.Process.Pid, s)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

func (c *command) wait(started chan<- error) {
	err := c.cmd.Start()
	started <- err
	if err == nil {
		_ = c.cmd.Wait() // that it was killed is what is wanted
		close(c.done)
	}
}
