package httpcall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/endpoint"
	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/loser"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// maxResends is the largest number of times that an attempt is sent again after the cancellation of a loser has broken
// its connection. More than one time is rare; four times in a row have been measured under load.
const maxResends = 16

// Admit implements [race.Op]. It decides whether the hedge with the given index in the hedge schedule starts, and
// selects its endpoint. The race calls it when the hedge is due. If the hedge starts, Admit copies the parts of the
// caller's request that the hedge needs.
func (c *call) Admit(index int) bool {
	if c.selection() != nil {
		if !c.admitAtEndpoint(index) {
			return false
		}
	} else if !c.AdmitRequest(index, policy.HedgeRequest{}, policy.None) {
		return false
	} else {
		c.attempts[c.Hedges].usesHedgeConns = true
	}
	c.requests.CopyForHedges()
	return true
}

var _ race.LoserPolicy[*http.Response] = (*call)(nil)

// callsTraceHooks reports whether the RoundTripper of attempt n is known to call the hooks of httptrace, by which an
// attempt reports its connection. If it does, an attempt that has not called a hook yet has not reached net/http. That
// attempt is still in the program's middleware.
func (c *call) callsTraceHooks(n int) bool { return c.Key.Features.Load()&c.connReportFlag(n) != 0 }

// Lost implements [race.LoserPolicy]: it ends attempt a, which has lost. If running is true, a has not returned yet. It
// is cancelled at once, or may finish within the grace period so that its connection survives. Otherwise its response
// is being discarded, and a is cancelled at the end of the grace period.
//
// The race must call the function ended when the loser has ended. It is nil if there is nothing to do then.
func (c *call) Lost(a *race.Attempt, n int, running bool) (ended func()) {
	switch {
	case running:
		return c.client.losers.EndLoser(a, loser.EndOptions{Grace: c.grace, ReportsConn: c.callsTraceHooks(n), Prompt: c.cancelsPromptly})
	case c.grace > 0:
		return c.client.losers.Add(a, c.grace)
	default:
		return nil
	}
}

// IsQueued implements [race.LoserPolicy]. It reports whether attempt a still waits for a connection, because another
// request is using the connection.
func (c *call) IsQueued(a *race.Attempt) bool { return loser.IsQueued(a) }

// Attempt implements [race.Op]: it sends attempt n and classifies the response. If the cancellation of another request
// has broken the attempt's connection, Attempt sends the request again.
func (c *call) Attempt(a *race.Attempt, n int) (*http.Response, error) {
	r, resp, err := c.sendAttempt(a, n)
	// An attempt that fails with ErrLost and has not lost was hit by the cancellation of another request on its connection, see [httpattempt.ConnTrace].
	// RoundTrippers that call the hooks of httptrace prevent that; with other RoundTrippers, the attempt is sent again. It yields first, because otherwise
	// it may get the connection of another attempt that is about to be cancelled.
	for resends := 0; resends < maxResends && err != nil && errors.Is(err, race.ErrLost) && a.Err() == nil; resends++ {
		runtime.Gosched()
		r, resp, err = c.sendAttempt(a, n)
	}
	if err == nil && !c.attempts[n].endpoint.IsOtherEndpoint() {
		c.recordHostFeatures(c.Key, resp, n > 0)
	}
	err = c.classifyResponse(r, resp, err, n)
	c.attempts[n].endpoint.RecordResult(err == nil || err == race.ErrAnswer, err == race.ErrRefused || a.Err() != nil)
	return resp, err
}

// sendAttempt sends the request of attempt n to the server once. It returns the request that was sent, the response and
// the error. The error is [race.ErrRefused] if the Limiter of the server has refused a hedge.
func (c *call) sendAttempt(a *race.Attempt, n int) (*http.Request, *http.Response, error) {
	ctx, trace := c.attemptContext(a, n)
	r, rt := c.requests.AttemptRequest(ctx, n), c.client.pools.PrimaryTransport()
	if n > 0 {
		r.Header = setAttemptHeader(r.Header, c.client.Settings().AttemptHeader, n)
		if isBehindLimiter(c.Key) {
			r.Header = setAttemptHeader(r.Header, limit.AttemptHeader, n)
		}
		if c.attempts[n].usesHedgeConns {
			rt = c.client.pools.HedgeTransport(r, c.version != http1, c.peer.Load())
		}
	}
	c.attempts[n].request = r
	resp, err := c.roundTrip(rt, r, n)
	if trace != nil {
		c.attempts[n].connectTime = trace.RecordReturn()
		resp, err = trace.EnforceHeaderLimit(resp, err)
	}
	if n > 0 && err == nil && resp.StatusCode == http.StatusServiceUnavailable && len(resp.Header[limit.RefusedHeader]) > 0 {
		err = race.ErrRefused
	}
	if err == nil && trace != nil && trace.ReportsConn() && !c.callsTraceHooks(n) && !c.attempts[n].endpoint.IsOtherEndpoint() {
		c.Key.Features.Or(c.connReportFlag(n))
	}
	return r, resp, err
}

