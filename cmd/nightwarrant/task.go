package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

func (p program) task() *cobra.Command {
	list := listed[api.Task]{command: "task list", short: "List your tasks", path: plain(api.PathTasks), none: "You have no tasks.", head: taskHead, row: taskRow}
	show := about(p, "show TASK", "Show a task with all that it rests on", "a task", api.PathTasks+"/", "", showTask)
	dry := about(p, "dry-run TASK", "Say what would happen if it fired now, and why not", "a task", api.PathTasks+"/", "/dry-run", showDryRun)
	revoke := p.personal("revoke TASK", "End a task's consent, at once", cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) error {
		ref, err := reference("a task", args[0])
		if err != nil {
			return err
		}
		who.shown = whatever
		return answer(ctx, p, who, asJSON, "POST", api.PathTasks+"/"+ref+"/revoke", nil, showRevoked)
	})
	return group("task", "See your tasks, and stop them", list.make(p), show, dry, revoke)
}

const taskHead = "TASK\tREVISION\tCONSENT\tNEXT\tTITLE"

func taskRow(t api.Task) string {
	consent, next := "none", "never"
	if t.Consented {
		consent = "active"
	}
	if t.NextAt != nil {
		next = when(*t.NextAt)
	}
	return fmt.Sprintf("%s\t%d\t%s\t%s\t%s", t.Task, t.Revision, consent, next, taskTitle(t.Document))
}

func taskTitle(text json.RawMessage) string {
	d, err := document.ParseJSON(text)
	if t, ok := d.(*document.Task); ok && err == nil {
		return t.Title
	}
	return "(a document that this program does not know)"
}

func showTask(b *strings.Builder, t api.TaskDetail) {
	fmt.Fprintf(b, "%s\n\n  task      %s, revision %d\n  client    %s\n  role      %s, revision %d (%s)\n  policy    %s, revision %d\n  epoch     %d\n", oneLine(taskTitle(t.Document), 120), t.Task.Task, t.Revision,
		oneLine(t.Client.Name, 64), oneLine(t.Role.Name, 64), t.Role.Revision, oneLine(t.Role.State, 20), oneLine(t.Policy.Name, 64), t.Policy.Revision, t.ActivationEpoch)
	for _, f := range t.NextFires {
		change := ""
		if f.ClocksChange {
			change = " (the clocks change before it)"
		}
		fmt.Fprintf(b, "  next      %s%s\n", when(f.At), change)
	}
	b.WriteString("\n")
	table(b, "Nobody has agreed to it.", t.Consents, "CONSENT\tREVISION\tSTATE\tGIVEN\tUNTIL", func(c api.ConsentRecord) string {
		return fmt.Sprintf("%s\t%d\t%s\t%s\t%s", c.Consent, c.TaskRevision, oneLine(c.State, 20), when(c.GivenAt), when(c.ExpiresAt))
	})
	fmt.Fprintf(b, "\nTo stop it: nightwarrant revoke %s\n", t.Task.Task)
}

func showDryRun(b *strings.Builder, d api.DryRun) {
	if d.WouldRun {
		fmt.Fprintf(b, "It would run now (%s).\n", when(d.At))
	} else {
		fmt.Fprintf(b, "It would not run now (%s):\n", when(d.At))
	}
	for _, reason := range d.Reasons {
		text := api.WhyNot(reason)
		if text == "" {
			text = oneLine(reason, 64)
		}
		if d.Ceiling != "" && reason == string(api.LimitReached) {
			text += " (" + oneLine(d.Ceiling, 40) + ")"
		}
		fmt.Fprintf(b, "  - %s\n", text)
	}
	if d.NextAt != nil {
		fmt.Fprintf(b, "Its next time is %s.\n", when(*d.NextAt))
	}
}

func showRevoked(b *strings.Builder, e api.Epoch) {
	fmt.Fprintf(b, "Revoked. Everything that this task had been given is dead since activation epoch %d, which is committed.\n", e.ActivationEpoch)
}

// revoke shows what ends, asks, and ends exactly that.
func (p program) revoke() *cobra.Command {
	yes := false
	c := p.personal("revoke TASK", "Show what would end with a task's consent, ask, and end it", cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) error {
		ref, err := reference("a task", args[0])
		if err != nil {
			return err
		}
		if asJSON && !yes {
			return errors.New("with --json nobody is asked: say --yes too")
		}
		var scope api.RevocationScope
		if err := who.json(ctx, "GET", api.PathTasks+"/"+ref+"/revocation", nil, &scope); err != nil {
			return err
		}
		if !yes {
			var b strings.Builder
			showScope(&b, scope)
			if err := p.say("%s", b.String()); err != nil {
				return err
			}
			if err := p.agree("Revoke it?"); err != nil {
				return err
			}
		}
		who.shown = tagOf(scope.ActivationEpoch)
		return answer(ctx, p, who, asJSON, "POST", api.PathTasks+"/"+ref+"/revoke", nil, showRevoked)
	})
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func showScope(b *strings.Builder, s api.RevocationScope) {
	if s.Consent == "" {
		b.WriteString("There is no consent that could be revoked.\n")
		return
	}
	fmt.Fprintf(b, "This ends with the consent %s of task %s:\n  %s open\n  %s granted but not admitted\n  %s waiting for your decision\n", s.Consent, s.Task,
		number(int64(len(s.Runs)), "run that is", "runs that are"), number(s.Minted, "effect that was", "effects that were"), number(s.Cards, "question", "questions"))
	if s.InFlight > 0 {
		fmt.Fprintf(b, "%s already admitted and may still happen.\n", number(s.InFlight, "effect was", "effects were"))
	}
	if s.NextAt != nil {
		fmt.Fprintf(b, "It would next have run %s.\n", when(*s.NextAt))
	}
}

func number(n int64, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}
