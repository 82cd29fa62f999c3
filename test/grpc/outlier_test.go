//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"strconv"
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

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/grpctest"
)

func init() { grpctest.RegisterOutlierModel() }

// outlierClient returns a client of n backends by hedge_elsewhere above the model of outlier detection above round_robin. Calls with
// the context are hedged after 20 ms, and counts has what outlier detection counts of them.
func outlierClient(t *testing.T, n int, opts ...grpc.DialOption) (f *grpctest.Backends, client testpb.TestServiceClient, ctx context.Context, counts *grpctest.OutlierCounts) {
	f = grpctest.NewBackends(t, n)
	in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(300), hedge.WithMaxHedges(1))
	client, _ = f.Client(t, grpctest.OutlierDetectionConfig("round_robin", ""), in, opts...)
	counts = new(grpctest.OutlierCounts)
	return f, client, counts.NewContext(hedge.WithDelay(t.Context(), 20*ms)), counts
}

func TestOutlierDetectionBelowHedgeElsewhereCountsNoLoser(t *testing.T) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, client, ctx, counts := outlierClient(t, 3)
				f.Delays[0].Store(int64(time.Second))
				lost := 0
				for range 30 {
					at, err := f.RecordCall(ctx, call(client))
					require.NoError(t, err)
					if len(at) == 2 {
						lost++
					}
				}
				synctest.Wait()
				assert.GreaterOrEqual(t, lost, 5)
				assert.Empty(t, counts.Failures())
				successes := counts.Successes()
				assert.Equal(t, 30, successes["backend1:443"]+successes["backend2:443"])
				assert.Zero(t, successes["backend0:443"], "a loser has shown no success either")
			})
		})
	}
}

func TestOutlierDetectionBelowHedgeElsewhereCountsFailures(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.NotFound} {
		for name, call := range calls {
			for _, delay := range []time.Duration{10 * ms, 25 * ms} { // before and after its hedge was sent
				t.Run(code.String()+" "+name+" "+delay.String(), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f, client, ctx, counts := outlierClient(t, 3)
						f.Codes[0].Store(uint32(code))
						f.Delays[0].Store(int64(delay))
						failed := 0
						for range 30 {
							at, _ := f.RecordCall(ctx, call(client))
							for _, backend := range at {
								if backend == 1 {
									failed++
								}
							}
						}
						synctest.Wait()
						assert.GreaterOrEqual(t, failed, 5)
						assert.Equal(t, map[string]int{"backend0:443": failed}, counts.Failures())
					})
				})
			}
		}
	}
}

// TestOutlierDetectionBelowHedgeElsewhereCountsPrimaryOfEndedCall has a caller that gives up. Outlier detection then
// counts one failure of a call, as without hedging, although two attempts have ended.
func TestOutlierDetectionBelowHedgeElsewhereCountsPrimaryOfEndedCall(t *testing.T) {
	for name, call := range calls {
		for end, limit := range map[string]func(context.Context) (context.Context, context.CancelFunc){
			"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 100*ms)
			},
			"cancellation": func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(100*ms, cancel)
				return ctx, cancel
			},
			"deadline that the server observes first": func(ctx context.Context) (context.Context, context.CancelFunc) {
				return deadlineWithoutTimer{ctx, time.Now().Add(100 * ms)}, func() {}
			},
			"timeout of the method": context.WithCancel,
		} {
			t.Run(name+" "+end, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var opts []grpc.DialOption
					if end == "timeout of the method" {
						opts = append(opts, grpc.WithDefaultServiceConfig(grpctest.OutlierDetectionConfig("round_robin", `,"methodConfig":[{"name":[{}],"timeout":"0.1s"}]`)))
					}
					f, client, ctx, counts := outlierClient(t, 2, opts...)
					f.Delays[0].Store(int64(time.Second))
					f.Delays[1].Store(int64(time.Second))
					f.IgnoresEnd.Store(true) // otherwise they may fail the attempts at the deadline, which counts
					primaries := make(map[string]int)
					for range 4 { // in each, the attempts may end in another order
						ctx, cancel := limit(ctx)
						at, err := f.RecordCall(ctx, call(client))
						cancel()
						require.Error(t, err)
						require.Len(t, at, 2)
						primaries[f.Addrs[at[0]-1].Addr]++
						time.Sleep(time.Second) // the servers end
					}
					synctest.Wait()
					assert.Equal(t, primaries, counts.Failures())
				})
			})
		}
	}
}

// A deadlineWithoutTimer is a context that does not end at its deadline, as if its timer were late.
type deadlineWithoutTimer struct {
	context.Context
	deadline time.Time
}

func (c deadlineWithoutTimer) Deadline() (time.Time, bool) { return c.deadline, true }

