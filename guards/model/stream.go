package model

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/guards"
)

const maxEvent = 1 << 20 // bytes of one event

// event is one of a stream of server-sent events (HTML §9.2.6), as far as this protocol uses them.
type event struct {
	name string
	data []byte
}

var eventName = regexp.MustCompile(`^[a-z][a-z0-9._-]{0,63}$`)

// next reads one event; comments, ids and waiting times are dropped. At the end of the stream the error is io.EOF.
func next(from *bufio.Reader) (e event, err error) {
	read := 0
	for {
		line, err := readLine(from, maxEvent-read)
		if read += len(line); err != nil {
			return event{}, err
		}
		field, value, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "":
			if len(bytes.TrimRight(line, "\r\n")) == 0 && e.data != nil {
				return e, nil
			}
		case "event":
			e.name = string(value)
		case "data":
			if e.data != nil {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
			if e.data == nil {
				e.data = []byte{}
			}
		}
	}
}

var errEvent = errors.New("an event is too large")

func readLine(from *bufio.Reader, most int) (line []byte, err error) {
	for {
		piece, err := from.ReadSlice('\n')
		line = append(line, piece...)
		switch {
		case len(line) > most:
			return nil, errEvent
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// finished are the events with which a response ends.
var finished = []string{"response.completed", "response.incomplete", "response.failed"}

// stream passes events on as they come.
func (l *Ledger) stream(c *call, to guards.Reply, from io.Reader) received {
	s := &streaming{reader: l.newReader(c), responses: c.dialect.tells, to: to}
	s.most = maxEvent
	err := s.run(bufio.NewReaderSize(from, 8<<10))
	got := received{used: s.used, partial: err != nil}
	switch {
	case errors.Is(err, errSubstituted):
		l.substitution(c)
		got.trouble = err.Error()
	case err != nil:
		got.trouble = "it broke off"
	case s.failed:
		got.trouble = "it is an error of the provider"
	}
	if err != nil && s.begun {
		s.give("error", []byte(`{"error":`+brokenText+`}`))
	}
	return got
}

type streaming struct {
	*reader
	responses bool
	to        guards.Reply
	begun     bool
}

// run ends without an error when the stream has come to its own end.
func (s *streaming) run(from *bufio.Reader) error {
	for {
		e, err := next(from)
		if err != nil {
			return err
		}
		if string(e.data) == "[DONE]" {
			s.give("", e.data)
			return nil
		}
		over, err := s.pass(e)
		if err != nil || over {
			return err
		}
	}
}

// pass gives one event on.
func (s *streaming) pass(e event) (over bool, err error) {
	allowed := chatMembers
	if s.responses {
		allowed = eventMembers
	}
	kind := typeOf(e.data)
	if s.responses && kind == "error" { // its members are the provider's words
		s.failed = true
		s.give("error", []byte(`{"type":"error","error":`+errorText+`}`))
		return true, nil
	}
	data, err := s.clean(e.data, allowed)
	if err != nil {
		return false, err
	}
	var line bytes.Buffer // without the line ends that may stand between the tokens of JSON
	if err := json.Compact(&line, data); err != nil {
		return false, err
	}
	s.give(e.name, line.Bytes())
	return s.responses && slices.Contains(finished, kind), nil
}

func typeOf(data []byte) (kind string) {
	_ = canonical.MembersWithin(maxEvent, data, func(name []byte, v canonical.Value) error {
		if string(name) == "type" {
			kind, _ = v.Text()
		}
		return nil
	})
	return kind
}

// give writes one event of one line, which the scrubber has seen.
func (s *streaming) give(name string, data []byte) {
	if !s.begun {
		s.begun = true
		s.to.Begin("text/event-stream")
	}
	var out bytes.Buffer
	if eventName.MatchString(name) {
		fmt.Fprintf(&out, "event: %s\n", name)
	}
	fmt.Fprintf(&out, "data: %s\n\n", data)
	_, _ = s.to.Write(out.Bytes())
}
