// Package benchmark_test measures what hedging costs calls that need none.
//
//	go test -run ^$ -bench NoHedge -count 5 ./benchmark
//	go test -run ^$ -bench Loopback ./benchmark
//
// No call is hedged while the clock runs: the benchmarks compare the cost of the ability to hedge. Clients that learn
// latencies have learned from 10,000 calls before. Absolute times depend on the machine and its load: compare within one
// run only.
package benchmark_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/cristalhq/hedgedhttp"
	"github.com/failsafe-go/failsafe-go/failsafegrpc"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/cputime"
	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/policy"
)

const (
	unreachedDelay = time.Minute // the delay before a hedge, which no call here reaches
	warmUpCalls    = 10_000      // calls before the clock starts
)

// transports returns the contenders over HTTP. This library learns its delay, which is at least far; the delay of the
// others is fixed.
func transports(tb testing.TB, stats **hedge.Stats) map[string]func(http.RoundTripper) http.RoundTripper {
	return map[string]func(http.RoundTripper) http.RoundTripper{
		"bare": func(rt http.RoundTripper) http.RoundTripper { return rt },
		"hedge": func(rt http.RoundTripper) http.RoundTripper {
			return hedge.New(rt, hedge.WithMinDelay(unreachedDelay), hedge.WithStats(stats))
		},
		"hedgedhttp": func(rt http.RoundTripper) http.RoundTripper {
			hedged, err := hedgedhttp.NewRoundTripper(unreachedDelay, 2, rt)
			require.NoError(tb, err)
			return hedged
		},
		"failsafe": func(rt http.RoundTripper) http.RoundTripper {
			return failsafehttp.NewRoundTripper(rt, hedgepolicy.NewWithDelay[*http.Response](unreachedDelay))
		},
	}
}

// interceptors returns the contenders over gRPC, which hedgedhttp does not support.
func interceptors(stats **hedge.Stats) map[string]grpc.UnaryClientInterceptor {
	return map[string]grpc.UnaryClientInterceptor{
		"bare": func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(ctx, method, req, reply, cc, opts...)
		},
		"hedge":    hedge.NewUnaryClientInterceptor(hedge.WithMinDelay(unreachedDelay), hedge.WithStats(stats)),
		"failsafe": failsafegrpc.NewUnaryClientInterceptor(hedgepolicy.NewWithDelay[*wrapperspb.Int64Value](unreachedDelay)),
	}
}

var contenders = []string{"bare", "hedge", "hedgedhttp", "failsafe"}

// requireUnhedged fails if a call was hedged, or if the client has learned from too few calls.
func requireUnhedged(tb testing.TB, stats *hedge.Stats) {
	if stats != nil {
		require.Zero(tb, stats.HedgesSent.Load())
		require.GreaterOrEqual(tb, stats.TotalRequests.Load(), int64(warmUpCalls))
	}
}

// An instantTransport is an HTTP transport that answers at once. Its value is the major version of HTTP.
type instantTransport int

func (major instantTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, ProtoMajor: int(major), Body: http.NoBody, Request: req}, nil
}

// method promises by its name that it is safe to repeat.
const method = "/benchmark.Echo/Get"

// grpcInvokes identifies grpc's own invoker, which makes the calls of the last interceptor. grpc's invoker needs a
// server, so the benchmark replaces it by another function.
//
//go:linkname grpcInvokes github.com/gohedge/hedge/internal/grpcattempt.grpcInvoke
var grpcInvokes struct {
	name string
	own  atomic.Uintptr
}

