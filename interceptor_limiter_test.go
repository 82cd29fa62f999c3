package hedge_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
)

// counter is a gRPC server of one place, held until it is told to go on.
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

// kinds are a unary call and a stream.
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

func TestGRPCCallsWaitInLineAndLeaveItWithTheirCaller(t *testing.T) {
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

func TestGRPCStreamMayGiveItsPlaceBackBeforeItEnds(t *testing.T) {
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

// A header commits a call, so a Limiter must not send one.
func TestGRPCRetriesWhatFailsBehindALimiter(t *testing.T) {
	c := newCounter()
	close(c.goOn)
	c.fails.Store(2)
	client := testpb.NewTestServiceClient(dial(t, serveGRPC(t, c, c.options()...), grpc.WithDefaultServiceConfig(`{"methodConfig":[{"name":[{}],
		"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`)))
	_, err := client.UnaryCall(t.Context(), new(testpb.SimpleRequest))
	require.NoError(t, err)
	assert.EqualValues(t, 3, c.begun.Load())
}

func TestHTTPAndGRPCShareALimiter(t *testing.T) {
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

// gRPC over the server of net/http comes with the context of the HTTP request.
func TestGRPCBehindAnHTTPHandlerTakesOnePlace(t *testing.T) {
	c := newCounter()
	close(c.goOn)
	s := grpc.NewServer(c.options()...)
	defer s.Stop()
	testpb.RegisterTestServiceServer(s, c)
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
}
