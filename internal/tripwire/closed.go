package tripwire

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

const notClosed = reason("admission was not closed for this: say --close-gate, with an operator's database URL in the configuration")

// close tries what must hold while admission is closed, where its operator agrees to that.
func (t *tripwire) close(ctx context.Context) {
	const whileClosed, partial = "while admission is closed every entry refuses, and what was given out before stays dead", "a partial platform taken for ready"
	if t.Gate == nil {
		refuse := func() (string, error) { return "", notClosed }
		t.line("A14.2", whileClosed, []string{"A14", "A17"}, refuse)
		t.line("A16.8", partial, []string{"A16", "A17"}, refuse)
		return
	}
	t.held(ctx, "A14.2", whileClosed, []string{"A14", "A17"}, t.whileClosed)
	t.line("A16.8", partial, []string{"A16", "A17"}, func() (string, error) { return t.partialPlatform(ctx) })
}

// whileClosed closes by hand and tries every entry that admits, what needs a lease first.
func (t *tripwire) whileClosed(ctx context.Context, h *hold) (said string, err error) {
	text, err := t.taskDocument(t.name+"-c", 1)
	if err != nil {
		return "", err
	}
	minted, err := t.mint(ctx, h, "closed", t.Guard.Granted)
	if err != nil {
		return "", err
	}
	if err := t.Gate.Close(ctx); err != nil {
		return "", fmt.Errorf("the gate could not be closed: %w", err)
	}
	defer func() { err = errors.Join(err, t.reopen(ctx)) }()
	want := []api.Code{api.AdmissionClosed}
	said, err = allRefused(
		attempt{"renew", func() error { return t.renew(ctx, h) }, want},
		attempt{"mint", func() error { _, err := t.mint(ctx, h, "closed-2", t.Guard.Granted); return err }, want},
		attempt{"effect at the guard", func() error { return t.operate(ctx, h, minted.AccessToken, minted.GuardNonce, t.Guard.Granted) }, want},
		attempt{"claim", func() error { _, err := t.claim(ctx, h.reference, t.Workload); return err }, want},
		attempt{"choosing less", func() error {
			return t.call(ctx, t.Member, http.MethodPost, api.PathOffers+"/"+t.offer.Offer+"/narrow", api.Choice{Limits: api.Limits{Effects: 1}}, &api.Offer{})
		}, want},
		attempt{"consent", func() error { return t.accept(ctx, t.offer) }, want},
		attempt{"offer", func() error { return t.apply(ctx, text) }, want},
	)
	if err == nil {
		err = t.waitFor(ctx, false)
	}
	if err != nil {
		return "", err
	}
	if err := t.reopen(ctx); err != nil {
		return "", err
	}
	after, err := allRefused(attempt{"after the reopening, mint by a capability from before", func() error { _, err := t.mint(ctx, h, "closed-3", t.Guard.Granted); return err },
		[]api.Code{api.ReadinessChanged, api.LeaseLost, api.AuthorityChanged, api.RunEnded}})
	return said + "; " + after, err
}

// reopen ends our hold and waits for what opens by itself.
func (t *tripwire) reopen(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	if err := t.Gate.Release(ctx); err != nil {
		return fmt.Errorf("the hold on the gate could not be ended: %w", err)
	}
	return t.waitFor(ctx, true)
}

// waitFor waits until every replica says open, or closed. Each answers from a copy that may be half a second old, and
// whatever stands in front may ask another one each time.
func (t *tripwire) waitFor(ctx context.Context, open bool) error {
	inARow, enough := 0, 4*max(1, len(t.Replicas))
	what := map[bool]string{true: "an open gate", false: "a closed gate"}[open]
	return until(ctx, what, func() (bool, error) {
		for _, at := range t.everywhere() {
			d, err := t.decision(ctx, at)
			if inARow++; err != nil || d.Open != open {
				inARow = 0
				return false, err
			}
		}
		return inARow >= enough, nil
	})
}

// partialPlatform registers a guard that nobody runs: from then on the platform is not whole.
func (t *tripwire) partialPlatform(ctx context.Context) (said string, err error) {
	began := t.Now()
	err = t.apply(ctx, fmt.Sprintf("kind: Guard\nname: %[1]s\ntitle: A guard that nobody runs\ncatalogue: postgres\nuri: https://%[1]s.invalid\nprofile: %[2]s\nprovable: true\nmax_call_ms: 1000\n", t.name, t.profile()))
	if err != nil {
		return "", err
	}
	defer func() {
		after := context.WithoutCancel(ctx)
		err = errors.Join(err, t.retire(after, api.RetireRequest{Kind: document.KindGuard, Name: t.name, Revision: 1}), t.waitFor(after, true))
	}()
	err = until(ctx, "a decision that is closed for want of a guard", func() (bool, error) {
		d, err := t.decision(ctx, t.Authority)
		i := slices.IndexFunc(d.Families, func(f api.FamilyState) bool { return f.Family == "guards" && !f.Good })
		if err == nil && !d.Open && i >= 0 {
			said = fmt.Sprintf("a guard that nobody runs closed admission within %s (%s)", t.Now().Sub(began).Round(time.Millisecond), d.Families[i].Reason)
		}
		return said != "", err
	})
	if err != nil {
		return "", err
	}
	refused, err := allRefused(attempt{"consent", func() error { return t.accept(ctx, t.offer) }, []api.Code{api.AdmissionClosed}})
	return said + "; " + refused, err
}
