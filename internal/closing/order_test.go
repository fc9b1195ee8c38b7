package closing

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Lines as PostgreSQL 15 prints them.

func audit(verb, verdict, more string) string {
	body := hex.EncodeToString([]byte(`{"v" : 1, "verb" : "` + verb + `", "more" : ` + more + `}`))
	return "table nw.audit: INSERT: id[bigint]:7 at[timestamp with time zone]:'2026-03-01 12:00:00.123456+00' verb[nw.verb]:'" + verb +
		"' verdict[nw.verdict]:'" + verdict + "' task_id[bigint]:1 run_id[bigint]:null effect_id[bigint]:null body[bytea]:'\\x" + body + "' digest[bytea]:'\\xab'"
}

func decision(state string, epoch int64) string {
	return fmt.Sprintf("table nw.readiness_decision: UPDATE: singleton[boolean]:true state[text]:'%s' epoch[bigint]:%d sequence[bigint]:9 held[boolean]:false family[nw.family]:null", state, epoch)
}

const seal = "message: transactional: 1 prefix: nightwarrant-closing, sz: 6 content:sealed"

// tx is one transaction's lines.
func tx(lines ...string) []string {
	return append(append([]string{"BEGIN 741"}, lines...), "COMMIT 741")
}

func followed(t *testing.T, transactions ...[]string) *order {
	t.Helper()
	o := &order{}
	for _, lines := range transactions {
		for _, line := range lines {
			require.NoError(t, o.take(line), line)
		}
	}
	return o
}

var (
	opened = tx(decision("open", 2), audit("open", "ok", "null"))
	closes = tx(decision("closed", 3), audit("close", "ok", "null"))
	renew  = tx("table nw.runs: UPDATE: id[bigint]:1 state[text]:'claimed'", audit("renew", "ok", `{"fence" : 1}`))
)

// The counting counts: one admission of each verb after the close is one too many.
func TestWhatIsAdmittedAfterTheCloseIsCounted(t *testing.T) {
	t.Parallel()
	for verb := range admits {
		late := tx(audit(verb, "ok", `{"admission" : 5, "again" : false}`))
		c := followed(t, opened, closes, late).look()
		assert.Equal(t, 1, c.late, verb)
		assert.Equal(t, map[string]int{verb: 1}, c.lateVerb)
		assert.Zero(t, c.last, "it was not admitted before the close")
		assert.Zero(t, followed(t, opened, late, closes).look().late, "%s before the close", verb)
		assert.Zero(t, followed(t, opened, closes, tx(decision("open", 4)), late).look().late, "%s after the opening", verb)
		assert.Equal(t, 1, followed(t, late).look().late, "%s before anything has opened", verb)
	}
}

// The order is that of the commits, not that of the rows' ids and times: a
// transaction that began before the close and committed after it is late.
func TestOnlyTheOrderOfCommitsCounts(t *testing.T) {
	t.Parallel()
	early := strings.Replace(audit("renew", "ok", "{}"), "12:00:00", "11:00:00", 1)
	assert.Equal(t, 1, followed(t, opened, closes, tx(early)).look().late)
	c := followed(t, opened, renew, renew, closes).look()
	assert.Equal(t, counted{admitted: 2, closes: 1}, c)
}

func TestOfATransactionAllLinesCount(t *testing.T) {
	t.Parallel()
	o := followed(t, opened, closes, tx(audit("claim", "ok", "{}"), audit("mint", "ok", "{}")))
	assert.Equal(t, 2, o.look().late)
	assert.Zero(t, o.look().late, "each is counted once")
	o = followed(t, opened, closes)
	for _, line := range []string{"BEGIN 1", audit("claim", "ok", "{}")} {
		require.NoError(t, o.take(line))
	}
	assert.Zero(t, o.look().late, "it has not committed yet")
	require.NoError(t, o.take("COMMIT 1"))
	assert.Equal(t, 1, o.look().late)
}

func TestWhatAdmitsNothingIsNotCounted(t *testing.T) {
	t.Parallel()
	c := followed(t, opened, closes,
		tx(audit("claim", "admission_closed", "null")), tx(audit("settle_effect", "ok", "{}")), tx(audit("report", "ok", "{}")),
		tx(audit("admit", "ok", `{"admission" : 4, "again" : true}`)), tx("table nw.runs: INSERT: verb[text]:'claim' verdict[text]:'ok'")).look()
	assert.Equal(t, counted{closes: 1}, c)
}

// A decision that ran out has no row: the mark of whoever saw it closed, alone, stands for it.
func TestAMarkCloses(t *testing.T) {
	t.Parallel()
	assert.Equal(t, 1, followed(t, opened, renew, tx(seal), renew).look().late)
	c := followed(t, opened, tx(seal), tx(decision("closed", 3)), tx(decision("open", 4)), renew).look()
	assert.Equal(t, counted{admitted: 1, closes: 1}, c)
	c = followed(t, opened, tx(seal), tx(decision("open", 2)), renew).look()
	assert.Equal(t, 1, c.late, "what has run out does not open again")
	assert.Len(t, c.wrong, 1)
	foreign := strings.Replace(seal, markPrefix, "other", 1)
	assert.Zero(t, followed(t, opened, tx(foreign), renew).look().late)
}

