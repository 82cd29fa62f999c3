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

// A failsafeClientFactory makes clients of the library failsafe-go, which send one hedge within the default budget of
// the library. Its value is the hedge delay. The value 0 means a moving quantile of the latency, which the library
// computes.
type failsafeClientFactory time.Duration

func init() {
	registerStrategies(
		failsafeClientFactory(10*ms).newStrategy(strategy{name: "failsafe-10ms", rank: 40, description: "failsafe-go: one hedge after 10 ms, at most 20 % of what is in flight"}),
		failsafeClientFactory(0).newStrategy(strategy{name: "failsafe-quantile", rank: 50, title: "failsafe-go (quantile)", description: "failsafe-go: one hedge after its moving 0.90 quantile, at most 20 % of what is in flight"}),
	)
}

func (d failsafeClientFactory) newStrategy(s strategy) strategy {
	s.virtualModel = "a model of failsafe-go 0.9.8"
	return s.withClients(d)
}

func (d failsafeClientFactory) newTransport(s *clientSetup) (http.RoundTripper, error) {
	return failsafehttp.NewRoundTripper(s.countingTransport, newFailsafePolicy[*http.Response](d, s)), nil
}

func (d failsafeClientFactory) newInterceptors(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
	policy := newFailsafePolicy[*wrapperspb.Int64Value](d, s)
	return []grpc.UnaryClientInterceptor{failsafegrpc.NewUnaryClientInterceptor(policy)}, nil
}

// newPolicyConstructor returns a function that makes policies for a run in virtual time: models of failsafe-go with the
// delay d.
func (d failsafeClientFactory) newPolicyConstructor(virtualSetup) func() virtual.Policy {
	return func() virtual.Policy { return &virtual.FailsafePolicy{Delay: time.Duration(d)} }
}

// newFailsafePolicy returns the hedge policy of failsafe-go with the delay d, for responses of type R. s receives the
// function that counts refused hedges.
func newFailsafePolicy[R any](d failsafeClientFactory, s *clientSetup) hedgepolicy.HedgePolicy[R] {
	var refused atomic.Int64
	s.refused = func() int { return int(refused.Load()) }
	limit := budget.NewBuilder().OnBudgetExceeded(func(budget.ExceededEvent) { refused.Add(1) }).Build()
	if d > 0 {
		return hedgepolicy.NewBuilderWithDelay[R](time.Duration(d)).WithBudget(limit).Build()
	}
	return hedgepolicy.NewBuilderWithDelayQuantile[R](virtual.FailsafeQuantile, virtual.FailsafeAge, virtual.FailsafeThreshold).
		WithBudget(limit).Build()
}
