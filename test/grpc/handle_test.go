//go:build !hedge_nogrpc

package grpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"expvar"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

var _ expvar.Var = (*hedge.Interceptor)(nil)

// callOnce makes one unary call through in, which i answers.
func callOnce(t *testing.T, in *hedge.Interceptor, i *invoker) {
	t.Helper()
	require.NoError(t, in.Unary()(t.Context(), read, wrapperspb.String("id"), new(wrapperspb.StringValue), nil, i.invoke))
}

func warmInterceptor(t *testing.T, opts ...hedge.GRPCOption) *hedge.Interceptor {
	usually := &invoker{answer: in(usual)}
	handle := hedge.NewInterceptor(opts...)
	for range 20 {
		callOnce(t, handle, usually)
	}
	return handle
}

// TestSetEnabledWithoutChangeKeepsPushback calls SetEnabled(true) while hedging is enabled, as programs do when another
// flag changes.
func TestSetEnabledWithoutChangeKeepsPushback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := warmInterceptor(t)
		for range 20 {
			busy := &invoker{answer: failsWith(ms, codes.ResourceExhausted)}
			require.Error(t, h.Unary()(t.Context(), read, nil, new(wrapperspb.StringValue), nil, busy.invoke))
		}
		hedged := func() bool {
			i := &invoker{answer: in(10*usual, 5*ms)}
			callOnce(t, h, i)
			return i.n > 1
		}
		require.False(t, hedged(), "the server has too much to do")
		h.SetEnabled(true)
		assert.False(t, hedged(), "nothing was switched on")
		h.SetEnabled(false)
		h.SetEnabled(true)
		assert.True(t, hedged())
	})
}

func TestInterceptorAppliesSetEnabledAndUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle := warmInterceptor(t, hedge.WithName("catalog"))
		slow := func() int {
			i := &invoker{answer: in(time.Second)}
			callOnce(t, handle, i)
			return i.n
		}
		assert.Equal(t, 3, slow())
		handle.SetEnabled(false)
		assert.False(t, handle.Snapshot().Enabled)
		assert.Equal(t, 1, slow())
		handle.SetEnabled(true)
		require.NoError(t, handle.Update(func(c *hedge.Config) { c.MaxHedges = 1 }))
		assert.Equal(t, 2, slow())
		assert.EqualError(t, handle.Update(func(c *hedge.Config) { c.MaxHedges = 9 }), "hedge: Config.MaxHedges: 9 is not in [0, 4]")

		s := handle.Snapshot()
		assert.Equal(t, "catalog", s.Name)
		assert.Equal(t, "grpc", s.Protocol)
		assert.EqualValues(t, 23, s.Stats.TotalRequests)
		assert.EqualValues(t, 3, s.Stats.HedgesSent)
		require.Len(t, s.Keys, 1)
		assert.Equal(t, read, s.Keys[0].Route)

		var text hedge.Snapshot
		require.NoError(t, json.Unmarshal([]byte(handle.String()), &text))
		assert.Equal(t, s.Stats, text.Stats)
	})
}

func TestInterceptorImportsLearnedLatencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file bytes.Buffer
		require.NoError(t, warmInterceptor(t).Export(&file))
		fresh := hedge.NewInterceptor()
		require.NoError(t, fresh.Import(&file))
		i := &invoker{answer: in(time.Second, 5*ms)}
		callOnce(t, fresh, i)
		assert.Equal(t, 2, i.n, "the first call is hedged")
		assert.ErrorContains(t, fresh.Import(&file), "hedge: Import: ")
	})
}

// A bothServer is a streamServer that also serves slow unary calls.
type bothServer struct {
	streamServer
	unary atomic.Int64
}

func (s *bothServer) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	s.unary.Add(1)
	return &testpb.SimpleResponse{}, doubles.Sleep(ctx, 200*ms)
}

// TestUnaryAndStreamShareInterceptor makes unary calls and streams over sockets.
func TestUnaryAndStreamShareInterceptor(t *testing.T) {
	s := new(bothServer)
	handle := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudget(hedge.NewBudget(1, 1)))
	cc := dial(t, serveGRPC(t, s), grpc.WithChainUnaryInterceptor(handle.Unary()), grpc.WithChainStreamInterceptor(handle.Stream()))
	client := testpb.NewTestServiceClient(cc)
	_, _, err := collect(t.Context(), client) // connects
	require.NoError(t, err)

	// The stream's hedge takes the only token, so that the unary call has none.
	ctx := hedge.WithDelay(t.Context(), 20*ms)
	s.slow.Store(1)
	_, _, err = collect(ctx, client)
	require.NoError(t, err)
	_, err = client.UnaryCall(ctx, &testpb.SimpleRequest{})
	require.NoError(t, err)
	assert.EqualValues(t, 1, s.unary.Load())
	assert.EqualValues(t, 3, s.n.Load())

	known := handle.Snapshot()
	require.Len(t, known.Keys, 2)
	assert.EqualValues(t, 3, known.Stats.TotalRequests)
	assert.EqualValues(t, 1, known.Stats.HedgesSent)
	assert.EqualValues(t, 1, known.Stats.BudgetExhausted)
}

// TestImportKeepsBudgetOfRoute imports a key whose route pattern has a wildcard.
func TestImportKeepsBudgetOfRoute(t *testing.T) {
	for _, pattern := range []string{read, "/catalog.v1.Catalog/*", "/*"} {
		synctest.Test(t, func(t *testing.T) {
			route := hedge.WithRoute(pattern, hedge.Policy{BudgetPercent: 1})
			var export bytes.Buffer
			require.NoError(t, warmInterceptor(t, route).Export(&export))
			var stats *hedge.Stats
			handle := hedge.NewInterceptor(route, hedge.WithStats(&stats))
			require.NoError(t, handle.Import(&export))
			for n := range 2000 {
				i := &invoker{answer: in(usual)}
				if n%20 == 19 {
					i.answer = in(10*usual, 5*ms)
				}
				callOnce(t, handle, i)
			}
			sent := stats.HedgesSent.Load()
			assert.LessOrEqual(t, sent, int64(22), "1 %% of the calls and a burst of two: %s", pattern)
			assert.Positive(t, sent)
		})
	}
}

// TestInterceptorTruncatesLongMethodNames calls methods with long names, which may come from untrusted clients.
func TestInterceptorTruncatesLongMethodNames(t *testing.T) {
	handle := hedge.NewInterceptor(hedge.WithMethods("/*"))
	long := "/p.S/Get" + strings.Repeat("a", 100_000)
	for _, method := range []string{long + "b", long + "c", long + "b"} {
		require.NoError(t, handle.Unary()(t.Context(), method, nil, new(wrapperspb.StringValue), nil, (&invoker{answer: in(0)}).invoke))
	}
	keys := handle.Snapshot().Keys
	require.Len(t, keys, 2, "no two join")
	for _, k := range keys {
		assert.LessOrEqual(t, len(k.Route), 256)
		assert.Equal(t, long[:200], k.Route[:200])
	}
}
