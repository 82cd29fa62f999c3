package httpcall

import (
	"context"
	"github.com/gohedge/hedge/observe"
	"net/http"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/internal/resume"
)

// resumable returns resp, the answer of the attempt of that number, or a copy of it, and true,
// whose body learns how it pauses and, if it stalls, is resumed. That body releases the attempt.
// Started is how many attempts the call has made. The attempt is nil if the call could not be
// hedged; then the body only learns.
func (c *call) resumable(req *http.Request, resp *http.Response, a *race.Attempt, number, started int) (_ *http.Response, ok bool) {
	part, why := resume.PartOf(req, resp)
	if why != "" {
		c.key.Unresumed(string(why))
		return resp, false
	}
	r := &resumption{t: c.t, key: c.key, hostVersion: c.hostVersion, ctx: req.Context(), peer: c.peer.Load()}
	what := resume.Response{Context: r.ctx, Answer: resp, Part: part, Attempt: a, Hedge: number > 0, Started: started}
	if a != nil {
		what.Left = max(c.t.Settings().MaxHedges+1-started, 0)
	}
	if what.Left > 0 {
		what.Stall = r.key.Stall()
	}
	if plan := r.key.Schedule(); plan != nil {
		what.Usual = plan.P99
	}
	if what.Stall > 0 {
		r.sent = c.requests.Snapshot(req)
	}
	return r.body.Start(r, what), true
}

// A resumption asks for the rest of one body, by hedges of the call that the body answers.
// Its fields are not written once the body is handed out, but for body, which locks itself.
type resumption struct {
	t           *Client
	key         *policy.Key
	hostVersion hostVersion
	ctx         context.Context       // the caller's
	sent        *httpattempt.Snapshot // of the call's request; nil if the rest is never asked for
	peer        *httpattempt.Peer     // where the primary went; nil: not known, or not needed
	body        resume.Body           // here, because it is then one allocation
}

func (r *resumption) On() bool { return r.t.Enabled() }

func (r *resumption) Learn(longest time.Duration) { r.key.Paused(longest) }

// Passed counts nothing of bodies that are quick enough.
func (r *resumption) Passed(why resume.Obstacle, waited time.Duration) {
	if why == resume.NoRest || waited >= policy.MinStall {
		r.key.Unresumed(string(why))
	}
}

func (r *resumption) Panicked() { r.t.Counters.HedgePanics.Add(1) }

func (r *resumption) Ask(byteRange, ifRange string, likePrimary bool) (ask resume.Request, later bool) {
	c := &call{t: r.t, key: r.key, hostVersion: r.hostVersion, guarded: r.hostVersion.mayBeHTTP1(), likePrimary: likePrimary}
	c.peer.Store(r.peer)
	c.BeginRest(r.ctx, r.key)
	if !c.Call.Admit(0) {
		return nil, c.Denied != observe.DeniedShadow
	}
	c.requests.Rest(r.sent.With("Range", byteRange, "If-Range", ifRange))
	r.t.Counters.HedgesSent.Add(1)
	r.t.Counters.Resumes.Add(1)
	return restOf{c}, false
}

// restOf is a call for the rest of a body.
type restOf struct{ *call }

func (r restOf) Send(a *race.Attempt, number int) (*http.Response, error) {
	r.Started(a, number)
	return r.Attempt(a, number)
}

func (r restOf) Decided(won bool) {
	r.EndRest(won)
	if won {
		r.t.Counters.ResumeWins.Add(1)
	}
}

func (r restOf) Done(a *race.Attempt, number int, how race.Outcome, resp *http.Response, err error) {
	if how != race.Won {
		r.Discard(resp, err)
	}
	r.Finished(a, number, how)
}
