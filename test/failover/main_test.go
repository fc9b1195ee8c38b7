// Package failover takes the database away from under a cluster in the middle
// of its work and puts another one in its place: a promoted standby, an older
// copy, a restored dump. What must hold then is P24; each check of it is also
// held against a planted bug.
package failover

import (
	"testing"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }
