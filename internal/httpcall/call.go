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

// maxLosers is the most losers of a Client that may finish after their calls. Beyond it, the oldest loser is cancelled.
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
func (t *Client) HasReplicas() bool { return t.pools.NeedsPeer() }

// CloseIdleConnections closes the idle connections of primaries and hedges.
func (t *Client) CloseIdleConnections() {
	if t != nil {
		t.pools.CloseIdleConns()
	}
}

// RoundTrip makes a call, as [http.RoundTripper] demands.
func (t *Client) RoundTrip(req *http.Request) (*http.Response, error) {
	c := t.newCall()
	if reason := c.checkEligibility(req); reason != policy.None {
		to := c.route
		t.freeCall(c)
		return t.sendOnce(req, to, reason)
	}
	eligible := c.setKeyAndEndpoints(req)
	if httpattempt.HasBody(req) && (c.canBeHedged() || eligible > 1) {
		// The call begins after the body is read: the time that the caller takes to produce it is not latency of the server.
		if replay, err := c.requests.ReadBody(req, &t.Counters.HedgePanics); err != nil {
			return c.sendBrokenBody(req, replay, err)
		}
	}
	if eligible > 1 {
		c.selectEndpoint(req, eligible)
	}
	c.hostVersion = hostVersionOf(c.Key, req.URL.Scheme)
	schedule := c.Begin(req.Context(), c.Key, c.delay)
	if schedule == nil || httpattempt.HasBody(req) && !c.requests.HasReadBody() { // the key has learned its first schedule after canBeHedged
		return c.sendWithoutHedges(req)
	}
	return c.sendHedged(req)
}

// call is one HTTP call in flight. It implements [race.Op] and [race.LoserPolicy]. It is used again for another call, so nothing that the
// caller receives may refer to it.
//
// The goroutine of RoundTrip writes callOptions, Key, grace, hooks, hostVersion, guarded and prompt before the race begins; attempts read them.
// It writes where an attempt is sent before the attempt starts. Each attempt writes the other fields of its own element of attempts before it ends;
// RoundTrip reads the element of the winner. The primary writes peer; hedges read it. The types of the other fields say how they are guarded.
type call struct {
	policy.Call
	callOptions
	race     race.Race[*http.Response]
	requests httpattempt.Requests
	t        *Client
	grace    time.Duration      // during which a loser may finish; 0: losers are cancelled at once
	hooks    *httpattempt.Hooks // trace hooks of the caller, if the call may be hedged; nil: none
	attempts [1 + race.MaxHedges]attempt
	peer     atomic.Pointer[httpattempt.Peer] // address that the primary went to; nil: unknown, or not needed

	hostVersion      // HTTP version of the host before the call
	guarded     bool // the call may be hedged, and its attempts may use HTTP/1.1
	prompt      bool // losers are cancelled at once if that does no harm, see [loser.EndOptions]
}

// An attempt is one attempt of a call. Where it is sent is decided once, before it starts.
type attempt struct {
	endpoint       *endpoint.Attempt // nil: the call has no choice of endpoints, and is sent to the host of the request
	usesHedgeConns bool              // it uses the connections for hedges, see [httpattempt.Pools.Hedge]; otherwise those of primaries

	request *http.Request // the last that was sent
	setup   time.Duration // time that the attempt waited for a new connection; 0: the connection was not new
}

// newCall returns a call from the pool, or a new one. It has not begun.
func (t *Client) newCall() *call {
	if c, ok := t.calls.Get().(*call); ok {
		return c
	}
	return &call{t: t}
}

// callOptions are the options of one call: those of its caller, its route and the Client.
type callOptions struct {
	route     *route.Route
	delay     time.Duration // between attempts, in place of the learned delays; 0: the learned delays hold
	firstByte bool          // a response wins with its first byte
}

