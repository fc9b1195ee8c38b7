package server

import (
	"context"
	"net/http"
	"time"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/openapi"
)

// Documents is a file of registry documents.
type Documents struct {
	RawBody []byte `contentType:"application/yaml"`
}

// Kind is the question for the registry.
type Kind struct {
	Kind   string `path:"kind"`
	Cursor string `query:"cursor"`
}

// Entry is the question for one name of it.
type Entry struct {
	Kind   string `path:"kind"`
	Name   string `path:"name"`
	Cursor string `query:"cursor"`
}

// Client is the question for whom a cut-off would concern.
type Client struct {
	Client string `query:"client"`
}

// Audit is a search of the audit log.
type Audit struct {
	Since   string `query:"since" format:"date-time"`
	Until   string `query:"until" format:"date-time"`
	Verb    string `query:"verb"`
	Verdict string `query:"verdict"`
	Task    string `query:"task"`
	Run     string `query:"run"`
	Member  string `query:"member"`
	Cursor  string `query:"cursor"`
}

func operator(method, path, id, summary string, in, out any, refusals ...api.Code) openapi.Operation {
	op := member(method, path, id, summary, in, out, refusals...)
	op.Tag, op.Access = "operators", openapi.Operator
	return op
}

func auditor(path, id, summary string, out any, refusals ...api.Code) openapi.Operation {
	op := operator("GET", path, id, summary, nil, out, refusals...)
	op.Access = openapi.Auditor
	return op
}

func (s *Server) operators() {
	s.operatorRegistry()
	s.operatorCutOff()
	s.operatorViews()
	s.operatorAudit()
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
	personal(s, auditor(api.PathRegistry+"/{kind}", "listEntries", "The newest revision of each registered thing of a kind", page(anEntry)),
		func(ctx context.Context, m authority.Actor, in *Kind) (api.Page[api.Entry], error) {
			return s.authority.Registry(ctx, m, in.Kind, in.Cursor)
		})
	personal(s, auditor(api.PathRegistry+"/{kind}/{name}", "listRevisions", "All revisions of one registered thing, newest first", page(anEntry)),
		func(ctx context.Context, m authority.Actor, in *Entry) (api.Page[api.Entry], error) {
			return s.authority.Entry(ctx, m, in.Kind, in.Name, in.Cursor)
		})
}

func (s *Server) operatorCutOff() {
	changing(s, operator("POST", api.PathTasks+"/{reference}/cut-off", "cutOffTask", "Kill everything that a task was given, and keep its consent", nil, anEpoch),
		s.authority.CutOff, s.authority.CutOffShown)
	personal(s, operator("GET", api.PathCutOff, "getCutOffScope", "Whom a cut-off of one client, or of everything, would concern", nil, aCutOffScope),
		func(ctx context.Context, m authority.Actor, in *Client) (api.CutOffScope, error) {
			return s.authority.CutOffScope(ctx, m, in.Client)
		})
	personal(s, operator("POST", api.PathCutOff, "cutOff", "Kill everything that one client's tasks, or all tasks, were given, and keep the consents", api.CutOffRequest{Client: "books"}, api.CutOffResult{Tasks: 12, Runs: 3}, api.NotFound),
		func(ctx context.Context, m authority.Actor, in *Only[api.CutOffRequest]) (api.CutOffResult, error) {
			switch {
			case in.Body.All == (in.Body.Client != ""):
				return api.CutOffResult{}, api.Refusef(api.InvalidRequest, "Name one client, or say all: true, and not both.")
			case in.Body.All:
				return s.authority.CutOffAll(ctx, m)
			}
			return s.authority.CutOffClient(ctx, m, in.Body.Client)
		})
}

