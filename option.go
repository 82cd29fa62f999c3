package hedge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohedge/hedge/internal/endpoint"
	"github.com/gohedge/hedge/internal/pattern"
	"github.com/gohedge/hedge/internal/route"
)

// The types of options say which constructors take them, so that an option in a wrong place does not compile. Options that
// need a value panic when the value is invalid. Options that contradict each other are an error of [NewWithConfig],
// [NewInterceptorWithConfig], [NewHedgerWithConfig] and [DialOptions], and a panic of the other constructors. The text
// names both options and their values. A nil option changes nothing.
type (
	// An Option adjusts clients for every kind of call: [New], [Wrap], [NewInterceptor] and [NewHedger] take it.
	Option interface {
		HTTPOrGRPCOption
		FuncOption
	}
	// An HTTPOption adjusts [New] and [Wrap].
	HTTPOption interface{ applyHTTP(*config) }
	// A GRPCOption adjusts [NewInterceptor], [NewUnaryClientInterceptor] and [DialOptions].
	GRPCOption interface{ applyGRPC(*config) }
	// A FuncOption adjusts [NewHedger].
	FuncOption interface{ applyFunc(*config) }
	// A LimiterOption adjusts [NewLimiter].
	LimiterOption interface{ applyLimiter(*config) }
	// An HTTPOrGRPCOption adjusts clients whose calls go over a network.
	HTTPOrGRPCOption interface {
		HTTPOption
		GRPCOption
	}
	// An AnyOption adjusts clients, as an [Option] does, and [NewLimiter].
	AnyOption interface {
		Option
		LimiterOption
	}
)

// WithOptions makes one option of several, which are applied in their order. It passes a slice of options, and others, to one constructor.
func WithOptions(opts ...Option) Option {
	return optionFunc(func(c *config) { applyOptions(c, opts, Option.applyHTTP) })
}

// WithHTTPOptions is [WithOptions] for options of [New] and [Wrap].
func WithHTTPOptions(opts ...HTTPOption) HTTPOption {
	return optionFunc(func(c *config) { applyOptions(c, opts, HTTPOption.applyHTTP) })
}

// WithGRPCOptions is [WithOptions] for options of [NewInterceptor].
func WithGRPCOptions(opts ...GRPCOption) GRPCOption {
	return optionFunc(func(c *config) { applyOptions(c, opts, GRPCOption.applyGRPC) })
}

// config is a Config and the options that a file cannot hold.
type config struct {
	Config
	given     []givenOption // in their order
	conflicts []error       // found while options were applied

	stats       **Stats
	budget      *Budget
	key         func(ctx context.Context, host, name string) string
	hedgeable   func(*http.Request) bool
	failure     []int                     // HTTP status codes of a primary that waits for its hedges; nil: the usual ones
	answers     []int                     // HTTP status codes that are an answer from every attempt
	failureFunc func(*http.Response) bool // decides instead of both; nil: not given
	transport   http.RoundTripper
	resolver    Resolver
	endpoints   *endpoint.Set // nil: none are given
	firstByte   bool
	resume      bool
	routes      *route.Table // nil: no routes are given
	logger      *slog.Logger
	name        string
	observers   []Observer
	audit       bool
	shadow      bool
	methods     []string // patterns of gRPC methods that are safe to send twice
	unlimited   []string // patterns of requests that a Limiter does not count

	limitsHealthChecks bool

	grpcSettings []any // functions that change a grpccall.Options, whose type a build without gRPC does not have
	maxHedgeCost int   // tokens of a gRPC hedge, as the options say; 0: one token
}

// An optionFunc is the form of all options. The interface type that a function returns it as tells which constructors take it.
type optionFunc func(*config)

func (f optionFunc) applyHTTP(c *config)    { f(c) }
func (f optionFunc) applyGRPC(c *config)    { f(c) }
func (f optionFunc) applyFunc(c *config)    { f(c) }
func (f optionFunc) applyLimiter(c *config) { f(c) }

// A givenOption describes an option that a constructor has got.
type givenOption struct {
	name     string // of the function that returned the option
	argument string // of that function, for error texts
	setting  bool   // sets the field of Config that has the name without With
}

// String returns the option as a call of its function.
func (o givenOption) String() string { return o.name + "(" + o.argument + ")" }

// newOption returns an option that calls set. Name and argument are those of the exported function that returns the option.
func newOption(name, argument string, set func(*config)) optionFunc {
	return func(c *config) {
		c.given = append(c.given, givenOption{name: name, argument: argument})
		set(c)
	}
}

// newSetting returns an option that sets a field of Config to a value. It panics if the value is invalid by itself. Whether it
// contradicts other fields is known when all options are applied.
func newSetting(name string, value any, set func(*Config)) optionFunc {
	probe := DefaultConfig()
	set(&probe)
	if err := probe.validateFields(); err != nil {
		panic(err)
	}
	given := givenOption{name: name, argument: formatSetting(value), setting: true}
	return func(c *config) {
		c.given = append(c.given, given)
		set(&c.Config)
	}
}

// formatSetting returns the value of a field of Config as text for errors.
func formatSetting(value any) string {
	if s, ok := value.(string); ok {
		return strconv.Quote(s)
	}
	return fmt.Sprint(value)
}

// applyOptions applies options to c in their order, each with its method apply.
func applyOptions[O any](c *config, opts []O, apply func(O, *config)) {
	for _, o := range opts {
		if any(o) != nil {
			apply(o, c)
		}
	}
}

// contradictions are pairs of options of which the first would have no effect beside the second.
var contradictions = [...]struct{ option, beside string }{
	{"WithBudgetPercent", "WithBudget"}, {"WithEstimatedRPS", "WithBudget"}, {"WithBurst", "WithBudget"},
	{"WithFailureStatus", "WithFailureFunc"}, {"WithAnswerStatus", "WithFailureFunc"},
	{"WithAudit", "WithShadow"}, {"WithReplicas", "WithHedgeTransport"}, {"WithLinger", "WithFirstByte"},
	{"WithHedgeConn", "WithHedgeConns"},
}

// checkConflicts returns an error for the options that contradict each other. It names each pair and the values; nil: there are none.
func (c *config) checkConflicts() error {
	all := c.conflicts
	for _, pair := range contradictions {
		i := slices.IndexFunc(c.given, func(o givenOption) bool { return o.name == pair.option })
		j := slices.IndexFunc(c.given, func(o givenOption) bool { return o.name == pair.beside })
		if i >= 0 && j >= 0 {
			all = append(all, fmt.Errorf("hedge: %v has no effect beside %v: remove one of them", c.given[i], c.given[j]))
		}
	}
	return errors.Join(all...)
}

// WithPercentile never hedges sooner than quantile q of the recent latencies. The
// default is 0.90. The delay is usually later, because the budget asks for it.
// It panics unless 0 <= q < 1.
func WithPercentile(q float64) Option {
	return newSetting("WithPercentile", q, func(c *Config) { c.Percentile = q })
}

// WithMaxHedges sends at most n hedges per call, all within the same budget.
// The default is 2. 0 sends none. It panics unless 0 <= n <= 4.
func WithMaxHedges(n int) Option {
	return newSetting("WithMaxHedges", n, func(c *Config) { c.MaxHedges = n })
}

// WithBudgetPercent sends at most percent hedges per 100 requests of all keys, and
// one burst besides, see [WithBurst]. Each key earns its own; a new one begins with up to a burst of
// what is left of the first one, of what forgotten keys had, and of what full budgets did not need. The
// default is 10. 0 sends none. It panics unless 0 <= percent <= 400.
func WithBudgetPercent(percent float64) Option {
	return newSetting("WithBudgetPercent", percent, func(c *Config) { c.BudgetPercent = percent })
}

// WithEstimatedRPS sets how many requests per second to expect of a key. It sizes
// the burst of the key's budget until the real rate is measured, and need not be
// exact. The default is 100. It panics unless rps is finite and not negative.
func WithEstimatedRPS(rps float64) Option {
	return newSetting("WithEstimatedRPS", rps, func(c *Config) { c.EstimatedRPS = rps })
}

// WithMinDelay never hedges sooner than d after the primary started, nor sooner
// than d after the hedge before. The default is 1ms. It panics if d is negative.
func WithMinDelay(d time.Duration) Option {
	return newSetting("WithMinDelay", d, func(c *Config) { c.MinDelay = d })
}

// WithMaxDelay hedges after d at the latest, budget permitting. The default, [Unset], sets no limit. It bounds learned delays, as [WithMinDelay]
// does, and not those of [WithDelay], a [Policy] and a hedgingPolicy. It panics if d is negative; [New] panics if it is below [WithMinDelay]'s.
func WithMaxDelay(d time.Duration) Option {
	return newSetting("WithMaxDelay", d, func(c *Config) { c.MaxDelay = d })
}

// WithInitialDelay hedges after d until ten calls are known. The default, [Unset], sends
// no hedge before that: a guess that is too short doubles the load of a service at
// start. It panics if d is negative; [New] panics if it is below [WithMinDelay]'s or
// above [WithMaxDelay]'s.
func WithInitialDelay(d time.Duration) Option {
	return newSetting("WithInitialDelay", d, func(c *Config) { c.InitialDelay = d })
}

// WithBurst lets a key save up the budget that the requests of d earn, counted as 100 per
// second at least, and at least one hedge. The default is 2s. A larger burst bridges longer pauses of a replica, and
// costs more in an overload: besides hedges for 17 % of the calls made during an
// outage, three hedges, or the budget of d if that is more. It panics if d is negative.
func WithBurst(d time.Duration) Option {
	return newSetting("WithBurst", d, func(c *Config) { c.Burst = d })
}

// WithMaxHedgesPerSecond bounds the hedges of all keys together, beside the
// budget of each. The default, [Unset], sets no limit. 0 sends no hedge. It panics unless n is finite and not negative.
func WithMaxHedgesPerSecond(n float64) Option {
	return newSetting("WithMaxHedgesPerSecond", n, func(c *Config) { c.MaxHedgesPerSecond = n })
}

// WithMaxKeys remembers at most n keys; the least recently used are forgotten
// first. The default is 4096. It panics unless n is positive.
func WithMaxKeys(n int) Option {
	return newSetting("WithMaxKeys", n, func(c *Config) { c.MaxKeys = n })
}

// WithLinger gives the losers of HTTP/1.1 races up to d to finish, so that their
// connections can be used again: cancelling a loser closes its connection. The
// default is 1s. 0 cancels losers at once, or as soon as that cannot fail another request
// on the same connection: a tenth of a second after the loser got a connection that was in
// use just before. A loser that has no connection yet is always cancelled at once, also one that waits in middleware, if
// what is below there tells httptrace of its connections, as net/http does. So are those of HTTP/2 and gRPC, which costs no connection. Where answers come from behind a
// [Limiter], losers are cancelled if that can be done at once. It panics if d is negative.
func WithLinger(d time.Duration) HTTPOption {
	return newSetting("WithLinger", d, func(c *Config) { c.Linger = d })
}

// WithMaxReplayBytes hedges HTTP requests with bodies of up to n bytes. Such a
// body is read once, before the primary is sent. The default is 64 KiB. 0 hedges
// only requests without a body. It panics if n is negative.
func WithMaxReplayBytes(n int64) HTTPOption {
	return newSetting("WithMaxReplayBytes", n, func(c *Config) { c.MaxReplayBytes = n })
}

// WithConfig sets all settings that a [Config] holds. The options of single settings may follow it, and replace its values; one
// before it is a contradiction. The default is [DefaultConfig]. It panics if c is invalid.
func WithConfig(c Config) Option {
	if err := c.Validate(); err != nil {
		panic(err)
	}
	return optionFunc(func(all *config) {
		for _, o := range all.given {
			if o.setting {
				field := strings.TrimPrefix(o.name, "With")
				all.conflicts = append(all.conflicts, fmt.Errorf("hedge: %v has no effect before WithConfig, which sets %s to %v: put it after WithConfig",
					o, field, formatSetting(reflect.ValueOf(c).FieldByName(field).Interface())))
			}
		}
		all.Config = c
	})
}

