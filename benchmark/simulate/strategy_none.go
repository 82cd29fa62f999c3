package main

import (
	"net/http"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

func init() {
	registerStrategies(strategy{
		name: baseline, rank: 10, title: "no hedging", about: "no hedging",
		http:    func(s *clientSetup) (http.RoundTripper, error) { return s.counted, nil },
		grpc:    func(*clientSetup) ([]grpc.UnaryClientInterceptor, error) { return nil, nil },
		virtual: func(virtualSetup) func() virtual.Policy { return func() virtual.Policy { return virtual.NoHedging{} } },
	})
}
