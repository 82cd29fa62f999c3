//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
)

// A counter is a gRPC server with one slot, which each call holds until the test releases it.
type counter struct {
	testpb.UnimplementedTestServiceServer
	limit *hedge.Limiter
	begun atomic.Int64
	goOn  chan struct{}
	fails atomic.Int64 // calls that fail
	early bool         // streams give their place back at once
}

func newCounter() *counter { return &counter{limit: hedge.NewLimiter(1), goOn: make(chan struct{})} }

func (c *counter) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(c.limit.UnaryServer()), grpc.ChainStreamInterceptor(c.limit.StreamServer())}
}

func (c *counter) UnaryCall(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	c.begun.Add(1)
	if c.fails.Add(-1) >= 0 {
		return nil, status.Error(codes.Unavailable, "later")
	}
	<-c.goOn
	return new(testpb.SimpleResponse), nil
}

func (c *counter) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, out testpb.TestService_StreamingOutputCallServer) error {
	c.begun.Add(1)
	if c.early {
		c.limit.Release(out.Context())
	}
	<-c.goOn
	return out.Send(new(testpb.StreamingOutputCallResponse))
}

func (c *counter) holds(t *testing.T, working, waiting int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		s := c.limit.Snapshot()
		return s.Working == working && s.Waiting == waiting
	}, 10*time.Second, ms, "%+v", c.limit.Snapshot())
}

// kinds make a unary call or a stream.
var kinds = map[string]func(context.Context, testpb.TestServiceClient) (metadata.MD, error){
	"unary": func(ctx context.Context, client testpb.TestServiceClient) (trailer metadata.MD, err error) {
		_, err = client.UnaryCall(ctx, new(testpb.SimpleRequest), grpc.Trailer(&trailer))
		return trailer, err
	},
	"stream": func(ctx context.Context, client testpb.TestServiceClient) (metadata.MD, error) {
		_, stream, err := collect(ctx, client)
		if stream == nil {
			return nil, err
		}
		return stream.Trailer(), err
	},
}

func TestLimiterQueuesGRPCCallsUntilCancelled(t *testing.T) {
	for kind, call := range kinds {
		t.Run(kind, func(t *testing.T) {
			c := newCounter()
			client := testpb.NewTestServiceClient(dial(t, serveGRPC(t, c, c.options()...)))
			type answer struct {
				trailer metadata.MD
				err     error
			}
			begin := func(ctx context.Context) chan answer {
				done := make(chan answer, 1)
				go func() {
					trailer, err := call(ctx, client)
					done <- answer{trailer, err}
				}()
				return done
			}
			first := begin(t.Context())
			c.holds(t, 1, 0)
			ctx, cancel := context.WithCancel(t.Context())
			gone := begin(ctx)
			c.holds(t, 1, 1)
			cancel()
			assert.Equal(t, codes.Canceled, status.Code((<-gone).err))
			c.holds(t, 1, 0)

			marked := metadata.AppendToOutgoingContext(t.Context(), "grpc-previous-rpc-attempts", "1")
			var waiting []chan answer
			for i := range 4 {
				waiting = append(waiting, begin(marked)) // there is room for hedges
				c.holds(t, 1, int64(i+1))
			}
			refused := <-begin(marked)
			assert.Equal(t, codes.Unavailable, status.Code(refused.err))
			assert.Equal(t, []string{"1"}, refused.trailer["hedge-refused"])
			assert.Equal(t, []string{"1"}, refused.trailer["hedge-limit"])

			close(c.goOn)
			for _, w := range append(waiting, first) {
				a := <-w
				require.NoError(t, a.err)
				assert.Equal(t, []string{"1"}, a.trailer["hedge-limit"])
				assert.Empty(t, a.trailer["hedge-refused"])
			}
			c.holds(t, 0, 0)
			assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 5, Left: 1, Refused: 1}, c.limit.Snapshot())
			assert.EqualValues(t, 5, c.begun.Load())
		})
	}
}

