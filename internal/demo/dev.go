package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
)

// Dev keeps a stack up until ctx ends. Its data stays in the directory.
func Dev(ctx context.Context, o Options, out io.Writer) (err error) {
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o711); err != nil { //nolint:gosec // passable: PostgreSQL runs as another account
		return err
	}
	lock, err := localstack.Lock(o.Dir)
	if err != nil {
		return fmt.Errorf("%w: end that one first, or name another directory with --dir", err)
	}
	defer lock.Close() //nolint:errcheck // nothing was written
	out = &oneAtATime{to: out}
	o.Hear = func(m notify.Message) { hear(out, m) }
	o.Mind = true
	s, err := New(o)
	if err != nil {
		return err
	}
	if err := s.portsFree(ctx); err != nil {
		return err
	}
	defer s.Stop()
	for _, step := range []func(context.Context) error{s.Start, s.Register, s.StartRest, func(ctx context.Context) error { return s.WaitOpen(ctx, time.Minute) }, s.startWorkers, s.offerOnce} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("%w (logs are in %s)", err, s.path("logs"))
		}
	}
	s.printNext(out)
	<-ctx.Done()
	fmt.Fprintln(out, "Stopping; everything is kept in", s.dir)
	return nil
}

// hear prints what an owner is told.
func hear(out io.Writer, m notify.Message) {
	text := ""
	switch m.Type {
	case notify.TypeAsked, notify.TypeReminder:
		text = "A decision waits: nightwarrant decision show " + m.Data.Decision
	case notify.TypeRunEnded:
		text = "A run did not succeed: " + m.Data.Run + " (nightwarrant run list)"
	case notify.TypeAmbiguous:
		text = "Nobody knows whether an effect happened: " + m.Data.Effect + " (nightwarrant finding list)"
	default:
		text = "News: " + m.Data.Link
	}
	_, _ = fmt.Fprintln(out, text) // whoever is away can look with the commands
}

// oneAtATime is a terminal on which several write.
type oneAtATime struct {
	mu sync.Mutex
	to io.Writer
}

func (o *oneAtATime) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.to.Write(b)
}

func (s *Stack) startWorkers(context.Context) error {
	for _, w := range []string{"worker-1", "worker-2", "assistant-1"} {
		if _, err := s.start(w, "demo-worker", "--config", s.path("config", w+".json")); err != nil {
			return err
		}
	}
	return nil
}

// portsFree tells at once when another program listens at a port of this stack. A stack that was killed just before ends within that time.
func (s *Stack) portsFree(ctx context.Context) error {
	busy := 0
	err := until(ctx, 5*time.Second, "a free port", func() (bool, error) {
		busy = s.ports.busy()
		return busy == 0, nil
	})
	if busy == 0 {
		return err
	}
	return fmt.Errorf("port %d of 127.0.0.1, which this stack keeps, is taken by another program: end that one, or name another directory with --dir", busy)
}

// offerOnce offers the demo's tasks, unless they are offered or consented to. On a busy machine the gate may close once more in between.
func (s *Stack) offerOnce(ctx context.Context) error {
	var refused error
	err := until(ctx, time.Minute, "an offer", func() (bool, error) {
		refused = errors.Join(s.apply(ctx, "task.yaml"), s.apply(ctx, "tidy.yaml"))
		return refused == nil || !strings.Contains(refused.Error(), string(api.AdmissionClosed)), refused
	})
	if err != nil {
		return err
	}
	return refused
}

// printNext prints what to try.
func (s *Stack) printNext(out io.Writer) {
	_, _ = fmt.Fprintf(out, `
The pages are at %[1]s: open them in a browser and sign in as %[8]s, the member, or as %[9]s, the operator.
The authority is at the same address, the guard at %[2]s.
Logs are in %[3]s; everything else is beside them and is there again next time.

Be the member, with commands:
  export PATH=%[11]s:$PATH NIGHTWARRANT_AUTHORITY=%[1]s
  export NIGHTWARRANT_ENVELOPE_FILE=%[4]s NIGHTWARRANT_KEY_FILE=%[4]s.key
  %[5]s offer list                      # what you are asked
  %[5]s offer show OFFER                # exactly
  %[5]s offer accept OFFER --digest D   # a yes carries the digest of what was shown
  %[5]s run list                        # two workers are waiting
  %[5]s task revoke TASK                # returns when it has taken effect

Be the operator, in another shell:
  %[5]s readiness --authority %[1]s
  %[5]s admin apply -f %[12]s --authority %[1]s --envelope-file %[6]s --key-file %[6]s.key
  %[5]s gate close --database-url-file %[7]s
  %[5]s gate release --database-url-file %[7]s
  %[5]s tripwire --config %[10]s --close-gate

Stop with Ctrl-C.
`, s.Origin(), s.GuardURI(), s.path("logs"), s.path("people", "member"), s.binary, s.path("people", "operator"), s.path("config", "operator.url"), member, operator, s.path(tripwireConfig), filepath.Dir(s.binary), s.path("config", "registry.yaml"))
}
