package dpopclient

import (
	"context"
	"net/url"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// renewPause keeps callers from waiting one after the other for an authority that does not answer.
const renewPause = 5 * time.Second

// Component holds the component capability of a guard, a reporter or a product
// and renews it when half of its life is over. It is safe for concurrent use.
type Component struct {
	Client        *Client
	Name          string                                // as registered
	Assertion     func(context.Context) (string, error) // reads the projected token anew each time
	AssertionType string                                // "" is jwt-bearer

	mu         sync.Mutex
	token      capability.Token
	renewAt    time.Time
	expires    time.Time
	superseded bool
}

// JSON calls the authority as this component. A capability that the authority no
// longer knows is renewed and the call repeated once: such a refusal says that
// nothing happened. After a refusal as boot_superseded it asks for nothing any
// more, because a new capability would displace the later boot in turn.
func (c *Component) JSON(ctx context.Context, method, path string, in, out any) error {
	token, err := c.Token(ctx)
	if err != nil {
		return err
	}
	err = c.Client.JSON(ctx, method, path, token, in, out)
	if Refused(err, api.InvalidToken) {
		if token, err = c.renew(ctx, token); err != nil {
			return err
		}
		err = c.Client.JSON(ctx, method, path, token, in, out)
	}
	if Refused(err, api.BootSuperseded) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.superseded = true
	}
	return err
}

// Token is a live component capability. Its errors are those of [Client.PostForm],
// or the assertion's.
func (c *Component) Token(ctx context.Context) (capability.Token, error) {
	return c.renew(ctx, "")
}

// renew gets a new capability when there is none, when it is due, or when the present one is the one that failed. While
// the authority does not answer, a capability that still lives is used on.
func (c *Component) renew(ctx context.Context, failed capability.Token) (capability.Token, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Client.now()
	if c.superseded {
		return "", api.Refuse(api.BootSuperseded)
	}
	if c.token != failed && now.Before(c.renewAt) {
		return c.token, nil
	}
	err := c.fetch(ctx, now)
	if err != nil && (c.token == failed || !now.Before(c.expires)) {
		return "", err
	}
	if err != nil {
		c.renewAt = now.Add(renewPause)
	}
	return c.token, nil
}

func (c *Component) fetch(ctx context.Context, now time.Time) error {
	assertion, err := c.Assertion(ctx)
	if err != nil {
		return err
	}
	form := url.Values{"grant_type": {api.GrantClientCredentials}, "client_id": {c.Name},
		"client_assertion": {assertion}, "client_assertion_type": {c.assertionType()}}
	var answer api.TokenResponse
	if err := c.Client.PostForm(ctx, api.PathToken, form, &answer); err != nil {
		return err
	}
	if answer.AccessToken == "" || answer.TokenType != "DPoP" || answer.ExpiresIn <= 0 {
		return ErrNoAnswer
	}
	life := time.Duration(answer.ExpiresIn) * time.Second
	c.token = capability.Token(answer.AccessToken)
	c.renewAt, c.expires = now.Add(life/2), now.Add(life)
	return nil
}

func (c *Component) assertionType() string {
	if c.AssertionType == "" {
		return api.AssertionJWTBearer
	}
	return c.AssertionType
}
