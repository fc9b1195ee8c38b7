package history

import (
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"

	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// at is an operation from one moment to another.
func at(call, end int64, in input, out output) porcupine.Operation {
	return porcupine.Operation{Input: in, Call: call, Output: out, Return: end}
}

func done(g gate, stamps ...stamp) output {
	return output{outcome: pg.Committed, ok: true, gate: g, stamps: stamps}
}

func open(epoch int64) gate { return gate{Open: true, Epoch: epoch, Incarnation: 1} }
func shut(epoch int64) gate { return gate{Epoch: epoch, Incarnation: 1} }

func held(epoch int64) gate { return gate{Held: true, Epoch: epoch, Incarnation: 1} }

var (
	denied  = output{outcome: pg.Committed}
	unknown = output{}

	admit  = input{kind: admission, lane: 0, stamp: "a"}
	second = input{kind: admission, lane: 0, stamp: "b"}
	other  = input{kind: admission, lane: 1, stamp: "c"}
	manual = input{kind: hold, lane: everybody}
	freed  = input{kind: release, lane: everybody}
	bad    = input{kind: report, lane: everybody}
	judged = input{kind: evaluation, lane: everybody}
	anew   = input{kind: restoring, lane: everybody}
	asked  = input{kind: reading, lane: everybody}
	look   = input{kind: looking, lane: everybody}
)

// Histories that may be, from an open gate in epoch 2 with two lanes.
func TestHistoriesThatMayBe(t *testing.T) {
	t.Parallel()
	for name, h := range map[string][]porcupine.Operation{
		"nothing":                          {},
		"an admission while open":          {at(1, 2, admit, done(open(2))), at(3, 4, look, done(open(2), "a", ""))},
		"a refusal while open":             {at(1, 2, admit, denied)},
		"a refusal while closed":           {at(1, 2, bad, done(gate{})), at(3, 4, admit, denied)},
		"an admission that raced a close":  {at(1, 9, admit, done(open(2))), at(2, 3, bad, done(gate{}))},
		"and the other way round":          {at(2, 3, admit, done(open(2))), at(1, 9, bad, done(gate{}))},
		"a close of what is closed":        {at(1, 2, bad, done(gate{})), at(3, 4, manual, done(shut(3))), at(5, 6, look, done(held(3), "", ""))},
		"open again, an epoch later":       {at(1, 2, bad, done(gate{})), at(3, 4, judged, done(shut(3))), at(5, 6, judged, done(open(4))), at(7, 8, admit, done(open(4)))},
		"a hold and its end":               {at(1, 2, manual, done(shut(3))), at(3, 4, freed, done(held(0))), at(5, 6, judged, done(open(4)))},
		"a decision that has run out":      {at(1, 2, asked, done(shut(2))), at(3, 4, judged, done(shut(3)))},
		"an unknown close that happened":   {at(1, 2, bad, unknown), at(3, 4, look, done(shut(3), "", ""))},
		"an unknown close that did not":    {at(1, 2, bad, unknown), at(3, 4, admit, done(open(2)))},
		"an unknown close, later":          {at(1, 2, bad, unknown), at(3, 4, admit, done(open(2))), at(5, 6, look, done(shut(3), "a", ""))},
		"an unknown admission, seen":       {at(1, 2, admit, unknown), at(3, 4, look, done(open(2), "a", ""))},
		"an unknown admission, seen later": {at(1, 2, admit, unknown), at(3, 4, look, done(open(2), "", "")), at(5, 6, look, done(open(2), "a", ""))},
		"an unknown evaluation":            {at(1, 2, judged, unknown), at(3, 4, look, done(shut(3), "", "")), at(5, 6, judged, unknown), at(7, 8, admit, done(open(4)))},
		"another incarnation":              {at(1, 2, anew, done(gate{Epoch: 4, Incarnation: 2})), at(3, 4, judged, done(gate{Open: true, Epoch: 5, Incarnation: 2}))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, porcupine.Ok, check(h, open(2), 2))
			assert.Empty(t, stuck(h, open(2), 2))
		})
	}
}

// Histories that must not be. Each is refused: the check can fail.
func TestHistoriesThatMustNotBe(t *testing.T) {
	t.Parallel()
	for name, h := range map[string][]porcupine.Operation{
		"an admission after a close":                          {at(1, 2, bad, done(gate{})), at(3, 4, admit, done(open(2)))},
		"an admission after a hold":                           {at(1, 2, manual, done(shut(3))), at(3, 4, other, done(open(2)))},
		"an admission of the epoch before":                    {at(1, 2, bad, done(gate{})), at(3, 4, judged, done(open(4))), at(5, 6, admit, done(open(2)))},
		"an admission of the epoch to come":                   {at(1, 2, admit, done(open(4))), at(3, 4, bad, done(gate{})), at(5, 6, judged, done(open(4)))},
		"an admission of another incarnation":                 {at(1, 2, admit, done(gate{Epoch: 2, Incarnation: 2}))},
		"called before a close, committed after it":           {at(1, 9, admit, done(open(2))), at(2, 3, bad, done(gate{})), at(4, 5, look, done(shut(3), "", ""))},
		"unknown, and committed after a close":                {at(1, 2, admit, unknown), at(3, 4, bad, done(gate{})), at(5, 6, look, done(shut(3), "", "")), at(7, 8, look, done(shut(3), "a", ""))},
		"an admission that was lost":                          {at(1, 2, admit, done(open(2))), at(3, 4, look, done(open(2), "", ""))},
		"an admission that came back":                         {at(1, 2, admit, done(open(2))), at(3, 4, second, done(open(2))), at(5, 6, look, done(open(2), "a", ""))},
		"an admission that was refused and happened":          {at(1, 2, admit, denied), at(3, 4, look, done(open(2), "a", ""))},
		"a close that was lost":                               {at(1, 2, bad, done(gate{})), at(3, 4, look, done(open(2), "", ""))},
		"a close without an epoch":                            {at(1, 2, bad, done(gate{})), at(3, 4, look, done(shut(2), "", ""))},
		"a hold that answers an old epoch":                    {at(1, 2, manual, done(shut(2)))},
		"opened by a release":                                 {at(1, 2, manual, done(shut(3))), at(3, 4, freed, done(held(0))), at(5, 6, look, done(open(4), "", ""))},
		"opened while held":                                   {at(1, 2, manual, done(shut(3))), at(3, 4, judged, done(open(4)))},
		"a release of nothing":                                {at(1, 2, freed, done(held(0)))},
		"an epoch that falls":                                 {at(1, 2, asked, done(open(2))), at(3, 4, asked, done(open(1)))},
		"two epochs at once":                                  {at(1, 2, judged, done(shut(4)))},
		"open in another incarnation":                         {at(1, 2, anew, done(gate{Open: true, Epoch: 4, Incarnation: 2}))},
		"an old decision published":                           {at(1, 2, bad, done(gate{})), at(3, 4, asked, done(open(2)))},
		"of the epoch before, though nobody knows who closed": {at(1, 2, bad, unknown), at(3, 4, judged, unknown), at(5, 6, asked, done(open(4))), at(7, 8, other, done(open(2)))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, porcupine.Illegal, check(h, open(2), 2))
			assert.NotEmpty(t, stuck(h, open(2), 2))
		})
	}
}
