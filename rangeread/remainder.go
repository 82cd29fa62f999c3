package rangeread

import (
	"errors"
	"runtime/debug"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// errNoBytes is the error of a hedge whose response contains none of the missing bytes.
var errNoBytes = errors.New("rangeread: the store has sent nothing of what is missing")

// A remainderHedge is a hedge that requests the bytes that a stalled or failed response has not delivered.
type remainderHedge struct {
	policy.Call
	request       *rangeRequest
	attempt       *race.Attempt
	sentAt        time.Time       // time when the hedge was sent
	resultChannel chan openResult // receives the response or the error of the hedge
}

// requestRemainder sends a hedge, as attempt n, for the missing bytes [from, to). If the hedge is denied, r is nil. The
// result later is then true if the caller may request the bytes again after a while.
func requestRemainder(t *rangeRequest, from, to int64, n int) (r *remainderHedge, later bool) {
	r = &remainderHedge{request: t}
	r.BeginResumption(t.ctx, t.key, policy.None) // the mode of a Store never changes
	if !t.admitHedge(&r.Call, 0, from, to) {
		return nil, r.Denied != observe.DeniedShadow
	}
	t.store.stallHedges.Add(1)
	r.attempt, r.sentAt, r.resultChannel = race.NewAttempt(t.ctx, n), time.Now(), make(chan openResult)
	t.addUser()
	go r.sendRequest(from, to)
	return r, false
}

// sendRequest requests the bytes [from, to) and sends the response or the error to resultChannel. If the hedge was
// cancelled meanwhile, it closes the response. It runs in its own goroutine.
func (r *remainderHedge) sendRequest(from, to int64) {
	defer r.request.removeUser()
	done := r.attempt.Done()
	a := openResult{err: &race.Panic{}} // unless open returns
	defer func() {
		if v := recover(); v != nil {
			a.err = &race.Panic{Value: v, Stack: debug.Stack()}
		}
		if _, ok := a.err.(*race.Panic); ok {
			r.request.store.panics.Add(1)
		}
		select {
		case r.resultChannel <- a:
		case <-done:
			if a.response != nil {
				a.response.closeBody()
			}
		}
	}()
	if a.response, a.err = r.request.openResponse(r.attempt, from, to); a.err == nil && a.response.isEmpty() {
		a.response.closeBody()
		a = openResult{err: errNoBytes}
	}
}

// recordWin counts the hedge as won: reading continues with its response.
func (r *remainderHedge) recordWin() {
	r.request.store.stallWins.Add(1)
	r.EndResumption(true)
}

// cancelRequest cancels the hedge and counts it as lost.
func (r *remainderHedge) cancelRequest() {
	r.EndResumption(false)
	r.attempt.CancelAndDetach()
}
