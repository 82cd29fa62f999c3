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

// makeResumable returns resp with a body that survives stalls: if it stalls, a hedge requests the remainder, and the
// body continues with the hedge's response. The same happens if the body of a hedge fails. The body also measures its
// pauses, and releases attempt a at its end. If the response cannot be resumed, makeResumable returns it unchanged, and
// ok is false.
//
// The argument a is the attempt that got resp, and number is its number in the call. The argument started is the number
// of attempts that the call has started. If a is nil, the call could not be hedged, and the body only measures its
// pauses.
func (c *call) makeResumable(req *http.Request, resp *http.Response, a *race.Attempt, number, started int) (_ *http.Response, ok bool) {
	part, why := resume.ByteRangeOf(req, resp)
	if why != "" {
		c.Key.CountUnresumed(string(why))
		return resp, false
	}
	r := &resumption{client: c.client, key: c.Key, denialAtStart: c.DenialAtStart(), hostVersion: c.hostVersion, peer: c.peer.Load()}
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
	if first.CanRequestRemainder() {
		r.request = c.requests.TakeSnapshot(req)
	}
	return r.body.Start(r, first), true
}

// A resumption requests the remainder of one response body by a hedge. It implements [resume.Requester]. The
// fields except body do not change after the caller has got the response. The body has a lock of its own.
type resumption struct {
	client        *Client
	key           *policy.Key
	hostVersion   hostVersion
	denialAtStart observe.Reason        // DenialAtStart of the call
	request       *httpattempt.Snapshot // copy of the caller's request; nil if the remainder cannot be requested
	peer          *httpattempt.Peer     // remote address of the primary; nil if unknown or not needed
	body          resume.Body           // a value, not a pointer, to save an allocation
}

// Enabled implements [resume.Requester]. It reports whether hedging is switched on, so that bodies may be resumed.
func (r *resumption) Enabled() bool { return r.client.Enabled() }

// RecordPause implements [resume.Requester]. It records the longest pause between two reads of a body. The stall
// timeout of the latency key is learned from these pauses.
func (r *resumption) RecordPause(longest time.Duration) { r.key.RecordPause(longest) }

// RecordObstacle implements [resume.Requester]. It counts a body that stalled and was not resumed, for the reason why.
// The argument waited is the length of the pause. Pauses shorter than [policy.MinStall] are not counted, unless the
// reason is [resume.NotRemainder].
func (r *resumption) RecordObstacle(why resume.Obstacle, waited time.Duration) {
	if why == resume.NotRemainder || waited >= policy.MinStall {
		r.key.CountUnresumed(string(why))
	}
}

// CountPanic implements [resume.Requester]. It counts a panic of Read or Close of a response body.
func (r *resumption) CountPanic() { r.client.Counters.HedgePanics.Add(1) }

// RequestRemainder implements [resume.Requester]. It asks the hedging policy to admit a hedge that requests the
// remainder, with the given Range and If-Range headers. The result ask is the admitted request. If the hedge is denied,
// ask is nil, and later says whether RequestRemainder may be called again for the body.
//
// If likePrimary is true, the request uses the connection pool of primaries. If it is false, the request uses the pool
// of hedges.
func (r *resumption) RequestRemainder(ctx context.Context, byteRange, ifRange string, likePrimary bool) (ask resume.Request, later bool) {
	c := &call{client: r.client, hostVersion: r.hostVersion, guarded: r.hostVersion.mayBeHTTP1()}
	c.peer.Store(r.peer)
	c.BeginResumption(ctx, r.key, r.denialAtStart)
	if !c.Call.Admit(0) {
		return nil, c.Denied != observe.DeniedShadow
	}
	c.requests.UseSnapshot(r.request.WithHeaders("Range", byteRange, "If-Range", ifRange))
	r.client.Counters.HedgesSent.Add(1)
	r.client.Counters.Resumes.Add(1)
	return remainderCall{c, likePrimary}, false
}

// A remainderCall is a call that requests the remainder of a stalled response body. It implements [resume.Request].
type remainderCall struct {
	*call
	usesPrimaryConns bool // attempts use the connection pool of primaries
}

// Send implements [resume.Request]. It sends the request as attempt a with the given number. It returns the response,
// and the error by which the race ranks it, see call.classifyResponse.
func (r remainderCall) Send(a *race.Attempt, number int) (*http.Response, error) {
	r.attempts[number].usesHedgeConns = !r.usesPrimaryConns
	r.ResumptionStarted(a, number)
	return r.Attempt(a, number)
}

// RecordDecision implements [resume.Request]. It ends the call. The argument won says whether the stalled body
// continues with the response to this request.
func (r remainderCall) RecordDecision(won bool) {
	r.EndResumption(won)
	if won {
		r.client.Counters.ResumeWins.Add(1)
	}
}

// Release implements [resume.Request]. It ends attempt a: it discards the response unless the outcome how is
// [race.Won], and reports the end to observers.
func (r remainderCall) Release(a *race.Attempt, number int, how race.Outcome, resp *http.Response, err error) {
	if how != race.Won {
		r.Discard(resp, err)
	}
	r.ResumptionEnded(a, number, how)
}
