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
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/pattern"
	"github.com/gohedge/hedge/internal/route"
)

// The type of an option determines which constructors accept it, so that an unsupported option does not compile. Option
// functions panic if their value is invalid. A nil option has no effect.
//
// Options that contradict each other are an error of [NewWithConfig], [NewInterceptorWithConfig], [NewHedgerWithConfig] and
// [DialOptions], and a panic of the other constructors. The text names both options and their values.
type (
	// An Option configures a client for any kind of call: HTTP, gRPC, or a function. [New], [Wrap], [NewInterceptor] and
	// [NewHedger] accept it.
	Option interface {
		HTTPOrGRPCOption
		FuncOption
	}
	// An HTTPOption configures an HTTP client. [New] and [Wrap] accept it.
	HTTPOption interface{ applyHTTP(*constructorOptions) }
	// A GRPCOption configures a gRPC client. [NewInterceptor], [NewUnaryClientInterceptor] and [DialOptions] accept it.
	GRPCOption interface{ applyGRPC(*constructorOptions) }
	// A FuncOption configures a [Hedger], which hedges functions. [NewHedger] accepts it.
	FuncOption interface{ applyFunc(*constructorOptions) }
	// A LimiterOption configures a [Limiter]. [NewLimiter] accepts it.
	LimiterOption interface{ applyLimiter(*constructorOptions) }
	// An HTTPOrGRPCOption configures an HTTP or a gRPC client. The constructors that accept an [HTTPOption] or a
	// [GRPCOption] accept it too.
	HTTPOrGRPCOption interface {
		HTTPOption
		GRPCOption
	}
	// An AnyOption configures a client of any kind, or a [Limiter]. All constructors of this package with options accept
	// it.
	AnyOption interface {
		Option
		LimiterOption
	}
)

// WithOptions combines several options into one option, which applies them in order. Use it to pass a slice of options
// together with further options to one constructor.
func WithOptions(opts ...Option) Option {
	return optionFunc(func(c *constructorOptions) { applyOptions(c, opts, Option.applyHTTP) })
}

// WithHTTPOptions combines several HTTP options into one option, which applies them in order. Unlike [WithOptions], it
// accepts options that only HTTP clients support.
func WithHTTPOptions(opts ...HTTPOption) HTTPOption {
	return optionFunc(func(c *constructorOptions) { applyOptions(c, opts, HTTPOption.applyHTTP) })
}

// WithGRPCOptions combines several gRPC options into one option, which applies them in order. Unlike [WithOptions], it
// accepts options that only gRPC clients support.
func WithGRPCOptions(opts ...GRPCOption) GRPCOption {
	return optionFunc(func(c *constructorOptions) { applyOptions(c, opts, GRPCOption.applyGRPC) })
}

// A constructorOptions collects all options of one constructor: a Config, and the options that a configuration file cannot express.
type constructorOptions struct {
	Config
	applied   []appliedOption // the options, in the order in which they were applied
	conflicts []error         // errors for contradictions that were found while options were applied

	stats  **Stats // pointer of WithStats, which is set to a new Stats if it points to nil; nil: not given
	budget *Budget // shared budget of WithBudget; nil: one budget per key
	// keyFunc computes latency keys, see WithKeyFunc; nil: the default key.
	keyFunc        func(ctx context.Context, host, name string) string
	isHedgeable    func(*http.Request) bool  // decides which requests are safe to send twice; nil: the method decides
	failureStatus  []int                     // HTTP status codes with which a primary waits for its hedges; nil: the default
	answerStatus   []int                     // HTTP status codes with which a hedge wins, besides 2xx and 3xx
	isFailure      func(*http.Response) bool // replaces failureStatus and answerStatus; nil: not given
	hedgeTransport http.RoundTripper         // sends hedges, see WithHedgeTransport; nil: not given
	resolver       Resolver                  // looks up the addresses of replicas, see WithReplicas; nil: not given
	endpoints      *endpoint.Set             // endpoints of WithEndpoints; nil: not given
	firstByte      bool                      // whether the first byte of the body decides which attempt wins, see WithFirstByte
	resume         bool                      // whether stalled response bodies are resumed, see WithResume
	routes         *route.Table              // routes of WithRoute; nil: not given
	logger         *slog.Logger              // receives log messages, see WithLogger; nil: the default
	name           string                    // name of the client or Limiter; "": none
	observers      []Observer                // receive the events of every call
	audit          bool                      // whether hosts are audited, see WithAudit
	shadow         bool                      // whether shadow mode is enabled, see WithShadow
	methods        []string                  // patterns of gRPC methods that are safe to send twice
	unlimited      []string                  // patterns of requests that need no slot of a Limiter

	limitsHealthChecks bool // whether gRPC health checks and reflection need slots, see WithLimitedHealthChecks

	grpcSettings []any // functions that change a grpccall.Options, a type that a build without gRPC does not have
	maxHedgeCost int   // cost of the most expensive hedge connection, in tokens; 0: one token
}

