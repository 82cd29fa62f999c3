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

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/loser"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// maxResends is the most times that an attempt is sent again after the cancellation of a loser has failed it. One time is rare; four in a row have
// been measured under load.
const maxResends = 16

// Admit decides whether a hedge starts, and where it is sent. If it starts, Admit keeps the parts of the caller's request that the hedge needs.
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
	c.requests.KeepForHedges()
	return true
}

var _ race.LoserPolicy[*http.Response] = (*call)(nil)

// reportsConn reports whether attempt n is known to report its connection. If it has not yet, it is in middleware above net/http.
func (c *call) reportsConn(n int) bool { return c.Key.Features.Load()&c.connReportFlag(n) != 0 }

// Lost cancels attempt n, or lets it finish, as its connection would be lost otherwise. If the attempt has returned, its response is
// being discarded, and the attempt is cancelled if that takes too long.
func (c *call) Lost(a *race.Attempt, n int, running bool) (ended func()) {
	switch {
	case running:
		return c.t.losers.EndLoser(a, loser.EndOptions{Grace: c.grace, ReportsConn: c.reportsConn(n), Prompt: c.prompt})
	case c.grace > 0:
		return c.t.losers.Add(a, c.grace)
	default:
		return nil
	}
}

// IsQueued reports whether a hedge waits for a connection that the primary, or another call, uses.
func (c *call) IsQueued(a *race.Attempt) bool { return loser.IsQueued(a) }

// Attempt makes attempt n.
func (c *call) Attempt(a *race.Attempt, n int) (*http.Response, error) {
	r, resp, err := c.sendAttempt(a, n)
	// An attempt that fails with ErrLost and has not lost was hit by the cancellation of another request on its connection, see [httpattempt.Link].
	// RoundTrippers that call the hooks of httptrace prevent that; below others, the attempt is sent again. It yields first: attempts that are about
	// to be cancelled may have the connection that it gets.
	for resends := 0; resends < maxResends && errors.Is(err, race.ErrLost) && a.Err() == nil; resends++ {
		runtime.Gosched()
		r, resp, err = c.sendAttempt(a, n)
	}
	if err == nil && !c.attempts[n].endpoint.IsOtherEndpoint() {
		c.recordHostFeatures(c.Key, resp, n > 0)
		if loser.ReportsConn(a) && !c.reportsConn(n) {
			c.Key.Features.Or(c.connReportFlag(n))
		}
	}
	err = c.classifyResponse(r, resp, err, n)
	c.attempts[n].endpoint.RecordResult(err == nil || err == race.ErrAnswer, err == race.ErrRefused || a.Err() != nil)
	return resp, err
}

// sendAttempt sends attempt n once. It returns the request that was sent.
func (c *call) sendAttempt(a *race.Attempt, n int) (*http.Request, *http.Response, error) {
	ctx, link := c.attemptContext(a, n)
	r, rt := c.requests.AttemptRequest(ctx, n), c.t.pools.Primary()
	if n > 0 {
		r.Header = setAttemptHeader(r.Header, c.t.Settings().AttemptHeader, n)
		if isBehindLimiter(c.Key) {
			r.Header = setAttemptHeader(r.Header, limit.AttemptHeader, n)
		}
		if c.attempts[n].usesHedgeConns {
			rt = c.t.pools.Hedge(r, c.version != http1, c.peer.Load())
		}
	}
	c.attempts[n].request = r
	resp, err := c.roundTrip(rt, r, n)
	if link != nil {
		c.attempts[n].setup = link.Returned()
		resp, err = link.LimitHeaders(resp, err)
	}
	if n > 0 && err == nil && resp.StatusCode == http.StatusServiceUnavailable && len(resp.Header[limit.RefusedHeader]) > 0 {
		err = race.ErrRefused
	}
	return r, resp, err
}

// attemptContext returns the context of attempt n, and the link that records its connection; the link is nil if nothing needs the record.
func (c *call) attemptContext(a *race.Attempt, n int) (context.Context, *httpattempt.Link) {
	asks := c.t.pools.NeedsPeer()
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
	link, guarded := c.requests.NewLink(n), c.guarded || c.hasOtherPath(n)
	if guarded && (c.grace < loser.MaxCancelDelay || isBehindLimiter(c.Key)) && c.hasDefaultHeaderLimit(n) {
		link.CountInformational()
	}
	return link.Context(a, n > 0, guarded, c.hooks, peer), link
}

// hasDefaultHeaderLimit reports whether attempt n uses HTTP/1.1 and a transport with the limit for response headers that net/http has by default.
func (c *call) hasDefaultHeaderLimit(n int) bool {
	return c.version == http1 && !c.hasOtherPath(n) && c.t.pools.HasDefaultHeaderLimit()
}

// hasOtherPath reports whether attempt n is sent by another RoundTripper than the primary, or to another endpoint. Then the HTTP version of the host
// does not tell that of the attempt.
func (c *call) hasOtherPath(n int) bool {
	return n > 0 && (c.t.options.HedgeTransport != nil || c.attempts[n].endpoint.IsOtherEndpoint())
}

