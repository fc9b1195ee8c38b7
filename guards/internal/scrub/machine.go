package scrub

// thread is a pattern that was read up to a position.
type thread struct {
	start int64 // offset of its first byte
	next  int32 // position that comes next
	gaps  uint8 // in a row
}

const (
	maxGaps  = 4  // in a row: a line break and what goes with it
	maxDepth = 3  // of escapes in escapes
	maxUnits = 16 // characters that end with one byte
	maxOpen  = 32 // escapes that are being read
)

// slot is what had been read when the byte at one offset was taken.
type slot struct {
	at      int64
	threads []thread
	escapes []escape
}

func (s *slot) empty() bool { return len(s.threads) == 0 && len(s.escapes) == 0 }

// unit is one character of the text: a byte of the stream or a finished escape.
type unit struct {
	start int64
	text  [4]byte
	size  int
	depth uint8 // of escapes that it is spelled with
	by    byte  // the last of them: its opener, or 0
}

// cut is a range of offsets that holds a secret.
type cut struct {
	from, to int64
	told     bool // its marker was written
}

// machine reads one stream. All interpretations of the text are followed at once; each offset remembers those that
// end with it, so that a spelled character of several bytes goes on from where it began.
type machine struct {
	set    *Set
	slots  [window]slot
	nobody slot
	at     int64   // offset of the next byte
	base   int64   // offset of raw[0]
	raw    []byte  // what was taken and not given out
	cuts   []cut   // in raw, in order, without overlap
	stamps []int64 // by position: when it was kept last
	places []int32 // by position: where in the present slot it is, if its stamp is now
	units  []unit  // that end with the present byte
	found  bool
}

// machine is a machine at the beginning of a stream. Offsets go on from the stream before, so that nothing of that one is
// ever taken for the present.
func (s *Set) machine() *machine {
	m, ok := s.machines.Get().(*machine)
	if !ok {
		m = newMachine(s)
	}
	m.at += window + 1
	m.base, m.raw, m.cuts, m.found = m.at, m.raw[:0], m.cuts[:0], false
	return m
}

// release gives the machine back to its set, and returns none.
func (m *machine) release() *machine {
	clear(m.raw)
	m.set.machines.Put(m)
	return nil
}

func newMachine(s *Set) *machine {
	m := &machine{set: s, stamps: make([]int64, len(s.last)+1), places: make([]int32, len(s.last)+1)}
	for i := range m.slots {
		m.slots[i].at = -1
	}
	return m
}

// take reads a piece of the stream.
func (m *machine) take(piece []byte) {
	m.raw = append(m.raw, piece...)
	for i := 0; i < len(piece); i++ {
		if m.before(m.at).empty() { // nothing can be under way
			skipped := i
			i += m.set.idle(piece[i:])
			m.at += int64(i - skipped)
			if i == len(piece) {
				return
			}
		}
		m.step(piece[i])
		m.at++
	}
}

// idle is how many bytes of text nothing can begin with.
func (s *Set) idle(text []byte) int {
	for i, b := range text {
		if next := &s.follows[b]; *next != (class{}) && (i+1 == len(text) || next.has(text[i+1])) {
			return i
		}
	}
	return len(text)
}

// before is what was read up to an offset.
func (m *machine) before(offset int64) *slot {
	s := &m.slots[uint64(offset-1)%window]
	if offset > 0 && s.at == offset-1 {
		return s
	}
	return &m.nobody
}

func (m *machine) step(b byte) {
	now := &m.slots[uint64(m.at)%window]
	now.at, now.threads, now.escapes = m.at, now.threads[:0], now.escapes[:0]
	m.units = append(m.units[:0], unit{start: m.at, text: [4]byte{b}, size: 1})
	for i := 0; i < len(m.units); i++ {
		u := m.shallowest(i)
		from := m.before(u.start)
		m.advance(now, from, u)
		if u.size == 1 {
			m.spell(now, from, u)
		}
	}
}

// shallowest moves the unit with the fewest escapes in escapes to i: what it makes is deeper.
func (m *machine) shallowest(i int) unit {
	for j := i + 1; j < len(m.units); j++ {
		if m.units[j].depth < m.units[i].depth {
			m.units[i], m.units[j] = m.units[j], m.units[i]
		}
	}
	return m.units[i]
}

