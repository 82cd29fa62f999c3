package hedge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/race"
)

// A Transport is an [http.RoundTripper] that hedges requests which are slower
// than usual for their host. It is safe for concurrent use. The zero Transport is
// not usable; New makes one.
//
// These requests are sent once, as they are: those that are not safe to repeat (see
// [WithHedgeable]); CONNECT and upgrades; event streams (Accept: text/event-stream)
// unless [WithFirstByte] is given; bodies of unknown length or above
// [WithMaxReplayBytes]; requests with trailers.
//
// The caller's request is never changed and its body is always closed. httptrace
// hooks see the primary only.
type Transport struct {
	handle
	next     http.RoundTripper
	hedgeVia http.RoundTripper        // given for hedges; nil: clone, or next
	clone    func() http.RoundTripper // of next, with connections of its own; nil if there can be none
	cloned   atomic.Bool              // clone was called
	replicas *replicas                // pools of connections to other addresses; nil: not asked for
	linger   race.Linger
	calls    sync.Pool // of *call
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
	t.next, t.hedgeVia = next, t.options.transport
	t.linger.Max = maxLosers
	if base, ok := next.(*http.Transport); ok {
		clone := func() *http.Transport {
			c := base.Clone()
			// Clone copies the TLS configuration that HTTP/2 made in base, and a
			// Transport with one of its own speaks HTTP/2 only if told to.
			c.ForceAttemptHTTP2 = base.ForceAttemptHTTP2 || base.TLSNextProto["h2"] != nil
			return c
		}
		t.clone = sync.OnceValue(func() http.RoundTripper {
			t.cloned.Store(true)
			return clone()
		})
		if r := t.options.resolver; r != nil && t.hedgeVia == nil {
			t.replicas = &replicas{resolver: r, clone: clone}
		}
	}
}

// WrappedRoundTripper returns the RoundTripper that primaries are sent through.
func (t *Transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// CloseIdleConnections closes the idle connections of the RoundTripper below, and
// those kept for hedges. If a RoundTripper cannot do so and has a method
// WrappedRoundTripper, that one's result is tried.
func (t *Transport) CloseIdleConnections() {
	closeIdle(t.next)
	closeIdle(t.hedgeVia)
	if t.cloned.Load() {
		closeIdle(t.clone())
	}
	if t.replicas != nil {
		t.replicas.closeIdle()
	}
}

// closeIdle closes the idle connections of rt, or of what rt wraps.
func closeIdle(rt http.RoundTripper) {
	for rt != nil {
		switch t := rt.(type) {
		case interface{ CloseIdleConnections() }:
			t.CloseIdleConnections()
			return
		case interface{ WrappedRoundTripper() http.RoundTripper }:
			rt = t.WrappedRoundTripper()
		default:
			return
		}
	}
}

// RoundTrip sends the request once, and again if the answer takes longer than
// usual. It returns the first response that is not a failure; if all are, it
// returns what the primary did.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	t.mustBeMade()
	t.stats.TotalRequests.Add(1)
	if t.off.Load() {
		return t.sendOnce(req, noRoute, engine.Disabled)
	}
	ctx := req.Context()
	o := engine.OverridesFrom(ctx)
	settings := t.settings.Load()
	to := noRoute
	if t.options.routes != nil && req.URL != nil {
		to = t.options.routes.http(req)
	}
	first := to.FirstByte || t.options.firstByte
	reason := engine.None
	switch {
	case o.Never || to.Off && !o.Allow:
		reason = engine.Disabled
	case o.Hedge > 0 || settings.AttemptHeader != "" && attemptNumber(req.Header[settings.AttemptHeader]) > 0:
		reason = engine.Nested
	case !t.replayable(req, settings.MaxReplayBytes, first):
		reason = engine.Body
	case !(o.Allow || to.Hedgeable || t.hedgeable(req)):
		reason = engine.Method
	}
	if reason != engine.None {
		t.stats.NotHedgeable.Add(1)
		return t.sendOnce(req, to, reason)
	}
	key := t.engine.RouteKey(t.name(req, to.pattern), to.BudgetPercent/100)
	c := t.call()
	plan := c.Begin(ctx, key, cmp.Or(o.Delay, to.Delay))
	c.key, c.first = key, first
	if plan == nil {
		t.stats.WarmupRequests.Add(1)
		c.Started(ctx, 0)
		resp, err := t.next.RoundTrip(req)
		failure := c.judge(resp, err)
		c.Finished(ctx, 0, race.OutcomeOf(failure))
		c.End(failure == nil, false, 0)
		t.free(c)
		return resp, err
	}

	c.req = req
	if req.Body != nil && req.Body != http.NoBody {
		whole, err := c.readBody(req)
		if err != nil { // the caller's body failed, and the base must see that
			t.stats.NotHedgeable.Add(1)
			p := t.engine.BeginUnhedged(ctx, key.Name, engine.Body)
			resp, err := t.next.RoundTrip(whole)
			p.Done(t.answered(resp, err))
			if resp != nil {
				resp.Request = req
			}
			t.free(c)
			return resp, err
		}
	}
	style := race.Style{Watch: c.Watch()}
	if !first && key.Tag.Load() == http1 && httptrace.ContextClientTrace(ctx) == nil {
		if settings.Linger > 0 {
			style.Detach, style.Linger, style.Grace = true, &t.linger, settings.Linger
		}
	}
	c.grace = style.Grace
	out := c.race.Run(ctx, c, c, plan.Delays, style)

	var setup time.Duration
	if out.Winner > 0 {
		setup = c.setup[out.Winner]
	}
	c.End(out.Winner >= 0, out.Winner > 0, setup)
	t.tally(&c.Call, out.Winner)
	resp, err := out.Value, out.Err
	if err == errFailure {
		err = nil // the response itself says what failed
	}
	switch {
	case resp == nil || resp.Body == nil || resp.Body == http.NoBody:
		out.Attempt.Release()
	case out.Attempt.Holds():
		resp.Body = newBody(resp.Body, out.Attempt)
	}
	if resp != nil {
		resp.Request = req
	}
	if c.race.Reset() {
		t.free(c)
	}
	return resp, err
}

