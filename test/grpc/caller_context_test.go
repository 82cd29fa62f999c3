//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gohedge/hedge"
	hedgegrpc "github.com/gohedge/hedge/hedgetest/grpctest"
	"github.com/gohedge/hedge/internal/grpctest"
)

// A reusedContext is a caller's context that the caller reuses after the call. It counts uses by the call after that.
type reusedContext struct {
	context.Context
	over atomic.Bool
	late atomic.Int64
}

func (c *reusedContext) use() {
	if c.over.Load() {
		c.late.Add(1)
	}
}

func (c *reusedContext) Done() <-chan struct{}       { c.use(); return c.Context.Done() }
func (c *reusedContext) Err() error                  { c.use(); return c.Context.Err() }
func (c *reusedContext) Deadline() (time.Time, bool) { c.use(); return c.Context.Deadline() }
func (c *reusedContext) Value(key any) any {
	c.use()
	if key == (tenantKey{}) {
		return "tenant"
	}
	return c.Context.Value(key)
}

type tenantKey struct{}

// useContext calls all methods of the context of an attempt.
func useContext(ctx context.Context) {
	_ = ctx.Value("something else")
	_, _ = ctx.Deadline()
	_ = ctx.Err()
	_, cancel := context.WithCancel(ctx)
	cancel()
}

// slowToEnd returns interceptors that use the context of an attempt before it starts, and some time after a hedge has
// ended.
func slowToEnd(t *testing.T) []grpc.DialOption {
	after := func(ctx context.Context) {
		if a, _ := hedge.AttemptFromContext(ctx); a.Number > 0 && ctx.Err() != nil {
			time.Sleep(time.Second)
		}
		assert.Equal(t, "tenant", ctx.Value(tenantKey{}), "which was asked for before")
		useContext(ctx)
	}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			assert.Equal(t, "tenant", ctx.Value(tenantKey{}))
			defer after(ctx)
			return invoker(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			assert.Equal(t, "tenant", ctx.Value(tenantKey{}))
			st, err := streamer(ctx, desc, cc, method, opts...)
			return &endedStream{ClientStream: st, after: func() { after(ctx) }}, err
		}),
	}
}

// An endedStream calls the function after when RecvMsg has returned.
type endedStream struct {
	grpc.ClientStream
	after func()
}

func (s *endedStream) RecvMsg(m any) error {
	defer s.after()
	return s.ClientStream.RecvMsg(m)
}

// A contextObserver uses the contexts of all events.
type contextObserver struct{ *recorder }

func (o contextObserver) AttemptDone(ctx context.Context, key hedge.KeyInfo, r hedge.AttemptResult) {
	useContext(ctx)
	o.recorder.AttemptDone(ctx, key, r)
}

func (o contextObserver) Denied(ctx context.Context, key hedge.KeyInfo, why hedge.Reason) {
	useContext(ctx)
	o.recorder.Denied(ctx, key, why)
}

// callsToTheEnd make a unary call, or open a stream and read it to its end.
var callsToTheEnd = map[string]func(context.Context, testpb.TestServiceClient) error{
	"unary": firstMessages["unary"],
	"stream": func(ctx context.Context, c testpb.TestServiceClient) error {
		st, err := c.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
		if err == nil {
			_, err = st.Recv()
		}
		if err == nil {
			if _, err = st.Recv(); err == io.EOF {
				err = nil
			}
		}
		return err
	},
}

// TestInterceptorLosersDoNotUseCallerContextAfterCall has interceptors and observers that use the contexts of losers
// after the call.
func TestInterceptorLosersDoNotUseCallerContextAfterCall(t *testing.T) {
	for name, plan := range map[string][]plannedAnswer{
		"a hedge loses":                      {{after: 100 * ms}, {after: time.Hour}},
		"the primary loses":                  {{after: time.Hour}, {after: 10 * ms}, {after: time.Hour}},
		"the primary fails and a hedge wins": {{after: 30 * ms, code: codes.Unavailable}, {after: 11 * ms}, {after: time.Hour}},
		"every attempt fails":                {{after: 40 * ms, code: codes.NotFound}, {after: time.Hour}},
	} {
		for kind, call := range callsToTheEnd {
			t.Run(name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, rec := &plannedService{plan: plan}, new(recorder)
					server := hedgegrpc.NewServer(t, func(srv *grpc.Server) { testpb.RegisterTestServiceServer(srv, s) })
					in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithObserver(contextObserver{rec}))
					cc := server.Dial(append([]grpc.DialOption{grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream())}, slowToEnd(t)...)...)
					cc.Connect()
					synctest.Wait()
					parent, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 20*ms), time.Hour)
					defer cancel()
					ctx := &reusedContext{Context: parent}
					err := call(ctx, testpb.NewTestServiceClient(cc))
					ctx.over.Store(true)
					assert.Equal(t, name == "every attempt fails", err != nil, "%v", err)
					time.Sleep(time.Minute)
					assert.EqualValues(t, 2, s.attempts.Load())
					assert.Zero(t, ctx.late.Load(), "%v", rec.Take())
				})
			})
		}
	}
}

// TestInterceptorRefusedHedgeDoesNotUseCallerContextAfterCall has a balancer without another backend for the hedge. An
// interceptor below reports the refusal after the call.
func TestInterceptorRefusedHedgeDoesNotUseCallerContextAfterCall(t *testing.T) {
	for kind, call := range calls {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, rec := grpctest.NewBackends(t, 2), new(recorder)
				in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithObserver(contextObserver{rec}))
				wait := func(ctx context.Context) {
					if a, _ := hedge.AttemptFromContext(ctx); a.Number > 0 {
						time.Sleep(time.Second)
					}
				}
				parent, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 20*ms), time.Hour)
				defer cancel()
				ctx := &reusedContext{Context: parent}
				client, _ := f.Client(t, grpctest.HedgeElsewhereConfig("test_sticky"), in,
					grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
						defer wait(ctx)
						return invoker(ctx, method, req, reply, cc, opts...)
					}),
					grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
						defer wait(ctx)
						return streamer(ctx, desc, cc, method, opts...)
					}))
				f.Delays[0].Store(int64(100 * ms))
				f.Delays[1].Store(int64(100 * ms))
				rec.Take()
				_, err := f.RecordCall(ctx, call(client))
				ctx.over.Store(true)
				require.NoError(t, err)
				time.Sleep(time.Minute)
				assert.Contains(t, rec.Take(), "denied: same-backend")
				assert.Zero(t, ctx.late.Load())
			})
		})
	}
}
