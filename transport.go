package hedge

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/httpcall"
	"github.com/gohedge/hedge/internal/policy"
)

// A Transport is an [http.RoundTripper] that wraps another RoundTripper, and hedges requests that are slower than
// usual for their host. It is safe for concurrent use. The zero Transport is not usable; call New.
//
// The following requests are never hedged, and are passed on unchanged:
//
//   - requests that are not safe to repeat, see [WithHedgeable];
//   - CONNECT, upgrades, and other requests whose Connection header has values besides close and keep-alive;
//   - requests with an Expect header, with trailers, or with a body of unknown length or above [WithMaxReplayBytes];
//   - requests with credentials for a single connection or request: NTLM, Negotiate, Digest, OAuth 1.0, DPoP, or a
//     nonce in the URL, the credentials or a header;
//   - requests with a single-use value in the URL: a CAS ticket, an authorization code with its state, a SAML
//     response, or an otp;
//   - event streams (Accept: text/event-stream), unless [WithFirstByte] is given.
//
// The Transport never changes the caller's request, and always closes its body. As with other RoundTrippers, the
// caller may reuse the request after RoundTrip has returned an error or the response body is closed. If a request may
// be hedged, each attempt uses a copy of it.
//
// After a call has ended, its losing or failed attempts no longer use the context of the request. They can still read
// the context values that a hedge of the call has read before.
//
// Of the attempts, only the primary runs the httptrace hooks of the request. No hook starts after RoundTrip has
// returned an error or the response of another attempt. RoundTrip waits up to 0.1s for a hook that is running.
// Response.Request is the caller's request, unless the wrapped RoundTripper sets another request.
//
// The primary of a request that may be hedged runs in its own goroutine by default. It runs in the caller's goroutine
// if all responses of its host so far came over HTTP/2 or later, or had no HTTP version.
//
// If the primary runs in the caller's goroutine and a hedge wins, the response is returned only after the RoundTrip
// of the cancelled primary has returned. The RoundTrip of net/http returns at once.
//
// If the primary panics in its own goroutine, RoundTrip panics too. If the panic value is an error other than a
// [runtime.Error], RoundTrip panics with the same error. Any other value is replaced by an error whose text contains
// the value and the stack. If the value was a runtime.Error, the error unwraps to it.
type Transport struct {
	controls
	calls *httpcall.Client
}

var _ http.RoundTripper = (*Transport)(nil)

// New returns a Transport that sends requests through next, or through [http.DefaultTransport] if next is nil. It
// panics if options contradict each other, or if [WithReplicas] is given and no *http.Transport is found in the chain
// that starts with next.
func New(next http.RoundTripper, opts ...HTTPOption) *Transport {
	t := new(Transport)
	if err := t.init(next, DefaultConfig(), opts); err != nil {
		panic(err)
	}
	return t
}

// NewWithConfig is [New] with the settings c, for example from a file, in place of [DefaultConfig]. It returns an error
// if c is invalid or contradicts an option. The error names the field and its value.
func NewWithConfig(next http.RoundTripper, c Config, opts ...HTTPOption) (*Transport, error) {
	t := new(Transport)
	if err := t.init(next, c, opts); err != nil {
		return nil, err
	}
	return t, nil
}

// Wrap returns a copy of c that hedges its requests: its transport is a [Transport] that wraps the transport of c. The
// timeout, cookie jar and redirect policy stay the same. If c is nil, the copy is made from [http.DefaultClient]. Wrap
// panics if options contradict each other.
func Wrap(c *http.Client, opts ...HTTPOption) *http.Client {
	if c == nil {
		c = http.DefaultClient
	}
	hedged := *c
	hedged.Transport = New(c.Transport, opts...)
	return &hedged
}

// init applies the settings and the options to a zero Transport that sends requests through next, or through
// [http.DefaultTransport] if next is nil. It returns an error if a setting is invalid, options contradict each other,
// or WithReplicas has no *http.Transport to connect with.
func (t *Transport) init(next http.RoundTripper, settings Config, opts []HTTPOption) error {
	o := &constructorOptions{Config: settings}
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
	t.reportClient()
	return nil
}

