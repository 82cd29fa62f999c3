//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/test/internal/fixture"
)

// A timedStream receives its only message a given time after its request was sent.
type timedStream struct {
	grpc.ClientStream
	ctx   context.Context
	takes time.Duration
	fails error
	ready time.Time
	n     int
}

func (s *timedStream) SendMsg(any) error {
	s.ready = time.Now().Add(s.takes)
	return nil
}
func (s *timedStream) CloseSend() error             { return nil }
func (s *timedStream) Trailer() metadata.MD         { return nil }
func (s *timedStream) Header() (metadata.MD, error) { return nil, nil }
func (s *timedStream) Context() context.Context     { return s.ctx }
func (s *timedStream) RecvMsg(any) error {
	if s.n++; s.n > 1 {
		return io.EOF
	}
	if err := doubles.Sleep(s.ctx, time.Until(s.ready)); err != nil {
		return status.FromContextError(err).Err()
	}
	return s.fails
}

// timed returns a streamer whose n-th stream takes the n-th duration.
func timed(opened *atomic.Int64, takes ...time.Duration) grpc.Streamer {
	return func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
		n := opened.Add(1) - 1
		return &timedStream{ctx: ctx, takes: takes[min(int(n), len(takes)-1)]}, nil
	}
}

var fromServer = &grpc.StreamDesc{ServerStreams: true}

// openTimed opens a stream and sends its request.
func openTimed(t *testing.T, ctx context.Context, h *hedge.Interceptor, streamer grpc.Streamer) grpc.ClientStream {
	s, err := h.Stream()(ctx, fromServer, nil, "/catalog.v1.Catalog/ListItems", streamer)
	require.NoError(t, err)
	require.NoError(t, s.SendMsg(wrapperspb.String("id")))
	require.NoError(t, s.CloseSend())
	return s
}

// readTimed reads a stream with one message to its end.
func readTimed(t *testing.T, s grpc.ClientStream) {
	require.NoError(t, s.RecvMsg(new(wrapperspb.StringValue)))
	require.Equal(t, io.EOF, s.RecvMsg(new(wrapperspb.StringValue)))
}

// TestConcurrentStreamsRecordLatencyOfEach opens many streams and reads them one after another, so that most messages
// arrive before RecvMsg is called.
func TestConcurrentStreamsRecordLatencyOfEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hedge.NewInterceptor()
		var opened atomic.Int64
		for range 100 {
			var all []grpc.ClientStream
			for range 20 {
				all = append(all, openTimed(t, t.Context(), h, timed(&opened, 50*ms)))
			}
			for _, s := range all {
				readTimed(t, s)
			}
		}
		k := h.Snapshot().Keys[0]
		assert.InDelta(t, 50*ms, k.P50, float64(2*ms))
		assert.Zero(t, k.Hedges)
		assert.EqualValues(t, 2000, k.Requests)
	})
}

func TestStreamReadLateIsHedgedWhenSlow(t *testing.T) {
	for name, c := range map[string]struct {
		late, takes, want time.Duration
		opened            int64
	}{
		"read at once":           {0, time.Second, usual + 5*ms, 2},
		"read before it is slow": {4 * ms, time.Second, usual + 5*ms, 2},
		"read when it is slow":   {500 * ms, time.Second, 500*ms + 5*ms, 2},
		"read when it is there":  {500 * ms, 400 * ms, 500 * ms, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := hedge.NewInterceptor(hedge.WithMaxHedges(1))
				var opened atomic.Int64
				for range 20 {
					readTimed(t, openTimed(t, t.Context(), h, timed(&opened, usual)))
				}
				before := h.Snapshot().Keys[0].Samples
				opened.Store(0)
				start := time.Now()
				s := openTimed(t, t.Context(), h, timed(&opened, c.takes, 5*ms))
				time.Sleep(c.late)
				readTimed(t, s)
				assert.InDelta(t, c.want, time.Since(start), float64(2*ms))
				assert.Equal(t, c.opened, opened.Load())
				learned := h.Snapshot().Keys[0].Samples - before
				assert.Equal(t, c.opened == 2, learned == 1, "a message that was there teaches nothing")
			})
		})
	}
}