// mode returns the mode that the options select: shadow, audit, or on.
func (c *constructorOptions) mode() ops.Mode {
	switch {
	case c.shadow:
		return ops.ModeShadow
	case c.audit:
		return ops.ModeAudit
	}
	return ops.ModeOn
}

// An optionFunc is the implementation of all options: a function that changes a config. It implements every option
// interface. The result type of an exported option function, such as HTTPOption, determines which constructors accept
// the option.
type optionFunc func(*constructorOptions)

func (f optionFunc) applyHTTP(c *constructorOptions)    { f(c) }
func (f optionFunc) applyGRPC(c *constructorOptions)    { f(c) }
func (f optionFunc) applyFunc(c *constructorOptions)    { f(c) }
func (f optionFunc) applyLimiter(c *constructorOptions) { f(c) }

// An appliedOption records that an option was passed to a constructor, so that errors about contradictions can quote
// it.
type appliedOption struct {
	name      string // name of the function that returned the option
	argument  string // argument of that function, as text
	isSetting bool   // true if the option sets one field of Config, whose name is the option's name without "With"
}

// String returns the option as a function call, such as "WithMaxHedges(3)".
func (o appliedOption) String() string { return o.name + "(" + o.argument + ")" }

// newOption returns an option that calls set on the config of a constructor. The name of the exported option function
// and its argument, as text, are recorded for error texts.
func newOption(name, argument string, set func(*constructorOptions)) optionFunc {
	return func(c *constructorOptions) {
		c.applied = append(c.applied, appliedOption{name: name, argument: argument})
		set(c)
	}
}

// newSettingOption returns an option that sets a single field of Config by calling set. The name of the exported
// option function and the value are recorded for error texts.
//
// newSettingOption panics if the value alone is invalid. Conflicts with other fields are detected after all options
// have been applied.
func newSettingOption(name string, value any, set func(*Config)) optionFunc {
	probe := DefaultConfig()
	set(&probe)
	if err := probe.validateFields(); err != nil {
		panic(err)
	}
	given := appliedOption{name: name, argument: formatSetting(value), isSetting: true}
	return func(c *constructorOptions) {
		c.applied = append(c.applied, given)
		set(&c.Config)
	}
}

// formatSetting formats the value of a field of Config for an error text. Strings are quoted.
func formatSetting(value any) string {
	if s, ok := value.(string); ok {
		return strconv.Quote(s)
	}
	return fmt.Sprint(value)
}

// applyOptions applies opts to c in order. The function apply applies a single option; it is the method for the kind of
// client, such as HTTPOption.applyHTTP. Nil options are skipped.
func applyOptions[O any](c *constructorOptions, opts []O, apply func(O, *constructorOptions)) {
	for _, o := range opts {
		if any(o) != nil {
			apply(o, c)
		}
	}
}

// contradictions lists pairs of options that must not be given together, because the first of the two would have no
// effect.
var contradictions = [...]struct{ option, beside string }{
	{"WithBudgetPercent", "WithBudget"}, {"WithEstimatedRPS", "WithBudget"}, {"WithBurst", "WithBudget"},
	{"WithFailureStatus", "WithFailureFunc"}, {"WithAnswerStatus", "WithFailureFunc"},
	{"WithAudit", "WithShadow"}, {"WithReplicas", "WithHedgeTransport"}, {"WithLinger", "WithFirstByte"},
	{"WithHedgeConn", "WithHedgeConns"},
}

// checkConflicts returns an error that lists all contradictions between the applied options, with their values. It
// returns nil if there are none.
func (c *constructorOptions) checkConflicts() error {
	all := c.conflicts
	for _, pair := range contradictions {
		i := slices.IndexFunc(c.applied, func(o appliedOption) bool { return o.name == pair.option })
		j := slices.IndexFunc(c.applied, func(o appliedOption) bool { return o.name == pair.beside })
		if i >= 0 && j >= 0 {
			all = append(all, fmt.Errorf("hedge: %v has no effect beside %v: remove one of them", c.applied[i], c.applied[j]))
		}
	}
	return errors.Join(all...)
}

// WithPercentile sets the minimum hedge delay to quantile q of the recent latencies. The default is 0.90, so that about
// a tenth of the calls are slow enough for a hedge. The delay is usually longer, because hedging that early would
// exceed the budget. It panics unless 0 <= q < 1.
func WithPercentile(q float64) Option {
	return newSettingOption("WithPercentile", q, func(c *Config) { c.Percentile = q })
}

// WithMaxHedges limits the number of hedges of one call to n. The default is 2; with 0, no hedges are sent. All hedges
// of a call use the same budget. With [WithResume], one more may complete a body that broke off. It panics unless
// 0 <= n <= 4.
func WithMaxHedges(n int) Option {
	return newSettingOption("WithMaxHedges", n, func(c *Config) { c.MaxHedges = n })
}

