package main

import (
	"context"
	"net/http"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
	hedging "github.com/gohedge/hedge/internal/policy"
)

// A hedgeClientFactory makes clients of this library's package hedge. Its fields are options that differ from defaults.
type hedgeClientFactory struct {
	maxHedges int                                   // 0: the default
	options   func(*clientSetup) []hedge.HTTPOption // further options over HTTP; nil: none
	warm      bool                                  // Transport.Warm before the first request
	ownConn   bool                                  // WithHedgeConn
	elsewhere bool                                  // gRPC's policy hedge_elsewhere
	audit     bool                                  // WithAudit
}

func init() {
	registerStrategies(
		hedgeClientFactory{}.completeStrategy(strategy{name: libraryStrategy, rank: 100, title: "hedge (no option set)", description: "this library, no option set"}),
		hedgeClientFactory{}.completeStrategy(strategy{name: limitedStrategy, rank: 106, description: "this library, and a Limiter before each server", limited: true}),
		hedgeClientFactory{maxHedges: 1}.completeStrategy(strategy{name: "hedge-1", rank: 110, description: "this library with one hedge per call"}),
	)
	registerStrategies(libraryVariants()...)
}

// completeStrategy returns s with the factory's functions: for clients over HTTP and gRPC, and policies in virtual
// time.
func (l hedgeClientFactory) completeStrategy(s strategy) strategy {
	s.http, s.grpc, s.virtual = l.newTransport, l.newInterceptors, l.newPolicyConstructor
	return s
}

// libraryVariants returns strategies of this library with further options, each only in scenarios where they matter.
func libraryVariants() []strategy {
	some := func(options ...hedge.HTTPOption) func(*clientSetup) []hedge.HTTPOption {
		return func(*clientSetup) []hedge.HTTPOption { return options }
	}
	return []strategy{{
		name: "hedge-first-byte-10", rank: 140, scenarios: []string{"stream"}, description: "this library with WithFirstByte",
		http: hedgeClientFactory{options: some(hedge.WithFirstByte())}.newTransport,
	}, {
		name: "hedge-first-byte", rank: 150, scenarios: []string{"stream"},
		description: "the same with a budget of 11.5 %, which pays for hedging a slow tenth of calls, and the slow tenth of those hedges",
		http:        hedgeClientFactory{options: some(hedge.WithFirstByte(), hedge.WithBudgetPercent(11.5))}.newTransport,
	}, {
		name: "hedge-conn", rank: 170, scenarios: []string{"frozen-h2"}, description: "this library with WithHedgeConn",
		grpc: hedgeClientFactory{ownConn: true}.newInterceptors,
	}, {
		name: "hedge-elsewhere", rank: 172, scenarios: replicaScenarioNames(), description: "this library with the policy hedge_elsewhere",
		grpc: hedgeClientFactory{elsewhere: true}.newInterceptors,
	}, {
		name: auditedStrategy, rank: 174, scenarios: longScenarioNames(), description: "this library with WithAudit",
		virtual: hedgeClientFactory{audit: true}.newPolicyConstructor,
	}, {
		name: "hedge-warm", rank: 180, scenarios: []string{"cold"}, description: "this library, after Transport.Warm",
		http: hedgeClientFactory{warm: true}.newTransport,
	}, {
		name: "hedge-replicas-2s", rank: 190, scenarios: append(replicaScenarioNames(), "replica"), description: "this library with WithReplicas",
		http: hedgeClientFactory{options: func(s *clientSetup) []hedge.HTTPOption {
			return []hedge.HTTPOption{hedge.WithReplicas(s.serverLocation)}
		}}.newTransport,
	}, {
		name: "hedge-replicas", rank: 200, scenarios: []string{"replica"}, description: "the same with a burst of ten seconds, for pauses",
		http: hedgeClientFactory{options: func(s *clientSetup) []hedge.HTTPOption {
			return []hedge.HTTPOption{hedge.WithReplicas(s.serverLocation), hedge.WithBurst(10 * sec)}
		}}.newTransport,
	}}
}

func (l hedgeClientFactory) newTransport(s *clientSetup) (http.RoundTripper, error) {
	next := s.countingTransport
	if s.serverLocation != nil {
		next = s.replicaTransport // the library must see the *http.Transport to use all of its features
	}
	opts := []hedge.HTTPOption{hedge.WithOptions(l.commonOptions(s)...)}
	if l.options != nil {
		opts = append(opts, l.options(s)...)
	}
	t := hedge.New(next, opts...)
	s.closeClient = t.CloseIdleConnections
	s.denied = func() (n int) {
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

func (l hedgeClientFactory) newInterceptors(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
	opts := []hedge.GRPCOption{hedge.WithOptions(l.commonOptions(s)...)}
	if l.elsewhere {
		s.policy = "hedge_elsewhere"
	}
	if l.ownConn {
		conn, err := s.connect(s.serverLocation.newDialFunc(detourHost))
		if err != nil {
			return nil, err
		}
		opts = append(opts, hedge.WithHedgeConn(conn))
	}
	var stats *hedge.Stats
	intercept := hedge.NewUnaryClientInterceptor(append(opts, hedge.WithStats(&stats))...)
	s.denied = func() int { return int(stats.BudgetExhausted.Load()) }
	return []grpc.UnaryClientInterceptor{intercept}, nil
}

// newPolicyConstructor returns a function that makes this library's policy for each simulated client in virtual time.
func (l hedgeClientFactory) newPolicyConstructor(s policyConfig) func() virtual.Policy {
	config := defaultHedgingConfig()
	if l.maxHedges > 0 {
		config.MaxHedges = l.maxHedges
	}
	if s.estimate > 0 {
		config.EstimatedRPS = s.estimate
	}
	config.Audit = l.audit
	return func() virtual.Policy { return virtual.NewLibraryPolicy(config) }
}

func (l hedgeClientFactory) commonOptions(s *clientSetup) (opts []hedge.Option) {
	if l.maxHedges > 0 {
		opts = append(opts, hedge.WithMaxHedges(l.maxHedges))
	}
	if s.serverLocation != nil {
		opts = append(opts, hedge.WithObserver(s.sent.asObserver()))
	}
	return opts
}

// defaultHedgingConfig converts hedge.DefaultConfig to the configuration of the internal package that decides about hedges.
func defaultHedgingConfig() hedging.Config {
	c := hedge.DefaultConfig()
	return hedging.Config{
		Percentile: c.Percentile, MaxHedges: c.MaxHedges, Share: c.BudgetPercent / 100, EstimatedRPS: c.EstimatedRPS, Burst: c.Burst,
		MinDelay: c.MinDelay, MaxDelay: c.MaxDelay, InitialDelay: c.InitialDelay, MaxPerSecond: c.MaxHedgesPerSecond, MaxKeys: c.MaxKeys, HasShortBucket: true,
	}
}
