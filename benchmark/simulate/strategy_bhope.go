package main

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge/benchmark/internal/bhope"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

func init() {
	registerStrategies(
		strategy{
			name: "bhope", rank: 60, title: "bhope/hedge (defaults)", description: "the policy of bhope/hedge with its defaults, written anew from its description",
			http: newBhopeTransport, grpc: newBhopeInterceptors,
			virtual: func(s policyConfig) func() virtual.Policy {
				rate := cmp.Or(s.estimate, bhope.DefaultRPS)
				return func() virtual.Policy { return virtual.NewBhopePolicy(rate) }
			},
		},
		strategy{
			name: "bhope-tuned", rank: 70, title: "bhope/hedge (tuned)", description: "the policy of bhope/hedge, given the true request rate", needsRate: true,
			http: newBhopeTransport, grpc: newBhopeInterceptors,
			virtual: func(s policyConfig) func() virtual.Policy {
				rate := simulateRequestRate(s.ctx, s.simulation, s.seed)
				return func() virtual.Policy { return virtual.NewBhopePolicy(rate) }
			},
		},
	)
}

func newBhopeTransport(s *clientSetup) (http.RoundTripper, error) {
	return &bhope.RoundTripper{Policy: newBhopePolicy(s), Clock: s.clock, Next: s.countingTransport}, nil
}

func newBhopeInterceptors(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
	return []grpc.UnaryClientInterceptor{bhope.UnaryClientInterceptor(newBhopePolicy(s), s.clock)}, nil
}

// newBhopePolicy returns the policy of github.com/bhope/hedge, whose budget is a share of the request rate that it is
// given. That rate is s.rate, or the policy's default if s.rate is 0.
func newBhopePolicy(s *clientSetup) *bhope.Policy {
	p := bhope.New(cmp.Or(s.rate, bhope.DefaultRPS))
	s.denied = p.DeniedHedges
	return p
}

// simulateRequestRate returns the number of requests per second in simulation w under bhope's policy, which must be
// told this rate in advance. In a closed loop the rate depends on the policy in turn, so the simulation runs twice:
// first with the policy's default rate, then with the rate of the first run.
func simulateRequestRate(ctx context.Context, w virtual.Simulation, seed uint64) float64 {
	if w.Workers == 0 {
		return w.ClientRate()
	}
	w.Episodes = 1
	rate := float64(bhope.DefaultRPS)
	for range 2 {
		calls := w.Run(ctx, seed, func() virtual.Policy { return virtual.NewBhopePolicy(rate) }, nil)
		var end time.Duration
		for _, c := range calls {
			end = max(end, c.Start)
		}
		rate = float64(len(calls)) / max(end.Seconds(), 1e-3)
	}
	return rate
}
