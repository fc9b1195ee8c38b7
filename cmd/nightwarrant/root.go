package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/keys/provenance"
)

// Exit codes.
const (
	exitOK            = 0
	exitFailed        = 1
	exitMisconfigured = 78 // EX_CONFIG of sysexits.h: starting again does not help
)

// program is what every command shares.
type program struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) string
}

// commands lists every command. A new one is a method in a file of its own and
// a line here.
func (p program) commands() []*cobra.Command {
	return []*cobra.Command{
		p.serve(), p.scheduler(), p.guard(), p.worker(), p.effect(),
		p.migrate(), p.keys(), p.gate(), p.fsck(), p.audit(), p.compliance(), p.doctor(),
		p.tripwire(),
		p.admin(), p.offer(), p.consent(), p.task(), p.revoke(), p.runs(), p.runReceipt(), p.finding(), p.decision(), p.notice(), p.readiness(),
		p.demo(), p.dev(), p.bench(), p.version(), p.devIssuer(), p.devIDP(), p.devDirectory(), p.devNATS(), p.demoWorker(),
	}
}

func (p program) root() *cobra.Command {
	root := &cobra.Command{
		Use: "nightwarrant", Short: "The authority service for unattended tasks",
		SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.AddCommand(p.commands()...)
	return root
}

// run runs one command line and returns the exit code. What went wrong is one
// line on stderr.
func (p program) run(ctx context.Context, args []string) int {
	root := p.root() //nolint:contextcheck // commands get the context when they are executed
	root.SetArgs(marked(args))
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintln(p.err, "nightwarrant: "+oneLine(err.Error(), maxLine)) // where else?
	return codeOf(err)
}

const maxLine = 600

// codeOf tells a misconfiguration, which only a person can mend, from the rest.
func codeOf(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	var wrong *config.Error
	var material *keys.MaterialError
	var unvouched *provenance.Refusal
	if errors.As(err, &wrong) || errors.As(err, &material) || errors.As(err, &unvouched) || errors.Is(err, pg.ErrUnsuitable) {
		return exitMisconfigured
	}
	return exitFailed
}

// oneLine makes foreign text harmless to a terminal and a log: one bounded line
// without control characters.
func oneLine(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	return text
}

// log is the process's log: JSON lines on stderr.
func (p program) log() *slog.Logger { return slog.New(slog.NewJSONHandler(p.err, nil)) }

// print writes a result: for a program when asJSON is set, else for a person.
func (p program) print(asJSON bool, result any, forPeople func(b *strings.Builder)) error {
	if !asJSON {
		var b strings.Builder
		forPeople(&b)
		return p.say("%s", b.String())
	}
	e := json.NewEncoder(p.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(result)
}

// say writes a text for a person.
func (p program) say(format string, args ...any) error {
	_, err := fmt.Fprintf(p.out, format, args...)
	return err
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	c.AddCommand(commands...)
	return c
}

// process is a command that reads one configuration file and runs until it is told to stop.
func (p program) process(use, short string, into config.Document, run func(context.Context) error) *cobra.Command {
	var file string
	c := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		if err := config.Load(file, into, p.env); err != nil {
			return err
		}
		if err := inModule(into); err != nil {
			return err
		}
		return run(cmd.Context())
	}}
	c.Flags().StringVar(&file, "config", "", "the process's YAML `FILE`")
	_ = c.MarkFlagRequired("config") // the flag is defined above
	return c
}
