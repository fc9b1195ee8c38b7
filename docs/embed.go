// Package docs holds the papers against the code, and gives a report the paper that it quotes.
package docs

import _ "embed"

// ThreatModel is docs/threat-model.md of this build.
//
//go:embed threat-model.md
var ThreatModel string
