package console

import (
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
)

// refusalPage says what was not done and what to do now.
type refusalPage struct {
	Sentence, Then string
	Back, BackText string // where to go on
}

// refuse answers what a page returned. Causes leave for the operators' log only.
func (v *visit) refuse(err error) {
	r := refusalOf(err)
	if cause := authority.Cause(err); cause != nil && r.Code.Status() >= http.StatusInternalServerError {
		v.c.Log.LogAttrs(v.r.Context(), slog.LevelError, "a page failed", slog.String("route", v.route), slog.String("code", string(r.Code)), slog.Any("cause", cause))
	}
	if !authority.Audited(err) {
		v.c.Authority.CountRefusal(r.Code)
	}
	if v.w.wrote {
		return
	}
	if wait := r.Wait(); wait > 0 {
		v.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	s := sheet{Name: "refusal", Title: "Not done", Status: r.Code.Status(), Main: v.explain(r)}
	if r.Code == api.Stale {
		s.Status = http.StatusConflict // 412 is for conditions in headers
	}
	if s.Status == http.StatusNotFound {
		s.Title = "Nothing here"
	}
	s.Outside = s.Status == http.StatusUnauthorized
	if err := v.show(s, nil); err != nil {
		http.Error(v.w, "Something failed on our side.", http.StatusInternalServerError)
	}
}

func refusalOf(err error) *api.Refusal {
	var r *api.Refusal
	if errors.As(err, &r) {
		return r
	}
	return api.Refuse(api.Internal)
}

// explain puts a refusal in the words of a page. The sentences of the API are for programs.
func (v *visit) explain(r *api.Refusal) refusalPage {
	p := refusalPage{Back: "/", BackText: "Your tasks"}
	switch r.Code {
	case api.NotFound:
		p.Sentence, p.Then = "There is nothing here that you may see.", "It may never have been there, or it is somebody else's."
	case api.OfferChanged:
		p.Sentence, p.Then = "This is not what you were shown.", "The offer has changed since, so nothing was recorded. Read it as it is now and answer that."
		p.Back, p.BackText = "/offers/"+v.reference(), "Read the offer"
	case api.OfferEnded:
		p.Sentence, p.Then = "This offer is over.", "It has been answered or replaced, or its time has passed. Nothing was recorded."
	case api.DecisionChanged:
		p.Sentence, p.Then = "This is not what you were shown.", "The decision is about something else, so nothing was recorded. Read it and decide on that."
		p.Back, p.BackText = "/decisions/"+v.reference(), "Read the decision"
	case api.DecisionEnded:
		p.Sentence, p.Then = "This decision is over.", "It has been made, or its time has passed. Nothing was recorded."
		p.Back, p.BackText = "/decisions", "Decisions"
	case api.AdmissionClosed:
		p.Sentence, p.Then = "Everything that needs a check is stopped right now.", "Nothing was recorded. Try again when it has opened; saying no and stopping a task always work."
	case api.OutcomeUnknown:
		p.Sentence, p.Then = "We do not know whether this was recorded.", "Look at the page again before you repeat it."
	case api.Unavailable, api.TooManyRequests:
		p.Sentence, p.Then = "We cannot answer right now.", "Nothing happened. Try again in a moment."
	case api.Forbidden:
		p.Sentence, p.Then = "This page is for operators.", "Nothing was done."
	case api.InvalidRequest, api.PayloadTooLarge, api.UnsupportedMediaType, api.MethodNotAllowed:
		p.Sentence, p.Then = "We cannot read what was sent.", "Nothing was done. Go back to the page and use its buttons."
	case api.ConsentEnded, api.RevisionStale, api.Retired, api.Stale:
		p.Sentence, p.Then = "This has changed since you were shown it.", "Nothing was done. Look at it again."
	default:
		if r.Code.Status() == http.StatusUnauthorized {
			p.Sentence, p.Then = "You are not signed in any more.", "Nothing was done. Sign in and go back to the page."
			p.Back, p.BackText = "/login", "Sign in"
			break
		}
		p.Sentence, p.Then = "Something failed on our side.", "The operators see it in their log."
	}
	return p
}
