// Package httpcall makes HTTP calls that may be hedged: it decides whether a request may be sent twice, makes the attempts, judges their responses and
// returns the winner's. It implements hedge.Transport, which documents the behaviour.
package httpcall

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/calls"
	"github.com/gohedge/hedge/internal/endpoint"
	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/loser"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/internal/route"
	"github.com/gohedge/hedge/observe"
)

// A Client makes HTTP calls. It is safe for concurrent use.
type Client struct {
	*calls.Client
	options Options
	pools   *httpattempt.Pools
	losers  loser.List
	calls   sync.Pool // of *call
}

// maxLosers bounds the losers of one Client that linger. When there is one more,
// the oldest is cancelled.
const maxLosers = 512

// NewClient returns a Client whose primaries are sent through next.
func NewClient(shared *calls.Client, next http.RoundTripper, o Options) *Client {
	t := &Client{Client: shared, options: o, pools: httpattempt.NewPools(next, o.HedgeTransport, o.Resolver)}
	t.losers.Max = maxLosers
	return t
}

// Primary returns the RoundTripper that primaries are sent through; nil for a nil Client.
func (t *Client) Primary() http.RoundTripper {
	if t == nil {
		return nil
	}
	return t.pools.Primary()
}

// HasReplicas reports whether hedges are sent to other addresses of their host than the primary.
func (t *Client) HasReplicas() bool { return t.pools.AskPeers() }

// CloseIdleConnections closes the idle connections of primaries and hedges.
func (t *Client) CloseIdleConnections() {
	if t != nil {
		t.pools.CloseIdle()
	}
}

// RoundTrip makes a call, as [http.RoundTripper] demands.
func (t *Client) RoundTrip(req *http.Request) (*http.Response, error) {
	c := t.call()
	if reason := c.readTerms(req); reason != policy.None {
		to := c.route
		t.free(c)
		return t.sendOnce(req, to, reason)
	}
	fit := c.name(req)
	if httpattempt.HasBody(req) && (c.mayHedge() || fit > 1) {
		// Before the call begins: the caller's body is not the server's latency.
		if whole, err := c.requests.ReadBody(req, &t.Counters.HedgePanics); err != nil {
			return c.sendBroken(req, whole, err)
		}
	}
	if fit > 1 {
		c.embark(req, fit)
	}
	c.hostVersion = hostVersionOf(c.key, req.URL.Scheme)
	plan := c.Begin(req.Context(), c.key, c.delay)
	if plan == nil || httpattempt.HasBody(req) && !c.requests.BodyRead() { // the plan may have come meanwhile
		return c.sendAlone(req)
	}
	return c.sendHedged(req, plan)
}

// call is one request in flight: the Op and the Gate of its race. It is used again, so
// nothing that is handed out may refer to it.
//
// The goroutine of RoundTrip writes terms, key, trip, grace, hooks, hostVersion, guarded and prompt before the race
// begins, and attempts read them. Each attempt writes its own element of tries before it
// ends; RoundTrip reads that of the winner. The primary writes peer, and hedges read it.
// likePrimary is written once, before a call for the rest of a body is made. What guards the
// others is said at their types.
type call struct {
	policy.Call
	terms
	race     race.Race[*http.Response]
	requests httpattempt.Requests
	t        *Client
	key      *policy.Key        // kept for the next call, which is often one of the same key
	grace    time.Duration      // for losers to finish; 0: they are cancelled
	hooks    *httpattempt.Hooks // the caller's, if the call may be hedged; nil: it has none
	tries    [1 + race.MaxHedges]try
	peer     atomic.Pointer[httpattempt.Peer] // where the primary went; nil: not known, or not needed
	trip     *endpoint.Trip                   // nil: all attempts go where the call was made for

	hostVersion      // of the host, as far as was known before
	guarded     bool // the call may be hedged, and its attempts may go over HTTP/1.1
	prompt      bool // losers are cancelled rather than that they finish, see [loser.Terms]
	likePrimary bool // hedges go where primaries go, see [WithResume]
}

// A try is what an attempt has sent last.
type try struct {
	sent  *http.Request
	setup time.Duration // that it waited for a new connection; 0: its connection was not new
}

// call returns a call that has not begun.
func (t *Client) call() *call {
	if c, ok := t.calls.Get().(*call); ok {
		return c
	}
	return &call{t: t}
}

// terms are what the caller, the route and the options say of a call.
type terms struct {
	route     *route.Route
	delay     time.Duration // instead of the learned delays; 0: none is given
	firstByte bool          // a response wins with its first byte
}

// readTerms counts a call and sets its terms. It returns why the call is sent once, or [policy.None].
func (c *call) readTerms(req *http.Request) observe.Reason {
	t := c.t
	c.terms = terms{route: route.Unrouted}
	o, facts := race.OverridesFrom(req.Context()), t.CountCall()
	if facts.SwitchedOff {
		return t.IneligibleReason(o, facts)
	}
	settings := t.Settings()
	if t.options.Routes != nil && req.URL != nil {
		c.route = t.options.Routes.MatchRequest(req)
	}
	c.delay = cmp.Or(o.Delay, c.route.Delay)
	c.firstByte = c.route.FirstByte || t.options.FirstByte
	facts.RouteOff = c.route.Off
	h := c.requests.ReadHeader(req.Header, httpattempt.Marks{Attempt: limit.AttemptHeader, Own: settings.AttemptHeader})
	facts.Hedge = h.Hedge
	facts.Again = o.Above.HTTP && req.URL != nil && o.Above == race.Called{HTTP: true, Target: httpattempt.HostName(req.URL.Scheme, req.URL.Host)}
	facts.Unrepeated = !httpattempt.Divisible(req, h, settings.MaxReplayBytes, c.firstByte)
	if !o.Allow && !c.route.Hedgeable && facts.Reason(o) == policy.None {
		facts.Unsafe = !t.options.safe(req)
	}
	return t.IneligibleReason(o, facts)
}

// name finds the key of the call, and the endpoints that can have it; none but the first one: it goes where it is made for.
func (c *call) name(req *http.Request) (fit endpoint.Mask) {
	if name := c.t.name(req, c.route.Pattern); !c.key.Is(name) {
		c.key = c.t.Policy.RouteKey(name, c.route.BudgetPercent/100)
	}
	if e := c.t.Policy.Config(); c.t.options.Endpoints == nil || e.Shadow || e.MaxHedges == 0 || e.Share <= 0 {
		return 0
	}
	fit, stays := c.t.options.Endpoints.Fits(req)
	if stays != "" {
		c.t.Log.Stays(stays)
	}
	return fit
}

// mayHedge reports whether a hedge may become due.
func (c *call) mayHedge() bool { return c.delay > 0 || c.key.Schedule() != nil }

// sendBroken sends a request whose body failed while it was read. The base must see how. The
// whole request is nil if the caller gave up.
func (c *call) sendBroken(req, whole *http.Request, err error) (*http.Response, error) {
	t, name := c.t, c.key.Name
	t.Counters.NotHedgeable.Add(1)
	t.free(c)
	p := t.Policy.BeginUnhedged(req.Context(), name, observe.DeniedBody)
	if whole == nil {
		p.Done(false)
		return nil, err
	}
	resp, err := send(t.pools.Primary(), whole)
	p.Done(t.options.answered(req, resp, err))
	return answerTo(req, whole, resp), err
}

// sendAlone sends a call for which no hedge can become due, and learns from it.
func (c *call) sendAlone(req *http.Request) (*http.Response, error) {
	t, ctx, once := c.t, req.Context(), req
	t.Counters.WarmupRequests.Add(1)
	if c.requests.BodyRead() || c.trip.Endpoint(0) > 0 {
		once = c.requests.Alone(ctx, req)
	}
	c.Started(ctx, 0)
	resp, err := c.visit(t.pools.Primary(), once, 0)
	if err == nil {
		c.recordHostFeatures(c.key, resp, false)
	}
	failure := race.OfPrimary(c.judge(req, resp, err, 0))
	c.arrivedAlone(ctx, failure == nil)
	c.Finished(ctx, 0, race.OutcomeOf(failure))
	c.End(failure == nil, false, 0)
	resp = answerTo(req, once, resp)
	if t.options.Resume && failure == nil && c.trip.Endpoint(0) == 0 {
		resp, _ = c.resumable(req, resp, nil, 0, 1)
	}
	t.free(c)
	return resp, err
}

