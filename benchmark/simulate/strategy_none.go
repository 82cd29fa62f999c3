package main

import (
	"net/http"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

func init() {
	enter(strategy{
		name: bare, rank: 10, about: "no hedging",
		look:    look{shade: shade{rgb(0x6b7280), rgb(0x9ca3af)}, highlight: true},
		http:    func(_ *contender, p httpPath) (http.RoundTripper, error) { return p.counted, nil },
		grpc:    func(*contender, grpcPath) ([]grpc.UnaryClientInterceptor, error) { return nil, nil },
		virtual: func(setting) func() virtual.Policy { return func() virtual.Policy { return virtual.None{} } },
	})
}
