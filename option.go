package hedge

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"
)

// An Option adjusts [New], [Wrap], [NewInterceptor] and [NewHedger].
// Options that make no sense panic when they are made, as time.NewTicker does;
// settings that come from outside the program belong into a [Config].
type Option interface{ apply(*config) }

// config is a Config and what cannot be written into a file.
type config struct {
	Config
	stats     **Stats
	budget    *Budget
	key       func(ctx context.Context, host, name string) string
	hedgeable func(*http.Request) bool
	failure   []int // HTTP status codes that do not win
	transport http.RoundTripper
	resolver  Resolver
	firstByte bool
	routes    *routes
	logger    *slog.Logger
	name      string
	observers []Observer
	shadow    bool
	grpc      grpcConfig
}

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// setting is an option that sets a field of Config; it panics if the result is invalid.
func setting(f func(*Config)) Option {
	probe := DefaultConfig()
	f(&probe)
	if err := probe.Validate(); err != nil {
		panic(err)
	}
	return optionFunc(func(c *config) { f(&c.Config) })
}

// WithPercentile never hedges sooner than quantile q of the recent latencies.
// The default is 0.90. The budget usually asks for a later delay by itself.
// It panics unless 0 <= q < 1.
func WithPercentile(q float64) Option {
	return setting(func(c *Config) { c.Percentile = q })
}

// WithMaxHedges sends at most n hedges per call, all within the same budget.
// The default is 2. 0 sends none. It panics unless 0 <= n <= 3.
func WithMaxHedges(n int) Option {
	return setting(func(c *Config) { c.MaxHedges = n })
}

// WithBudgetPercent sends at most p hedges per 100 requests of a key, after an
// initial burst (see [WithBurst]). The default is 10. 0 sends none.
// It panics unless 0 <= p <= 300.
func WithBudgetPercent(p float64) Option {
	return setting(func(c *Config) { c.BudgetPercent = p })
}

// WithEstimatedRPS says how many requests per second to expect of a key, which
// sizes the burst of its budget until the real rate is measured. The default is 100.
// It does not have to be right. It panics unless rps is finite and not negative.
func WithEstimatedRPS(rps float64) Option {
	return setting(func(c *Config) { c.EstimatedRPS = rps })
}

// WithMinDelay never hedges sooner than d after the primary started, nor sooner
// than d after the hedge before. The default is 1ms. It panics if d is negative.
func WithMinDelay(d time.Duration) Option {
	return setting(func(c *Config) { c.MinDelay = d })
}

// WithMaxDelay hedges after d at the latest, budget permitting.
// The default, 0, sets no limit. It panics if d is negative.
func WithMaxDelay(d time.Duration) Option {
	return setting(func(c *Config) { c.MaxDelay = d })
}

// WithInitialDelay hedges after d until ten calls are known. The default, 0,
// does not hedge so early: a guess that is too short doubles the load of a
// service at start. It panics if d is negative.
func WithInitialDelay(d time.Duration) Option {
	return setting(func(c *Config) { c.InitialDelay = d })
}

// WithBurst lets a key save up the budget of d's worth of requests, one hedge at
// least. The default is 2s. More survives longer pauses of a replica and costs
// more in an overload. It panics if d is negative.
func WithBurst(d time.Duration) Option {
	return setting(func(c *Config) { c.Burst = d })
}

// WithMaxHedgesPerSecond bounds the hedges of all keys together, beside the
// budget of each. The default, 0, sets no limit. It panics unless n is finite and not negative.
func WithMaxHedgesPerSecond(n float64) Option {
	return setting(func(c *Config) { c.MaxHedgesPerSecond = n })
}

// WithMaxKeys remembers at most n keys; the least recently used are forgotten
// first. The default is 4096. It panics unless n is positive.
func WithMaxKeys(n int) Option {
	return setting(func(c *Config) { c.MaxKeys = n })
}

