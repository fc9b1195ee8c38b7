package closing

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/nightwarrant/nightwarrant/internal/demo"
)

// Our own message in the log of changes. It is written by whoever holds the
// gate alone and has seen that it is not open, so that nothing is in between:
// the end of a decision that ran out has no row of its own.
const (
	markPrefix = "nightwarrant-closing"
	markSealed = "sealed"
)

// admits are the verbs that admit something.
var admits = func() map[string]bool {
	all := map[string]bool{}
	for _, verb := range demo.Admitting {
		all[verb] = true
	}
	return all
}()

// order follows what happened in the order in which it was committed, and no
// clock. It begins closed: a slot is made before the gate has ever opened.
type order struct {
	open    bool
	epoch   int64 // of the last row of the decision
	seal    int64 // no decision of this epoch opens any more
	highest int64 // number of an admitted effect
	in      bool  // a transaction
	whole   []event

	counted
}

// counted is what was found since the last look.
type counted struct {
	admitted int            // altogether
	late     int            // between a close and the next opening: must be 0
	lateVerb map[string]int // by verb
	closes   int
	last     int64    // the highest number of an effect that was admitted before the last close
	wrong    []string // what else must not be
}

// take reads the next line. Lines of one transaction count when it has committed.
func (o *order) take(line string) error {
	e, matters, err := parse(line)
	if err != nil || !matters {
		return err
	}
	switch {
	case e.kind == began && !o.in:
		o.in, o.whole = true, o.whole[:0]
	case e.kind == committed && o.in:
		o.in = false
		for _, one := range o.whole {
			o.follow(one)
		}
	case e.kind > committed && o.in:
		o.whole = append(o.whole, e)
	default:
		return fmt.Errorf("the line %.80q stands outside of its transaction", line)
	}
	return nil
}

func (o *order) follow(e event) {
	switch e.kind {
	case sealed:
		o.shut()
		o.seal = o.epoch
	case decided:
		o.decide(e)
	case admitted:
		o.admitted++
		switch {
		case !o.open:
			o.late++
			if o.lateVerb == nil {
				o.lateVerb = map[string]int{}
			}
			o.lateVerb[e.verb]++
		default:
			o.highest = max(o.highest, e.number)
		}
	}
}

func (o *order) decide(e event) {
	if e.epoch < o.epoch {
		o.wrong = append(o.wrong, fmt.Sprintf("epoch %d came after %d", e.epoch, o.epoch))
	}
	switch {
	case !e.open:
		o.shut()
	case e.epoch <= o.seal:
		o.wrong = append(o.wrong, fmt.Sprintf("the decision of epoch %d had run out and was renewed", e.epoch))
	case !o.open && e.epoch <= o.epoch:
		o.wrong = append(o.wrong, fmt.Sprintf("it opened without a new epoch: %d", e.epoch))
		o.open = true
	default:
		o.open = true
	}
	o.epoch = max(o.epoch, e.epoch)
}

func (o *order) shut() {
	if !o.open {
		return
	}
	o.last = o.highest
	o.closes++
	o.open = false
}

// look returns what was found since the last look, and begins anew.
func (o *order) look() counted {
	c := o.counted
	o.counted = counted{}
	return c
}

// What the counting needs of the output of test_decoding, which has no grammar
// but its source (contrib/test_decoding): a line for each change, transactions
// whole and in the order of their commits.
const (
	auditTable    = "table nw.audit: "
	decisionTable = "table nw.readiness_decision: "
	messagePrefix = "message: transactional: 1 prefix: " + markPrefix + ", "
)

// kind of an event.
type kind int

const (
	began kind = iota + 1
	committed
	admitted // an audit row that says that something was admitted
	decided  // the decision's row as it was written
	sealed   // our own mark: nothing can be admitted from here on
)

// event is one line that matters.
type event struct {
	kind   kind
	open   bool   // of decided
	epoch  int64  // of decided
	verb   string // of admitted
	number int64  // of an admitted effect: of its admission, cluster-wide
}

