package guards

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Headers of answers on a route. The outcome comes as a trailer where an answer begins before it is known.
const (
	HeaderEffect  = "Nightwarrant-Effect"
	HeaderOutcome = "Nightwarrant-Outcome"
)

// Route is an entry in the spelling of another protocol, beside POST {uri}/operations/{action}: other words, the same
// policy. Capability and proof come in the same headers, and the proof names the route's own URL.
type Route struct {
	Action  string
	MaxBody int         // bytes of a request
	Header  http.Header // of every answer; optional

	// Read builds the parameters of the action from a request whose capability and proof hold. They must fix the body,
	// by text or by digest: the ledger gets it beside them. A refusal is told to the worker.
	Read func(header http.Header, body []byte) (json.RawMessage, error)

	// Refusal is the body of a refusal, as clients of the protocol read it.
	Refusal func(p api.Problem) any
}

// Reply takes the answer of a route while it is still being made. Whatever the worker does not take is dropped: nobody who
// hangs up or reads slowly keeps an effect from its end, so Write never fails.
type Reply interface {
	Begin(mediaType string) // once, before the first Write
	io.Writer
}

var routeForm = regexp.MustCompile(`^(/[a-z0-9][a-z0-9._-]*)+$`)

func (c *Config) checkRoutes() error {
	for path, r := range c.Routes {
		if !routeForm.MatchString(path) || strings.HasPrefix(path, operations) || r.Read == nil || r.Refusal == nil || r.MaxBody < 1 || c.Operations[r.Action] == nil {
			return fmt.Errorf("%.64q is not a route to an operation", path)
		}
	}
	return nil
}

// entry is one path by which operations come in.
type entry struct {
	action string
	path   string // below the guard's URI
	route  *Route // nil: the guards' own spelling
}

// entryOf finds the entry of a path as it was sent.
func (g *Guard) entryOf(path string) (entry, bool) {
	below, ours := strings.CutPrefix(path, g.path)
	action, own := strings.CutPrefix(below, operations)
	switch route, is := g.config.Routes[below]; {
	case !ours:
		return entry{}, false
	case own:
		return entry{action: action, path: below}, g.config.Operations[action] != nil
	case is:
		return entry{action: route.Action, path: below, route: &route}, true
	}
	return entry{}, false
}

// parameters reads the body of a route, which is done for nobody whose proof does not hold.
func (r *request) parameters() (params json.RawMessage, err error) {
	if r.route == nil {
		return r.body.parameters, nil
	}
	if r.raw, err = r.readBody(r.route.MaxBody); err != nil {
		return nil, err
	}
	params, err = r.route.Read(r.http.Header, r.raw)
	if _, ok := errors.AsType[*api.Refusal](err); err != nil && !ok {
		err = errMalformed
	}
	return params, err
}

const (
	writePatience = 10 * time.Second // for one write to a worker
	replyPatience = 30 * time.Second // for all writes of one reply
	trailer       = "Trailer"
)

// reply is the answer to one request on a route.
type reply struct {
	guard  *Guard
	w      http.ResponseWriter
	begun  bool
	gone   bool          // the worker
	waited time.Duration // for it
	effect string
}

func (r *reply) Begin(mediaType string) {
	r.w.Header().Set(trailer, HeaderOutcome)
	r.w.Header().Set(HeaderEffect, r.effect)
	r.begun = true
	r.guard.writeHeader(r.w, http.StatusOK, mediaType)
}

func (r *reply) Write(p []byte) (int, error) {
	if r.gone {
		return len(p), nil
	}
	control, before := http.NewResponseController(r.w), time.Now()
	_ = control.SetWriteDeadline(before.Add(min(writePatience, replyPatience-r.waited))) // where there is a connection
	_, err := r.w.Write(p)
	if err == nil {
		err = control.Flush()
	}
	r.waited += time.Since(before)
	r.gone = r.waited >= replyPatience || err != nil && !errors.Is(err, http.ErrNotSupported)
	return len(p), nil
}

// end gives the outcome of an answer that has begun, or all of one that has not.
func (r *reply) end(req *http.Request, route *Route, a Answer) {
	r.w.Header().Set(HeaderOutcome, string(a.Outcome))
	if r.begun {
		return
	}
	r.w.Header().Set(HeaderEffect, a.Effect)
	if a.Outcome == Committed && len(a.Result) > 0 {
		r.guard.write(r.w, http.StatusOK, "application/json", a.Result)
		return
	}
	r.guard.refuse(r.w, req, route, a.refusal())
}

// refusal says why there is nothing to read.
func (a Answer) refusal() *api.Refusal {
	switch {
	case a.Outcome == Ambiguous:
		return api.Refusef(api.EffectAmbiguous, "Nobody can prove whether this happened; its owner must record what was found.")
	case a.Outcome == Committed:
		return api.Refusef(api.EffectSettled, "This happened and is charged, but its answer cannot be given.")
	case a.Reason == "":
		return api.Refuse(api.Unavailable)
	}
	return api.Refuse(a.Reason)
}