// sendOnce sends req as it is, or with the attempt header if it is made for a hedge.
func (t *Transport) sendOnce(req *http.Request, to *route, reason engine.Reason) (*http.Response, error) {
	if name := t.settings.Load().AttemptHeader; name != "" {
		if n := engine.OverridesFrom(req.Context()).Hedge; n > 0 {
			with := req.WithContext(req.Context())
			with.Header = withAttempt(req.Header, name, n)
			resp, err := t.observe(with, to, reason)
			if resp != nil {
				resp.Request = req
			}
			return resp, err
		}
	}
	return t.observe(req, to, reason)
}

// observe sends req, and tells the observers of it.
func (t *Transport) observe(req *http.Request, to *route, reason engine.Reason) (*http.Response, error) {
	if !t.engine.Observed() || req.URL == nil {
		return t.next.RoundTrip(req)
	}
	p := t.engine.BeginUnhedged(req.Context(), t.name(req, to.pattern), reason)
	resp, err := t.next.RoundTrip(req)
	p.Done(t.answered(resp, err))
	return resp, err
}

// answered reports whether a response may win.
func (t *Transport) answered(resp *http.Response, err error) bool {
	return err == nil && !slices.Contains(t.options.failure, resp.StatusCode)
}

// replayable reports whether req can be sent twice, safe or not.
func (t *Transport) replayable(req *http.Request, maxBody int64, streams bool) bool {
	if req.URL == nil || req.Method == http.MethodConnect || req.Trailer != nil {
		return false
	}
	if req.Body != nil && req.Body != http.NoBody {
		if req.ContentLength <= 0 || req.ContentLength > maxBody || len(req.TransferEncoding) > 0 {
			return false
		}
	}
	if len(req.Header["Upgrade"]) > 0 {
		return false
	}
	return streams || !slices.ContainsFunc(req.Header["Accept"], func(accept string) bool {
		return strings.Contains(accept, "text/event-stream")
	})
}

// hedgeable reports whether req is safe to send twice, by http.Request's
// isReplayable unless the user has a rule.
func (t *Transport) hedgeable(req *http.Request) bool {
	if f := t.options.hedgeable; f != nil {
		return f(req)
	}
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	_, key := req.Header["Idempotency-Key"]
	_, xkey := req.Header["X-Idempotency-Key"]
	return key || xkey
}

func (t *Transport) name(req *http.Request, route string) engine.Name {
	host := req.URL.Host
	if f := t.options.key; f != nil {
		host = f(req.Context(), host, cmp.Or(req.Method, http.MethodGet)+" "+req.URL.Path)
	}
	return engine.Name{Host: host, Route: route}
}

// hedgeTransport returns where the hedges of a call go.
func (t *Transport) hedgeTransport(c *call) http.RoundTripper {
	switch {
	case t.hedgeVia != nil:
		return t.hedgeVia
	case t.replicas != nil:
		return t.replicas.avoiding(c.primary.Load().get())
	case t.clone == nil:
		return t.next
	case c.key.Tag.Load() == http2 || t.next.(*http.Transport).MaxConnsPerHost > 0:
		return t.clone()
	default:
		return t.next
	}
}

// A key's tag is the major version of HTTP that its host speaks; 0 is unknown.
const (
	http1 = 1
	http2 = 2
)

func (t *Transport) call() *call {
	if c, ok := t.calls.Get().(*call); ok {
		return c
	}
	return &call{t: t}
}

func (t *Transport) free(c *call) {
	c.Call, c.key, c.req, c.body, c.grace = engine.Call{}, nil, nil, nil, 0
	if t.replicas != nil {
		c.primary.Store(nil)
	}
	t.calls.Put(c)
}