func (s *Server) operatorViews() {
	personal(s, auditor(api.PathAllTasks, "listAllTasks", "Everybody's tasks, newest first", page(aTask)),
		func(ctx context.Context, m authority.Actor, in *Listing) (api.Page[api.Task], error) {
			return s.authority.AllTasks(ctx, m, in.Cursor)
		})
	personal(s, auditor(api.PathStranded, "listStranded", "Tasks whose owner is no member any more", page(aStrandedTask)),
		func(ctx context.Context, m authority.Actor, in *Listing) (api.Page[api.StrandedTask], error) {
			return s.authority.Stranded(ctx, m, in.Cursor)
		})
	personal(s, auditor(api.PathBoard, "getBoard", "The readiness decision, with each family and component behind it", aBoard),
		func(ctx context.Context, m authority.Actor, _ *struct{}) (api.Board, error) {
			return s.authority.Board(ctx, m)
		})
	personal(s, auditor(api.PathDeployment, "getDeployment", "The build of each process, the registered keys, and the effects that nobody has looked into", aDeployment),
		func(ctx context.Context, m authority.Actor, _ *struct{}) (api.Deployment, error) {
			return s.authority.Deployment(ctx, m)
		})
	personal(s, auditor(api.PathRequirements, "listRequirements", "Generations of what must be good, newest first", page(aRequirement)),
		func(ctx context.Context, m authority.Actor, in *Listing) (api.Page[api.Requirement], error) {
			return s.authority.Requirements(ctx, m, in.Cursor)
		})
}

func (s *Server) operatorAudit() {
	personal(s, auditor(api.PathAudit, "searchAudit", "Search the audit log, newest first; a page may be short, even empty, and go on all the same", api.AuditPage{Items: []api.AuditEntry{anAuditEntry}, Next: aCursor}),
		func(ctx context.Context, m authority.Actor, in *Audit) (api.AuditPage, error) {
			q, err := in.query()
			if err != nil {
				return api.AuditPage{}, err
			}
			return s.authority.AuditSearch(ctx, m, q, in.Cursor)
		})
	personal(s, auditor(api.PathAudit+"/runs/{reference}/receipt", "getAnyRunReceipt", "The signed run receipt of anybody's run that has ended", aRunReceipt, receiptCodes...),
		func(ctx context.Context, m authority.Actor, in *ByReference) (api.RunReceipt, error) {
			return s.authority.AnyRunReceipt(ctx, m, in.Reference)
		})
	export := auditor(api.PathAuditExport, "exportAudit", "The rows of a search as JSON lines, oldest first; the last line says that it is whole", someLines)
	export.Answer = "application/jsonl"
	for _, name := range []string{"since", "until", "verb", "verdict", "task", "run", "member", "cursor"} {
		export.Query = append(export.Query, openapi.Parameter{Name: name})
	}
	openapi.Hand(s.api, export, s.exportAudit)
}

// query reads the instants of a search.
func (a Audit) query() (q api.AuditQuery, err error) {
	q = api.AuditQuery{Verb: a.Verb, Verdict: a.Verdict, Task: a.Task, Run: a.Run, Member: a.Member}
	if q.Since, err = instant(a.Since); err == nil {
		q.Until, err = instant(a.Until)
	}
	return q, err
}

func instant(text string) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, api.Refusef(api.InvalidRequest, "since and until must be instants, such as 2026-12-01T03:00:00Z.")
	}
	return &at, nil
}

// exportWithin bounds how long somebody may take to read an export.
const exportWithin = 11 * time.Minute

func (s *Server) exportAudit(w http.ResponseWriter, r *http.Request) error {
	v := r.URL.Query()
	in := Audit{v.Get("since"), v.Get("until"), v.Get("verb"), v.Get("verdict"), v.Get("task"), v.Get("run"), v.Get("member"), v.Get("cursor")}
	q, err := in.query()
	if err != nil {
		return err
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(exportWithin)) // where it is impossible, the server's own holds
	w.Header().Set("Content-Type", "application/jsonl")
	return s.authority.AuditExport(r.Context(), r.Context().Value(actorKey{}).(authority.Actor), w, q, in.Cursor)
}
