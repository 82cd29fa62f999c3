//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/test/internal/fixture"
)

func TestObserversSeeUnaryCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := new(recorder), new(recorder)
		c := warmCaller(t, read, hedge.WithObserver(one), hedge.WithObserver(two))
		one.Take()
		_, err := c.get(t.Context(), &invoker{answer: in(time.Second, 5*ms)})
		require.NoError(t, err)
		assert.Equal(t, []string{"start 0", "start 1", "won 1 after 5", "lost 0 after 15", "done by 1 of 2 after 15"}, one.Take())
		assert.Equal(t, hedge.KeyInfo{Protocol: "grpc", Route: read}, two.Key())
		_, err = c.get(t.Context(), &invoker{answer: failsWith(ms, codes.NotFound)})
		require.Error(t, err)
		assert.Equal(t, "done by 0 of 1 after 1", one.Take()[2], "a final status is an answer")
		require.NoError(t, c.intercept(t.Context(), "/a.B/Buy", nil, nil, nil, (&invoker{answer: in(ms)}).invoke))
		assert.Equal(t, []string{"denied: method", "start 0", "won 0 after 1", "done by 0 of 1 after 1"}, one.Take())
	})
}

func TestObserverSeesStreams(t *testing.T) {
	rec, s := new(recorder), new(streamServer)
	client, _ := streamClient(t, s, hedge.WithObserver(rec))
	rec.Take()
	s.slow.Store(1)
	_, _, err := collect(hedge.WithDelay(t.Context(), 20*ms), client)
	require.NoError(t, err)
	events := rec.Take()
	require.Len(t, events, 5)
	assert.Equal(t, "start 0", events[0])
	assert.Contains(t, events[2], "won 1")
	assert.Contains(t, events[3], "lost 0")
	assert.Contains(t, events[4], "done by 1 of 2")

	st, err := client.StreamingOutputCall(t.Context(), three)
	require.NoError(t, err)
	_, err = st.Header()
	require.NoError(t, err)
	assert.Contains(t, rec.Take()[0], "denied: body", "who asks for the header decides for the primary")
}

func TestInnerStreamInterceptorsKnowTheirAttempt(t *testing.T) {
	var mu sync.Mutex
	var seen []int
	s := new(streamServer)
	cc := dial(t, serveGRPC(t, s), grpc.WithChainStreamInterceptor(
		hedge.NewInterceptor(hedge.WithMethods("/*")).Stream(),
		func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			a, ok := hedge.AttemptFromContext(ctx)
			assert.True(t, ok)
			mu.Lock()
			seen = append(seen, a.Number)
			mu.Unlock()
			return next(ctx, d, cc, m, opts...)
		}))
	client := testpb.NewTestServiceClient(cc)
	_, _, err := collect(t.Context(), client)
	require.NoError(t, err)
	s.slow.Store(1)
	_, _, err = collect(hedge.WithDelay(t.Context(), 20*ms), client)
	require.NoError(t, err)
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, []int{0, 0, 1}, seen)
}

func TestObserversDoNotAddAllocations(t *testing.T) {
	if doubles.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	fixture.CheckAllocations(t, "grpc", 1, func(opts ...hedge.Option) func() {
		intercept := hedge.NewUnaryClientInterceptor(hedge.WithOptions(opts...))
		invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
		req, reply := new(testpb.Empty), new(testpb.Empty) // nil could not be divided among attempts
		return func() { _ = intercept(context.Background(), read, req, reply, nil, invoke) }
	})
}

func TestPanicOfLoggerDoesNotEndRPC(t *testing.T) {
	for name, value := range map[string]string{"HEDGE_DISABLED": "yes", "HEDGE_MODE": "?"} {
		t.Setenv(name, value)
	}
	in := hedge.NewInterceptor(hedge.WithLogger(slog.New(fixture.PanickingHandler{})))
	in.SetEnabled(true)
	invoked := false
	require.NoError(t, in.Unary()(t.Context(), "/a.B/Write", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		invoked = true
		return nil
	}))
	assert.True(t, invoked)
	assert.EqualValues(t, 4, in.Snapshot().Stats.ObserverPanics, "two variables, the switch, and the method")
}

// TestClientStateExistsAsLongAsInterceptorFunc keeps no Interceptor, but a function of it.
func TestClientStateExistsAsLongAsInterceptorFunc(t *testing.T) {
	var s doubles.ClientStates
	unary, stream := hedge.NewUnaryClientInterceptor(hedge.WithObserver(&s)), hedge.NewInterceptor(hedge.WithObserver(&s)).Stream()
	for range 5 {
		runtime.GC()
	}
	for _, state := range s.All {
		_, exists := state()
		assert.True(t, exists)
	}
	runtime.KeepAlive(unary)
	runtime.KeepAlive(stream)
	require.Eventually(t, func() bool {
		runtime.GC()
		_, first := s.All[0]()
		_, second := s.All[1]()
		return !first && !second
	}, 20*time.Second, ms)
}