// WithBudgetPercent limits hedges to the given number per 100 requests, summed over all latency keys, plus one burst
// (see [WithBurst]). The default is 10; with 0, no hedges are sent. It panics unless 0 <= percent <= 400.
//
// Each key has a budget of its own: a token bucket, to which each request of the key adds percent/100 tokens. A hedge
// costs one token.
//
// A new key starts with up to one burst of tokens, which it takes from a reserve that all keys share. The reserve
// starts with one burst. It also receives the tokens of evicted keys, and tokens that do not fit into full budgets.
func WithBudgetPercent(percent float64) Option {
	return newSettingOption("WithBudgetPercent", percent, func(c *Config) { c.BudgetPercent = percent })
}

// WithEstimatedRPS sets the expected number of requests per second of a latency key. It determines the burst of the
// key's budget until the actual rate is measured, so a rough value is enough. The default is 100. It panics unless rps
// is finite and not negative.
func WithEstimatedRPS(rps float64) Option {
	return newSettingOption("WithEstimatedRPS", rps, func(c *Config) { c.EstimatedRPS = rps })
}

// WithMinDelay sets the minimum time between the start of the primary and the first hedge, and between the starts of
// two hedges of a call. The default is 1ms. It panics if d is negative.
func WithMinDelay(d time.Duration) Option {
	return newSettingOption("WithMinDelay", d, func(c *Config) { c.MinDelay = d })
}

// WithMaxDelay sets the maximum of the learned hedge delay to d: a call that is still unanswered after d is hedged if
// the budget allows. The default, [Unset], sets no limit.
//
// The maximum does not apply to delays from [WithDelay], a [Policy] or a gRPC hedgingPolicy. It panics if d is
// negative. [New] panics if d is less than the minimum of [WithMinDelay].
func WithMaxDelay(d time.Duration) Option {
	return newSettingOption("WithMaxDelay", d, func(c *Config) { c.MaxDelay = d })
}

// WithInitialDelay sets the hedge delay of a latency key to d until ten calls of the key have been measured. By
// default, [Unset], these first calls are not hedged, because a delay that is too short doubles the load of a service
// at startup.
//
// It panics if d is negative. [New] panics if d is less than the minimum of [WithMinDelay] or more than the maximum of
// [WithMaxDelay].
func WithInitialDelay(d time.Duration) Option {
	return newSettingOption("WithInitialDelay", d, func(c *Config) { c.InitialDelay = d })
}

// WithBurst sets the burst of each key's budget: the maximum number of tokens that the budget can hold. It is given
// as a duration: the budget can hold the tokens that the requests of the last d have added. The default is 2s.
//
// The rate is taken as at least 100 requests per second, and the burst is at least one token.
//
// A larger burst covers longer pauses of a replica, but allows more hedges during an outage. During an outage, hedges
// are at most 17 % of the calls, plus the burst or three hedges, whichever is more. It panics if d is negative.
func WithBurst(d time.Duration) Option {
	return newSettingOption("WithBurst", d, func(c *Config) { c.Burst = d })
}

// WithMaxHedgesPerSecond limits the hedges per second of all keys together, in addition to the budget of each key. The
// default, [Unset], sets no limit; with 0, no hedges are sent. It panics unless n is finite and not negative.
func WithMaxHedgesPerSecond(n float64) Option {
	return newSettingOption("WithMaxHedgesPerSecond", n, func(c *Config) { c.MaxHedgesPerSecond = n })
}

// WithMaxKeys limits the number of latency keys in memory to n. If a call needs a further key, the least recently used
// key is evicted with its latencies. The default is 4096. It panics unless n is positive.
func WithMaxKeys(n int) Option {
	return newSettingOption("WithMaxKeys", n, func(c *Config) { c.MaxKeys = n })
}

// WithLinger lets an HTTP/1.1 attempt that has lost run for up to d before it is cancelled, because cancelling it
// closes its connection. If the attempt finishes in time, the connection is reused. The default is 1s. It panics if d
// is negative.
//
// With 0, a loser is cancelled at once, with one exception. If its connection was in use just before, it is not
// cancelled during the first 100ms on that connection. Cancelling it then could fail the earlier request on that
// connection.
//
// A loser that is still waiting for a connection is always cancelled at once, if the wrapped RoundTripper reports
// connections to httptrace, as net/http does. HTTP/2 and gRPC losers are cancelled at once as well, because that closes
// no connection. Losers at a server with a [Limiter] are cancelled at once where that is safe.
func WithLinger(d time.Duration) HTTPOption {
	return newSettingOption("WithLinger", d, func(c *Config) { c.Linger = d })
}

// WithMaxReplayBytes limits the size of request bodies that are sent again: requests with a body of more than n bytes
// are not hedged.
//
// The body of a request that may be hedged is read into memory before the primary is sent. The default is 64 KiB. With
// 0, only requests without a body are hedged. It panics if n is negative.
func WithMaxReplayBytes(n int64) HTTPOption {
	return newSettingOption("WithMaxReplayBytes", n, func(c *Config) { c.MaxReplayBytes = n })
}

