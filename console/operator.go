package console

import (
	"fmt"
	"net/url"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// operatorRoutes are the operators' pages. Auditors see them and change nothing:
// the role is asked for again by each page, and once more by each verb.
func (c *Console) operatorRoutes() []Route {
	return []Route{
		{"GET", pathOperate, false, Auditor, c.board},
		{"GET", pathOperate + "/tasks", false, Auditor, c.allTasks},
		{"GET", pathOperate + "/tasks/{reference}", false, Auditor, c.operatedTask},
		{"POST", pathOperate + "/tasks/{reference}/cut-off", false, Operator, c.cutOff},
		{"POST", pathOperate + "/tasks/{reference}/revoke", false, Operator, c.endConsent},
		{"GET", pathOperate + "/stranded", false, Auditor, c.stranded},
		{"GET", pathOperate + "/registry/{kind}", false, Auditor, c.registry},
		{"GET", pathOperate + "/registry/{kind}/{name}", false, Auditor, c.entry},
		{"GET", pathOperate + "/requirements", false, Auditor, c.requirements},
		{"GET", pathOperate + "/cut-off", false, Auditor, c.cutOffs},
		{"POST", pathOperate + "/cut-off", false, Operator, c.cutOffMany},
		{"GET", pathOperate + "/audit", false, Auditor, c.audit},
		{"GET", pathOperate + "/audit/export", false, Auditor, c.auditExport},
	}
}

const pathOperate = "/operate"

// operating is the navigation of operators' pages, and whether who looks may change anything.
type operating struct {
	Pages   []nav
	Changes bool
}

// operated is what every operators' page has.
type operated struct {
	Operating operating
	Main      any
}

// operate shows one of the operators' pages.
func (v *visit) operate(s sheet, here string, zone *time.Location) error {
	m, err := v.actor()
	if err != nil {
		return err
	}
	o := operating{Changes: m.Operator()}
	for _, p := range [][2]string{{"", "Readiness"}, {"/tasks", "All tasks"}, {"/stranded", "Stranded"}, {"/registry/clients", "Registry"}, {"/requirements", "Requirements"}, {"/cut-off", "Cut off"}, {"/audit", "Audit"}} {
		o.Pages = append(o.Pages, nav{pathOperate + p[0], p[1], p[0] == here})
	}
	s.Here, s.Main = "operate", operated{o, s.Main}
	return v.show(s, zone)
}

// boardPage is what must be good, and how it is.
type boardPage struct {
	State      state
	Since      moment
	Why        string
	Epoch      int64
	Generation int64
	Rows       []boardRow
}

type boardRow struct {
	Family, Component string
	State             state
	Why               string
	Instances, Needed int64
	Age               string
	Since             moment
	Tasks             int64
}

// reasons say why a report is bad or admission closed.
var reasons = map[string]string{
	"start": "Nothing has been judged good yet.", "held": "An operator holds it closed.", "absent": "Nobody reports it.", "stale": "The last report is too old.",
	"unhealthy": "It says itself that it does not work.", "incompatible": "It speaks a version that is not required.", "settings": "It is not set as it must be.",
	"schema": "The database has another version than the replica.", "disk": "There is too little room.", "unreachable": "It does not answer.",
	"material": "Keys or records are not what they must be.", "canary": "A test of it went wrong.", "skew": "Its clock is off.", "profile": "A profile that is required cannot be judged.",
	"requirement": "What is required has changed.", "incarnation": "The database was replaced or restored.", "expired": "Nobody has renewed the decision.", "good": "",
}

func (c *Console) board(v *visit) error {
	m, err := v.actor()
	if err != nil {
		return err
	}
	b, err := c.Authority.Board(v.r.Context(), m)
	if err != nil {
		return err
	}
	zone := v.in()
	p := boardPage{State: state{"no", "Closed", "bad"}, Since: v.at(b.Since, zone), Epoch: b.Epoch, Generation: b.Requirement}
	if b.Open {
		p.State = state{"yes", "Open", "good"}
	} else {
		p.Why = reasons[b.Reason]
		if b.Family != "" {
			p.Why = upper(b.Family) + ": " + p.Why
		}
	}
	for _, r := range b.Rows {
		p.Rows = append(p.Rows, v.boardRow(r, zone))
	}
	return v.operate(sheet{Name: "operate", Title: "Readiness", Every: 2, Main: p}, "", zone)
}

func (v *visit) boardRow(r api.BoardRow, zone *time.Location) boardRow {
	out := boardRow{Family: r.Family, Component: r.Component, State: state{"yes", "Good", "good"}, Instances: r.Instances, Needed: r.Required, Age: "–", Tasks: r.Tasks}
	if !r.Good {
		out.State, out.Why = state{"no", "Bad", "bad"}, reasons[r.Reason]
	}
	if r.AgeMS >= 0 {
		out.Age = fmt.Sprintf("%.1f s", float64(r.AgeMS)/1000)
	}
	if r.Since != nil {
		out.Since = v.at(*r.Since, zone)
	}
	return out
}

// operatedTaskLine is a task in a list of operators'.
type operatedTaskLine struct {
	Task   string
	Title  foreign
	Client string
	State  state
	Epoch  int64
	Last   *runLine
	Next   moment
	Gone   moment // its owner has left
	Member string
}

type operatedTasksPage struct {
	Tasks []operatedTaskLine
	Next  string
}

func (c *Console) allTasks(v *visit) error {
	m, err := v.actor()
	if err != nil {
		return err
	}
	page, err := c.Authority.AllTasks(v.r.Context(), m, v.cursor())
	if err != nil {
		return err
	}
	zone, p := v.in(), operatedTasksPage{Next: url.QueryEscape(page.Next)}
	for _, t := range page.Items {
		l := v.taskLine(t, taskOf(t.Document), zone)
		p.Tasks = append(p.Tasks, operatedTaskLine{Task: t.Task, Title: l.Title, Client: l.Client, State: l.State, Epoch: t.ActivationEpoch, Last: l.Last, Next: l.Next})
	}
	return v.operate(sheet{Name: "operated-tasks", Title: "All tasks", Main: p}, "/tasks", zone)
}

func (c *Console) stranded(v *visit) error {
	m, err := v.actor()
	if err != nil {
		return err
	}
	page, err := c.Authority.Stranded(v.r.Context(), m, v.cursor())
	if err != nil {
		return err
	}
	zone, p := v.in(), operatedTasksPage{Next: url.QueryEscape(page.Next)}
	for _, t := range page.Items {
		d := taskOf(t.Document)
		p.Tasks = append(p.Tasks, operatedTaskLine{Task: t.Task, Title: theirs(d.Client, t.Title), Client: d.Client, Member: t.Member, Gone: v.at(t.DepartedAt, zone)})
	}
	return v.operate(sheet{Name: "stranded", Title: "Stranded tasks", Main: p}, "/stranded", zone)
}

// cursor is what the page before gave.
func (v *visit) cursor() string { return v.r.URL.Query().Get("cursor") }
