//go:build !hedge_nogrpc

package grpc_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gohedge/hedge"
)

func TestMarkedRetriesOfUnaryCallsEarnNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget, rec := hedge.NewBudget(50, 1), new(recorder)
		c := warmCaller(t, read, hedge.WithBudget(budget), hedge.WithObserver(rec))
		require.True(t, budget.Spend())
		quick := &invoker{answer: in(usual)}
		for range 20 {
			_, err := c.get(hedge.MarkRetry(t.Context()), quick)
			require.NoError(t, err)
			require.True(t, rec.LastResult().IsRetry)
		}
		assert.Zero(t, budget.Tokens())
		assert.EqualValues(t, 20, c.stats.Retries.Load())
		_, err := c.get(t.Context(), quick)
		require.NoError(t, err)
		assert.False(t, rec.LastResult().IsRetry)
		assert.EqualValues(t, 0.5, budget.Tokens())
		require.NoError(t, c.intercept(hedge.MarkRetry(t.Context()), "/a.B/Buy", nil, nil, nil, quick.invoke))
		assert.True(t, rec.LastResult().IsRetry, "also of a call that is not hedged")
	})
}

func TestMarkedRetriesOfStreamsEarnNothing(t *testing.T) {
	rec, budget := new(recorder), hedge.NewBudget(50, 1)
	handle := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudget(budget), hedge.WithObserver(rec))
	client := testpb.NewTestServiceClient(dial(t, serveGRPC(t, new(streamServer)), grpc.WithChainStreamInterceptor(handle.Stream())))
	require.True(t, budget.Spend())
	_, _, err := collect(hedge.MarkRetry(t.Context()), client)
	require.NoError(t, err)
	assert.True(t, rec.LastResult().IsRetry)
	assert.EqualValues(t, 1, handle.Snapshot().Stats.Retries)
	assert.Zero(t, budget.Tokens())
	_, _, err = collect(t.Context(), client)
	require.NoError(t, err)
	assert.False(t, rec.LastResult().IsRetry)
	assert.EqualValues(t, 0.5, budget.Tokens())
	assert.EqualValues(t, 2, handle.Snapshot().Keys[0].Requests)
}
