package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// exportLine bounds the last line of an export, which is small.
const exportLine = 4 << 10

// export copies an export as it comes. One without its last line is not whole.
func (p *person) export(ctx context.Context, path string, out io.Writer) (end api.AuditEnd, err error) {
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	for range 2 { // the first may only bring a nonce
		var again bool
		if end, again, err = p.exportOnce(ctx, path, out); !again {
			break
		}
	}
	return end, err
}

func (p *person) exportOnce(ctx context.Context, path string, out io.Writer) (end api.AuditEnd, again bool, err error) {
	r, err := p.request(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return end, false, err
	}
	client := *p.http
	client.Timeout = 0 // the context bounds it
	answer, err := client.Do(r)
	if err != nil {
		return end, false, fmt.Errorf("%w (%s)", errNoAnswer, oneLine(err.Error(), 200))
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	p.nonce = answer.Header.Get(api.HeaderNonce)
	if answer.StatusCode != http.StatusOK {
		err = refusedBy(answer)
		var r *refused
		return end, errors.As(err, &r) && r.code == api.UseDPoPNonce, err
	}
	last := &lastLine{}
	if _, err = io.Copy(io.MultiWriter(out, last), answer.Body); err == nil && (json.Unmarshal(last.line(), &end) != nil || !end.End) {
		err = errors.New("the export broke off: it is not whole")
	}
	return end, false, err
}

// refusedBy reads the problem document of an answer.
func refusedBy(answer *http.Response) error {
	var problem api.Problem
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil || json.Unmarshal(body, &problem) != nil || problem.Code == "" {
		return fmt.Errorf("%w (status %d)", errNoAnswer, answer.StatusCode)
	}
	return &refused{api.Code(oneLine(string(problem.Code), 40)), oneLine(problem.ErrorDescription, 400)}
}

// lastLine remembers the end of what is written.
type lastLine struct{ tail []byte }

func (l *lastLine) Write(b []byte) (int, error) {
	l.tail = append(l.tail, b[max(0, len(b)-exportLine):]...)
	l.tail = l.tail[max(0, len(l.tail)-exportLine):]
	return len(b), nil
}

func (l *lastLine) line() []byte {
	whole := bytes.TrimSuffix(l.tail, []byte("\n"))
	return whole[bytes.LastIndexByte(whole, '\n')+1:]
}
