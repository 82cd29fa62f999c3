package main

import (
	"net/http"
	"sync/atomic"

	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/failsafegrpc"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// init registers failsafe-go as a strategy with one hedge after a moving quantile of the latency, within its default budget.
func init() {
	registerStrategies(strategy{
		name: "failsafe-quantile", rank: 50, title: "failsafe-go (quantile)", description: "failsafe-go: one hedge after its moving 0.90 quantile, at most 20 % of what is in flight",
		virtualModel: "a model of failsafe-go 0.9.8",
		http: func(s *clientSetup) (http.RoundTripper, error) {
			return failsafehttp.NewRoundTripper(s.countingTransport, newFailsafePolicy[*http.Response](s)), nil
		},
		grpc: func(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
			return []grpc.UnaryClientInterceptor{failsafegrpc.NewUnaryClientInterceptor(newFailsafePolicy[*wrapperspb.Int64Value](s))}, nil
		},
		virtual: func(policyConfig) func() virtual.Policy {
			return func() virtual.Policy { return new(virtual.FailsafePolicy) }
		},
	})
}

// newFailsafePolicy returns the hedge policy of failsafe-go for responses of type R. It sets s.denied to a function
// that returns how many hedges the policy's budget has denied.
func newFailsafePolicy[R any](s *clientSetup) hedgepolicy.HedgePolicy[R] {
	var denied atomic.Int64
	s.denied = func() int { return int(denied.Load()) }
	limit := budget.NewBuilder().OnBudgetExceeded(func(budget.ExceededEvent) { denied.Add(1) }).Build()
	return hedgepolicy.NewBuilderWithDelayQuantile[R](virtual.FailsafeQuantile, virtual.FailsafeAge, virtual.FailsafeThreshold).WithBudget(limit).Build()
}
