package dev

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/webhook"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
)

// A receiver takes each signed message once, over a restart too, and probes not at all.
func TestReceiver(t *testing.T) {
	t.Parallel()
	secret, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	require.NoError(t, err)
	var told []string
	r := NewReceiver(secret, func(m notify.Message) { told = append(told, m.Type) })
	r.Stop() // before it has begun
	at := freePort(t)
	post := func(id, kind string, secret webhook.Secret) int {
		body, err := json.Marshal(notify.Message{Type: kind})
		require.NoError(t, err)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at+"/any", bytes.NewReader(body))
		require.NoError(t, err)
		secret.Sign(request.Header, id, time.Now(), body)
		answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
		if err != nil {
			return 0
		}
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}
	other, err := webhook.ParseSecret("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context(), at))
	assert.Equal(t, 204, post("1", notify.TypeProbe, secret))
	assert.Equal(t, 400, post("2", notify.TypeAsked, other))
	assert.Equal(t, 204, post("2", notify.TypeAsked, secret))
	assert.Error(t, NewReceiver(secret, nil).Start(t.Context(), at), "the address is taken")
	r.Stop()
	assert.Zero(t, post("3", notify.TypeAsked, secret))
	require.NoError(t, r.Start(t.Context(), at))
	t.Cleanup(r.Stop)
	assert.Equal(t, 204, post("2", notify.TypeAsked, secret))
	assert.Equal(t, 204, post("3", notify.TypeRunEnded, secret))
	assert.Equal(t, []string{notify.TypeAsked, notify.TypeRunEnded}, told)
	assert.Len(t, r.Heard(), 2)
}
