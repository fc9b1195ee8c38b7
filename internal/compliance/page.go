package compliance

import (
	_ "embed"
	"html/template"
	"io"
	"time"
)

//go:embed page.html
var pageText string

// page is one HTML page for paper: it loads nothing and runs nothing.
var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"instant": func(t time.Time) string {
		if t.IsZero() {
			return "—"
		}
		return t.UTC().Format("2006-01-02 15:04:05Z")
	},
	"method": func(m Method) string {
		return map[Method]string{Examine: "examined", Test: "tested", Interview: "said"}[m]
	},
	"mark": func(l Line) string {
		switch {
		case l.Open():
			return "open"
		case l.State == Satisfied:
			return "good"
		}
		return "plain"
	},
}).Parse(pageText))

// HTML writes the report as one printable page.
func (r Report) HTML(w io.Writer) error {
	return page.Execute(w, struct {
		Report
		Sections []Section
	}{r, Sections})
}
