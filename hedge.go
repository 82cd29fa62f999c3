// Package hedge cuts tail latency: when a call is slower than usual, it sends a
// second one and takes the first good answer.
//
//	client := &http.Client{Transport: hedge.New(http.DefaultTransport)}
//
//	conn, err := grpc.NewClient(target, creds,
//		grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor()))
//
// Without options both are ready for production: they learn the latency of
// each host (HTTP) or method (gRPC) and hedge its slowest tenth, once or twice,
// within a budget of 10 % more requests. [Do] hedges any other function, and
// package dnshedge does the same for DNS.
//
// # What is hedged
//
// Only what is safe to send twice. For HTTP that is the rule by which net/http
// itself repeats requests: GET, HEAD, OPTIONS, TRACE, or an Idempotency-Key.
// For gRPC it is what the method declares, or what its name promises to only
// read. Everything else passes through untouched. See [WithHedgeable],
// [WithMethods], [AllowHedging] and [WithoutHedging].
//
// # What wins
//
// The first success. An error, or a response like 503, never beats an answer
// that is still on its way; if every attempt fails, the caller gets what the
// primary returned, exactly as without this package. A call that fails before
// a hedge was due is not repeated: hedging is not retrying.
//
// # When a hedge starts
//
// The delays follow from what callers of the same key really waited in the last
// seconds: the earliest ones whose whole cost fits the budget. Nothing is hedged
// until ten calls are known, while most calls are slow (an outage is not a
// tail), or while the server pushes back. Hedges that never win are cut to a
// tenth of the budget.
//
// # Chains
//
// Hedging at every layer of a chain of services multiplies. [Middleware] and
// [NewUnaryServerInterceptor] mark what a server does for a hedge, and nothing
// hedges that again; over HTTP, clients tell servers by [WithAttemptHeader].
// Within a process what a hedge does is marked by itself.
//
// # When not to hedge
//
// Hedging does not help where slowness belongs to the request, where the same
// busy server answers both attempts, or where everything is slow. Backends above
// 60 % load that keep working on cancelled calls want a budget of 2 %.
//
// # Operating it
//
// HEDGE_DISABLED=true in the environment makes everything start switched off, as
// if by SetEnabled(false); HEDGE_MODE=observe rehearses, see [WithShadow]. Both are read once, when a
// Transport, Interceptor or Hedger is made. [WithObserver] tells of every attempt;
// the modules hedgeprom and hedgeotel and the package debug show them.
//
// # Cost
//
// A call that needs no hedge costs half a microsecond: no goroutine over HTTP/2
// and gRPC, one over HTTP/1.1. Memory is bounded by [Config.MaxKeys], at a few
// kilobytes per key. There are no background goroutines.
package hedge

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/engine"
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

// WithoutHedging returns a context whose calls are sent once.
// It works for HTTP, gRPC, [Do], and DNS without a cache: what goes into a cache is
// asked for others as well.
func WithoutHedging(ctx context.Context) context.Context {
	return engine.WithOverrides(ctx, func(o *engine.Overrides) { o.Never = true })
}

// AllowHedging returns a context whose calls are declared safe to send twice,
// whatever their method. It undoes [WithoutHedging].
func AllowHedging(ctx context.Context) context.Context {
	return engine.WithOverrides(ctx, func(o *engine.Overrides) { o.Never, o.Allow = false, true })
}

// AwaitFirstByte returns a context whose HTTP responses win with their first
// byte, as with [WithFirstByte].
func AwaitFirstByte(ctx context.Context) context.Context {
	return engine.WithOverrides(ctx, func(o *engine.Overrides) { o.First = true })
}

// WithDelay returns a context whose calls are hedged after d, and again after
// each further d, instead of after the learned delays; the budget still decides
// whether. A d of 0 or less returns to the learned delays.
func WithDelay(ctx context.Context, d time.Duration) context.Context {
	return engine.WithOverrides(ctx, func(o *engine.Overrides) { o.Delay = max(d, 0) })
}

// core is what every adapter has.
type core struct {
	config config // as made; Config's current values are in settings
	engine *engine.Engine
	stats  *Stats
	off    atomic.Bool
	log    *slog.Logger // nil: silence

	protocol string
	settings atomic.Pointer[Config]
}

// newCore panics if the options contradict each other.
func newCore(protocol string, opts []Option) *core {
	c, err := makeCore(protocol, DefaultConfig(), opts)
	if err != nil {
		panic(err)
	}
	return c
}

func makeCore(protocol string, base Config, opts []Option) (*core, error) {
	c := &core{protocol: protocol, config: config{Config: base, failure: []int{429, 500, 502, 503, 504}}}
	for _, o := range opts {
		o.apply(&c.config)
	}
	c.obeyEnvironment()
	settings := c.config.Config
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	if r := c.config.routes; r != nil {
		if err := r.compile(); err != nil {
			return nil, err
		}
	}
	settings.AttemptHeader = http.CanonicalHeaderKey(settings.AttemptHeader)
	c.settings.Store(&settings)
	settled := c.engineConfig(&settings)
	if watchers := c.config.observers; len(watchers) > 0 {
		settled.Observer = &watcher{observers: watchers, client: c.config.name, protocol: protocol}
	}
	c.startLog(&settled)
	c.engine = engine.New(settled)
	c.stats = new(Stats)
	if p := c.config.stats; p != nil {
		if *p == nil {
			*p = c.stats
		}
		c.stats = *p
	}
	return c, nil
}

// obeyEnvironment lets operators have their way with programs they cannot change.
// It is done once: a program that wants to follow a setting has SetEnabled and Update.
func (c *core) obeyEnvironment() {
	if v := os.Getenv("HEDGE_DISABLED"); v != "" {
		disabled, err := strconv.ParseBool(v)
		c.off.Store(disabled || err != nil) // who writes "yes" means it
	}
	if os.Getenv("HEDGE_MODE") == "observe" {
		c.config.shadow = true
	}
}

func (c *core) engineConfig(s *Config) engine.Config {
	e := engine.Config{
		PerHost:      c.config.routes != nil,
		Percentile:   s.Percentile,
		MaxHedges:    s.MaxHedges,
		Budget:       s.BudgetPercent / 100,
		EstimatedRPS: s.EstimatedRPS,
		Burst:        s.Burst,
		MinDelay:     s.MinDelay,
		MaxDelay:     s.MaxDelay,
		InitialDelay: s.InitialDelay,
		MaxPerSecond: s.MaxHedgesPerSecond,
		MaxKeys:      s.MaxKeys,
		Shadow:       c.config.shadow,
	}
	if b := c.config.budget; b != nil {
		e.Shared, e.Budget = b.bucket, b.percent/100
	}
	return e
}

func (c *core) update(f func(*Config)) error {
	s := *c.settings.Load()
	f(&s)
	if err := s.Validate(); err != nil {
		return err
	}
	s.AttemptHeader = http.CanonicalHeaderKey(s.AttemptHeader)
	old := c.settings.Swap(&s)
	c.engine.SetConfig(c.engineConfig(&s), time.Now())
	c.logUpdate(old, &s)
	return nil
}

func (c *core) setEnabled(on bool) {
	if c.off.Swap(!on) == on {
		c.logSwitch(on, "SetEnabled")
	}
}

// tally counts a call that could have been hedged and has ended.
func (c *core) tally(call *engine.Call, winner int) {
	if call.Hedges > 0 {
		c.stats.HedgedRequests.Add(1)
		c.stats.HedgesSent.Add(int64(call.Hedges))
		switch {
		case winner > 0:
			c.stats.HedgeWins.Add(1)
		case winner == 0:
			c.stats.PrimaryWins.Add(1)
		}
	}
	if call.Denied == engine.Budget {
		c.stats.BudgetExhausted.Add(1)
	}
}
