package dpopclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// office is a token endpoint and one call, with a clock that only the test moves.
type office struct {
	mu       sync.Mutex
	now      time.Time
	tokens   int
	refuse   api.Code // of the call, once a token other than `accept` is used
	accept   string
	failing  bool
	calls    []string
	lastForm map[string][]string
}

func (o *office) serve(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.URL.Path == api.PathToken {
		if o.failing {
			problem(w, 503, api.Unavailable, "")
			return
		}
		_ = r.ParseForm()
		o.lastForm = r.PostForm
		o.tokens++
		fmt.Fprintf(w, `{"access_token":"t%d","token_type":"DPoP","expires_in":300}`, o.tokens)
		return
	}
	token := r.Header.Get("Authorization")[len("DPoP "):]
	o.calls = append(o.calls, token)
	if o.refuse != "" && token != o.accept {
		problem(w, o.refuse.Status(), o.refuse, "")
	}
}

func newComponent(t *testing.T, o *office) *Component {
	t.Helper()
	o.now = time.Now()
	client := newClient(t, serve(o.serve))
	client.Now = func() time.Time {
		return o.now
	}
	return &Component{Client: client, Name: "ledger", Assertion: func(context.Context) (string, error) { return "assertion", nil }}
}

func (o *office) call(t *testing.T, c *Component) error {
	t.Helper()
	return c.JSON(t.Context(), http.MethodPost, "/x", nil, nil)
}

func TestSupersededComponentAsksForNothingMore(t *testing.T) {
	t.Parallel()
	o := &office{refuse: api.BootSuperseded}
	c := newComponent(t, o)
	require.True(t, Refused(o.call(t, c), api.BootSuperseded))
	o.now = o.now.Add(time.Hour)
	require.True(t, Refused(o.call(t, c), api.BootSuperseded))
	require.Equal(t, 1, o.tokens, "a new capability would displace the later boot")
	require.Len(t, o.calls, 1)
}

func TestRefusedCapabilityIsRenewedOnce(t *testing.T) {
	t.Parallel()
	o := &office{refuse: api.InvalidToken}
	c := newComponent(t, o)
	require.True(t, Refused(o.call(t, c), api.InvalidToken))
	require.Equal(t, []string{"t1", "t2"}, o.calls)

	o.accept = "t3"
	require.NoError(t, o.call(t, c))
	require.Equal(t, []string{"t1", "t2", "t2", "t3"}, o.calls)
}

func TestComponentWithoutAssertionSendsNothing(t *testing.T) {
	t.Parallel()
	o := &office{}
	c := newComponent(t, o)
	gone := errors.New("no such file")
	c.Assertion = func(context.Context) (string, error) { return "", gone }
	require.ErrorIs(t, o.call(t, c), gone)
	require.Zero(t, o.tokens)
	require.Empty(t, o.calls)
}

func TestTokenAnswerThatIsNotBoundIsNone(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"access_token":"t","token_type":"Bearer","expires_in":300}`, `{"token_type":"DPoP","expires_in":300}`,
		`{"access_token":"t","token_type":"DPoP"}`} {
		client := newClient(t, serve(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
		c := &Component{Client: client, Assertion: func(context.Context) (string, error) { return "a", nil }}
		_, err := c.Token(t.Context())
		require.ErrorIs(t, err, ErrNoAnswer, body)
	}
}

func TestCapabilityIsRenewedAtHalfOfItsLife(t *testing.T) {
	t.Parallel()
	o := &office{}
	c := newComponent(t, o)
	require.NoError(t, o.call(t, c))
	require.Equal(t, "ledger", o.lastForm["client_id"][0])
	require.Equal(t, api.AssertionJWTBearer, o.lastForm["client_assertion_type"][0])
	o.now = o.now.Add(149 * time.Second)
	require.NoError(t, o.call(t, c))
	require.Equal(t, 1, o.tokens)
	o.now = o.now.Add(time.Second)
	require.NoError(t, o.call(t, c))
	require.Equal(t, 2, o.tokens)
}

func TestLivingCapabilityIsUsedOnWhileTheAuthorityIsAway(t *testing.T) {
	t.Parallel()
	o := &office{}
	c := newComponent(t, o)
	require.NoError(t, o.call(t, c))
	o.failing = true
	o.now = o.now.Add(200 * time.Second)
	require.NoError(t, o.call(t, c))
	o.now = o.now.Add(100 * time.Second)
	require.True(t, Refused(o.call(t, c), api.Unavailable), "an expired one is not")
}

func TestManyCallersGetOneCapability(t *testing.T) {
	t.Parallel()
	o := &office{}
	c := newComponent(t, o)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			token, err := c.Token(t.Context())
			assert.NoError(t, err)
			assert.Equal(t, capability.Token("t1"), token)
		})
	}
	group.Wait()
	require.Equal(t, 1, o.tokens)
}
