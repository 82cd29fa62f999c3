//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"slices"
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

	"github.com/gohedge/hedge"
	hedgegrpc "github.com/gohedge/hedge/hedgetest/grpctest"
)

// A plannedService answers attempt n by plan[n], and further attempts by the last element.
type plannedService struct {
	testpb.UnimplementedTestServiceServer
	plan     []plannedAnswer
	attempts atomic.Int64
}

// A plannedAnswer describes the answer to one attempt.
type plannedAnswer struct {
	after   time.Duration
	code    codes.Code
	trailer metadata.MD
	nested  bool // the server sends a header, and then the status of a call of its own that has timed out
}

func (s *plannedService) answer(ctx context.Context) (metadata.MD, error) {
	p := s.plan[min(int(s.attempts.Add(1)), len(s.plan))-1]
	select {
	case <-time.After(p.after):
		if p.nested {
			_ = grpc.SendHeader(ctx, metadata.Pairs("server", "1"))
			return nil, status.FromContextError(context.DeadlineExceeded).Err()
		}
		return p.trailer, status.Error(p.code, "planned")
	case <-ctx.Done():
		time.Sleep(500 * ms) // the client must not get this answer
		return nil, ctx.Err()
	}
}

func (s *plannedService) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return new(testpb.Empty), nil
}

func (s *plannedService) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	md, err := s.answer(ctx)
	_ = grpc.SetTrailer(ctx, md)
	return new(testpb.SimpleResponse), err
}

func (s *plannedService) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, out testpb.TestService_StreamingOutputCallServer) error {
	md, err := s.answer(out.Context())
	out.SetTrailer(md)
	if err != nil {
		return err
	}
	return out.Send(new(testpb.StreamingOutputCallResponse))
}

// firstMessages make a unary call, or open a stream and receive its first message.
var firstMessages = map[string]func(context.Context, testpb.TestServiceClient) error{
	"unary": func(ctx context.Context, c testpb.TestServiceClient) error {
		_, err := c.UnaryCall(ctx, new(testpb.SimpleRequest))
		return err
	},
	"stream": func(ctx context.Context, c testpb.TestServiceClient) error {
		s, err := c.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
		if err == nil {
			_, err = s.Recv()
		}
		return err
	},
}

// timeoutBelow returns dial options with interceptors below hedging that set a timeout for each attempt.
func timeoutBelow(d time.Duration) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx, cancel := context.WithTimeout(ctx, d)
			defer cancel()
			return invoker(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			ctx, cancel := context.WithTimeout(ctx, d)
			context.AfterFunc(ctx, cancel)
			return streamer(ctx, desc, cc, method, opts...)
		}),
	}
}

const timeoutConfig = `{"methodConfig":[{"name":[{}],"timeout":"0.3s"}]}`

