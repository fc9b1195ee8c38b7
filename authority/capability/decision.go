package capability

import (
	"bytes"
	"cmp"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// MaxDecisionLife bounds how long a readiness decision may be relied on (design.md §8).
const MaxDecisionLife = 2 * time.Second

const (
	maxFamilies = 96
	maxReasons  = maxFamilies + 1
	maxText     = 128 // bytes of a challenge, or of a reason
)

// DecisionClaims are the complete readiness decision, as an answer to one challenge (protocol P33). They are signed in their
// one canonical spelling, so that no claim can be missing, unknown, given twice or in another case.
//
// An open decision is over ValidMS after its question was sent, by the clocks of whoever asked. Expires says the same to those
// who only know JWTs, in whole seconds and never later.
type DecisionClaims struct {
	Issuer       string          `json:"iss"`
	Audience     string          `json:"aud"`        // set by SignDecision
	IssuedAt     int64           `json:"iat"`        // seconds since 1970, rounded down
	Expires      int64           `json:"exp"`        // as iat
	Generation   int64           `json:"generation"` // set by SignDecision
	Open         bool            `json:"open"`
	Held         bool            `json:"held"` // closed by an operator's hand
	Incarnation  int64           `json:"incarnation"`
	Epoch        int64           `json:"epoch"`
	Sequence     int64           `json:"sequence"`
	Requirement  int64           `json:"requirement"` // generation of what is required
	ValidMS      int64           `json:"valid_ms"`    // zero when closed
	SinceUnixMS  int64           `json:"since_unix_ms"`
	InputsSHA256 string          `json:"inputs_sha256"`     // of the reports that it was derived from: base64url, 43 characters
	Challenge    string          `json:"challenge"`         // empty when there was none
	Reasons      []string        `json:"reasons,omitempty"` // exactly when closed
	Families     []DecidedFamily `json:"families"`          // all that are required, by rising name
}

// DecidedFamily is one required family as the decision judged it.
type DecidedFamily struct {
	Family    string `json:"family"`
	Good      bool   `json:"good"`
	Reason    string `json:"reason,omitempty"` // exactly when not good
	Instances int64  `json:"instances"`        // that report good
	Required  int64  `json:"required"`
	AgeMS     int64  `json:"age_ms"` // of the oldest good report that counts
}

// SignDecision signs a decision: typ nightwarrant-readiness+jwt, alg ES256 and the signer's kid in its header. It sets aud and
// generation and refuses claims that VerifyDecision would refuse, but for the challenge: a decision may answer to none.
func SignDecision(s Signer, generation int64, c DecisionClaims) (string, error) {
	c.Audience, c.Generation = decisionAudience(c.Issuer), generation
	if !c.check() {
		return "", errClaims
	}
	payload, err := canonical.CanonicalizeValue(c)
	if err != nil {
		return "", err
	}
	return signJWS(s, aDecision, payload)
}

// VerifyDecision verifies a decision and that it answers this challenge, which must be one. e.Audience is not looked at. Every refusal is a *ProofError with CodeInvalidToken. Whether the decision is over, or older than another, is
// for the caller to tell.
func VerifyDecision(signed string, keys KeySet, e Expectation, challenge string) (*DecisionClaims, error) {
	payload, generation, err := verifyJWS(signed, aDecision, keys)
	if err != nil {
		return nil, err
	}
	c := new(DecisionClaims)
	if canonical.Decode(payload, c) != nil || !c.check() || !c.isSpelled(payload) {
		return nil, badToken("the claims are not those of a readiness decision")
	}
	if c.Generation != generation {
		return nil, badToken("the generation is not the key's")
	}
	if challenge == "" || c.Challenge != challenge {
		return nil, badToken("it answers another challenge")
	}
	e.Audience = decisionAudience(e.Issuer)
	if err := e.clear(c.Issuer, c.Audience, c.IssuedAt, c.Expires); err != nil {
		return nil, err
	}
	return c, nil
}

// Older tells that the decision came before another in the cluster's one order: incarnation, epoch, sequence (P33).
func (c *DecisionClaims) Older(than *DecisionClaims) bool {
	return cmp.Or(cmp.Compare(c.Incarnation, than.Incarnation), cmp.Compare(c.Epoch, than.Epoch), cmp.Compare(c.Sequence, than.Sequence)) < 0
}

func decisionAudience(issuer string) string { return issuer + "/v1/readiness" }

func (c *DecisionClaims) isSpelled(payload []byte) bool {
	spelled, err := canonical.CanonicalizeValue(c)
	return err == nil && bytes.Equal(payload, spelled)
}

func (c *DecisionClaims) check() bool {
	return areNames(c.Issuer) && c.Audience == decisionAudience(c.Issuer) && decodeExact(new([32]byte)[:], c.InputsSHA256) &&
		positive(c.IssuedAt, c.Generation, c.Incarnation, c.Epoch, c.Sequence, c.Requirement, c.SinceUnixMS) &&
		(c.Challenge == "" || areNames(c.Challenge) && len(c.Challenge) <= maxText) && c.checkLife() && c.checkReasons() && c.checkFamilies()
}

// checkLife: an open decision says for how long, and exp is no promise of more.
func (c *DecisionClaims) checkLife() bool {
	life, longest := c.ValidMS, MaxDecisionLife.Milliseconds()
	if !c.Open {
		life = longest
	}
	return c.Open == (c.ValidMS > 0) && c.ValidMS >= 0 && c.ValidMS <= longest && !(c.Open && c.Held) &&
		positive(c.Expires) && c.Expires >= c.IssuedAt && (c.Expires-c.IssuedAt)*1000 < 1000+life
}

func (c *DecisionClaims) checkReasons() bool {
	for _, reason := range c.Reasons {
		if reason == "" || len(reason) > maxText || !isPrintable(reason) {
			return false
		}
	}
	return c.Open == (len(c.Reasons) == 0) && len(c.Reasons) <= maxReasons
}

// checkFamilies: a decision names what it was derived from, and an open one has nothing in it that is not good.
func (c *DecisionClaims) checkFamilies() bool {
	before := ""
	for _, f := range c.Families {
		if !f.check() || f.Family <= before || c.Open && !f.Good {
			return false
		}
		before = f.Family
	}
	return len(c.Families) > 0 && len(c.Families) <= maxFamilies
}

func (f *DecidedFamily) check() bool {
	reason := f.Reason == "" || areNames(f.Reason) && len(f.Reason) <= maxText
	return areNames(f.Family) && reason && f.Good == (f.Reason == "") && (!f.Good || f.Instances >= f.Required) &&
		natural(f.Instances, f.Required, f.AgeMS)
}

func natural(numbers ...int64) bool {
	for _, n := range numbers {
		if n < 0 || n > canonical.MaxInt {
			return false
		}
	}
	return true
}

func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}