// checkEligibility counts a call and sets its callOptions. It returns the reason for which the call is sent once, or [policy.None] if it may be
// hedged.
func (c *call) checkEligibility(req *http.Request) observe.Reason {
	t := c.t
	c.callOptions = callOptions{route: route.Unrouted}
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
	h := c.requests.ReadHeader(req.Header, httpattempt.AttemptHeaders{Attempt: limit.AttemptHeader, Own: settings.AttemptHeader})
	facts.Hedge = h.Hedge
	facts.IsNested = o.Parent.HTTP && req.URL != nil && o.Parent == race.CallTarget{HTTP: true, Target: httpattempt.HostName(req.URL.Scheme, req.URL.Host)}
	facts.Unrepeated = !httpattempt.IsRepeatable(req, h, settings.MaxReplayBytes, c.firstByte)
	if !o.Allow && !c.route.Hedgeable && facts.Reason(o) == policy.None {
		facts.Unsafe = !t.options.isSafeToRepeat(req)
	}
	return t.IneligibleReason(o, facts)
}

// setKeyAndEndpoints sets the latency key of the call. It returns the endpoints that the request may be sent to; 0: only the host of the request.
func (c *call) setKeyAndEndpoints(req *http.Request) (eligible endpoint.Mask) {
	c.setKey(req)
	if e := c.t.Policy.Config(); c.t.options.Endpoints == nil || e.Shadow || e.MaxHedges == 0 || e.Share <= 0 {
		return 0
	}
	eligible, obstacle := c.t.options.Endpoints.Eligible(req)
	if obstacle != "" {
		c.t.Log.WarnOfBoundRequest(obstacle)
	}
	return eligible
}

// setKey sets the latency key of the call to that of req.
func (c *call) setKey(req *http.Request) {
	if name := c.t.keyName(req, c.route.Pattern); !c.Key.IsCurrent(name) {
		c.Key = c.t.Policy.RouteKey(name, c.route.BudgetPercent/100)
	}
}

// canBeHedged reports whether a hedge can become due.
func (c *call) canBeHedged() bool { return c.delay > 0 || c.Key.Schedule() != nil }

// sendBrokenBody sends a request whose body could not be read. The RoundTripper below reads the same bytes and the same error from the request replay.
// A nil replay means that the caller gave up during the reading; then err is returned.
func (c *call) sendBrokenBody(req, replay *http.Request, err error) (*http.Response, error) {
	t, name := c.t, c.Key.Name
	t.Counters.NotHedgeable.Add(1)
	t.freeCall(c)
	p := t.Policy.BeginUnhedged(req.Context(), name, observe.DeniedBody)
	if replay == nil {
		p.End(false)
		return nil, err
	}
	resp, err := sendRequest(t.pools.Primary(), replay)
	p.End(t.options.isAnswer(req, resp, err))
	return restoreRequest(req, replay, resp), err
}

// sendWithoutHedges sends a call for which no hedge can become due, and records its latency.
func (c *call) sendWithoutHedges(req *http.Request) (*http.Response, error) {
	t, ctx, once := c.t, req.Context(), req
	t.Counters.WarmupRequests.Add(1)
	if c.requests.HasReadBody() || !c.attempts[0].endpoint.IsFirstEndpoint() {
		once = c.requests.SingleRequest(ctx, req)
	}
	c.AttemptStarted(ctx, 0)
	resp, err := c.roundTrip(t.pools.Primary(), once, 0)
	if err == nil {
		c.recordHostFeatures(c.Key, resp, false)
	}
	failure := race.PrimaryError(c.classifyResponse(req, resp, err, 0))
	c.recordSingleOutcome(ctx, failure == nil)
	c.AttemptEnded(ctx, 0, race.OutcomeOf(failure))
	c.End(policy.Outcome{Answered: failure == nil})
	resp = restoreRequest(req, once, resp)
	if t.options.Resume && failure == nil && c.attempts[0].endpoint.IsFirstEndpoint() {
		resp, _ = c.makeResumable(req, resp, nil, 0, 1)
	}
	t.freeCall(c)
	return resp, err
}

// sendHedged sends a call, and hedges it at the delays of its schedule.
func (c *call) sendHedged(req *http.Request) (*http.Response, error) {
	style := &c.race.Style
	style.Observer, style.Detach, style.FreshTimer = c.AttemptObserver(), race.DetachAll, c.InBubble()
	schedule, canHedge := c.raceSchedule()
	if canHedge || c.t.pools.NeedsPeer() {
		c.hooks = httpattempt.HooksFrom(req.Context())
	}
	if canHedge {
		c.configureRace()
	}
	style.Primary = c.requests.PreparePrimary(req, canHedge, c.guarded)
	style.Primary.Call = c.t.NestingMark(c.callTarget(req))
	out := c.race.Run(req.Context(), c, schedule)
	if c.hooks != nil && (out.Winner > 0 || out.Value == nil) {
		c.hooks.Mute()
	}
	var setup time.Duration
	if out.Winner > 0 {
		setup = c.attempts[out.Winner].setup
	}
	c.recordOutcome(req.Context(), out.Winner)
	c.t.EndCall(&c.Call, policy.Outcome{Answered: out.Winner >= 0, Winner: out.Winner, AnswersNotTaken: out.AnswersNotTaken, Setup: setup})
	return c.deliverResult(req, &out)
}

