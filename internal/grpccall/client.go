// Package grpccall makes gRPC calls that may be hedged, unary calls and streams from a server: it finds the rule of a method, makes the attempts, judges
// their statuses and delivers the reply of the winner. It implements hedge.Interceptor, which documents the behaviour.
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

// Options are the options of a Client. They do not change once it has made a call. Each zero value selects the default.
type Options struct {
	KeyFunc       func(ctx context.Context, target, method string) string // returns the latency key; nil: it is the target and the method
	Routes        *route.Table                                            // nil: none
	Methods       []string                                                // patterns of methods that are safe to send twice
	DeclaredOnly  bool                                                    // no method is hedged because of its name
	HedgeConns    *conns.Set                                              // connections for hedges; nil: that of the primary
	NonFatalCodes map[codes.Code]bool                                     // codes of a primary that waits for its hedges; nil: defaultNonFatalCodes
	AnswerCodes   map[codes.Code]bool                                     // codes with which any attempt wins, beside OK
	ServiceConfig *serviceconfig.Config                                   // nil: none
}

// A Client makes gRPC calls over any number of connections. It is safe for concurrent use.
type Client struct {
	*calls.Client
	options       Options
	rules         methodRules
	configs       serviceconfig.Registry // the configs in force; an empty one if there is none
	calls         sync.Pool              // of *rpc
	buffers       grpcattempt.Buffers
	idleConnector conns.IdleConnector // of connections that hedges share with their primaries
}

// defaultNonFatalCodes are the codes after which another attempt may do better.
var defaultNonFatalCodes = map[codes.Code]bool{
	codes.Unavailable: true, codes.ResourceExhausted: true, codes.Aborted: true, codes.Internal: true, codes.Unknown: true,
	codes.DeadlineExceeded: true, codes.Canceled: true, codes.DataLoss: true,
}

// NewClient returns a Client, and starts to connect the connections for hedges.
func NewClient(shared *calls.Client, o Options) *Client {
	if o.NonFatalCodes == nil {
		o.NonFatalCodes = defaultNonFatalCodes
	}
	in := &Client{Client: shared, options: o}
	in.rules = methodRules{
		routes: o.Routes, listed: o.Methods, declaredOnly: o.DeclaredOnly,
		nativeHedging: serviceconfig.HasNativeHedging(grpc.Version), log: shared.Log,
	}
	in.configs.SetDefault(o.ServiceConfig, "the program")
	in.logIgnored("", o.ServiceConfig)
	o.HedgeConns.Connect()
	return in
}

// logIgnored logs the values of a config that gRPC accepts and that have no effect on hedging.
func (in *Client) logIgnored(target string, c *serviceconfig.Config) {
	if c != nil && len(c.IgnoredValues) > 0 {
		in.Log.Log(slog.LevelWarn, "service config: hedging ignores a value that gRPC accepts", slog.String("target", target), slog.Any("ignored", c.IgnoredValues))
	}
}

// SetServiceConfig puts a config in force that the program gives, for targets without a config of their own. The source is the name of the function
// that the program has called.
func (in *Client) SetServiceConfig(c *serviceconfig.Config, source string) {
	if in.configs.SetDefault(c, source) {
		in.logConfig("", c)
	}
}

// Resolver returns b, whose service configs the Client obeys as well.
func (in *Client) Resolver(b resolver.Builder) resolver.Builder {
	return (&serviceconfig.ResolverReader{Registry: &in.configs, Report: func(target string, c *serviceconfig.Config, err error) {
		if err != nil {
			in.Log.Log(slog.LevelWarn, "service config refused", slog.String("target", target), slog.String("error", err.Error()))
			return
		}
		in.logConfig(target, c)
	}}).WrapBuilder(b)
}

// logConfig logs that a config is in force; for all targets without one if target is "".
func (in *Client) logConfig(target string, c *serviceconfig.Config) {
	in.Log.Log(slog.LevelInfo, "service config in force", slog.String("target", target), slog.Int("hedging_policies", c.CountHedgingPolicies()),
		slog.Bool("retry_throttling", c.Throttling != nil), slog.Any("unknown", c.UnknownFields))
	in.logIgnored(target, c)
}

