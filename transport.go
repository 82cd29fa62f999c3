package hedge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
// The caller's request is never changed and its body is always closed. It may be changed
// or used again, as always, once RoundTrip has returned an error or the response's body
// is closed: losers that still run have copies. httptrace hooks see the primary only, and
// nothing once RoundTrip has returned another attempt's response.
//
// The primary of an HTTP/1.1 request runs on a goroutine of its own. If it panics there,
// RoundTrip panics as well: with the same value if that is an error, and else, and for
// errors of the runtime, with an error whose text holds the stack and that unwraps to
// the value.
type Transport struct {
	handle
	next     http.RoundTripper
	hedgeVia http.RoundTripper // given for hedges; nil: second, or next
	second   *secondPool       // nil: next is no *http.Transport
	replicas *replicas         // pools of connections to other addresses; nil: not asked for
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
		t.second = &secondPool{base: base}
		if r := t.options.resolver; r != nil && t.hedgeVia == nil {
			t.replicas = &replicas{resolver: r, clone: t.second.clone}
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
	if t.second != nil {
		t.second.closeIdle()
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
		return t.sendOnce(req, noRoute, DeniedDisabled)
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
		reason = DeniedDisabled
	case o.Hedge > 0 || attemptNumber(req.Header[AttemptHeader]) > 0 ||
		settings.AttemptHeader != "" && attemptNumber(req.Header[settings.AttemptHeader]) > 0:
		reason = DeniedNested
	case !t.replayable(req, settings.MaxReplayBytes, first):
		reason = DeniedBody
	case !(o.Allow || to.Hedgeable || t.hedgeable(req)):
		reason = DeniedMethod
	}
	if reason != engine.None {
		t.stats.NotHedgeable.Add(1)
		return t.sendOnce(req, to, reason)
	}
	c, name := t.call(), t.name(req, to.pattern)
	if !c.key.Is(name) {
		c.key = t.engine.RouteKey(name, to.BudgetPercent/100)
	}
	key, delay := c.key, cmp.Or(o.Delay, to.Delay)
	unread := req.Body != nil && req.Body != http.NoBody
	if unread && (delay > 0 || key.Plan() != nil) {
		// Before the call begins: the caller's body is not the server's latency.
		if whole, err := c.readBody(req); err != nil {
			t.stats.NotHedgeable.Add(1)
			t.free(c)
			p := t.engine.BeginUnhedged(ctx, key.Name, DeniedBody)
			if whole == nil { // the caller gave up
				p.Done(false)
				return nil, err
			}
			resp, err := send(t.next, whole) // the base must see how the body failed
			p.Done(t.answered(req, resp, err))
			if resp != nil {
				resp.Request = req
			}
			return resp, err
		}
		unread = false
	}
	plan := c.Begin(ctx, key, delay)
	c.first = first
	if plan == nil || unread { // the plan may have come meanwhile
		t.stats.WarmupRequests.Add(1)
		once := req
		if c.body != nil {
			c.req = req
			once = c.request(engine.ForAttempt(ctx), 0)
		} else if o.Allow || o.Delay > 0 {
			once = req.WithContext(engine.ForAttempt(ctx))
		}
		c.Started(ctx, 0)
		resp, err := send(t.next, once)
		failure := c.judge(req, resp, err)
		c.Finished(ctx, 0, race.OutcomeOf(failure))
		c.End(failure == nil, false, 0)
		if resp != nil && once != req {
			resp.Request = req
		}
		if t.options.resume && failure == nil {
			resp = t.resumable(c, req, resp, nil, 0, 1)
		}
		t.free(c)
		return resp, err
	}

	style := race.Style{Watch: c.Watch()}
	version := httpVersion(key)
	if version == http1 && len(plan.Delays) > 0 {
		style.Detach = true // a loser is not cancelled at once, see link.gotFirstByte
		if !first {
			c.grace = settings.Linger
		}
		// A loser has no header yet. Behind a Limiter it may still wait in the queue, which it leaves if
		// it is cancelled; that is worth a connection, unless the cancellation would be put off.
		if c.grace > 0 {
			style.Linger, style.Grace, style.Prompt = &t.linger, c.grace, behindLimiter(key)
		}
	}
	c.guarded, c.detached, c.consume = version != http2 && len(plan.Delays) > 0, style.Detach, o.Allow || o.Delay > 0
	c.prepare(req)
	style.Primary = &c.primary.Attempt
	if style.Detach {
		if trace := httptrace.ContextClientTrace(ctx); trace != nil {
			c.hooks = &hooks{trace: trace}
		}
	}
	hooks := c.hooks
	out := c.race.Run(ctx, c, c, plan.Delays, style)
	if hooks != nil && out.Winner != 0 {
		hooks.mute()
	}

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
	if t.options.resume && out.Winner >= 0 {
		resp = t.resumable(c, req, resp, out.Attempt, out.Winner, out.Started)
	}
	if c.race.Reset() {
		t.free(c)
	}
	return resp, err
}

// sendOnce sends req as it is, or with the attempt header if it is made for a hedge.
func (t *Transport) sendOnce(req *http.Request, to *route, reason Reason) (*http.Response, error) {
	o, once := engine.OverridesFrom(req.Context()), req
	if o.Allow || o.Delay > 0 {
		once = req.WithContext(engine.ForAttempt(req.Context()))
	}
	if name := t.settings.Load().AttemptHeader; name != "" && o.Hedge > 0 {
		if once == req {
			once = req.WithContext(req.Context())
		}
		once.Header = withAttempt(req.Header, name, o.Hedge)
	}
	resp, err := t.observe(once, to, reason)
	if resp != nil && once != req {
		resp.Request = req
	}
	return resp, err
}

// observe sends req, and tells the observers of it.
func (t *Transport) observe(req *http.Request, to *route, reason Reason) (*http.Response, error) {
	if !t.engine.Observed() || req.URL == nil {
		return send(t.next, req)
	}
	p := t.engine.BeginUnhedged(req.Context(), t.name(req, to.pattern), reason)
	resp, err := send(t.next, req)
	p.Done(t.answered(req, resp, err))
	return resp, err
}

// send sends req through rt, and turns neither a response nor an error into an error, as http.Client does.
func send(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
	resp, err := rt.RoundTrip(req)
	if resp == nil && err == nil {
		err = fmt.Errorf("hedge: RoundTripper %T returned a nil *Response with a nil error", rt)
	}
	return resp, err
}

// answered reports whether a response to req may win.
func (t *Transport) answered(req *http.Request, resp *http.Response, err error) bool {
	return err == nil && !t.failed(req, resp)
}

// failed reports whether another attempt of req may get a better response.
func (t *Transport) failed(req *http.Request, resp *http.Response) bool {
	switch o := &t.options; {
	case o.failed != nil:
		return o.failed(resp)
	case o.failure != nil:
		return slices.Contains(o.failure, resp.StatusCode)
	}
	switch code := resp.StatusCode; code {
	case http.StatusRequestTimeout, http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusConflict: // while the other attempt is in progress: draft-ietf-httpapi-idempotency-key-header, section 2.6
		return hasIdempotencyKey(req)
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	default:
		return code >= 500 && code <= 599
	}
}

func hasIdempotencyKey(req *http.Request) bool {
	_, key := req.Header["Idempotency-Key"]
	_, xkey := req.Header["X-Idempotency-Key"]
	return key || xkey
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

// hedgeable reports whether req only reads, unless the user has a rule.
func (t *Transport) hedgeable(req *http.Request) bool {
	if f := t.options.hedgeable; f != nil {
		return f(req)
	}
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "QUERY":
		return true
	}
	return false
}

func (t *Transport) name(req *http.Request, route string) engine.Name {
	host := hostName(req.URL.Scheme, req.URL.Host)
	if f := t.options.key; f != nil {
		host = f(req.Context(), host, cmp.Or(req.Method, http.MethodGet)+" "+req.URL.Path)
	}
	return engine.Name{Host: host, Route: route}
}

// hostName returns host, with its port unless that is the scheme's own. All spellings of
// a host have the same name.
func hostName(scheme, host string) string {
	canonical := true
	for i := range len(host) {
		c := host[i]
		canonical = canonical && !(c >= 'A' && c <= 'Z' || c == '.' && (i == len(host)-1 || host[i+1] == ':'))
	}
	switch scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	if canonical {
		return host
	}
	name, port, ok := strings.Cut(host, ":")
	host = strings.TrimSuffix(name, ".")
	if ok {
		host += ":" + port
	}
	return strings.ToLower(host)
}

// hedgeTransport returns where hedge r of a call goes.
func (t *Transport) hedgeTransport(c *call, r *http.Request) http.RoundTripper {
	switch {
	case c.likePrimary:
		return t.next
	case t.hedgeVia != nil:
		return t.hedgeVia
	case t.second == nil:
		return t.next
	}
	replicas := t.replicas != nil && !t.second.proxied(r)
	apart := httpVersion(c.key) == http2 || t.second.base.MaxConnsPerHost > 0
	switch {
	case !replicas && !apart || !t.second.serves(r.URL.Scheme):
		return t.next
	case replicas:
		return t.replicas.avoiding(c.peer.Load().get())
	default:
		return t.second.get()
	}
}

// A key's tag is the major version of HTTP that its host speaks, 0 if that is unknown, and
// the bit limited if the host's last answer came from behind a [Limiter].
const (
	http1   = 1
	http2   = 2
	limited = 1 << 8
)

func httpVersion(k *engine.Key) int32  { return k.Tag.Load() &^ limited }
func behindLimiter(k *engine.Key) bool { return k.Tag.Load()&limited != 0 }

func (t *Transport) call() *call {
	if c, ok := t.calls.Get().(*call); ok {
		return c
	}
	return &call{t: t}
}

func (t *Transport) free(c *call) {
	c.sent.forget()
	c.Forget()
	c.req, c.body, c.hooks, c.detached, c.grace = nil, nil, nil, false, 0
	c.primary, c.link, c.handed = nil, nil, false
	if t.replicas != nil {
		c.peer.Store(nil)
	}
	t.calls.Put(c)
}

// call is one request in flight: the Op and the Gate of its race. It is used again, so
// nothing that is handed out may refer to it.
type call struct {
	engine.Call
	race  race.Race[*http.Response]
	t     *Transport
	key   *engine.Key   // kept for the next call, which is often one of the same key
	req   *http.Request // the caller's, which it may change once RoundTrip has returned
	sent  snapshot
	body  []byte        // the request's, whole; nil if it has none
	grace time.Duration // for losers to finish; 0: they are cancelled
	hooks *hooks        // the caller's, if they must be muted; else nil
	setup [1 + race.MaxHedges]time.Duration

	first    bool // a response wins with its first byte
	detached bool // the primary may outlive RoundTrip
	guarded  bool // attempts may go over HTTP/1.1
	consume  bool // the caller asked for something that must not reach nested calls

	likePrimary bool // hedges go where primaries go, see [WithResume]

	primary *primary                 // nil: nothing is learned yet
	handed  bool                     // the primary's request is in use
	link    *link                    // of a detached primary; nil: it has been sent
	peer    atomic.Pointer[peerAddr] // where the primary went; nil: not known, or not needed
}

// maxResends is how often an attempt is sent again because the cancellation of a
// loser hit it. Once is rare; under load, four times in a row have been seen.
const maxResends = 16

// errFailure is the error of an attempt whose response must not win.
var errFailure = errors.New("hedge: response is a failure")

func (c *call) Attempt(a *race.Attempt, n int) (*http.Response, error) {
	r, resp, err := c.try(a, n)
	// An attempt that has not lost and fails like one was hit by the cancellation of
	// another request on its connection, see link.gotFirstByte. That cannot happen where
	// the base calls the hooks of httptrace; elsewhere, the attempt is sent again. It
	// yields first, so that those about to cancel do so: it may get a connection of theirs.
	for tries := 0; tries < maxResends && errors.Is(err, race.ErrLost) && a.Err() == nil; tries++ {
		runtime.Gosched()
		r, resp, err = c.try(a, n)
	}
	return resp, c.judge(r, resp, err)
}

// try sends attempt n.
func (c *call) try(a *race.Attempt, n int) (*http.Request, *http.Response, error) {
	rt, ctx, l := c.t.next, context.Context(a), (*link)(nil)
	if n > 0 || c.guarded || c.t.replicas != nil {
		if n == 0 {
			l, c.link = c.link, nil
		}
		if l == nil {
			l = new(link)
		}
		l.connect(c, a, n)
		ctx = l.context(n, c.hooks)
	}
	switch {
	case n > 0:
		ctx = engine.ForHedge(ctx, n)
	case c.consume:
		ctx = engine.ForAttempt(ctx)
	}
	r := c.request(ctx, n)
	if n > 0 {
		r.Header = mark(r.Header, c.t.settings.Load().AttemptHeader, n)
		if behindLimiter(c.key) {
			r.Header = mark(r.Header, AttemptHeader, n)
		}
		rt = c.t.hedgeTransport(c, r)
	}
	resp, err := send(rt, r)
	if l != nil {
		l.guard.Returned()
		c.setup[n] = l.took()
	}
	if n > 0 && err == nil && resp.StatusCode == http.StatusServiceUnavailable && len(resp.Header[refusedHeader]) > 0 {
		err = race.ErrRefused
	}
	return r, resp, err
}

// judge records what a response to req tells of its host, and returns the error that keeps
// it from winning, if any.
func (c *call) judge(req *http.Request, resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	tag := int32(resp.ProtoMajor)
	if len(resp.Header[limitHeader]) > 0 {
		tag |= limited
	}
	if tag != c.key.Tag.Load() {
		c.key.Tag.Store(tag)
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		now := time.Now()
		c.key.PushBack(now, retryAfter(resp.Header.Get("Retry-After"), now))
	}
	if c.t.failed(req, resp) {
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
	defer func() {
		if recover() != nil {
			c.t.stats.HedgePanics.Add(1)
		}
	}()
	defer resp.Body.Close()
	if c.grace > 0 {
		late := time.AfterFunc(c.grace, func() { resp.Body.Close() })
		defer late.Stop()
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	}
}