func TestLimiterStreamMayReleaseSlotBeforeEnd(t *testing.T) {
	c := newCounter()
	c.early = true
	client := testpb.NewTestServiceClient(dial(t, serveGRPC(t, c, c.options()...)))
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			_, err := kinds["stream"](t.Context(), client)
			assert.NoError(t, err)
		})
	}
	require.Eventually(t, func() bool { return c.begun.Load() == 3 }, 10*time.Second, ms)
	c.holds(t, 0, 0)
	close(c.goOn)
	all.Wait()
}

// TestLimiterKeepsGRPCRetriesWorking has calls that fail. A Limiter must not send a header, because gRPC does not retry
// a call after a header.
func TestLimiterKeepsGRPCRetriesWorking(t *testing.T) {
	c := newCounter()
	close(c.goOn)
	c.fails.Store(2)
	client := testpb.NewTestServiceClient(dial(t, serveGRPC(t, c, c.options()...), grpc.WithDefaultServiceConfig(`{"methodConfig":[{"name":[{}],
		"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`)))
	_, err := client.UnaryCall(t.Context(), new(testpb.SimpleRequest))
	require.NoError(t, err)
	assert.EqualValues(t, 3, c.begun.Load())
}

// asking starts a server with one slot and the diagnostic services of gRPC, and returns its address.
func asking(t *testing.T, c *counter) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(c.options()...)
	testpb.RegisterTestServiceServer(s, c)
	healthpb.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// TestLimiterDoesNotLimitHealthChecks has clients that watch the health of the server for their whole life.
func TestLimiterDoesNotLimitHealthChecks(t *testing.T) {
	c := newCounter()
	close(c.goOn)
	addr := asking(t, c)
	for range 3 {
		cc := dial(t, addr, grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}],"healthCheckConfig":{"serviceName":""}}`))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, new(testpb.SimpleRequest), grpc.WaitForReady(true))
		cancel()
		require.NoError(t, err)
	}
	assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 3}, c.limit.Snapshot())
}

func TestLimiterAtCapacityAnswersDiagnosticServices(t *testing.T) {
	c := newCounter()
	cc := dial(t, asking(t, c))
	done := make(chan error, 1)
	go func() {
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(t.Context(), new(testpb.SimpleRequest))
		done <- err
	}()
	c.holds(t, 1, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var trailer metadata.MD
	_, err := healthpb.NewHealthClient(cc).Check(ctx, new(healthpb.HealthCheckRequest), grpc.Trailer(&trailer))
	require.NoError(t, err)
	assert.Empty(t, trailer["hedge-limit"], "nothing limits it")
	list, err := reflectionpb.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
	require.NoError(t, err)
	require.NoError(t, list.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}))
	_, err = list.Recv()
	require.NoError(t, err)
	close(c.goOn)
	require.NoError(t, <-done)
	assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 1}, c.limit.Snapshot())
}

func TestLimiterLimitsServicesWithSimilarNames(t *testing.T) {
	l := hedge.NewLimiter(1)
	for method, worked := range map[string]int64{
		"/grpc.health.v1.Health/Watch": 0, "/grpc.health.v1.Health/List": 0, "/grpc.health.v1.HealthX/Watch": 1,
		"/grpc.health.v1.Health/Watch/": 1, "/grpc.health.v1.Health/Restart": 1, "/grpc.health.v1.Health/../a.B/C": 1, "/grpc.channelz.v1.Channelz/GetServers": 1,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": 0, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": 0,
		"/grpc.reflection.v2.ServerReflection/ServerReflectionInfo": 1, "/shop.grpc.health.v1.Health/Watch": 1, "grpc.health.v1.Health/Watch": 1, "": 1,
	} {
		before := l.Snapshot().Worked
		_, err := l.UnaryServer()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) { return nil, nil })
		require.NoError(t, err)
		assert.Equal(t, worked, l.Snapshot().Worked-before, method)
	}
}

func TestLimiterAtCapacityServesUnlimitedMethods(t *testing.T) {
	c := newCounter()
	c.limit = hedge.NewLimiter(1, hedge.WithUnlimited("/grpc.testing.TestService/StreamingOutputCall"))
	client := testpb.NewTestServiceClient(dial(t, serveGRPC(t, c, c.options()...)))
	done := make(chan error, 1)
	go func() {
		_, err := kinds["unary"](t.Context(), client)
		done <- err
	}()
	c.holds(t, 1, 0)
	type answer struct {
		trailer metadata.MD
		err     error
	}
	streamed := make(chan answer, 1)
	go func() {
		trailer, err := kinds["stream"](t.Context(), client)
		streamed <- answer{trailer, err}
	}()
	require.Eventually(t, func() bool { return c.begun.Load() == 2 }, 10*time.Second, ms)
	close(c.goOn)
	require.NoError(t, <-done)
	got := <-streamed
	require.NoError(t, got.err)
	assert.Empty(t, got.trailer["hedge-limit"], "nothing limits it")
	assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 1}, c.limit.Snapshot())
}

// TestLimiterUnlimitedCallDoesNotHoldSlotOfOuterCall makes an unlimited call within a request that has a slot.
func TestLimiterUnlimitedCallDoesNotHoldSlotOfOuterCall(t *testing.T) {
	const health = "/grpc.health.v1.Health/Watch"
	for kind, call := range map[string]func(*hedge.Limiter, context.Context){
		"unary": func(l *hedge.Limiter, ctx context.Context) {
			_, _ = l.UnaryServer()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: health}, func(context.Context, any) (any, error) {
				time.Sleep(time.Hour)
				return nil, nil
			})
		},
		"stream": func(l *hedge.Limiter, ctx context.Context) {
			_ = l.StreamServer()(nil, &incomingStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: health}, func(any, grpc.ServerStream) error {
				time.Sleep(time.Hour)
				return nil
			})
		},
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := hedge.NewLimiter(1)
				l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					go call(l, r.Context())
					synctest.Wait()
				})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
				assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 1}, l.Snapshot())
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

func TestLimiterUnlimitedMethodPatterns(t *testing.T) {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(":authority", "Shop.test:443"))
	for _, c := range []struct {
		pattern, method string
		passes          bool
	}{
		{pattern: "/a.B/C", method: "/a.B/C", passes: true},
		{pattern: "/a.B/C", method: "/a.B/CC"},
		{pattern: "/a.B/*", method: "/a.B/C", passes: true},
		{pattern: "/a.B/*", method: "/a.BB/C"},
		{pattern: "/*", method: "/a.B/C", passes: true},
		{pattern: "/a.B/", method: "/a.B/C", passes: true},
		{pattern: "POST /a.B/{method}", method: "/a.B/C", passes: true},
		{pattern: "GET /a.B/C", method: "/a.B/C"},
		{pattern: "shop.test/", method: "/a.B/C", passes: true},
		{pattern: "admin.test/", method: "/a.B/C"},
		{pattern: "/a.B/C", method: "//a.B/C"},
		{pattern: "/", method: "/a.B/../C"},
	} {
		l := hedge.NewLimiter(1, hedge.WithUnlimited(c.pattern))
		_, err := l.UnaryServer()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: c.method}, func(context.Context, any) (any, error) { return nil, nil })
		require.NoError(t, err)
		err = l.StreamServer()(nil, &incomingStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: c.method}, func(_ any, s grpc.ServerStream) error { return s.RecvMsg(nil) })
		require.NoError(t, err)
		assert.Equal(t, c.passes, l.Snapshot().Worked == 0, "%s and %s", c.pattern, c.method)
		assert.Contains(t, []int64{0, 2}, l.Snapshot().Worked, "streams are as unary calls")
	}
}

// TestLimiterReleasedSlotAdmitsNoNestedCall makes nested calls after the outer call has released its slot. Only a held
// slot admits nested calls.
func TestLimiterReleasedSlotAdmitsNoNestedCall(t *testing.T) {
	for name, release := range map[string]bool{"released": true, "handler has returned": false} {
		for kind, enter := range map[string]func(*hedge.Limiter, context.Context, func(context.Context)) error{
			"unary": func(l *hedge.Limiter, ctx context.Context, do func(context.Context)) error {
				_, err := l.UnaryServer()(ctx, nil, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) { do(ctx); return nil, nil })
				return err
			},
			"stream": func(l *hedge.Limiter, ctx context.Context, do func(context.Context)) error {
				return l.StreamServer()(nil, &incomingStream{ctx: ctx}, &grpc.StreamServerInfo{}, func(_ any, s grpc.ServerStream) error {
					err := s.RecvMsg(nil)
					do(s.Context())
					return err
				})
			},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := hedge.NewLimiter(1)
					var rest sync.WaitGroup
					var working, most atomic.Int64
					require.NoError(t, enter(l, t.Context(), func(ctx context.Context) {
						if release {
							l.Release(ctx)
						}
						for range 10 {
							rest.Go(func() {
								time.Sleep(ms)
								assert.NoError(t, enter(l, ctx, func(context.Context) {
									most.Store(max(most.Load(), working.Add(1)))
									time.Sleep(usual)
									working.Add(-1)
								}))
							})
						}
						if release {
							rest.Wait()
						}
					}))
					rest.Wait()
					assert.EqualValues(t, 1, most.Load(), "worked on at a time")
					assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 11}, l.Snapshot())
				})
			})
		}
	}
}

// An incomingStream is the server side of a stream whose messages have arrived.
type incomingStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *incomingStream) Context() context.Context { return s.ctx }
func (s *incomingStream) SetTrailer(metadata.MD)   {}
func (s *incomingStream) RecvMsg(any) error        { return nil }

// A brokenStream is an incomingStream that rejects trailers.
type brokenStream struct{ incomingStream }

func (s *brokenStream) SetTrailer(metadata.MD) { panic("no trailers") }

// A brokenTransport is the transport stream of a unary call that rejects trailers.
type brokenTransport struct{ grpc.ServerTransportStream }

func (brokenTransport) SetTrailer(metadata.MD) error { panic("no trailers") }

func TestLimiterStreamThatPanicsReleasesSlot(t *testing.T) {
	l := hedge.NewLimiter(1)
	for range 2 {
		assert.PanicsWithValue(t, "no trailers", func() {
			ctx := grpc.NewContextWithServerTransportStream(t.Context(), brokenTransport{})
			_, _ = l.UnaryServer()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, func(context.Context, any) (any, error) { return nil, nil })
		})
		assert.Zero(t, l.Snapshot().Working)
		assert.PanicsWithValue(t, "no trailers", func() {
			stream := &brokenStream{incomingStream{ctx: t.Context()}}
			_ = l.StreamServer()(nil, stream, &grpc.StreamServerInfo{FullMethod: "/a.B/C"}, func(any, grpc.ServerStream) error { return nil })
		})
		require.Zero(t, l.Snapshot().Working)
	}
}

func TestLimiterIsSharedByHTTPAndGRPC(t *testing.T) {
	c := newCounter()
	client := testpb.NewTestServiceClient(dial(t, serveGRPC(t, c, c.options()...)))
	done := make(chan error, 1)
	go func() {
		_, err := client.UnaryCall(t.Context(), new(testpb.SimpleRequest))
		done <- err
	}()
	c.holds(t, 1, 0)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		c.limit.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}()
	c.holds(t, 1, 1)
	close(c.goOn)
	require.NoError(t, <-done)
	<-answered
}

// TestLimiterGRPCOverHTTPHandlerTakesOneSlot serves gRPC by net/http, so that the RPC has the context of the HTTP
// request.
func TestLimiterGRPCOverHTTPHandlerTakesOneSlot(t *testing.T) {
	c := newCounter()
	close(c.goOn)
	s := grpc.NewServer(c.options()...)
	defer s.Stop()
	testpb.RegisterTestServiceServer(s, c)
	healthpb.RegisterHealthServer(s, health.NewServer())
	hs := httptest.NewUnstartedServer(c.limit.Handler(s))
	hs.Config.Protocols = new(http.Protocols)
	hs.Config.Protocols.SetUnencryptedHTTP2(true)
	hs.Start()
	defer hs.Close()
	client := testpb.NewTestServiceClient(dial(t, hs.Listener.Addr().String()))
	for kind, call := range kinds {
		_, err := call(t.Context(), client)
		require.NoError(t, err, kind)
	}
	assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 2}, c.limit.Snapshot())
	_, err := healthpb.NewHealthClient(dial(t, hs.Listener.Addr().String())).Check(t.Context(), new(healthpb.HealthCheckRequest))
	require.NoError(t, err)
	assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 2}, c.limit.Snapshot(), "which takes no place")
}

// serveGRPCOverHTTP serves c by net/http behind the Handler of its Limiter, and returns a client.
func serveGRPCOverHTTP(t *testing.T, c *counter) testpb.TestServiceClient {
	s := grpc.NewServer(c.options()...)
	testpb.RegisterTestServiceServer(s, c)
	hs := httptest.NewUnstartedServer(c.limit.Handler(s))
	hs.Config.Protocols = new(http.Protocols)
	hs.Config.Protocols.SetUnencryptedHTTP2(true)
	hs.Start()
	t.Cleanup(func() {
		hs.CloseClientConnections()
		hs.Close()
		s.Stop()
	})
	return testpb.NewTestServiceClient(dial(t, hs.Listener.Addr().String()))
}

// TestLimiterGRPCOverHTTPHoldsSlotUntilHandlerReturns cancels the call. [grpc.Server.ServeHTTP] then returns before the
// handler does.
func TestLimiterGRPCOverHTTPHoldsSlotUntilHandlerReturns(t *testing.T) {
	for kind, call := range kinds {
		t.Run(kind, func(t *testing.T) {
			c := newCounter()
			client := serveGRPCOverHTTP(t, c)
			ctx, leave := context.WithCancel(t.Context())
			go func() { _, _ = call(ctx, client) }()
			require.Eventually(t, func() bool { return c.begun.Load() == 1 }, 10*time.Second, ms)
			leave()
			done := make(chan error, 1)
			go func() {
				_, err := call(t.Context(), client)
				done <- err
			}()
			c.holds(t, 1, 1)
			time.Sleep(50 * ms) // in which it began, where the place was given back
			c.holds(t, 1, 1)
			assert.EqualValues(t, 1, c.begun.Load())
			close(c.goOn)
			require.NoError(t, <-done)
			c.holds(t, 0, 0)
			assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 2}, c.limit.Snapshot())
		})
	}
}

func TestLimiterRefusesGRPCHedgesOverHTTP(t *testing.T) {
	c := newCounter()
	client := serveGRPCOverHTTP(t, c)
	var calls sync.WaitGroup
	for range 5 {
		calls.Go(func() {
			_, err := client.UnaryCall(t.Context(), new(testpb.SimpleRequest))
			assert.NoError(t, err)
		})
	}
	c.holds(t, 1, 4)
	for kind, call := range kinds {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "grpc-previous-rpc-attempts", "1"), 5*time.Second)
		trailer, err := call(ctx, client)
		cancel()
		assert.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", kind, err)
		assert.Equal(t, []string{"1"}, trailer.Get("Hedge-Refused"), kind)
		assert.Equal(t, []string{"1"}, trailer.Get("Hedge-Limit"), kind)
	}
	close(c.goOn)
	calls.Wait()
	c.holds(t, 0, 0)
	assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 5, Refused: 2}, c.limit.Snapshot())
}
