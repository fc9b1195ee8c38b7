package client

import (
	"context"
	"crypto/ecdsa"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

var (
	errSilence  = errors.New("no answer: the authority is not reached")
	errNonsense = errors.New("the answer is not a readiness decision")
	errUnsigned = errors.New("the answer is not signed")
	errPartial  = errors.New("the decision is partial: a required family is missing")
)

// get asks the authority. An error says that there is no answer.
func (c *Client) get(ctx context.Context, challenge string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.config.Authority+api.PathReadiness+"?challenge="+challenge, nil)
	if err != nil {
		return nil, errSilence
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, errSilence
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("no answer: the authority says %d", answer.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, canonical.MaxSize+1)) // one byte more than judge takes
	if err != nil {
		return nil, errSilence
	}
	return body, nil
}

// judge accepts a decision that is signed for this question and complete. What
// stands beside the signed one counts for nothing.
func (c *Client) judge(ctx context.Context, body []byte, challenge string) (*capability.DecisionClaims, error) {
	var answer api.Decision
	if canonical.Decode(body, &answer) != nil {
		return nil, errNonsense
	}
	if answer.Signed == "" {
		return nil, errUnsigned
	}
	e := capability.Expectation{Issuer: c.config.Issuer, Now: c.config.Now(), Leeway: leeway}
	d, err := capability.VerifyDecision(answer.Signed, keysNow{c, ctx}, e, challenge)
	var refused *capability.ProofError
	switch {
	case errors.As(err, &refused):
		return nil, errors.New("the answer is not accepted: " + refused.Reason)
	case err != nil:
		return nil, errNonsense
	}
	return d, c.complete(d)
}

// complete demands that each family is named; that those which are named are good when it is open, VerifyDecision has seen to.
func (c *Client) complete(d *capability.DecisionClaims) error {
	named := map[string]bool{}
	for _, f := range d.Families {
		named[f.Family] = true
	}
	for _, f := range slices.Concat(always, c.config.Families) {
		if !named[f] && !named[ownFamily(f)] {
			return errPartial
		}
	}
	return nil
}

// ownFamily is how a decision names an operator's own family.
func ownFamily(name string) string {
	d := canonical.Digest(canonical.DomainName, []byte(name))
	return "x_" + hex.EncodeToString(d[:])
}

// keysNow are the authority's keys for the time of one question.
type keysNow struct {
	*Client
	ctx context.Context
}

func (k keysNow) Key(kid string) (*ecdsa.PublicKey, int64, bool) {
	key, ok, err := k.keys.Key(k.ctx, kid)
	return key.Public, key.Generation, ok && err == nil
}
