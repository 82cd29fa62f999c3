// Package httpcall makes HTTP calls that may be hedged. It decides whether a request may be sent twice, sends the
// attempts, classifies their responses and returns the winner's response. It is the implementation of hedge.Transport,
// whose documentation describes the behaviour.
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

// A Client makes HTTP calls that may be hedged. It implements [http.RoundTripper]. It is safe for concurrent use.
type Client struct {
	*calls.Client
	options Options
	pools   *httpattempt.Pools // connection pools of primaries and hedges
	losers  loser.List         // losers that may finish after their calls have returned
	calls   sync.Pool          // unused values of type *call
}

// maxLosers is the largest number of losers of a [Client] that may finish after their calls. When there are more, the
// oldest loser is cancelled.
const maxLosers = 512

// NewClient returns a Client with the options o. It sends primaries by the RoundTripper next. The argument shared holds
// the state that HTTP and gRPC clients have in common, such as the latency keys.
func NewClient(shared *calls.Client, next http.RoundTripper, o Options) *Client {
	t := &Client{Client: shared, options: o, pools: httpattempt.NewPools(next, o.HedgeTransport, o.Resolver)}
	t.losers.Max = maxLosers
	return t
}

// Primary returns the RoundTripper that sends primaries, or nil for a nil Client.
func (t *Client) Primary() http.RoundTripper {
	if t == nil {
		return nil
	}
	return t.pools.PrimaryTransport()
}

// HasReplicas reports whether the option Resolver is in effect. Hedges then connect to other addresses of a host than
// the primary.
func (t *Client) HasReplicas() bool { return t.pools.NeedsPeer() }

// CloseIdleConnections closes the idle connections of primaries and hedges. It does nothing for a nil Client.
func (t *Client) CloseIdleConnections() {
	if t != nil {
		t.pools.CloseIdleConns()
	}
}

// RoundTrip implements [http.RoundTripper]. It sends req as the primary. If req is eligible for hedging and no response
// arrives in time, it also sends hedges, and returns the result of the winner.
func (t *Client) RoundTrip(req *http.Request) (*http.Response, error) {
	c := t.newCall()
	if reason := c.checkEligibility(req); reason != policy.None {
		to := c.route
		t.freeCall(c)
		return t.sendOnce(req, to, reason)
	}
	eligible := c.setKeyAndEndpoints(req)
	if httpattempt.HasBody(req) && (c.hasHedgeDelay() || eligible > 1) {
		// The call begins after the body is read, because the time that the caller takes to produce the body is not latency of the server.
		if replay, err := c.requests.ReadBody(req, &t.Counters.HedgePanics); err != nil {
			return c.sendWithFailingBody(req, replay, err)
		}
	}
	if eligible > 1 {
		c.selectEndpoint(req, eligible)
	}
	c.hostVersion = hostVersionOf(c.Key, req.URL.Scheme)
	schedule := c.Begin(req.Context(), c.Key, c.delay)
	if schedule == nil || httpattempt.HasBody(req) && !c.requests.HasReadBody() { // the first schedule may have been learned after hasHedgeDelay was called
		return c.sendWithoutHedges(req)
	}
	return c.sendHedged(req)
}

// A call is one HTTP call in flight. It implements [race.Op] and [race.LoserPolicy]. It is reused for other calls, so
// the response that the caller gets must not refer to it.
//
// The goroutine that runs RoundTrip writes callOptions, Key, grace, hooks, hostVersion, guarded and cancelsPromptly
// before the race begins. Attempts read these fields. This goroutine also writes endpoint and usesHedgeConns of an
// attempt before the attempt starts.
//
// Each attempt writes the other fields of its element of attempts before it ends; RoundTrip reads the winner's element.
// The primary writes peer, which hedges read. The types of the other fields document their locking.
type call struct {
	policy.Call
	callOptions
	race     race.Race[*http.Response]
	requests httpattempt.Requests
	client   *Client
	grace    time.Duration                    // time for which a loser may finish; 0: losers are cancelled at once
	hooks    *httpattempt.CallerHooks         // the caller's httptrace hooks; nil if there are none or the call cannot be hedged
	attempts [1 + race.MaxHedges]attempt      // by number of the attempt; 0 is the primary
	peer     atomic.Pointer[httpattempt.Peer] // remote address of the primary; nil if unknown or not needed

	hostVersion          // HTTP version of the host, as known at the start of the call
	guarded         bool // the call can be hedged, and cancelling its attempts may fail other requests, as over HTTP/1.1
	cancelsPromptly bool // losers are cancelled at once if no other request is affected, see [loser.EndOptions]
}

