//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/gohedge/hedge"
	hedgegrpc "github.com/gohedge/hedge/hedgetest/grpctest"
	"github.com/gohedge/hedge/internal/grpctest"
)

// A metadataServer records the metadata of its calls, and answers after a delay with its name in header and trailer.
type metadataServer struct {
	testpb.UnimplementedTestServiceServer
	name  string
	takes time.Duration

	mu   sync.Mutex
	seen []metadata.MD
}

func (s *metadataServer) note(ctx context.Context) (named metadata.MD) {
	md, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	s.seen = append(s.seen, md)
	s.mu.Unlock()
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
	}
	return metadata.Pairs("server", s.name)
}

func (s *metadataServer) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	named := s.note(ctx)
	_ = grpc.SetHeader(ctx, named)
	_ = grpc.SetTrailer(ctx, named)
	return new(testpb.SimpleResponse), nil
}

func (s *metadataServer) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, out testpb.TestService_StreamingOutputCallServer) error {
	named := s.note(out.Context())
	_ = out.SetHeader(named)
	out.SetTrailer(named)
	return out.Send(new(testpb.StreamingOutputCallResponse))
}

// received returns the values of a metadata key in all calls that the server has received.
func (s *metadataServer) received(key string) (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, md := range s.seen {
		all = append(all, md[key]...)
	}
	return all
}

// A twoServers is a slow server for primaries and another server for hedges.
type twoServers struct {
	home, away *metadataServer
	dialHome   func(...grpc.DialOption) *grpc.ClientConn
	dialAway   func(...grpc.DialOption) *grpc.ClientConn
}

func startTwoServers(t *testing.T) *twoServers {
	s := &twoServers{home: &metadataServer{name: "home", takes: time.Second}, away: &metadataServer{name: "away"}}
	start := func(m *metadataServer) func(...grpc.DialOption) *grpc.ClientConn {
		return hedgegrpc.NewServer(t, func(srv *grpc.Server) { testpb.RegisterTestServiceServer(srv, m) }).Dial
	}
	s.dialHome, s.dialAway = start(s.home), start(s.away)
	return s
}

// hedged returns dial options with the interceptors of in.
func hedged(in *hedge.Interceptor) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream())}
}

// adds returns dial options with interceptors that add a value to the metadata key "by".
func adds(value string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoker(metadata.AppendToOutgoingContext(ctx, "by", value), method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return streamer(metadata.AppendToOutgoingContext(ctx, "by", value), desc, cc, method, opts...)
		}),
	}
}

// A namedToken is a call credential that sends a value under a key.
type namedToken struct{ key, value string }

func (c namedToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{c.key: c.value}, nil
}
func (namedToken) RequireTransportSecurity() bool { return false }

// A calledMethods is a stats handler that counts started RPCs.
type calledMethods struct {
	mu    sync.Mutex
	begun int
}

func (c *calledMethods) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.Begin); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.begun++
	}
}
func (c *calledMethods) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (c *calledMethods) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}
func (c *calledMethods) HandleConn(context.Context, stats.ConnStats) {}

// wholeCalls make a unary call, or a stream that is read to its end, with call options.
var wholeCalls = map[string]func(context.Context, testpb.TestServiceClient, ...grpc.CallOption) error{
	"unary": func(ctx context.Context, c testpb.TestServiceClient, opts ...grpc.CallOption) error {
		_, err := c.UnaryCall(ctx, new(testpb.SimpleRequest), opts...)
		return err
	},
	"stream": func(ctx context.Context, c testpb.TestServiceClient, opts ...grpc.CallOption) error {
		s, err := c.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest), opts...)
		for err == nil {
			_, err = s.Recv()
		}
		if err.Error() == "EOF" {
			return nil
		}
		return err
	},
}

func TestHedgeOverConnUsesSettingsOfThatConn(t *testing.T) {
	for kind, call := range wholeCalls {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startTwoServers(t)
				var atHome, away calledMethods
				defaults := func(value string, opts ...grpc.CallOption) grpc.DialOption {
					return grpc.WithDefaultCallOptions(append(opts, grpc.PerRPCCredentials(namedToken{"default", value}))...)
				}
				other := s.dialAway(append(adds("away"), grpc.WithStatsHandler(&away), grpc.WithPerRPCCredentials(namedToken{"conn", "away"}), defaults("away"))...)
				in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithHedgeConn(other))
				above, below := adds("above"), adds("below")
				var ofDefault metadata.MD // a target that every call of the connection has
				cc := s.dialHome(slices.Concat(above, hedged(in), below, []grpc.DialOption{
					grpc.WithStatsHandler(&atHome), grpc.WithPerRPCCredentials(namedToken{"conn", "home"}),
					defaults("home", grpc.UseCompressor(gzip.Name), grpc.Header(&ofDefault)),
				})...)
				synctest.Wait()
				var header, trailer metadata.MD
				var from peer.Peer
				var finished []error
				ctx := metadata.AppendToOutgoingContext(hedge.WithDelay(t.Context(), 20*ms), "of-call", "x")
				require.NoError(t, call(ctx, testpb.NewTestServiceClient(cc), grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&from),
					grpc.OnFinish(func(err error) { finished = append(finished, err) })))
				time.Sleep(time.Minute)                        // all attempts end
				for key, want := range map[string][2][]string{ // of the primary, and of the hedge
					"by":                         {{"above", "below"}, {"above", "away"}},
					"conn":                       {{"home"}, {"away"}},
					"default":                    {{"home"}, {"away"}},
					"of-call":                    {{"x"}, {"x"}},
					"grpc-previous-rpc-attempts": {nil, {"1"}},
				} {
					assert.Equal(t, want, [2][]string{s.home.received(key), s.away.received(key)}, key)
				}
				assert.Equal(t, [2]int{1, 1}, [2]int{atHome.begun, away.begun})
				assert.Equal(t, []string{"away"}, header["server"])
				assert.Equal(t, []string{"away"}, ofDefault["server"])
				assert.Equal(t, []string{"away"}, trailer["server"])
				assert.NotNil(t, from.Addr)
				assert.Equal(t, []error{nil}, finished)

				require.NoError(t, call(hedge.WithDelay(t.Context(), 20*ms), testpb.NewTestServiceClient(cc), grpc.PerRPCCredentials(namedToken{"default", "of the call"})))
				time.Sleep(time.Minute)
				assert.Equal(t, []string{"away", "of the call"}, s.away.received("default"), "credentials of a call go where it goes")
			})
		})
	}
}

// TestHedgeOverConnWithInterceptorIsSentOnce has the same interceptor, or another one, on the connection for hedges.
func TestHedgeOverConnWithInterceptorIsSentOnce(t *testing.T) {
	for kind, call := range wholeCalls {
		for _, same := range []bool{true, false} {
			t.Run(kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := startTwoServers(t)
					s.away.takes = 500 * ms
					var later *hedge.Interceptor // which needs the connection before it is made
					of := func() *hedge.Interceptor { return later }
					other := s.dialAway(
						grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
							return of().Unary()(ctx, method, req, reply, cc, invoker, opts...)
						}),
						grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
							return of().Stream()(ctx, desc, cc, method, streamer, opts...)
						}))
					in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithHedgeConn(other))
					if later = in; !same {
						later = hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithInitialDelay(20*ms))
					}
					cc := s.dialHome(hedged(in)...)
					synctest.Wait()
					require.NoError(t, call(hedge.WithDelay(t.Context(), 20*ms), testpb.NewTestServiceClient(cc)))
					time.Sleep(time.Minute)
					assert.Equal(t, []string{"1"}, s.away.received("grpc-previous-rpc-attempts"), "it is one attempt, and says so once")
					got := in.Snapshot().Stats
					assert.EqualValues(t, 1, got.TotalRequests, "a hedge is no call of its own")
					assert.EqualValues(t, 1, got.HedgeWins)
				})
			})
		}
	}
}

// TestHedgeSkipsConnWithoutCredentials has a server for hedges that requires a token, which the client does not send.
func TestHedgeSkipsConnWithoutCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, conns := abroad(t, 0)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(400), hedge.WithHedgeConns(home, conns...))
		client := atHome(t, f, in)
		f.Delays[0].Store(int64(time.Second))
		f.Codes[1].Store(uint32(codes.Unauthenticated))
		sent := 0
		for range 26 {
			at, err := f.RecordCall(soon(t), grpctest.UnaryCaller(client))
			require.NoError(t, err)
			sent += len(at) - 1
		}
		assert.Equal(t, 6+2, sent, "after six, one in ten tries it")
	})
}
