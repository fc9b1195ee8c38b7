package console

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Words that somebody writes to confirm, so that no click alone does it.
const (
	wordCutOff = "cut off"
	wordEnd    = "end consent"
	wordAll    = "everything"
)

// confirmation is a form that wants a word before it does anything.
type confirmation struct {
	Action string // where it is sent
	Field  string // id of its input
	Word   string
	Button string
	Client string // of a client's
	Epoch  int64  // that was shown; 0: none
	Wrong  string
}

// operatedTaskPage is one task as operators see it, with what a cut-off would end.
type operatedTaskPage struct {
	Task, Client string
	Title        foreign
	Rhythm       string
	State        state
	Until        moment
	NextEpoch    int64
	Scope        *stopping
	CutOff, End  confirmation
	Ended        *ended
	Rests        []named
	Document     foreign
}

func (c *Console) operatedTask(v *visit) error { return v.operatedTask("") }

// operatedTask shows the task; asked is the word that was asked for and not given.
func (v *visit) operatedTask(asked string) error {
	t, err := v.detail(v.reference())
	if err != nil {
		return err
	}
	d := taskOf(t.Document)
	zone := v.in(d.Schedule)
	p := operatedTaskPage{Task: t.Task.Task, Client: d.Client, Title: theirs(d.Client, d.Title), Rhythm: rhythm(d.Schedule), State: state{"no", "Not allowed", "calm"}, NextEpoch: t.ActivationEpoch + 1,
		Ended: v.endedOf(t, zone), Rests: restsOf(t), Document: data("an operator", t.Document)}
	if t.Consented {
		p.State = state{"yes", "Allowed", "good"}
		if t.ConsentUntil != nil {
			p.Until = v.at(*t.ConsentUntil, zone)
		}
	}
	if p.Scope, err = v.stopping(t.Task.Task, zone); err != nil {
		return err
	}
	at := pathOperate + "/tasks/" + t.Task.Task
	p.CutOff = confirmation{Action: at + "/cut-off", Field: "cut-off", Word: wordCutOff, Button: "Cut this task off", Epoch: t.ActivationEpoch}
	p.End = confirmation{Action: at + "/revoke", Field: "end", Word: wordEnd, Button: "End its consent", Epoch: t.ActivationEpoch}
	s := sheet{Name: "operated-task", Title: "A task"}
	if asked != "" {
		s.Status = http.StatusBadRequest
	}
	for _, one := range []*confirmation{&p.CutOff, &p.End} {
		if one.Word == asked {
			one.Wrong = notTheWord(asked)
		}
	}
	s.Main = p
	return v.operate(s, "/tasks", zone)
}

func notTheWord(word string) string {
	return "Nothing was done. To confirm, write “" + word + "”, without the quotation marks."
}

func (c *Console) cutOff(v *visit) error {
	return v.ending(wordCutOff, "cut-off", c.Authority.CutOffShown)
}

// endConsent revokes in the operators' name.
func (c *Console) endConsent(v *visit) error {
	return v.ending(wordEnd, "ended", c.Authority.RevokeShown)
}

// ending does what a word confirms, and answers when it is committed.
func (v *visit) ending(word, told string, end func(context.Context, authority.Actor, string, int64) (api.Epoch, error)) error {
	f, err := v.form("word", "epoch")
	if err != nil {
		return err
	}
	shown, err := strconv.ParseInt(f.Get("epoch"), 10, 64)
	if err != nil {
		return api.Refuse(api.InvalidRequest)
	}
	if !sameWord(f.Get("word"), word) {
		return v.operatedTask(word)
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := end(v.r.Context(), m, v.reference(), shown); err != nil {
		return err
	}
	v.tell(told, time.Since(began).Milliseconds())
	return v.see("%s/tasks/%s", pathOperate, v.reference())
}

// sameWord compares as people write.
func sameWord(written, word string) bool {
	return strings.EqualFold(strings.Join(strings.Fields(written), " "), word)
}

// cutOffPage says whom a cut-off of one client, or of everything, concerns.
type cutOffPage struct {
	Clients []string
	Chosen  string
	Scopes  []cutOffScope
}

type cutOffScope struct {
	Title, Of             string
	Tasks, Runs, InFlight string
	Confirm               confirmation
}

func (c *Console) cutOffs(v *visit) error { return v.cutOffs(v.r.URL.Query().Get("client"), "") }

// cutOffs shows both scopes; asked is the word that was asked for and not given.
func (v *visit) cutOffs(client, asked string) error {
	m, err := v.actor()
	if err != nil {
		return err
	}
	page, err := v.c.Authority.Registry(v.r.Context(), m, "Client", "")
	if err != nil {
		return err
	}
	p := cutOffPage{Chosen: client}
	for _, e := range page.Items {
		p.Clients = append(p.Clients, e.Name)
	}
	of := []string{client, ""}
	if client == "" {
		of = of[1:]
	}
	for _, one := range of {
		if !m.Operator() {
			break // a scope is for whoever may use it
		}
		scope, err := v.cutOffScope(one)
		if err != nil {
			return err
		}
		if scope.Confirm.Word == asked {
			scope.Confirm.Wrong = notTheWord(asked)
		}
		p.Scopes = append(p.Scopes, scope)
	}
	s := sheet{Name: "cut-off", Title: "Cut off", Main: p}
	if asked != "" {
		s.Status = http.StatusBadRequest
	}
	return v.operate(s, "/cut-off", nil)
}

func (v *visit) cutOffScope(client string) (out cutOffScope, err error) {
	m, err := v.actor()
	if err != nil {
		return out, err
	}
	s, err := v.c.Authority.CutOffScope(v.r.Context(), m, client)
	if err != nil {
		return out, err
	}
	number := func(n int64, thing string) string {
		text := count(n, thing)
		if n >= s.Bound {
			text += " or more"
		}
		return text
	}
	out = cutOffScope{Title: "Everything", Of: "every client", Tasks: number(s.Tasks, "task"), Runs: number(s.Runs, "open run"), InFlight: number(s.InFlight, "effect"),
		Confirm: confirmation{Action: pathOperate + "/cut-off", Field: "all", Word: wordAll, Button: "Cut everything off"}}
	if client != "" {
		out.Title, out.Of = "One client: "+client, client
		out.Confirm.Field, out.Confirm.Word, out.Confirm.Button, out.Confirm.Client = "client", client, "Cut this client off", client
	}
	return out, nil
}

// cutOffMany cuts a client off or, without one, everything.
func (c *Console) cutOffMany(v *visit) error {
	f, err := v.form("word", "client")
	if err != nil {
		return err
	}
	client, word := f.Get("client"), wordAll
	if client != "" {
		word = client
	}
	if !sameWord(f.Get("word"), word) {
		return v.cutOffs(client, word)
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	var done api.CutOffResult
	if client == "" {
		done, err = c.Authority.CutOffAll(v.r.Context(), m)
	} else {
		done, err = c.Authority.CutOffClient(v.r.Context(), m, client)
	}
	if err != nil {
		return err
	}
	v.tell("cut-off-many", done.Tasks, done.Runs)
	return v.see("%s/cut-off", pathOperate)
}