// MaxHedgesOf returns the most hedges of a slow call of a method, and the setting that decides it. It is 0 if calls of the method are sent once.
// Service configs that a name resolver delivers are ignored.
func (in *Client) MaxHedgesOf(method string) (most int, why string) {
	rule := in.rules.newRule(in.configs.Default(), method)
	if !rule.hedgeable {
		return 0, rule.why
	}
	if most = rule.terms.MaxHedges(in.Settings().MaxHedges); most == 0 {
		return 0, "MaxHedges is 0"
	}
	return most, rule.why
}

// DescribeKey returns the source of the hedging policy of a key, "" if it has none, and the delays of its next call, given the learned ones.
func (in *Client) DescribeKey(host, route string, learned []time.Duration) (source string, delays []time.Duration) {
	live := in.configs.ConfigFor(host)
	if live.Config == nil || route == "" {
		return "", learned
	}
	rule := in.rules.newRule(live, route)
	if rule.hedging == nil {
		return "", learned
	}
	source, delays = rule.hedging.Path+" of "+live.Source, learned
	d := cmp.Or(rule.policy.Delay, rule.terms.Delay)
	switch {
	case len(learned) == 0:
	case rule.terms.Fixed || d > 0:
		delays = policy.NewFixedSchedule(d, rule.terms.Hedges).Delays
	default:
		delays = policy.ResizeDelays(learned, rule.terms.Hedges)
	}
	return source, delays
}

// checkEligibility counts a call. It returns the rule of its method, the delay that the caller or the rule sets in place of the learned delays (0: none),
// and the reason for which the call is sent once, or [policy.None] if it may be hedged. It calls obstacle only if there is no other reason.
func (in *Client) checkEligibility(ctx context.Context, o race.Overrides, cc *grpc.ClientConn, c race.CallTarget, obstacle func(*methodRule) grpcattempt.Obstacle) (m *methodRule, delay time.Duration, reason observe.Reason) {
	facts := in.CountCall()
	if !facts.SwitchedOff {
		m = in.rules.ruleOf(in.configs.ConfigFor(c.Target), c.Method)
		facts.IsNested = o.Parent == c
		facts.RouteOff, facts.Unsafe = m.policy.Off, !m.hedgeable
		delay = cmp.Or(o.Delay, m.policy.Delay)
		if facts.Reason(o) == policy.None {
			why := grpcattempt.OtherTarget
			if in.options.HedgeConns.AllowsHedges(cc) {
				why = obstacle(m)
			}
			if why == grpcattempt.None {
				return m, delay, policy.None
			}
			facts.Unrepeated = true
			in.rules.logObstacle(m, c.Method, why)
		}
	}
	return m, delay, in.IneligibleReason(o, facts)
}

// callTargetOf returns the target and the method of a call over cc. A nil cc has the target "".
func callTargetOf(cc *grpc.ClientConn, method string) race.CallTarget {
	return race.CallTarget{Target: grpctarget.Of(cc), Method: method}
}

// beginUnhedged reports the start of a call that is sent once to observers, if there are any.
func (in *Client) beginUnhedged(ctx context.Context, c race.CallTarget, reason observe.Reason) policy.Unhedged {
	if !in.Policy.HasObservers() {
		return policy.Unhedged{}
	}
	return in.Policy.BeginUnhedged(ctx, in.keyName(ctx, c), reason)
}

// keyName returns the name of the latency key of a call.
func (in *Client) keyName(ctx context.Context, c race.CallTarget) policy.Name {
	if f := in.options.KeyFunc; f != nil {
		return policy.Name{Host: f(ctx, c.Target, c.Method)}
	}
	return policy.Name{Host: c.Target, Route: c.Method}
}

// lacksCredentials reports whether err says that a connection lacks the credentials that its server demands. That counts against the connection: its
// hedges never win.
func (in *Client) lacksCredentials(err error) bool {
	return status.Code(err) == codes.Unauthenticated && !in.options.AnswerCodes[codes.Unauthenticated]
}

// isAnswer reports whether err, the status of a call, shows the latency of an answer.
func (in *Client) isAnswer(err error) bool {
	switch code := status.Code(err); code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return true
	default:
		return in.options.AnswerCodes[code]
	}
}