// WithLinger lets the losers of HTTP/1.1 races finish for up to d, so that their
// connections can be used again: cancelling one closes its connection. The default
// is 1s. 0 cancels losers at once. HTTP/2 and gRPC losers are always cancelled at
// once, which costs them no connection. It panics if d is negative.
func WithLinger(d time.Duration) Option {
	return setting(func(c *Config) { c.Linger = d })
}

// WithMaxReplayBytes hedges HTTP requests with bodies of up to n bytes. Such a
// body is read once, before the primary is sent. The default is 64 KiB. 0 hedges
// only requests without a body. It panics if n is negative.
func WithMaxReplayBytes(n int64) Option {
	return setting(func(c *Config) { c.MaxReplayBytes = n })
}

// WithConfig replaces all settings that a [Config] holds. It panics if c is invalid.
func WithConfig(c Config) Option {
	return setting(func(old *Config) { *old = c })
}

// WithBudget pays for hedges from b, together with all else that is given b,
// instead of one budget per key. [WithBudgetPercent], [WithEstimatedRPS] and
// [WithBurst] then have no effect. It panics if b is nil.
func WithBudget(b *Budget) Option {
	if b == nil {
		panic("hedge: WithBudget: Budget is nil")
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

// WithKeyFunc learns latency and keeps a budget per f's result instead of per
// host (HTTP) or per target and method (gRPC). For HTTP, host is the URL's and
// name is "METHOD /path"; for gRPC they are the target and the full method.
// Results should be few: see [WithMaxKeys]. It panics if f is nil.
func WithKeyFunc(f func(ctx context.Context, host, name string) string) Option {
	if f == nil {
		panic("hedge: WithKeyFunc: func is nil")
	}
	return optionFunc(func(c *config) { c.key = f })
}

// WithHedgeable replaces the rule which HTTP requests are safe to send twice. The
// default is net/http's own: GET, HEAD, OPTIONS, TRACE, or a header
// Idempotency-Key or X-Idempotency-Key. Requests that cannot be sent twice
// (see [Transport]) are not asked about. It panics if f is nil.
func WithHedgeable(f func(*http.Request) bool) Option {
	if f == nil {
		panic("hedge: WithHedgeable: func is nil")
	}
	return optionFunc(func(c *config) { c.hedgeable = f })
}

// WithFailureStatus says which HTTP status codes do not win while another
// attempt is out. The default is 429, 500, 502, 503 and 504.
// It panics if a code is not in [100, 999].
func WithFailureStatus(codes ...int) Option {
	for _, code := range codes {
		if code < 100 || code > 999 {
			panic(fmt.Sprintf("hedge: WithFailureStatus: code %d is not in [100, 999]", code))
		}
	}
	codes = slices.Clone(codes)
	return optionFunc(func(c *config) { c.failure = codes })
}

// WithHedgeTransport sends HTTP hedges through rt instead of the primary's
// transport: to other connections, or elsewhere. It panics if rt is nil.
//
// Without it, hedges over HTTP/2, and hedges of a transport that limits
// MaxConnsPerHost, go through a clone of the primary's *http.Transport, which
// has connections of its own.
func WithHedgeTransport(rt http.RoundTripper) Option {
	if rt == nil {
		panic("hedge: WithHedgeTransport: RoundTripper is nil")
	}
	return optionFunc(func(c *config) { c.transport = rt })
}

// WithFirstByte lets an HTTP response win with the first byte of its body
// instead of its header, and learns the time to that byte: for servers that send
// the header before they do the work, such as streams of a language model. Event
// streams are then hedged like other requests, losers are cancelled at once, and
// RoundTrip returns when the first byte is there. The default is the header.
func WithFirstByte() Option {
	return optionFunc(func(c *config) { c.firstByte = true })
}

// WithShadow rehearses: all is learned, decided and paid for as ever, but no
// hedge is sent. Observers and snapshots tell how many would have been
// ([DeniedShadow]) and what they would have saved, if a hedge takes as long as
// any other call: too good to be true where slowness belongs to the request.
// Setting HEDGE_MODE=observe in the environment does the same. The default is to hedge.
func WithShadow() Option {
	return optionFunc(func(c *config) { c.shadow = true })
}
