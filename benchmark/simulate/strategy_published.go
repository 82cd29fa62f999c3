package main

import (
	"context"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge/benchmark/internal/published"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

func init() {
	enter(
		strategy{
			name: "published", rank: 60, about: "the published adaptive policy with its defaults, written anew from its description",
			look: look{shade: shade{rgb(0xbe185d), rgb(0xf472b6)}},
			http: publishedHTTP, grpc: publishedGRPC,
			virtual: func(s setting) func() virtual.Policy {
				rate := s.estimate
				if rate == 0 {
					rate = published.DefaultRPS
				}
				return func() virtual.Policy { return virtual.NewPublished(rate) }
			},
		},
		strategy{
			name: "published-told", rank: 70, about: "the same, given the true request rate", givenRate: true,
			look: look{shade: shade{rgb(0x7e22ce), rgb(0xc084fc)}, highlight: true},
			http: publishedHTTP, grpc: publishedGRPC,
			virtual: func(s setting) func() virtual.Policy {
				rate := trueRate(s.ctx, s.world, s.seed)
				return func() virtual.Policy { return virtual.NewPublished(rate) }
			},
		},
	)
}

func publishedHTTP(c *contender, p httpPath) (http.RoundTripper, error) {
	return &published.RoundTripper{Policy: newPublished(c), Clock: c.watch.read, Next: p.counted}, nil
}

func publishedGRPC(c *contender, _ grpcPath) ([]grpc.UnaryClientInterceptor, error) {
	return []grpc.UnaryClientInterceptor{published.UnaryClientInterceptor(newPublished(c), c.watch.read)}, nil
}

func newPublished(c *contender) *published.Policy {
	rate := float64(published.DefaultRPS)
	if c.strategy.givenRate {
		rate = c.rate
	}
	p := published.New(rate)
	c.refused = p.Refused
	return p
}

// trueRate returns the requests per second that the published policy is given. In
// a closed loop they depend on how fast the policy answers, so this does what an
// operator would do: it measures the rate under the policy's default, and once
// more under the rate that was measured.
func trueRate(ctx context.Context, w virtual.World, seed uint64) float64 {
	if w.Workers == 0 {
		return w.ClientRate()
	}
	w.Episodes = 1
	rate := float64(published.DefaultRPS)
	for range 2 {
		calls := w.Run(ctx, seed, func() virtual.Policy { return virtual.NewPublished(rate) }, nil)
		var end time.Duration
		for _, c := range calls {
			end = max(end, c.Start)
		}
		rate = float64(len(calls)) / max(end.Seconds(), 1e-3)
	}
	return rate
}
