package server

import (
	"context"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/openapi"
)

// Documents is a file of registry documents.
type Documents struct {
	RawBody []byte `contentType:"application/yaml"`
}

func operator(method, path, id, summary string, in, out any, refusals ...api.Code) openapi.Operation {
	op := member(method, path, id, summary, in, out, refusals...)
	op.Tag, op.Access = "operators", openapi.Operator
	return op
}

func (s *Server) operators() {
	personal(s, operator("POST", api.PathTasks+"/{reference}/cut-off", "cutOffTask", "Kill everything that a task was given, and keep its consent", nil, anEpoch),
		func(ctx context.Context, m authority.Actor, in *ByReference) (api.Epoch, error) {
			return s.authority.CutOff(ctx, m, in.Reference)
		})
	s.operatorRegistry()
}

func (s *Server) operatorRegistry() {
	apply := gated(operator("POST", api.PathRegistry, "applyDocuments", "Enter the documents of a file, all or none", someDocuments, anApplied,
		api.InvalidDocument, api.RevisionImmutable, api.RevisionStale, api.Retired, api.NotFound)) // sets with a task in them are; see the verb apply
	apply.Media = "application/yaml"
	apply.Text = "Sets without a task are entered while admission is closed, too."
	personal(s, apply, func(ctx context.Context, m authority.Actor, in *Documents) (api.Applied, error) {
		return s.authority.Apply(ctx, m, in.RawBody)
	})
	personal(s, operator("POST", api.PathRetire, "retireDocument", "End a registered revision, and what rests on it", aRetireRequest, api.Retirement{Tasks: 2}, api.NotFound, api.Retired),
		func(ctx context.Context, m authority.Actor, in *Only[api.RetireRequest]) (api.Retirement, error) {
			return s.authority.Retire(ctx, m, in.Body)
		})
	personal(s, operator("POST", api.PathWithdraw, "withdrawKey", "Take a pre-approved key out of a task's consent: its owner is asked again", aWithdrawRequest, anEpoch, api.NotFound),
		func(ctx context.Context, m authority.Actor, in *Only[api.WithdrawRequest]) (api.Epoch, error) {
			return s.authority.Withdraw(ctx, m, in.Body)
		})
}
