//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
	"github.com/gohedge/hedge/test/internal/fixture"
)

const read = "/catalog.v1.Catalog/GetItem"

// An invoker is a scripted grpc.UnaryInvoker.
type invoker struct {
	answer func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error

	mu    sync.Mutex
	n     int
	sent  []context.Context
	opts  [][]grpc.CallOption
	reply []any
}

func (i *invoker) invoke(ctx context.Context, _ string, _, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	i.mu.Lock()
	n := i.n
	i.n++
	i.sent = append(i.sent, ctx)
	i.opts = append(i.opts, opts)
	i.reply = append(i.reply, reply)
	i.mu.Unlock()
	return i.answer(ctx, n, reply, opts)
}

// in returns a function that answers attempt n with n after the n-th duration.
func in(ds ...time.Duration) func(context.Context, int, any, []grpc.CallOption) error {
	return func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
		if err := doubles.Sleep(ctx, ds[min(n, len(ds)-1)]); err != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		if m, ok := reply.(*wrapperspb.StringValue); ok {
			m.Value = fmt.Sprint("answer ", n)
		}
		return nil
	}
}

func failsWith(d time.Duration, c codes.Code) func(context.Context, int, any, []grpc.CallOption) error {
	return func(ctx context.Context, n int, _ any, _ []grpc.CallOption) error {
		if err := doubles.Sleep(ctx, d); err != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		return status.Errorf(c, "attempt %d", n)
	}
}

// A caller makes calls by an interceptor that has learned the usual latency of a method.
type caller struct {
	intercept grpc.UnaryClientInterceptor
	stats     *hedge.Stats
}

func warmCaller(t *testing.T, method string, opts ...hedge.GRPCOption) *caller {
	c := new(caller)
	c.intercept = hedge.NewUnaryClientInterceptor(append(opts, hedge.WithStats(&c.stats))...)
	usually := &invoker{answer: in(usual)}
	for range 20 {
		require.NoError(t, c.intercept(t.Context(), method, nil, new(wrapperspb.StringValue), nil, usually.invoke))
	}
	return c
}

func (c *caller) get(ctx context.Context, i *invoker, opts ...grpc.CallOption) (string, error) {
	reply := new(wrapperspb.StringValue)
	err := c.intercept(ctx, read, wrapperspb.String("id"), reply, nil, i.invoke, opts...)
	return reply.Value, err
}

func TestSlowReadIsHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &invoker{answer: in(time.Second, 5*ms)}
		start := time.Now()
		got, err := warmCaller(t, read).get(t.Context(), i)
		require.NoError(t, err)
		assert.Equal(t, "answer 1", got)
		// The caller's reply was filled from the hedge's, and the warm-up took 20 times the usual.
		assert.InDelta(t, 20*usual+usual+5*ms, time.Since(start), float64(ms))
	})
}

func TestInterceptorCallFromDocumentationWorks(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///nowhere",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(hedge.NewUnaryClientInterceptor(
			hedge.WithEstimatedRPS(500),
			hedge.WithBudgetPercent(10),
		)),
	)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}

func TestContextAllowsOrForbidsHedging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		write := "/a.B/Create"
		c := hedge.NewUnaryClientInterceptor()
		for ctx, want := range map[context.Context]int{
			hedge.AllowHedging(hedge.WithDelay(t.Context(), 10*ms)):   2,
			hedge.WithoutHedging(hedge.WithDelay(t.Context(), 10*ms)): 1,
			hedge.WithDelay(t.Context(), 10*ms):                       1,
		} {
			i := &invoker{answer: in(time.Second, 5*ms)}
			require.NoError(t, c(ctx, write, nil, new(wrapperspb.StringValue), nil, i.invoke))
			assert.Equal(t, want, i.n)
		}
	})
}

func TestPrimaryUsesCallersReplyAndOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &invoker{answer: in(usual)}
		c := warmCaller(t, read)
		reply := new(wrapperspb.StringValue)
		var header metadata.MD
		require.NoError(t, c.intercept(t.Context(), read, nil, reply, nil, i.invoke, grpc.Header(&header)))
		assert.Same(t, reply, i.reply[0])
		assert.Same(t, &header, i.opts[0][0].(grpc.HeaderCallOption).HeaderAddr)
	})
}

func TestReplyDoesNotChangeAfterReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fast := range []int{0, 1} {
			var left atomic.Int32
			i := &invoker{answer: func(ctx context.Context, n int, reply any, _ []grpc.CallOption) error {
				defer left.Add(1)
				if n == fast {
					require.NoError(t, doubles.Sleep(ctx, 15*ms))
				} else { // a loser that is slow to leave, and answers
					<-ctx.Done()
					time.Sleep(20 * ms)
				}
				reply.(*wrapperspb.StringValue).Value = fmt.Sprint("answer ", n)
				return nil
			}}
			reply := new(wrapperspb.StringValue)
			c := warmCaller(t, read, hedge.WithMaxHedges(1))
			require.NoError(t, c.intercept(t.Context(), read, wrapperspb.String("id"), reply, nil, i.invoke))
			assert.EqualValues(t, 1+fast, left.Load(), "the primary has ended, which has the caller's reply")
			assert.Equal(t, fmt.Sprint("answer ", fast), reply.Value)
			time.Sleep(100 * ms)
			assert.EqualValues(t, 2, left.Load())
			assert.Equal(t, fmt.Sprint("answer ", fast), reply.Value)
		}
	})
}

// TestHedgeThatIgnoresContextDoesNotDelayCall has a hedge that ignores the end of its context, as an interceptor that
// fetches a token may do.
func TestHedgeThatIgnoresContextDoesNotDelayCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fails := range []error{nil, status.Error(codes.NotFound, "no such item")} {
			c := warmCaller(t, read)
			var mu sync.Mutex
			var seen []string
			i := &invoker{answer: func(ctx context.Context, n int, reply any, _ []grpc.CallOption) error {
				time.Sleep([]time.Duration{2 * usual, 5 * time.Second}[min(n, 1)])
				if n == 0 {
					return fails
				}
				return nil
			}}
			late := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
				err := i.invoke(ctx, method, req, reply, cc, opts...)
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, req.(*wrapperspb.StringValue).Value)
				return err
			}
			start := time.Now()
			req := wrapperspb.String("id")
			assert.Equal(t, fails, c.intercept(t.Context(), read, req, new(wrapperspb.StringValue), nil, late))
			assert.Equal(t, 2*usual, time.Since(start))
			req.Value = "another call's" // the caller has it back
			time.Sleep(time.Minute)
			mu.Lock()
			require.Greater(t, len(seen), 1)
			for _, value := range seen {
				assert.Equal(t, "id", value)
			}
			mu.Unlock()
		}
	})
}

// TestCallerMayReuseRequestAfterCall starts hedges while calls return. The race detector checks it.
func TestCallerMayReuseRequestAfterCall(t *testing.T) {
	c := hedge.NewUnaryClientInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(300), hedge.WithMinDelay(0))
	slow := func(_ context.Context, _ string, req, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		_ = len(req.(*wrapperspb.BytesValue).Value)
		time.Sleep(50 * time.Microsecond)
		return nil
	}
	req, opts := wrapperspb.Bytes(make([]byte, 1<<16)), make([]grpc.CallOption, 1)
	for range 300 {
		clear(req.Value)
		opts[0] = grpc.WaitForReady(true)
		require.NoError(t, c(hedge.WithDelay(t.Context(), 50*time.Microsecond), read, req, new(wrapperspb.BytesValue), nil, slow, opts...))
	}
}