// An attempt holds the destination and the result of one attempt of a [call]. The destination does not change after the
// attempt starts.
type attempt struct {
	endpoint       *endpoint.Attempt // nil if the attempt is sent to the host of the request
	usesHedgeConns bool              // the attempt uses the connection pool of hedges, see [httpattempt.Pools.Hedge]

	request     *http.Request // the request that was sent most recently
	connectTime time.Duration // time to set up a new connection; 0 if the connection was reused
}

// newCall returns an unused call. The caller must pass it to freeCall after use.
func (t *Client) newCall() *call {
	if c, ok := t.calls.Get().(*call); ok {
		return c
	}
	return &call{client: t}
}

// A callOptions holds the settings of one call. They are taken from the caller's context, the matching route and the
// Client.
type callOptions struct {
	route     *route.Route  // the route that matches the request, or route.Unrouted
	delay     time.Duration // fixed hedge delay; 0 means that the learned hedge delays apply
	firstByte bool          // an attempt wins when the first byte of its body arrives, not already with its header
}

// checkEligibility counts the call and sets its callOptions. It returns [policy.None] if the call may be hedged.
// Otherwise it returns the reason why the call may not be hedged.
func (c *call) checkEligibility(req *http.Request) observe.Reason {
	t := c.client
	c.callOptions = callOptions{route: route.Unrouted}
	o := race.OverridesFrom(req.Context())
	facts := t.CountCall(o.Retry)
	c.IsRetry = o.Retry
	if facts.SwitchedOff {
		return t.IneligibleReason(o, facts)
	}
	settings := t.Settings()
	if t.options.Routes != nil && req.URL != nil {
		c.route = t.options.Routes.MatchRequest(req)
	}
	if c.delay = o.Delay; c.delay == 0 {
		c.delay = c.route.Delay
	}
	c.firstByte = c.route.FirstByte || t.options.FirstByte
	facts.RouteOff = c.route.Off
	if facts.Excluded {
		facts.Excluded = isExcluded(settings, req) || !t.Enabled() // a file may have replaced its exclusions and disabled the client
	}
	h := c.requests.CopyHeader(req.Header, httpattempt.AttemptHeaders{Standard: limit.AttemptHeader, Configured: settings.AttemptHeader})
	facts.Hedge = h.Hedge
	facts.IsNested = o.Parent.HTTP && req.URL != nil && o.Parent == race.CallTarget{HTTP: true, Target: httpattempt.HostName(req.URL.Scheme, req.URL.Host)}
	facts.NotRepeatable = !httpattempt.IsRepeatable(req, h, settings.MaxReplayBytes, c.firstByte)
	if facts.Reason(o) == policy.None {
		if o.Allow || c.route.Hedgeable || t.options.isSafeToRepeat(req) {
			return policy.None
		}
		facts.Unsafe = true
	}
	return t.IneligibleReason(o, facts)
}

// isExcluded reports whether an operator has forbidden hedges of req.
func isExcluded(s *calls.Settings, req *http.Request) bool {
	return s.ExcludesRequest != nil && req.URL != nil &&
		s.ExcludesRequest(req.Method, httpattempt.HostName(req.URL.Scheme, cmp.Or(req.Host, req.URL.Host)), req.URL)
}

// setKeyAndEndpoints sets the latency key of the call, and returns the set of the endpoints to which the request may be
// sent. The result 0, an empty set, means that the request must be sent to the host in its URL.
func (c *call) setKeyAndEndpoints(req *http.Request) (eligible endpoint.Mask) {
	c.setLatencyKey(req)
	if e := c.client.Policy.Config(); c.client.options.Endpoints == nil || e.Shadow || e.MaxHedges == 0 || e.Share <= 0 {
		return 0
	}
	eligible, obstacle := c.client.options.Endpoints.Eligible(req)
	if obstacle != "" {
		c.client.Log.WarnOfPinnedRequest(obstacle)
	}
	return eligible
}

