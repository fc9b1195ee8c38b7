package console

import (
	"net/http"
	"net/url"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// auditPage is a search of the audit log, newest first.
type auditPage struct {
	Query   auditForm
	Verbs   []string
	Rows    []auditRow
	Next    string // query of the page that follows
	Export  string // query of the export
	Wrong   string
	Covered bool // the page is short, and goes on all the same
}

// auditForm is a query as it was written.
type auditForm struct{ Since, Until, Verb, Verdict, Task, Run, Member string }

type auditRow struct {
	Number           int64
	At               moment
	Verb             string
	State            state
	Code             string
	Task, Run, Other string
	Digest           string
	Body             foreign
}

// audited are the verbs of the log.
var audited = []string{"admit", "apply", "ask", "claim", "close", "component", "consent", "cut_off", "cut_off_keys", "decide", "decline", "depart", "end_run", "evidence", "expire_consent", "expire_effect", "finding",
	"hold", "incarnation", "late_evidence", "mint", "notice", "offer", "open", "plan", "present", "prune", "publish", "redact", "refusals", "register_keys", "release", "renew", "report", "requeue", "requirement", "resume_log",
	"retention", "retire", "revoke", "rotate_keys", "settle_effect", "settle_run", "standby", "withdraw"}

// auditTime is how a browser writes an instant without a zone.
const auditTime = "2006-01-02T15:04"

// auditQuery reads the query in the address, whose times are of a zone.
func (v *visit) auditQuery(zone *time.Location) (f auditForm, q api.AuditQuery, ok bool) {
	get := func(name string) string { return short(v.r.URL.Query().Get(name), 64) }
	f = auditForm{get("since"), get("until"), get("verb"), get("verdict"), get("task"), get("run"), get("member")}
	q = api.AuditQuery{Verb: f.Verb, Verdict: f.Verdict, Task: f.Task, Run: f.Run, Member: f.Member}
	ok = true
	for text, into := range map[*string]**time.Time{&f.Since: &q.Since, &f.Until: &q.Until} {
		if *text == "" {
			continue
		}
		at, err := time.ParseInLocation(auditTime, *text, zone)
		if err != nil {
			ok = false
			continue
		}
		at = at.UTC()
		*into = &at
	}
	return f, q, ok
}

// values is a query as an address has it.
func (f auditForm) values() url.Values {
	out := url.Values{}
	for name, value := range map[string]string{"since": f.Since, "until": f.Until, "verb": f.Verb, "verdict": f.Verdict, "task": f.Task, "run": f.Run, "member": f.Member} {
		if value != "" {
			out.Set(name, value)
		}
	}
	return out
}

func (c *Console) audit(v *visit) error {
	zone := v.in()
	f, q, ok := v.auditQuery(zone)
	p := auditPage{Query: f, Verbs: audited}
	m, err := v.actor()
	if err != nil {
		return err
	}
	var page api.AuditPage
	if ok {
		page, err = c.Authority.AuditSearch(v.r.Context(), m, q, v.cursor())
	}
	s := sheet{Name: "audit", Title: "Audit"}
	switch {
	case !ok || err != nil && refusalOf(err).Code == api.InvalidRequest:
		s.Status, p.Wrong = http.StatusBadRequest, "Times are written such as 2026-11-30T07:30; a task, a run and a member by their whole reference."
	case err != nil:
		return err
	}
	for _, e := range page.Items {
		p.Rows = append(p.Rows, v.auditRow(e, zone))
	}
	p.Export = f.values().Encode()
	if page.Next != "" {
		next := f.values()
		next.Set("cursor", page.Next)
		p.Next, p.Covered = next.Encode(), len(page.Items) == 0
	}
	s.Main = p
	return v.operate(s, "/audit", zone)
}

func (v *visit) auditRow(e api.AuditEntry, zone *time.Location) auditRow {
	r := auditRow{Number: e.Number, At: v.at(e.At, zone), Verb: e.Verb, State: state{"yes", "Done", "good"}, Task: e.Task, Run: e.Run, Other: e.Effect, Digest: e.Digest, Body: data("the authority", e.Body)}
	if e.Verdict != "ok" {
		r.State, r.Code = state{"no", "Refused", "bad"}, e.Verdict
	}
	return r
}

// auditExport writes the rows of a search as lines of JSON, oldest first. The last
// line says that it is the last: without it the file is not whole.
func (c *Console) auditExport(v *visit) error {
	_, q, ok := v.auditQuery(v.in())
	if !ok {
		return api.Refuse(api.InvalidRequest)
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	_ = http.NewResponseController(v.w).SetWriteDeadline(v.now.Add(exportIn)) // a server without one has no need of it
	return c.Authority.AuditExport(v.r.Context(), m, &attachment{v: v, name: "audit.jsonl"}, q, v.cursor())
}

const exportIn = 10 * time.Minute

// attachment is a file to be kept. It begins with its first byte, so that a
// refusal before it is a page.
type attachment struct {
	v     *visit
	name  string
	begun bool
}

func (a *attachment) Write(b []byte) (int, error) {
	if !a.begun {
		a.begun = true
		h := a.v.w.Header()
		h.Set("Content-Type", "application/jsonl; charset=utf-8")
		h.Set("Content-Disposition", `attachment; filename="`+a.name+`"`)
		a.v.w.WriteHeader(http.StatusOK)
	}
	return a.v.w.Write(b)
}
