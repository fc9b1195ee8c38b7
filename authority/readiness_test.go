package authority

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/readiness"
)

func known(open bool, families ...readiness.Family) readiness.Decision {
	d := readiness.Decision{Open: open, Epoch: 7, Sequence: 40, Incarnation: 1, Requirement: 1, Valid: 1500 * time.Millisecond, Since: time.UnixMilli(1_780_000_000_000),
		Reason: readiness.Good, Families: families}
	if !open {
		d.Valid, d.Reason, d.Family = 0, "stale", "guards"
	}
	return d
}

func good(family string) readiness.Family {
	return readiness.Family{Family: family, Good: true, Instances: 2, Required: 1, AgeMS: 300}
}

func signs(d api.Decision) (string, error) { return "signed", nil }

func TestOpenDecisionIsAnsweredOpen(t *testing.T) {
	t.Parallel()
	d, err := answered(known(true, good("store"), good("guards")), "c", signs)
	require.NoError(t, err)
	assert.Equal(t, api.Decision{Open: true, Epoch: 7, Sequence: 40, Incarnation: 1, Requirement: 1, ValidMS: 1500, SinceUnixMS: 1_780_000_000_000,
		InputsSHA256: "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", Challenge: "c", Signed: "signed",
		Families: []api.FamilyState{{Family: "guards", Good: true, Instances: 2, Required: 1, AgeMS: 300}, {Family: "store", Good: true, Instances: 2, Required: 1, AgeMS: 300}}}, d)
}

// Whatever is wrong, the answer is closed; what is signed is closed too.
func TestEverythingElseIsAnsweredClosed(t *testing.T) {
	t.Parallel()
	bad := readiness.Family{Family: "guards", Reason: "stale", Required: 1}
	short := known(true, good("store"))
	short.Valid = 999 * time.Microsecond
	held := known(false, good("store"), bad)
	held.Held, held.Reason, held.Family = true, "held", ""
	for name, c := range map[string]struct {
		known   readiness.Decision
		reasons []string
	}{
		"closed":                        {known(false, bad, good("store")), []string{"guards: stale"}},
		"closed for what is good again": {known(false, good("guards")), []string{"guards: stale"}},
		"held, and a family is bad":     {held, []string{"held"}},
		"open, and a family is bad":     {known(true, good("store"), bad), []string{"guards: stale"}},
		"open, and two are":             {known(true, readiness.Family{Family: "store", Reason: "disk", Required: 1}, bad), []string{"store: disk", "guards: stale"}},
		"open for no time":              {short, []string{"expired"}},
	} {
		var signed api.Decision
		d, err := answered(c.known, "c", func(d api.Decision) (string, error) {
			signed = d
			return "signed", nil
		})
		require.NoError(t, err, name)
		assert.False(t, d.Open, name)
		assert.Zero(t, d.ValidMS, name)
		assert.Equal(t, c.reasons, d.Reasons, name)
		d.Signed = ""
		assert.Equal(t, d, signed, name)
	}
}

func TestDecisionIsGivenForTwoSecondsAtMost(t *testing.T) {
	t.Parallel()
	long := known(true, good("store"))
	long.Valid = time.Hour
	d, err := answered(long, "", signs)
	require.NoError(t, err)
	assert.EqualValues(t, 2000, d.ValidMS)
}

// What cannot be signed is never said to be open, nor half signed.
func TestWhatCannotBeSignedIsClosed(t *testing.T) {
	t.Parallel()
	gone := errors.New("the token is gone")
	d, err := answered(known(true, good("store")), "c", func(api.Decision) (string, error) { return "half", gone })
	require.ErrorIs(t, err, gone)
	assert.False(t, d.Open)
	assert.Zero(t, d.ValidMS)
	assert.Empty(t, d.Signed)
	assert.Equal(t, []string{"signing: material"}, d.Reasons)
	assert.Equal(t, "c", d.Challenge)
	assert.EqualValues(t, 7, d.Epoch)
}

// A replica that has not learned a decision has none to sign.
func TestNothingIsKnownAtStart(t *testing.T) {
	t.Parallel()
	d, err := answered(readiness.NewGate(nil, nil).Known(), "c", func(api.Decision) (string, error) { return "", errors.New("asked to sign") })
	require.NoError(t, err)
	assert.Equal(t, api.Decision{Challenge: "c", Reasons: []string{"start"}, Families: []api.FamilyState{}}, d)
}