// TestLateTrailerDoesNotReachOtherCall has an interceptor below that returns while its RPC continues.
func TestLateTrailerDoesNotReachOtherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := warmCaller(t, read)
		var late *metadata.MD
		_, err := c.get(t.Context(), &invoker{answer: func(_ context.Context, _ int, _ any, opts []grpc.CallOption) error {
			late = opts[0].(grpc.TrailerCallOption).TrailerAddr
			return status.Error(codes.NotFound, "given up")
		}})
		assert.Equal(t, codes.NotFound, status.Code(err))
		for range 10 { // calls of the same pool
			_, err = c.get(t.Context(), &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
				*late = metadata.Pairs("grpc-retry-pushback-ms", "3600000")
				return failsWith(ms, codes.NotFound)(ctx, n, reply, opts)
			}})
			assert.Equal(t, codes.NotFound, status.Code(err))
		}
		i := &invoker{answer: in(time.Second, 5*ms)}
		_, err = c.get(t.Context(), i)
		require.NoError(t, err)
		assert.Equal(t, 2, i.n, "nobody has pushed back")
	})
}

func TestCallerReceivesWinnersHeaderTrailerAndPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, winner := range []int{0, 1} {
			i := &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
				// As grpc does: every attempt writes to its targets, also when it loses.
				defer func() {
					md := metadata.Pairs("attempt", fmt.Sprint(n))
					for _, o := range opts {
						switch o := o.(type) {
						case grpc.HeaderCallOption:
							*o.HeaderAddr = md
						case grpc.TrailerCallOption:
							*o.TrailerAddr = md
						case grpc.PeerCallOption:
							*o.PeerAddr = peer.Peer{LocalAddr: &net.UnixAddr{Name: fmt.Sprint(n)}}
						}
					}
				}()
				if n != winner {
					<-ctx.Done()
					return status.FromContextError(ctx.Err()).Err()
				}
				return in(15*ms)(ctx, 0, reply, opts)
			}}
			var header, trailer metadata.MD
			var from peer.Peer
			_, err := warmCaller(t, read, hedge.WithMaxHedges(1)).get(t.Context(), i, grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&from))
			require.NoError(t, err)
			want := []string{fmt.Sprint(winner)}
			assert.Equal(t, want, header["attempt"])
			assert.Equal(t, want, trailer["attempt"])
			assert.Equal(t, want[0], from.LocalAddr.String())
		}
	})
}

func TestOnFinishRunsOnceWithFinalError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, i := range []*invoker{{answer: in(time.Second, 5*ms)}, {answer: failsWith(30*ms, codes.Unavailable)}} {
			plain := i.answer
			i.answer = func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
				err := plain(ctx, n, reply, opts)
				for _, o := range opts {
					if f, ok := o.(grpc.OnFinishCallOption); ok {
						f.OnFinish(err)
					}
				}
				return err
			}
			var finished []error
			var trailer metadata.MD
			_, err := warmCaller(t, read).get(t.Context(), i, grpc.WaitForReady(true),
				grpc.OnFinish(func(err error) { finished = append(finished, err) }), grpc.Trailer(&trailer))
			require.Len(t, finished, 1)
			assert.Equal(t, err, finished[0])
			require.Len(t, i.opts[0], 4, "the other options stay")
			assert.IsType(t, grpc.FailFastCallOption{}, i.opts[0][0])
			for _, opts := range i.opts {
				assert.Len(t, opts, cap(opts), "an interceptor below that appends gets room of its own")
			}
		}
	})
}

func TestInterceptorDoesNotModifyCallersOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		room := make([]grpc.CallOption, 1, 8)
		room[0] = grpc.WaitForReady(true)
		i := &invoker{answer: in(time.Second, 5*ms)}
		_, err := warmCaller(t, read).get(t.Context(), i, room...)
		require.NoError(t, err)
		assert.Nil(t, room[:2][1])
		for _, opts := range i.opts {
			assert.Len(t, opts, cap(opts), "an interceptor below that appends gets room of its own")
		}
	})
}

func TestHedgesCarryNumberOfPreviousAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &invoker{answer: in(time.Second)}
		_, err := warmCaller(t, read).get(metadata.AppendToOutgoingContext(t.Context(), "token", "x"), i)
		require.NoError(t, err)
		require.Len(t, i.sent, 3)
		for n, ctx := range i.sent {
			md, _ := metadata.FromOutgoingContext(ctx)
			assert.Equal(t, []string{"x"}, md["token"])
			if n == 0 {
				assert.Empty(t, md["grpc-previous-rpc-attempts"])
			} else {
				assert.Equal(t, []string{fmt.Sprint(n)}, md["grpc-previous-rpc-attempts"])
			}
		}
	})
}

func TestPrimaryWithNonFatalStatusWaitsForHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			nonFatal := code == codes.Unavailable || code == codes.ResourceExhausted || code == codes.Aborted ||
				code == codes.Internal || code == codes.Unknown ||
				code == codes.DeadlineExceeded || code == codes.Canceled || code == codes.DataLoss // of the server's own
			c := warmCaller(t, read, hedge.WithMaxHedges(1))
			i := &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
				if n == 0 {
					return failsWith(15*ms, code)(ctx, n, reply, opts)
				}
				return in(0, 8*ms)(ctx, n, reply, opts)
			}}
			got, err := c.get(t.Context(), i)
			if nonFatal {
				assert.NoError(t, err, code)
				assert.Equal(t, "answer 1", got)
			} else {
				assert.Equal(t, code, status.Code(err), "the primary's other codes are final")
			}
		}
	})
}

func TestWithNonFatalCodesSetsCodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
			if n == 0 {
				return failsWith(15*ms, codes.NotFound)(ctx, n, reply, opts)
			}
			return in(0, 8*ms)(ctx, n, reply, opts)
		}}
		_, err := warmCaller(t, read, hedge.WithNonFatalCodes(codes.NotFound)).get(t.Context(), i)
		assert.NoError(t, err)
	})
}

func TestCallReturnsPrimaryStatusIfAllAttemptsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := status.Error(codes.Unavailable, "primary")
		i := &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
			if n == 0 {
				require.NoError(t, doubles.Sleep(ctx, 30*ms))
				return primary
			}
			return failsWith(30*ms, codes.Unavailable)(ctx, n, reply, opts)
		}}
		_, err := warmCaller(t, read).get(t.Context(), i)
		assert.Same(t, primary, err)
	})
}

func TestCallerDeadlineReturnsDeadlineExceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
		defer cancel()
		_, err := warmCaller(t, read).get(ctx, &invoker{answer: in(time.Hour)})
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
	})
}

func TestResourceExhaustedPausesHedging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := warmCaller(t, read)
		for range fixture.UntilPause {
			_, err := c.get(t.Context(), &invoker{answer: failsWith(0, codes.ResourceExhausted)})
			require.Error(t, err)
		}
		assert.False(t, hedgedAfter(t, c, 20))
		assert.True(t, hedgedAfter(t, c, fixture.UntilResumption))
	})
}

// hedgedAfter reports whether a slow call is hedged after n fast calls.
func hedgedAfter(t *testing.T, c *caller, n int) bool {
	for range n {
		_, err := c.get(t.Context(), &invoker{answer: in(usual)})
		require.NoError(t, err)
	}
	i := &invoker{answer: in(100 * ms)}
	_, err := c.get(t.Context(), i)
	require.NoError(t, err)
	return i.n > 1
}

// TestPushbackStopsFurtherHedgesOfCall has a call for which one more hedge would be due.
func TestPushbackStopsFurtherHedgesOfCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, wait := range []string{"", "0", "1", "-1"} {
			i := &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
				if n == 1 {
					if trailer := opts[len(opts)-1].(grpc.TrailerCallOption); wait != "" {
						*trailer.TrailerAddr = metadata.Pairs("grpc-retry-pushback-ms", wait)
					}
					return status.Error(codes.ResourceExhausted, "busy")
				}
				return in(200*ms)(ctx, 0, reply, opts)
			}}
			_, err := warmCaller(t, read, hedge.WithMaxHedges(3)).get(t.Context(), i)
			require.NoError(t, err)
			assert.Equal(t, 2, i.n, wait)
		}
	})
}

// A bigServer returns as many bytes as the request asks for.
type bigServer struct {
	testpb.UnimplementedTestServiceServer
}

