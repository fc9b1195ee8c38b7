// Package directorytest has a directory for tests of what asks one.
package directorytest

import (
	"context"
	"errors"
	"sync"

	"github.com/nightwarrant/nightwarrant/internal/directory"
)

// People is a directory in which everybody is present until said otherwise. The
// zero value is ready for use.
type People struct {
	lock  sync.Mutex
	said  map[[2]string]directory.Answer
	gone  bool
	asked int
	wait  func(ctx context.Context)
}

// Member implements directory.Directory.
func (p *People) Member(ctx context.Context, issuer, subject string) (directory.Answer, error) {
	p.lock.Lock()
	p.asked++
	wait := p.wait
	p.lock.Unlock()
	if wait != nil {
		wait(ctx)
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.gone || ctx.Err() != nil {
		return directory.Unknown, errors.New("the directory of this test does not answer")
	}
	if a, ok := p.said[[2]string{issuer, subject}]; ok {
		return a, nil
	}
	return directory.Present, nil
}

// Say lets the directory answer so about somebody from now on.
func (p *People) Say(issuer, subject string, a directory.Answer) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.said == nil {
		p.said = map[[2]string]directory.Answer{}
	}
	p.said[[2]string{issuer, subject}] = a
}

// Break lets it not answer any more, or answer again.
func (p *People) Break(gone bool) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.gone = gone
}

// Wait lets each question wait in f first.
func (p *People) Wait(f func(ctx context.Context)) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.wait = f
}

// Asked is how many questions there have been.
func (p *People) Asked() int {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.asked
}
