// Package rotation changes the keys of a cluster of three replicas while
// workers, a guard and whoever reads the published keys go on. Each check is
// also held against a planted bug.
package rotation

import (
	"testing"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }
