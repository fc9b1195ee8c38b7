package migrations_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// order is that in which rows are locked (P2): the lane holds the fence and the task's epoch.
var order = []string{"lanes", "runs", "effects", "decisions", "ledgers", "outbox"}

var (
	between  = regexp.MustCompile(`(?i);|\bLOOP\b|\bTHEN\b|\bELSE\b`)
	advisory = regexp.MustCompile(`(?i)nw\.(enter|alone|shut|reincarnate)\s*\(`)
	rowLock  = regexp.MustCompile(`(?is)\bFOR\s+(NO\s+KEY\s+)?(UPDATE|SHARE)\b|\bFOR\s+KEY\s+SHARE\b`)
	lockedIn = regexp.MustCompile(`(?is)\bFROM\s+(?:ONLY\s+)?(?:nw\.)?(\w+)`)
	changes  = regexp.MustCompile(`(?is)^\s*(?:WITH\b.*\b)?(?:UPDATE|INSERT\s+INTO|DELETE\s+FROM)\s+(?:ONLY\s+)?(?:nw\.)?(\w+)`)
)

// rowsAlone are the verbs that lock rows in this order and take no advisory lock: besides settling (P16) those about what is over already.
var rowsAlone = map[string]string{
	"record_finding":       "adds a row about an ambiguous effect, which is terminal; a mint that does not see it yet refuses a moment longer",
	"release_reservations": "gives back what lapsed effects of ended runs hold; a mint that does not see it yet refuses a moment longer",
}

// disorder says what is wrong with the order in which a verb locks: a row before the advisory lock, a row that comes before one that is held
// already, rows without an order of their own, and a share of a row, which starves whoever wants it whole.
func disorder(c callable) (wrong []string) {
	_, body, _ := strings.Cut(comment.ReplaceAllString(c.Body, ""), "BEGIN")
	held, entered := -1, slices.Contains(settling, c.Name) || rowsAlone[c.Name] != ""
	for _, s := range between.Split(body, -1) {
		entered = entered || advisory.MatchString(s)
		table := ""
		if m := changes.FindStringSubmatch(s); m != nil {
			table = m[1]
		}
		lock := rowLock.FindStringSubmatch(s)
		if lock != nil {
			if m := lockedIn.FindStringSubmatch(s); m != nil {
				table = m[1]
			}
		}
		at := slices.Index(order, strings.ToLower(table))
		switch {
		case at < 0:
		case !entered:
			wrong = append(wrong, c.Name+": touches "+table+" before the advisory lock")
		case lock == nil:
		case !strings.EqualFold(lock[2], "update"):
			wrong = append(wrong, c.Name+": takes a share of "+table)
		case at < held:
			wrong = append(wrong, fmt.Sprintf("%s: locks %s after %s", c.Name, table, order[held]))
		case regexp.MustCompile(`(?is)=\s*ANY|\bIN\s*\(`).MatchString(s) && !regexp.MustCompile(`(?i)ORDER\s+BY|SKIP\s+LOCKED`).MatchString(s):
			wrong = append(wrong, c.Name+": locks many of "+table+" in no order")
		}
		if lock != nil {
			held = max(held, at)
		}
	}
	return wrong
}

func disorders(t *testing.T, by querier) (wrong []string) {
	t.Helper()
	for _, c := range callables(t, by) {
		wrong = append(wrong, disorder(c)...)
	}
	return wrong
}

func TestLocksAreTakenInOrder(t *testing.T) {
	t.Parallel()
	assert.Empty(t, disorders(t, teststack.Database(t).Pool(t, teststack.Owner)))
}

// The test above can fail: each of these is found.
func TestALockOutOfOrderIsFound(t *testing.T) {
	t.Parallel()
	pool := teststack.Database(t).Pool(t, teststack.Superuser)
	const lane, run = "SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT runs.task_id FROM runs WHERE ref = p_run) FOR NO KEY UPDATE;", "SELECT runs.* INTO r FROM runs WHERE ref = p_run FOR NO KEY UPDATE;"
	for name, c := range map[string]struct{ verb, old, with, found string }{
		"a row before the advisory lock":   {"revoke", "PERFORM nw.enter();", "PERFORM FROM lanes FOR NO KEY UPDATE; PERFORM nw.enter();", "revoke: touches lanes before"},
		"a write before the advisory lock": {"settle_run", "PERFORM nw.enter();", "UPDATE runs SET ref = ref WHERE false; PERFORM nw.enter();", "settle_run: touches runs before"},
		"no advisory lock":                 {"reap", "PERFORM nw.enter();", "", "reap: touches lanes before"},
		"a lane after its run":             {"renew", lane, run + " " + lane, "renew: locks lanes after runs"},
		"a run after its effect":           {"settle_effect", "PERFORM FROM runs WHERE", "PERFORM FROM effects WHERE ref = p_effect FOR NO KEY UPDATE; PERFORM FROM runs WHERE", "settle_effect: locks runs after effects"},
		"many in no order":                 {"depart", "ORDER BY task_id FOR NO KEY UPDATE", "FOR NO KEY UPDATE", "depart: locks many of lanes"},
		"a share":                          {"mint", run, strings.Replace(run, "NO KEY UPDATE", "SHARE", 1), "mint: takes a share of runs"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			defer tx.Rollback(ctx) //nolint:errcheck // nothing to keep
			_, err = tx.Exec(ctx, edit(c.verb, c.old, c.with))
			require.NoError(t, err)
			assert.Contains(t, strings.Join(disorders(t, tx), "\n"), c.found)
		})
	}
}