// WrappedRoundTripper returns the RoundTripper that the Transport wraps: the argument next of [New], or
// [http.DefaultTransport].
func (t *Transport) WrappedRoundTripper() http.RoundTripper { return t.calls.Primary() }

// CloseIdleConnections closes the idle connections of the wrapped RoundTripper, and the idle connections for hedges. If
// a RoundTripper has no method CloseIdleConnections, but has a method WrappedRoundTripper, the method is called on the
// result of WrappedRoundTripper.
func (t *Transport) CloseIdleConnections() { t.calls.CloseIdleConnections() }

// RoundTrip implements [http.RoundTripper]. It sends the request and, if the response takes longer than usual for the
// host, sends the request again. It returns the first successful response (status 2xx or 3xx, or a status of
// [WithAnswerStatus]).
//
// Any other response of the primary is returned at once, unless it is a failure (see [WithFailureStatus]) and a hedge
// is in flight. Then RoundTrip waits for the hedge, for as long as responses usually take. If no hedge succeeds,
// RoundTrip returns the response or the error of the primary.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	t.mustBeInitialized()
	return t.calls.RoundTrip(req)
}

// Warm opens connections to the host of each URL before there is traffic, and returns when they are ready: up to n
// connections over HTTP/1.1, and one over HTTP/2. To open them, it sends HEAD requests to the URLs through the wrapped
// RoundTripper. These requests are not hedged or measured, and their responses may have any status.
//
// The connections are for primaries. Hedges have separate connections over HTTP/2 and with MaxConnsPerHost, which the
// first hedge opens.
//
// The *http.Transport limits how many connections stay open: MaxIdleConnsPerHost is 2 by default, and MaxConnsPerHost
// is an upper bound for n. While Warm works, other requests cannot use its connections. This lasts at most as long as a
// connection takes to open, plus 0.1s.
//
// If existing connections are busy, Warm opens fewer new connections, because the host may have a connection limit that
// is not known. TLS sessions are resumed if the TLSClientConfig has a ClientSessionCache, see [ResumeTLSSessions].
//
// Warm returns early if ctx ends. Its error joins the errors of all unreachable URLs, each with scheme and host only.
// Warm returns an error if n is less than 1. If the wrapped RoundTripper panics, Warm panics as RoundTrip does.
func (t *Transport) Warm(ctx context.Context, n int, urls ...string) error {
	t.mustBeInitialized()
	return t.calls.Warm(ctx, n, urls...)
}

// ResumeTLSSessions returns a copy of base whose connections resume TLS sessions: a later handshake with the same host
// then needs no certificate and no signature. An *http.Transport does not resume sessions unless its TLSClientConfig has
// a ClientSessionCache. If base has one, the copy shares it; otherwise the copy keeps the sessions of 64 hosts.
//
// A session lets the server recognize the client. A resumed handshake verifies the certificate of the session's first
// handshake again, but does not call VerifyPeerCertificate and sends no client certificate. So if base has
// VerifyPeerCertificate and no ClientSessionCache, the copy resumes no sessions. A DialTLSContext function makes
// handshakes of its own, so its sessions are not resumed.
//
// base is not changed, and the copy shares no connections with it. The copy lacks protocols that were registered by
// RegisterProtocol, and settings that golang.org/x/net/http2 has made; set http.Transport.HTTP2 instead.
func ResumeTLSSessions(base *http.Transport) *http.Transport {
	t := httpattempt.CloneTransport(base)
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = new(tls.Config)
	}
	c := t.TLSClientConfig
	if c.ClientSessionCache == nil && c.VerifyPeerCertificate == nil {
		c.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	return t
}

// LatencyEstimate returns quantile q, in [0, 1], of the recent latencies of calls to host through rt, as seen by
// callers. It returns 0 if rt is not a [*Transport] or no latency of host is known.
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
