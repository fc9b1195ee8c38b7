package closing

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

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