func (bigServer) UnaryCall(_ context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	time.Sleep(200 * ms) // long enough for a hedge on a busy machine
	return &testpb.SimpleResponse{Payload: &testpb.Payload{Body: make([]byte, r.ResponseSize)}}, nil
}

// TestTooLargeMessageIsNotPushback causes grpc's own errors, whose texts the interceptor recognises.
func TestTooLargeMessageIsNotPushback(t *testing.T) {
	target := serveGRPC(t, new(bigServer), grpc.MaxRecvMsgSize(1<<12))
	var stats *hedge.Stats
	cc := dial(t, target, grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor(
		hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100), hedge.WithStats(&stats))))
	client := testpb.NewTestServiceClient(cc)
	small, big := &testpb.SimpleRequest{}, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 1<<13)}}
	for name, call := range map[string]func() (*testpb.SimpleResponse, error){
		"a reply that the client refuses": func() (*testpb.SimpleResponse, error) {
			return client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: 100}, grpc.MaxCallRecvMsgSize(10))
		},
		"a request that the client refuses": func() (*testpb.SimpleResponse, error) {
			return client.UnaryCall(t.Context(), big, grpc.MaxCallSendMsgSize(10))
		},
		"a request that the server refuses": func() (*testpb.SimpleResponse, error) { return client.UnaryCall(t.Context(), big) },
		"a reply that unpacks to too much": func() (*testpb.SimpleResponse, error) {
			return client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: 1 << 14}, grpc.UseCompressor("gzip"), grpc.MaxCallRecvMsgSize(1<<10))
		},
	} {
		_, err := call()
		require.Equal(t, codes.ResourceExhausted, status.Code(err), name)
		before := stats.HedgesSent.Load()
		_, err = client.UnaryCall(hedge.WithDelay(t.Context(), ms), small)
		require.NoError(t, err)
		assert.EqualValues(t, 1, stats.HedgesSent.Load()-before, "hedging goes on after %s", name)
	}
}

func TestInterceptorHonoursServerPushback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, value := range []string{"-1", "soon", "4000"} {
			c := warmCaller(t, read)
			push := func(opts []grpc.CallOption) error {
				for _, o := range opts {
					if o, ok := o.(grpc.TrailerCallOption); ok {
						*o.TrailerAddr = metadata.Pairs("grpc-retry-pushback-ms", value)
					}
				}
				return status.Error(codes.Unavailable, "busy")
			}
			i := &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
				if n == 1 { // the first hedge is pushed back
					return push(opts)
				}
				return in(200*ms)(ctx, 0, reply, opts)
			}}
			_, err := c.get(t.Context(), i)
			require.NoError(t, err)
			if value != "4000" {
				assert.Equal(t, 2, i.n, "no more hedges for this call")
			}
			assert.True(t, hedgedAfter(t, c, 20), "others go on: one answer says little")
			for range fixture.UntilPause {
				_, err := c.get(t.Context(), &invoker{answer: func(_ context.Context, _ int, _ any, opts []grpc.CallOption) error { return push(opts) }})
				require.Error(t, err)
			}
			assert.False(t, hedgedAfter(t, c, 20), value)
			time.Sleep(time.Hour)
			assert.True(t, hedgedAfter(t, c, fixture.UntilResumption), value)
		}
	})
}

func TestReplyTypesAreHedgedOrSentOnce(t *testing.T) {
	type raw struct{ data []byte }
	dynamic := func() any {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName("google.protobuf.StringValue")
		require.NoError(t, err)
		return dynamicpb.NewMessage(d.(protoreflect.MessageDescriptor))
	}
	synctest.Test(t, func(t *testing.T) {
		for name, reply := range map[string]any{"dynamicpb": dynamic(), "pointer": new(raw), "not a pointer": raw{}, "nil": nil} {
			i := &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
				if err := in(time.Second, 5*ms)(ctx, n, nil, opts); err != nil {
					return err
				}
				switch m := reply.(type) {
				case *dynamicpb.Message:
					m.Set(m.Descriptor().Fields().ByName("value"), protoreflect.ValueOfString(fmt.Sprint(n)))
				case *raw:
					m.data = []byte(fmt.Sprint(n))
				}
				return nil
			}}
			c := warmCaller(t, read, hedge.WithMaxHedges(1))
			require.NoError(t, c.intercept(t.Context(), read, nil, reply, nil, i.invoke), name)
			switch m := reply.(type) {
			case *dynamicpb.Message:
				assert.Equal(t, "1", m.Get(m.Descriptor().Fields().ByName("value")).String())
			case *raw:
				assert.Equal(t, "1", string(m.data))
			default:
				assert.Equal(t, 1, i.n, "%s: no hedge for what cannot be copied", name)
			}
		}
	})
}

// A gogo is a message as generated by gogo/protobuf with nullable=false. Package proto cannot copy it.
type gogo struct {
	At    time.Time `protobuf:"bytes,1,opt,name=at,proto3,stdtime" json:"at"`
	Items []item    `protobuf:"bytes,2,rep,name=items,proto3" json:"items"`
}

type item struct {
	N int64 `protobuf:"varint,1,opt,name=n,proto3" json:"n,omitempty"`
}

func (m *gogo) Reset()         { *m = gogo{} }
func (m *gogo) String() string { return "gogo" }
func (*gogo) ProtoMessage()    {}

func (m *gogo) Marshal() ([]byte, error) { return json.Marshal(m) }
func (m *gogo) Unmarshal(b []byte) error { return json.Unmarshal(b, m) }

func TestReplyOfGogoProtobufIsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := &gogo{At: time.Unix(5, 0).UTC(), Items: []item{{7}}}
		i := &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
			if err := in(time.Second, 5*ms)(ctx, n, nil, opts); err != nil {
				return err
			}
			*reply.(*gogo) = *want
			return nil
		}}
		reply := new(gogo)
		require.NoError(t, warmCaller(t, read, hedge.WithMaxHedges(1)).intercept(t.Context(), read, new(gogo), reply, nil, i.invoke))
		assert.Equal(t, want, reply)
		assert.Equal(t, 2, i.n)
	})
}

func TestPanicInHedgedRPCReachesCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := warmCaller(t, read, hedge.WithMaxHedges(1))
		_, err := c.get(t.Context(), &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
			if n > 0 {
				panic("hedge")
			}
			return in(50*ms)(ctx, n, reply, opts)
		}})
		require.NoError(t, err)
		assert.EqualValues(t, 1, c.stats.HedgePanics.Load())
	})
}

// --- over real connections ---

// A slowServer answers UnaryCall with the number of the attempt, and delays attempts that a test selects.
type slowServer struct {
	testpb.UnimplementedTestServiceServer
	slow atomic.Int64 // attempts to delay
	n    atomic.Int64
	by   sync.Map // remote address to count
}

func (s *slowServer) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	n := s.n.Add(1)
	p, _ := peer.FromContext(ctx)
	s.by.Store(p.Addr.String(), true)
	_ = grpc.SetHeader(ctx, metadata.Pairs("n", fmt.Sprint(n)))
	_ = grpc.SetTrailer(ctx, metadata.Pairs("n", fmt.Sprint(n)))
	if s.slow.Add(-1) >= 0 {
		if err := doubles.Sleep(ctx, 3*time.Second); err != nil {
			return nil, err
		}
	}
	return &testpb.SimpleResponse{Username: fmt.Sprint(n)}, nil
}

func (s *slowServer) connections() (n int) {
	s.by.Range(func(any, any) bool { n++; return true })
	return n
}

