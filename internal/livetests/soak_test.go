//go:build !hedge_nogrpc

package livetests_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// stall returns how long a server that pauses now and then works on a request.
func stall() time.Duration {
	d := time.Duration(500+rand.IntN(1000)) * time.Microsecond
	if rand.IntN(50) == 0 {
		d += 20 * time.Millisecond
	}
	return d
}

// echoServer answers with the payload that it is sent, once or four times.
type echoServer struct {
	testpb.UnimplementedTestServiceServer
}

func (echoServer) UnaryCall(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: r.Payload}, doubles.Sleep(ctx, stall())
}

func (echoServer) StreamingOutputCall(r *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	if err := doubles.Sleep(s.Context(), stall()); err != nil {
		return err
	}
	for range 4 {
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: r.Payload}); err != nil {
			return err
		}
	}
	return nil
}

// soaked counts what became of the calls of a soak.
type soaked struct{ right, wrong, failed, gaveUp atomic.Int64 }

// count takes the answer to a call, which should be want, or begin with it if it was not read whole.
func (s *soaked) count(ctx context.Context, got, want string, whole bool, err error) {
	switch {
	case err == nil && (got == want || !whole && strings.HasPrefix(want, got)):
		s.right.Add(1)
	case err == nil:
		s.wrong.Add(1)
	case ctx.Err() != nil:
		s.gaveUp.Add(1)
	default:
		s.failed.Add(1)
	}
}

// lease is a value that somebody must close. Those of two attempts are two pointers: structs of the same content would be one value.
type lease struct {
	id   string
	open *atomic.Int64
}

func (l *lease) Close() error { l.open.Add(-1); return nil }

// Callers give up, close bodies that they have not read, and ask two thousand hosts; servers
// stall, and close connections without an answer, or in the middle of one.
// HEDGE_TEST_SOAK=10m makes it long.
func TestCallsOfEveryKindLeaveNothingBehind(t *testing.T) {
	const callers, hosts = 3, 2_000
	long := doubles.SoakTime(t, 2*time.Second)
	often := []hedge.Option{hedge.WithMinDelay(0), hedge.WithPercentile(0.8), hedge.WithBudgetPercent(50)}
	calls := make(map[string]func(ctx context.Context, id string) (got, want string, whole bool, err error))

	for protocol := range protocols {
		s := serve(t, protocol, func(w http.ResponseWriter, r *http.Request) {
			pause(r, stall())
			fate := rand.IntN(200)
			if fate == 0 {
				panic(http.ErrAbortHandler)
			}
			n := 1 + rand.IntN(2)*rand.IntN(2_000)
			for i := range n {
				if fate == 1 && i == n/2 {
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(w, r.Header.Get("Id"))
			}
		})
		below := base(t, s)
		below.MaxIdleConnsPerHost, below.MaxIdleConns, below.IdleConnTimeout = 4, 64, time.Second
		if protocol == "HTTP/1.1" {
			below.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
			}
		}
		tr := hedge.New(below, hedge.WithOptions(often...))
		calls[protocol] = func(ctx context.Context, id string) (got, want string, whole bool, err error) {
			url := s.URL
			if protocol == "HTTP/1.1" {
				url = fmt.Sprintf("http://h%d.test", rand.IntN(hosts))
			}
			req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
			if err != nil {
				return "", "", false, err
			}
			req.Header.Set("Id", id)
			resp, err := tr.RoundTrip(req)
			if err != nil {
				return "", "", false, err
			}
			defer resp.Body.Close()
			b := make([]byte, len(id)) // as much as every answer has
			if _, err = io.ReadFull(resp.Body, b); err != nil || rand.IntN(10) == 0 {
				return string(b), id, true, err
			}
			rest, err := io.ReadAll(resp.Body)
			return string(b) + string(rest), strings.Repeat(id, 1+len(rest)/len(id)), true, err
		}
	}

	in := hedge.NewInterceptor(hedge.WithOptions(often...), hedge.WithMethods("/*"))
	client := testpb.NewTestServiceClient(dial(t, serveGRPC(t, echoServer{}),
		grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream())))
	calls["gRPC"] = func(ctx context.Context, id string) (string, string, bool, error) {
		r, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(id)}})
		return string(r.GetPayload().GetBody()), id, true, err
	}
	calls["gRPC stream"] = func(ctx context.Context, id string) (string, string, bool, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		s, err := client.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: []byte(id)}})
		var got string
		for range 1 + rand.IntN(5) { // five: to its end
			var m *testpb.StreamingOutputCallResponse
			if err == nil {
				m, err = s.Recv()
			}
			got += string(m.GetPayload().GetBody())
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return got, strings.Repeat(id, 4), false, err
	}

	h, open := hedge.NewHedger(hedge.WithOptions(often...)), new(atomic.Int64)
	calls["DoDetached"] = func(ctx context.Context, id string) (string, string, bool, error) {
		l, err := hedge.DoDetached(ctx, h, "k", func(context.Context) (*lease, error) {
			time.Sleep(stall())
			open.Add(1)
			return &lease{id, open}, nil
		}, nil)
		if err != nil {
			return "", id, true, err
		}
		_ = l.Close() // never fails
		return l.id, id, true, nil
	}
	calls["Do"] = func(ctx context.Context, id string) (string, string, bool, error) {
		got, err := hedge.Do(ctx, h, "k", func(ctx context.Context) (string, error) {
			return id, doubles.Sleep(ctx, stall())
		})
		return got, id, true, err
	}

	results := make(map[string]*soaked)
	for kind := range calls {
		results[kind] = new(soaked)
	}
	load := func(long time.Duration) {
		var wg sync.WaitGroup
		for kind, call := range calls {
			for range callers {
				wg.Go(func() {
					for start := time.Now(); time.Since(start) < long; {
						ctx, cancel := context.WithCancel(t.Context())
						if rand.IntN(20) == 0 {
							time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
						}
						got, want, whole, err := call(ctx, fmt.Sprintf("%016x", rand.Uint64()))
						results[kind].count(ctx, got, want, whole, err)
						cancel()
					}
				})
			}
		}
		wg.Wait()
	}
	load(time.Second + long/5)
	time.Sleep(1500 * time.Millisecond) // idle connections live for a second
	before := doubles.MeasureUsage()
	load(long)
	var after doubles.Usage
	assert.Eventually(t, func() bool {
		after = doubles.MeasureUsage()
		return after.Goroutines <= before.Goroutines+20 && after.Files <= before.Files+20 && after.Heap <= before.Heap+8<<20
	}, 15*time.Second, 200*time.Millisecond, "what was held at the end")

	for kind, r := range results {
		t.Logf("%-12s %8d right, %d failed, %d gave up, %d wrong", kind, r.right.Load(), r.failed.Load(), r.gaveUp.Load(), r.wrong.Load())
		assert.Zero(t, r.wrong.Load(), kind)
		assert.Positive(t, r.right.Load(), kind)
		assert.LessOrEqual(t, r.failed.Load(), 5+r.right.Load()/10, kind)
	}
	t.Logf("%v before, %v after", before, after)
	assert.Zero(t, open.Load(), "every value was closed, once")
}
