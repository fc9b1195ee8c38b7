package history

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

var (
	histories  = flag.Int("histories", 1, "how many histories are recorded and checked")
	operations = flag.Int("operations", fullLength, "how long each of them is")
)

const fullLength = 21000 // operations

// Everything that anybody saw of the gate fits one register (A15): what was admitted was admitted while it was open, at the epoch that the
// answer says, and after a close nothing was, whoever died on the way.
func TestHistory(t *testing.T) {
	for n := range *histories {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := cast{workers: 12, operations: *operations, crashEvery: 200, restoreEvery: max(1, of(*operations, 40))}
			r := newRecording(t, c)
			r.play(c)
			if result := check(r.record.all, r.from, c.workers); result != porcupine.Ok {
				t.Fatal(result, strings.Join(stuck(r.record.all, r.from, c.workers), "\n"))
			}
			r.substantial(c.operations)
			sound(t, r.World)
		})
	}
}

// of is the share of something that a history of full length has.
func of(length, full int) int { return full * length / fullLength }

// substantial says that the history was about something, for its length.
func (r *recording) substantial(length int) {
	epochs, incarnations := map[int64]int{}, map[int64]int{}
	var unknownAdmissions, unknownGate int
	for _, o := range r.record.all {
		in, out := o.Input.(input), o.Output.(output)
		switch {
		case in.kind == admission && out.ok:
			epochs[out.gate.Epoch]++
			incarnations[out.gate.Incarnation]++
		case in.kind == admission && out.outcome == pg.Ambiguous:
			unknownAdmissions++
		case out.outcome == pg.Ambiguous:
			unknownGate++
		}
	}
	r.t.Log(len(r.record.all), "operations;", len(epochs), "epochs;", len(incarnations), "incarnations; unknown:", unknownAdmissions, "and", unknownGate, "of the gate;", r.counts)
	assert.Greater(r.t, len(epochs), of(length, 50))
	assert.Greater(r.t, len(incarnations), 1)
	assert.Greater(r.t, unknownAdmissions, of(length, 10))
	assert.Greater(r.t, r.seen.Load(), int64(of(length, 5000)))
	for _, verb := range []string{"claim", "renew", "mint", "admit"} {
		assert.Greater(r.t, r.counts[verb+" ok"], of(length, 200), verb)
		assert.Greater(r.t, r.counts[verb+" admission_closed"], of(length, 10), verb)
	}
}

const (
	lock   = "PERFORM pg_advisory_xact_lock_shared(nw.gate_key());"
	isOpen = "FROM nw.readiness_decision WHERE state = 'open'"
)

// Of three histories of a build with a bug one is refused, mostly the first: on a slow machine few operations fall into the moment that a bug opens.
func TestHistoryOfAPlantedBug(t *testing.T) {
	for name, plant := range map[string]func(*testing.T, *fixture.World){
		"no lock": func(t *testing.T, w *fixture.World) { w.Plant(t, "enter", lock, "") },
		"lock and read in one statement": func(t *testing.T, w *fixture.World) {
			w.Plant(t, "enter", lock, "")
			w.Plant(t, "admitting", "SELECT * INTO d "+isOpen,
				"SELECT x.* INTO d FROM (SELECT pg_advisory_xact_lock_shared(nw.gate_key())) locked, nw.readiness_decision x WHERE state = 'open'")
		},
		"a decision that is remembered": func(t *testing.T, w *fixture.World) {
			w.Plant(t, "admitting", isOpen, "FROM nw.readiness_decision WHERE (state = 'open' OR since > clock_timestamp() - interval '50 milliseconds')")
			w.Plant(t, "admitting", "AND valid_until > clock_timestamp()", "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := cast{workers: 12, operations: 3000}
			found := porcupine.Ok
			for n := 0; n < 3 && found != porcupine.Illegal; n++ {
				r := newRecording(t, c)
				plant(t, r.World)
				r.play(c)
				found = check(r.record.all, r.from, c.workers)
			}
			assert.Equal(t, porcupine.Illegal, found)
		})
	}
}