// WithBudget pays for hedges from b instead of from one budget per key. Everything
// that is given b shares it. It contradicts [WithBudgetPercent], [WithEstimatedRPS] and
// [WithBurst]. It panics if b is nil or was not made by [NewBudget].
func WithBudget(b *Budget) Option {
	switch {
	case b == nil:
		panic("hedge: WithBudget: Budget is nil")
	case b.bucket == nil:
		panic("hedge: WithBudget: Budget was not made by NewBudget")
	}
	return newOption("WithBudget", b.describe(), func(c *config) { c.budget = b })
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
// own port or a dot at its end) and "METHOD /path"; for gRPC, the target, such as "dns:///orders:443", and the full
// method. Results should be few, see [WithMaxKeys]. It panics if f is nil.
func WithKeyFunc(f func(ctx context.Context, host, name string) string) HTTPOrGRPCOption {
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
func WithHedgeable(f func(*http.Request) bool) HTTPOption {
	if f == nil {
		panic("hedge: WithHedgeable: func is nil")
	}
	return optionFunc(func(c *config) { c.hedgeable = f })
}

// WithFailureStatus sets the HTTP status codes with which a primary waits for the hedges that
// are out: these and no others. The default is 408, 421, 425, 429, every 5xx but 501
// and 505, and 409 to a request with an Idempotency-Key (or X-Idempotency-Key), which is
// what a server says while the other attempt is in progress, and 412 to a method that writes, since the
// other attempt may have changed what the condition is about. It waits until the youngest hedge has
// had the 99th percentile of the key, 10ms at least and a second (or as long as the primary took)
// at most. Any other status of the primary ends the call. A hedge ends it with 2xx and 3xx alone, unless they are listed here, see
// [WithAnswerStatus]. Where replicas lag behind, add 404. It panics if a code is not in [100, 999].
func WithFailureStatus(codes ...int) HTTPOption {
	codes = statusCodes("WithFailureStatus", codes)
	return newOption("WithFailureStatus", joinCodes(codes), func(c *config) { c.failure = codes })
}

// WithAnswerStatus says which HTTP status codes are an answer from every attempt: a hedge with
// one of them ends its call, as with 2xx and 3xx. The default is none, because a status may be
// true of one attempt alone: 404 of a replica that lags, 401 where a connection is authenticated
// or a token may be used once, 403 of a rate limit. Where all replicas know the same, 404 and
// 410 are codes to add; Stats.AnswersNotTaken counts what they would help. It counts more than
// [WithFailureStatus]. It panics if a code is not in [100, 999].
func WithAnswerStatus(codes ...int) HTTPOption {
	codes = statusCodes("WithAnswerStatus", codes)
	return newOption("WithAnswerStatus", joinCodes(codes), func(c *config) { c.answers = codes })
}

// joinCodes returns codes as the arguments of a call.
func joinCodes(codes []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(codes), " ", ", "), "[]")
}

// statusCodes returns a copy of the codes that an option of that name was given.
func statusCodes(option string, codes []int) []int {
	for _, code := range codes {
		if code < 100 || code > 999 {
			panic(fmt.Sprintf("hedge: %s: code %d is not in [100, 999]", option, code))
		}
	}
	return append([]int{}, codes...)
}