// setLatencyKey sets the latency key of the call, which depends on the host and the route of req.
func (c *call) setLatencyKey(req *http.Request) {
	if name := c.client.latencyKeyName(req, c.route.Pattern); !c.Key.IsCurrent(name) {
		c.Key = c.client.Policy.RouteKey(name, c.route.BudgetPercent/100)
	}
}

// hasHedgeDelay reports whether the call has a hedge delay: a fixed delay, or delays learned for its latency key. Without
// a delay, no hedge can become due.
func (c *call) hasHedgeDelay() bool { return c.delay > 0 || c.Key.Schedule() != nil }

// sendWithFailingBody makes a call whose request body could not be read completely because of err. It sends the request
// once, without hedges, so that the caller gets the same result as without this Client.
//
// The request that is sent is replay. Its body returns the same bytes and then the same error as the original body. If
// the caller's context ended while the body was read, replay is nil. In this case sendWithFailingBody sends nothing and
// returns err. It frees c.
func (c *call) sendWithFailingBody(req, replay *http.Request, err error) (*http.Response, error) {
	t, name := c.client, c.Key.Name
	t.Counters.NotHedgeable.Add(1)
	t.freeCall(c)
	p := t.Policy.BeginUnhedged(req.Context(), name, observe.DeniedBody)
	if replay == nil {
		p.End(false)
		return nil, err
	}
	resp, err := sendRequest(t.pools.PrimaryTransport(), replay)
	p.End(t.options.isSuccess(req, resp, err))
	return restoreRequest(req, replay, resp), err
}

// sendWithoutHedges makes a call for which no hedge can become due, for example because no hedge delay is known yet for
// its latency key. It records the latency, so that a delay can be learned. It frees c.
func (c *call) sendWithoutHedges(req *http.Request) (*http.Response, error) {
	t, ctx, once := c.client, req.Context(), req
	t.Counters.WarmupRequests.Add(1)
	if c.requests.HasReadBody() || !c.attempts[0].endpoint.IsFirstEndpoint() {
		once = c.requests.UnhedgedRequest(ctx, req)
	}
	c.AttemptStarted(ctx, 0)
	resp, err := c.roundTrip(t.pools.PrimaryTransport(), once, 0)
	if err == nil {
		c.recordHostFeatures(c.Key, resp, false)
	}
	failure := race.PrimaryError(c.classifyResponse(req, resp, err, 0))
	c.recordUnhedgedOutcome(ctx, failure == nil)
	c.AttemptEnded(ctx, 0, race.OutcomeOf(failure))
	c.End(policy.Outcome{Answered: failure == nil})
	resp = restoreRequest(req, once, resp)
	if t.options.Resume && failure == nil && c.attempts[0].endpoint.IsFirstEndpoint() {
		resp, _ = c.makeResumable(req, resp, nil, 0, 1)
	}
	t.freeCall(c)
	return resp, err
}

// sendHedged makes a call by a race of attempts, in which hedges start at the delays of the hedge schedule. It returns
// the result of the call.
func (c *call) sendHedged(req *http.Request) (*http.Response, error) {
	style := &c.race.Style
	style.Observer, style.Detach, style.FreshTimer = c.AttemptObserver(), race.DetachAll, c.IsInBubble()
	schedule, canHedge := c.raceSchedule()
	if canHedge || c.client.pools.NeedsPeer() {
		c.hooks = httpattempt.CallerHooksFrom(req.Context())
	}
	if canHedge {
		c.configureRace()
	}
	style.Primary = c.requests.PreparePrimary(req, canHedge, c.guarded)
	if c.client.MarksNesting() {
		style.Primary.Call = c.callTarget(req)
	}
	out := c.race.Run(req.Context(), c, schedule)
	if c.hooks != nil && (out.Winner > 0 || out.Value == nil) {
		c.hooks.Disable()
	}
	var setup time.Duration
	if out.Winner > 0 {
		setup = c.attempts[out.Winner].connectTime
	}
	c.recordOutcome(req.Context(), out.Winner)
	c.client.EndCall(&c.Call, policy.Outcome{Answered: out.Winner >= 0, Winner: out.Winner, AnswersNotTaken: out.AnswersNotTaken, Setup: setup})
	return c.deliverResult(req, &out)
}