// TestOutlierDetectionBelowHedgeElsewhereCountsStreamOfWinner ends a stream after its first message. That counts as a
// failure of its backend, as without hedging.
func TestOutlierDetectionBelowHedgeElsewhereCountsStreamOfWinner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, client, ctx, counts := outlierClient(t, 2)
		f.Delays[0].Store(int64(time.Second))
		ended := 0
		for range 4 {
			at, err := f.RecordCall(ctx, func(ctx context.Context) error {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				s, err := client.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
				if err != nil {
					return err
				}
				_, err = s.Recv()
				return err
			})
			require.NoError(t, err)
			if len(at) == 2 {
				ended++
			}
			synctest.Wait()
		}
		assert.Positive(t, ended)
		assert.Equal(t, map[string]int{"backend1:443": 4}, counts.Failures())
	})
}

// TestOutlierDetectionBelowHedgeElsewhereCountsNoCallOfLoser has unhedged calls within the attempts of hedge.Do.
func TestOutlierDetectionBelowHedgeElsewhereCountsNoCallOfLoser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, client, ctx, counts := outlierClient(t, 3)
		f.Delays[0].Store(int64(time.Second))
		hedger := hedge.NewHedger(hedge.WithBudgetPercent(100))
		lost := 0
		for range 30 {
			var attempts atomic.Int64
			_, err := hedge.Do(ctx, hedger, "GET", func(ctx context.Context) (string, error) {
				attempts.Add(1)
				_, err := client.UnaryCall(hedge.WithoutHedging(ctx), new(testpb.SimpleRequest))
				return "", err
			})
			require.NoError(t, err)
			synctest.Wait()
			if attempts.Load() == 2 {
				lost++
			}
		}
		assert.GreaterOrEqual(t, lost, 5)
		assert.Empty(t, counts.Failures())
		assert.Len(t, counts.All(), 30)
	})
}

// TestOutlierDetectionBelowHedgeElsewhereCountsTimeoutOfTry has an interceptor below hedging that limits the RPC of a hedge, as
// retries with a timeout for each try do. The timeout passes while the call continues.
func TestOutlierDetectionBelowHedgeElsewhereCountsTimeoutOfTry(t *testing.T) {
	limit := func(ctx context.Context) context.Context {
		if a, _ := hedge.AttemptFromContext(ctx); a.Number > 0 {
			ctx, cancel := context.WithTimeout(ctx, 100*ms)
			context.AfterFunc(ctx, cancel)
			return ctx
		}
		return ctx
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, client, ctx, counts := outlierClient(t, 2,
					grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
						return invoker(limit(ctx), method, req, reply, cc, opts...)
					}),
					grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
						return streamer(limit(ctx), desc, cc, method, opts...)
					}))
				f.Delays[0].Store(int64(300 * ms))
				f.Delays[1].Store(int64(300 * ms))
				at, err := f.RecordCall(ctx, call(client))
				require.NoError(t, err)
				require.Len(t, at, 2)
				synctest.Wait()
				assert.Equal(t, map[string]int{f.Addrs[at[1]-1].Addr: 1}, counts.Failures())
			})
		})
	}
}

// TestOutlierDetectionBelowHedgeElsewhereCountsTimeoutOfCallInAttempt has unhedged calls within the attempts of hedge.Do. Only
// the deadline of the caller ends the hedge; a timeout that the function sets for its call does not.
func TestOutlierDetectionBelowHedgeElsewhereCountsTimeoutOfCallInAttempt(t *testing.T) {
	for name, limits := range map[string]struct {
		caller, hedge time.Duration
		failed        int64 // number of the attempt whose call counts as a failure
	}{
		"of the call":   {time.Hour, 100 * ms, 1},
		"of the caller": {100 * ms, time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, client, ctx, counts := outlierClient(t, 2)
				f.IgnoresEnd.Store(true)
				f.Delays[0].Store(int64(300 * ms))
				f.Delays[1].Store(int64(300 * ms))
				hedger := hedge.NewHedger(hedge.WithBudgetPercent(100), hedge.WithMaxHedges(1))
				ctx, cancel := context.WithTimeout(ctx, limits.caller)
				defer cancel()
				var attempts atomic.Int64
				_, err := hedge.Do(ctx, hedger, "GET", func(ctx context.Context) (string, error) {
					n := attempts.Add(1) - 1
					if n > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, limits.hedge)
						defer cancel()
					}
					ctx = metadata.AppendToOutgoingContext(hedge.WithoutHedging(ctx), "number", strconv.FormatInt(n, 10))
					_, err := client.UnaryCall(ctx, new(testpb.SimpleRequest))
					return "", err
				})
				require.Equal(t, limits.failed == 0, err != nil, "%v", err)
				require.EqualValues(t, 2, attempts.Load())
				time.Sleep(time.Second) // the servers end
				var failed []string
				for _, c := range counts.All() {
					if c.Code != codes.OK {
						failed = append(failed, c.Metadata.Get("number")...)
					}
				}
				assert.Equal(t, []string{strconv.FormatInt(limits.failed, 10)}, failed)
			})
		})
	}
}