// WithConfig sets all settings of a [Config] at once, for example from a file. The default is [DefaultConfig]. It
// panics if c is invalid.
//
// Options that follow WithConfig may change single settings again. An option for a single setting that precedes
// WithConfig would have no effect, and is an error.
func WithConfig(c Config) Option {
	if err := c.Validate(); err != nil {
		panic(err)
	}
	return optionFunc(func(all *constructorOptions) {
		for _, o := range all.applied {
			if o.isSetting {
				field := strings.TrimPrefix(o.name, "With")
				all.conflicts = append(all.conflicts, fmt.Errorf("hedge: %v has no effect before WithConfig, which sets %s to %v: put it after WithConfig",
					o, field, formatSetting(reflect.ValueOf(c).FieldByName(field).Interface())))
			}
		}
		all.Config = c
	})
}

// WithBudget makes all latency keys share the budget b, in place of one budget per key. Several clients may share b, so
// that their hedges are limited together. It contradicts [WithBudgetPercent], [WithEstimatedRPS] and [WithBurst], and
// fixes their settings, so that Update and files do not change them. It panics if b is nil or was not made by [NewBudget].
func WithBudget(b *Budget) Option {
	switch {
	case b == nil:
		panic("hedge: WithBudget: Budget is nil")
	case b.bucket == nil:
		panic("hedge: WithBudget: Budget was not made by NewBudget")
	}
	return newOption("WithBudget", b.constructorCall(), func(c *constructorOptions) { c.budget = b })
}

// WithStats makes the client count its calls in *s, so that the program can read the counters. If *s is nil, the
// constructor sets it to a new Stats. It panics if s is nil.
func WithStats(s **Stats) Option {
	if s == nil {
		panic("hedge: WithStats: **Stats is nil")
	}
	return optionFunc(func(c *constructorOptions) { c.stats = s })
}

// WithKeyFunc makes the result of f the latency key of a call: calls with the same key share their latencies and a
// budget. By default, the key is the host for HTTP, and the target and method for gRPC.
//
// For HTTP, f receives the host of the URL, and "METHOD /path" as name. The host is in lower case, without a default
// port or a trailing dot. For gRPC, f receives the target, such as "dns:///orders:443", as host, and the full method
// name as name. ctx is the context of the call.
//
// The number of distinct results should be small, see [WithMaxKeys]. f must be safe for concurrent use. It panics if f
// is nil.
func WithKeyFunc(f func(ctx context.Context, host, name string) string) HTTPOrGRPCOption {
	if f == nil {
		panic("hedge: WithKeyFunc: func is nil")
	}
	return optionFunc(func(c *constructorOptions) { c.keyFunc = f })
}

// WithHedgeable sets the function that decides which HTTP requests are safe to send twice at the same time: f returns
// true for them. By default, these are requests with the methods GET, HEAD, OPTIONS, TRACE and QUERY.
//
// An Idempotency-Key header alone does not make a request hedgeable. It allows repeating a request that has failed. A
// concurrent duplicate may be rejected (409), or arrive late and undo a newer write. If the server does neither, f may
// return true for requests with the header:
//
//	hedge.WithHedgeable(func(r *http.Request) bool {
//		return r.Method == http.MethodGet || r.Header.Get("Idempotency-Key") != ""
//	})
//
// f is called once per request, but not for requests that cannot be sent twice (see [Transport]). It must be safe for
// concurrent use. It panics if f is nil.
func WithHedgeable(f func(*http.Request) bool) HTTPOption {
	if f == nil {
		panic("hedge: WithHedgeable: func is nil")
	}
	return optionFunc(func(c *constructorOptions) { c.isHedgeable = f })
}

// WithFailureStatus sets the HTTP status codes that count as failures of the primary. A primary with a failure status
// waits for the hedges in flight; any other status of the primary ends the call. The default is 408, 421, 425, 429,
// and every 5xx except 501 and 505.
//
// The default also includes 409 for a request with an Idempotency-Key (or X-Idempotency-Key) header, because the
// other attempt may still be in progress. It includes 412 for a method that writes, because the other attempt may
// have changed the resource.
//
// The failed primary waits until the latest hedge has run for the 99th percentile of the key's latency. That time is
// at least 10ms. It is at most one second or the duration of the primary, whichever is longer.
//
// A hedge ends the call only with 2xx or 3xx, if that status is not listed here, or with a status of
// [WithAnswerStatus]. If replicas may lag behind, add 404. It panics if a code is not in [100, 999].
func WithFailureStatus(codes ...int) HTTPOption {
	codes = checkStatusCodes("WithFailureStatus", codes)
	return newOption("WithFailureStatus", joinCodes(codes), func(c *constructorOptions) { c.failureStatus = codes })
}

