package closing

import (
	"fmt"
	"strings"

	"github.com/nightwarrant/nightwarrant/internal/demo"
)

// registry adds a guard that this process serves, and a spare profile that can be taken away.
func registry(workloads, meter string, spare int) string {
	return strings.NewReplacer("WORKLOADS", workloads, "METER", meter).Replace(`kind: AttestationProfile
name: meter-guard
issuer: WORKLOADS
subject: system:serviceaccount:guards:meter
binding: first_key
max_lifetime_s: 3600
---
` + profile(workloads, spare) + `---
kind: Guard
name: meter
title: A ledger that notes when
catalogue: postgres
uri: METER
profile: meter-guard
provable: true
max_call_ms: 60000
---
kind: WorkloadRole
name: bookkeeper
client: books
revision: 2
profiles: [bookkeeper]
actions: [{guard: meter, action: row.append}]
limits: {max_runtime_s: 3600, max_effects: 10}
---
kind: WorkloadRole
name: holder
client: books
revision: 1
profiles: [probe]
actions: [{guard: meter, action: row.append}]
limits: {max_runtime_s: 86400, max_effects: 10}
---
kind: Policy
name: closing
revision: 1
dial_max: high
limits: {max_runtime_s: 86400, max_effects: 10, max_consent_days: 30}
`)
}

// profile is a spare one, which nobody uses.
func profile(workloads string, number int) string {
	return fmt.Sprintf("kind: AttestationProfile\nname: spare-%d\nissuer: %s\nsubject: system:serviceaccount:jobs:spare-%d\nbinding: first_key\nmax_lifetime_s: 3600\n", number, workloads, number)
}

// requirement lists what must be, exactly. The closed time is the shortest that
// there is, and does not double: this gate closes all the time.
func requirement(spare int) string {
	return fmt.Sprintf(`kind: Requirement
name: readiness
generation: %d
protocols: [1]
models: [%s]
datasets: [%s]
profiles: [bookkeeper, probe, ledger-guard, meter-guard, spare-%d]
closed_ms: 1000
closed_max_ms: 1000
rounds: 3
`, spare+2, encode(model), encode(dataset), spare)
}

// taskDocuments are tasks that fire every second and bring effects about, and tasks whose one long run is held.
func taskDocuments(people string) string {
	var all []string
	for i := range tasks {
		all = append(all, task(people, fmt.Sprintf("fire-%d", i), "bookkeeper", 2, 1, 120))
	}
	for i := range holders {
		all = append(all, task(people, fmt.Sprintf("hold-%d", i), "holder", 1, 60, 86_400))
	}
	return strings.Join(all, "---\n")
}

func task(people, name, role string, revision, every, runtime int) string {
	return fmt.Sprintf(`kind: Task
name: %s
client: books
role: %s
role_revision: %d
policy: closing
policy_revision: 1
revision: 1
owner: {issuer: "%s", subject: %s}
title: %s
schedule: {every_s: %d, anchor: "2026-01-01T00:00:00Z", zone: Europe/Berlin}
dial: low
grants:
  - {guard: meter, action: row.append, resource: "table:entries"}
limits: {runtime_s: %d, effects: 5}
consent: {days: 7}
`, name, role, revision, people, demo.Member, name, every, runtime)
}
