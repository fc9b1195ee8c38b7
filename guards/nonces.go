package guards

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

const nonceLife = 90 * time.Second // of 120 s, so that a worker has time to use it

// noncePool holds the newest nonce for workers. One nonce may be in several proofs, so one is enough; the guard makes
// none itself (protocol P32).
type noncePool struct {
	fetch func(context.Context) (string, error)
	now   func() time.Time

	mu     sync.Mutex
	nonce  string
	gotten time.Time
}

func (p *noncePool) put(nonce string) {
	if nonce == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nonce, p.gotten = nonce, p.now()
}

// get is the nonce, or nothing when it is too old to be of use.
func (p *noncePool) get() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now().Sub(p.gotten) > nonceLife {
		return ""
	}
	return p.nonce
}

// drop forgets a nonce that was refused: a challenge must bring another (RFC 9449 §8).
func (p *noncePool) drop(nonce string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nonce == nonce {
		p.nonce = ""
	}
}

// fresh is the nonce, fetched now if there is none.
func (p *noncePool) fresh(ctx context.Context) string {
	if nonce := p.get(); nonce != "" {
		return nonce
	}
	_ = p.refill(ctx)
	return p.get()
}

func (p *noncePool) refill(ctx context.Context) error {
	nonce, err := p.fetch(ctx)
	p.put(nonce)
	return err
}

func (g *Guard) fetchNonce(ctx context.Context) (string, error) {
	var answer api.Nonces
	if err := g.component.JSON(ctx, http.MethodPost, api.PathNonces, api.NoncesRequest{Count: 1}, &answer); err != nil {
		return "", err
	}
	if len(answer.Nonces) == 0 || !isNonce(answer.Nonces[0]) {
		return "", dpopclient.ErrNoAnswer
	}
	return answer.Nonces[0], nil
}

// isNonce keeps what is no NQCHAR out of our headers (RFC 9449 §8.1).
func isNonce(s string) bool {
	return s != "" && len(s) <= 512 && strings.IndexFunc(s, func(r rune) bool { return r < 0x21 || r > 0x7e || r == '"' || r == '\\' }) < 0
}