// WithAnswerStatus sets additional HTTP status codes with which a hedge wins, as it does with 2xx and 3xx. These codes
// take precedence over [WithFailureStatus]. It panics if a code is not in [100, 999].
//
// The default is none, because a status may depend on the attempt: 404 from a replica that lags, 401 for a token that
// may be used once, 403 from a rate limit. If all replicas give the same response, add 404 and 410.
// Stats.AnswersNotTaken counts the hedges that would have won with more codes.
func WithAnswerStatus(codes ...int) HTTPOption {
	codes = checkStatusCodes("WithAnswerStatus", codes)
	return newOption("WithAnswerStatus", joinCodes(codes), func(c *constructorOptions) { c.answerStatus = codes })
}

// joinCodes formats status codes as the arguments of a function call, such as "404, 410", for error texts.
func joinCodes(codes []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(codes), " ", ", "), "[]")
}

// checkStatusCodes returns a copy of the status codes that were passed to an option. It panics, naming the option, if a
// code is not in [100, 999].
func checkStatusCodes(option string, codes []int) []int {
	for _, code := range codes {
		if code < 100 || code > 999 {
			panic(fmt.Sprintf("hedge: %s: code %d is not in [100, 999]", option, code))
		}
	}
	return append([]int{}, codes...)
}

// WithFailureFunc sets the function that decides which HTTP responses are failures: f returns true for a failure. A
// failure does not win while another attempt is in flight. Any other response wins, whether it is the primary's or a
// hedge's. An attempt that ends with an error never wins.
//
// It contradicts [WithFailureStatus] and [WithAnswerStatus]. f must not read the body, and must be safe for concurrent
// use. It panics if f is nil.
func WithFailureFunc(f func(*http.Response) bool) HTTPOption {
	if f == nil {
		panic("hedge: WithFailureFunc: func is nil")
	}
	return newOption("WithFailureFunc", "func", func(c *constructorOptions) { c.isFailure = f })
}

// WithHedgeTransport sends HTTP hedges through rt, for example over other connections or to another destination. It
// panics if rt is nil.
//
// By default, hedges use the RoundTripper of the primary, with two exceptions: hedges over HTTP/2, and hedges if
// MaxConnsPerHost is set. These use a clone of the primary's *http.Transport, with separate connections.
// MaxConnsPerHost applies to the clone separately.
//
// The clone has all settings of the *http.Transport except the settings that golang.org/x/net/http2 has made for it.
// URL schemes registered with RegisterProtocol use the registered RoundTripper.
func WithHedgeTransport(rt http.RoundTripper) HTTPOption {
	if rt == nil {
		panic("hedge: WithHedgeTransport: RoundTripper is nil")
	}
	return newOption("WithHedgeTransport", fmt.Sprintf("%T", rt), func(c *constructorOptions) { c.hedgeTransport = rt })
}

// WithFirstByte makes the attempt win that receives the first byte of the body first. By default, the attempt wins that
// receives the header first. Use WithFirstByte for servers that send the header before they do the work, such as
// streaming language models. Latency is then measured until the first byte of the body.
//
// With WithFirstByte, event streams are hedged like other requests, losers are cancelled at once, and RoundTrip returns
// after the first byte. It contradicts [WithLinger]. The FirstByte field of [Policy] enables it for a single route.
func WithFirstByte() HTTPOption {
	return newOption("WithFirstByte", "", func(c *constructorOptions) { c.firstByte = true })
}

// WithShadow enables shadow mode, a dry run: the client learns, decides and spends the budget as usual, but sends no
// hedges. The default is to send hedges. HEDGE_MODE=shadow in the environment does the same.
//
// Observers, [Stats] and snapshots report how many hedges would have been sent ([DeniedShadow]), how many would have
// won, and how much time they would have saved. A hedge counts as a win if it would have succeeded in a call that
// failed or that the caller abandoned.
//
// The estimate assumes that a hedge is as fast and fails as often as an average call. It is too optimistic if the
// request itself is slow or fails.
func WithShadow() Option {
	return newOption("WithShadow", "", func(c *constructorOptions) { c.shadow = true })
}

// A Resolver looks up the addresses of a host for [WithReplicas]. Implementations are [*net.Resolver], the Client of
// package dnshedge, and Names of package dnshedge/names for hosts whose addresses change. It must be safe for
// concurrent use.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// WithReplicas sends an HTTP hedge to a different address of the host than the primary, if r returns several addresses.
// Use it for host names that stand for several replicas. The host name, the TLS server name and the certificate check
// stay the same.
//
// Hedge connections are made by the DialContext or Dial of the wrapped *http.Transport. If a dial fails or takes more
// than 250 ms, the next address is dialled too. The slow address is then dialled last for one minute. All hedge
// connections to a host together are limited by MaxConnsPerHost.
//
// A hedge uses the address of the primary only if all other addresses fail; the failed addresses are tried again after
// one minute. While the primary is still connecting, its address is assumed to be the address that package net dials.
// If a custom DialContext hides that address, the first address of r is assumed.
//
// While a replica that receives all primaries is stalled, every call needs a hedge. Set [WithBurst] large enough for
// the longest stall.
//
// WithReplicas has no effect with the transport's DialTLSContext or through a proxy. It contradicts
// [WithHedgeTransport]. If no *http.Transport is wrapped, [NewWithConfig] returns an error, and [New] panics.
// WithReplicas panics if r is nil.
func WithReplicas(r Resolver) HTTPOption {
	if r == nil {
		panic("hedge: WithReplicas: Resolver is nil")
	}
	return newOption("WithReplicas", fmt.Sprintf("%T", r), func(c *constructorOptions) { c.resolver = r })
}

