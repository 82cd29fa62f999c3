//go:build !hedge_nogrpc

package livetests_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/grpctest"
)

// eager has every layer send two requests for each that is slower than 20 ms.
var eager = []hedge.Option{hedge.WithInitialDelay(20 * ms), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100)}

// settled is long enough for every eager layer to have hedged what it hedges.
const settled = 300 * ms

// bottom is the last layer: it answers nobody until it is released, and
// remembers which hedge each request was for: "" if for none.
type bottom struct {
	release chan struct{}
	mu      sync.Mutex
	seen    []string
}

func newBottom(t *testing.T) *bottom {
	b := &bottom{release: make(chan struct{})}
	t.Cleanup(b.open)
	return b
}

func (b *bottom) open() {
	select {
	case <-b.release:
	default:
		close(b.release)
	}
}

func (b *bottom) take(ctx context.Context, marks []string) {
	b.mu.Lock()
	b.seen = append(b.seen, append(marks, "")[0])
	b.mu.Unlock()
	select {
	case <-b.release:
	case <-ctx.Done():
	}
}

func (b *bottom) marks() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(slices.Values(b.seen))
}

// wait returns the marks once there are n, and none comes any more.
func (b *bottom) wait(t *testing.T, n int) []string {
	t.Helper()
	require.Eventually(t, func() bool { return len(b.marks()) >= n }, 10*time.Second, ms)
	time.Sleep(settled)
	return b.marks()
}

// fanOut are the marks of the requests that reach the fourth of four layers
// for one call, all slow. With marks it is one more per layer, without twice as many.
var fanOut = map[string]struct {
	marking bool
	want    []string
}{
	"marked":   {true, []string{"", "1", "1", "1"}},
	"unmarked": {false, make([]string, 8)},
}

func TestHTTPHedgesAreNotHedgedThreeLayersDeep(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		for name, test := range fanOut {
			t.Run(protocol+" "+name, func(t *testing.T) {
				t.Parallel()
				opts, header := []hedge.HTTPOption{hedge.WithOptions(eager...)}, ""
				if test.marking {
					opts, header = append(opts, hedge.WithAttemptHeader(hedge.AttemptHeader)), hedge.AttemptHeader
				}
				last := newBottom(t)
				next := serve(t, protocol, func(_ http.ResponseWriter, r *http.Request) { last.take(r.Context(), r.Header["Hedge-Attempt"]) })
				for range 2 {
					next = relay(t, protocol, header, next, opts)
				}
				done := make(chan error, 1)
				go func() {
					_, err := fetch(t.Context(), hedge.New(base(t, next), opts...), next.URL)
					done <- err
				}()
				assert.Equal(t, test.want, last.wait(t, len(test.want)))
				last.open()
				require.NoError(t, <-done)
			})
		}
	}
}

// relay serves requests by asking the next layer.
func relay(t *testing.T, protocol, header string, next *server, opts []hedge.HTTPOption) *server {
	tr := hedge.New(base(t, next), opts...)
	h := hedge.Middleware(header)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := fetch(r.Context(), tr, next.URL); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}))
	return serve(t, protocol, h.ServeHTTP)
}

// TestOnlyTheTopLayersCopyReachesTheBottom has the primary go no further than the first server.
func TestOnlyTheTopLayersCopyReachesTheBottom(t *testing.T) {
	t.Parallel()
	marking := []hedge.HTTPOption{hedge.WithOptions(eager...), hedge.WithAttemptHeader("x-copy")}
	last := newBottom(t)
	third := serve(t, "HTTP/1.1", func(_ http.ResponseWriter, r *http.Request) { last.take(r.Context(), r.Header["X-Copy"]) })
	rec, stats := new(doubles.Recorder), new(hedge.Stats)
	second := relay(t, "HTTP/1.1", "x-copy", third, append(marking, hedge.WithObserver(rec), hedge.WithStats(&stats)))
	tr := hedge.New(base(t, second), marking...)
	first := serve(t, "HTTP/1.1", hedge.Middleware("x-copy")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Copy") == "" {
			last.take(r.Context(), []string{"stalls"})
			return
		}
		_, _ = fetch(r.Context(), tr, second.URL)
	})).ServeHTTP)
	done := make(chan error, 1)
	go func() {
		_, err := fetch(t.Context(), hedge.New(base(t, first), marking...), first.URL)
		done <- err
	}()
	assert.Equal(t, []string{"1", "stalls"}, last.wait(t, 2))
	assert.EqualValues(t, 1, second.Hits.Load())
	last.open()
	require.NoError(t, <-done)
	assert.Equal(t, "denied: nested", rec.Take()[0])
	assert.EqualValues(t, 1, stats.NotHedgeable.Load())
}

