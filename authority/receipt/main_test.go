package receipt_test

import (
	"testing"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }
