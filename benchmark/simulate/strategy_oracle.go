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
	oracle := func(s strategy) strategy {
		s.http, s.grpc = oracleHTTP, oracleGRPC
		s.virtual = func(at setting) func() virtual.Policy {
			best := at.world.BestStaticDelays(at.seed, s.oracle, at.extra, s.oracleGoal())
			return func() virtual.Policy { return best }
		}
		return s
	}
	registerStrategies(
		oracle(strategy{
			name: "static-best-1", rank: 210, oracle: 1, about: "the best static delay at the load of hedge, found afterwards",
		}),
		oracle(strategy{
			name: "static-best-2", rank: 220, oracle: 2, about: "the best static pair of delays at the load of hedge, found afterwards",
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
func oracleHTTP(s *seat) (http.RoundTripper, error) {
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

func oracleGRPC(s *seat) ([]grpc.UnaryClientInterceptor, error) {
	s.style = new(race.Options[int])
	return nil, nil
}
