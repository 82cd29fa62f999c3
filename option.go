package hedge

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
)

// An Option adjusts [New], [Wrap], [NewInterceptor] and [NewHedger].
// Options that make no sense panic when they are made, as time.NewTicker does, and
// options that contradict each other when they are used. Settings that come from
// outside the program go into a [Config]. A nil Option changes nothing.
type Option interface{ apply(*config) }

// config is a Config and the options that a file cannot hold.
type config struct {
	Config
	stats     **Stats
	budget    *Budget
	key       func(ctx context.Context, host, name string) string
	hedgeable func(*http.Request) bool
	failure   []int                     // HTTP status codes that do not win; nil: the usual ones
	failed    func(*http.Response) bool // decides instead of failure; nil: not given
	transport http.RoundTripper
	resolver  Resolver
	firstByte bool
	resume    bool
	routes    *routes
	logger    *slog.Logger
	name      string
	observers []Observer
	audit     bool
	shadow    bool
	grpc      grpcConfig
}

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithBudget pays for hedges from b instead of from one budget per key. Everything
// that is given b shares it. [WithBudgetPercent], [WithEstimatedRPS] and
// [WithBurst] then have no effect. It panics if b is nil or was not made by [NewBudget].
func WithBudget(b *Budget) Option {
	switch {
	case b == nil:
		panic("hedge: WithBudget: Budget is nil")
	case b.bucket == nil:
		panic("hedge: WithBudget: Budget was not made by NewBudget")
	}
	return optionFunc(func(c *config) { c.budget = b })
}

// WithStats counts into *s. If that is nil, it is set to new Stats first.
// It panics if s is nil.
func WithStats(s **Stats) Option {
	if s == nil {
		panic("hedge: WithStats: **Stats is nil")
	}
	return optionFunc(func(c *config) { c.stats = s })
}

// WithKeyFunc makes f's result the key: latency is learned, and a budget kept, for
// each different result. The default key is the host for HTTP, and the target and
// method for gRPC. For HTTP, f is given the URL's host (in lower case, without the scheme's
// own port or a dot at its end) and "METHOD /path"; for gRPC, the target and the full
// method. Results should be few, see [WithMaxKeys]. It panics if f is nil.
func WithKeyFunc(f func(ctx context.Context, host, name string) string) Option {
	if f == nil {
		panic("hedge: WithKeyFunc: func is nil")
	}
	return optionFunc(func(c *config) { c.key = f })
}

// WithHedgeable sets which HTTP requests are safe to send twice, at the same time. The
// default is what only reads: GET, HEAD, OPTIONS, TRACE and QUERY. An Idempotency-Key
// alone does not hedge a request. It lets a request be repeated after it failed; a
// second one beside the first may be refused (409), or undo a newer write if it comes
// late. Where the server is known to do neither, f may say so:
//
//	hedge.WithHedgeable(func(r *http.Request) bool {
//		return r.Method == http.MethodGet || r.Header.Get("Idempotency-Key") != ""
//	})
//
// Requests that cannot be sent twice (see [Transport]) are not asked about. f is called
// once for each request, and must be safe for concurrent use. It panics if f is nil.
func WithHedgeable(f func(*http.Request) bool) Option {
	if f == nil {
		panic("hedge: WithHedgeable: func is nil")
	}
	return optionFunc(func(c *config) { c.hedgeable = f })
}

// WithFailureStatus sets the HTTP status codes that do not win while another attempt is
// in flight: these and no others. The default is 408, 421, 425, 429, every 5xx but 501
// and 505, and 409 to a request with an Idempotency-Key (or X-Idempotency-Key), which is
// what a server says while the other attempt is in progress. 404, 501 and 505 win: they
// are answers, and every replica that is up to date gives the same. Where replicas lag
// behind, add 404. It panics if a code is not in [100, 999].
func WithFailureStatus(codes ...int) Option {
	for _, code := range codes {
		if code < 100 || code > 999 {
			panic(fmt.Sprintf("hedge: WithFailureStatus: code %d is not in [100, 999]", code))
		}
	}
	codes = append([]int{}, codes...)
	return optionFunc(func(c *config) { c.failure = codes })
}

// WithFailureFunc lets f decide alone which HTTP responses do not win while another
// attempt is in flight; [WithFailureStatus] then has no effect. Transport errors never
// win. f must not read the body, and must be safe for concurrent use. It panics if f is
// nil.
func WithFailureFunc(f func(*http.Response) bool) Option {
	if f == nil {
		panic("hedge: WithFailureFunc: func is nil")
	}
	return optionFunc(func(c *config) { c.failed = f })
}

// WithHedgeTransport sends HTTP hedges through rt, which can use other connections
// or another destination than the primary's transport. It panics if rt is nil.
//
// By default, hedges over HTTP/2, and hedges of a transport that limits
// MaxConnsPerHost, go through a clone of the primary's *http.Transport. The clone
// has connections of its own: at most MaxConnsPerHost again. It has all settings of the
// *http.Transport, but not those that golang.org/x/net/http2 made for it. Schemes for
// which the *http.Transport has a RoundTripper of its own (RegisterProtocol) go through
// that.
func WithHedgeTransport(rt http.RoundTripper) Option {
	if rt == nil {
		panic("hedge: WithHedgeTransport: RoundTripper is nil")
	}
	return optionFunc(func(c *config) { c.transport = rt })
}

// WithFirstByte lets an HTTP response win with the first byte of its body instead
// of its header, and learns the time to that byte. It is for servers that send the
// header before they do the work, such as language models that stream. Event
// streams are then hedged like other requests, losers are cancelled at once, and
// RoundTrip returns when the first byte has arrived. By default the header decides.
// [Policy] has the same for single routes.
func WithFirstByte() Option {
	return optionFunc(func(c *config) { c.firstByte = true })
}

// WithShadow sends no hedges, and does all else as usual: it learns, decides and
// takes from the budget. Observers and snapshots tell how many hedges would have
// been sent ([DeniedShadow]) and how much time they would have saved, assuming that
// a hedge takes as long as any other call. Where the request itself is slow, that
// assumes too much. HEDGE_MODE=shadow in the environment does the same.
// The default is to send hedges.
func WithShadow() Option {
	return optionFunc(func(c *config) { c.shadow = true })
}

// A Resolver finds the addresses of a host. [*net.Resolver] is one, and so are dnshedge's
// Client and, for hosts that move, Names of package dnshedge/names.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// WithReplicas sends an HTTP hedge to another address of its host than the primary's,
// if r knows one. It is for host names that stand for several replicas. Each address
// has hedge connections of its own, made by the base's DialContext or Dial; the host name,
// the TLS server name and the certificates stay the same. An address that has not answered
// after 250 ms no longer holds up the next one, and comes late for a minute. Only if all
// others fail does a hedge go to the primary's address; a minute later they are tried again.
// If the primary is still connecting, its address is the one that package net connects to.
// A DialContext that does not use package net hides it; then it is taken to be r's first address.
//
// While a replica that all primaries go to stands still, every call needs a hedge at
// once. [WithBurst] sets how many are saved up for that.
//
// WithReplicas needs an *http.Transport below. It has no effect without one, with
// the transport's DialTLSContext, or through a proxy. It panics if r is nil.
func WithReplicas(r Resolver) Option {
	if r == nil {
		panic("hedge: WithReplicas: Resolver is nil")
	}
	return optionFunc(func(c *config) { c.resolver = r })
}

// WithResume asks for the rest of an HTTP response body that stalls: by a range request
// (RFC 9110, section 14) over another connection, while the first one goes on. Whichever
// delivers first wins, and the other is cancelled; the reader sees the same bytes in any case.
// The default is to wait.
//
// A body has stalled when a Read waits for twice as long as nineteen of twenty bodies of
// the key ever make one wait, and for 50ms at least. Ten bodies must be known. The request is
// a hedge: the budget pays for it, the brakes hold it back, and [WithMaxHedges] counts it
// among those of its call. Observers are told of it as of other hedges, after the call is done.
//
// Resumed are responses of 64 KiB and more to a GET that may be hedged and asks for no range:
// status 200, with Content-Length, "Accept-Ranges: bytes", and a strong validator (section
// 8.8): an ETag that is not weak or, where there is none, a Last-Modified a minute or more
// before Date. Responses that were decompressed on the way or announce trailers are not, nor
// are encoded ones without an ETag. A 206 must repeat the validator, the encoding and the
// whole length, and begin where the reader is; if not, the first response goes on alone.
//
// The first response is closed, and its context cancelled, while a Read of it waits; that
// must then return, as net/http's does. If the second one fails later on, so does the body.
func WithResume() Option {
	return optionFunc(func(c *config) { c.resume = true })
}
