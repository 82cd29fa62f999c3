package main

import (
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/internal/loser"
	"github.com/gohedge/hedge/internal/race"
)

func init() {
	bestStatic := func(s strategy) strategy {
		s.http, s.grpc = bestStaticHTTP, bestStaticGRPC
		s.virtual = func(at setting) func() virtual.Policy {
			best := at.world.BestStaticDelays(at.seed, s.bestStaticHedges, at.extra, s.minimizedQuantile())
			return func() virtual.Policy { return best }
		}
		return s
	}
	registerStrategies(
		bestStatic(strategy{
			name: "static-best-1", rank: 210, bestStaticHedges: 1, about: "the best static delay at the load of hedge, found afterwards",
		}),
		bestStatic(strategy{
			name: "static-best-2", rank: 220, bestStaticHedges: 2, about: "the best static pair of delays at the load of hedge, found afterwards",
		}),
	)
}

// minimizedQuantile returns the quantile of latency that the delays minimize.
func (s strategy) minimizedQuantile() float64 {
	if s.bestStaticHedges == 1 {
		return 0.99
	}
	return 0.999
}

// bestStaticHTTP lets losers finish, as this library's transport does over HTTP/1.1,
// so that their connections stay open.
func bestStaticHTTP(s *clientSetup) (http.RoundTripper, error) {
	s.style = &race.Options[int]{Async: true, LoserPolicy: &lingering{losers: loser.List{Max: 512}}}
	return s.counted, nil
}

// lingering lets losers run on for a second. It has a failed primary wait for hedges.
type lingering struct{ losers loser.List }

func (l *lingering) Lost(a *race.Attempt, _ int, _ bool) (ended func()) {
	return l.losers.Add(a, time.Second)
}

func (*lingering) IsQueued(*race.Attempt) bool { return false }

func (*lingering) Failed(_ *race.Attempt, v int, _ error, _ func()) (kept int, wait bool) {
	return v, true
}

func bestStaticGRPC(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
	s.style = new(race.Options[int])
	return nil, nil
}
