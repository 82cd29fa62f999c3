// Package grpccall makes gRPC calls that may be hedged: unary calls and server streams. It determines the settings of a
// method, sends the attempts, classifies their statuses and delivers the winner's reply. It is the implementation of
// hedge.Interceptor, whose documentation describes the behaviour.
package grpccall

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/calls"
	"github.com/gohedge/hedge/internal/conns"
	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/grpctarget"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/internal/route"
	"github.com/gohedge/hedge/internal/serviceconfig"
	"github.com/gohedge/hedge/observe"
)

// Options are the options of a [Client]. They must not be changed after the Client's first call. The zero value of an
// option selects its default.
type Options struct {
	KeyFunc       func(ctx context.Context, target, method string) string // returns the latency key of a call; nil: the target and the method are the key
	Routes        *route.Table                                            // settings for groups of methods; nil: there are none
	Methods       []string                                                // names of methods that are safe to send twice; a trailing * matches any rest of the name
	DeclaredOnly  bool                                                    // a method whose name suggests that it only reads is not hedged for that reason alone
	HedgeConns    *conns.Set                                              // connections that hedges use; nil: hedges use the caller's connection
	NonFatalCodes map[codes.Code]bool                                     // status codes with which a primary waits for its hedges; nil: the default codes
	AnswerCodes   map[codes.Code]bool                                     // status codes that count as successes, in addition to OK
	ServiceConfig *serviceconfig.Config                                   // service config of targets whose resolver sends none; nil: there is none
}

// A Client makes gRPC calls that may be hedged, over any number of connections. Its interceptors are the result of
// UnaryInterceptor, and InterceptStream. It is safe for concurrent use.
type Client struct {
	*calls.Client
	options       Options
	rules         methodRules
	configs       serviceconfig.Registry // the service configs in force
	calls         sync.Pool              // unused values of type *unaryCall
	buffers       grpcattempt.Buffers    // memory for encoded requests of streams
	idleConnector conns.IdleConnector    // connects idle connections that hedges share with their primaries
}

// defaultNonFatalCodes are the status codes after which another attempt may succeed.
var defaultNonFatalCodes = map[codes.Code]bool{
	codes.Unavailable: true, codes.ResourceExhausted: true, codes.Aborted: true, codes.Internal: true, codes.Unknown: true,
	codes.DeadlineExceeded: true, codes.Canceled: true, codes.DataLoss: true,
}

// NewClient returns a Client, and starts to connect the connections for hedges. The argument shared holds the state
// that HTTP and gRPC clients have in common, such as the latency keys.
func NewClient(shared *calls.Client, o Options) *Client {
	if o.NonFatalCodes == nil {
		o.NonFatalCodes = defaultNonFatalCodes
	}
	in := &Client{Client: shared, options: o}
	in.rules = methodRules{
		routes: o.Routes, methodPatterns: o.Methods, declaredOnly: o.DeclaredOnly,
		nativeHedging: serviceconfig.HasNativeHedging(grpc.Version), log: shared.Log,
	}
	in.configs.SetDefault(o.ServiceConfig, "the program")
	in.logIgnored("", o.ServiceConfig)
	o.HedgeConns.Connect()
	return in
}

// logIgnored logs values of service config c that gRPC accepts and hedging ignores. The target is "" if c applies to
// several targets. It logs nothing if c is nil.
func (in *Client) logIgnored(target string, c *serviceconfig.Config) {
	if c != nil && len(c.IgnoredValues) > 0 {
		in.Log.Log(slog.LevelWarn, "service config: hedging ignores a value that gRPC accepts", slog.String("target", target), slog.Any("ignored", c.IgnoredValues))
	}
}

// SetServiceConfig sets the service config of all targets whose resolver sends no service config. The argument source
// is the name of the function that the program has called, for log records.
func (in *Client) SetServiceConfig(c *serviceconfig.Config, source string) {
	if in.configs.SetDefault(c, source) {
		in.logConfig("", c)
	}
}

// Resolver returns a resolver builder that wraps b. The Client uses the service configs that the resolvers of b send,
// and logs configs that are invalid.
func (in *Client) Resolver(b resolver.Builder) resolver.Builder {
	return (&serviceconfig.ConfigRecorder{Registry: &in.configs, Report: func(target string, c *serviceconfig.Config, err error) {
		if err != nil {
			in.Log.Log(slog.LevelWarn, "service config refused", slog.String("target", target), slog.String("error", err.Error()))
			return
		}
		in.logConfig(target, c)
	}}).WrapBuilder(b)
}

// logConfig logs that service config c now applies to a target. If target is "", it applies to all targets whose
// resolver sends no service config.
func (in *Client) logConfig(target string, c *serviceconfig.Config) {
	in.Log.Log(slog.LevelInfo, "service config in force", slog.String("target", target), slog.Int("hedging_policies", c.CountHedgingPolicies()),
		slog.Bool("retry_throttling", c.Throttling != nil), slog.Any("unknown", c.UnknownFields))
	in.logIgnored(target, c)
}