// An ends is an observer that records how calls end.
type ends struct {
	hedge.NopObserver
	mu     sync.Mutex
	denied []hedge.Reason
	all    []hedge.RequestResult
}

func (s *ends) Denied(_ context.Context, _ hedge.KeyInfo, r hedge.Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = append(s.denied, r)
}

func (s *ends) RequestDone(_ context.Context, _ hedge.KeyInfo, r hedge.RequestResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, r)
}

func TestUnhedgedStreamEndsForObserversWithFirstMessage(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "no backend")
	for name, c := range map[string]struct {
		desc   grpc.StreamDesc
		method string
		fails  error
		header bool // is asked for first
		req    any
		why    hedge.Reason
	}{
		"not known to be safe":     {desc: *fromServer, method: "/catalog.v1.Catalog/WatchItems", why: hedge.DeniedMethod},
		"and fails":                {desc: *fromServer, method: "/catalog.v1.Catalog/WatchItems", fails: unavailable, why: hedge.DeniedMethod},
		"both ways":                {desc: grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method: read, why: hedge.DeniedBody},
		"header first":             {desc: *fromServer, method: read, header: true, why: hedge.DeniedBody},
		"header first, and fails":  {desc: *fromServer, method: read, header: true, fails: unavailable, why: hedge.DeniedBody},
		"request cannot be copied": {desc: *fromServer, method: read, req: new([]byte), why: hedge.DeniedBody},
		"message, then the end":    {desc: *fromServer, method: "/catalog.v1.Catalog/WatchItems", why: hedge.DeniedMethod},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := new(ends)
				h := hedge.NewInterceptor(hedge.WithObserver(o))
				s, err := h.Stream()(t.Context(), &c.desc, nil, c.method,
					func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
						return &timedStream{ctx: ctx, takes: time.Second, fails: c.fails}, nil
					})
				require.NoError(t, err)
				if c.req == nil {
					c.req = wrapperspb.String("id")
				}
				require.NoError(t, s.SendMsg(c.req))
				if c.header {
					_, err = s.Header()
					require.NoError(t, err)
				}
				assert.Empty(t, o.all)
				require.Equal(t, c.fails, s.RecvMsg(new(wrapperspb.StringValue)))
				_ = s.RecvMsg(new(wrapperspb.StringValue))
				require.Len(t, o.all, 1)
				assert.Equal(t, []hedge.Reason{c.why}, o.denied)
				assert.Equal(t, map[bool]int{true: 0, false: -1}[c.fails == nil], o.all[0].Winner)
				assert.Equal(t, time.Second, o.all[0].Latency)
			})
		})
	}
}

// TestStreamsEndedByConnCloseReleaseContexts closes the connection, which is one of the four ways to end a stream.
func TestStreamsEndedByConnCloseReleaseContexts(t *testing.T) {
	for name, h := range map[string]func(hedge.Observer) *hedge.Interceptor{
		"hedged": func(o hedge.Observer) *hedge.Interceptor {
			return hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithObserver(o))
		},
		"sent once": func(o hedge.Observer) *hedge.Interceptor { return hedge.NewInterceptor(hedge.WithObserver(o)) },
	} {
		t.Run(name, func(t *testing.T) {
			o := new(ends)
			s := new(streamServer)
			s.slow.Store(100)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			program := &fixture.CountingContext{Context: ctx}
			cc := dial(t, serveGRPC(t, s), grpc.WithChainStreamInterceptor(h(o).Stream()))
			for range 10 {
				_, err := cc.NewStream(program, fromServer, "/grpc.testing.TestService/StreamingOutputCall", grpc.WaitForReady(true))
				require.NoError(t, err)
			}
			require.NoError(t, cc.Close())
			assert.Eventually(t, func() bool { return program.Children.Load() == 0 }, 10*time.Second, ms, "contexts that hang on the caller's")
			assert.Eventually(t, func() bool {
				o.mu.Lock()
				defer o.mu.Unlock()
				return len(o.all) == 10
			}, 10*time.Second, ms)
			for _, r := range o.all {
				assert.Equal(t, -1, r.Winner)
			}
		})
	}
}

