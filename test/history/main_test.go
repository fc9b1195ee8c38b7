// Package history records what many clients see of the gate on a real database,
// while it is closed and opened under them and some of them die, and holds the
// recording against a model of one register (design.md §3). Beside it races of
// revocation against admission are judged by the order of their commits.
package history

import (
	"testing"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }
