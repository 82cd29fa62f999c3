package hedge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/endpoint"
	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/loser"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
)

// A Transport is an [http.RoundTripper] that hedges requests which are slower
// than usual for their host. It is safe for concurrent use. The zero Transport is
// not usable; New makes one.
//
// These requests are sent once, as they are: those that are not safe to repeat (see
// [WithHedgeable]); CONNECT, upgrades, and others whose Connection header says more than
// close or keep-alive; those with an Expect header; those whose credentials are good for one
// connection or one request: NTLM, Negotiate, Digest, OAuth 1.0, DPoP, and whatever has a nonce, in its URL, in
// credentials or as a header; URLs with a ticket of CAS, an authorization code and its state, an answer of SAML or an otp; event streams (Accept: text/event-stream) unless [WithFirstByte] is given; bodies of unknown length or above
// [WithMaxReplayBytes]; requests with trailers.
//
// The caller's request is never changed and its body is always closed. It may be changed
// or used again, as always, once RoundTrip has returned an error or the response's body
// is closed: the attempts of a call that may be hedged have copies. Losers do not use the request's context any more
// either, nor do attempts of a call that has failed. Losers
// find in theirs the values that hedges of the call have asked for before, and no others.
// httptrace hooks see the primary only. None begins once RoundTrip has returned an error or another attempt's
// response, before which RoundTrip waits 0.1s at most for a hook that runs. Response.Request is the caller's request, or what a RoundTripper below has set.
//
// The primary of a request that may be hedged runs on a goroutine of its own, unless all answers of its host came over HTTP/2
// or later, or without a version. Then a hedge's response is returned once the RoundTrip of the cancelled primary has returned, which
// net/http does at once. If the primary panics on its own goroutine, RoundTrip panics as well. If the value is an error that the runtime did not make, RoundTrip
// panics with it. Otherwise it panics with an error that has the stack in its text and that
// unwraps to the value.
type Transport struct {
	handle
	pools  *httpattempt.Pools
	losers loser.List
	calls  sync.Pool // of *call
}

var _ http.RoundTripper = (*Transport)(nil)

// New returns a Transport that sends through next, or through
// [http.DefaultTransport] if next is nil.
func New(next http.RoundTripper, opts ...Option) *Transport {
	t := new(Transport)
	t.mustInit("http", opts)
	t.connect(next)
	return t
}

// NewWithConfig is [New] for settings that come from outside the program: it
// returns an error that names the field and the value if c, or c together with
// opts, makes no sense.
func NewWithConfig(next http.RoundTripper, c Config, opts ...Option) (*Transport, error) {
	t := new(Transport)
	if err := t.init("http", c, opts); err != nil {
		return nil, err
	}
	t.connect(next)
	return t, nil
}

// Wrap returns a copy of c whose requests are hedged. It keeps c's transport
// below the hedging, and its timeout, jar and redirect policy. A nil c is
// [http.DefaultClient].
func Wrap(c *http.Client, opts ...Option) *http.Client {
	if c == nil {
		c = http.DefaultClient
	}
	hedged := *c
	hedged.Transport = New(c.Transport, opts...)
	return &hedged
}

// maxLosers bounds the losers of one Transport that linger. When there is one more,
// the oldest is cancelled.
const maxLosers = 512

// connect sets where attempts go.
func (t *Transport) connect(next http.RoundTripper) {
	if next == nil {
		next = http.DefaultTransport
	}
	t.pools = httpattempt.NewPools(next, t.options.transport, t.options.resolver)
	t.losers.Max = maxLosers
	if t.options.resolver != nil && t.options.transport == nil && !t.pools.AskPeers() {
		t.tellUnused([]string{fmt.Sprintf("WithReplicas needs an *http.Transport below, not a %T", next)})
	}
}

// WrappedRoundTripper returns the RoundTripper that primaries are sent through.
func (t *Transport) WrappedRoundTripper() http.RoundTripper { return t.pools.Primary() }

// CloseIdleConnections closes the idle connections of the RoundTripper below, and
// those kept for hedges. If a RoundTripper cannot do so and has a method
// WrappedRoundTripper, that one's result is tried.
func (t *Transport) CloseIdleConnections() { t.pools.CloseIdle() }

// RoundTrip sends the request once, and again if the answer takes longer than
// usual. It returns the first success (status 2xx or 3xx, see [WithAnswerStatus]) or what the
// primary answers, unless that is a failure (see [WithFailureStatus]) for which a hedge may
// have something better. If none has in the usual time, it returns what the primary did.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c := t.call()
	if reason := c.readTerms(req); reason != policy.None {
		to := c.route
		t.free(c)
		return t.sendOnce(req, to, reason)
	}
	fit := c.name(req)
	if httpattempt.HasBody(req) && (c.mayHedge() || fit > 1) {
		// Before the call begins: the caller's body is not the server's latency.
		if whole, err := c.requests.ReadBody(req, &t.stats.HedgePanics); err != nil {
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

// call returns a call that has not begun.
func (t *Transport) call() *call {
	if c, ok := t.calls.Get().(*call); ok {
		return c
	}
	return &call{t: t}
}

// terms are what the caller, the route and the options say of a call.
type terms struct {
	route     *route
	delay     time.Duration // instead of the learned delays; 0: none is given
	firstByte bool          // a response wins with its first byte
}

// readTerms counts a call and sets its terms. It returns why the call is sent once, or [policy.None].
func (c *call) readTerms(req *http.Request) Reason {
	t := c.t
	c.terms = terms{route: noRoute}
	o, facts := race.OverridesFrom(req.Context()), t.begin()
	if facts.SwitchedOff {
		return t.refuses(o, facts)
	}
	settings := t.settings.Load()
	if t.options.routes != nil && req.URL != nil {
		c.route = t.options.routes.http(req)
	}
	c.delay = cmp.Or(o.Delay, c.route.Delay)
	c.firstByte = c.route.FirstByte || t.options.firstByte
	facts.RouteOff = c.route.Off
	h := c.requests.ReadHeader(req.Header, httpattempt.Marks{Attempt: AttemptHeader, Own: settings.AttemptHeader})
	facts.Hedge = h.Hedge
	facts.Again = o.Above.HTTP && req.URL != nil && o.Above == race.Called{HTTP: true, Target: httpattempt.HostName(req.URL.Scheme, req.URL.Host)}
	facts.Unrepeated = !httpattempt.Divisible(req, h, settings.MaxReplayBytes, c.firstByte)
	if !o.Allow && !c.route.Hedgeable && facts.Reason(o) == policy.None {
		facts.Unsafe = !t.options.safe(req)
	}
	return t.refuses(o, facts)
}

// name finds the key of the call, and the endpoints that can have it; none but the first one: it goes where it is made for.
func (c *call) name(req *http.Request) (fit endpoint.Mask) {
	if name := c.t.name(req, c.route.pattern); !c.key.Is(name) {
		c.key = c.t.engine.RouteKey(name, c.route.BudgetPercent/100)
	}
	if e := c.t.engine.Config(); c.t.options.endpoints == nil || e.Shadow || e.MaxHedges == 0 || e.Share <= 0 {
		return 0
	}
	fit, stays := c.t.options.endpoints.Fits(req)
	if stays != "" {
		c.t.log.Stays(stays)
	}
	return fit
}

// mayHedge reports whether a hedge may become due.
func (c *call) mayHedge() bool { return c.delay > 0 || c.key.Schedule() != nil }

// sendBroken sends a request whose body failed while it was read. The base must see how. The
// whole request is nil if the caller gave up.
func (c *call) sendBroken(req, whole *http.Request, err error) (*http.Response, error) {
	t, name := c.t, c.key.Name
	t.stats.NotHedgeable.Add(1)
	t.free(c)
	p := t.engine.BeginUnhedged(req.Context(), name, DeniedBody)
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
	t.stats.WarmupRequests.Add(1)
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
	if t.options.resume && failure == nil && c.trip.Endpoint(0) == 0 {
		resp, _ = c.resumable(req, resp, nil, 0, 1)
	}
	t.free(c)
	return resp, err
}

// sendHedged sends a call, and hedges when the plan says.
func (c *call) sendHedged(req *http.Request, plan *policy.Schedule) (*http.Response, error) {
	style := &c.race.Style
	style.Usual, style.Watch, style.Sever, style.Fresh = c.Usual(), c.Watch(), true, c.InBubble()
	style.Call = c.t.above(race.Called{HTTP: true, Target: c.key.Name.Host})
	if c.t.options.key != nil && style.Call.HTTP {
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
	c.t.tally(&c.Call, out.Winner)
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
		c.grace = c.t.settings.Load().Linger
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
	if t.options.resume && out.Winner >= 0 && c.trip.Endpoint(out.Winner) == 0 && c.trip.Endpoint(0) == 0 {
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
func (t *Transport) sendOnce(req *http.Request, to *route, reason Reason) (*http.Response, error) {
	o, once := race.OverridesFrom(req.Context()), req
	if name := t.settings.Load().AttemptHeader; name != "" && o.Hedge > 0 {
		once = req.WithContext(req.Context())
		once.Header = mark(req.Header.Clone(), name, o.Hedge)
	}
	resp, err := t.observe(once, to, reason)
	return answerTo(req, once, resp), err
}

// observe sends req, and tells the observers of it.
func (t *Transport) observe(req *http.Request, to *route, reason Reason) (*http.Response, error) {
	if !t.engine.Observed() || req.URL == nil {
		return send(t.pools.Primary(), req)
	}
	p := t.engine.BeginUnhedged(req.Context(), t.name(req, to.pattern), reason)
	resp, err := send(t.pools.Primary(), req)
	p.Done(t.options.answered(req, resp, err))
	return resp, err
}

func (t *Transport) name(req *http.Request, route string) policy.Name {
	host := httpattempt.HostName(req.URL.Scheme, req.URL.Host)
	if f := t.options.key; f != nil {
		host = f(req.Context(), host, cmp.Or(req.Method, http.MethodGet)+" "+req.URL.Path)
	}
	return policy.Name{Host: host, Route: route}
}

func (t *Transport) free(c *call) {
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
	set := c.t.options.endpoints
	c.trip = set.Begin(req.Context(), endpoint.HealthOf(c.key, set.Names()), fit)
	if to := c.trip.Primary(); to > 0 {
		c.key.Use(time.Now()) // it knows how the endpoints fare
		there := req.WithContext(req.Context())
		there.URL = &url.URL{Host: set.Host(to), Path: req.URL.Path}
		if name := c.t.name(there, c.route.pattern); !c.key.Is(name) {
			c.key = c.t.engine.RouteKey(name, c.route.BudgetPercent/100)
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
		return c.t.options.endpoints.Host(to)
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

// LatencyEstimate returns quantile q, in [0, 1], of what callers of host waited
// recently. It is 0 if rt is not a [*Transport] or nothing is known of host.
func LatencyEstimate(rt http.RoundTripper, host string, q float64) time.Duration {
	t, ok := rt.(*Transport)
	if !ok || t == nil || t.engine == nil {
		return 0
	}
	k := t.engine.Lookup(policy.Name{Host: host})
	if k == nil {
		k = t.engine.Lookup(policy.Name{Host: httpattempt.HostName("", host)})
	}
	if k == nil {
		return 0
	}
	d, _ := k.Quantile(q)
	return d
}