// grpcLayer answers by asking the next one, or as the bottom.
type grpcLayer struct {
	testpb.UnimplementedTestServiceServer
	next   testpb.TestServiceClient
	bottom *bottom
}

func (l *grpcLayer) UnaryCall(ctx context.Context, req *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if l.next != nil {
		return l.next.UnaryCall(ctx, req)
	}
	l.bottom.take(ctx, metadata.ValueFromIncomingContext(ctx, "grpc-previous-rpc-attempts"))
	return &testpb.SimpleResponse{}, nil
}

func (l *grpcLayer) StreamingOutputCall(req *testpb.StreamingOutputCallRequest, out testpb.TestService_StreamingOutputCallServer) error {
	if l.next == nil {
		l.bottom.take(out.Context(), metadata.ValueFromIncomingContext(out.Context(), "grpc-previous-rpc-attempts"))
		return out.Send(&testpb.StreamingOutputCallResponse{})
	}
	in, err := l.next.StreamingOutputCall(out.Context(), req)
	if err != nil {
		return err
	}
	m, err := in.Recv()
	if err != nil {
		return err
	}
	if err := out.Send(m); err != nil {
		return err
	}
	_, err = in.Recv()
	if err == io.EOF {
		err = nil
	}
	return err
}

// connected returns a client that hedges, and is connected: others do not hedge.
func connected(t *testing.T, target string, opts ...hedge.Option) testpb.TestServiceClient {
	in := hedge.NewInterceptor(hedge.WithOptions(opts...), hedge.WithMethods("/*"))
	cc := dial(t, target, grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream()))
	grpctest.Connect(t, cc)
	return testpb.NewTestServiceClient(cc)
}

func TestGRPCHedgesAreNotHedgedThreeLayersDeep(t *testing.T) {
	for kind, call := range map[string]func(context.Context, testpb.TestServiceClient) error{
		"unary": func(ctx context.Context, c testpb.TestServiceClient) error {
			_, err := c.UnaryCall(ctx, &testpb.SimpleRequest{})
			return err
		},
		"stream": func(ctx context.Context, c testpb.TestServiceClient) error {
			s, err := c.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest), grpc.WaitForReady(true))
			for err == nil {
				_, err = s.Recv()
			}
			if err == io.EOF {
				return nil
			}
			return err
		},
	} {
		for name, test := range fanOut {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				last := newBottom(t)
				client := connected(t, serveGRPC(t, &grpcLayer{bottom: last}), eager...)
				for range 2 {
					var opts []grpc.ServerOption
					if test.marking {
						opts = []grpc.ServerOption{grpc.UnaryInterceptor(hedge.NewUnaryServerInterceptor()), grpc.StreamInterceptor(hedge.NewStreamServerInterceptor())}
					}
					client = connected(t, serveGRPC(t, &grpcLayer{next: client}, opts...), eager...)
				}
				done := make(chan error, 1)
				go func() { done <- call(t.Context(), client) }()
				got := last.wait(t, len(test.want))
				assert.Len(t, got, len(test.want))
				if test.marking {
					assert.Equal(t, test.want, got)
				}
				last.open()
				require.NoError(t, <-done)
			})
		}
	}
}

// TestMarkCrossesProtocols goes from HTTP by gRPC to HTTP.
func TestMarkCrossesProtocols(t *testing.T) {
	t.Parallel()
	last := newBottom(t)
	last.open()
	third := serve(t, "HTTP/1.1", func(_ http.ResponseWriter, r *http.Request) { last.take(r.Context(), r.Header["Hedge-Attempt"]) })
	tr := hedge.New(base(t, third), hedge.WithAttemptHeader(hedge.AttemptHeader))
	second := connected(t, serveGRPC(t, &asksHTTP{do: func(ctx context.Context) error {
		_, err := fetch(ctx, tr, third.URL)
		return err
	}}, grpc.UnaryInterceptor(hedge.NewUnaryServerInterceptor())))
	first := serve(t, "HTTP/1.1", hedge.Middleware(hedge.AttemptHeader)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := second.UnaryCall(r.Context(), &testpb.SimpleRequest{})
		assert.NoError(t, err)
	})).ServeHTTP)
	for _, mark := range []string{"", "2", "0", "not a number", "-1", "99999999"} {
		req := request(t, t.Context(), "GET", first.URL, nil)
		if mark != "" {
			req.Header.Set("Hedge-Attempt", mark)
		}
		resp, err := base(t, first).RoundTrip(req)
		require.NoError(t, err)
		text(t, resp)
	}
	assert.Equal(t, []string{"", "2", "", "1", "1", "1"}, last.seen, "what cannot be read is a hedge")
}

type asksHTTP struct {
	testpb.UnimplementedTestServiceServer
	do func(context.Context) error
}

func (s *asksHTTP) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{}, s.do(ctx)
}