// TestStreamRetriedByInterceptorBelowContinues has an interceptor below that retries, so that RPCs end before the call
// ends.
func TestStreamRetriedByInterceptorBelowContinues(t *testing.T) {
	s := &streamServer{}
	again := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		gone, cancel := context.WithCancel(ctx)
		first, err := streamer(gone, desc, cc, method, opts...)
		if err != nil {
			cancel()
			return nil, err
		}
		cancel()
		_ = first.RecvMsg(new(wrapperspb.StringValue)) // it has ended
		return streamer(ctx, desc, cc, method, opts...)
	}
	cc := dial(t, serveGRPC(t, s), grpc.WithChainStreamInterceptor(hedge.NewInterceptor(hedge.WithMethods("/*")).Stream(), again))
	for name, opts := range map[string][]grpc.CallOption{"plain": nil, "with OnFinish": {grpc.OnFinish(func(error) {})}} {
		got, _, err := collect(t.Context(), testpb.NewTestServiceClient(cc), opts...)
		require.NoError(t, err, name)
		assert.Len(t, got, 3)
	}
}

// An ownContext is a context of a program, which package context observes by its method AfterFunc. It ends when end is called.
type ownContext struct {
	context.Context
	done  chan struct{}
	after map[int]func() // functions to call at the end, by the order of the calls of AfterFunc
	calls int            // number of calls of AfterFunc
}

func newOwnContext(parent context.Context) *ownContext {
	return &ownContext{Context: parent, done: make(chan struct{}), after: make(map[int]func())}
}

func (c *ownContext) Done() <-chan struct{} { return c.done }
func (c *ownContext) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func (c *ownContext) AfterFunc(f func()) (stop func() bool) {
	c.calls++
	n := c.calls
	c.after[n] = f
	return func() bool { delete(c.after, n); return true }
}

// end ends the context with DeadlineExceeded. The contexts that were derived last end first, each a moment before the next.
func (c *ownContext) end() {
	close(c.done)
	for n := c.calls; n > 0; n-- {
		if f := c.after[n]; f != nil {
			f()
			synctest.Wait()
		}
	}
}

func TestStreamEndsWithErrorOfCallersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := newOwnContext(t.Context())
		s, err := hedge.NewInterceptor().Stream()(ctx, fromServer, nil, "/catalog.v1.Catalog/ListItems", func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
			return &stuckStream{ctx: ctx}, nil
		})
		require.NoError(t, err)
		received := make(chan error, 1)
		go func() { received <- s.RecvMsg(new(wrapperspb.StringValue)) }()
		synctest.Wait()
		ctx.end()
		assert.Equal(t, codes.DeadlineExceeded, status.Code(<-received))
	})
}

// TestStreamOpenedInVainReleasesItsContext has functions of the program that end the goroutine.
func TestStreamOpenedInVainReleasesItsContext(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("interceptor") }, "exit": runtime.Goexit} {
		for function, h := range map[string]*hedge.Interceptor{
			"streamer": hedge.NewInterceptor(),
			"KeyFunc":  hedge.NewInterceptor(hedge.WithKeyFunc(func(context.Context, string, string) string { end(); return "" })),
		} {
			ctx, ended := newOwnContext(t.Context()), make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }()
				_, _ = h.Stream()(ctx, fromServer, nil, "/catalog.v1.Catalog/ListItems", func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
					end()
					return nil, nil
				})
			}()
			<-ended
			assert.Empty(t, ctx.after, "%s of %s", name, function)
		}
	}
}
