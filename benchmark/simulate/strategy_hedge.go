package main

import (
	"context"
	"net/http"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
	hedging "github.com/gohedge/hedge/internal/policy"
)

// library is this library with some options.
type library struct {
	maxHedges int                                   // 0: the default
	options   func(*clientSetup) []hedge.HTTPOption // further options over HTTP; nil: none
	warm      bool                                  // Transport.Warm before the first request
	ownConn   bool                                  // WithHedgeConn
	elsewhere bool                                  // gRPC's policy hedge_elsewhere
	audit     bool                                  // WithAudit
}

func init() {
	registerStrategies(
		strategy{
			name: ours, rank: 100, title: "hedge (no option set)", about: "this library, no option set",
		}.withClients(library{}),
		strategy{
			name: limited, rank: 106, about: "this library, and a Limiter before each server", limited: true,
		}.withClients(library{}),
		strategy{
			name: "hedge-1", rank: 110, about: "this library with one hedge per call",
		}.withClients(library{maxHedges: 1}),
		strategy{
			name: "hedge-3", rank: 130, about: "this library with three hedges per call", onRequest: true,
		}.withClients(library{maxHedges: 3}),
	)
	registerStrategies(forScenarios()...)
}

// forScenarios are the strategies with options that few scenarios are about.
func forScenarios() []strategy {
	some := func(options ...hedge.HTTPOption) func(*clientSetup) []hedge.HTTPOption {
		return func(*clientSetup) []hedge.HTTPOption { return options }
	}
	return []strategy{
		library{options: some(hedge.WithFirstByte())}.overHTTP(strategy{
			name: "hedge-first-byte-10", rank: 140, scenarios: []string{"stream"}, about: "this library with WithFirstByte",
		}),
		library{options: some(hedge.WithFirstByte(), hedge.WithBudgetPercent(11.5))}.overHTTP(strategy{
			name: "hedge-first-byte", rank: 150, scenarios: []string{"stream"},
			about: "the same with a budget of 11.5 %, which pays for hedging a slow tenth of calls, and the slow tenth of those hedges",
		}),
		library{options: func(s *clientSetup) []hedge.HTTPOption {
			return []hedge.HTTPOption{hedge.WithHedgeTransport(s.base)}
		}}.overHTTP(strategy{
			name: "hedge-one-pool", rank: 160, scenarios: []string{"frozen-h2"}, about: "this library with its hedges on the connections of the primaries",
		}),
		library{ownConn: true}.overGRPC(strategy{
			name: "hedge-conn", rank: 170, scenarios: []string{"frozen-h2"}, about: "this library with WithHedgeConn",
		}),
		library{elsewhere: true}.overGRPC(strategy{
			name: "hedge-elsewhere", rank: 172, scenarios: elsewhereNames(), about: "this library with the policy hedge_elsewhere",
		}),
		library{audit: true}.inVirtualTime(strategy{
			name: audited, rank: 174, scenarios: longNames(), about: "this library with WithAudit",
		}),
		library{warm: true}.overHTTP(strategy{
			name: "hedge-warm", rank: 180, scenarios: []string{"cold"}, about: "this library, after Transport.Warm",
		}),
		library{options: func(s *clientSetup) []hedge.HTTPOption {
			return []hedge.HTTPOption{hedge.WithReplicas(s.site)}
		}}.overHTTP(strategy{
			name: "hedge-replicas-2s", rank: 190, scenarios: append(elsewhereNames(), "replica"), about: "this library with WithReplicas",
		}),
		library{options: func(s *clientSetup) []hedge.HTTPOption {
			return []hedge.HTTPOption{hedge.WithReplicas(s.site), hedge.WithBurst(10 * sec)}
		}}.overHTTP(strategy{
			name: "hedge-replicas", rank: 200, scenarios: []string{"replica"}, about: "the same with a burst of ten seconds, for pauses",
		}),
	}
}

func (l library) overHTTP(s strategy) strategy {
	s.http = l.http
	return s
}

func (l library) overGRPC(s strategy) strategy {
	s.grpc = l.grpc
	return s
}

func (l library) inVirtualTime(s strategy) strategy {
	s.virtual = l.virtual
	return s
}

func (l library) http(s *clientSetup) (http.RoundTripper, error) {
	next := s.counted
	if s.site != nil {
		next = s.spread // the library must see the *http.Transport to use all of its features
	}
	opts := []hedge.HTTPOption{hedge.WithOptions(l.commonOptions(s)...)}
	if l.options != nil {
		opts = append(opts, l.options(s)...)
	}
	t := hedge.New(next, opts...)
	s.shut = t.CloseIdleConnections
	s.refused = func() (n int) {
		for _, k := range t.Snapshot().Keys {
			for _, denied := range k.Denied {
				n += int(denied)
			}
		}
		return n
	}
	if l.warm {
		return t, t.Warm(context.Background(), 1, s.url)
	}
	return t, nil
}

func (l library) grpc(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
	opts := []hedge.GRPCOption{hedge.WithOptions(l.commonOptions(s)...)}
	if l.elsewhere {
		s.policy = "hedge_elsewhere"
	}
	if l.ownConn {
		conn, err := s.connect(s.site.dialerFrom(detour))
		if err != nil {
			return nil, err
		}
		opts = append(opts, hedge.WithHedgeConn(conn))
	}
	var stats *hedge.Stats
	intercept := hedge.NewUnaryClientInterceptor(append(opts, hedge.WithStats(&stats))...)
	s.refused = func() int { return int(stats.BudgetExhausted.Load()) }
	return []grpc.UnaryClientInterceptor{intercept}, nil
}

// virtual drives the library's engine by the simulation's clock, without an adapter.
func (l library) virtual(s setting) func() virtual.Policy {
	config := usualConfig()
	if l.maxHedges > 0 {
		config.MaxHedges = l.maxHedges
	}
	if s.estimate > 0 {
		config.EstimatedRPS = s.estimate
	}
	config.Audit = l.audit
	return func() virtual.Policy { return virtual.NewLibraryPolicy(config) }
}

// commonOptions returns the options of a client that HTTP and gRPC have.
func (l library) commonOptions(s *clientSetup) []hedge.Option {
	var opts []hedge.Option
	if l.maxHedges > 0 {
		opts = append(opts, hedge.WithMaxHedges(l.maxHedges))
	}
	if s.site != nil {
		opts = append(opts, hedge.WithObserver(s.sent.startObserving()))
	}
	return opts
}

// usualConfig is hedge.DefaultConfig in the terms of the library's engine.
func usualConfig() hedging.Config {
	c := hedge.DefaultConfig()
	return hedging.Config{
		Percentile: c.Percentile, MaxHedges: c.MaxHedges, Share: c.BudgetPercent / 100, EstimatedRPS: c.EstimatedRPS, Burst: c.Burst,
		MinDelay: c.MinDelay, MaxDelay: c.MaxDelay, InitialDelay: c.InitialDelay, MaxPerSecond: c.MaxHedgesPerSecond, MaxKeys: c.MaxKeys, HasShortBucket: true,
	}
}