// BenchmarkNoHedge measures a call over a base that answers at once: the cost of hedging alone.
func BenchmarkNoHedge(b *testing.B) {
	call := func(rt http.RoundTripper, req *http.Request) {
		resp, err := rt.RoundTrip(req)
		if err != nil {
			panic(err) // instantTransport does not fail
		}
		_ = resp.Body.Close()
	}
	fresh := func(rt http.RoundTripper, req *http.Request) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		call(rt, req.WithContext(ctx))
	}
	for _, variant := range []struct {
		name string
		base instantTransport
		one  func(http.RoundTripper, *http.Request)
	}{{"http1", 1, call}, {"http1-fresh-context", 1, fresh}, {"http2", 2, call}, {"http2-fresh-context", 2, fresh}} {
		base, one := variant.base, variant.one
		b.Run(variant.name, func(b *testing.B) {
			for _, contender := range contenders {
				b.Run(contender, func(b *testing.B) {
					var stats *hedge.Stats
					rt := transports(b, &stats)[contender](base)
					req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://host.test/", nil)
					require.NoError(b, err)
					for range warmUpCalls {
						one(rt, req)
					}
					b.ReportAllocs()
					for b.Loop() {
						one(rt, req)
					}
					if contender == "hedge" {
						requireUnhedged(b, stats)
					}
				})
			}
		})
	}
	b.Run("http2-ten-headers", func(b *testing.B) {
		for _, contender := range contenders {
			b.Run(contender, func(b *testing.B) {
				rt := transports(b, new(*hedge.Stats))[contender](instantTransport(2))
				req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://host.test/", nil)
				require.NoError(b, err)
				for _, name := range []string{"Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Cookie", "If-None-Match", "Traceparent", "User-Agent", "X-Request-Id", "X-Tenant"} {
					req.Header.Set(name, "some/value")
				}
				for range warmUpCalls {
					call(rt, req)
				}
				b.ReportAllocs()
				for b.Loop() {
					call(rt, req)
				}
			})
		}
	})
	b.Run("http2-parallel", func(b *testing.B) {
		for _, contender := range contenders {
			b.Run(contender, func(b *testing.B) {
				rt := transports(b, new(*hedge.Stats))[contender](instantTransport(2))
				req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://host.test/", nil)
				require.NoError(b, err)
				for range warmUpCalls {
					call(rt, req)
				}
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						call(rt, req)
					}
				})
			})
		}
	})

	cc, err := grpc.NewClient("passthrough:///host.test", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	defer cc.Close()
	req, reply := wrapperspb.Int64(1), new(wrapperspb.Int64Value)
	// An interceptor below may change the request, so hedging encodes it first unless its interceptor is the last one.
	below := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	last := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	grpcInvokes.own.Store(reflect.ValueOf(last).Pointer())
	require.True(b, grpcattempt.IsGRPCInvoker(last), "grpcInvokes is not the variable of package grpcattempt")
	for _, variant := range []struct {
		name   string
		fresh  bool
		invoke grpc.UnaryInvoker
	}{{"grpc", false, below}, {"grpc-fresh-context", true, below}, {"grpc-last", false, last}, {"grpc-last-fresh-context", true, last}} {
		b.Run(variant.name, func(b *testing.B) {
			for _, contender := range contenders {
				var stats *hedge.Stats
				intercept := interceptors(&stats)[contender]
				if intercept == nil {
					continue
				}
				one := func() {
					ctx := context.Background()
					if variant.fresh {
						var cancel context.CancelFunc
						ctx, cancel = context.WithCancel(ctx)
						defer cancel()
					}
					if err := intercept(ctx, method, req, reply, cc, variant.invoke); err != nil {
						panic(err) // invoke does not fail
					}
				}
				b.Run(contender, func(b *testing.B) {
					for range warmUpCalls {
						one()
					}
					b.ReportAllocs()
					for b.Loop() {
						one()
					}
					if contender == "hedge" {
						requireUnhedged(b, stats)
					}
				})
			}
		})
	}
}

// BenchmarkLoopback measures the throughput over loopback sockets with 1, 16 and 64 callers. Each contender takes turns
// with a bare client: x-bare is its throughput, and cpu-x-bare its CPU time per request (client and server), in multiples
// of the bare client's.
func BenchmarkLoopback(b *testing.B) {
	for _, protocol := range []struct {
		name    string
		connect func(tb testing.TB, contender string, stats **hedge.Stats) func() error
	}{{"http1", newHTTP1Call}, {"http2", newHTTP2Call}, {"grpc", newGRPCCall}} {
		b.Run(protocol.name, func(b *testing.B) {
			for _, callers := range []struct {
				name string
				n    int
			}{{"c1", 1}, {"c16", 16}, {"c64", 64}} {
				b.Run(callers.name, func(b *testing.B) {
					for _, contender := range contenders {
						if contender == "hedgedhttp" && protocol.name == "grpc" {
							continue
						}
						b.Run(contender, func(b *testing.B) {
							var stats *hedge.Stats
							measureThroughput(b, callers.n, protocol.connect(b, "bare", new(*hedge.Stats)), protocol.connect(b, contender, &stats))
							if contender == "hedge" {
								requireUnhedged(b, stats)
							}
						})
					}
				})
			}
		})
	}
}

