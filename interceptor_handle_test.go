package hedge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"expvar"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/hedgetest"
)

var _ expvar.Var = (*hedge.Interceptor)(nil)

// callOnce makes one unary call of the given method through in, which i answers.
func callOnce(t *testing.T, in *hedge.Interceptor, i *invoker) {
	t.Helper()
	require.NoError(t, in.Unary()(t.Context(), read, wrapperspb.String("id"), new(wrapperspb.StringValue), nil, i.invoke))
}

func warmInterceptor(t *testing.T, opts ...hedge.Option) *hedge.Interceptor {
	usually := &invoker{answer: in(usual)}
	handle := hedge.NewInterceptor(opts...)
	for range 20 {
		callOnce(t, handle, usually)
	}
	return handle
}

func TestInterceptorCanBeSwitchedAndUpdated(t *testing.T) {
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
		assert.EqualError(t, handle.Update(func(c *hedge.Config) { c.MaxHedges = 9 }), "hedge: Config.MaxHedges: 9 is not in [0, 3]")

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

func TestInterceptorRemembersWhatAnotherLearned(t *testing.T) {
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

// bothServer is a streamServer that takes a while for unary calls.
type bothServer struct {
	streamServer
	unary atomic.Int64
}

func (s *bothServer) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	s.unary.Add(1)
	return &testpb.SimpleResponse{}, hedgetest.Sleep(ctx, 200*ms)
}

// TestUnaryAndStreamShareOneInterceptor drives both over sockets.
func TestUnaryAndStreamShareOneInterceptor(t *testing.T) {
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
