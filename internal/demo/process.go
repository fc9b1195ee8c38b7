package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// child is one process of the stack. Its log is a file, so that a story can be
// searched afterwards.
type child struct {
	name    string
	command *exec.Cmd
	done    chan struct{}
	err     error
}

// start starts this binary with arguments.
func (s *Stack) start(name string, args ...string) (*child, error) {
	return s.startProgram(s.binary, name, nil, args...)
}

// startProgram starts a program with arguments and further variables.
func (s *Stack) startProgram(program, name string, variables []string, args ...string) (*child, error) {
	log, err := os.OpenFile(filepath.Join(s.dir, "logs", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()                                                                           //nolint:errcheck // the child has its own handle
	c := &child{name: name, command: exec.Command(program, args...), done: make(chan struct{})} //nolint:noctx // it ends by kill and stop
	c.command.Stdout, c.command.Stderr = log, log
	c.command.SysProcAttr, c.command.Env = dieWithParent(), append(environment(), variables...)
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(c.done)
		c.err = c.command.Wait()
	}()
	s.children[name] = c
	return c, nil
}

// environment is ours without what names servers and people: each process has
// its own configuration, which a variable would override.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NIGHTWARRANT_") })
}

// kill ends a process without notice, as a crash does, and waits for it.
func (c *child) kill() {
	_ = c.command.Process.Kill() // it may be gone already
	<-c.done
}

// stop asks a process to end and kills it when it does not.
func (c *child) stop() {
	_ = c.command.Process.Signal(syscall.SIGTERM) // it may be gone already
	select {
	case <-c.done:
	case <-time.After(15 * time.Second):
		c.kill()
	}
}

// run runs a command of this binary to its end and returns what it printed.
func (s *Stack) run(ctx context.Context, args ...string) (string, error) {
	return s.runFor(ctx, 30*time.Second, args...)
}

func (s *Stack) runFor(ctx context.Context, limit time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := exec.CommandContext(ctx, s.binary, args...)
	c.SysProcAttr, c.Env = dieWithParent(), environment()
	out, err := c.Output()
	if ctx.Err() != nil {
		return string(out), fmt.Errorf("nightwarrant %s did not end within %s: %w", args[0], limit, context.Cause(ctx))
	}
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return string(out), fmt.Errorf("nightwarrant %s: %s", args[0], strings.TrimSpace(string(failed.Stderr)))
	}
	return string(out), err
}

// until asks again and again until f says yes, at most for limit.
func until(ctx context.Context, limit time.Duration, what string, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		ok, err := f()
		if ok {
			return nil
		}
		if err != nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s did not come about within %s", what, limit), last)
		case <-tick.C:
		}
	}
}
