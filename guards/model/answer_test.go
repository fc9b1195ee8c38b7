package model

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

func TestUsageIsRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]*usage{
		`null`: nil,
		`{}`:   {-1, -1},
		`{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}`:     {3, 4},
		`{"input_tokens":3,"output_tokens":4}`:                           {3, 4},
		`{"input_tokens":3,"output_tokens":4,"total_tokens":5}`:          {3, 4},
		`{"input_tokens":3,"output_tokens":4,"total_tokens":12}`:         {3, 9}, // it thought, and does not say so elsewhere
		`{"input_tokens":3.5,"output_tokens":4}`:                         {-1, 4},
		`{"input_tokens":"3","output_tokens":4}`:                         {-1, 4},
		`{"input_tokens":3,"output_tokens":null}`:                        {3, -1},
		`{"input_tokens":1e3,"output_tokens":4}`:                         {-1, 4},
		`{"input_tokens":99999999999999999999,"output_tokens":4}`:        {-1, 4},
		`{"input_tokens":3,"output_tokens":4,"total_tokens":1000000000}`: {3, 999999997},
		`{"prompt_tokens":3}`:                                            {3, -1},
		`7`:                                                              {-1, -1},
	} {
		r := &reader{}
		r.use(canonical.Value{Raw: []byte(text)})
		require.Equal(t, want, r.used, text)
	}
	for _, u := range []usage{{0, 1}, {-1, 1}, {1, -1}, {maxReported + 1, 1}, {1, maxReported + 1}} {
		require.False(t, u.plausible(), "%v", u)
	}
	require.True(t, usage{1, 0}.plausible())
}

// TestChargeOfAnAnswer: what is not whole is never charged less than was reserved, and what is whole never more than was used.
func TestChargeOfAnAnswer(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	a := s.goAhead(t, 1)
	c, err := s.ledger.read(a.Attempt)
	require.NoError(t, err)
	for want, r := range map[int64]received{
		6:  {used: &usage{1, 5}},
		50: {used: &usage{1, 5}, partial: true},
		71: {used: &usage{1, 70}, partial: true},
		72: {used: &usage{1, 71}},
	} {
		require.Equal(t, want, *s.ledger.settle(c, a, r).Spent)
	}
	for _, r := range []received{{}, {partial: true}, {used: &usage{0, 5}}, {used: &usage{-1, -1}, partial: true}} {
		require.Nil(t, s.ledger.settle(c, a, r).Spent, "all that was reserved")
	}
}

func TestAnswersPassAList(t *testing.T) {
	t.Parallel()
	r := &reader{names: []string{little}, most: 1 << 20}
	got, err := r.clean([]byte(`{"id":"1","x_debug":"hush","error":null,"model":"little","usage":null,"choices":[{"a":1.5}]}`), chatMembers)
	require.NoError(t, err)
	require.Equal(t, `{"id":"1","error":null,"model":"little","usage":null,"choices":[{"a":1.5}]}`, string(got))
	got, err = r.clean([]byte(`{"type":"response.failed","response":{"id":"1","error":{"message":"hush"},"instructions":"b","hush":1},"message":"hush"}`), eventMembers)
	require.NoError(t, err)
	require.Equal(t, `{"type":"response.failed","response":{"id":"1","error":`+errorText+`,"instructions":"b"}}`, string(got))
	require.True(t, r.failed)
	for _, text := range []string{``, `[]`, `{"id":1,"id":2}`, `{"response":7}`, `{"response":null}`, `{"model":"other"}`, `{"model":7}`, `{"model":{"a":1}}`} {
		r := &reader{names: []string{little}, most: 1 << 20}
		_, err := r.clean([]byte(text), append(chatMembers, eventMembers...))
		require.Error(t, err, text)
	}
}
