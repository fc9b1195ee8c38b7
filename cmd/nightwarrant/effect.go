package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/worker/exec"
)

const maxEffect = 256 << 10

// effect is what a script calls: one effect, asked for at the socket of its run.
func (p program) effect() *cobra.Command {
	var in exec.Request
	var parameters string
	var asJSON bool
	c := &cobra.Command{Use: "effect [--guard URI --action NAME --resource R --key K …]", Args: cobra.NoArgs,
		Short: "Ask for one effect, from within a command of worker exec; without --key it is read from standard input as JSON", Long: effectHelp()}
	f := c.Flags()
	f.StringVar(&in.Guard, "guard", "", "`URI` of the guard")
	f.StringVar(&in.Action, "action", "", "`NAME` of what the guard shall do")
	f.StringVar(&in.Resource, "resource", "", "`RESOURCE`, as the consent names it")
	f.StringVar(&in.Key, "key", "", "`KEY`: your own name of this step; one key is one effect in a run")
	f.StringVar(&parameters, "parameters", "{}", "`JSON` object; - reads it from standard input")
	f.Int64Var(&in.Amount, "amount", 0, "minor `UNITS` of the currency")
	f.StringVar(&in.Currency, "currency", "", "three capital `LETTERS`")
	f.StringVar(&in.RepeatOf, "repeat-of", "", "`REFERENCE` of a committed effect that is repeated on purpose")
	f.BoolVar(&asJSON, "json", false, "print the whole answer")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := p.readEffect(&in, parameters); err != nil {
			return &exitError{exec.Exit(exec.Invalid), err}
		}
		return p.ask(cmd.Context(), in, asJSON)
	}
	c.AddCommand(p.progress())
	return c
}

// effectHelp lists the exit codes, which scripts depend on.
func effectHelp() string {
	var b strings.Builder
	b.WriteString("Prints the outcome, and exits with its code:\n\n")
	for _, o := range exec.Outcomes {
		fmt.Fprintf(&b, "  %2d  %-12s %s\n", o.Exit, o.Code, o.Message)
	}
	return b.String()
}

// readEffect completes a request from what the flags left to standard input.
func (p program) readEffect(in *exec.Request, parameters string) error {
	if in.Key != "" && parameters != "-" {
		in.Parameters = json.RawMessage(parameters)
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(p.in, maxEffect+1))
	if err == nil && len(text) > maxEffect {
		err = fmt.Errorf("an effect has at most %d bytes", maxEffect)
	}
	if err != nil {
		return err
	}
	if parameters == "-" {
		in.Parameters = text
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode(in) != nil {
		return errors.New("standard input must hold one effect as JSON: guard, action, resource, key, parameters")
	}
	return nil
}

func (p program) ask(ctx context.Context, in exec.Request, asJSON bool) error {
	socket := p.env(exec.Variable)
	if socket == "" {
		return errNoSocket
	}
	if !json.Valid(in.Parameters) && len(in.Parameters) > 0 {
		return &exitError{exec.Exit(exec.Invalid), errors.New("the parameters are not JSON")}
	}
	var a exec.Answer
	if err := exec.Ask(ctx, socket, "/effects", in, &a); err != nil {
		return err
	}
	if err := p.print(asJSON, a, func(b *strings.Builder) { fmt.Fprintln(b, a.Outcome) }); err != nil {
		return err
	}
	if a.Outcome != exec.Committed {
		why := a.Outcome
		if a.Refusal != "" {
			why += " (" + a.Refusal + ")"
		}
		return &exitError{exec.Exit(a.Outcome), errors.New(why + ": " + a.Message)}
	}
	return nil
}

func (p program) progress() *cobra.Command {
	var in exec.Progress
	c := &cobra.Command{Use: "progress", Args: cobra.NoArgs, Short: "Say how far it is, and print what the run may still use as JSON"}
	c.Flags().Int64Var(&in.Done, "done", 0, "`STEPS` that are done")
	c.Flags().Int64Var(&in.Of, "of", 0, "`STEPS` in all")
	c.Flags().StringVar(&in.Note, "note", "", "`TEXT` for the worker's log")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		socket := p.env(exec.Variable)
		if socket == "" {
			return errNoSocket
		}
		var left exec.Left
		if err := exec.Ask(cmd.Context(), socket, "/progress", in, &left); err != nil {
			return err
		}
		return p.print(true, left, nil)
	}
	return c
}

// exitError is a failure with an exit code of its own.
type exitError struct {
	code int
	error
}

func (e *exitError) Unwrap() error { return e.error }