// WithResume lets an HTTP response body that stalls continue from a second response. A range request (RFC 9110,
// section 14) over another connection asks for the remaining bytes, while the first response continues.
//
// The response that delivers the next byte first wins, and the other response is cancelled. The reader sees the same
// bytes in either case. By default, a Read waits for the first response.
//
// If the body of a hedge or of a range request breaks off, its remaining bytes are requested too: the response that it
// has displaced might have been complete. By default, and if that request is denied or fails, the reader gets the error.
// The error of a primary's body is returned at once.
//
// A body has stalled when a Read has waited at least 50ms, and also twice as long as the longest pause of 95 % of the
// key's bodies. Ten bodies must have been measured.
//
// The range request is a hedge of the call: it uses the budget, and counts towards [WithMaxHedges]. After a body has
// broken off, one more range request than [WithMaxHedges] is allowed, up to four hedges of a call. Observers receive
// a range request as a hedge that starts after the call is done.
//
// Only the response to a hedgeable GET with a body of at least 64 KiB is resumed. Its status must be 200, with a
// Content-Length and "Accept-Ranges: bytes", or 206 with the single range that the request asked for (bytes=a-b or
// bytes=a-).
//
// The response also needs a strong validator (RFC 9110, section 8.8). This is an ETag that is not weak or, without an
// ETag, a Last-Modified at least one minute before Date. Bodies that were decompressed by the transport, encoded
// bodies without an ETag, and bodies with trailers are not resumed.
//
// A request whose signature covers the Range header is not resumed. Recognised are signatures of RFC 9421 or its
// draft, Azure's shared keys, and lists of signed headers that contain Range: SignedHeaders, AdditionalHeaders
// (Alibaba), q-header-list (Tencent), bce-auth (Baidu) and hmac (Kong).
//
// The second response must be a 206 with the same validator, encoding and total length. It must start at the current
// position of the reader. Otherwise the first response continues alone.
//
// [KeySnapshot.Unresumed] counts stalled bodies that were not resumed, by reason:
//
//   - "request", "signed", "status", "small", "encoded", "no_ranges" or "no_validator": the request or response does
//     not qualify;
//   - "learning": a Read waited for 50 ms, but too few bodies were measured;
//   - "usual": a Read waited for 50 ms, but the pause was normal;
//   - "spent": a Read waited for 50 ms, but the call had no hedges left;
//   - "no_rest": the second response did not match.
//
// If the second response wins, the context of the first one is cancelled. A Read that still waits must then return,
// as a Read of net/http does. The first body is closed after the Read has returned, or after one second.
//
// If a response fails while a range request is in flight, the error is delayed as described at [WithFailureStatus].
func WithResume() HTTPOption {
	return optionFunc(func(c *constructorOptions) { c.resume = true })
}

// WithRoute measures a separate latency for the calls that match pattern, and applies policy p to them. It may be given
// several times; the most specific matching pattern applies. A call without a matching pattern uses the latency of its
// host. All routes of a host share the budget of the host.
//
// HTTP patterns have the syntax of [http.ServeMux], such as "POST /api/v1/query" or "catalog.test/items/{id}". A
// pattern with a host applies to all ports of the host.
//
// "/items/" does not match "/items", for which a ServeMux only sends a redirect. Unclean paths such as "//items" and
// "/x/../items" match "/items", but the policy's Hedgeable does not apply to them: some servers treat them as different
// resources.
//
// gRPC patterns are "/pkg.Service/Method", "/pkg.Service/*" for all methods of a service, and "/*" for all methods.
// Every gRPC method has its own latency even without a route.
//
// It panics if the pattern or a field of p is invalid. [New] panics if two patterns conflict.
func WithRoute(pattern string, p Policy) HTTPOrGRPCOption {
	if p.BudgetPercent == NoBudget {
		p.BudgetPercent = 0
		if !p.Off {
			p.Off, p.Hedgeable = true, false
		}
	}
	given := route.Route{Pattern: pattern, Line: callerLine(), Policy: route.Policy(p)}
	if err := given.Validate(); err != nil {
		panic(err)
	}
	return optionFunc(func(c *constructorOptions) {
		if c.routes == nil {
			c.routes = new(route.Table)
		}
		c.routes.Register(given)
	})
}

