package jwks

import "sync"

const maxRemembered = 1024

// memo remembers verified tokens, so that one presented again costs a hash and
// not a signature. It decides nothing: times, audience and key are held against
// the token at each use. It holds two generations, so that making room costs
// nothing: the older one goes when the younger is full, and a dropped token is
// only verified again.
type memo struct {
	mu             sync.Mutex
	younger, older map[[32]byte]entry // by SHA-256 of the compact form
}

type entry struct {
	parsed parsed
	key    key
}

func newMemo() memo { return memo{younger: map[[32]byte]entry{}} }

func (m *memo) get(name [32]byte) (entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.younger[name]
	if !ok {
		e, ok = m.older[name]
	}
	return e, ok
}

func (m *memo) put(name [32]byte, e entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.younger) >= maxRemembered/2 {
		m.older, m.younger = m.younger, make(map[[32]byte]entry, maxRemembered/2)
	}
	m.younger[name] = e
}