// TestInterceptorEndsCallAtMethodTimeout has calls of 300 ms with a hedge every 70 ms.
func TestInterceptorEndsCallAtMethodTimeout(t *testing.T) {
	hangs := plannedAnswer{after: time.Hour}
	policy := []hedge.GRPCOption{hedge.WithBudgetPercent(400), hedge.WithServiceConfig(
		`{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":4,"hedgingDelay":"0.07s","nonFatalStatusCodes":["UNAVAILABLE","DEADLINE_EXCEEDED"]}}]}`)}
	learned := []hedge.GRPCOption{hedge.WithMethods("/*"), hedge.WithMaxHedges(4), hedge.WithBudgetPercent(400)}
	inConfig, below := []grpc.DialOption{grpc.WithDefaultServiceConfig(timeoutConfig)}, timeoutBelow(300*ms)
	for name, c := range map[string]struct {
		opts  []hedge.GRPCOption
		dial  []grpc.DialOption
		plan  []plannedAnswer
		code  codes.Code
		after time.Duration
	}{
		"every attempt hangs":                           {learned, inConfig, []plannedAnswer{hangs}, codes.DeadlineExceeded, 300 * ms},
		"every attempt hangs, with a policy":            {policy, inConfig, []plannedAnswer{hangs}, codes.DeadlineExceeded, 300 * ms},
		"a hedge answers in time":                       {learned, inConfig, []plannedAnswer{hangs, {after: 229 * ms}, hangs}, codes.OK, 299 * ms},
		"a hedge answers too late":                      {learned, inConfig, []plannedAnswer{hangs, {after: 231 * ms}, hangs}, codes.DeadlineExceeded, 300 * ms},
		"the primary fails, and hedges answer too late": {learned, inConfig, []plannedAnswer{{after: 285 * ms, code: codes.Unavailable}, {after: 231 * ms}, hangs}, codes.Unavailable, 300 * ms},
		"of an interceptor, with a policy":              {policy, below, []plannedAnswer{hangs}, codes.DeadlineExceeded, 300 * ms},
		"the server puts off hedges beyond it": {policy, inConfig, []plannedAnswer{
			{after: 10 * ms, code: codes.Unavailable, trailer: metadata.Pairs("grpc-retry-pushback-ms", "400")}, {}}, codes.Unavailable, 10 * ms},
		"of an interceptor":                        {learned, below, []plannedAnswer{hangs}, codes.DeadlineExceeded, 300 * ms},
		"of an interceptor, a hedge is too late":   {learned, below, []plannedAnswer{hangs, {after: 231 * ms}, hangs}, codes.DeadlineExceeded, 300 * ms},
		"of the server, which is no timeout of it": {learned, inConfig, []plannedAnswer{{after: 100 * ms, code: codes.DeadlineExceeded}, {after: 50 * ms}}, codes.OK, 120 * ms},
		"of a call of the server":                  {learned, inConfig, []plannedAnswer{{after: 100 * ms, nested: true}, {after: 50 * ms}}, codes.OK, 120 * ms},
		"of a call of the server, with a policy":   {policy, nil, []plannedAnswer{{after: 100 * ms, nested: true}, {after: 50 * ms}}, codes.OK, 120 * ms},
	} {
		for kind, call := range firstMessages {
			t.Run(name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &plannedService{plan: c.plan}
					server := hedgegrpc.NewServer(t, func(srv *grpc.Server) { testpb.RegisterTestServiceServer(srv, s) })
					in := hedge.NewInterceptor(c.opts...)
					client := testpb.NewTestServiceClient(server.Dial(slices.Concat(
						[]grpc.DialOption{grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream())}, c.dial)...))
					_, err := client.EmptyCall(t.Context(), new(testpb.Empty)) // connects
					require.NoError(t, err)
					ctx, begun := hedge.WithDelay(t.Context(), 70*ms), time.Now()
					err = call(ctx, client)
					assert.Equal(t, c.code, status.Code(err), "%v", err)
					assert.Equal(t, c.after, time.Since(begun))
					synctest.Wait()
					running := int(s.attempts.Load())
					time.Sleep(time.Second)
					assert.EqualValues(t, running, s.attempts.Load(), "no hedge starts after it")
				})
			})
		}
	}
}

// TestInterceptorKeepsTimeoutOfStreamWonByHedge has a hedge whose stream continues after its first message.
func TestInterceptorKeepsTimeoutOfStreamWonByHedge(t *testing.T) {
	for name, opts := range map[string][]grpc.DialOption{
		"of its method": {grpc.WithDefaultServiceConfig(timeoutConfig)}, "of an interceptor": timeoutBelow(300 * ms),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &goesOn{}
				server := hedgegrpc.NewServer(t, func(srv *grpc.Server) { testpb.RegisterTestServiceServer(srv, s) })
				in := hedge.NewInterceptor(hedge.WithMethods("/*"))
				client := testpb.NewTestServiceClient(server.Dial(append([]grpc.DialOption{grpc.WithChainStreamInterceptor(in.Stream())}, opts...)...))
				require.Error(t, firstMessages["unary"](t.Context(), client)) // connects
				begun := time.Now()
				st, err := client.StreamingOutputCall(hedge.WithDelay(t.Context(), 100*ms), new(testpb.StreamingOutputCallRequest))
				require.NoError(t, err)
				_, err = st.Recv()
				require.NoError(t, err)
				assert.Equal(t, 100*ms, time.Since(begun))
				_, err = st.Recv()
				assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
				assert.Equal(t, 300*ms, time.Since(begun))
				time.Sleep(time.Second) // all attempts end
			})
		})
	}
}

// A goesOn is a stream service that sends one message at once, except in its first call.
type goesOn struct {
	testpb.UnimplementedTestServiceServer
	calls atomic.Int64
}

func (s *goesOn) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, out testpb.TestService_StreamingOutputCallServer) error {
	if s.calls.Add(1) > 1 {
		if err := out.Send(new(testpb.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
	<-out.Context().Done()
	time.Sleep(500 * ms) // the client must not get this status
	return out.Context().Err()
}
