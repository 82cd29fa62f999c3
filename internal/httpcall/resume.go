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

// makeResumable returns resp, or a copy of it, with a body that records its pauses and, if it stalls, goes on with the response to another request. The
// body releases the attempt, which has the given number of those started. A nil attempt means that the call could not be hedged; the body then only records.
// It returns resp and false if the response cannot be resumed.
func (c *call) makeResumable(req *http.Request, resp *http.Response, a *race.Attempt, number, started int) (_ *http.Response, ok bool) {
	part, why := resume.ByteRangeOf(req, resp)
	if why != "" {
		c.Key.CountUnresumed(string(why))
		return resp, false
	}
	r := &resumption{t: c.t, key: c.Key, hostVersion: c.hostVersion, peer: c.peer.Load()}
	first := resume.Response{Context: req.Context(), Response: resp, Range: part, Attempt: a, IsHedge: number > 0, AttemptsStarted: started}
	if a != nil {
		first.HedgesLeft = max(c.t.Settings().MaxHedges+1-started, 0)
	}
	if first.HedgesLeft > 0 {
		first.StallTimeout = r.key.StallThreshold()
	}
	if schedule := r.key.Schedule(); schedule != nil {
		first.UsualTime = schedule.UsualLatency
	}
	if first.StallTimeout > 0 {
		r.sent = c.requests.TakeSnapshot(req)
	}
	return r.body.Start(r, first), true
}

// A resumption requests the remainder of one body by hedges of its call. Its fields do not change after the caller has the body, except body, which
// guards itself.
type resumption struct {
	t           *Client
	key         *policy.Key
	hostVersion hostVersion
	sent        *httpattempt.Snapshot // of the request of the call; nil: the remainder is never requested
	peer        *httpattempt.Peer     // address that the primary went to; nil: unknown, or not needed
	body        resume.Body           // a value: one allocation for both
}

// Enabled reports whether hedging is switched on.
func (r *resumption) Enabled() bool { return r.t.Enabled() }

// RecordPause records the longest pause between two parts of a body, from which the time is learned after which a body has stalled.
func (r *resumption) RecordPause(longest time.Duration) { r.key.RecordPause(longest) }

// RecordObstacle counts a body that stalled and was not resumed, and the obstacle. A stall shorter than [policy.MinStall] does not count.
func (r *resumption) RecordObstacle(why resume.Obstacle, waited time.Duration) {
	if why == resume.NotRemainder || waited >= policy.MinStall {
		r.key.CountUnresumed(string(why))
	}
}

// CountPanic counts a panic in Read or Close of a body of the response.
func (r *resumption) CountPanic() { r.t.Counters.HedgePanics.Add(1) }

// RequestRemainder asks the policy to admit a request for the remainder, with the given Range and If-Range headers. It returns nil if the request is
// denied; later reports whether it may be asked for again.
func (r *resumption) RequestRemainder(ctx context.Context, byteRange, ifRange string, likePrimary bool) (ask resume.Request, later bool) {
	c := &call{t: r.t, hostVersion: r.hostVersion, guarded: r.hostVersion.mayBeHTTP1()}
	c.peer.Store(r.peer)
	c.BeginResumption(ctx, r.key)
	if !c.Call.Admit(0) {
		return nil, c.Denied != observe.DeniedShadow
	}
	c.requests.UseSnapshot(r.sent.WithHeaders("Range", byteRange, "If-Range", ifRange))
	r.t.Counters.HedgesSent.Add(1)
	r.t.Counters.Resumes.Add(1)
	return remainderCall{c, likePrimary}, false
}

// A remainderCall is a call for the remainder of a body.
type remainderCall struct {
	*call
	likePrimary bool // its attempts use the connections of primaries
}

// Send makes the attempt.
func (r remainderCall) Send(a *race.Attempt, number int) (*http.Response, error) {
	r.attempts[number].usesHedgeConns = !r.likePrimary
	r.AttemptStarted(a, number)
	return r.Attempt(a, number)
}

// RecordDecision ends the call for the remainder. won reports whether the body continues with the response of that call.
func (r remainderCall) RecordDecision(won bool) {
	r.EndResumption(won)
	if won {
		r.t.Counters.ResumeWins.Add(1)
	}
}

// Release ends the attempt, and discards its response unless it has won.
func (r remainderCall) Release(a *race.Attempt, number int, how race.Outcome, resp *http.Response, err error) {
	if how != race.Won {
		r.Discard(resp, err)
	}
	r.AttemptEnded(a, number, how)
}