// callerLine returns the file and line at which the program has called an option function, such as "main.go:12", for
// error texts. The option function itself must call callerLine.
func callerLine() string {
	_, file, line, _ := runtime.Caller(2)
	return fmt.Sprintf("%s:%d", file, line)
}

// WithUnlimited exempts requests that match a pattern from a [Limiter]. They take no slot, are not counted and are
// never rejected, and their responses have no Hedge-Limit header. Use it for health checks, and for handlers that run
// for a long time with little work.
//
// Patterns have the syntax of [http.ServeMux], and apply to HTTP and gRPC: a gRPC call is the request "POST
// /pkg.Service/Method" to its authority. Examples are "/healthz", "GET admin.test/metrics" and "/pkg.Service/Method".
// In addition, "/pkg.Service/*" matches all gRPC calls of a service, and "/*" matches all gRPC calls.
//
// Unclean paths, such as "//healthz", match no pattern, and "/debug/" does not match "/debug". Several patterns may
// match the same request. [Limiter.Handler] treats a request as a gRPC call if it is a POST over HTTP/2 with
// Content-Type application/grpc, and its path has no percent-encoding.
//
// By default, only gRPC health checks and reflection are exempt, see [WithLimitedHealthChecks]. WithUnlimited may be
// given several times. It panics if a pattern is invalid.
func WithUnlimited(patterns ...string) LimiterOption {
	probe := new(pattern.Set)
	for _, p := range patterns {
		if err := probe.Add(p); err != nil {
			panic(fmt.Sprintf("hedge: WithUnlimited(%q): %v", p, err))
		}
	}
	patterns = slices.Clone(patterns)
	return optionFunc(func(c *constructorOptions) { c.unlimited = append(c.unlimited, patterns...) })
}

// WithLimitedHealthChecks makes gRPC health checks and reflection take slots of a [Limiter] like other calls. Use it
// for servers without these services, or with clients that are not trusted.
//
// By default these calls are exempt, as with [WithUnlimited]. They are Check, Watch and List of grpc.health.v1.Health,
// and ServerReflectionInfo of grpc.reflection.v1 and v1alpha.
func WithLimitedHealthChecks() LimiterOption {
	return optionFunc(func(c *constructorOptions) { c.limitsHealthChecks = true })
}

// WithAttemptHeader sends the number of an HTTP hedge, 1 or more, in the named request header, usually [AttemptHeader].
// Servers can then distinguish hedges from primaries. The default, "", sends no header.
//
// Primaries do not carry the header, with one exception: a request that a server makes while it handles a hedge (see
// [Middleware]) carries the number of that hedge. An outgoing request may already have the header or [AttemptHeader],
// for example in a proxy. It is treated as made for a hedge, and is not hedged again.
//
// Hedges to a host with a [Limiter], and requests on behalf of hedges for which the Transport knows the Limiter (see
// [Middleware]), always carry [AttemptHeader]. gRPC needs no such option: hedges always carry grpc-previous-rpc-attempts.
// It panics if name is not a valid header name, or has a meaning
// in HTTP, as Host and Range have.
func WithAttemptHeader(name string) HTTPOption {
	return newSettingOption("WithAttemptHeader", name, func(c *Config) { c.AttemptHeader = name })
}

// WithObserver passes the events of every call to o. It may be given several times. With an Observer, a call without
// hedges reads the clock twice more, in addition to the time that o takes. It panics if o is nil.
func WithObserver(o Observer) AnyOption {
	if o == nil {
		panic("hedge: WithObserver: Observer is nil")
	}
	return optionFunc(func(c *constructorOptions) { c.observers = append(c.observers, o) })
}

// WithName sets the name of a Transport, Interceptor, Hedger or Limiter. Observers that receive events of several
// clients can distinguish them by name: see [KeyInfo], and the label "client" of metrics. The default is no name.
func WithName(name string) AnyOption {
	return optionFunc(func(c *constructorOptions) { c.name = name })
}

// WithLogger logs changes of state to l, and never single calls:
//
//   - hedging of a key is paused, with the reason [DeniedSlow] or [DeniedPaused], and resumed;
//   - the budget of a key is exhausted, and at least half full again;
//   - hedging is disabled or enabled, by SetEnabled, an environment variable or a file of package steering;
//   - an environment variable, or that file, has an invalid value, or a value without effect;
//   - the file has changed the mode, routes or methods;
//   - settings allow no hedge at all, or a budget is less than 1 % of the calls;
//   - Update or the file has changed settings, and Import has loaded an export;
//   - a call is already hedged by an outer client, for the first time;
//   - an [Observer] panics, for the first time;
//   - a gRPC method is not hedged because nothing declares it safe to repeat: once per method.
//
// The same message for the same key is logged at most once in ten seconds, and a message about the key's budget at most
// once in ten minutes. A change within that time is logged later, if the new state lasts. The attribute "dropped"
// counts the changes that were not logged.
//
// A change of a key is detected when the next call of the key ends. The goroutine of that call writes the log message,
// without holding a lock.
//
// Panics have level Error. Pauses, disabling, invalid files, invalid or unused variables, settings that allow no hedge, and
// nested hedging have level Warn. All other messages have level Info.
//
// With the default, nil, [slog.Default] receives panics and warnings, each once, but no warnings about pauses and
// disabling.
func WithLogger(l *slog.Logger) AnyOption {
	return optionFunc(func(c *constructorOptions) { c.logger = l })
}