// measureThroughput makes b.N calls of a contender and as many of a bare client, in turns.
func measureThroughput(b *testing.B, callers int, bare, call func() error) {
	type meter struct{ took, cpu time.Duration }
	burst := func(m *meter, f func() error, n int) {
		before, _ := cputime.Process()
		start := time.Now()
		var left atomic.Int64
		left.Store(int64(n))
		var wg sync.WaitGroup
		for range min(callers, n) {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					if err := f(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		m.took += time.Since(start)
		after, _ := cputime.Process()
		m.cpu += after - before
	}
	const turn = 2000
	var base, mine, warmUp meter
	for range warmUpCalls / turn {
		burst(&warmUp, bare, turn)
		burst(&warmUp, call, turn)
	}
	b.ResetTimer()
	for done, n := 0, 0; done < b.N; done += n {
		n = min(turn, b.N-done)
		b.StopTimer()
		burst(&base, bare, n)
		b.StartTimer()
		burst(&mine, call, n)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/mine.took.Seconds(), "req/s")
	b.ReportMetric(float64(mine.cpu.Microseconds())/float64(b.N), "cpu-µs/req")
	b.ReportMetric(float64(base.took)/float64(mine.took), "x-bare")
	b.ReportMetric(float64(mine.cpu)/float64(max(base.cpu, 1)), "cpu-x-bare")
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "hello") // a client that is gone does not read it
})

func newHTTP1Call(tb testing.TB, contender string, stats **hedge.Stats) func() error {
	s := httptest.NewServer(hello)
	tb.Cleanup(s.Close)
	return newHTTPCall(tb, s, &http.Transport{MaxIdleConnsPerHost: 256}, contender, stats)
}

func newHTTP2Call(tb testing.TB, contender string, stats **hedge.Stats) func() error {
	s := httptest.NewUnstartedServer(hello)
	s.EnableHTTP2 = true
	s.StartTLS()
	tb.Cleanup(s.Close)
	return newHTTPCall(tb, s, s.Client().Transport.(*http.Transport).Clone(), contender, stats)
}

func newHTTPCall(tb testing.TB, s *httptest.Server, base *http.Transport, contender string, stats **hedge.Stats) func() error {
	tb.Cleanup(base.CloseIdleConnections)
	client := &http.Client{Transport: transports(tb, stats)[contender](base)}
	return func() error {
		resp, err := client.Get(s.URL)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
}

var echo = grpc.ServiceDesc{
	ServiceName: "benchmark.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Get",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			v := new(wrapperspb.Int64Value)
			return v, decode(v)
		},
	}},
}

func newGRPCCall(tb testing.TB, contender string, stats **hedge.Stats) func() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	s := grpc.NewServer()
	s.RegisterService(&echo, nil)
	go func() { _ = s.Serve(ln) }() // until stopped
	tb.Cleanup(s.Stop)
	cc, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(interceptors(stats)[contender]))
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = cc.Close() })
	return func() error {
		return cc.Invoke(context.Background(), method, wrapperspb.Int64(1), new(wrapperspb.Int64Value))
	}
}

// BenchmarkDelay reads the delay in the schedule of a key.
func BenchmarkDelay(b *testing.B) {
	key := policy.New(policy.Config{Percentile: 0.90, MaxHedges: 2, Share: 0.10, EstimatedRPS: 100, Burst: 2 * time.Second, MinDelay: time.Millisecond, MaxKeys: 4096, HasShortBucket: true}).Key(policy.Name{Host: "host.test"})
	now := time.Now()
	for i := range warmUpCalls {
		key.Begin(now)
		key.RecordCall(now, policy.Result{Latency: time.Duration(i%100) * time.Millisecond, Answered: true, HasSlowMarker: true})
	}
	var delay time.Duration
	b.ReportAllocs()
	for b.Loop() {
		delay = key.Schedule().Delays[0]
	}
	require.Positive(b, delay)
}
