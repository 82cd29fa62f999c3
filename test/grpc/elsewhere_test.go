//go:build !hedge_nogrpc

package grpc_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/grpctest"
)

var calls = map[string]func(testpb.TestServiceClient) func(context.Context) error{"unary": grpctest.UnaryCaller, "stream": grpctest.StreamCaller}

func denied(in *hedge.Interceptor, reason hedge.Reason) (n int64) {
	for _, k := range in.Snapshot().Keys {
		n += k.Denied[reason]
	}
	return n
}

func TestHedgeElsewhereSendsEachHedgeToUnusedBackend(t *testing.T) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := grpctest.NewBackends(t, 3)
				in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(300), hedge.WithMaxHedges(3))
				client, _ := f.Client(t, grpctest.HedgeElsewhereConfig("round_robin"), in)
				for i := range f.Delays {
					f.Delays[i].Store(int64(time.Second))
				}
				for range 10 {
					at, err := f.RecordCall(hedge.WithDelay(t.Context(), 20*ms), call(client))
					require.NoError(t, err)
					require.Len(t, at, 4)
					assert.ElementsMatch(t, []int{1, 2, 3}, at[:3])
					assert.NotEqual(t, at[0], at[3], "the primary's is the last resort")
				}
			})
		})
	}
}

func TestHedgeElsewhereAsItsOwnChildPicksOtherBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := grpctest.NewBackends(t, 2)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1))
		client, _ := f.Client(t, `{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"hedge_elsewhere":{}}]}}]}`, in)
		f.Delays[0].Store(int64(time.Second))
		for range 2 {
			at, err := f.RecordCall(hedge.WithDelay(t.Context(), 5*ms), grpctest.UnaryCaller(client))
			require.NoError(t, err)
			require.Len(t, at, 2)
			assert.NotEqual(t, at[0], at[1])
		}
	})
}

func TestHedgeElsewhereHedgesSingleBackend(t *testing.T) {
	for _, ready := range []int{1, 2} {
		for name, call := range calls {
			t.Run(fmt.Sprint(name, ready), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := grpctest.NewBackends(t, 1)
					if ready == 2 { // the other one is down
						f.Addrs = append(f.Addrs, resolver.Address{Addr: "client:443"})
					}
					in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1))
					client, _ := f.Client(t, grpctest.HedgeElsewhereConfig("round_robin"), in)
					f.Delays[0].Store(int64(time.Second))
					at, err := f.RecordCall(hedge.WithDelay(t.Context(), 20*ms), call(client))
					require.NoError(t, err)
					assert.Equal(t, []int{1, 1}, at)
					assert.Zero(t, denied(in, hedge.DeniedSameBackend))
				})
			})
		}
	}
}

func TestHedgeElsewhereSendsNoHedgeWithoutOtherBackend(t *testing.T) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := grpctest.NewBackends(t, 2)
				seen := new(recorder)
				var stats *hedge.Stats
				in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithStats(&stats), hedge.WithObserver(seen))
				client, _ := f.Client(t, grpctest.HedgeElsewhereConfig("test_sticky"), in)
				f.Delays[0].Store(int64(time.Second))
				seen.Take()
				picks, done := grpctest.StickyPicks.Load(), grpctest.StickyDone.Load()
				start := time.Now()
				at, err := f.RecordCall(hedge.WithDelay(t.Context(), 20*ms), call(client))
				require.NoError(t, err)
				assert.Equal(t, time.Second, time.Since(start))
				assert.Equal(t, []int{1}, at)
				synctest.Wait()

				assert.EqualValues(t, 1, denied(in, hedge.DeniedSameBackend))
				assert.Zero(t, stats.HedgedRequests.Load())
				assert.Zero(t, stats.HedgesSent.Load())
				for _, k := range in.Snapshot().Keys {
					assert.Zero(t, k.Hedges)
					assert.GreaterOrEqual(t, k.Budget, 5.0, "the token was given back: the second key begins with five")
				}
				assert.Equal(t, []string{"start 0", "start 1", "denied: same-backend", "withdrawn 1 after 0", "won 0 after 1000", "done by 0 of 1 after 1000"}, seen.Take())
				assert.EqualValues(t, 6, grpctest.StickyPicks.Load()-picks, "the primary's and five")
				assert.EqualValues(t, 6, grpctest.StickyDone.Load()-done)
			})
		})
	}
}

