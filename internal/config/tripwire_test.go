package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const goodTripwire = `authority: https://night.example
replicas: ["http://10.0.0.11:8080"]
operator: {token_file: /a/o, key_file: /a/o.key}
member: {token_file: /a/m, key_file: /a/m.key}
workload: {token_file: /a/w, key_file: /a/w.key}
guard:
  name: ledger
  uri: https://ledger.example/ledger
  granted: {action: row.append, resource: "table:audits", parameters: '{"table":"audits"}'}
  denied: {action: row.delete, resource: "table:audits", parameters: '{"table":"audits"}'}
hosts: [{host: 10.0.0.11, ports: [8080]}]
logs: [/var/log/nightwarrant]
fips: required
`

func TestAGoodTripwire(t *testing.T) {
	t.Parallel()
	var f Tripwire
	require.NoError(t, Parse("f", []byte(goodTripwire), &f, noEnv))
	assert.Equal(t, []TripwireHost{{"10.0.0.11", 1, 65535, []int64{8080}}}, f.Hosts, "all its ports")
	assert.Equal(t, Holder{"/a/w", "/a/w.key"}, f.Workload)
	assert.Equal(t, Holder{}, f.Second, "nobody")
	assert.Equal(t, Tried{"row.delete", "table:audits", `{"table":"audits"}`}, f.Guard.Denied)
}

func TestAWrongTripwire(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		"https://night.example\n → http://night.example\n":      "f line 1: authority must be https, or http on a loopback address",
		"http://10.0.0.11:8080 → http://10.0.0.11:8080/":        "f line 2: replicas[0] must be an origin",
		"http://10.0.0.11:8080 → http://u:p@10.0.0.11:8080":     "f line 2: replicas[0] must be an origin",
		"http://10.0.0.11:8080 → ftp://10.0.0.11":               "f line 2: replicas[0] must be an origin",
		", key_file: /a/o.key → ":                               "f line 3: operator.key_file is missing",
		"token_file: /a/m,  → ":                                 "f line 4: member.token_file is missing",
		"fips: required → second: {token_file: /a}":             "f line 13: second.key_file is missing",
		"fips: required → fips: off":                            "f line 13: fips must be required, or not be there",
		"  name: ledger\n → ":                                   "f line 6: guard.name is missing",
		`'{"table":"audits"}'}` + "\n  denied → '{'}\n  denied": "f line 9: guard.granted.parameters must be JSON",
		"action: row.delete,  → ":                               "f line 10: guard.denied.action is missing",
		"ports: [8080] → from: 9000, to: 80":                    "f line 11: hosts[0].from and to must be ports, the lower one first",
		"ports: [8080] → to: 65536":                             "f line 11: hosts[0].from and to must be ports",
		"ports: [8080] → from: 9000, ports: [8080]":             "f line 11: hosts[0].ports must lie between",
		"host: 10.0.0.11,  → ":                                  "f line 11: hosts[0].host is missing",
		"/var/log/nightwarrant → logs":                          "f line 12: logs[0] must be an absolute path",
		"fips: required → open_gate: true":                      "f line 13: open_gate is not a known key",
	} {
		old, with, _ := strings.Cut(change, " → ")
		require.Contains(t, goodTripwire, old)
		require.ErrorContains(t, Parse("f", []byte(strings.Replace(goodTripwire, old, with, 1)), &Tripwire{}, noEnv), want, change)
	}
}