// advance reads a unit as the next character of patterns.
func (m *machine) advance(now, from *slot, u unit) {
	for _, t := range from.threads {
		m.follow(now, t, u.text[:u.size])
	}
	for _, first := range m.set.begins[u.text[0]] {
		m.follow(now, thread{start: u.start, next: first}, u.text[:u.size])
	}
}

func (m *machine) follow(now *slot, t thread, text []byte) {
	for i, b := range text {
		switch {
		case has(m.set.takes[b], t.next):
			t.gaps = 0
			if m.set.last[t.next] {
				if i == len(text)-1 {
					m.cut(t.start)
				}
				return
			}
			t.next++
		case t.gaps < maxGaps && has(m.set.gaps[b], t.next):
			t.gaps++
		default:
			return
		}
	}
	m.keep(now, t)
}

// keep remembers a thread, and of two at the same position the one that began earlier.
func (m *machine) keep(now *slot, t thread) {
	if m.stamps[t.next] == m.at+1 {
		known := &now.threads[m.places[t.next]]
		known.start, known.gaps = min(known.start, t.start), min(known.gaps, t.gaps)
		return
	}
	m.stamps[t.next], m.places[t.next] = m.at+1, int32(len(now.threads))
	now.threads = append(now.threads, t)
}

// spell reads a unit as the next byte of escapes. One that is finished is a unit of its own.
func (m *machine) spell(now, from *slot, u unit) {
	for _, e := range from.escapes {
		if e.kind == '\\' && u.depth != e.depth && (u.by == '\\' || u.by == 0 && u.text[0] == '\\') {
			continue // whoever escapes backslashes escapes all of them
		}
		e.depth = max(e.depth, u.depth)
		switch e.take(u.text[0]) {
		case alive:
			m.open(now, e)
		case finished:
			m.finish(e)
		}
	}
	if e, ok := begun(u); ok {
		m.open(now, e)
	}
}

// open and finish keep of two that read the same the one with fewer escapes in escapes.
func (m *machine) open(now *slot, e escape) {
	if m.at-e.start >= window-1 || e.depth >= maxDepth {
		return
	}
	for i := range now.escapes {
		if k := &now.escapes[i]; k.start == e.start && k.kind == e.kind && k.count == e.count && k.value == e.value && k.name == e.name {
			k.depth = min(k.depth, e.depth)
			return
		}
	}
	if len(now.escapes) < maxOpen {
		now.escapes = append(now.escapes, e)
	}
}

func (m *machine) finish(e escape) {
	u := unit{start: e.start, depth: e.depth + 1, by: e.opener()}
	u.size = len(e.bytes(u.text[:0]))
	for i := range m.units {
		if k := &m.units[i]; k.start == u.start && k.text == u.text && k.size == u.size && k.by == u.by {
			k.depth = min(k.depth, u.depth)
			return
		}
	}
	if len(m.units) < maxUnits {
		m.units = append(m.units, u)
	}
}

// cut marks everything from start up to the present byte.
func (m *machine) cut(start int64) {
	m.found = true
	c := cut{from: start, to: m.at + 1}
	for len(m.cuts) > 0 {
		last := m.cuts[len(m.cuts)-1]
		if last.to <= c.from {
			break
		}
		c.from, c.told = min(c.from, last.from), c.told || last.told
		m.cuts = m.cuts[:len(m.cuts)-1]
	}
	m.cuts = append(m.cuts, c)
}

// settled is the offset up to which nothing can change any more.
func (m *machine) settled() int64 {
	if m.before(m.at).empty() {
		return m.at
	}
	least := m.at - window
	for i := range m.slots {
		if s := &m.slots[i]; s.at >= m.at-window {
			for _, t := range s.threads {
				least = min(least, t.start)
			}
		}
	}
	return max(least, m.base) // what was given out had come to nothing
}

// give appends what stands before an offset, without the secrets, and forgets it.
func (m *machine) give(out []byte, before int64) []byte {
	at := m.base
	for len(m.cuts) > 0 && m.cuts[0].from < before {
		c := &m.cuts[0]
		if c.from > at {
			out = append(out, m.raw[at-m.base:c.from-m.base]...)
		}
		if !c.told {
			out, c.told = append(out, Marker...), true
		}
		at = min(c.to, before)
		if c.to > before {
			c.from = before
			break
		}
		m.cuts = m.cuts[:copy(m.cuts, m.cuts[1:])]
	}
	if at < before {
		out = append(out, m.raw[at-m.base:before-m.base]...)
	}
	m.raw = m.raw[:copy(m.raw, m.raw[before-m.base:])]
	m.base = before
	return out
}
