// Package doctor looks at an installation before its users do. It changes
// nothing, and says of each thing what it saw and what to do about it.
package doctor

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/config"
)

// Verdict is what a finding comes to.
type Verdict string

// The verdicts. What could not be looked at is Unknown, never OK.
const (
	OK      Verdict = "ok"
	Warn    Verdict = "warn"    // works today
	Bad     Verdict = "bad"     // does not work, or not safely
	Unknown Verdict = "unknown" // could not be looked at
)

// Finding is one thing that was looked at.
type Finding struct {
	Check   string  `json:"check"` // such as "authority.origin"
	Verdict Verdict `json:"verdict"`
	What    string  `json:"what"`
	Remedy  string  `json:"remedy,omitempty"` // none when there is nothing to do
}

// Check looks at something; Look ends with its context.
type Check struct {
	Name string
	Look func(ctx context.Context) []Finding
}

// patience is for one check. Each waits on something else, so all run at once.
const patience = 15 * time.Second

// Run looks at everything, and returns the findings in the order of the checks.
func Run(ctx context.Context, checks []Check) []Finding {
	found := make([][]Finding, len(checks))
	var group sync.WaitGroup
	for i, c := range checks {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			found[i] = c.Look(ctx)
			for n := range found[i] {
				found[i][n].Check = strings.TrimSuffix(c.Name+"."+found[i][n].Check, ".")
			}
		})
	}
	group.Wait()
	var all []Finding
	for _, f := range found {
		all = append(all, f...)
	}
	return all
}

// Failed tells whether anything is bad.
func Failed(all []Finding) bool {
	for _, f := range all {
		if f.Verdict == Bad {
			return true
		}
	}
	return false
}

func ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Verdict: OK, What: fmt.Sprintf(format, args...)}
}

func warn(check, remedy, format string, args ...any) Finding {
	return Finding{check, Warn, fmt.Sprintf(format, args...), remedy}
}

func bad(check, remedy, format string, args ...any) Finding {
	return Finding{check, Bad, fmt.Sprintf(format, args...), remedy}
}

// Asked is a check of something that answers with an error or with none.
func Asked(name, what, remedy string, ask func(context.Context) error) Check {
	return Check{name, func(ctx context.Context) []Finding {
		if err := ask(ctx); err != nil {
			return []Finding{bad("", remedy, "%s: %s", what, err)}
		}
		return []Finding{ok("", "%s", what)}
	}}
}

// inClear tells whether a URL leads over a network without TLS.
func inClear(u *url.URL, encrypted ...string) bool {
	for _, scheme := range encrypted {
		if u.Scheme == scheme {
			return false
		}
	}
	return !config.Loopback(u.Hostname())
}
