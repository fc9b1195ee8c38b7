// Package tripwire audits a live deployment from outside (mission B16): with a
// scratch client and task of its own it tries what must be refused, looks at
// what can be seen, and takes everything back.
package tripwire

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

// Verdict is what came of one line.
type Verdict string

// The verdicts. What could not be tried although it should have been is a fail.
const (
	Pass          Verdict = "pass"
	Fail          Verdict = "fail"
	NotApplicable Verdict = "not_applicable"
)

// Line is one thing that was tried.
type Line struct {
	ID           string   `json:"id"`
	Title        string   `json:"title"`
	Verdict      Verdict  `json:"verdict"`
	Evidence     string   `json:"evidence"`     // what was done and what came back, or why nothing was
	Requirements []string `json:"requirements"` // of the threat model
}

// Report is the whole audit.
type Report struct {
	Target    string    `json:"target"`        // the authority's issuer
	Build     string    `json:"build"`         // that audited
	Binary    string    `json:"binary_sha256"` // of its executable, hexadecimal
	StartedAt time.Time `json:"started_at"`
	Lines     []Line    `json:"lines"`
}

// Failed tells whether something did not hold.
func (r Report) Failed() bool {
	for _, l := range r.Lines {
		if l.Verdict != Pass && l.Verdict != NotApplicable {
			return true
		}
	}
	return len(r.Lines) == 0
}

// Holder is somebody with a token that is renewed in a file, and the key that owns it.
type Holder struct {
	Token func() (string, error) // read anew each time; nil: there is nobody
	Key   *capability.Key
}

// Person calls the authority with an envelope and a key, and changes whatever is there now. A refusal is an *api.Refusal.
type Person interface {
	Call(ctx context.Context, method, path, kind string, body []byte, out any) error
}

// Gate is an operator's hold on admission.
type Gate interface {
	Close(context.Context) error
	Release(context.Context) error
}

// Effect is something that the scratch task asks of the guard. It may really happen, once, where a guard is broken.
type Effect struct {
	Action, Resource string
	Parameters       json.RawMessage
}

// Guard is a registered guard, and what may be tried at it.
type Guard struct {
	Name, URI       string
	Pod             Holder // another pod of it
	Granted, Denied Effect // the scratch consent names the first only
}

// Config says what is audited, and as whom.
type Config struct {
	Authority        string   // its issuer
	Replicas         []string // their origins, past whatever stands in front
	Admin            []string // origins of admin listeners
	Operator, Member Holder   // envelopes
	Workload         Holder   // the scratch task's own
	Second           Holder   // another pod of the same workload; may be nobody
	Stranger         Holder   // a workload of a trusted issuer that is registered nowhere; may be nobody
	Profile          string   // registered, that accepts the workload; empty: the audit registers one
	Guard            Guard
	Hosts            []Host
	Logs             []string // folders
	Gate             Gate     // nil: nothing is closed
	As               func(envelope string, key *capability.Key, by *http.Client) Person
	Build            string
	Running          builds.Build // of this very program
	FIPS             bool         // every process must compute in a validated module
	Say              func(Line)   // hears each line as it comes; may be nil
	Now              func() time.Time
}

// reason says why a line does not apply.
type reason string

func (r reason) Error() string { return string(r) }

// tripwire is one audit under way.
type tripwire struct {
	Config
	http  *http.Client
	heard *heard
	name  string // of what is registered for this audit
	scratch
	report Report
}

// Run audits. Its error is that of a deployment that cannot be audited; what does not hold is in the report.
func Run(ctx context.Context, c Config) (Report, error) {
	t := &tripwire{Config: c, heard: newHeard(), name: newName(), report: Report{Target: c.Authority, Build: c.Build, Binary: hex.EncodeToString(c.Running.Binary[:]), StartedAt: c.Now().UTC()}}
	t.http = t.heard.client()
	defer t.http.CloseIdleConnections()
	if err := t.begin(ctx); err != nil {
		return t.report, errors.Join(err, t.end(ctx))
	}
	t.attack(ctx)
	t.fallBack(ctx)
	t.look(ctx)
	t.close(ctx)
	t.line("A16.3", "a stale revision", []string{"A16", "A5"}, func() (string, error) { return t.staleRevision(ctx) })
	t.line("A12", "no secret stands in what can be read", []string{"A12", "B14"}, func() (string, error) { return t.secretsIn(ctx) })
	t.line("B16", "nothing is left behind", []string{"B16"}, func() (string, error) {
		err := t.end(ctx)
		return t.left, err
	})
	return t.report, nil
}

// line tries one thing and notes what came of it.
func (t *tripwire) line(id, title string, requirements []string, try func() (evidence string, err error)) {
	evidence, err := try()
	l := Line{ID: id, Title: title, Verdict: Pass, Evidence: evidence, Requirements: requirements}
	var why reason
	switch {
	case errors.As(err, &why):
		l.Verdict, l.Evidence = NotApplicable, why.Error()
	case err != nil:
		l.Verdict, l.Evidence = Fail, err.Error()
	case evidence == "":
		l.Verdict, l.Evidence = Fail, "nothing was seen"
	}
	t.report.Lines = append(t.report.Lines, l)
	if t.Say != nil {
		t.Say(l)
	}
}

// attempt is one thing that must be refused, with one of these codes and no other.
type attempt struct {
	what string
	try  func() error
	want []api.Code
}

// allRefused makes attempts, and tells what each was answered.
func allRefused(all ...attempt) (evidence string, err error) {
	for _, a := range all {
		code, err := refusedWith(a.try(), a.want)
		if err != nil {
			return "", fmt.Errorf("%s: %w", a.what, err)
		}
		evidence += fmt.Sprintf("; %s: %s", a.what, code)
	}
	return evidence[min(len("; "), len(evidence)):], nil
}

var errNotRefused = errors.New("it was not refused")

func refusedWith(err error, want []api.Code) (api.Code, error) {
	r, ok := errors.AsType[*api.Refusal](err)
	switch {
	case err == nil:
		return "", errNotRefused
	case !ok:
		return "", fmt.Errorf("it could not be tried: %w", err)
	}
	for _, code := range want {
		if r.Code == code {
			return code, nil
		}
	}
	return "", &undue{r.Code, want}
}

// undue is a refusal for another reason than the one that is due.
type undue struct {
	code api.Code
	want []api.Code
}

func (u *undue) Error() string {
	return fmt.Sprintf("it was refused with %s, where %v was due", u.code, u.want)
}

// passing are refusals of which a deployment under load has its share. They admit nothing, and say nothing of what was tried.
var passing = []api.Code{api.AdmissionClosed, api.ReadinessChanged, api.LeaseLost, api.Unavailable, api.TooManyRequests, api.OutcomeUnknown, api.DirectoryUnavailable}

// inconclusive tells whether nothing was learnt, so that the same may be tried again.
func inconclusive(err error) bool {
	u, ok := errors.AsType[*undue](err)
	return ok && slices.Contains(passing, u.code) || dpopclient.Refused(err, passing...) || errors.Is(err, dpopclient.ErrNoAnswer)
}
