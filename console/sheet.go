package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io/fs"
	"math"
	"net/http"
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

//go:embed templates static
var files embed.FS

// sheets are the pages' templates, each with the frame around it, and the files that they name.
type sheets struct {
	pages map[string]*template.Template
	files map[string]file // by the name under /static/
}

// file is one of our own, under a name that holds its digest.
type file struct {
	kind    string
	content []byte
}

// sheet is one page to be shown.
type sheet struct {
	Name   string // of its template
	Title  string
	Here   string // entry of the navigation
	Status int    // 200 when 0
	Every  int    // seconds after which the page refreshes what may have changed; 0 never
	Main   any

	Zone     string // of its times
	Told     string // what was just done
	Outside  bool   // nobody is signed in
	Session  *sessionPart
	Leaves   bool // people sign out here
	Operates bool // there is more in the navigation
}

func parseSheets() (s sheets, err error) {
	s = sheets{pages: map[string]*template.Template{}, files: map[string]file{}}
	links, err := s.addFiles()
	if err != nil {
		return s, err
	}
	frame, err := template.New("frame.html").Funcs(template.FuncMap{"file": func(name string) string { return links[name] }, "nav": navOf, "many": many}).
		ParseFS(files, "templates/frame.html", "templates/parts.html", "templates/terms.html")
	if err != nil {
		return s, err
	}
	names, err := fs.Glob(files, "templates/*.html")
	for _, name := range names {
		page := strings.TrimSuffix(path.Base(name), ".html")
		if page == "frame" || page == "parts" || page == "terms" {
			continue
		}
		one, err := template.Must(frame.Clone()).ParseFS(files, name)
		if err != nil {
			return s, err
		}
		s.pages[page] = one
	}
	return s, err
}

func (s sheets) addFiles() (links map[string]string, err error) {
	links = map[string]string{}
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "htmx.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		content, err := files.ReadFile("static/" + name)
		if err != nil {
			return nil, err
		}
		digest := sha256.Sum256(content)
		ext := path.Ext(name)
		as := strings.TrimSuffix(name, ext) + "." + base64.RawURLEncoding.EncodeToString(digest[:9]) + ext
		s.files[as] = file{kind, content}
		links[name] = "/static/" + as
	}
	return links, nil
}

// static serves our own files. A name holds the digest of its content, so that what a browser keeps is never old.
func (c *Console) static(v *visit) error {
	f, ok := c.sheets.files[v.r.PathValue("file")]
	if !ok {
		return api.Refuse(api.NotFound)
	}
	v.w.Header().Set("Content-Type", f.kind)
	v.w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, err := v.w.Write(f.content)
	if err != nil {
		return nil //nolint:nilerr // the caller is gone
	}
	return nil
}

// show renders a page whole before anything of it is sent. zone is that of its times; nil names none.
func (v *visit) show(s sheet, zone *time.Location) error {
	if zone != nil {
		s.Zone = zone.String()
	}
	s.Told = v.told()
	if !s.Outside {
		s.Session = v.session()
		_, s.Leaves = v.c.Door.(Porter)
		if m, err := v.actor(); err == nil {
			s.Operates = m.Auditor()
		}
	}
	var out bytes.Buffer
	if err := v.c.sheets.pages[s.Name].ExecuteTemplate(&out, "frame.html", s); err != nil {
		return err
	}
	if s.Status == 0 {
		s.Status = http.StatusOK
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(s.Status)
	_, _ = v.w.Write(out.Bytes()) // the caller may be gone
	return nil
}

// told reads, once, what the page before left to be said. It can only be one of
// our own sentences: a link cannot make a page say anything.
func (v *visit) told() string {
	word, rest, _ := strings.Cut(v.c.kept(v.r, cookieTold), ".")
	if word == "" {
		return ""
	}
	v.cookie(cookieTold, "", -time.Second)
	say, ok := sayings[word]
	if !ok {
		return ""
	}
	first, second, _ := strings.Cut(rest, ".")
	return say(number(first), number(second))
}

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return n
}

// sayings are what a page may say of what was just done.
var sayings = map[string]func(a, b int64) string{
	"stopped": func(int64, int64) string {
		return "Stopped, and committed. Nothing new is let through for this task any more."
	},
	"declined": func(int64, int64) string {
		return "You did not allow it. Nothing runs, and you will not be asked about this offer again."
	},
	"approved": func(int64, int64) string { return "You said yes, once. The run goes on with exactly this." },
	"denied": func(int64, int64) string {
		return "You said no. The run goes on without it or ends, and does not count as a success."
	},
	"saved":   func(int64, int64) string { return "Saved." },
	"finding": func(int64, int64) string { return "Recorded. Nothing is repeated by it." },
	"cut-off": func(ms, _ int64) string {
		return fmt.Sprintf("Cut off, and committed %d ms after the click. What was granted before is dead; the consent stands, and the next time fires.", ms)
	},
	"ended": func(ms, _ int64) string {
		return fmt.Sprintf("The consent has ended, committed %d ms after the click. Nothing runs until its owner agrees to a new offer.", ms)
	},
	"cut-off-many": func(tasks, runs int64) string {
		return "Cut off, and committed: " + count(tasks, "task") + ", " + count(runs, "open run") + ". What was granted before is dead; consents stand, and the next times fire."
	},
}

// many counts things, whatever kind of integer their number is.
func many(n any, thing string) string { return count(reflect.ValueOf(n).Int(), thing) }

// nav is one entry of the navigation.
type nav struct {
	Path, Text string
	Here       bool
}

func navOf(path, text, name, here string) nav { return nav{path, text, name == here} }