// attemptContext returns the context for the request of attempt n. It also returns the ConnTrace that records the
// connection of the attempt. The ConnTrace is nil if the connection need not be recorded.
func (c *call) attemptContext(a *race.Attempt, n int) (context.Context, *httpattempt.ConnTrace) {
	asks := c.client.pools.NeedsPeer()
	if n == 0 && !c.guarded && !asks {
		if c.hooks != nil {
			return c.hooks.Context(a), nil
		}
		return a, nil
	}
	var peer *httpattempt.Peer
	if n == 0 && asks {
		peer = new(httpattempt.Peer)
		c.peer.Store(peer)
	}
	trace, guarded := c.requests.NewConnTrace(n), c.guarded || c.mayUseOtherVersion(n)
	if guarded && (c.grace < loser.MaxCancelDelay || isBehindLimiter(c.Key)) && c.hasDefaultHeaderLimit(n) {
		trace.CountInformational()
	}
	return trace.Context(a, n > 0, guarded, c.hooks, peer), trace
}

// hasDefaultHeaderLimit reports whether attempt n is sent over HTTP/1.1 by a transport that has net/http's default
// limit for the size of response headers. Otherwise [httpattempt.ConnTrace.CountInformational] must not be used.
func (c *call) hasDefaultHeaderLimit(n int) bool {
	return c.version == http1 && !c.mayUseOtherVersion(n) && c.client.pools.HasDefaultHeaderLimit()
}

// mayUseOtherVersion reports whether attempt n may use another HTTP version than the primary, because it has another
// RoundTripper or another endpoint.
func (c *call) mayUseOtherVersion(n int) bool {
	return n > 0 && (c.client.options.HedgeTransport != nil || c.attempts[n].endpoint.IsOtherEndpoint())
}

// classifyResponse returns the error by which the race ranks the result of attempt n, see [Options.classifyResponse].
// If err is not nil, it returns err. It also records pushback by the host in the latency key.
//
// If the attempt can only win with the first byte of its body, classifyResponse waits for that byte.
func (c *call) classifyResponse(req *http.Request, resp *http.Response, err error, n int) error {
	if err != nil {
		return err
	}
	if (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable) && !c.attempts[n].endpoint.IsOtherEndpoint() {
		now := time.Now()
		c.Key.RecordPushback(now, parseRetryAfter(resp.Header.Get("Retry-After"), now))
	}
	verdict := c.client.options.classifyResponse(req, resp)
	if c.firstByte && verdict != httpattempt.ErrFailure {
		if err := httpattempt.CallWithResponse(resp, httpattempt.AwaitFirstByte); err != nil {
			return err
		}
	}
	return verdict
}

// Failed implements [race.LoserPolicy]. The race calls it when the primary has failed while hedges are running. If the
// failure is a response, Failed returns a copy of it whose body is read into memory, so that other requests can use its
// connection.
//
// If the body is too large, Failed returns false, or calls release later. The race then returns the failed response
// without waiting for the hedges.
func (c *call) Failed(a *race.Attempt, resp *http.Response, err error, release func()) (*http.Response, bool) {
	if err != httpattempt.ErrFailure {
		return resp, true
	}
	panics := &c.client.Counters.HedgePanics
	return httpattempt.BufferBody(resp, a, release, func() { panics.Add(1) })
}

// Discard implements [race.Op]: it closes the response of a loser. During a grace period it first reads up to 64 KiB of
// the body, because an HTTP/1.1 connection is only reused after its body was read. If a Read does not return, Discard
// closes the body bodyCloseDelay after the end of the grace period.
func (c *call) Discard(resp *http.Response, err error) {
	if p := (*race.Panic)(nil); errors.As(err, &p) {
		c.client.Counters.HedgePanics.Add(1)
	}
	if resp == nil || resp.Body == nil {
		return
	}
	closeOnce := sync.OnceFunc(func() { c.recoverAndCountPanic(func() { resp.Body.Close() }) })
	defer closeOnce()
	if c.grace > 0 {
		late := time.AfterFunc(min(c.grace, math.MaxInt64-bodyCloseDelay)+bodyCloseDelay, closeOnce)
		defer late.Stop()
		c.recoverAndCountPanic(func() { _, _ = io.CopyN(io.Discard, resp.Body, 64<<10) })
	}
}

// bodyCloseDelay is the time between the end of the grace period and the closing of a loser's body whose Read does not
// return.
const bodyCloseDelay = time.Second

