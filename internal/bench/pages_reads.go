package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// deep is how many pages into a list its cursor is taken.
const deep = 20

// reads are what a member and an operator read, by name. Lists are read at their top and
// deep down.
func (h *pagesHouse) reads(ctx context.Context) (map[string]func() (int, error), error) {
	a := h.authority
	m, err := h.somebody(pagesMember)
	if err != nil {
		return nil, err
	}
	op, err := h.somebody(pagesOperator)
	if err != nil {
		return nil, err
	}
	tasks, err := a.Tasks(ctx, m, "")
	if err != nil {
		return nil, err
	}
	task := tasks.Items[0]
	since := time.Now().Add(-time.Hour)
	out := map[string]func() (int, error){
		"task":             func() (int, error) { return weigh(a.Task(ctx, m, task.Task)) },
		"dry run":          func() (int, error) { return weigh(a.DryRun(ctx, m, task.Task)) },
		"revocation scope": func() (int, error) { return weigh(a.RevocationScope(ctx, m, task.Task)) },
		"consent":          func() (int, error) { return weigh(a.Consent(ctx, m, task.Consent)) },
		"timeline":         func() (int, error) { return weigh(a.Timeline(ctx, m, task.LastRun.Run)) },
		"board":            func() (int, error) { return weigh(a.Board(ctx, op)) },
		"registry":         func() (int, error) { return weigh(a.Registry(ctx, op, "WorkloadRole", "")) },
		"requirements":     func() (int, error) { return weigh(a.Requirements(ctx, op, "")) },
		"audit by verb":    func() (int, error) { return weigh(a.AuditSearch(ctx, op, api.AuditQuery{Verb: "claim"}, "")) },
		"audit by run":     func() (int, error) { return weigh(a.AuditSearch(ctx, op, api.AuditQuery{Run: task.LastRun.Run}, "")) },
		"audit of an hour": func() (int, error) { return weigh(a.AuditSearch(ctx, op, api.AuditQuery{Since: &since}, "")) },
		"audit in vain":    func() (int, error) { return weigh(a.AuditSearch(ctx, op, api.AuditQuery{Verb: "standby"}, "")) },
	}
	for name, list := range map[string]func(cursor string) (any, string, error){
		"tasks":     func(c string) (any, string, error) { p, err := a.Tasks(ctx, m, c); return p, p.Next, err },
		"runs":      func(c string) (any, string, error) { p, err := a.Runs(ctx, m, "", c); return p, p.Next, err },
		"task runs": func(c string) (any, string, error) { p, err := a.Runs(ctx, m, task.Task, c); return p, p.Next, err },
		"consents":  func(c string) (any, string, error) { p, err := a.Consents(ctx, m, c); return p, p.Next, err },
		"decisions": func(c string) (any, string, error) { p, err := a.Inbox(ctx, m, c); return p, p.Next, err },
		"ambiguous": func(c string) (any, string, error) { p, err := a.Ambiguous(ctx, m, c); return p, p.Next, err },
		"all tasks": func(c string) (any, string, error) { p, err := a.AllTasks(ctx, op, c); return p, p.Next, err },
	} {
		if err := atTopAndDeep(out, name, list); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return out, nil
}

// atTopAndDeep adds a list at its top and, when it is long enough, deep down.
func atTopAndDeep(out map[string]func() (int, error), name string, list func(cursor string) (any, string, error)) error {
	at := func(cursor string) func() (int, error) {
		return func() (int, error) {
			v, _, err := list(cursor)
			return weigh(v, err)
		}
	}
	out[name] = at("")
	cursor := ""
	for range deep {
		_, next, err := list(cursor)
		if err != nil {
			return err
		}
		if next == "" {
			return nil
		}
		cursor = next
	}
	out[name+", deep"] = at(cursor)
	return nil
}