// configureRace sets how the attempts of a call with hedges run and end. A primary that may use HTTP/1.1 is guarded: its cancellation can be put
// off, see [httpattempt.Link]. A guarded primary, and one with trace hooks, which may block, runs on its own goroutine, so that a winner does not wait
// for it.
func (c *call) configureRace() {
	style := &c.race.Style
	style.LoserPolicy = c
	c.guarded = c.mayBeHTTP1()
	style.Async = c.guarded || c.hooks != nil
	if c.version != http1 {
		return
	}
	if !c.firstByte {
		c.grace = c.t.Settings().Linger
	}
	// A loser has not received its header yet. Behind a Limiter it may be queued, and a cancellation takes it out of the queue. That is worth the
	// loss of its connection, unless the cancellation would be put off.
	if c.grace > 0 {
		c.prompt = isBehindLimiter(c.Key)
	}
}

// deliverResult returns the result of the race for the caller, and frees the call.
func (c *call) deliverResult(req *http.Request, out *race.Result[*http.Response]) (*http.Response, error) {
	t, resp, err := c.t, out.Value, out.Err
	if err == httpattempt.ErrFailure {
		err = nil
	}
	if resp == nil && out.Attempt != nil {
		out.Attempt.Abandon()
	}
	number := max(out.Winner, 0)
	resp = restoreRequest(req, c.attempts[number].request, resp)
	resumable := false
	if t.options.Resume && out.Winner >= 0 && c.attempts[out.Winner].endpoint.IsFirstEndpoint() && c.attempts[0].endpoint.IsFirstEndpoint() {
		resp, resumable = c.makeResumable(req, resp, out.Attempt, out.Winner, out.Started)
	}
	if !resumable { // the body of a resumable response keeps the attempt itself
		httpattempt.ReleaseWithBody(resp, out.Attempt)
	}
	if c.race.Reset() {
		t.freeCall(c)
	}
	return resp, err
}

// restoreRequest sets the Request of resp to req, the request of the caller, if it is sent, a copy of req. A RoundTripper below may have set another
// request, which stays. It returns resp, which may be nil.
func restoreRequest(req, sent *http.Request, resp *http.Response) *http.Response {
	if resp != nil && resp.Request == sent {
		resp.Request = req
	}
	return resp
}

// sendOnce sends a request that is not eligible for hedging. The request has the attempt header if it serves a hedge of another call.
func (t *Client) sendOnce(req *http.Request, to *route.Route, reason observe.Reason) (*http.Response, error) {
	o, once := race.OverridesFrom(req.Context()), req
	if name := t.Settings().AttemptHeader; name != "" && o.Hedge > 0 {
		once = req.WithContext(req.Context())
		once.Header = setAttemptHeader(req.Header.Clone(), name, o.Hedge)
	}
	resp, err := t.sendObserved(once, to, reason)
	return restoreRequest(req, once, resp), err
}

// sendObserved sends req and reports it to observers.
func (t *Client) sendObserved(req *http.Request, to *route.Route, reason observe.Reason) (*http.Response, error) {
	if !t.Policy.HasObservers() || req.URL == nil {
		return sendRequest(t.pools.Primary(), req)
	}
	p := t.Policy.BeginUnhedged(req.Context(), t.keyName(req, to.Pattern), reason)
	resp, err := sendRequest(t.pools.Primary(), req)
	p.End(t.options.isAnswer(req, resp, err))
	return resp, err
}