// MaxHedgesOf returns the largest number of hedges of a call of the method, and a text that names the setting that
// decides it. The result is 0 if calls of the method are not hedged. It ignores service configs that a resolver has
// sent.
func (in *Client) MaxHedgesOf(method string) (most int, why string) {
	rule := in.rules.newRule(in.configs.Default(), method)
	if !rule.hedgeable {
		return 0, rule.reason
	}
	if in.isExcluded(method) {
		return 0, "the file with settings excludes it"
	}
	if in.Settings().MaxHedges > 0 && in.Policy.Config().MaxHedges == 0 {
		return 0, "the budget is 0"
	}
	if most = rule.override.MaxHedges(in.Settings().MaxHedges); most == 0 {
		return 0, "MaxHedges is 0"
	}
	return most, rule.reason
}

// DescribeKey describes the hedging of calls with the latency key of a host (a target) and a route (a method). The
// result source names the hedging policy that applies, or is "" if none applies. The result delays are the hedge delays
// of the next call.
//
// The argument learned holds the learned hedge delays. They apply if there is no hedging policy.
func (in *Client) DescribeKey(host, route string, learned []time.Duration) (source string, delays []time.Duration) {
	active := in.configs.ConfigFor(host)
	if active.Config == nil || route == "" {
		return "", learned
	}
	rule := in.rules.newRule(active, route)
	if rule.hedgingPolicy == nil {
		return "", learned
	}
	source, delays = rule.hedgingPolicy.Path+" of "+active.Source, learned
	d := cmp.Or(rule.policy.Delay, rule.override.Delay)
	switch {
	case len(learned) == 0:
	case rule.override.Fixed || d > 0:
		delays = policy.NewFixedSchedule(d, rule.override.Hedges).Delays
	default:
		delays = policy.ResizeDelays(learned, rule.override.Hedges)
	}
	return source, delays
}

// checkEligibility counts a call of c over cc and decides whether it may be hedged. The argument o holds the overrides
// of its context. The function obstacle reports why the call cannot have several attempts; it is called only if no other reason
// prevents hedging.
//
// The results are the settings m of the method, the fixed hedge delay, and the reason why the call must not be hedged.
// A delay of 0 means that the learned delays apply. The reason is [policy.None] if the call may be hedged. If hedging
// is switched off, m is nil.
func (in *Client) checkEligibility(o race.Overrides, cc *grpc.ClientConn, c race.CallTarget, obstacle func(*methodRule) grpcattempt.Obstacle) (m *methodRule, delay time.Duration, reason observe.Reason) {
	facts := in.CountCall(o.Retry)
	if !facts.SwitchedOff {
		m = in.rules.ruleOf(in.configs.ConfigFor(c.Target), c.Method)
		facts.IsNested = o.Parent.Method == c.Method && o.Parent == c
		if facts.Excluded {
			facts.Excluded = in.isExcluded(c.Method) || !in.Enabled() // a file may have replaced its exclusions and disabled the client
		}
		facts.RouteOff, facts.Unsafe = m.policy.Off, !m.hedgeable
		if delay = o.Delay; delay == 0 {
			delay = m.policy.Delay
		}
		if facts.Reason(o) == policy.None {
			why := grpcattempt.OtherTarget
			if in.options.HedgeConns.AllowsHedges(cc) {
				why = obstacle(m)
			}
			if why == grpcattempt.None {
				return m, delay, policy.None
			}
			facts.NotRepeatable = true
			in.rules.logObstacle(m, c.Method, why)
		}
	}
	return m, delay, in.IneligibleReason(o, facts)
}

// isExcluded reports whether an operator has forbidden hedges of the method.
func (in *Client) isExcluded(method string) bool {
	excludes := in.Settings().ExcludesMethod
	return excludes != nil && excludes(method)
}

// callTargetOf returns a value that identifies calls of the method over connections to the target of cc. The target of
// a nil cc is "".
func callTargetOf(cc *grpc.ClientConn, method string) race.CallTarget {
	return race.CallTarget{Target: grpctarget.Name(cc), Method: method}
}

// beginUnhedged reports the start of a call without hedges to observers. The caller must call the method End of the
// result at the end of the call.
func (in *Client) beginUnhedged(ctx context.Context, c race.CallTarget, reason observe.Reason) policy.UnhedgedCall {
	if !in.Policy.HasObservers() {
		return policy.UnhedgedCall{}
	}
	return in.Policy.BeginUnhedged(ctx, in.keyName(ctx, c), reason)
}

// keyName returns the name of the latency key for calls of c.
func (in *Client) keyName(ctx context.Context, c race.CallTarget) policy.Name {
	if f := in.options.KeyFunc; f != nil {
		return policy.Name{Host: f(ctx, c.Target, c.Method)}
	}
	return policy.Name{Host: c.Target, Route: c.Method}
}

// lacksCredentials reports whether the status err means that a connection has no valid credentials. Such a result
// counts as a failure of a connection for hedges, because hedges over that connection never win.
func (in *Client) lacksCredentials(err error) bool {
	return status.Code(err) == codes.Unauthenticated && !in.options.AnswerCodes[codes.Unauthenticated]
}

// isAnswer reports whether the status err is a regular response of the server, such as OK or NOT_FOUND, and not a
// failure. Only regular responses count for the learned latency.
func (in *Client) isAnswer(err error) bool {
	switch code := status.Code(err); code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return true
	default:
		return in.options.AnswerCodes[code]
	}
}
