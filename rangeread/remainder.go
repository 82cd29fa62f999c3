package rangeread

import (
	"errors"
	"runtime/debug"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

var errNoBytes = errors.New("rangeread: the store has sent nothing of what is missing")

// A remainder is a hedge for the bytes that a stalled or failed response has not delivered.
type remainder struct {
	policy.Call
	request *rangeRequest
	attempt *race.Attempt
	asked   time.Time
	answer  chan openResult
}

// requestRemainder starts attempt n for the bytes [from, to). If the hedge is denied, it returns nil, and later reports
// whether it may be requested again.
func requestRemainder(t *rangeRequest, from, to int64, n int) (r *remainder, later bool) {
	r = &remainder{request: t}
	r.BeginResumption(t.ctx, t.key)
	if !t.admitHedge(&r.Call, 0, from, to) {
		return nil, r.Denied != observe.DeniedShadow
	}
	t.store.stallHedges.Add(1)
	r.attempt, r.asked, r.answer = race.NewAttempt(t.ctx, n), time.Now(), make(chan openResult)
	t.addUser()
	go r.sendRequest(from, to)
	return r, false
}

// sendRequest sends the request and delivers its response, or closes the response if the request was cancelled.
func (r *remainder) sendRequest(from, to int64) {
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
		case r.answer <- a:
		case <-done:
			if a.stream != nil {
				a.stream.closeBody()
			}
		}
	}()
	if a.stream, a.err = r.request.openResponse(r.attempt, from, to); a.err == nil && a.stream.isEmpty() {
		a.stream.closeBody()
		a = openResult{err: errNoBytes}
	}
}

// recordWin counts the hedge as won.
func (r *remainder) recordWin() {
	r.request.store.stallWins.Add(1)
	r.EndResumption(true)
}

// cancelRequest cancels the request and counts the hedge as lost.
func (r *remainder) cancelRequest() {
	r.EndResumption(false)
	r.attempt.CancelAndDetach()
}
