package localstack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is one child that ends when this process ends.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the child has been waited for
	err  error         // how it ended; read after done
}

// spawn starts cmd. The thread that forks must live as long as the child: the
// kernel sends the parent-death signal when that thread ends, not the process.
func spawn(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	return p, <-started
}

// run runs cmd to its end, or kills it when ctx ends first.
func run(ctx context.Context, cmd *exec.Cmd) error {
	p, err := spawn(cmd)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.kill()
		return context.Cause(ctx)
	}
}

// stop sends sig and waits; when ctx ends first it kills and says so.
func (p *process) stop(ctx context.Context, sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		<-p.done   // only a child that has ended refuses a signal
		return nil //nolint:nilerr // see above: it has stopped
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		p.kill()
		return fmt.Errorf("did not stop in time and was killed: %w", context.Cause(ctx))
	}
}

// quit is PostgreSQL's immediate shutdown, and ends any other program too.
const quit = syscall.SIGQUIT
