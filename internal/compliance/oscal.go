package compliance

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"time"
)

// OSCALVersion is the version of the model that OSCAL writes.
const OSCALVersion = "1.1.3"

// namespace of our names, and of our properties in OSCAL.
const (
	namespace  = "nightwarrant/oscal/v1\x00"
	properties = "https://github.com/nightwarrant/nightwarrant/ns/oscal"
)

// The part of the OSCAL assessment-results model that a report needs.
type (
	oscal struct {
		Results assessmentResults `json:"assessment-results"`
	}
	assessmentResults struct {
		UUID       string     `json:"uuid"`
		Metadata   metadata   `json:"metadata"`
		ImportAP   importAP   `json:"import-ap"`
		Results    []result   `json:"results"`
		BackMatter backMatter `json:"back-matter"`
	}
	metadata struct {
		Title        string `json:"title"`
		LastModified string `json:"last-modified"`
		Version      string `json:"version"`
		OSCAL        string `json:"oscal-version"`
		Props        []prop `json:"props"`
	}
	importAP struct {
		Href string `json:"href"`
	}
	prop struct {
		Name  string `json:"name"`
		NS    string `json:"ns"`
		Value string `json:"value"`
	}
	result struct {
		UUID         string        `json:"uuid"`
		Title        string        `json:"title"`
		Description  string        `json:"description"`
		Start        string        `json:"start"`
		End          string        `json:"end"`
		Props        []prop        `json:"props"`
		Reviewed     reviewed      `json:"reviewed-controls"`
		Observations []observation `json:"observations"`
		Risks        []risk        `json:"risks,omitempty"`
		Findings     []finding     `json:"findings,omitempty"`
	}
	reviewed struct {
		Description string      `json:"description"`
		Selections  []selection `json:"control-selections"`
	}
	selection struct {
		Description string      `json:"description"`
		Include     []controlID `json:"include-controls,omitempty"`
		Exclude     []controlID `json:"exclude-controls,omitempty"`
	}
	controlID struct {
		ID string `json:"control-id"`
	}
	observation struct {
		UUID        string     `json:"uuid"`
		Title       string     `json:"title"`
		Description string     `json:"description"`
		Props       []prop     `json:"props"`
		Methods     []Method   `json:"methods"`
		Types       []string   `json:"types"`
		Evidence    []evidence `json:"relevant-evidence"`
		Collected   string     `json:"collected"`
		Remarks     string     `json:"remarks,omitempty"`
	}
	evidence struct {
		Href        string `json:"href,omitempty"`
		Description string `json:"description"`
	}
	risk struct {
		UUID        string `json:"uuid"`
		Title       string `json:"title"`
		Description string `json:"description"`
		Statement   string `json:"statement"`
		Status      string `json:"status"`
	}
	finding struct {
		UUID        string    `json:"uuid"`
		Title       string    `json:"title"`
		Description string    `json:"description"`
		Target      target    `json:"target"`
		Related     []related `json:"related-observations"`
	}
	target struct {
		Type   string       `json:"type"`
		ID     string       `json:"target-id"`
		Status targetStatus `json:"status"`
	}
	targetStatus struct {
		State   string `json:"state"`
		Reason  string `json:"reason"`
		Remarks string `json:"remarks,omitempty"`
	}
	related struct {
		UUID string `json:"observation-uuid"`
	}
	backMatter struct {
		Resources []resource `json:"resources"`
	}
	resource struct {
		UUID        string  `json:"uuid"`
		Title       string  `json:"title"`
		Description string  `json:"description"`
		Links       []rlink `json:"rlinks,omitempty"`
	}
	rlink struct {
		Href   string `json:"href"`
		Hashes []hash `json:"hashes,omitempty"`
	}
	hash struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"value"`
	}
)

// File is evidence from a file: it is named in the report, and not part of it.
type File struct {
	Name   string
	Digest [32]byte
}

// OSCAL spells the report in the form of NIST's assessment results. Its
// identifiers are derived from what they name, so a line that says the same in
// two reports has the same one in both.
func (r Report) OSCAL(files ...File) ([]byte, error) {
	back := resources(files)
	res := result{Title: "What was observed of " + r.Authority, Description: "Each observation says how it was made and, in its remarks, what it does not prove.",
		Start: instant(r.Start), End: instant(r.End), Props: []prop{{"fips-profile", properties, fmt.Sprint(r.FIPS)}, {"open-lines", properties, fmt.Sprint(len(r.Open()))}},
		Reviewed: r.reviewed(), Risks: r.risks()}
	named := map[string]string{}
	for _, f := range back {
		named[f.Title] = "#" + f.UUID
	}
	of := map[string][]related{}
	for n, id := range r.identifiers() {
		l := r.Lines[n]
		res.Observations = append(res.Observations, l.observation(id, named, r.Start))
		for _, c := range l.Controls {
			of[c] = append(of[c], related{id})
		}
	}
	res.Findings = r.findings(of)
	res.UUID = uuidOf("result", must(res))
	d := oscal{assessmentResults{Metadata: metadata{Title: "Compliance report of " + r.Authority, LastModified: instant(r.End), Version: cmp.Or(r.Tool, "unknown"), OSCAL: OSCALVersion,
		Props: []prop{{"authority", properties, cmp.Or(r.Authority, "unknown")}}}, ImportAP: importAP{"#" + back[0].UUID}, Results: []result{res}, BackMatter: backMatter{back}}}
	d.Results.UUID = uuidOf("document", must(d))
	return json.MarshalIndent(d, "", "  ")
}

func must(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs of strings
	}
	return string(b)
}

// identifiers of the lines: of what they say, and not of when.
func (r Report) identifiers() []string {
	out, times := make([]string, len(r.Lines)), map[string]int{}
	for n, l := range r.Lines {
		name := must([]any{l.Section, l.Subject, l.Controls, l.State, l.Found, l.Method, l.Source, l.Unproven})
		times[name]++
		out[n] = uuidOf("observation", name, fmt.Sprint(times[name]))
	}
	return out
}

func (l Line) observation(id string, files map[string]string, start time.Time) observation {
	at, kind := l.At, "control-objective"
	if at.IsZero() {
		at = start
	}
	if l.Open() {
		kind = "finding"
	}
	return observation{UUID: id, Title: cmp.Or(l.Subject, "unnamed"), Description: cmp.Or(l.Found, "Nothing is said."), Methods: []Method{l.Method}, Types: []string{kind},
		Props:    []prop{{"section", properties, string(l.Section)}, {"state", properties, string(l.State)}, {"open", properties, fmt.Sprint(l.Open())}},
		Evidence: []evidence{{files[l.Source], cmp.Or(l.Source, "the command line")}}, Collected: instant(at), Remarks: "Does not prove: " + cmp.Or(l.Unproven, "more than it says.")}
}

func (r Report) reviewed() reviewed {
	in, out := selection{Description: "Controls that a line of this report is about."}, selection{Description: "Controls that no line is about. What the threat model of this build says of them is not an observation."}
	for _, c := range r.Model.Controls {
		if len(r.about(c.ID)) > 0 {
			in.Include = append(in.Include, controlID{c.ID})
		} else {
			out.Exclude = append(out.Exclude, controlID{c.ID})
		}
	}
	v := reviewed{Description: "The ids of the mission, each with the statement that its finding repeats.", Selections: []selection{in}}
	if len(out.Exclude) > 0 {
		v.Selections = append(v.Selections, out)
	}
	return v
}

// about lists the lines about a control.
func (r Report) about(control string) (lines []Line) {
	for _, l := range r.Lines {
		for _, c := range l.Controls {
			if c == control {
				lines = append(lines, l)
			}
		}
	}
	return lines
}

// findings are one for each control that a line is about. Only what was observed and is not open is satisfied.
func (r Report) findings(of map[string][]related) (out []finding) {
	for _, c := range r.Model.Controls {
		if len(of[c.ID]) == 0 {
			continue
		}
		status := targetStatus{State: "not-satisfied", Reason: "fail"}
		switch r.Of(c.ID) {
		case Satisfied:
			status.State, status.Reason = "satisfied", "pass"
		case NotObserved:
			status.Reason, status.Remarks = "other", "Not observed: what there is was only stated, or nothing here can see it."
		}
		out = append(out, finding{UUID: uuidOf("finding", c.ID, status.State, must(of[c.ID])), Title: c.ID, Description: c.Statement,
			Target: target{"objective-id", c.ID, status}, Related: of[c.ID]})
	}
	return out
}

// risks are the residuals of the threat model: they stay.
func (r Report) risks() (out []risk) {
	for n, text := range r.Model.Residuals {
		out = append(out, risk{UUID: uuidOf("risk", text), Title: fmt.Sprintf("Residual %d", n+1), Description: text, Statement: "Stated in the threat model of this build, dated " + r.Model.Dated + ".", Status: "open"})
	}
	return out
}

func resources(files []File) []resource {
	out := []resource{{UUID: uuidOf("resource", "docs/how-to/compliance.md"), Title: "docs/how-to/compliance.md", Description: "What each section looks at, which is the plan of this assessment.",
		Links: []rlink{{Href: "docs/how-to/compliance.md"}}}}
	for _, f := range files {
		digest := hex.EncodeToString(f.Digest[:])
		out = append(out, resource{UUID: uuidOf("resource", f.Name, digest), Title: cmp.Or(clean(f.Name), "file"), Description: "A file that was given as evidence.",
			Links: []rlink{{Href: "file:" + url.PathEscape(f.Name), Hashes: []hash{{"SHA-256", digest}}}}})
	}
	return out
}

func instant(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// uuidOf is the UUID of a name, so that two reports can be compared. OSCAL takes
// versions 4 and 5 only. Version 5 is SHA-1, which a FIPS module refuses; this is
// version 4, whose bits may be pseudo-random (RFC 9562 §5.4): those of a SHA-256.
func uuidOf(parts ...string) string {
	u := sha256.Sum256(append([]byte(namespace), must(parts)...))
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	s := hex.EncodeToString(u[:16])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
