package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/freeport"
	"github.com/nightwarrant/nightwarrant/internal/tripwire"
)

const tripwireConfig = "tripwire.yaml"

// Attack is one of the nine threats of A16, tried.
type Attack struct {
	ID       string `json:"id"`
	Title    string `json:"title"`
	Verdict  string `json:"verdict"`
	Evidence string `json:"evidence"`

	Name    string   `json:"name"`    // the title
	Refused bool     `json:"refused"` // the verdict is pass
	Code    api.Code `json:"code"`    // that it was refused with first
}

// told fills in what follows from the self-audit's line.
func (a Attack) told() Attack {
	a.Name, a.Refused = a.Title, a.Verdict == string(tripwire.Pass)
	for each := range strings.SplitSeq(a.Evidence, "; ") {
		code := api.Code(each[strings.LastIndex(each, " ")+1:])
		if a.Refused && slices.Contains(api.Codes(), code) {
			a.Code = code
			break
		}
	}
	return a
}

// attacks has the self-audit run, with admission closed for it, and tells its nine attacks. All else of it must hold, too.
func (t teller) attacks(ctx context.Context) (nine []Attack, err error) {
	if err := t.WaitOpen(ctx, 40*time.Second); err != nil {
		return nil, err
	}
	out, err := t.runFor(ctx, 3*time.Minute, "tripwire", "--config", t.path(tripwireConfig), "--close-gate", "--json")
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	var report struct {
		Lines []Attack `json:"lines"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return nil, err
	}
	for _, l := range report.Lines {
		if strings.HasPrefix(l.ID, "A16.") {
			l = l.told()
			nine = append(nine, l)
			t.say("%s  %s: %s (%s).", l.ID, l.Title, l.Verdict, l.Code)
		}
	}
	t.say("The self-audit tried these and %d more: all of it held, and nothing of it is left.", len(report.Lines)-len(nine))
	slices.SortFunc(nine, func(a, b Attack) int { return strings.Compare(a.ID, b.ID) })
	return nine, nil
}

// Rebuild goes on with another binary of the authority and of the scheduler. The guard stays: its assertion belongs to its key.
func (s *Stack) Rebuild(ctx context.Context, binary string) error {
	s.binary = binary
	for _, name := range []string{"scheduler", "replica-a", "replica-b"} {
		s.children[name].stop()
	}
	if err := s.startReplicas(ctx); err != nil {
		return err
	}
	if _, err := s.start("scheduler", "scheduler", "--config", s.path("config", "scheduler.yaml")); err != nil {
		return err
	}
	return s.WaitOpen(ctx, time.Minute)
}

// tripwire is the file of the self-audit.
func (s *Stack) tripwire() string {
	holder := func(dir, token string) string {
		return "{token_file: " + s.path(dir, token) + ", key_file: " + s.path(dir, token+".key") + "}"
	}
	text := `authority: ` + s.Origin() + `
replicas: ["` + local(s.ports.ReplicaA) + `", "` + local(s.ports.ReplicaB) + `"]
admin: ["` + local(s.ports.AdminA) + `", "` + local(s.ports.AdminB) + `"]
operator: ` + holder("people", "operator") + `
member: ` + holder("people", "scratch") + `
workload: ` + holder("tokens", "tripwire") + `
second: ` + holder("tokens", "tripwire-2") + `
stranger: ` + holder("tokens", "stranger") + `
guard:
  name: ledger
  uri: ` + s.GuardURI() + `
  pod: ` + holder("tokens", "guard-2") + `
  granted: {action: row.append, resource: "table:entries", parameters: '{"table":"entries","values":{"memo":"self-audit","cents":1}}'}
  denied: {action: row.delete, resource: "table:entries", parameters: '{"table":"entries","key":{"id":1}}'}
gate: {database_url_file: ` + s.path("config", "operator.url") + `}
logs: [` + s.path("logs") + `]
`
	if s.ports.Block != 0 {
		text += fmt.Sprintf("hosts: [{host: 127.0.0.1, from: %d, to: %d, ports: [%s]}]\n", s.ports.Block, s.ports.Block+freeport.BlockSize-1, strings.Join(s.listening(), ", "))
	}
	return text
}

// listening are the ports of this stack at which something listens.
func (s *Stack) listening() (all []string) {
	p := s.ports
	open := []int{p.Origin, p.ReplicaA, p.ReplicaB, p.AdminA, p.AdminB, p.Workloads, p.People, p.Directory, p.Guard, p.Hook, p.Witness}
	if s.ownQueue() {
		open = append(open, p.NATS, p.Monitor)
	}
	if s.mind {
		open = append(open, p.Mind, p.Models)
	}
	for _, one := range open {
		all = append(all, port(one))
	}
	return all
}