// classifyResponse returns the error that tells the race what the response to req, the request of attempt n, means, see [Options.classifyResponse]. It records
// pushback of the host.
func (c *call) classifyResponse(req *http.Request, resp *http.Response, err error, n int) error {
	if err != nil {
		return err
	}
	if (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable) && !c.attempts[n].endpoint.IsOtherEndpoint() {
		now := time.Now()
		c.Key.RecordPushback(now, parseRetryAfter(resp.Header.Get("Retry-After"), now))
	}
	verdict := c.t.options.classifyResponse(req, resp)
	if c.firstByte && verdict != httpattempt.ErrFailure {
		if err := httpattempt.CallWithResponse(resp, httpattempt.AwaitFirstByte); err != nil {
			return err
		}
	}
	return verdict
}

// Failed handles a failed primary while hedges run, see [race.LoserPolicy]. It starts to read the body of the response into memory, so that other
// requests can use its connection, and returns the response with that body. It reports false, or calls release later, if the body is too large to
// wait with it for hedges.
func (c *call) Failed(a *race.Attempt, resp *http.Response, err error, release func()) (*http.Response, bool) {
	if err != httpattempt.ErrFailure {
		return resp, true
	}
	panics := &c.t.Counters.HedgePanics
	return httpattempt.BufferBody(resp, a, release, func() { panics.Add(1) })
}

// Discard closes the response of an attempt that has lost. If losers may finish, which they do over HTTP/1.1 alone, it reads up to 64 KiB of the body
// first: a connection is used again only after its body was read. The reading ends when the attempt is cancelled. A body that ignores its context is
// closed bodyCloseDelay later.
func (c *call) Discard(resp *http.Response, err error) {
	if p := (*race.Panic)(nil); errors.As(err, &p) {
		c.t.Counters.HedgePanics.Add(1)
	}
	if resp == nil || resp.Body == nil {
		return
	}
	closeOnce := sync.OnceFunc(func() { c.countPanic(func() { resp.Body.Close() }) })
	defer closeOnce()
	if c.grace > 0 {
		late := time.AfterFunc(min(c.grace, math.MaxInt64-bodyCloseDelay)+bodyCloseDelay, closeOnce)
		defer late.Stop()
		c.countPanic(func() { _, _ = io.CopyN(io.Discard, resp.Body, 64<<10) })
	}
}

// bodyCloseDelay is the time after the cancellation of a loser at which its body is closed although a Read still runs.
const bodyCloseDelay = time.Second

// countPanic calls f, a function of the program, on a goroutine that has no caller. It counts a panic and continues.
func (c *call) countPanic(f func()) {
	defer func() {
		if recover() != nil {
			c.t.Counters.HedgePanics.Add(1)
		}
	}()
	f()
}

// sendRequest sends req through rt. A nil response with a nil error becomes an error, as for http.Client. Every request goes through send, so that overrides
// that the caller has set for one call do not hold for calls below it, see [race.SingleAttemptContext].
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

// admitAtEndpoint selects the endpoint of the next hedge of a call that has a choice, and decides about the hedge.
func (c *call) admitAtEndpoint(index int) bool {
	isProbe := false
	if c.selection().HasProbe() {
		index-- // the schedule has no delay for the probe, see probeSchedule
		isProbe = index == policy.Immediate
		if c.Hedges >= c.t.Policy.Config().MaxHedges {
			c.SkipHedge(index)
			return false
		}
	}
	hedge := c.selection().SelectHedge(isProbe)
	request := policy.HedgeRequest{Cost: hedge.Cost(), OtherBackend: hedge.IsOtherEndpoint()}
	if !c.AdmitRequest(index, request, policy.None) {
		return false
	}
	added := false
	defer c.Key.HedgeEndedUnless(&added)
	a := &c.attempts[c.Hedges]
	a.endpoint, a.usesHedgeConns = hedge, !hedge.IsOtherEndpoint()
	c.selection().AddHedge(hedge, isProbe)
	added = true
	return true
}

// roundTrip sends attempt n, or the only one, to its endpoint over rt.
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
	}
	if err == nil {
		if err = to.RestoreResponse(resp, r); err != nil {
			resp = nil
		}
	}
	returned = true
	return resp, err
}

// prepareRequest makes r the request of attempt n to its endpoint. If that fails, a hedge is withdrawn. The failure does not count for the
// endpoint if the attempt has lost, or its caller has given up, meanwhile.
func (c *call) prepareRequest(r *http.Request, n int) (err error) {
	to, ctx, returned := c.attempts[n].endpoint, r.Context(), false
	defer func() {
		if n > 0 && (!returned || err != nil) {
			c.Withdraw(ctx, observe.DeniedNotReady, policy.HedgeRequest{Cost: to.Cost()})
		}
	}()
	err = to.Prepare(r, c.t.Settings().AttemptHeader)
	if returned = true; err == nil {
		return nil
	}
	if ctx.Err() == nil {
		c.t.Log.WarnOfPrepareError(err)
		if n > 0 {
			to.RecordResult(false, false)
		}
	}
	if n > 0 {
		err = race.ErrRefused
	}
	return err
}

// connReportFlag returns the feature bit for attempts such as n: it is set if they report their connections.
func (c *call) connReportFlag(n int) int32 {
	if n > 0 && c.t.options.HedgeTransport != nil {
		return hedgesReportConn
	}
	return primariesReportConn
}
