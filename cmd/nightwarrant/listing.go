package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// listed is a command that prints a list, a page at a time.
type listed[T any] struct {
	command, short string                              // such as task list
	path           func(args []string) (string, error) // with what narrows it as its query
	args           cobra.PositionalArgs
	none, head     string
	row            func(T) string
}

func (l listed[T]) make(p program) *cobra.Command {
	var cursor string
	_, use, _ := strings.Cut(l.command, " ")
	if l.args == nil {
		l.args = cobra.NoArgs
	}
	c := p.personal(use, l.short, l.args, func(ctx context.Context, who *person, asJSON bool, args []string) error {
		path, err := l.path(args)
		if err != nil {
			return err
		}
		return answer(ctx, p, who, asJSON, "GET", with(path, "cursor", cursor), nil, func(b *strings.Builder, page api.Page[T]) {
			table(b, l.none, page.Items, l.head, l.row)
			more(b, l.command, page.Next)
		})
	})
	c.Flags().StringVar(&cursor, "cursor", "", "the `CURSOR` that the page before gave")
	return c
}

// plain is the path of a list that nothing narrows.
func plain(path string) func([]string) (string, error) {
	return func([]string) (string, error) { return path, nil }
}

// with adds a parameter to a path's query; an empty one is left out.
func with(path, name, value string) string {
	if value == "" {
		return path
	}
	divider := "?"
	if strings.Contains(path, "?") {
		divider = "&"
	}
	return path + divider + url.Values{name: {value}}.Encode()
}

func more(b *strings.Builder, command, next string) {
	if next != "" {
		fmt.Fprintf(b, "\nMore: nightwarrant %s --cursor %s\n", command, oneLine(next, 256))
	}
}

var errNotDone = errors.New("nothing was done")

// agree asks a person whether to go on, unless they have said so before.
func (p program) agree(question string) error {
	if err := p.say("%s Type yes: ", question); err != nil {
		return err
	}
	line, err := bufio.NewReader(io.LimitReader(p.in, 64)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if strings.TrimSpace(line) != "yes" {
		return errNotDone
	}
	return nil
}

// tagOf is the If-Match of a task's activation epoch.
func tagOf(epoch int64) string { return fmt.Sprintf("%q", fmt.Sprint(epoch)) }
