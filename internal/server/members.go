package server

import (
	"context"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/openapi"
)

// Runs is the question for a list of runs.
type Runs struct {
	Task   string `query:"task"`
	Cursor string `query:"cursor"`
}

// Pages is a question that goes on.
type Pages struct {
	Reference string `path:"reference"`
	Cursor    string `query:"cursor"`
}

func member(method, path, id, summary string, in, out any, refusals ...api.Code) openapi.Operation {
	return openapi.Operation{Method: method, Path: path, ID: id, Summary: summary, Tag: "members", Access: openapi.Member, In: in, Out: out, Refusals: refusals}
}

func gated(op openapi.Operation) openapi.Operation {
	op.Gated = true
	return op
}

// page is the example of a list.
func page[T any](one T) api.Page[T] { return api.Page[T]{Items: []T{one}, Next: aCursor} }

func (s *Server) members() {
	s.memberOffers()
	s.memberTasks()
	s.memberRuns()
	s.memberDecisions()
	s.memberFindings()
}

func (s *Server) memberOffers() {
	personal(s, member("GET", api.PathOffers, "listOffers", "What you are asked to consent to", nil, api.Page[api.Offer]{Items: []api.Offer{anOffer}}),
		func(ctx context.Context, m authority.Actor, _ *struct{}) (api.Page[api.Offer], error) {
			all, err := s.authority.Offers(ctx, m, "")
			return api.Page[api.Offer]{Items: all}, err
		})
	single(s, member("GET", api.PathOffers+"/{reference}", "getOffer", "One offer, exactly as a yes would store it", nil, anOffer), offerTag,
		func(ctx context.Context, m authority.Actor, ref string) (api.Offer, error) {
			return first(s.authority.Offers(ctx, m, ref))
		})
	personal(s, gated(member("POST", api.PathOffers+"/{reference}/narrow", "narrowOffer", "Allow less: keep a choice of the offer, to be shown before the yes", aChoice, anOffer, api.NotOffered, api.OfferEnded)),
		func(ctx context.Context, m authority.Actor, in *With[api.Choice]) (api.Offer, error) {
			return s.authority.Narrow(ctx, m, in.Reference, in.Body)
		})
	personal(s, gated(member("POST", api.PathOffers+"/{reference}/consent", "giveConsent", "Say yes to exactly the offer with this digest", anAnswer, aConsent, api.OfferChanged, api.OfferEnded, api.Retired, api.NotAMember, api.DirectoryUnavailable)),
		func(ctx context.Context, m authority.Actor, in *With[api.Answer]) (api.Consent, error) {
			return s.authority.GiveConsent(ctx, m, in.Reference, in.Body)
		})
	personal(s, member("POST", api.PathOffers+"/{reference}/decline", "declineOffer", "Say no to exactly the offer with this digest", anAnswer, done{}, api.OfferChanged, api.OfferEnded),
		func(ctx context.Context, m authority.Actor, in *With[api.Answer]) (done, error) {
			return done{}, s.authority.Decline(ctx, m, in.Reference, in.Body)
		})
	personal(s, member("GET", api.PathConsents, "listConsents", "Everything that can act as you, and what could within two years", nil, page(aRecord)),
		func(ctx context.Context, m authority.Actor, in *Listing) (api.Page[api.ConsentRecord], error) {
			return s.authority.Consents(ctx, m, in.Cursor)
		})
	single(s, member("GET", api.PathConsents+"/{reference}", "getConsent", "The receipt of one consent, again", nil, aRecord), itself[api.ConsentRecord], s.authority.Consent)
}

func (s *Server) memberTasks() {
	personal(s, member("GET", api.PathTasks, "listTasks", "Your tasks, newest first", nil, page(aTask)),
		func(ctx context.Context, m authority.Actor, in *Listing) (api.Page[api.Task], error) {
			return s.authority.Tasks(ctx, m, in.Cursor)
		})
	single(s, member("GET", api.PathTasks+"/{reference}", "getTask", "One task, with its revisions and all that it rests on", nil, aTaskDetail),
		func(t api.TaskDetail) string { return epochTag(t.ActivationEpoch) }, s.authority.Task)
	personal(s, member("GET", api.PathTasks+"/{reference}/dry-run", "dryRunTask", "What would happen if it fired now, and why not", nil, aDryRun),
		func(ctx context.Context, m authority.Actor, in *ByReference) (api.DryRun, error) {
			return s.authority.DryRun(ctx, m, in.Reference)
		})
	single(s, member("GET", api.PathTasks+"/{reference}/revocation", "getRevocationScope", "What would end if it were revoked now", nil, aScope),
		func(r api.RevocationScope) string { return epochTag(r.ActivationEpoch) }, s.authority.RevocationScope)
	changing(s, member("POST", api.PathTasks+"/{reference}/revoke", "revokeTask", "End a task's consent, at once; the answer comes when the new epoch is committed", nil, anEpoch, api.ConsentEnded),
		s.authority.Revoke, s.authority.RevokeShown)
}