// call is one request in flight: the Op and the Gate of its race.
type call struct {
	engine.Call
	race  race.Race[*http.Response]
	t     *Transport
	key   *engine.Key
	req   *http.Request // the caller's
	body  []byte        // its body, whole; nil if it has none
	grace time.Duration // for losers to finish; 0: they are cancelled
	first bool          // a response wins with its first byte
	setup [1 + race.MaxHedges]time.Duration

	primary atomic.Pointer[peerAddr] // where the primary went; nil: not known, or not needed
}

// maxResends is how often an attempt is sent again because the cancellation of a
// loser hit it. Once is rare; under load, four times in a row have been seen.
const maxResends = 16

// errFailure is the error of an attempt whose response must not win.
var errFailure = errors.New("hedge: response is a failure")

func (c *call) Attempt(a *race.Attempt, n int) (*http.Response, error) {
	rt, ctx := c.t.next, context.Context(a)
	var s setup
	switch {
	case n > 0:
		rt, ctx = c.t.hedgeTransport(c), engine.ForHedge(s.trace(a), n)
	case c.t.replicas != nil:
		p := new(peerAddr)
		c.primary.Store(p)
		ctx = p.trace(a)
	}
	resp, err := rt.RoundTrip(c.request(ctx, n))
	// If an HTTP/1.1 request is cancelled just when its empty response arrives, the
	// next request on its connection can fail with the same cause (net/http, Go
	// 1.26). This attempt has not lost, so that is what happened, and it is sent
	// again. It yields first, so that those about to cancel do so: it may get a
	// connection of theirs.
	for tries := 0; tries < maxResends && errors.Is(err, race.ErrLost) && a.Err() == nil; tries++ {
		runtime.Gosched()
		resp, err = rt.RoundTrip(c.request(ctx, n))
	}
	c.setup[n] = s.took()
	return resp, c.judge(resp, err)
}

// request returns the request of attempt n.
func (c *call) request(ctx context.Context, n int) *http.Request {
	r := c.req.WithContext(ctx)
	if n > 0 {
		r.Header = withAttempt(c.req.Header, c.t.settings.Load().AttemptHeader, n)
	}
	if c.body != nil {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(c.body)), nil }
		r.Body, _ = r.GetBody()
	}
	return r
}

// judge records the protocol and the push-back of a response, and returns the error
// that keeps it from winning, if any.
func (c *call) judge(resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	if v := int32(resp.ProtoMajor); v != c.key.Tag.Load() {
		c.key.Tag.Store(v)
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		now := time.Now()
		c.key.PushBack(now, retryAfter(resp.Header.Get("Retry-After"), now))
	}
	if !c.t.answered(resp, nil) {
		return errFailure
	}
	if c.first && resp.Body != nil && resp.Body != http.NoBody {
		return awaitFirstByte(resp)
	}
	return nil
}

// retryAfter reads a Retry-After header (RFC 9110, section 10.2.3). It returns 0 if
// the header is missing or says nothing.
func retryAfter(v string, now time.Time) time.Duration {
	if s, err := strconv.Atoi(v); err == nil {
		return time.Duration(min(max(s, 0), 1e9)) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// Discard closes the response of a loser. Where losers linger, it reads up to 64 KiB
// of the body first: a connection is used again only after its body was read whole.
func (c *call) Discard(resp *http.Response, err error) {
	if _, ok := err.(*race.Panic); ok {
		c.t.stats.HedgePanics.Add(1)
	}
	if resp == nil || resp.Body == nil {
		return
	}
	defer resp.Body.Close()
	if c.grace > 0 {
		late := time.AfterFunc(c.grace, func() { resp.Body.Close() })
		defer late.Stop()
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	}
}

// untraced hides the caller's httptrace hooks: they may not expect calls from two
// attempts at once.
type untraced struct{ context.Context }

func (u untraced) Value(key any) any {
	v := u.Context.Value(key)
	if _, ok := v.(*httptrace.ClientTrace); ok {
		return nil
	}
	return v
}

// setup measures how long a hedge waited for a new connection.
type setup struct {
	asked time.Time
	ns    atomic.Int64 // 0: the connection was not new
}

// trace returns the context of a hedge, which hides the caller's hooks.
func (s *setup) trace(a *race.Attempt) context.Context {
	return httptrace.WithClientTrace(untraced{a}, &httptrace.ClientTrace{
		GetConn: func(string) { s.asked = time.Now() },
		GotConn: func(info httptrace.GotConnInfo) {
			if !info.Reused {
				s.ns.Store(int64(time.Since(s.asked)))
			}
		},
		// Package net keeps its hooks under a key of its own; this empty one hides the caller's.
		ConnectStart: func(string, string) {},
	})
}

func (s *setup) took() time.Duration { return time.Duration(s.ns.Load()) }
