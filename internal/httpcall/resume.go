package httpcall

import (
	"context"
	"net/http"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/internal/resume"
	"github.com/gohedge/hedge/observe"
)

// makeResumable returns resp with a body that records its pauses. If the body stalls, it continues with the response to
// another request. The body releases attempt a, which has the given number; started is the number of attempts that the
// call has started.
//
// A nil attempt means that the call could not be hedged; the body then only records its pauses. If the response cannot
// be resumed, makeResumable returns it unchanged and false.
func (c *call) makeResumable(req *http.Request, resp *http.Response, a *race.Attempt, number, started int) (_ *http.Response, ok bool) {
	part, why := resume.ByteRangeOf(req, resp)
	if why != "" {
		c.Key.CountUnresumed(string(why))
		return resp, false
	}
	r := &resumption{client: c.client, key: c.Key, hostVersion: c.hostVersion, peer: c.peer.Load()}
	first := resume.Response{Context: req.Context(), Response: resp, Range: part, Attempt: a, IsHedge: number > 0, AttemptsStarted: started}
	if a != nil {
		first.HedgesLeft = max(c.client.Settings().MaxHedges+1-started, 0)
	}
	if first.HedgesLeft > 0 {
		first.StallTimeout = r.key.StallThreshold()
	}
	if schedule := r.key.Schedule(); schedule != nil {
		first.UsualTime = schedule.UsualLatency
	}
	if first.StallTimeout > 0 {
		r.request = c.requests.TakeSnapshot(req)
	}
	return r.body.Start(r, first), true
}

// A resumption requests the remainder of one stalled body by a hedge. The fields except body do not change after the
// caller has got the response. The body has a lock of its own.
type resumption struct {
	client      *Client
	key         *policy.Key
	hostVersion hostVersion
	request     *httpattempt.Snapshot // the request of the call; nil: the remainder cannot be requested
	peer        *httpattempt.Peer     // the primary's address; nil: unknown or not needed
	body        resume.Body           // a value, to save an allocation
}

// Enabled implements [resume.Requester]. It reports whether hedging is switched on.
func (r *resumption) Enabled() bool { return r.client.Enabled() }

// RecordPause implements [resume.Requester]. It records the longest pause between two reads of a body, from which the
// stall timeout is learned.
func (r *resumption) RecordPause(longest time.Duration) { r.key.RecordPause(longest) }

// RecordObstacle implements [resume.Requester]. It counts a body that stalled and could not be resumed, by obstacle. It
// ignores stalls shorter than [policy.MinStall], except those with a wrong remainder.
func (r *resumption) RecordObstacle(why resume.Obstacle, waited time.Duration) {
	if why == resume.NotRemainder || waited >= policy.MinStall {
		r.key.CountUnresumed(string(why))
	}
}

// CountPanic implements [resume.Requester]. It counts a panic in Read or Close of a body.
func (r *resumption) CountPanic() { r.client.Counters.HedgePanics.Add(1) }

// RequestRemainder implements [resume.Requester]. It asks the policy to admit a request for the remainder, with the
// given Range and If-Range headers. If the request is denied, it returns nil, and later reports whether the body may
// ask again.
func (r *resumption) RequestRemainder(ctx context.Context, byteRange, ifRange string, likePrimary bool) (ask resume.Request, later bool) {
	c := &call{client: r.client, hostVersion: r.hostVersion, guarded: r.hostVersion.mayBeHTTP1()}
	c.peer.Store(r.peer)
	c.BeginResumption(ctx, r.key)
	if !c.Call.Admit(0) {
		return nil, c.Denied != observe.DeniedShadow
	}
	c.requests.UseSnapshot(r.request.WithHeaders("Range", byteRange, "If-Range", ifRange))
	r.client.Counters.HedgesSent.Add(1)
	r.client.Counters.Resumes.Add(1)
	return remainderCall{c, likePrimary}, false
}

// A remainderCall is a call that requests the remainder of a body. It implements [resume.Request].
type remainderCall struct {
	*call
	usesPrimaryConns bool // its attempts use the connection pool of primaries
}

// Send sends the request as attempt a with the given number.
func (r remainderCall) Send(a *race.Attempt, number int) (*http.Response, error) {
	r.attempts[number].usesHedgeConns = !r.usesPrimaryConns
	r.AttemptStarted(a, number)
	return r.Attempt(a, number)
}

// RecordDecision ends the call. The argument won reports whether the body continues with its response.
func (r remainderCall) RecordDecision(won bool) {
	r.EndResumption(won)
	if won {
		r.client.Counters.ResumeWins.Add(1)
	}
}

// Release records the end of the attempt. It discards the response unless the attempt has won.
func (r remainderCall) Release(a *race.Attempt, number int, how race.Outcome, resp *http.Response, err error) {
	if how != race.Won {
		r.Discard(resp, err)
	}
	r.AttemptEnded(a, number, how)
}
