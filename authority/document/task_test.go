package document

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/catalogue"
)

func TestTaskOutsideItsRoleOrPolicyIsRefused(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*Task, *WorkloadRole, *Policy)
		says   string
	}{
		"foreign client":        {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Client = "other" }, "Task nightly-sweep client is not the client of role sweeper"},
		"another role":          {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Role = "other" }, "role_revision names another revision than sweeper 3"},
		"older role revision":   {func(t *Task, _ *WorkloadRole, _ *Policy) { t.RoleRevision = 2 }, "role_revision names another revision"},
		"newer role revision":   {func(_ *Task, r *WorkloadRole, _ *Policy) { r.Revision = 4 }, "role_revision names another revision"},
		"another policy":        {func(_ *Task, _ *WorkloadRole, p *Policy) { p.Name = "other" }, "policy_revision names another revision than other 2"},
		"older policy revision": {func(t *Task, _ *WorkloadRole, _ *Policy) { t.PolicyRevision = 1 }, "policy_revision names another revision"},
		"retired role":          {func(_ *Task, r *WorkloadRole, _ *Policy) { r.Retired = true }, "role names a role revision that is retired"},
		"retired policy":        {func(_ *Task, _ *WorkloadRole, p *Policy) { p.Retired = true }, "policy names a policy revision that is retired"},
		"action of no role":     {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Grants[1].Action = "row.update" }, "grants[1].action is not an action of role sweeper: row.update at orders-db"},
		"action, other guard":   {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Grants[0].Guard = "orders" }, "grants[0].action is not an action of role sweeper"},
		"only a prefix":         {func(_ *Task, r *WorkloadRole, _ *Policy) { r.Actions[0].Action = "row" }, "grants[0].action is not an action of role sweeper"},
		"optional is no excuse": {func(_ *Task, r *WorkloadRole, _ *Policy) { r.Actions = r.Actions[:2] }, "grants[2].action is not an action of role sweeper"},
		"runtime over role":     {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Limits.RuntimeS = 901 }, "limits.runtime_s exceeds the role's ceiling of 900"},
		"effects over role":     {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Limits.Effects = 51 }, "limits.effects exceeds the role's ceiling of 50"},
		"runtime over policy":   {func(_ *Task, _ *WorkloadRole, p *Policy) { p.Limits.MaxRuntimeS = 599 }, "limits.runtime_s exceeds the policy's ceiling of 599"},
		"effects over policy":   {func(_ *Task, _ *WorkloadRole, p *Policy) { p.Limits.MaxEffects = 19 }, "limits.effects exceeds the policy's ceiling of 19"},
		"days over policy":      {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Consent.Days = 91 }, "consent.days exceeds the policy's ceiling of 90"},
		"longer than consented": {func(t *Task, r *WorkloadRole, p *Policy) {
			t.Limits.RuntimeS, r.Limits.MaxRuntimeS, p.Limits.MaxRuntimeS, t.Consent.Days = 86401, 90000, 90000, 1
		}, "limits.runtime_s exceeds the consent's ceiling of 86400"},
		"dial over policy":        {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Dial = catalogue.High }, "dial exceeds the policy's dial_max low"},
		"no such dial":            {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Dial = -1 }, "dial must be one of"},
		"task that does not hold": {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Grants[0].Resource = "*" }, "Task nightly-sweep grants[0].resource does not hold"},
		"role that does not hold": {func(_ *Task, r *WorkloadRole, _ *Policy) { r.Actions[2].Action = "*" }, "WorkloadRole sweeper actions[2].action must be one exact action"},
		"policy that does not":    {func(_ *Task, _ *WorkloadRole, p *Policy) { p.Limits.MaxConsentDays = 1000 }, "Policy standard limits.max_consent_days must be between"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			task, role, policy := of[*Task](t, KindTask), of[*WorkloadRole](t, KindRole), of[*Policy](t, KindPolicy)
			require.NoError(t, CheckTask(task, role, policy))
			c.change(task, role, policy)
			err := CheckTask(task, role, policy)
			require.ErrorContains(t, err, c.says)
			oneSentence(t, err)
			parts := partsOf(t)
			parts.Task, parts.Role, parts.Policy = task, role, policy
			_, err = BuildConsent(parts)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

func TestTaskAtItsCeilingsIsTaken(t *testing.T) {
	t.Parallel()
	task, role, policy := of[*Task](t, KindTask), of[*WorkloadRole](t, KindRole), of[*Policy](t, KindPolicy)
	task.Limits, task.Dial, task.Consent.Days = TaskLimits{RuntimeS: 900, Effects: 50, Steps: 2000, Repeats: 3, Spend: 20_000, Currency: "EUR"}, catalogue.Low, 90
	assert.NoError(t, CheckTask(task, role, policy))
	task.Dial = catalogue.None
	assert.NoError(t, CheckTask(task, role, policy))
}