// parse reads one line. A line of another table is no event; one that cannot be
// read is an error, because what is not read is not counted.
func parse(line string) (e event, matters bool, err error) {
	switch {
	case strings.HasPrefix(line, "BEGIN"):
		return event{kind: began}, true, nil
	case strings.HasPrefix(line, "COMMIT"):
		return event{kind: committed}, true, nil
	case strings.HasPrefix(line, messagePrefix):
		return event{kind: sealed}, strings.HasSuffix(line, " content:"+markSealed), nil
	case strings.HasPrefix(line, auditTable):
		e, matters, err = parseAudit(line[len(auditTable):])
	case strings.HasPrefix(line, decisionTable):
		e, matters, err = parseDecision(line[len(decisionTable):])
	}
	if err != nil {
		err = fmt.Errorf("the line %.80q cannot be read: %w", line, err)
	}
	return e, matters, err
}

// parseAudit reads an audit row. The same attempt that asks again is told the
// same again (P13): that admits nothing.
func parseAudit(change string) (event, bool, error) {
	row, err := inserted(change, "INSERT: ")
	if err != nil {
		return event{}, false, err
	}
	verb, known := row["verb"]
	verdict, judged := row["verdict"]
	if !known || !judged {
		return event{}, false, fmt.Errorf("it has no verb or no verdict")
	}
	if verdict != "ok" || !admits[verb] {
		return event{}, false, nil
	}
	e := event{kind: admitted, verb: verb}
	if verb != "admit" {
		return e, true, nil
	}
	var body struct {
		More struct {
			Admission int64 `json:"admission"`
			Again     bool  `json:"again"`
		} `json:"more"`
	}
	text, err := hex.DecodeString(strings.TrimPrefix(row["body"], `\x`))
	if err == nil {
		err = json.Unmarshal(text, &body)
	}
	e.number = body.More.Admission
	return e, !body.More.Again, err
}

func parseDecision(change string) (event, bool, error) {
	row, err := inserted(change, "UPDATE: ", "INSERT: ")
	if err != nil {
		return event{}, false, err
	}
	epoch, err := strconv.ParseInt(row["epoch"], 10, 64)
	if err != nil {
		return event{}, false, err
	}
	state := row["state"]
	if state != "open" && state != "closed" {
		return event{}, false, fmt.Errorf("its state is %.20q", state)
	}
	return event{kind: decided, open: state == "open", epoch: epoch}, true, nil
}

// inserted is the row after one of these operations; any other one has no place in these tables.
func inserted(change string, operations ...string) (map[string]string, error) {
	for _, o := range operations {
		if rest, ok := strings.CutPrefix(change, o); ok {
			if _, tuple, ok := strings.Cut(rest, "new-tuple: "); ok && strings.HasPrefix(rest, "old-key: ") {
				rest = tuple
			}
			return columns(rest)
		}
	}
	return nil, fmt.Errorf("it is no %s", strings.Join(operations, "or "))
}

// columns reads name[type]:value pairs. Values are in quotes, a quote in them
// doubled, or a number, true, false, null or unchanged-toast-datum.
func columns(text string) (map[string]string, error) {
	row := map[string]string{}
	for text != "" {
		name, rest, _ := strings.Cut(text, "[")
		typ, rest, ok := strings.Cut(rest, "]:")
		if !ok || strings.ContainsAny(name, " :'") || strings.Contains(strings.ReplaceAll(typ, "[]", ""), "[") {
			return nil, fmt.Errorf("what begins with %.40q is no column with its type", name)
		}
		if row[name], text, ok = value(rest); !ok {
			return nil, fmt.Errorf("the value of column %.40q does not end", name)
		}
	}
	return row, nil
}

// value reads one value and returns what stands after it and the space.
func value(text string) (v, rest string, ok bool) {
	if !strings.HasPrefix(text, "'") {
		v, rest, _ = strings.Cut(text, " ")
		return v, rest, v != ""
	}
	var b strings.Builder
	for text = text[1:]; ; {
		part, after, found := strings.Cut(text, "'")
		if !found {
			return "", "", false
		}
		b.WriteString(part)
		if !strings.HasPrefix(after, "'") {
			rest, spaced := strings.CutPrefix(after, " ")
			return b.String(), rest, spaced || after == ""
		}
		b.WriteByte('\'')
		text = after[1:]
	}
}