// recoverAndCountPanic calls f, which may run code of the program. A panic of f is recovered and counted, because it would
// otherwise end the process.
func (c *call) recoverAndCountPanic(f func()) {
	defer func() {
		if recover() != nil {
			c.client.Counters.HedgePanics.Add(1)
		}
	}()
	f()
}

// sendRequest sends req by rt. It turns a nil response with a nil error into an error, as [http.Client] does.
//
// All requests of a Client must be sent by it. It ensures that per-call hedging settings in the caller's context do not
// affect a hedging RoundTripper that rt wraps, see [race.SingleAttemptContext].
func sendRequest(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
	once := req
	if ctx, changed := race.SingleAttemptContext(req.Context()); changed {
		once = req.WithContext(ctx)
	}
	resp, err := rt.RoundTrip(once)
	switch {
	case resp == nil && err == nil:
		err = fmt.Errorf("hedge: RoundTripper %T returned a nil *Response with a nil error", rt)
	case resp != nil && once != req && resp.Request == once:
		resp.Request = req
	}
	return resp, err
}

// admitAtEndpoint implements Admit for a call with an endpoint selection. It selects the endpoint of the next hedge and
// decides whether the hedge starts. The argument index is the position of the hedge in the schedule of the race, or
// [race.AfterFailure].
func (c *call) admitAtEndpoint(index int) bool {
	selection, isProbe, isFailover := c.selection(), false, index == race.AfterFailure
	if selection.HasProbe() && !isFailover {
		index-- // the schedule has no delay for the probe, see [endpoint.Selection.Next]
		isProbe = index == policy.Immediate
	}
	if c.SkipSurplus(index, c.client.Policy.Config().MaxHedges) {
		return false
	}
	var hedge *endpoint.Attempt
	if isFailover {
		hedge = selection.SelectFailover()
	} else {
		hedge = selection.SelectHedge(isProbe)
	}
	if hedge == nil { // the call has used all endpoints
		return false
	}
	request := policy.HedgeRequest{Cost: hedge.Cost(), OtherBackend: hedge.IsOtherEndpoint()}
	if isFailover {
		request.ExpectedLatency = hedge.ExpectedLatency()
	}
	if !c.AdmitRequest(index, request, policy.None) {
		return false
	}
	added := false
	defer c.Key.HedgeEndedUnless(&added)
	a := &c.attempts[c.Hedges]
	a.endpoint, a.usesHedgeConns = hedge, !hedge.IsOtherEndpoint()
	selection.AddHedge(hedge, isProbe)
	added = true
	return true
}

// roundTrip sends r, the request of attempt n, to the endpoint of the attempt by rt. It changes the response as if the
// first endpoint had sent it. If rt panics, roundTrip records a failure of the endpoint.
func (c *call) roundTrip(rt http.RoundTripper, r *http.Request, n int) (*http.Response, error) {
	to := c.attempts[n].endpoint
	if to == nil {
		return sendRequest(rt, r)
	}
	returned := false
	defer func() {
		if !returned { // a panic skips the other call of RecordResult
			to.RecordResult(false, false)
		}
	}()
	var resp *http.Response
	err := c.prepareRequest(r, n)
	if err == nil {
		resp, err = sendRequest(rt, r)
		if isLocalFailure(r, resp, err, n == 0) {
			to.MarkLocalFailure()
		}
	}
	if err == nil {
		if err = to.RestoreResponse(resp, r); err != nil {
			resp = nil
		}
	}
	returned = true
	return resp, err
}

// prepareRequest rewrites r, the request of attempt n, for the endpoint of the attempt. If the user's Prepare function
// fails for a hedge, it withdraws the hedge and returns [race.ErrRefused]. The failure counts as a failure of the
// endpoint, unless the context of the attempt has ended.
func (c *call) prepareRequest(r *http.Request, n int) (err error) {
	to, ctx, returned := c.attempts[n].endpoint, r.Context(), false
	defer func() {
		if n > 0 && (!returned || err != nil) {
			c.Withdraw(ctx, n, observe.DeniedNotReady, policy.HedgeRequest{Cost: to.Cost()})
		}
	}()
	err = to.Prepare(r, c.client.Settings().AttemptHeader)
	if returned = true; err == nil {
		return nil
	}
	if ctx.Err() == nil {
		c.client.Log.WarnOfPrepareError(err)
		if n > 0 {
			to.RecordResult(false, false)
		}
	}
	if n > 0 {
		err = race.ErrRefused
	}
	return err
}

// connReportFlag returns the flag in the features of a latency key which says that the RoundTripper of attempt n calls
// the hooks of httptrace. Hedges have a flag of their own if they have a RoundTripper of their own, the option
// HedgeTransport.
func (c *call) connReportFlag(n int) int32 {
	if n > 0 && c.client.options.HedgeTransport != nil {
		return hedgesReportConn
	}
	return primariesReportConn
}