// sendHedged sends a call, and hedges when the plan says.
func (c *call) sendHedged(req *http.Request, plan *policy.Schedule) (*http.Response, error) {
	style := &c.race.Style
	style.Usual, style.Watch, style.Sever, style.Fresh = c.Usual(), c.Watch(), true, c.InBubble()
	style.Call = c.t.NestingMark(race.Called{HTTP: true, Target: c.key.Name.Host})
	if c.t.options.KeyFunc != nil && style.Call.HTTP {
		style.Call.Target = c.hostOf(req)
	}
	delays := c.delaysOf(plan)
	if len(delays) > 0 || c.t.pools.AskPeers() {
		c.hooks = httpattempt.HooksFrom(req.Context())
	}
	if len(delays) > 0 {
		c.setStyle()
	}
	style.Primary = c.requests.Prepare(req, len(delays) > 0, c.guarded)
	out := c.race.Run(req.Context(), c, c, delays)
	if c.hooks != nil && (out.Winner > 0 || out.Value == nil) {
		c.hooks.Mute()
	}
	var setup time.Duration
	if out.Winner > 0 {
		setup = c.tries[out.Winner].setup
	}
	c.NotTaken = out.NotTaken
	c.arrived(req.Context(), out.Winner)
	c.End(out.Winner >= 0, out.Winner > 0, setup)
	c.t.CountOutcome(&c.Call, out.Winner)
	return c.deliver(req, &out)
}

// setStyle sets how the attempts of a call run and end that may be hedged. Where a primary may go over HTTP/1.1 it is
// guarded, which can put off its cancellation, see [httpattempt.Link]. It is detached as well, so that no winner waits for it, and so is
// a primary whose trace hooks may block.
func (c *call) setStyle() {
	style := &c.race.Style
	style.Losers = c
	c.guarded = c.mayBeHTTP1()
	style.Detach = c.guarded || c.hooks != nil
	if c.version != http1 {
		return
	}
	if !c.firstByte {
		c.grace = c.t.Settings().Linger
	}
	// A loser has no header yet. Behind a Limiter it may still wait in the queue, which it leaves if
	// it is cancelled; that is worth a connection, unless the cancellation would be put off.
	if c.grace > 0 {
		c.prompt = behindLimiter(c.key)
	}
}

// deliver returns to the caller how the race has ended, and gives the call back.
func (c *call) deliver(req *http.Request, out *race.Result[*http.Response]) (*http.Response, error) {
	t, resp, err := c.t, out.Value, out.Err
	if err == httpattempt.ErrFailure {
		err = nil
	}
	if resp == nil && out.Attempt != nil {
		out.Attempt.Abandon()
	}
	number := max(out.Winner, 0)
	resp = answerTo(req, c.tries[number].sent, resp)
	resumable := false
	if t.options.Resume && out.Winner >= 0 && c.trip.Endpoint(out.Winner) == 0 && c.trip.Endpoint(0) == 0 {
		resp, resumable = c.resumable(req, resp, out.Attempt, out.Winner, out.Started)
	}
	if !resumable { // its body keeps the attempt
		httpattempt.KeepAttempt(resp, out.Attempt)
	}
	if c.race.Reset() {
		t.free(c)
	}
	return resp, err
}

// answerTo makes resp, which may be nil, the response to the caller's own request, if sent was
// that request's copy and resp is the response to it. A RoundTripper below may have sent another
// request, of which resp tells.
func answerTo(req, sent *http.Request, resp *http.Response) *http.Response {
	if resp != nil && resp.Request == sent {
		resp.Request = req
	}
	return resp
}

// sendOnce sends req as it is, or with the attempt header if it is made for a hedge.
func (t *Client) sendOnce(req *http.Request, to *route.Route, reason observe.Reason) (*http.Response, error) {
	o, once := race.OverridesFrom(req.Context()), req
	if name := t.Settings().AttemptHeader; name != "" && o.Hedge > 0 {
		once = req.WithContext(req.Context())
		once.Header = mark(req.Header.Clone(), name, o.Hedge)
	}
	resp, err := t.observe(once, to, reason)
	return answerTo(req, once, resp), err
}

