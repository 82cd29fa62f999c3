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

// A failsafeClient makes clients of the library failsafe-go, which send one hedge within the library's default budget.
// Its value is the hedge delay. 0 means a moving quantile of the latency, which the library computes.
type failsafeClient time.Duration

func init() {
	registerStrategies(
		failsafeClient(10*ms).newStrategy(strategy{name: "failsafe-10ms", rank: 40, about: "failsafe-go: one hedge after 10 ms, at most 20 % of what is in flight"}),
		failsafeClient(0).newStrategy(strategy{name: "failsafe-quantile", rank: 50, title: "failsafe-go (quantile)", about: "failsafe-go: one hedge after its moving 0.90 quantile, at most 20 % of what is in flight"}),
	)
}

func (d failsafeClient) newStrategy(s strategy) strategy {
	s.virtualModel = "a model of failsafe-go 0.9.8"
	return s.withClients(d)
}

func (d failsafeClient) newTransport(s *clientSetup) (http.RoundTripper, error) {
	return failsafehttp.NewRoundTripper(s.counted, failsafePolicy[*http.Response](d, s)), nil
}

func (d failsafeClient) newInterceptors(s *clientSetup) ([]grpc.UnaryClientInterceptor, error) {
	policy := failsafePolicy[*wrapperspb.Int64Value](d, s)
	return []grpc.UnaryClientInterceptor{failsafegrpc.NewUnaryClientInterceptor(policy)}, nil
}

// policyConstructor returns a constructor of policies for a run in virtual time: models of failsafe-go with the delay
// d.
func (d failsafeClient) policyConstructor(virtualSetup) func() virtual.Policy {
	return func() virtual.Policy { return &virtual.Failsafe{Delay: time.Duration(d)} }
}

// failsafePolicy returns the hedge policy of failsafe-go with the delay of d, for responses of type R. s receives the
// function that counts refused hedges.
func failsafePolicy[R any](d failsafeClient, s *clientSetup) hedgepolicy.HedgePolicy[R] {
	var refused atomic.Int64
	s.refused = func() int { return int(refused.Load()) }
	limit := budget.NewBuilder().OnBudgetExceeded(func(budget.ExceededEvent) { refused.Add(1) }).Build()
	if d > 0 {
		return hedgepolicy.NewBuilderWithDelay[R](time.Duration(d)).WithBudget(limit).Build()
	}
	return hedgepolicy.NewBuilderWithDelayQuantile[R](virtual.FailsafeQuantile, virtual.FailsafeAge, virtual.FailsafeThreshold).
		WithBudget(limit).Build()
}