// WithFailureFunc lets f decide alone which HTTP responses of any attempt do not win while
// another attempt is in flight; all others do. It contradicts [WithFailureStatus] and [WithAnswerStatus].
// Transport errors never win. f must not read the body, and must be safe for concurrent use. It panics if f is
// nil.
func WithFailureFunc(f func(*http.Response) bool) HTTPOption {
	if f == nil {
		panic("hedge: WithFailureFunc: func is nil")
	}
	return newOption("WithFailureFunc", "func", func(c *config) { c.failureFunc = f })
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
func WithHedgeTransport(rt http.RoundTripper) HTTPOption {
	if rt == nil {
		panic("hedge: WithHedgeTransport: RoundTripper is nil")
	}
	return newOption("WithHedgeTransport", fmt.Sprintf("%T", rt), func(c *config) { c.transport = rt })
}

// WithFirstByte lets an HTTP response win with the first byte of its body instead
// of its header, and learns the time to that byte. It is for servers that send the
// header before they do the work, such as language models that stream. Event
// streams are then hedged like other requests, losers are cancelled at once, and
// RoundTrip returns when the first byte has arrived. It contradicts [WithLinger]. By default the header decides.
// [Policy] has the same for single routes.
func WithFirstByte() HTTPOption {
	return newOption("WithFirstByte", "", func(c *config) { c.firstByte = true })
}

// WithShadow sends no hedges, and does all else as usual: it learns, decides and
// takes from the budget. Observers, [Stats] and snapshots tell how many hedges would have
// been sent ([DeniedShadow]), how many would have won, also over failures and callers that gave up, and
// how much time they would have saved, assuming that a hedge takes as long as any other call, and fails as often.
// Where the request itself is slow or fails, that assumes too much. HEDGE_MODE=shadow in the environment does the same.
// The default is to send hedges.
func WithShadow() Option {
	return newOption("WithShadow", "", func(c *config) { c.shadow = true })
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
// after 250 ms no longer holds up the next one, and comes late for a minute. All these together
// have at most MaxConnsPerHost connections to the host. Only if all
// others fail does a hedge go to the primary's address; a minute later they are tried again.
// If the primary is still connecting, its address is the one that package net connects to.
// A DialContext that does not use package net hides it; then it is taken to be r's first address.
//
// While a replica that all primaries go to stands still, every call needs a hedge at
// once. [WithBurst] sets how many are saved up for that.
//
// It is an error if there is no *http.Transport below. It contradicts [WithHedgeTransport]. With the transport's DialTLSContext, or
// through a proxy, it has no effect. It panics if r is nil.
func WithReplicas(r Resolver) HTTPOption {
	if r == nil {
		panic("hedge: WithReplicas: Resolver is nil")
	}
	return newOption("WithReplicas", fmt.Sprintf("%T", r), func(c *config) { c.resolver = r })
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
// Resumed are responses of 64 KiB and more to a GET that may be hedged: status 200, with
// Content-Length and "Accept-Ranges: bytes", or status 206 with the one range of bytes that
// the request asks for (bytes=a-b or bytes=a-), and in both cases a strong validator (section
// 8.8): an ETag that is not weak or, where there is none, a Last-Modified a minute or more
// before Date. A request whose signature covers its range is sent as it is: one that lists Range in credentials, in the URL or in a header
// of its own (SignedHeaders of many, Alibaba's AdditionalHeaders, Tencent's q-header-list, Baidu's bce-auth, Kong's hmac), Azure's
// shared keys, and signatures after RFC 9421 or its draft. Responses that were decompressed on the way or
// announce trailers are not, nor are encoded ones without an ETag. A 206 must repeat the validator, the encoding and the
// whole length, and begin where the reader is; if not, the first response goes on alone.
//
// [KeySnapshot.Unresumed] says why other bodies were not: their answers cannot be ("request", "signed", "status", "small", "encoded",
// "no_ranges", "no_validator"); or a Read waited for 50 ms or more while too little was known ("learning"), for less than what counts as a stall ("usual"), or
// when the call had sent all its hedges ("spent"); or what the server sent was not the rest ("no_rest").
//
// If the second one wins, the context of the first is cancelled while a Read of it waits, which
// must then return, as net/http's does; its body is closed after that, or after a second. If the
// first fails while the rest is asked for, its error is held as long as that of a primary is, see
// [WithFailureStatus]. If the second one fails later on, so does the body.
func WithResume() HTTPOption {
	return optionFunc(func(c *config) { c.resume = true })
}

// WithRoute learns a separate latency for the calls that match pattern, and applies
// policy p to them. Several routes may be given; the most specific pattern wins.
//
// For HTTP, patterns are those of [http.ServeMux], such as "POST /api/v1/query" or "catalog.test/items/{id}", which is
// for all ports of that host; a call that matches none is learned per host. "/items/" does not
// match "/items", to which a ServeMux only answers with a redirect. "//items" and "/x/../items" have the
// route of "/items", but its Hedgeable does not hold for them: not all servers take them for the
// same. All routes of a host spend that host's budget. For gRPC, patterns are "/pkg.Service/Method",
// "/pkg.Service/*" and "/*", and every method has a latency of its own anyway.
//
// It panics if the pattern is none of http.ServeMux's or a field of p is invalid; [New] panics if two patterns conflict.
func WithRoute(pattern string, p Policy) HTTPOrGRPCOption {
	if p.BudgetPercent == NoBudget {
		p.BudgetPercent = 0
		if !p.Off {
			p.Off, p.Hedgeable = true, false
		}
	}
	given := route.Route{Pattern: pattern, Line: caller(), Policy: route.Policy(p)}
	if err := given.Validate(); err != nil {
		panic(err)
	}
	return optionFunc(func(c *config) {
		if c.routes == nil {
			c.routes = new(route.Table)
		}
		c.routes.Register(given)
	})
}

// caller returns the line that calls the option that asks for it.
func caller() string {
	_, file, line, _ := runtime.Caller(2)
	return fmt.Sprintf("%s:%d", file, line)
}

// WithUnlimited lets what matches a pattern pass a [Limiter]: it takes no place, is not counted, is never turned away,
// and its answer has no Hedge-Limit. It is for what says whether the server is well, and for handlers that wait for long and do little.
//
// Patterns are those of [http.ServeMux], over HTTP and gRPC: a gRPC call is the request "POST /pkg.Service/Method" to its
// authority. So "/healthz", "GET admin.test/metrics" and "/pkg.Service/Method" match requests over either. "/pkg.Service/*" and "/*"
// match gRPC calls alone: those of a service, and all. A path that is not clean, such as "//healthz", matches nothing, and "/debug/"
// does not match "/debug". Any number may match the same request. For [Limiter.Handler] a gRPC call is
// a POST over HTTP/2 with a Content-Type of application/grpc, and its path has no percent-encoding.
//
// The default is none but gRPC's health checks and reflection, see [WithLimitedHealthChecks]. WithUnlimited
// may be given several times. It panics if a pattern is of none of these forms.
func WithUnlimited(patterns ...string) LimiterOption {
	probe := new(pattern.Set)
	for _, p := range patterns {
		if err := probe.Add(p); err != nil {
			panic(fmt.Sprintf("hedge: WithUnlimited(%q): %v", p, err))
		}
	}
	patterns = slices.Clone(patterns)
	return optionFunc(func(c *config) { c.unlimited = append(c.unlimited, patterns...) })
}

// WithLimitedHealthChecks makes gRPC's health checks and reflection take places in a [Limiter] as other calls do. By default they pass as
// calls that [WithUnlimited] names: Check, Watch and List of grpc.health.v1.Health, and ServerReflectionInfo of grpc.reflection.v1 and v1alpha.
// It is for servers that answer no health checks, and for those whose clients are not trusted.
func WithLimitedHealthChecks() LimiterOption {
	return optionFunc(func(c *config) { c.limitsHealthChecks = true })
}

// WithAttemptHeader puts the number of an HTTP hedge, 1 or more, into the request
// header of the given name, usually [AttemptHeader], so that servers can tell hedges
// from primaries. A request that is made for a hedge, see [Middleware], carries that
// hedge's number. All others go out as they are.
//
// A request that arrives with the header or with [AttemptHeader], from a proxy for example,
// is made for a hedge as well, and is sent once. The default, "", sends no header. Hedges to
// a host whose answers come from behind a [Limiter] carry [AttemptHeader], whatever the
// option says. It panics if HTTP does not allow the name, or gives it a meaning, as it does to Host and Range. gRPC needs no such option:
// its hedges always carry grpc-previous-rpc-attempts.
func WithAttemptHeader(name string) HTTPOption {
	return newSetting("WithAttemptHeader", name, func(c *Config) { c.AttemptHeader = name })
}

// WithObserver tells o what happens to every call. It may be given several
// times. A call that needs no hedge then costs two more readings of the clock, and
// what o does. It panics if o is nil.
func WithObserver(o Observer) AnyOption {
	if o == nil {
		panic("hedge: WithObserver: Observer is nil")
	}
	return optionFunc(func(c *config) { c.observers = append(c.observers, o) })
}

// WithName names a Transport, Interceptor or Hedger for observers that watch several:
// see [KeyInfo], and the label client of metrics. The default is no name.
func WithName(name string) AnyOption {
	return optionFunc(func(c *config) { c.name = name })
}

// WithLogger logs changes of state, and never single calls:
//
//   - hedging of a key is paused, with the reason [DeniedSlow] or [DeniedPaused], and resumed;
//   - the budget of a key is exhausted, and at least half full again;
//   - hedging is disabled or enabled, by SetEnabled, HEDGE_DISABLED or HEDGE_MODE;
//   - one of these variables cannot be understood;
//   - settings allow no hedge at all, or a budget is less than 1 % of the calls;
//   - Update changes settings, and Import learns;
//   - calls come from hedging around this one, for the first time;
//   - an [Observer] panics, for the first time;
//   - a gRPC method is not hedged, because nothing says that it is safe to repeat: once per method.
//
// The same message for the same key is logged at most once in ten seconds, and one about its budget at most once in ten minutes. A change
// that comes sooner is logged later if it lasts; the attribute dropped counts the
// changes that were not logged. A change of a key is noticed when its next call ends,
// and logged by that call's goroutine, which holds no lock. Pauses, disabling, such
// variables, settings that allow no hedge and hedging around hedging have level Warn, a panic has
// level Error, everything else Info. The default, nil, logs to
// [slog.Default] only panics and, but for pauses and disabling, what has level Warn: once.
func WithLogger(l *slog.Logger) AnyOption {
	return optionFunc(func(c *config) { c.logger = l })
}

// WithAudit measures whether hedging helps, and switches it off for a host where it
// harms: where servers are so busy that the hedges of all callers delay everybody.
//
// No caller sees the harm that its own hedges do to others, nor what theirs do to it. So
// all clients with WithAudit send no hedges in the same slots of 20 seconds of the time of day,
// which a hash of the host picks, and each compares what its calls then waited with what
// they wait in the slots beside. Every call counts, and a failure counts as slower than every answer. The clocks of
// clients may differ by two seconds. They agree on a host by its name: that of a URL, the gRPC target, the key given to [Do].
//
// Until there is a verdict no hedges are sent half of the time: for seven minutes with many calls a second, for 20 to 40 minutes
// with two. [AuditSame] says that an hour has shown no difference; then a quarter of the time has no hedges. The verdict is tested
// every 43 minutes on average, and anew where latencies change. Where hedging changes nothing, luck gives at most 3 % of
// hosts a verdict, however long it is measured. A host with less than 1.4 calls a second is hedged as without WithAudit, and one whose
// calls take longer than 6 s with hedging and without gets no verdict: [AuditUnclear].
// The verdict is that of all routes and methods of the host; it is shown
// by [KeySnapshot], observers, logs and the debug page, and goes with Export and Import.
//
// [RequestResult.Saved] and [KeySnapshot.Saved], which estimate what this measures, are 0
// with it. It contradicts [WithShadow], with which no hedge is sent. HEDGE_MODE=audit in the
// environment does the same. The default is no audit.
func WithAudit() Option {
	return newOption("WithAudit", "", func(c *config) { c.audit = true })
}

// WithMethods declares gRPC methods safe to send twice at the same time:
// "/pkg.Service/Method", "/pkg.Service/*" for all of a service, or "/*" for all. It
// may be given several times. It panics if a pattern is of none of these forms.
//
// A method that is not listed is hedged if its descriptor, where the program has it
// registered, says NO_SIDE_EFFECTS or binds it to HTTP GET (google.api.http). If the
// descriptor says IDEMPOTENT or binds it to other HTTP methods only, it is sent once:
// of two idempotent writes, the late one can undo what a third has written between them.
//
// Where nothing is declared, the name decides, which is a guess: [WithDeclaredMethods] does
// without it. Its first word must be Get, BatchGet, List, AggregatedList, Search, Lookup, Query, Read,
// Count, Describe, Find, Is, Has, Exists, Estimate or Stat, and no other word may write or take:
// GetOrCreateUser, ReadModifyWriteRow, GetNextTicket and GetVerifyCode are sent once. So are methods
// whose descriptor contradicts their name, by a reply that is an Operation or by a method beside
// them that hands back what they give. docs/methods.md has all words, and how often names of real
// methods mislead; [Interceptor.Hedges] says what holds for a method, and why.
func WithMethods(patterns ...string) GRPCOption {
	for _, p := range patterns {
		if !pattern.IsMethodPattern(p) {
			panic(fmt.Sprintf("hedge: WithMethods: %q is not /pkg.Service/Method, /pkg.Service/* or /*", p))
		}
	}
	patterns = slices.Clone(patterns)
	return optionFunc(func(c *config) { c.methods = append(c.methods, patterns...) })
}
