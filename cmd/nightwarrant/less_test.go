package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

func TestNarrowingIsSpelledOut(t *testing.T) {
	t.Parallel()
	c, err := less{ticked: []int{2}, amounts: map[string]int64{"1": 500}, limits: map[string]int64{"effects": 3, "spend_day": 9}, dial: "read", until: "2026-12-24", silent: "wait"}.choice()
	require.NoError(t, err)
	assert.Equal(t, api.Choice{Ticked: []int{2}, Amounts: []api.Amount{{Grant: 1, Most: 500}}, Limits: api.Limits{Effects: 3, SpendDay: 9}, Dial: "read",
		ExpiresAt: time.Date(2026, 12, 24, 0, 0, 0, 0, time.UTC), WhenMoreIsNeeded: "wait"}, c)
	c, err = less{until: "2026-12-24T18:00:00+01:00"}.choice()
	require.NoError(t, err)
	assert.Equal(t, time.Date(2026, 12, 24, 17, 0, 0, 0, time.UTC), c.ExpiresAt.UTC())
	for says, l := range map[string]less{
		"--limit names a limit that there is not": {limits: map[string]int64{"tokens": 1}},
		"--amount names a grant by its number":    {amounts: map[string]int64{"all": 1}},
		"--until must be a day or an instant":     {until: "soon"},
	} {
		_, err := l.choice()
		assert.ErrorContains(t, err, says)
	}
}

// An authority that shows another document than the digest names is not believed.
func TestWhatWasChosenIsShown(t *testing.T) {
	t.Parallel()
	var o api.Offer
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/offers/bq61p0JRpLA1ZEM7KSRv7w/narrow" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(o)
	}))
	t.Cleanup(server.Close)
	run := func() result {
		return signedIn(t, server.URL, "a.b.c").run(t, "offer", "narrow", "bq61p0JRpLA1ZEM7KSRv7w", "--limit", "effects=2")
	}
	o = api.Offer{Offer: "bq61p0JRpLA1ZEM7KSRv7w", Document: json.RawMessage(`{}`)}
	run().bad(t, exitFailed, "has not answered with what you have chosen")
	o.Chosen = &api.Chosen{Digest: "n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg", Document: json.RawMessage(`{}`)}
	run().bad(t, exitFailed, "not one that this program knows")
}