// WithAudit measures whether hedging reduces the latency of a host, and disables hedging for a host that it harms.
// Hedging harms overloaded servers, where the hedges of all callers add load. The default is no audit. HEDGE_MODE=audit
// in the environment does the same.
//
// The audit is a switchback experiment with time slots of 20 seconds. A hash of the host name determines the slots
// without hedging, so that all clients with WithAudit pause hedging in the same slots. Each client compares its
// latencies in these slots with its latencies in adjacent slots. All calls count; a failure counts as slower than any
// success.
//
// The host name is the host of the URL, the gRPC target, or the key passed to [Do]. Clocks of clients may differ by two
// seconds.
//
// Until there is a verdict, half of the slots have no hedging. A verdict takes seven minutes with many calls per
// second, and 20 to 40 minutes with two calls per second. After an hour without a difference the verdict is
// [AuditSame], and a quarter of the slots has no hedging.
//
// A verdict is retested every 43 minutes on average, and when latencies change. If hedging has no effect, at most 3 %
// of hosts ever get a false verdict by chance.
//
// A host with fewer than 1.4 calls per second gets no verdict, and is hedged as without WithAudit. The verdict is
// [AuditUnclear] if more than 1 % of the calls take longer than 6 s, both with and without hedging.
//
// The verdict applies to all routes and methods of the host. [KeySnapshot], observers, logs and the debug page show it.
// Export and Import include it.
//
// With WithAudit, the estimates [RequestResult.Saved] and [KeySnapshot.Saved] are 0, because the audit measures the
// saved time. It contradicts [WithShadow], which sends no hedges.
func WithAudit() Option {
	return newOption("WithAudit", "", func(c *constructorOptions) { c.audit = true })
}

// WithMethods declares gRPC methods as safe to send twice at the same time. A pattern is "/pkg.Service/Method",
// "/pkg.Service/*" for all methods of a service, or "/*" for all methods. It may be given several times. It panics if a
// pattern has another form.
//
// For other methods the protobuf descriptor decides, if it is registered in the program. A method is hedged if its
// descriptor has the idempotency level NO_SIDE_EFFECTS or binds it to HTTP GET (google.api.http).
//
// A method is not hedged if its descriptor has the level IDEMPOTENT or only other HTTP bindings. The reason is that a
// late idempotent write can undo a newer write of another client.
//
// If nothing is declared, the method name decides, which is a guess; [WithDeclaredMethods] disables it. The name's
// first word must be Get, BatchGet, List, AggregatedList, Search, Lookup, Query, Read, Count, Describe, Find, Is, Has,
// Exists, Estimate or Stat. No other word may denote writing or taking: GetOrCreateUser, ReadModifyWriteRow,
// GetNextTicket and GetVerifyCode are not hedged.
//
// A method is also not hedged if its descriptor contradicts its reading name. Examples are a reply of type Operation,
// and a service in which another method gives back the object that this method returns. docs/design/methods.md has the
// rules and their error rate for real methods. [Interceptor.Hedges] returns the decision for a method and its reason.
func WithMethods(patterns ...string) GRPCOption {
	for _, p := range patterns {
		if !pattern.IsMethodPattern(p) {
			panic(fmt.Sprintf("hedge: WithMethods: %q is not /pkg.Service/Method, /pkg.Service/* or /*", p))
		}
	}
	patterns = slices.Clone(patterns)
	return optionFunc(func(c *constructorOptions) { c.methods = append(c.methods, patterns...) })
}

// A Policy changes settings for the calls that match a route, see [WithRoute]. A field with its zero value changes
// nothing: the setting of the client applies. With the zero Policy, a route only has its own latency.
type Policy struct {
	Off       bool          // true: calls are not hedged; contradicts Hedgeable
	Hedgeable bool          // true: calls are safe to send twice, whatever their method
	FirstByte bool          // true: the first byte of the body decides which attempt wins, see [WithFirstByte]; an error for gRPC
	Delay     time.Duration // fixed hedge delay, in place of the learned delays; 0: not set

	// BudgetPercent limits the hedges per 100 calls of the route, in addition to the budget of the host. It is in [0,
	// 400], or [NoBudget], with which no hedges are sent. 0 sets no limit for the route.
	BudgetPercent float64
}

// NoBudget is the BudgetPercent of a [Policy] with which no hedges are sent. 0 would mean that the route has no limit.
const NoBudget = -1
