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
			name: "bhope", rank: 60, title: "bhope/hedge (defaults)", about: "the policy of bhope/hedge with its defaults, written anew from its description",
			http: bhopeHTTP, grpc: bhopeGRPC,
			virtual: func(s virtualSetup) func() virtual.Policy {
				rate := cmp.Or(s.estimate, bhope.DefaultRPS)
				return func() virtual.Policy { return virtual.NewBhopePolicy(rate) }
			},
		},
		strategy{
			name: "bhope-tuned", rank: 70, title: "bhope/hedge (tuned)", about: "the policy of bhope/hedge, given the true request rate", givenRate: true,
			http: bhopeHTTP, grpc: bhopeGRPC,
			virtual: func(s virtualSetup) func() virtual.Policy {
				rate := trueRate(s.ctx, s.simulation, s.seed)
				return func() virtual.Policy { return virtual.NewBhopePolicy(rate) }
			},
		},
	)
}

// bhopeHTTP returns the HTTP transport with the policy of the library bhope/hedge. s has the transport to wrap.
func bhopeHTTP(s *clientSetup) (http.RoundTripper, error) {
	return &bhope.RoundTripper{Policy: newBhopePolicy(s), Clock: s.clock, Next: s.counted}, nil
}

// bhopeGRPC returns the gRPC interceptor with the policy of the library bhope/hedge. s is the setup of the client.
func bhopeGRPC(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
	return []grpc.UnaryClientInterceptor{bhope.UnaryClientInterceptor(newBhopePolicy(s), s.clock)}, nil
}

// newBhopePolicy returns the policy of the library bhope/hedge, with the request rate of s or the library's default. s
// receives the function that counts refused hedges.
func newBhopePolicy(s *clientSetup) *bhope.Policy {
	p := bhope.New(cmp.Or(s.rate, bhope.DefaultRPS))
	s.refused = p.DeniedHedges
	return p
}

// trueRate returns the requests per second of simulation w, which the policy of bhope/hedge is given. In a closed loop
// the rate depends on the policy. trueRate then measures twice, as an operator would: under the policy's default rate,
// and under the rate measured before.
func trueRate(ctx context.Context, w virtual.Simulation, seed uint64) float64 {
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