func TestHedgeElsewhereReturnsPrimaryErrorIfHedgeIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := grpctest.NewBackends(t, 2)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"))
		want := errors.New("of the primary")
		late := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if a, _ := hedge.AttemptFromContext(ctx); a.Number == 0 && f.Calls.Load() > 0 {
				return want
			}
			return err
		}
		client, _ := f.Client(t, grpctest.HedgeElsewhereConfig("test_sticky"), in, grpc.WithChainUnaryInterceptor(late))
		f.Delays[0].Store(int64(time.Second))
		_, err := f.RecordCall(hedge.WithDelay(t.Context(), 20*ms), grpctest.UnaryCaller(client))
		assert.Same(t, want, err)
	})
}

func TestHedgeElsewhereIgnoresCallsMadeByHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := grpctest.NewBackends(t, 2)
		in := hedge.NewInterceptor(hedge.WithMethods(testpb.TestService_UnaryCall_FullMethodName), hedge.WithMaxHedges(1))
		var nested []error
		fetchToken := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if a, _ := hedge.AttemptFromContext(ctx); a.Number > 0 && method != testpb.TestService_EmptyCall_FullMethodName {
				_, err := testpb.NewTestServiceClient(cc).EmptyCall(ctx, new(testpb.Empty))
				nested = append(nested, err)
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		client, _ := f.Client(t, grpctest.HedgeElsewhereConfig("test_sticky"), in, grpc.WithChainUnaryInterceptor(fetchToken))
		f.Delays[0].Store(int64(time.Second))
		_, err := f.RecordCall(hedge.WithDelay(t.Context(), 20*ms), grpctest.UnaryCaller(client))
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, []error{nil}, nested)
		assert.EqualValues(t, 1, denied(in, hedge.DeniedSameBackend))
	})
}

// TestHedgeElsewhereRecognisesHedgeOfRenamedMethod has an interceptor below that changes the method, for example to add
// a version.
func TestHedgeElsewhereRecognisesHedgeOfRenamedMethod(t *testing.T) {
	renamed := map[string]string{"/shop.Catalog/Get": testpb.TestService_UnaryCall_FullMethodName, "/shop.Catalog/List": testpb.TestService_StreamingOutputCall_FullMethodName}
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return invoke(ctx, cmp.Or(renamed[method], method), req, reply, cc, opts...)
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return streamer(ctx, desc, cc, cmp.Or(renamed[method], method), opts...)
	}
	for name, call := range map[string]func(context.Context, *grpc.ClientConn) error{
		"unary": func(ctx context.Context, cc *grpc.ClientConn) error {
			return cc.Invoke(ctx, "/shop.Catalog/Get", new(testpb.SimpleRequest), new(testpb.SimpleResponse))
		},
		"stream": func(ctx context.Context, cc *grpc.ClientConn) error {
			s, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/shop.Catalog/List")
			if err != nil {
				return err
			}
			return errors.Join(s.SendMsg(new(testpb.StreamingOutputCallRequest)), s.CloseSend(), s.RecvMsg(new(testpb.StreamingOutputCallResponse)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := grpctest.NewBackends(t, 2)
				in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1))
				_, cc := f.Client(t, grpctest.HedgeElsewhereConfig("test_sticky"), in, grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream))
				f.Delays[0].Store(int64(time.Second))
				at, err := f.RecordCall(hedge.WithDelay(t.Context(), 20*ms), func(ctx context.Context) error { return call(ctx, cc) })
				require.NoError(t, err)
				assert.Equal(t, []int{1}, at)
				assert.EqualValues(t, 1, denied(in, hedge.DeniedSameBackend))
			})
		})
	}
}

func TestHedgeElsewhereIgnoresCallsMadeByPrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := grpctest.NewBackends(t, 2)
		in := hedge.NewInterceptor(hedge.WithMethods(testpb.TestService_UnaryCall_FullMethodName), hedge.WithMaxHedges(1))
		report := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if a, _ := hedge.AttemptFromContext(ctx); a.Number == 0 && f.Calls.Load() > 0 && method != testpb.TestService_EmptyCall_FullMethodName {
				time.AfterFunc(5*ms, func() {
					_, err := testpb.NewTestServiceClient(cc).EmptyCall(ctx, new(testpb.Empty))
					assert.NoError(t, err)
				})
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		client, _ := f.Client(t, grpctest.HedgeElsewhereConfig("test_sticky"), in, grpc.WithChainUnaryInterceptor(report))
		f.Delays[0].Store(int64(time.Second))
		grpctest.StickyOtherPick.Store(2) // what is called on behalf of the primary goes to the second backend
		at, err := f.RecordCall(hedge.WithDelay(t.Context(), 20*ms), grpctest.UnaryCaller(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1}, at)
		assert.EqualValues(t, 1, denied(in, hedge.DeniedSameBackend))
	})
}

// lessons returns n equal ends of picks.
func lessons(backend int, took time.Duration, code codes.Code, n int) []grpctest.PickEnd {
	return slices.Repeat([]grpctest.PickEnd{{Backend: backend, Took: took, Code: code}}, n)
}

// TestHedgeElsewhereUnusedPicksDoNotAffectLatencyAverage expects that an unused pick ends together with the attempt at
// the same backend. A time-weighted average, as in Finagle, go-zero and kratos, then ignores it.
func TestHedgeElsewhereUnusedPicksDoNotAffectLatencyAverage(t *testing.T) {
	for name, c := range map[string]struct {
		plan   []int // the primary's pick, and those for hedges
		refuse int64
		want   []grpctest.PickEnd
	}{
		"the hedge is not sent": {want: slices.Concat(lessons(1, time.Second, codes.OK, 1),
			lessons(1, 980*ms, codes.Canceled, 5), lessons(1, 960*ms, codes.Canceled, 5))},
		"the hedge wins": {plan: []int{1, 1, 1, 2}, want: slices.Concat(lessons(2, 10*ms, codes.OK, 1),
			lessons(1, 30*ms, codes.Canceled, 1), lessons(1, 10*ms, codes.Canceled, 2))},
		"another hedge has the backend": {plan: []int{1, 3, 3, 2}, want: slices.Concat(lessons(2, 10*ms, codes.OK, 1),
			lessons(1, 50*ms, codes.Canceled, 1), lessons(3, 30*ms, codes.Canceled, 1), lessons(3, 10*ms, codes.Canceled, 1))},
		"another hedge had the backend": {plan: []int{1, 2, 2, 3}, refuse: 1, want: slices.Concat(lessons(2, 0, codes.Unavailable, 1),
			lessons(3, 100*ms, codes.OK, 1), lessons(2, 100*ms, codes.Canceled, 1), lessons(1, 140*ms, codes.Canceled, 1))},
	} {
		for kind, call := range calls {
			for above, config := range map[string]string{
				"the balancer": grpctest.HedgeElsewhereConfig("test_recorder"), "outlier detection": grpctest.OutlierDetectionConfig("test_recorder", ""),
			} {
				t.Run(name+" "+kind+" below "+above, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := grpctest.NewBackends(t, 3)
						in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(2))
						client, _ := f.Client(t, config, in)
						f.Delays[0].Store(int64(time.Second))
						f.Delays[2].Store(int64(100 * ms))
						f.RefusedHedges.Store(c.refuse)
						grpctest.PickRecorder.SetPicks(c.plan...)
						counts := new(grpctest.OutlierCounts)
						_, err := f.RecordCall(counts.NewContext(hedge.WithDelay(t.Context(), 20*ms)), call(client))
						require.NoError(t, err)
						synctest.Wait()
						got := grpctest.PickRecorder.SetPicks()
						assert.ElementsMatch(t, c.want, got)
						for n := range f.Delays {
							of := func(l grpctest.PickEnd) bool { return l.Backend != n+1 }
							want, got := slices.DeleteFunc(slices.Clone(c.want), of), slices.DeleteFunc(slices.Clone(got), of)
							if len(want) > 0 && len(got) > 0 {
								assert.Equal(t, want[0], got[0], "the attempt ends before what was picked in vain")
							}
						}
						if above == "outlier detection" {
							assert.Len(t, counts.All(), 1+int(c.refuse), "it counts the winner and the refused hedge")
						}
					})
				})
			}
		}
	}
}

// TestHedgeElsewhereEndsUnusedPicksDuringLongStream has a long stream. A child policy that counts open picks would
// otherwise avoid the backends of the unused picks for hours.
func TestHedgeElsewhereEndsUnusedPicksDuringLongStream(t *testing.T) {
	for name, c := range map[string]struct {
		plan, delays []int // the primary's pick, and those for hedges; of the backends, in ms
		want         []grpctest.PickEnd
	}{
		"the primary wins": {plan: []int{1, 1, 1, 2}, delays: []int{30, 1000, 10}, want: lessons(1, 1010*ms, codes.Canceled, 2)},
		"the hedge wins, which has the backend of picks for the next one": {plan: []int{1, 2, 2, 2, 3}, delays: []int{1000, 40, 1000},
			want: lessons(2, 1020*ms, codes.Canceled, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := grpctest.NewBackends(t, 3)
				in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(2), hedge.WithBudgetPercent(300))
				client, _ := f.Client(t, grpctest.HedgeElsewhereConfig("test_recorder"), in)
				for i, d := range c.delays {
					f.Delays[i].Store(int64(d) * int64(ms))
				}
				grpctest.PickRecorder.SetPicks(c.plan...)
				ctx, cancel := context.WithCancel(hedge.WithDelay(t.Context(), 20*ms))
				s, err := client.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
				require.NoError(t, err)
				_, err = s.Recv()
				require.NoError(t, err)
				time.Sleep(time.Hour)
				got := grpctest.PickRecorder.SetPicks()
				assert.Len(t, got, len(c.plan)-1, "all but the stream: %v", got)
				assert.Subset(t, got, c.want)
				cancel()
				synctest.Wait()
				assert.Len(t, grpctest.PickRecorder.SetPicks(), 1)
			})
		})
	}
}

func TestHedgeElsewhereSendsHedgeBeforePrimaryHasBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := grpctest.NewBackends(t, 2)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"))
		slow := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if a, _ := hedge.AttemptFromContext(ctx); a.Number == 0 && f.Calls.Load() > 0 {
				if err := doubles.Sleep(ctx, time.Second); err != nil {
					return err
				}
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		client, _ := f.Client(t, grpctest.HedgeElsewhereConfig("test_sticky"), in, grpc.WithChainUnaryInterceptor(slow))
		start := time.Now()
		_, err := f.RecordCall(hedge.WithDelay(t.Context(), 20*ms), grpctest.UnaryCaller(client))
		require.NoError(t, err)
		assert.Equal(t, 20*ms+grpctest.DefaultDelay, time.Since(start))
	})
}

func TestHedgeElsewhereRejectsInvalidConfig(t *testing.T) {
	for config, want := range map[string]string{
		`[]`:                            "hedge_elsewhere: json: cannot unmarshal",
		`{"childPolicy":"round_robin"}`: "hedge_elsewhere: json: cannot unmarshal string",
		`{"childPolicy":[]}`:            "childPolicy names no registered policy: []",
		`{"childPolicy":[{}]}`:          "childPolicy[0] has 0 names instead of one",
		`{"childPolicy":[{"no_such":{}},{"nor_such":{}}]}`:          `childPolicy names no registered policy: ["no_such" "nor_such"]`,
		`{"childPolicy":[{"no_such":{}},{"a":{},"b":{}}]}`:          "childPolicy[1] has 2 names instead of one",
		`{"childPolicy":[{"pick_first":{"shuffleAddressList":1}}]}`: "childPolicy[0], pick_first: ",
		`{"child":[{"pick_first":{}}]}`:                             `hedge_elsewhere: json: unknown field "child"`,
		`{"childPolicy":[{"pick_first":{}}],"child":1}`:             `hedge_elsewhere: json: unknown field "child"`,
	} {
		_, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"hedge_elsewhere":`+config+`}]}`))
		assert.ErrorContains(t, err, want, config)
	}
	for _, config := range []string{
		`{"loadBalancingConfig":[{"hedge_elsewhere":{}}]}`, `{"loadBalancingConfig":[{"hedge_elsewhere":null}]}`, `{"loadBalancingPolicy":"hedge_elsewhere"}`,
		`{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"no_such":{}},{"pick_first":{}}]}}]}`,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := grpctest.NewBackends(t, 2)
			client, _ := f.Client(t, config, hedge.NewInterceptor(hedge.WithMethods("/*")))
			_, err := f.RecordCall(t.Context(), grpctest.UnaryCaller(client))
			assert.NoError(t, err, config)
		})
	}
}

// TestHedgeElsewhereBridgesPausesOfBackend has ten callers for 8 s, and a backend that pauses for 100 ms in each
// second.
func TestHedgeElsewhereBridgesPausesOfBackend(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	p999 := func(t *testing.T, n int, config string) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			f := grpctest.NewBackends(t, n)
			in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBurst(20*time.Second))
			client, _ := f.Client(t, config, in)
			f.FirstPauses.Store(true)
			began := time.Now()
			var mu sync.Mutex
			var all []time.Duration
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * ms)
					for time.Since(began) < 8*time.Second {
						start := time.Now()
						assert.NoError(t, grpctest.UnaryCaller(client)(t.Context()))
						mu.Lock()
						all = append(all, time.Since(start))
						mu.Unlock()
						time.Sleep(2 * ms)
					}
				})
			}
			wg.Wait()
			slices.Sort(all)
			took = all[len(all)*999/1000]
		})
		return took
	}
	for _, n := range []int{2, 3} {
		same, other := p999(t, n, `{"loadBalancingConfig":[{"round_robin":{}}]}`), p999(t, n, grpctest.HedgeElsewhereConfig("round_robin"))
		t.Logf("%d backends: p99.9 %v with round_robin, %v with hedge_elsewhere", n, same, other)
		assert.LessOrEqual(t, other, same*3/10)
	}
}

// TestHedgeElsewhereRetriesHedgeAtOtherBackend has a hedge that gRPC retries. Its earlier backend does not count as the
// backend of another attempt.
func TestHedgeElsewhereRetriesHedgeAtOtherBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := grpctest.NewBackends(t, 2)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1))
		client, _ := f.Client(t, `{"loadBalancingConfig":[{"hedge_elsewhere":{}}], "methodConfig":[{"name":[{}], "retryPolicy":
			{"maxAttempts":3, "initialBackoff":"0.001s", "maxBackoff":"0.001s", "backoffMultiplier":1, "retryableStatusCodes":["UNAVAILABLE"]}}]}`, in)
		for range 4 {
			for i := range f.Delays {
				f.Delays[i].Store(int64(time.Second))
			}
			f.RefusedHedges.Store(1) // of the hedges
			at, err := f.RecordCall(hedge.WithDelay(t.Context(), 20*ms), grpctest.UnaryCaller(client))
			require.NoError(t, err)
			require.Len(t, at, 2)
			assert.NotEqual(t, at[0], at[1])
			assert.Zero(t, f.RefusedHedges.Load())
			assert.Zero(t, denied(in, hedge.DeniedSameBackend))
		}
	})
}

// TestHedgeElsewhereChargesHedgeWhoseRetryIsRefused has a hedge that was sent before its retry is refused.
func TestHedgeElsewhereChargesHedgeWhoseRetryIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := grpctest.NewBackends(t, 2)
		seen := new(recorder)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithObserver(seen))
		client, _ := f.Client(t, `{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"test_sticky":{}}]}}], "methodConfig":[{"name":[{}], "retryPolicy":
			{"maxAttempts":3, "initialBackoff":"0.001s", "maxBackoff":"0.001s", "backoffMultiplier":1, "retryableStatusCodes":["UNAVAILABLE"]}}]}`, in)
		f.Delays[0].Store(int64(time.Second))
		f.RefusedHedges.Store(1)
		grpctest.StickyOtherPick.Store(3) // after the primary's and the first for the hedge
		seen.Take()
		at, err := f.RecordCall(hedge.WithDelay(t.Context(), 20*ms), grpctest.UnaryCaller(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2}, at)
		synctest.Wait()
		assert.Zero(t, f.RefusedHedges.Load())
		assert.Zero(t, denied(in, hedge.DeniedSameBackend))
		hedges := int64(0)
		for _, k := range in.Snapshot().Keys {
			hedges += k.Hedges
		}
		assert.EqualValues(t, 1, hedges)
		assert.Contains(t, seen.Take(), "done by 0 of 2 after 1000")
	})
}

// TestHedgeElsewhereRefusedRetryDoesNotEndCall has a hedge whose retry the policy refuses with CANCELLED, which is not
// a status of the server.
func TestHedgeElsewhereRefusedRetryDoesNotEndCall(t *testing.T) {
	for name, opts := range map[string][]hedge.GRPCOption{
		"CANCELLED is an answer": {hedge.WithMethods("/*"), hedge.WithAnswerCodes(codes.Canceled)},
		"a hedging policy":       {hedge.WithServiceConfig(`{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":2,"hedgingDelay":"0.02s"}}]}`)},
	} {
		for kind, call := range calls {
			t.Run(name+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := grpctest.NewBackends(t, 2)
					in := hedge.NewInterceptor(append(opts, hedge.WithMaxHedges(1))...)
					client, _ := f.Client(t, `{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"test_sticky":{}}]}}], "methodConfig":[{"name":[{}], "retryPolicy":
						{"maxAttempts":3, "initialBackoff":"0.001s", "maxBackoff":"0.001s", "backoffMultiplier":1, "retryableStatusCodes":["UNAVAILABLE"]}}]}`, in)
					f.Delays[0].Store(int64(time.Second))
					f.RefusedHedges.Store(1)
					grpctest.StickyOtherPick.Store(3) // after the primary's and the first for the hedge
					start := time.Now()
					at, err := f.RecordCall(hedge.WithDelay(t.Context(), 20*ms), call(client))
					require.NoError(t, err)
					assert.Equal(t, time.Second, time.Since(start))
					assert.Equal(t, []int{1, 2}, at)
					assert.Zero(t, f.RefusedHedges.Load())
				})
			})
		}
	}
}
