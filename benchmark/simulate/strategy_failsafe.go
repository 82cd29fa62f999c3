package main

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/failsafegrpc"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// failsafe is failsafe-go with its budget, and a fixed delay or, at 0, its moving quantile.
type failsafe time.Duration

func init() {
	registerStrategies(
		failsafe(10*ms).newStrategy(strategy{
			name: "failsafe-10ms", rank: 40, about: "failsafe-go: one hedge after 10 ms, at most 20 % of what is in flight",
		}),
		failsafe(0).newStrategy(strategy{
			name: "failsafe-quantile", rank: 50, title: "failsafe-go (quantile)", about: "failsafe-go: one hedge after its moving 0.90 quantile, at most 20 % of what is in flight",
		}),
	)
}

func (d failsafe) newStrategy(s strategy) strategy {
	s.virtualModel = "a model of failsafe-go 0.9.8"
	return s.withClients(d)
}

func (d failsafe) http(s *clientSetup) (http.RoundTripper, error) {
	return failsafehttp.NewRoundTripper(s.counted, failsafePolicy[*http.Response](d, s)), nil
}

func (d failsafe) grpc(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
	policy := failsafePolicy[*wrapperspb.Int64Value](d, s)
	return []grpc.UnaryClientInterceptor{failsafegrpc.NewUnaryClientInterceptor(policy)}, nil
}

func (d failsafe) virtual(setting) func() virtual.Policy {
	return func() virtual.Policy { return &virtual.Failsafe{Delay: time.Duration(d)} }
}

func failsafePolicy[R any](d failsafe, s *clientSetup) hedgepolicy.HedgePolicy[R] {
	var refused atomic.Int64
	s.refused = func() int { return int(refused.Load()) }
	limit := budget.NewBuilder().OnBudgetExceeded(func(budget.ExceededEvent) { refused.Add(1) }).Build()
	if d > 0 {
		return hedgepolicy.NewBuilderWithDelay[R](time.Duration(d)).WithBudget(limit).Build()
	}
	return hedgepolicy.NewBuilderWithDelayQuantile[R](virtual.FailsafeQuantile, virtual.FailsafeAge, virtual.FailsafeThreshold).
		WithBudget(limit).Build()
}
