package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// Under load, nothing is admitted after a revocation has been answered, nor after its commit by the database's
// clock; what the authority says of how long that took is what the caller has seen.
func TestNothingIsAdmittedAfterARevocation(t *testing.T) {
	t.Parallel()
	const rounds, effects = 4, 8
	h := authoritytest.New(t)
	g := h.Guard()
	var longest time.Duration
	admitted, refused := 0, 0
	for round := range rounds {
		task := h.Consent(strings.Replace(h.Task(fmt.Sprintf("task-%d", round)), "effects: 5", "effects: 10", 1))
		w := h.Claim(h.Plan(task))
		requests := make([]*http.Request, effects)
		for i := range requests {
			name := fmt.Sprintf("entry-%d", i)
			requests[i] = h.Bearing(g.Key, g.Token, "POST", api.PathAdmit, g.Ask(w, w.Minted(name, name), name, authoritytest.NewAttempt()))
		}
		var group sync.WaitGroup
		begun, good := make([]time.Time, effects), make([]bool, effects)
		start, halfway := make(chan struct{}), make(chan struct{}, effects)
		for i, r := range requests {
			group.Go(func() {
				<-start
				begun[i] = time.Now()
				good[i] = h.Send(r).Status == http.StatusOK
				halfway <- struct{}{}
			})
		}
		p := h.Person(authoritytest.MemberName)
		revoke := p.Request("POST", api.PathTasks+"/"+task+"/revoke", "", nil)
		close(start)
		<-halfway
		click := time.Now()
		require.Equal(t, http.StatusOK, h.Send(revoke).Status)
		answered := time.Now()
		group.Wait()
		longest = max(longest, answered.Sub(click))
		for i := range effects {
			assert.False(t, good[i] && begun[i].After(answered), "admitted after the answer")
			if good[i] {
				admitted++
			} else {
				refused++
			}
		}
		assert.NotEqual(t, http.StatusOK, w.Renew().Status, "its capability is dead")
	}
	assert.Zero(t, h.Count(`SELECT count(*) FROM nw.audit a JOIN nw.effects e ON e.task_id = a.task_id AND e.admitted_at > a.at WHERE a.verb = 'revoke'`))
	t.Logf("%d admitted, %d refused; from click to commit at most %s", admitted, refused, longest)

	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(h.Authority.Collectors()...)
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	assert.Equal(t, "nightwarrant_authority_revocation_seconds", families[0].GetName())
	require.Len(t, families[0].GetMetric(), 1)
	m := families[0].GetMetric()[0]
	assert.Equal(t, "revoke", m.GetLabel()[0].GetValue())
	assert.EqualValues(t, rounds, m.GetHistogram().GetSampleCount())
	assert.LessOrEqual(t, m.GetHistogram().GetSampleSum(), longest.Seconds()*rounds)
}
