package main

import (
	"net/http"
	"time"

	"github.com/cristalhq/hedgedhttp"
	"google.golang.org/grpc"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/internal/race"
)

// static is hedgedhttp with a fixed delay. It speaks HTTP only.
type static time.Duration

func init() {
	registerStrategies(
		static(10*ms).newStrategy(strategy{
			name: "static-10ms", rank: 20, title: "hedgedhttp (10 ms)", about: "hedgedhttp: one hedge after 10 ms, no budget",
		}),
		static(50*ms).newStrategy(strategy{
			name: "static-50ms", rank: 30, about: "hedgedhttp: one hedge after 50 ms, no budget",
		}),
	)
}

func (d static) newStrategy(s strategy) strategy {
	s.virtualModel = "a fixed delay without a budget"
	s.grpcModel = "the same delay on the race of this library"
	return s.withClients(d)
}

func (d static) http(s *clientSetup) (http.RoundTripper, error) {
	return hedgedhttp.NewRoundTripper(time.Duration(d), 2, s.counted)
}

func (d static) grpc(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
	s.delays, s.style = []time.Duration{time.Duration(d)}, new(race.Options[int])
	return nil, nil
}

func (d static) virtual(setting) func() virtual.Policy {
	return func() virtual.Policy { return virtual.StaticDelays{time.Duration(d)} }
}