// observe sends req, and tells the observers of it.
func (t *Client) observe(req *http.Request, to *route.Route, reason observe.Reason) (*http.Response, error) {
	if !t.Policy.Observed() || req.URL == nil {
		return send(t.pools.Primary(), req)
	}
	p := t.Policy.BeginUnhedged(req.Context(), t.name(req, to.Pattern), reason)
	resp, err := send(t.pools.Primary(), req)
	p.Done(t.options.answered(req, resp, err))
	return resp, err
}

func (t *Client) name(req *http.Request, route string) policy.Name {
	host := httpattempt.HostName(req.URL.Scheme, req.URL.Host)
	if f := t.options.KeyFunc; f != nil {
		host = f(req.Context(), host, cmp.Or(req.Method, http.MethodGet)+" "+req.URL.Path)
	}
	return policy.Name{Host: host, Route: route}
}

func (t *Client) free(c *call) {
	clear(c.tries[:1+c.Hedges])
	c.requests.Forget()
	c.Forget()
	c.hooks, c.trip, c.grace, c.guarded, c.prompt = nil, nil, 0, false, false
	if t.pools.AskPeers() {
		c.peer.Store(nil)
	}
	t.calls.Put(c)
}

// embark chooses among the endpoints for a call whose key is known and whose body was read, and has it go to the key of the one that its primary
// goes to.
func (c *call) embark(req *http.Request, fit endpoint.Mask) {
	set := c.t.options.Endpoints
	c.trip = set.Begin(req.Context(), endpoint.HealthOf(c.key, set.Names()), fit)
	if to := c.trip.Primary(); to > 0 {
		c.key.Use(time.Now()) // it knows how the endpoints fare
		there := req.WithContext(req.Context())
		there.URL = &url.URL{Host: set.Host(to), Path: req.URL.Path}
		if name := c.t.name(there, c.route.Pattern); !c.key.Is(name) {
			c.key = c.t.Policy.RouteKey(name, c.route.BudgetPercent/100)
		}
	}
	if p := c.key.Schedule(); p != nil && p.Median > 0 {
		c.trip.ChooseProbe(p.Median)
	}
	if cost := int32(c.trip.Usually()); c.key.TypicalCost.Load() != cost {
		c.key.TypicalCost.Store(cost)
	}
}

// delaysOf returns the delays of a call, which begin at once if it is sent to two endpoints.
func (c *call) delaysOf(plan *policy.Schedule) []time.Duration {
	if !c.trip.Probes() {
		return plan.Delays
	}
	return append([]time.Duration{0}, plan.Delays...)
}

// hostOf returns the name of the host that the primary of a call goes to.
func (c *call) hostOf(req *http.Request) string {
	if to := c.trip.Endpoint(0); to > 0 {
		return c.t.options.Endpoints.Host(to)
	}
	return httpattempt.HostName(req.URL.Scheme, req.URL.Host)
}

// arrived tells how the call has ended, see [endpoint.Trip.End].
func (c *call) arrived(ctx context.Context, winner int) {
	if c.trip == nil {
		return
	}
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	c.trip.End(endpoint.End{Winner: winner, Denied: c.Denied != policy.None, Late: late, Took: c.Elapsed(), Tail: c.Usual()})
}

// arrivedAlone tells how a call has ended that was sent once.
func (c *call) arrivedAlone(ctx context.Context, answered bool) {
	if c.trip != nil {
		c.trip.Ended(0, answered, ctx.Err() != nil)
		c.arrived(ctx, map[bool]int{true: 0, false: -1}[answered])
	}
}

// mark sets the header of the given name to the number of a hedge, and returns h or a
// new header if that is nil. If the name is empty, no header is set.
func mark(h http.Header, name string, n int) http.Header {
	if name != "" {
		if h == nil {
			h = make(http.Header)
		}
		h[name] = []string{strconv.Itoa(n)}
	}
	return h
}