func (s *Server) memberRuns() {
	personal(s, member("GET", api.PathRuns, "listRuns", "Your runs, newest first; of one task when it is named", nil, page(aRun), api.NotFound),
		func(ctx context.Context, m authority.Actor, in *Runs) (api.Page[api.Run], error) {
			return s.authority.Runs(ctx, m, in.Task, in.Cursor)
		})
	personal(s, member("GET", api.PathRuns+"/{reference}", "getTimeline", "What happened to a run, oldest first", nil, aTimeline),
		func(ctx context.Context, m authority.Actor, in *Pages) (api.Timeline, error) {
			return s.authority.TimelineAfter(ctx, m, in.Reference, in.Cursor)
		})
	personal(s, member("GET", api.PathRuns+"/{reference}/receipt", "getRunReceipt", "The signed run receipt of a run that has ended, to be checked without us", nil, aRunReceipt, receiptCodes...),
		func(ctx context.Context, m authority.Actor, in *ByReference) (api.RunReceipt, error) {
			return s.authority.RunReceipt(ctx, m, in.Reference)
		})
	personal(s, member("GET", api.PathNotices, "getNoticeSettings", "How you are told by mail", nil, api.NoticeSettings{Daily: &anHour}),
		func(ctx context.Context, m authority.Actor, _ *struct{}) (api.NoticeSettings, error) {
			return s.authority.NoticeSettings(ctx, m)
		})
	personal(s, member("PUT", api.PathNotices, "setNotices", "Set how you are told by mail", api.NoticeSettings{Daily: &anHour}, api.NoticeSettings{Daily: &anHour}),
		func(ctx context.Context, m authority.Actor, in *Only[api.NoticeSettings]) (api.NoticeSettings, error) {
			return in.Body, s.authority.Notify(ctx, m, in.Body)
		})
}

func (s *Server) memberDecisions() {
	personal(s, member("GET", api.PathDecisions, "listDecisions", "What your tasks ask you, one exact effect at a time", nil, page(aDecision)),
		func(ctx context.Context, m authority.Actor, in *Listing) (api.Page[api.OwnerDecision], error) {
			return s.authority.Inbox(ctx, m, in.Cursor)
		})
	single(s, member("GET", api.PathDecisions+"/{reference}", "getDecision", "One question, with the exact arguments that would execute", nil, aDecision), itself[api.OwnerDecision],
		func(ctx context.Context, m authority.Actor, ref string) (api.OwnerDecision, error) {
			return first(s.authority.Decisions(ctx, m, ref))
		})
	personal(s, gated(member("POST", api.PathDecisions+"/{reference}/approve", "approveDecision", "Say yes, once, to exactly the effect with this digest", anAnswer, done{}, api.DecisionChanged, api.DecisionEnded, api.NotAMember, api.DirectoryUnavailable)),
		func(ctx context.Context, m authority.Actor, in *With[api.Answer]) (done, error) {
			return done{}, s.authority.Approve(ctx, m, in.Reference, in.Body)
		})
	personal(s, member("POST", api.PathDecisions+"/{reference}/deny", "denyDecision", "Say no to exactly the effect with this digest", anAnswer, done{}, api.DecisionChanged, api.DecisionEnded),
		func(ctx context.Context, m authority.Actor, in *With[api.Answer]) (done, error) {
			return done{}, s.authority.Deny(ctx, m, in.Reference, in.Body)
		})
}

func (s *Server) memberFindings() {
	personal(s, member("GET", api.PathFindings, "listAmbiguousEffects", "Effects of which nobody can prove whether they happened", nil, page(anAmbiguousEffect)),
		func(ctx context.Context, m authority.Actor, in *Listing) (api.Page[api.AmbiguousEffect], error) {
			return s.authority.Ambiguous(ctx, m, in.Cursor)
		})
	personal(s, member("POST", api.PathFindings, "recordFinding", "Record what you found out about one; nothing is done again", aFinding, aFinding, api.NotFound, api.EffectSettled),
		func(ctx context.Context, m authority.Actor, in *Only[api.Finding]) (api.Finding, error) {
			return in.Body, s.authority.RecordFinding(ctx, m, in.Body)
		})
}

var receiptCodes = []api.Code{api.NotFound, api.ReceiptPending, api.ReceiptGone, api.ReceiptTooLarge}

// done is the answer where there is nothing to tell but that it is so.
type done struct{}

// first is the only one of a list that was asked for by reference.
func first[T any](all []T, err error) (one T, _ error) {
	if err == nil {
		one = all[0]
	}
	return one, err
}

// itself is the tag of what has nothing about it that only passes.
func itself[T any](v T) string { return openapi.Tag(v) }

// offerTag is that of an offer without the times that come nearer by themselves.
func offerTag(o api.Offer) string {
	o.NextFires = nil
	return openapi.Tag(o)
}
