package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

func (p program) adminTasks() *cobra.Command {
	return listed[api.Task]{command: "admin tasks", short: "List everybody's tasks", path: plain(api.PathAllTasks), none: "There are no tasks.", head: taskHead, row: taskRow}.make(p)
}

func (p program) adminStranded() *cobra.Command {
	return listed[api.StrandedTask]{command: "admin stranded", short: "List tasks whose owner is no member any more", path: plain(api.PathStranded), none: "No task is stranded.",
		head: "TASK\tLEFT\tTITLE", row: func(t api.StrandedTask) string {
			return fmt.Sprintf("%s\t%s\t%s", t.Task, when(t.DepartedAt), oneLine(t.Title, 80))
		}}.make(p)
}

func (p program) adminRegistry() *cobra.Command {
	return listed[api.Entry]{command: "admin registry", short: "List registered things: admin registry KIND, or all revisions of one: admin registry KIND NAME", args: cobra.RangeArgs(1, 2),
		path: func(args []string) (string, error) {
			path := api.PathRegistry
			for _, a := range args {
				path += "/" + url.PathEscape(a)
			}
			return path, nil
		}, none: "There is none.", head: "KIND\tNAME\tREVISION\tSTATE\tENTERED\tDIGEST", row: func(e api.Entry) string {
			return fmt.Sprintf("%s\t%s\t%d\t%s\t%s\t%s", e.Kind, oneLine(e.Name, 64), e.Revision, oneLine(e.State, 20), when(e.EnteredAt), e.Digest)
		}}.make(p)
}

// adminCutOff is of one task, of one client or of everything. What concerns many is shown first.
func (p program) adminCutOff() *cobra.Command {
	var in api.CutOffRequest
	yes := false
	c := p.personal("cut-off TASK | --client NAME | --all", "Kill everything that a task, a client's tasks or all tasks were given, and keep the consents", cobra.MaximumNArgs(1),
		func(ctx context.Context, who *person, asJSON bool, args []string) error {
			if len(args) == 1 {
				if in != (api.CutOffRequest{}) {
					return errors.New("name one task, one client, or all of them")
				}
				return p.cutOffTask(ctx, who, asJSON, args[0])
			}
			if in.All == (in.Client != "") {
				return errors.New("name one task, one client, or all of them")
			}
			return p.cutOffMany(ctx, who, asJSON, yes, in)
		})
	c.Flags().StringVar(&in.Client, "client", "", "all tasks of this client, by its `NAME`")
	c.Flags().BoolVar(&in.All, "all", false, "all tasks")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (p program) cutOffTask(ctx context.Context, who *person, asJSON bool, task string) error {
	ref, err := reference("a task", task)
	if err != nil {
		return err
	}
	who.shown = whatever
	return answer(ctx, p, who, asJSON, "POST", api.PathTasks+"/"+ref+"/cut-off", nil, func(b *strings.Builder, e api.Epoch) {
		fmt.Fprintf(b, "Cut off. Everything that this task had been given is dead since activation epoch %d, which is committed.\n", e.ActivationEpoch)
	})
}

func (p program) cutOffMany(ctx context.Context, who *person, asJSON, yes bool, in api.CutOffRequest) error {
	if asJSON && !yes {
		return errors.New("with --json nobody is asked: say --yes too")
	}
	if !yes {
		var s api.CutOffScope
		if err := who.json(ctx, "GET", with(api.PathCutOff, "client", in.Client), nil, &s); err != nil {
			return err
		}
		if err := p.say("This concerns %s tasks, with %s open runs and %s effects in flight; the consents stay.\n", bounded(s.Tasks, s.Bound), bounded(s.Runs, s.Bound), bounded(s.InFlight, s.Bound)); err != nil {
			return err
		}
		if err := p.agree("Cut them off?"); err != nil {
			return err
		}
	}
	return answer(ctx, p, who, asJSON, "POST", api.PathCutOff, in, func(b *strings.Builder, r api.CutOffResult) {
		fmt.Fprintf(b, "Cut off. Tasks: %d; runs that were open: %d. Everything that they had been given is dead, which is committed.\n", r.Tasks, r.Runs)
	})
}

// bounded is a count that stops at a bound.
func bounded(n, bound int64) string {
	if n >= bound {
		return fmt.Sprintf("%d or more", bound)
	}
	return fmt.Sprint(n)
}

func (p program) adminAudit() *cobra.Command {
	return group("audit", "Search and export the audit log", p.adminAuditSearch(), p.adminAuditExport())
}

// auditFlags narrow a search.
func auditFlags(c *cobra.Command) func() string {
	values := map[string]*string{}
	for _, f := range [][2]string{{"since", "not before this `INSTANT`"}, {"until", "before this `INSTANT`"}, {"verb", "only this `VERB`"}, {"verdict", "ok, or a refusal `CODE`"},
		{"task", "of this `TASK`"}, {"run", "of this `RUN`"}, {"about", "of this `MEMBER`, by reference"}} {
		values[f[0]] = c.Flags().String(f[0], "", f[1])
	}
	values["member"] = values["about"] // no flag says who asks (B1)
	delete(values, "about")
	return func() string {
		q := url.Values{}
		for name, v := range values {
			if *v != "" {
				q.Set(name, strings.TrimPrefix(*v, mark))
			}
		}
		if len(q) == 0 {
			return ""
		}
		return "?" + q.Encode()
	}
}

func (p program) adminAuditSearch() *cobra.Command {
	query := func() string { return "" }
	c := listed[api.AuditEntry]{command: "admin audit search", short: "Search the audit log, newest first", path: func([]string) (string, error) { return api.PathAudit + query(), nil },
		none: "Nothing was found among the rows that this page looked at.", head: "NUMBER\tAT\tVERB\tVERDICT\tTASK\tRUN", row: func(e api.AuditEntry) string {
			return fmt.Sprintf("%d\t%s\t%s\t%s\t%s\t%s", e.Number, when(e.At), oneLine(e.Verb, 40), oneLine(e.Verdict, 40), dash(e.Task, 22), dash(e.Run, 22))
		}}.make(p)
	query = auditFlags(c)
	c.Use = "search"
	return c
}

func (p program) adminAuditExport() *cobra.Command {
	var cursor string
	query := func() string { return "" }
	c := p.personal("export", "Print the rows of a search as JSON lines, oldest first; the last line says that it is whole", cobra.NoArgs, func(ctx context.Context, who *person, _ bool, _ []string) error {
		end, err := who.export(ctx, with(api.PathAuditExport+query(), "cursor", cursor), p.out)
		if err == nil && end.Next != "" {
			_, err = fmt.Fprintf(p.err, "There is more: the same with --cursor %s\n", oneLine(end.Next, 256))
		}
		return err
	})
	query = auditFlags(c)
	c.Flags().StringVar(&cursor, "cursor", "", "the `CURSOR` that the part before gave")
	return c
}
