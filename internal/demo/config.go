package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/dev"
	"github.com/nightwarrant/nightwarrant/internal/login"
)

const (
	audience = "https://platform.demo/nightwarrant"
	member   = "member-7f3a"
	operator = "operator-1c9d"
	auditor  = "auditor-5e20"
	scratch  = "scratch-40d2" // owns the task of the self-audit

	consoleClient = "nightwarrant-console" // at which people sign in

	tokenLife = 10 * time.Minute

	directoryConfig, directoryToken, tokenPIN = "directory.yaml", "directory.token", "token.pin"
)

// writeConfig writes the configuration of every process, as an operator would.
func (s *Stack) writeConfig(context.Context) error {
	files := map[string]string{
		"issuer.yaml": `listen: 127.0.0.1:` + port(s.ports.Workloads) + `
dir: ` + s.path("issuer") + `
audience: ` + s.Origin() + `
lifetime: ` + tokenLife.String() + `
accounts:
` + s.accounts(),
		"idp.yaml": `listen: 127.0.0.1:` + port(s.ports.People) + `
dir: ` + s.path("idp") + `
audience: ` + audience + `
lifetime: 10m
people:
  - {subject: ` + member + `, email: member@people.demo, file: ` + s.path("people", "member") + `}
  - {subject: ` + member + `, email: member@people.demo, file: ` + s.path("people", "member-2") + `}
  - {subject: ` + operator + `, email: operator@people.demo, file: ` + s.path("people", "operator") + `}
  - {subject: ` + auditor + `, email: auditor@people.demo, file: ` + s.path("people", "auditor") + `}
  - {subject: ` + scratch + `, email: scratch@people.demo, file: ` + s.path("people", "scratch") + `}
clients: [{id: ` + consoleClient + `, redirect_uri: "` + s.Origin() + login.PathCallback + `"}]
`,
		directoryConfig: `listen: 127.0.0.1:` + port(s.ports.Directory) + `
token_file: ` + s.path("config", directoryToken) + `
members:
  - {subject: ` + member + `, email: member@people.demo}
  - {subject: ` + operator + `, email: operator@people.demo}
  - {subject: ` + auditor + `, email: auditor@people.demo}
  - {subject: ` + scratch + `, email: scratch@people.demo}
`,
		directoryToken: s.passwords[directoryToken],
		"guard.yaml": s.whenFIPS(fipsRequired) + `kind: postgres
uri: ` + s.GuardURI() + `
listen: 127.0.0.1:` + port(s.ports.Guard) + `
name: ledger
authority: ` + s.Origin() + `
assertion_file: ` + s.path("tokens", "guard") + `
database_url_file: ` + s.path("config", "guard.url") + `
tables:
  entries: {columns: [memo, cents]}
  accounts: {columns: [name, closed], key: [name]}
`,
		"mind.yaml":      s.mindConfig(),
		modelKey:         s.passwords[modelKey],
		"tidy.yaml":      s.tidy(),
		"guard.url":      s.roleURL("guard", s.resource()),
		"authority.url":  s.roleURL("authority", s.database()),
		"scheduler.url":  s.roleURL("scheduler", s.database()),
		"operator.url":   s.roleURL("operator", s.database()),
		"nats-scheduler": s.passwords["nats-scheduler"],
		hookSecret:       s.passwords[hookSecret],
		"registry.yaml":  s.registry() + s.mindRegistry(),
		requirementFile:  requirement + s.mindRequirement(),
		"task.yaml":      s.task("close-the-day", "bookkeeper", "Close the day", 1),
	}
	for name, ports := range map[string][2]int{"replica-a": {s.ports.ReplicaA, s.ports.AdminA}, "replica-b": {s.ports.ReplicaB, s.ports.AdminB}} {
		files[name+".yaml"] = `issuer: ` + s.Origin() + `
listen: 127.0.0.1:` + port(ports[0]) + `
admin_listen: 127.0.0.1:` + port(ports[1]) + `
instance: ` + name + `
lease: ` + s.lease.String() + `
database_url_file: ` + s.path("config", "authority.url") + `
` + s.keysConfig() + `assertion:
  issuers: [{url: "` + local(s.ports.Workloads) + `"}]
` + s.broken.replica() + `envelope:
  issuer: {url: "` + local(s.ports.People) + `"}
  audience: ` + audience + `
  operators: [{issuer: "` + local(s.ports.People) + `", subject: ` + operator + `}]
  auditors: [{issuer: "` + local(s.ports.People) + `", subject: ` + auditor + `}]
console: {origin: "` + s.Origin() + `", login: {client_id: ` + consoleClient + `}}
directory: {url: "` + local(s.ports.Directory) + `", token_file: ` + s.path("config", directoryToken) + `}
audit: {anchors: [` + s.anchors() + `], witnesses: [{url: "` + local(s.ports.Witness) + `", key: ` + s.witness + `}]}
`
	}
	for name, text := range files {
		if err := os.WriteFile(s.path("config", name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(s.path(tripwireConfig), []byte(s.tripwire()), 0o600)
}

// pods are the workloads: the file of each one's token, and its account and name.
var pods = map[string][3]string{
	"worker-1": {"jobs", "bookkeeper", "bookkeeper-1"}, "worker-2": {"jobs", "bookkeeper", "bookkeeper-2"},
	"probe":    {"jobs", "probe", "probe-1"}, // for whoever writes a worker
	"tripwire": {"jobs", "tripwire", "tripwire-1"}, "tripwire-2": {"jobs", "tripwire", "tripwire-2"}, "stranger": {"jobs", "stranger", "stranger-1"},
	"assistant-1": {"jobs", "assistant", "assistant-1"}, "mind": {"guards", "mind", "mind-1"},
	"guard": {"guards", "ledger", "ledger-1"}, "guard-2": {"guards", "ledger", "ledger-2"},
}

func (s *Stack) pod(token string) dev.Account {
	p := pods[token]
	return dev.Account{Namespace: p[0], Name: p[1], Pod: p[2], File: s.path("tokens", token)}
}

func (s *Stack) accounts() (lines string) {
	for token := range pods {
		p := s.pod(token)
		lines += fmt.Sprintf("  - {namespace: %s, name: %s, pod: %s, file: %s}\n", p.Namespace, p.Name, p.Pod, p.File)
	}
	return lines
}

func port(n int) string { return fmt.Sprint(n) }

// registry is what the operator applies before anything can be consented to.
func (s *Stack) registry() string {
	return strings.NewReplacer("WORKLOADS", local(s.ports.Workloads), "GUARD", s.GuardURI()).Replace(`kind: AttestationProfile
name: bookkeeper
issuer: WORKLOADS
subject: system:serviceaccount:jobs:bookkeeper
claims: {/kubernetes.io/namespace: jobs}
binding: first_key
max_lifetime_s: 3600
---
kind: AttestationProfile
name: probe
issuer: WORKLOADS
subject: system:serviceaccount:jobs:probe
binding: first_key
max_lifetime_s: 3600
---
kind: AttestationProfile
name: ledger-guard
issuer: WORKLOADS
subject: system:serviceaccount:guards:ledger
binding: first_key
max_lifetime_s: 3600
---
kind: Client
name: books
title: The bookkeeping product
---
kind: Guard
name: ledger
title: The ledger of entries
catalogue: postgres
uri: GUARD
profile: ledger-guard
provable: true
max_call_ms: 60000
---
kind: WorkloadRole
name: bookkeeper
client: books
revision: 1
profiles: [bookkeeper]
actions: [{guard: ledger, action: row.append}, {guard: ledger, action: row.delete}]
limits: {max_runtime_s: 3600, max_effects: 10}
---
kind: WorkloadRole
name: probe
client: books
revision: 1
profiles: [probe]
actions: [{guard: ledger, action: row.append}, {guard: ledger, action: row.delete}]
limits: {max_runtime_s: 3600, max_effects: 10}
---
kind: Policy
name: default
revision: 1
dial_max: high
limits: {max_runtime_s: 3600, max_effects: 10, max_consent_days: 30}
`)
}

const requirementFile = "requirement.yaml"

// requirement adds nothing to what is required in code; it lets a gate that has
// closed open sooner than by default, because somebody is watching.
const requirement = `kind: Requirement
name: readiness
generation: 2
protocols: [1]
closed_ms: 1000
closed_max_ms: 2000
rounds: 3
`

// task is a task that runs every second.
func (s *Stack) task(name, role, title string, revision int) string {
	return strings.NewReplacer("NAME", name, "ROLE", role, "TITLE", title, "PEOPLE", local(s.ports.People), "MEMBER", member, "REVISION", fmt.Sprint(revision)).Replace(`kind: Task
name: NAME
client: books
role: ROLE
role_revision: 1
policy: default
policy_revision: 1
revision: REVISION
owner: {issuer: PEOPLE, subject: MEMBER}
title: TITLE
schedule: {every_s: 1, anchor: "2026-01-01T00:00:00Z", zone: Europe/Berlin}
dial: low
grants:
  - {guard: ledger, action: row.append, resource: "table:entries"}
limits: {runtime_s: 120, effects: 5}
consent: {days: 7}
`)
}

// Register applies the registry and the requirement as the operator.
func (s *Stack) Register(ctx context.Context) error {
	if err := s.apply(ctx, "registry.yaml"); err != nil {
		return err
	}
	return s.apply(ctx, requirementFile)
}

func (s *Stack) apply(ctx context.Context, file string) error {
	_, err := s.as(ctx, "operator", "admin", "apply", "-f", s.path("config", file))
	return err
}

// as runs a command as somebody who has an envelope.
func (s *Stack) as(ctx context.Context, who string, args ...string) (string, error) {
	return s.run(ctx, append(args, "--authority", s.Origin(), "--envelope-file", s.path("people", who), "--key-file", s.path("people", who+".key"))...)
}

// Offer is the open offer of the newest task, as its owner sees it.
func (s *Stack) Offer(ctx context.Context) (o api.Offer, err error) {
	text, err := s.as(ctx, "member", "offer", "list", "--json")
	if err != nil {
		return o, err
	}
	var page api.Page[api.Offer]
	if err := json.Unmarshal([]byte(text), &page); err != nil {
		return o, err
	}
	for _, o := range page.Items {
		if o.State == "open" {
			return o, nil
		}
	}
	return o, fmt.Errorf("there is no open offer")
}

// Consent applies a task and gives its owner's consent. It returns the task's reference.
func (s *Stack) Consent(ctx context.Context, file string) (string, error) {
	if err := s.apply(ctx, file); err != nil {
		return "", err
	}
	o, err := s.Offer(ctx)
	if err != nil {
		return "", err
	}
	_, err = s.as(ctx, "member", "offer", "accept", o.Offer, "--digest", o.Digest)
	return o.Task, err
}

func (s *Stack) decision(ctx context.Context) (d api.Decision, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Origin()+api.PathReadiness, nil)
	if err != nil {
		return d, err
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return d, err
	}
	defer a.Body.Close() //nolint:errcheck // read to its end below
	return d, json.NewDecoder(http.MaxBytesReader(nil, a.Body, 1<<16)).Decode(&d)
}