// configureRace sets how the race of a call that can be hedged runs its primary and ends its losers.
//
// If attempts may use HTTP/1.1, they are guarded: a [httpattempt.ConnTrace] may delay their cancellation, because it
// could fail other requests on their connection. Losers over HTTP/1.1 may also get a grace period.
//
// A guarded primary runs on a goroutine of its own, as does a primary with httptrace hooks of the caller. On the
// caller's goroutine, it could delay the response of a winning hedge.
func (c *call) configureRace() {
	style := &c.race.Style
	style.LoserPolicy = c
	c.guarded = c.mayBeHTTP1()
	style.Async = c.guarded || c.hooks != nil
	if c.version != http1 {
		return
	}
	if !c.firstByte {
		c.grace = c.client.Settings().Linger
	}
	// A loser has not received its header yet. Behind a Limiter it may be queued, and a cancellation takes it out of the queue. That is worth the
	// loss of its connection, unless the cancellation would be delayed.
	if c.grace > 0 {
		c.cancelsPromptly = isBehindLimiter(c.Key)
	}
}

// deliverResult converts out, the result of the race, to the response and the error that RoundTrip returns. The
// response refers to the caller's request req, and its body releases the winning attempt at its end. It frees c if no
// attempt uses it any more.
func (c *call) deliverResult(req *http.Request, out *race.Result[*http.Response]) (*http.Response, error) {
	t, resp, err := c.client, out.Value, out.Err
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
	if !resumable { // the body of a resumable response releases the attempt itself
		httpattempt.ReleaseWithBody(resp, out.Attempt)
	}
	if c.race.Reset() {
		t.freeCall(c)
	}
	return resp, err
}

// restoreRequest makes resp.Request point to req, the caller's request, if it points to sent, the copy that was sent.
// If a RoundTripper has set another request, restoreRequest does not change it. It returns resp, which may be nil.
func restoreRequest(req, sent *http.Request, resp *http.Response) *http.Response {
	if resp != nil && resp.Request == sent {
		resp.Request = req
	}
	return resp
}

// sendOnce makes a call that must not be hedged, for the given reason. The argument matching is the route that matches
// req. If the caller's context belongs to a hedge of another call, the request is marked with the number of that hedge.
func (t *Client) sendOnce(req *http.Request, matching *route.Route, reason observe.Reason) (*http.Response, error) {
	once := req
	if o := race.OverridesFrom(req.Context()); o.Hedge > 0 {
		once = t.markNestedRequest(req, matching, o.Hedge)
	}
	resp, err := t.sendUnhedged(once, matching, reason)
	return restoreRequest(req, once, resp), err
}

// markNestedRequest returns a copy of req that is marked like hedge number n, on behalf of which req is sent. The mark
// is the configured header, and for a host with a Limiter also the header that a Limiter recognizes. The argument
// matching is the route that matches req. If neither applies, markNestedRequest returns req.
func (t *Client) markNestedRequest(req *http.Request, matching *route.Route, n int) *http.Request {
	name, behindLimiter := t.Settings().AttemptHeader, false
	if req.URL != nil {
		k := t.Policy.Lookup(t.latencyKeyName(req, matching.Pattern))
		behindLimiter = k != nil && isBehindLimiter(k)
	}
	if name == "" && !behindLimiter {
		return req
	}
	marked := req.WithContext(req.Context())
	marked.Header = setAttemptHeader(req.Header.Clone(), name, n)
	if behindLimiter {
		marked.Header = setAttemptHeader(marked.Header, limit.AttemptHeader, n)
	}
	return marked
}

// sendUnhedged sends req without hedges, and reports the call to observers. The argument matching is the route that
// matches req, and reason says why the call is not hedged.
func (t *Client) sendUnhedged(req *http.Request, matching *route.Route, reason observe.Reason) (*http.Response, error) {
	if !t.Policy.HasObservers() || req.URL == nil {
		return sendRequest(t.pools.PrimaryTransport(), req)
	}
	p := t.Policy.BeginUnhedged(req.Context(), t.latencyKeyName(req, matching.Pattern), reason)
	resp, err := sendRequest(t.pools.PrimaryTransport(), req)
	p.End(t.options.isSuccess(req, resp, err))
	return resp, err
}

// latencyKeyName returns the name of the latency key for req. The argument route is the pattern of the matching route, or ""
// if no route matches.
func (t *Client) latencyKeyName(req *http.Request, route string) policy.Name {
	host := httpattempt.HostName(req.URL.Scheme, req.URL.Host)
	if f := t.options.KeyFunc; f != nil {
		host = f(req.Context(), host, cmp.Or(req.Method, http.MethodGet)+" "+req.URL.Path)
	}
	return policy.Name{Host: host, Route: route}
}

