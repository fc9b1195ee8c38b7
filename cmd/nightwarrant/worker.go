package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/readiness/client"
	"github.com/nightwarrant/nightwarrant/worker"
	"github.com/nightwarrant/nightwarrant/worker/exec"
	"github.com/nightwarrant/nightwarrant/worker/natsqueue"
)

func (p program) worker() *cobra.Command {
	return group("worker", "Work on runs with a command that exists already", p.workerExec(), p.workerImport())
}

func (p program) workerExec() *cobra.Command {
	var file string
	c := &cobra.Command{Use: "exec --config FILE -- COMMAND ARGUMENT…", Short: "Run a command for each run of a role, without a secret in its hands", Args: cobra.MinimumNArgs(1)}
	configFlag(c, &file)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		var of config.Worker
		if err := config.Load(file, &of, p.env); err != nil {
			return err
		}
		if err := inModule(&of); err != nil {
			return err
		}
		command := make([]string, len(args))
		for i, word := range args {
			command[i] = strings.TrimPrefix(word, mark)
		}
		return runCommands(cmd.Context(), of, command, p.log())
	}
	return c
}

// runCommands pulls, claims and runs until ctx ends.
func runCommands(ctx context.Context, of config.Worker, command []string, log *slog.Logger) error {
	settings, err := commandSettings(of.Command, command)
	if err != nil {
		return err
	}
	if err := exec.Protect(); err != nil {
		return err
	}
	toAuthority, err := clientWith("roots_file", of.RootsFile)
	if err != nil {
		return err
	}
	ready, err := client.New(client.Config{Issuer: of.Authority, HTTP: toAuthority})
	if err != nil {
		return config.Wrong("authority", "cannot be used: %s", err)
	}
	settings.Logger, settings.Open = log, func() bool { return ready.State().Open() }
	runner, err := exec.New(settings)
	if err != nil {
		return err
	}
	defer runner.Close()
	options, err := queueOptions(of.Queue.URL, "queue.roots_file", of.Queue.RootsFile, of.FIPSRequired())
	if err != nil {
		return err
	}
	queue, err := natsqueue.Open(ctx, natsqueue.Config{URL: of.Queue.URL, Queue: of.Queue.Reference, User: of.Queue.User, Password: of.Queue.Password.Reveal(), Options: options, Logger: log})
	if err != nil {
		return err
	}
	defer queue.Close() //nolint:errcheck // the process ends
	from, err := assertionOf(ctx, of.Identity, of.Authority)
	if err != nil {
		return err
	}
	defer from.close()
	if toAuthority == nil {
		toAuthority = &http.Client{Transport: withoutProxy()}
	}
	w, err := worker.New(worker.Config{Authority: of.Authority, Client: of.Client, Assertion: from.read, AssertionType: from.kind, Source: runner.Source(queue),
		HTTP: toAuthority, Logger: log})
	if err != nil {
		return &config.Error{Sentence: err.Error()}
	}
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error {
		ready.Run(ctx)
		return nil
	})
	tasks.Go(func() error { return w.Run(ctx, runner.Handle) })
	log.Info("working", "command", command[0])
	return tasks.Wait()
}

// withoutProxy reaches nobody whom the environment names.
func withoutProxy() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	t.Proxy = nil
	return t
}

// commandSettings checks what the file says of the command. A command with the account of root could read what it must
// not have.
func commandSettings(c config.Command, command []string) (exec.Config, error) {
	e := exec.Environment{Pass: c.Pass, Secrets: c.Secrets}
	if err := e.Check(); err != nil {
		return exec.Config{}, config.Wrong("command.pass", "does not hold: %s", err)
	}
	path, err := osexec.LookPath(command[0])
	if err == nil {
		path, err = filepath.Abs(path) // the command may work in another folder
	}
	if err != nil {
		return exec.Config{}, &config.Error{Sentence: "the command cannot be found or may not be run: " + command[0]}
	}
	command[0] = path
	out := exec.Config{Command: command, Dir: c.Dir, Environment: e.Of(os.Environ()), SocketDir: c.SocketDir, OutputDir: c.OutputDir, MaxOutput: c.MaxOutput,
		Grace: c.Grace.Std(), WhenWaiting: c.WhenWaiting}
	root := os.Geteuid() == 0
	switch {
	case root && c.UID == 0:
		return exec.Config{}, config.Wrong("command.uid", "is missing: a worker that is root gives its command an account that can read less")
	case !root && c.UID != 0:
		return exec.Config{}, config.Wrong("command.uid", "needs a worker that is root")
	case c.UID != 0:
		out.As = &exec.Credential{UID: uint32(c.UID), GID: uint32(c.GID)} //nolint:gosec // the file was checked
	}
	return out, checkFolders(c)
}

func checkFolders(c config.Command) error {
	for key, dir := range map[string]string{"command.socket_dir": c.SocketDir, "command.output_dir": c.OutputDir} {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return config.Wrong(key, "must name a folder")
		}
	}
	info, err := os.Stat(c.OutputDir)
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		return config.Wrong("command.output_dir", "must name a folder that its owner alone may enter (mode 0700)")
	}
	return nil
}

var errNoSocket = errors.New(exec.Variable + " is not set: this is for commands of nightwarrant worker exec")
