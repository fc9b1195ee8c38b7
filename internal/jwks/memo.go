package jwks

import (
	"sync"
	"time"
)

const maxRemembered = 1024

// memo remembers verified tokens, so that one presented again costs a hash and
// not a signature. It decides nothing: times, audience and key are held against
// the token at each use.
type memo struct {
	mu sync.Mutex
	m  map[[32]byte]entry // by SHA-256 of the compact form
}

type entry struct {
	parsed parsed
	key    key
}

func newMemo() memo { return memo{m: map[[32]byte]entry{}} }

func (m *memo) get(name [32]byte) (entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.m[name]
	return e, ok
}

// put makes room by dropping what has expired, and otherwise anything: a
// dropped token is only verified again.
func (m *memo) put(name [32]byte, e entry, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.m) >= maxRemembered {
		m.makeRoom(now)
	}
	m.m[name] = e
}

func (m *memo) makeRoom(now time.Time) {
	for n, e := range m.m {
		if !now.Before(e.parsed.Expires) {
			delete(m.m, n)
		}
	}
	for n := range m.m {
		if len(m.m) < maxRemembered {
			return
		}
		delete(m.m, n)
	}
}
