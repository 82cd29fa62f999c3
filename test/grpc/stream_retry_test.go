//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"errors"
	"io"
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

const retryConfig = `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.01s","maxBackoff":"0.01s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`

// A contextStream counts calls of Context before the first message or the end of the stream.
type contextStream struct {
	grpc.ClientStream
	received atomic.Bool
	early    *atomic.Int64
}

func (s *contextStream) RecvMsg(m any) error {
	defer s.received.Store(true)
	return s.ClientStream.RecvMsg(m)
}

func (s *contextStream) Context() context.Context {
	if !s.received.Load() {
		s.early.Add(1)
	}
	return s.ClientStream.Context()
}

// countEarlyContexts returns an interceptor that wraps the stream of each attempt in a contextStream.
func countEarlyContexts(early *atomic.Int64) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		opened, err := streamer(ctx, desc, cc, method, opts...)
		return &contextStream{ClientStream: opened, early: early}, err
	})
}

// TestHedgedStreamIsRetriedByGRPC has a primary that fails with UNAVAILABLE after 100 ms, which gRPC retries. A hedge
// is due after 20 ms. grpc-go does not retry a stream after a call of Context.
func TestHedgedStreamIsRetriedByGRPC(t *testing.T) {
	fails := plannedAnswer{after: 100 * ms, code: codes.Unavailable}
	for name, c := range map[string]struct {
		opts     func(server *hedgegrpc.Server) []hedge.GRPCOption
		plan     []plannedAnswer
		attempts int
	}{
		"no hedge": {func(*hedgegrpc.Server) []hedge.GRPCOption { return []hedge.GRPCOption{hedge.WithMaxHedges(0)} }, []plannedAnswer{fails, {}}, 2},
		"the hedge is refused": {func(server *hedgegrpc.Server) []hedge.GRPCOption {
			closed := server.Dial()
			_ = closed.Close()
			return []hedge.GRPCOption{hedge.WithHedgeConn(closed)}
		}, []plannedAnswer{fails, {}}, 2},
		"the hedge is refused, in shadow mode": {func(*hedgegrpc.Server) []hedge.GRPCOption { return []hedge.GRPCOption{hedge.WithShadow()} }, []plannedAnswer{fails, {}}, 2},
		"the hedge fails":                      {func(*hedgegrpc.Server) []hedge.GRPCOption { return nil }, []plannedAnswer{fails, {code: codes.NotFound}, {}}, 3},
		"the hedge hangs":                      {func(*hedgegrpc.Server) []hedge.GRPCOption { return nil }, []plannedAnswer{fails, {after: time.Hour}, {}}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var early atomic.Int64
				s := &plannedService{plan: c.plan}
				server := hedgegrpc.NewServer(t, func(srv *grpc.Server) { testpb.RegisterTestServiceServer(srv, s) })
				in := hedge.NewInterceptor(append([]hedge.GRPCOption{hedge.WithMethods("/*"), hedge.WithMaxHedges(1)}, c.opts(server)...)...)
				client := testpb.NewTestServiceClient(server.Dial(
					grpc.WithChainStreamInterceptor(in.Stream()), countEarlyContexts(&early), grpc.WithDefaultServiceConfig(retryConfig)))
				_, err := client.EmptyCall(t.Context(), new(testpb.Empty)) // connects
				require.NoError(t, err)
				assert.NoError(t, firstMessages["stream"](hedge.WithDelay(t.Context(), 20*ms), client))
				assert.EqualValues(t, c.attempts, s.attempts.Load())
				assert.Zero(t, early.Load())
				time.Sleep(time.Second) // all attempts end
			})
		})
	}
}

// A reopeningStream is a stream of an interceptor that retries: after UNAVAILABLE, RecvMsg opens another stream and sends
// the request again.
type reopeningStream struct {
	grpc.ClientStream
	reopen  func() (grpc.ClientStream, error)
	request any
}

func (s *reopeningStream) SendMsg(m any) error {
	s.request = m
	return s.ClientStream.SendMsg(m)
}

func (s *reopeningStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if status.Code(err) != codes.Unavailable {
		return err
	}
	if s.ClientStream, err = s.reopen(); err != nil {
		return err
	}
	if err = errors.Join(s.ClientStream.SendMsg(s.request), s.ClientStream.CloseSend()); err != nil {
		return err
	}
	return s.ClientStream.RecvMsg(m)
}

// TestStreamRetriedByInterceptorDeliversLastTrailer has a later interceptor that starts several RPCs for the primary. The
// caller must get the same trailer and the same calls of OnFinish as without hedging.
func TestStreamRetriedByInterceptorDeliversLastTrailer(t *testing.T) {
	for name, c := range map[string]struct {
		firstOpen []grpc.CallOption // options of an RPC that cannot be opened; nil: there is none
		ends      []codes.Code
	}{
		"the first RPC fails":                     {nil, []codes.Code{codes.Unavailable, codes.OK}},
		"the first RPC fails before it is opened": {[]grpc.CallOption{grpc.CallContentSubtype("unknown")}, []codes.Code{codes.Internal, codes.Unavailable, codes.OK}},
	} {
		for hedging, before := range map[string][]grpc.StreamClientInterceptor{
			"with": {hedge.NewInterceptor(hedge.WithMethods("/*")).Stream()}, "without": nil,
		} {
			t.Run(name+"/"+hedging+" hedging", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					retries := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
						if c.firstOpen != nil {
							_, err := streamer(ctx, desc, cc, method, slices.Concat(opts, c.firstOpen)...)
							assert.Error(t, err)
						}
						opened, err := streamer(ctx, desc, cc, method, opts...)
						return &reopeningStream{ClientStream: opened, reopen: func() (grpc.ClientStream, error) { return streamer(ctx, desc, cc, method, opts...) }}, err
					}
					s := &plannedService{plan: []plannedAnswer{{code: codes.Unavailable, trailer: metadata.Pairs("rpc", "1")}, {trailer: metadata.Pairs("rpc", "2")}}}
					server := hedgegrpc.NewServer(t, func(srv *grpc.Server) { testpb.RegisterTestServiceServer(srv, s) })
					client := testpb.NewTestServiceClient(server.Dial(grpc.WithChainStreamInterceptor(append(before, retries)...)))
					_, err := client.EmptyCall(t.Context(), new(testpb.Empty)) // connects
					require.NoError(t, err)
					var trailer metadata.MD
					var ends []codes.Code
					st, err := client.StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest),
						grpc.Trailer(&trailer), grpc.OnFinish(func(err error) { ends = append(ends, status.Code(err)) }))
					require.NoError(t, err)
					_, err = st.Recv()
					require.NoError(t, err)
					_, err = st.Recv()
					require.Equal(t, io.EOF, err)
					assert.Equal(t, metadata.Pairs("rpc", "2"), trailer)
					assert.Equal(t, c.ends, ends)
				})
			})
		}
	}
}
