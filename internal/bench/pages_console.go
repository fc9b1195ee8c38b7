package bench

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/console"
)

const pagesOrigin = "https://console.bench.example"

// benchDoor lets in whom a header names: signing in is measured elsewhere.
type benchDoor struct{ h *pagesHouse }

func (d benchDoor) Middleware(next http.Handler) http.Handler { return next }

func (d benchDoor) Actor(r *http.Request) (authority.Actor, error) {
	return d.h.somebody(r.Header.Get("Bench-Subject"))
}

// sink takes an answer and keeps what is asked of it.
type sink struct {
	header http.Header
	status int
	body   []byte
}

func (s *sink) Header() http.Header { return s.header }

func (s *sink) WriteHeader(status int) { s.status = status }

func (s *sink) Write(b []byte) (int, error) {
	s.body = append(s.body, b...)
	return len(b), nil
}

// pages are what a browser gets of the console, by path, with what each page needs beside itself.
func (h *pagesHouse) pages(ctx context.Context) (map[string]func() (int, error), error) {
	c, err := console.New(console.Config{Authority: h.authority, Door: benchDoor{h}, Origin: pagesOrigin, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	m, err := h.somebody(pagesMember)
	if err != nil {
		return nil, err
	}
	tasks, err := h.authority.Tasks(ctx, m, "")
	if err != nil {
		return nil, err
	}
	task := tasks.Items[0]
	b := browser{c.Handler(), map[string]int{}}
	out := map[string]func() (int, error){}
	for path, subject := range map[string]string{
		"/": pagesMember, "/tasks/" + task.Task: pagesMember, "/runs": pagesMember, "/runs/" + task.LastRun.Run: pagesMember, "/decisions": pagesMember, "/ambiguous": pagesMember,
		"/acting": pagesMember, "/receipts/" + task.Consent: pagesMember, "/operate": pagesOperator, "/operate/tasks": pagesOperator, "/operate/audit": pagesOperator, "/operate/registry/roles": pagesOperator,
	} {
		name := reference.ReplaceAllString(path, "/…")
		out[name] = func() (int, error) { return b.load(ctx, path, subject) }
	}
	return out, nil
}

var (
	reference = regexp.MustCompile(`/[A-Za-z0-9_-]{22}$`)
	beside    = regexp.MustCompile(`(?:href|src)="(/static/[^"]+)"`)
)

// browser loads pages, and knows how large the files are that they need.
type browser struct {
	handler http.Handler
	files   map[string]int
}

// load returns what a page weighs.
func (b browser) load(ctx context.Context, path, subject string) (int, error) {
	page, err := b.get(ctx, path, subject)
	if err != nil {
		return 0, err
	}
	weight, seen := len(page), map[string]bool{}
	for _, found := range beside.FindAllSubmatch(page, -1) {
		file := string(found[1])
		if seen[file] {
			continue
		}
		seen[file] = true
		if _, known := b.files[file]; !known {
			text, err := b.get(ctx, file, subject)
			if err != nil {
				return 0, err
			}
			b.files[file] = len(text)
		}
		weight += b.files[file]
	}
	return weight, nil
}

func (b browser) get(ctx context.Context, path, subject string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, pagesOrigin+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Bench-Subject", subject)
	s := &sink{header: http.Header{}, status: http.StatusOK}
	b.handler.ServeHTTP(s, r)
	if s.status != http.StatusOK {
		return nil, fmt.Errorf("%s was answered %s", path, strconv.Itoa(s.status))
	}
	return s.body, nil
}
