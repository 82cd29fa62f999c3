package main

import (
	"net/http"
	"time"

	"github.com/cristalhq/hedgedhttp"
	"google.golang.org/grpc"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/internal/loser"
	"github.com/gohedge/hedge/internal/race"
)

func init() {
	registerStrategies(
		strategy{
			name: baselineStrategy, rank: 10, title: "no hedging", description: "no hedging",
			http: func(s *clientSetup) (http.RoundTripper, error) { return s.countingTransport, nil },
			grpc: func(*clientSetup) ([]grpc.UnaryClientInterceptor, error) { return nil, nil },
			virtual: func(policyConfig) func() virtual.Policy {
				return func() virtual.Policy { return virtual.StaticDelays{} }
			},
		},
		newHedgedhttpStrategy(10*ms, strategy{name: "hedgedhttp-10ms", rank: 20, title: "hedgedhttp (10 ms)", description: "one hedge after 10 ms, no budget"}),
		newHedgedhttpStrategy(50*ms, strategy{name: "hedgedhttp-50ms", rank: 30, description: "one hedge after 50 ms, no budget"}),
	)
}

// newHedgedhttpStrategy returns s with clients of the library hedgedhttp, which send one hedge after a fixed delay.
// hedgedhttp has no gRPC client, so over gRPC this library races attempts after the same delay.
func newHedgedhttpStrategy(delay time.Duration, s strategy) strategy {
	s.virtualModel, s.grpcModel = "a fixed delay without a budget", "the same delay on the race of this library"
	s.http = func(config *clientSetup) (http.RoundTripper, error) {
		return hedgedhttp.NewRoundTripper(delay, 2, config.countingTransport)
	}
	s.grpc = func(config *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
		config.delays, config.raceOptions = []time.Duration{delay}, new(race.Options[int])
		return nil, nil
	}
	s.virtual = func(policyConfig) func() virtual.Policy {
		return func() virtual.Policy { return virtual.StaticDelays{delay} }
	}
	return s
}

func init() {
	bestStatic := func(s strategy) strategy {
		s.http = newBestStaticTransport
		s.grpc = func(at *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
			at.raceOptions = new(race.Options[int])
			return nil, nil
		}
		s.virtual = func(at policyConfig) func() virtual.Policy {
			best := at.simulation.BestStaticDelays(at.seed, s.bestStaticHedges, at.extra, s.minimizedQuantile())
			return func() virtual.Policy { return best }
		}
		return s
	}
	registerStrategies(
		bestStatic(strategy{name: "static-best-1", rank: 210, bestStaticHedges: 1, description: "the best static delay at the load of hedge, found afterwards"}),
		bestStatic(strategy{name: "static-best-2", rank: 220, bestStaticHedges: 2, description: "the best static pair of delays at the load of hedge, found afterwards"}),
	)
}

// minimizedQuantile returns the latency quantile that best static delays minimize: 0.99 with one hedge, 0.999 with two.
func (s strategy) minimizedQuantile() float64 {
	if s.bestStaticHedges == 1 {
		return 0.99
	}
	return 0.999
}

// newBestStaticTransport returns the HTTP transport of strategies whose constant delays are the best in hindsight. Losing
// attempts finish, as they do with the transport of this library over HTTP/1.1, so that their connections stay open.
func newBestStaticTransport(s *clientSetup) (http.RoundTripper, error) {
	s.raceOptions = &race.Options[int]{Async: true, LoserPolicy: &lingerPolicy{losers: loser.List{Max: 512}}}
	return s.countingTransport, nil
}

// A lingerPolicy is a policy of package race. It lets losing attempts run on for one second, so that their connections
// stay open. If the first attempt fails, the request waits for its hedges.
type lingerPolicy struct{ losers loser.List }

func (l *lingerPolicy) Lost(a *race.Attempt, _ int, _ bool) (ended func()) {
	return l.losers.Add(a, time.Second)
}

func (*lingerPolicy) IsQueued(*race.Attempt) bool { return false }

func (*lingerPolicy) Failed(_ *race.Attempt, v int, _ error, _ func()) (kept int, wait bool) {
	return v, true
}