// freeCall clears c and makes it available to newCall. The caller must not use c afterwards.
func (t *Client) freeCall(c *call) {
	clear(c.attempts[:1+c.Hedges])
	c.requests.Reset()
	c.ClearReferences()
	c.hooks, c.grace, c.guarded, c.cancelsPromptly = nil, 0, false, false
	if t.pools.NeedsPeer() {
		c.peer.Store(nil)
	}
	t.calls.Put(c)
}

// selection returns the endpoint selection of the call. It returns nil if the call can use only the host in its URL.
func (c *call) selection() *endpoint.Selection { return c.attempts[0].endpoint.Selection() }

// selectEndpoint selects the endpoint of the primary among the eligible endpoints. If another endpoint than the first
// is selected, the latency key of the call becomes the key of that endpoint's host.
//
// The caller must have set the call's latency key to the key of the first endpoint, and must have read the request
// body.
func (c *call) selectEndpoint(req *http.Request, eligible endpoint.Mask) {
	set := c.client.options.Endpoints
	selection := set.Select(req.Context(), endpoint.LoadDetector(c.Key, set.URLs()), eligible)
	primary := selection.Primary()
	c.attempts[0].endpoint = primary
	if !primary.IsFirstEndpoint() {
		c.Key.MarkUsed(time.Now()) // the key of the first endpoint holds the detector and must not be evicted
		there := req.WithContext(req.Context())
		there.URL = &url.URL{Host: primary.Host(), Path: req.URL.Path}
		c.setLatencyKey(there)
	}
	if p := c.Key.Schedule(); p != nil && p.Median > 0 {
		selection.SelectProbe(p.Median)
	}
	if cost := int32(selection.TypicalCost()); c.Key.TypicalCost.Load() != cost {
		c.Key.TypicalCost.Store(cost)
	}
}

// raceSchedule returns the hedge schedule of the call. The result canHedge is false if no hedge can become due.
func (c *call) raceSchedule() (s race.Schedule, canHedge bool) {
	own, selection := c.RaceSchedule(), c.selection()
	if selection == nil {
		return own, len(own.Delays) > 0
	}
	selection.SetDelays(own)
	return selection, selection.HasProbe() || len(own.Delays) > 0
}

// callTarget returns the host to which the primary is sent. A RoundTripper that this Client wraps may be a hedging
// Client too. That Client uses the target to recognise that the request belongs to this call, so that it does not hedge
// the request again.
func (c *call) callTarget(req *http.Request) race.CallTarget {
	host := c.Key.Name.Host
	if c.client.options.KeyFunc != nil { // the name of the key need not be a host
		if to := c.attempts[0].endpoint; !to.IsFirstEndpoint() {
			host = to.Host()
		} else {
			host = httpattempt.HostName(req.URL.Scheme, req.URL.Host)
		}
	}
	return race.CallTarget{HTTP: true, Target: host}
}

// recordOutcome records the end of the call for the health of its endpoints. The argument winner is the number of the
// winning attempt, or -1 if no attempt succeeded. It does nothing if the call has no endpoint selection.
func (c *call) recordOutcome(ctx context.Context, winner int) {
	if c.selection() == nil {
		return
	}
	c.selection().RecordCallEnd(endpoint.CallEnd{
		Winner: winner, HedgeDenied: c.Denied != policy.None, DeadlinePassed: errors.Is(ctx.Err(), context.DeadlineExceeded),
		Latency: c.Elapsed(), P99: c.P99Latency(),
	})
}

// recordUnhedgedOutcome records the result of a call without hedges for the health of its endpoint. The argument
// answered says that the call succeeded. It does nothing if the call has no endpoint selection.
func (c *call) recordUnhedgedOutcome(ctx context.Context, answered bool) {
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

// setAttemptHeader marks a request as hedge number n, so that the server can recognize hedges. It sets the field with
// the given name in the request header h. It returns h, or a new header if h is nil. If name is "", it changes nothing.
func setAttemptHeader(h http.Header, name string, n int) http.Header {
	if name != "" {
		if h == nil {
			h = make(http.Header)
		}
		h[name] = []string{strconv.Itoa(n)}
	}
	return h
}
