package main

import (
	"net/http"
	"time"

	"github.com/cristalhq/hedgedhttp"
	"google.golang.org/grpc"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/internal/race"
)

// A staticClient makes clients of the library hedgedhttp, which send one hedge after a fixed delay. Its value is the
// delay. hedgedhttp has no gRPC client, so this library's race of attempts with the same delay stands for it.
type staticClient time.Duration

func init() {
	registerStrategies(
		staticClient(10*ms).newStrategy(strategy{
			name: "static-10ms", rank: 20, title: "hedgedhttp (10 ms)", about: "hedgedhttp: one hedge after 10 ms, no budget",
		}),
		staticClient(50*ms).newStrategy(strategy{
			name: "static-50ms", rank: 30, about: "hedgedhttp: one hedge after 50 ms, no budget",
		}),
	)
}

func (d staticClient) newStrategy(s strategy) strategy {
	s.virtualModel = "a fixed delay without a budget"
	s.grpcModel = "the same delay on the race of this library"
	return s.withClients(d)
}

func (d staticClient) newTransport(s *clientSetup) (http.RoundTripper, error) {
	return hedgedhttp.NewRoundTripper(time.Duration(d), 2, s.counted)
}

func (d staticClient) newInterceptors(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
	s.delays, s.style = []time.Duration{time.Duration(d)}, new(race.Options[int])
	return nil, nil
}

// policyConstructor returns a constructor of policies for a run in virtual time, which hedge every call after the delay
// d.
func (d staticClient) policyConstructor(virtualSetup) func() virtual.Policy {
	return func() virtual.Policy { return virtual.StaticDelays{time.Duration(d)} }
}
