package hedge

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/httpcall"
	"github.com/gohedge/hedge/internal/policy"
)

// A Transport is an [http.RoundTripper] that hedges requests that are slower than usual for their host. It is safe for
// concurrent use. The zero Transport is not usable; call New.
//
// The following requests are sent once, without changes:
//
//   - requests that are not safe to repeat, see [WithHedgeable];
//   - CONNECT, upgrades, and other requests whose Connection header has values besides close and keep-alive;
//   - requests with an Expect header, with trailers, or with a body of unknown length or above [WithMaxReplayBytes];
//   - requests with credentials for a single connection or request: NTLM, Negotiate, Digest, OAuth 1.0, DPoP, or a nonce
//     in the URL, the credentials or a header;
//   - requests with a single-use value in the URL: a CAS ticket, an authorization code with its state, a SAML response, or
//     an otp;
//   - event streams (Accept: text/event-stream), unless [WithFirstByte] is given.
//
// The request of the caller is never changed, and its body is always closed. As with other RoundTrippers, the caller
// may reuse the request after RoundTrip has returned an error or the response body is closed. Attempts of a call that
// may be hedged work on copies.
//
// After a call has ended, its losing or failed attempts no longer use the context of the request. They can still read
// the context values that a hedge of the call has read before, and no others.
//
// httptrace hooks observe only the primary. No hook starts after RoundTrip has returned an error or the response of
// another attempt; RoundTrip waits up to 0.1s for a running hook. Response.Request is the caller's request, unless a
// RoundTripper below sets another one.
//
// The primary of a request that may be hedged runs in its own goroutine, unless all responses of its host so far came
// over HTTP/2 or later, or had no HTTP version. In that case it runs in the caller's goroutine, and the response to a
// hedge is returned only after the RoundTrip of the cancelled primary has returned. net/http returns at once.
//
// If the primary panics in its own goroutine, RoundTrip panics too. An error that is not a [runtime.Error] is raised
// unchanged. Any other value is raised as an error whose text contains the value and the stack; a runtime.Error can be
// unwrapped from it.
type Transport struct {
	controls
	calls *httpcall.Client
}

var _ http.RoundTripper = (*Transport)(nil)

// New returns a Transport that sends requests through next, or through [http.DefaultTransport] if next is nil. It
// panics if options contradict each other, or if [WithReplicas] is given and there is no *http.Transport below.
func New(next http.RoundTripper, opts ...HTTPOption) *Transport {
	t := new(Transport)
	if err := t.init(next, DefaultConfig(), opts); err != nil {
		panic(err)
	}
	return t
}

// NewWithConfig is [New] with the settings c, for example from a file. It returns an error that names the field and the
// value if c is invalid or contradicts an option.
func NewWithConfig(next http.RoundTripper, c Config, opts ...HTTPOption) (*Transport, error) {
	t := new(Transport)
	if err := t.init(next, c, opts); err != nil {
		return nil, err
	}
	return t, nil
}

// Wrap returns a copy of c that hedges its requests. The transport of c is used below the hedging. The timeout, cookie
// jar and redirect policy stay the same. A nil c is [http.DefaultClient].
func Wrap(c *http.Client, opts ...HTTPOption) *http.Client {
	if c == nil {
		c = http.DefaultClient
	}
	hedged := *c
	hedged.Transport = New(c.Transport, opts...)
	return &hedged
}

// init applies the settings and the options to a zero Transport that sends requests through next, or through
// [http.DefaultTransport] if next is nil.
func (t *Transport) init(next http.RoundTripper, settings Config, opts []HTTPOption) error {
	o := &config{Config: settings}
	applyOptions(o, opts, HTTPOption.applyHTTP)
	if err := t.initControls("http", o); err != nil {
		return err
	}
	if next == nil {
		next = http.DefaultTransport
	}
	t.calls = httpcall.NewClient(&t.client, next, httpcall.Options{
		KeyFunc: o.keyFunc, IsHedgeable: o.isHedgeable, FailureStatus: o.failureStatus, AnswerStatus: o.answerStatus, IsFailure: o.isFailure,
		HedgeTransport: o.hedgeTransport, Resolver: o.resolver, Endpoints: o.endpoints, Routes: o.routes, FirstByte: o.firstByte, Resume: o.resume,
	})
	if o.resolver != nil && !t.calls.HasReplicas() {
		return fmt.Errorf("hedge: WithReplicas(%T) needs an *http.Transport below, not a %T", o.resolver, next)
	}
	return nil
}

// WrappedRoundTripper returns the RoundTripper below, which sends the primaries.
func (t *Transport) WrappedRoundTripper() http.RoundTripper { return t.calls.Primary() }

// CloseIdleConnections closes the idle connections of the RoundTripper below, and those of hedges. For a RoundTripper
// without this method, the result of its method WrappedRoundTripper is used, if it has one.
func (t *Transport) CloseIdleConnections() { t.calls.CloseIdleConnections() }

// RoundTrip sends the request and, if the response takes longer than usual, sends it again. It returns the first
// successful response (status 2xx or 3xx, or a status of [WithAnswerStatus]).
//
// Any other response of the primary is returned at once, unless it is a failure (see [WithFailureStatus]) and a hedge
// is in flight. Then RoundTrip waits for the hedge, for as long as responses usually take. If no hedge succeeds, it
// returns the response or the error of the primary.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	t.mustBeInitialized()
	return t.calls.RoundTrip(req)
}

// Warm opens up to n connections to the host of each URL (name lookup, TCP, TLS) before there is traffic, and returns
// when they are ready. Over HTTP/2 it opens one connection. To do so, it sends HEAD requests to the URLs through the
// RoundTripper below. These are not hedged or measured, and may have any status.
//
// The connections are for primaries. Hedges have separate connections over HTTP/2 and with MaxConnsPerHost, which the
// first hedge opens.
//
// The RoundTripper below limits how many connections stay open: MaxIdleConnsPerHost is 2 by default, and
// MaxConnsPerHost is an upper bound for n. Warm keeps its connections from other requests, at most for the time that a
// connection takes to open plus 0.1s.
//
// If connections are busy, Warm opens fewer, because an unknown limit may apply. TLS sessions are resumed if the
// TLSClientConfig has a ClientSessionCache.
//
// Warm returns early if ctx ends. Its error joins the errors of all unreachable URLs, each with scheme and host only.
// It is an error if n is less than 1. If the RoundTripper below panics, Warm panics as RoundTrip does.
func (t *Transport) Warm(ctx context.Context, n int, urls ...string) error {
	t.mustBeInitialized()
	return t.calls.Warm(ctx, n, urls...)
}

// LatencyEstimate returns quantile q, in [0, 1], of the recent latencies of calls to host, as seen by callers. It
// returns 0 if rt is not a [*Transport] or no latency of host is known.
func LatencyEstimate(rt http.RoundTripper, host string, q float64) time.Duration {
	t, ok := rt.(*Transport)
	if !ok || t == nil || t.client.Policy == nil {
		return 0
	}
	k := t.client.Policy.Lookup(policy.Name{Host: host})
	if k == nil {
		k = t.client.Policy.Lookup(policy.Name{Host: httpattempt.HostName("", host)})
	}
	if k == nil {
		return 0
	}
	d, _ := k.Quantile(q)
	return d
}