// keyName returns the name of the latency key of a request. The route is the pattern of its route.
func (t *Client) keyName(req *http.Request, route string) policy.Name {
	host := httpattempt.HostName(req.URL.Scheme, req.URL.Host)
	if f := t.options.KeyFunc; f != nil {
		host = f(req.Context(), host, cmp.Or(req.Method, http.MethodGet)+" "+req.URL.Path)
	}
	return policy.Name{Host: host, Route: route}
}

// freeCall clears c and puts it back into the pool.
func (t *Client) freeCall(c *call) {
	clear(c.attempts[:1+c.Hedges])
	c.requests.Reset()
	c.ClearReferences()
	c.hooks, c.grace, c.guarded, c.prompt = nil, 0, false, false
	if t.pools.NeedsPeer() {
		c.peer.Store(nil)
	}
	t.calls.Put(c)
}

// selection returns the Selection of the call's endpoints; nil if the call has no choice.
func (c *call) selection() *endpoint.Selection { return c.attempts[0].endpoint.Selection() }

// selectEndpoint selects the endpoint of the primary, and uses the key of its host. The key of the call must be known, and its body must
// have been read.
func (c *call) selectEndpoint(req *http.Request, eligible endpoint.Mask) {
	set := c.t.options.Endpoints
	selection := set.Select(req.Context(), endpoint.LoadDetector(c.Key, set.URLs()), eligible)
	primary := selection.Primary()
	c.attempts[0].endpoint = primary
	if !primary.IsFirstEndpoint() {
		c.Key.MarkUsed(time.Now()) // the key of the first endpoint keeps the detector
		there := req.WithContext(req.Context())
		there.URL = &url.URL{Host: primary.Host(), Path: req.URL.Path}
		c.setKey(there)
	}
	if p := c.Key.Schedule(); p != nil && p.Median > 0 {
		selection.SelectProbe(p.Median)
	}
	if cost := int32(selection.TypicalCost()); c.Key.TypicalCost.Load() != cost {
		c.Key.TypicalCost.Store(cost)
	}
}

// raceSchedule returns the schedule of the race of a call, and whether a hedge can become due.
func (c *call) raceSchedule() (s race.Schedule, canHedge bool) {
	own := c.RaceSchedule()
	if c.selection().HasProbe() {
		return probeSchedule{own}, true
	}
	return own, len(own.Delays) > 0
}

// A probeSchedule is a schedule with a probe before its hedges. The probe starts together with the primary.
type probeSchedule struct{ *race.FixedSchedule }

func (s probeSchedule) Next(index int) (wait time.Duration, ok bool) {
	if index == 0 {
		return 0, true
	}
	return s.FixedSchedule.Next(index - 1)
}

// callTarget returns the host that the primary of a call is sent to, by which hedging below recognises the call.
func (c *call) callTarget(req *http.Request) race.CallTarget {
	host := c.Key.Name.Host
	if c.t.options.KeyFunc != nil { // the name of the key is not that of a host
		if to := c.attempts[0].endpoint; !to.IsFirstEndpoint() {
			host = to.Host()
		} else {
			host = httpattempt.HostName(req.URL.Scheme, req.URL.Host)
		}
	}
	return race.CallTarget{HTTP: true, Target: host}
}

// recordOutcome records how the call has ended for its endpoints.
func (c *call) recordOutcome(ctx context.Context, winner int) {
	if c.selection() == nil {
		return
	}
	c.selection().RecordCallEnd(endpoint.CallEnd{
		Winner: winner, HedgeDenied: c.Denied != policy.None, DeadlinePassed: errors.Is(ctx.Err(), context.DeadlineExceeded),
		Latency: c.Elapsed(), P99: c.P99Latency(),
	})
}

// recordSingleOutcome records how a call that was sent once has ended for its endpoint.
func (c *call) recordSingleOutcome(ctx context.Context, answered bool) {
	if c.selection() == nil {
		return
	}
	c.attempts[0].endpoint.RecordResult(answered, ctx.Err() != nil)
	winner := -1
	if answered {
		winner = 0
	}
	c.recordOutcome(ctx, winner)
}

// setAttemptHeader sets the header of the given name to n, the number of a hedge. It returns h, or a new header if h is nil. It sets nothing if the name
// is empty.
func setAttemptHeader(h http.Header, name string, n int) http.Header {
	if name != "" {
		if h == nil {
			h = make(http.Header)
		}
		h[name] = []string{strconv.Itoa(n)}
	}
	return h
}
