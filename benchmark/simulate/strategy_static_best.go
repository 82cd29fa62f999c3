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
		s.virtual = func(at virtualSetup) func() virtual.Policy {
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

// minimizedQuantile returns the quantile of latency that the best static delays minimize: 0.99 with one hedge, 0.999
// with two.
func (s strategy) minimizedQuantile() float64 {
	if s.bestStaticHedges == 1 {
		return 0.99
	}
	return 0.999
}

// bestStaticHTTP returns the HTTP transport of the strategies with the best static delays. Losing attempts finish, as
// they do with this library's transport over HTTP/1.1, so that their connections stay open.
func bestStaticHTTP(s *clientSetup) (http.RoundTripper, error) {
	s.style = &race.Options[int]{Async: true, LoserPolicy: &lingerPolicy{losers: loser.List{Max: 512}}}
	return s.counted, nil
}

// A lingerPolicy lets losing attempts of a request run on for one second. After a failure of the first attempt, the
// request waits for its hedges.
type lingerPolicy struct{ losers loser.List }

// Lost schedules the cancellation of attempt a, which has lost its race, in one second.
func (l *lingerPolicy) Lost(a *race.Attempt, _ int, _ bool) (ended func()) {
	return l.losers.Add(a, time.Second)
}

func (*lingerPolicy) IsQueued(*race.Attempt) bool { return false }

// Failed makes a request whose first attempt has failed wait for its hedges. It keeps the result v of the failed
// attempt.
func (*lingerPolicy) Failed(_ *race.Attempt, v int, _ error, _ func()) (kept int, wait bool) {
	return v, true
}

// bestStaticGRPC makes gRPC calls race with hedges after the best static delays, without an interceptor of a library.
func bestStaticGRPC(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
	s.style = new(race.Options[int])
	return nil, nil
}
