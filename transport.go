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
	controls
	calls *httpcall.Client
}

var _ http.RoundTripper = (*Transport)(nil)

// New returns a Transport that sends through next, or through
// [http.DefaultTransport] if next is nil. It panics if options contradict each other, or [WithReplicas] has no *http.Transport below.
func New(next http.RoundTripper, opts ...HTTPOption) *Transport {
	t := new(Transport)
	if err := t.init(next, DefaultConfig(), opts); err != nil {
		panic(err)
	}
	return t
}

// NewWithConfig is [New] for settings that come from outside the program: it
// returns an error that names the field and the value if c, or c together with
// opts, makes no sense.
func NewWithConfig(next http.RoundTripper, c Config, opts ...HTTPOption) (*Transport, error) {
	t := new(Transport)
	if err := t.init(next, c, opts); err != nil {
		return nil, err
	}
	return t, nil
}

// Wrap returns a copy of c whose requests are hedged. It keeps c's transport
// below the hedging, and its timeout, jar and redirect policy. A nil c is
// [http.DefaultClient].
func Wrap(c *http.Client, opts ...HTTPOption) *http.Client {
	if c == nil {
		c = http.DefaultClient
	}
	hedged := *c
	hedged.Transport = New(c.Transport, opts...)
	return &hedged
}

// init applies the settings and the options, and sets the RoundTripper below; nil is [http.DefaultTransport].
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
		KeyFunc: o.key, IsHedgeable: o.hedgeable, FailureStatus: o.failure, AnswerStatus: o.answers, IsFailure: o.failureFunc,
		HedgeTransport: o.transport, Resolver: o.resolver, Endpoints: o.endpoints, Routes: o.routes, FirstByte: o.firstByte, Resume: o.resume,
	})
	if o.resolver != nil && !t.calls.HasReplicas() {
		return fmt.Errorf("hedge: WithReplicas(%T) needs an *http.Transport below, not a %T", o.resolver, next)
	}
	return nil
}

// WrappedRoundTripper returns the RoundTripper that primaries are sent through.
func (t *Transport) WrappedRoundTripper() http.RoundTripper { return t.calls.Primary() }

// CloseIdleConnections closes the idle connections of the RoundTripper below, and
// those kept for hedges. If a RoundTripper cannot do so and has a method
// WrappedRoundTripper, that one's result is tried.
func (t *Transport) CloseIdleConnections() { t.calls.CloseIdleConnections() }

// RoundTrip sends the request once, and again if the answer takes longer than
// usual. It returns the first success (status 2xx or 3xx, see [WithAnswerStatus]) or what the
// primary answers, unless that is a failure (see [WithFailureStatus]) for which a hedge may
// have something better. If none has in the usual time, it returns what the primary did.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	t.mustBeInitialized()
	return t.calls.RoundTrip(req)
}

// Warm opens up to n connections to the host of each URL (name lookup, TCP, TLS)
// before there is traffic, and returns when they are ready. Over HTTP/2 it opens
// one. It sends HEAD requests to the URLs through the base transport; they are not
// hedged, no latency is learned from them, and any status will do.
//
// The connections are for primaries. Hedges have connections of their own over HTTP/2 and with MaxConnsPerHost: the first
// hedge opens one.
//
// The base decides how many connections stay: MaxIdleConnsPerHost is 2 by default,
// and MaxConnsPerHost bounds n. Warm keeps connections from other requests for a tenth of a
// second longer than one takes to open, at most, and opens fewer if some are busy, because
// there may be a limit that it does not see. TLS sessions are resumed if its TLSClientConfig has
// a ClientSessionCache.
//
// Warm returns when ctx ends. Its error joins those of all URLs that could not be
// reached, and names their scheme and host only. It is an error if n is below 1. If the base
// panics, so does Warm, as RoundTrip does.
func (t *Transport) Warm(ctx context.Context, n int, urls ...string) error {
	t.mustBeInitialized()
	return t.calls.Warm(ctx, n, urls...)
}

// LatencyEstimate returns quantile q, in [0, 1], of what callers of host waited
// recently. It is 0 if rt is not a [*Transport] or nothing is known of host.
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
