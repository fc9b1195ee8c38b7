package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

func (p program) runs() *cobra.Command {
	var task string
	list := listed[api.Run]{command: "run list", short: "List your runs, newest first", none: "Nothing has run.", head: "RUN\tTASK\tFOR\tSTATE\tDONE\tNOT DONE\tUNKNOWN\tSTEPS\tCOST", row: runRow,
		path: func([]string) (string, error) {
			if task == "" {
				return api.PathRuns, nil
			}
			ref, err := reference("a task", task)
			return with(api.PathRuns, "task", ref), err
		}}.make(p)
	list.Flags().StringVar(&task, "task", "", "runs of this `TASK` only")
	show := p.personal("show RUN", "Show what happened to a run, step by step", cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) error {
		t, err := timeline(ctx, who, args[0])
		if err != nil {
			return err
		}
		return p.print(asJSON, t, func(b *strings.Builder) { showTimeline(b, t) })
	})
	export := p.personal("export RUN", "Print all that is recorded of a run as JSON", cobra.ExactArgs(1), func(ctx context.Context, who *person, _ bool, args []string) error {
		t, err := timeline(ctx, who, args[0])
		if err != nil {
			return err
		}
		return p.print(true, t, nil)
	})
	return group("run", "See what ran", list, show, export)
}

// maxTimeline bounds the pages of one run: a run has a bounded number of steps.
const maxTimeline = 1000

// timeline is all of a run's timeline.
func timeline(ctx context.Context, who *person, run string) (whole api.Timeline, err error) {
	ref, err := reference("a run", run)
	if err != nil {
		return whole, err
	}
	cursor := ""
	for range maxTimeline {
		var page api.Timeline
		if err := who.json(ctx, "GET", with(api.PathRuns+"/"+ref, "cursor", cursor), nil, &page); err != nil {
			return whole, err
		}
		page.Entries = append(whole.Entries, page.Entries...)
		if whole, cursor = page, page.Next; cursor == "" {
			return whole, nil
		}
	}
	return whole, errors.New("this run's timeline does not end")
}

func runRow(r api.Run) string {
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s", r.Run, r.Task, when(r.NominalAt), oneLine(r.State, 40), r.Committed, r.NotApplied, r.Ambiguous, r.Steps, cost(r.Spent, r.Currency))
}

// cost is what a run has spent; without a currency it may spend nothing.
func cost(spent int64, currency string) string {
	if currency == "" {
		return "-"
	}
	return money(spent, oneLine(currency, 3))
}

func showTimeline(b *strings.Builder, t api.Timeline) {
	fmt.Fprintf(b, "Run %s of task %s, for %s: %s.\n", t.Run.Run, t.Run.Task, when(t.Run.NominalAt), oneLine(t.Run.State, 40))
	fmt.Fprintf(b, "Deadline %s; cost %s.\n", when(t.Deadline), cost(t.Run.Spent, t.Run.Currency))
	if t.Shortfall != "" {
		fmt.Fprintf(b, "It needed more than it was allowed and did not get it (%s).\n", oneLine(t.Shortfall, 20))
	}
	for _, at := range t.Coalesced {
		fmt.Fprintf(b, "It stands for %s too.\n", when(at))
	}
	b.WriteString("\n")
	table(b, "Nothing is recorded of it.", t.Entries, "AT\tWHAT\tCODE\tACTION\tRESOURCE\tAMOUNT\tOUTCOME", func(e api.TimelineEntry) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s", when(e.At), oneLine(e.Kind, 40), oneLine(e.Code, 40), dash(e.Action, 64), dash(e.Resource, 80), cost(e.Amount, e.Currency), dash(e.Outcome, 40))
	})
}

func dash(text string, most int) string {
	if text == "" {
		return "-"
	}
	return oneLine(text, most)
}