func TestEpochsRise(t *testing.T) {
	t.Parallel()
	assert.Empty(t, followed(t, opened, tx(decision("open", 2)), closes, tx(decision("closed", 3)), tx(decision("open", 4))).look().wrong)
	assert.Len(t, followed(t, opened, closes, tx(decision("open", 3))).look().wrong, 1, "an opening has an epoch of its own")
	assert.Len(t, followed(t, opened, closes, tx(decision("open", 2))).look().wrong, 2)
}

// The last effect that was admitted before the last close is known by its number.
func TestTheLastBeforeTheClose(t *testing.T) {
	t.Parallel()
	admit := func(number int) []string {
		return tx(audit("admit", "ok", fmt.Sprintf(`{"admission" : %d, "again" : false}`, number)))
	}
	o := followed(t, opened, admit(5), admit(4), closes, admit(6), tx(decision("open", 4)))
	c := o.look()
	assert.EqualValues(t, 5, c.last)
	assert.Equal(t, 1, c.closes)
	assert.Equal(t, counted{}, o.look())
}

// What cannot be read is not skipped.
func TestLinesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	good := audit("admit", "ok", `{"admission" : 5}`)
	for _, line := range []string{
		strings.Replace(good, "INSERT", "UPDATE", 1), strings.Replace(good, "INSERT", "DELETE", 1), strings.Replace(good, "verb[", "word[", 1),
		strings.Replace(good, "verdict[", "word[", 1), strings.TrimSuffix(good, "'"), good + "x", strings.Replace(good, "]:'\\x7b", "]:'\\x7", 1),
		strings.Replace(good, "id[bigint]:7", "id:7", 1), strings.Replace(good, "id[bigint]:7", "id[bigint]: ", 1), strings.Replace(good, "[bigint]:7", "[bigint", 1),
		strings.Replace(decision("open", 2), "epoch[bigint]:2", "epoch[bigint]:two", 1), decision("ajar", 2), strings.Replace(decision("open", 2), "UPDATE", "DELETE", 1),
		"table nw.readiness_decision: TRUNCATE: (no-flags)", "table nw.audit: INSERT: (no-tuple-data)",
	} {
		o := followed(t, opened, []string{"BEGIN 1"})
		assert.Error(t, o.take(line), line)
	}
	for _, lines := range [][]string{{"COMMIT 1"}, {"BEGIN 1", "BEGIN 2"}, {good}, {decision("open", 2)}, {seal}} {
		o, err := &order{}, error(nil)
		for _, line := range lines {
			if err == nil {
				err = o.take(line)
			}
		}
		assert.Error(t, err, "%v", lines)
	}
}

func TestColumns(t *testing.T) {
	t.Parallel()
	row, err := columns(`a[text]:'it''s ]: [x] here' b[smallint[]]:'{1,2}' c[timestamp with time zone]:'2026-01-01 00:00:00+00' d[bigint]:-5 e[boolean]:true f[text]:null g[text]:'' h[text]:unchanged-toast-datum`)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a": "it's ]: [x] here", "b": "{1,2}", "c": "2026-01-01 00:00:00+00", "d": "-5", "e": "true", "f": "null", "g": "", "h": "unchanged-toast-datum"}, row)
	e, matters, err := parse("table nw.readiness_decision: UPDATE: old-key: singleton[boolean]:false new-tuple: singleton[boolean]:true state[text]:'open' epoch[bigint]:8")
	require.NoError(t, err)
	assert.True(t, matters)
	assert.Equal(t, event{kind: decided, open: true, epoch: 8}, e)
}

func FuzzParse(f *testing.F) {
	for _, line := range []string{"BEGIN 1", "COMMIT 1", seal, audit("admit", "ok", `{"admission" : 5}`), audit("claim", "held", "null"), decision("open", 2), "table nw.audit: INSERT: a[text]:''''"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		e, matters, err := parse(line)
		assert.False(t, matters && err == nil && e.kind == 0, "an event is of some kind")
		assert.False(t, err != nil && !strings.HasPrefix(line, auditTable) && !strings.HasPrefix(line, decisionTable), "other lines are nobody's business")
	})
}

func TestSpread(t *testing.T) {
	t.Parallel()
	assert.Equal(t, spread{}, spreadOf(nil))
	took := []time.Duration{}
	for i := 100; i > 0; i-- {
		took = append(took, time.Duration(i)*time.Millisecond)
	}
	assert.Equal(t, spread{50, 99, 100}, spreadOf(took))
	assert.Equal(t, 100*time.Millisecond, took[0], "the list is the caller's")
	assert.Equal(t, spread{2, 3, 3}, spreadOf([]time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Millisecond}))
	assert.InDelta(t, 1.2, milli(1234*time.Microsecond), 1e-9)
}