func TestInterceptorHedgesRPCOverSockets(t *testing.T) {
	s := new(slowServer)
	target := serveGRPC(t, s)
	var stats *hedge.Stats
	cc := dial(t, target, grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor(
		hedge.WithStats(&stats), hedge.WithMethods("/*"), hedge.WithBudgetPercent(100), hedge.WithMaxHedges(1))))
	client := testpb.NewTestServiceClient(cc)
	_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	for range 20 {
		s.slow.Store(1)
		var header, trailer metadata.MD
		var from peer.Peer
		start := time.Now()
		resp, err := client.UnaryCall(hedge.WithDelay(t.Context(), 20*time.Millisecond), &testpb.SimpleRequest{},
			grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&from))
		require.NoError(t, err)
		assert.Less(t, time.Since(start), 2*time.Second)
		// Reply, header and trailer are of one attempt, and stay so.
		want := []string{resp.Username}
		assert.Equal(t, want, header["n"])
		assert.Equal(t, want, trailer["n"])
		assert.Equal(t, target, from.Addr.String())
	}
	assert.GreaterOrEqual(t, stats.HedgeWins.Load(), int64(15), "on a busy machine a hedge may reach the server first, and is the slow one")
	assert.Equal(t, 1, s.connections())
}

func TestHedgesUseHedgeConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(slowServer)
		network, dial := overMemory(t, s)
		second := dial("detour")
		var stats *hedge.Stats
		cc := dial("client", grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor(
			hedge.WithMethods("/*"), hedge.WithHedgeConn(second), hedge.WithMaxHedges(1), hedge.WithStats(&stats))))
		client := testpb.NewTestServiceClient(cc)
		call := func() error {
			s.slow.Store(1)
			ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 20*ms), time.Second)
			defer cancel()
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
			s.slow.Store(0)
			return err
		}
		synctest.Wait()
		assert.Equal(t, connectivity.Ready, second.GetState(), "it is connected before it is needed")
		require.NoError(t, call())
		assert.EqualValues(t, 1, stats.HedgeWins.Load())
		assert.Equal(t, 2, s.connections())

		// gRPC disconnects what is idle for half an hour. A hedge would only queue, but wakes it for those after.
		time.Sleep(time.Hour)
		require.Equal(t, connectivity.Idle, second.GetState())
		assert.Equal(t, codes.DeadlineExceeded, status.Code(call()))
		assert.EqualValues(t, 1, stats.HedgesSent.Load())
		require.NoError(t, call())
		assert.EqualValues(t, 2, stats.HedgeWins.Load())

		network.Link("detour", "server").Set(netsim.Profile{BlackHole: true})
		time.Sleep(time.Hour)
		assert.Equal(t, codes.DeadlineExceeded, status.Code(call()))
		assert.Equal(t, codes.DeadlineExceeded, status.Code(call()), "it does not come back")
		assert.EqualValues(t, 2, stats.HedgesSent.Load())
	})
}

func TestHedgeConnAnswersDuringFrozenConnection(t *testing.T) {
	s := new(slowServer)
	target := serveGRPC(t, s)
	run := func(t *testing.T, second *grpc.ClientConn) error {
		g := newGate(t, target)
		var opts []hedge.GRPCOption
		if second != nil {
			opts = append(opts, hedge.WithHedgeConn(second, g.Addr().String())) // another way to the same service
		}
		cc := dial(t, g.Addr().String(), grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor(append(opts, hedge.WithMethods("/*"))...)))
		client := testpb.NewTestServiceClient(cc)
		for range 20 {
			_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.WaitForReady(true))
			require.NoError(t, err)
		}
		g.Frozen.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		return err
	}
	t.Run("hedge conn", func(t *testing.T) {
		second := dial(t, target)
		_, err := testpb.NewTestServiceClient(second).UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.WaitForReady(true))
		require.NoError(t, err)
		assert.NoError(t, run(t, second))
	})
	t.Run("same connection", func(t *testing.T) { // what it protects from
		assert.Equal(t, codes.DeadlineExceeded, status.Code(run(t, nil)))
	})
}

func TestLatencyKeyIsTargetAndMethod(t *testing.T) {
	s := new(slowServer)
	target := serveGRPC(t, s)
	var names []string
	key := hedge.WithKeyFunc(func(_ context.Context, host, name string) string {
		names = append(names, host+" "+name)
		return host
	})
	cc := dial(t, target, grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor(hedge.WithMethods("/*"), key)))
	_, err := testpb.NewTestServiceClient(cc).UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	assert.Equal(t, []string{"dns:///" + target + " /grpc.testing.TestService/UnaryCall"}, names)
}
