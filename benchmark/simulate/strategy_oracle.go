package main

import (
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/internal/race"
)

func init() {
	oracle := func(s strategy) strategy {
		s.look.dashed = true
		s.http, s.grpc = oracleHTTP, oracleGRPC
		s.virtual = func(at setting) func() virtual.Policy {
			best := at.world.Oracle(at.seed, s.oracle, at.extra, s.oracleGoal())
			return func() virtual.Policy { return best }
		}
		return s
	}
	enter(
		oracle(strategy{
			name: "oracle-1", rank: 210, oracle: 1, about: "the best static delay at the load of hedge, found afterwards",
			look: look{shade: shade{rgb(0x78716c), rgb(0xa8a29e)}},
		}),
		oracle(strategy{
			name: "oracle-2", rank: 220, oracle: 2, about: "the best static pair of delays at the load of hedge, found afterwards",
			look: look{shade: shade{rgb(0x1c1917), rgb(0xf5f5f4)}, highlight: true},
		}),
	)
}

// oracleGoal returns the quantile of latency that the oracle minimizes.
func (s strategy) oracleGoal() float64 {
	if s.oracle == 1 {
		return 0.99
	}
	return 0.999
}

// oracleHTTP lets losers finish, as this library's transport does over HTTP/1.1,
// so that their connections stay open.
func oracleHTTP(c *contender, p httpPath) (http.RoundTripper, error) {
	c.style = &race.Style{Detach: true, Linger: &race.Linger{Max: 512}, Grace: time.Second}
	return p.counted, nil
}

func oracleGRPC(c *contender, _ grpcPath) ([]grpc.UnaryClientInterceptor, error) {
	c.style = new(race.Style)
	return nil, nil
}

// foresee returns the best static delays for the latencies that calls without
// hedging have met so far, at the extra load that hedge has caused so far.
func (c *contender) foresee(all []*contender) []time.Duration {
	var took []time.Duration
	var extra float64
	for _, other := range all {
		switch other.strategy.name {
		case bare:
			for _, call := range other.finished() {
				if call.Winner >= 0 {
					took = append(took, call.Latency)
				}
			}
		case ours:
			hedges := 0
			for _, call := range other.finished() {
				hedges += int(call.Hedges)
			}
			extra = float64(hedges) / float64(max(other.done, 1))
		}
	}
	if len(took) == 0 {
		return nil
	}
	world := virtual.World{Workers: 1, Requests: min(50_000, 20*len(took)), Model: virtual.Drawn(took)}
	return world.Oracle(c.seed, c.strategy.oracle, extra, c.strategy.oracleGoal())
}
