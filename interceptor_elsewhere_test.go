package hedge_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	basebalancer "google.golang.org/grpc/balancer/base"
	_ "google.golang.org/grpc/balancer/leastrequest"
	_ "google.golang.org/grpc/balancer/weightedroundrobin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/hedgetest"
	"github.com/gohedge/hedge/internal/netsim"
)

// elsewhere returns a service config in which hedge_elsewhere stands above the policy.
func elsewhere(child string) string {
	return fmt.Sprintf(`{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{%q:{}}]}}]}`, child)
}

// A fleet is a number of backends that note which attempts they see.
type fleet struct {
	network *netsim.Network
	delays  []atomic.Int64 // of each backend, per call
	stops   atomic.Bool    // the first one, for 100 ms of each second
	refuse  atomic.Int64   // so many hedges, with UNAVAILABLE
	calls   atomic.Int64
	found   *manual.Resolver
	conn    chan resolver.ClientConn // of the client
	addrs   []resolver.Address

	mu   sync.Mutex
	seen map[string][]int // the backends of each call, by attempt number
}

type member struct {
	testpb.UnimplementedTestServiceServer
	*fleet
	n int
}

// serve notes the attempt, and waits.
func (m member) serve(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	attempt := 0
	if v := md["grpc-previous-rpc-attempts"]; len(v) > 0 {
		_, _ = fmt.Sscan(v[0], &attempt)
	}
	if id := md["id"]; len(id) > 0 {
		m.mu.Lock()
		at := append(m.seen[id[0]], make([]int, 4)...)[:max(len(m.seen[id[0]]), attempt+1)]
		at[attempt] = m.n + 1
		m.seen[id[0]] = at
		m.mu.Unlock()
	}
	if attempt > 0 && m.refuse.Load() > 0 {
		m.refuse.Add(-1)
		return status.Error(codes.Unavailable, "refused")
	}
	wait := time.Duration(m.delays[m.n].Load())
	if in := time.Duration(time.Now().UnixNano()) % time.Second; m.stops.Load() && m.n == 0 && in < 100*ms {
		wait += 100*ms - in
	}
	return hedgetest.Sleep(ctx, wait)
}

func (m member) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Hostname: fmt.Sprint(m.n)}, m.serve(ctx)
}

func (member) EmptyCall(_ context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	return new(testpb.Empty), nil
}

func (m member) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, s testpb.TestService_StreamingOutputCallServer) error {
	if err := m.serve(s.Context()); err != nil {
		return err
	}
	return s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: fmt.Append(nil, m.n)}})
}

// newFleet starts n backends over a network in memory, for bubbles.
func newFleet(t *testing.T, n int) *fleet {
	hosts := []string{"client"}
	for i := range n {
		hosts = append(hosts, fmt.Sprint("backend", i))
	}
	network, err := netsim.NewMemory(1, hosts...)
	require.NoError(t, err)
	f := &fleet{network: network, delays: make([]atomic.Int64, n), seen: make(map[string][]int), found: manual.NewBuilderWithScheme("fleet"), conn: make(chan resolver.ClientConn, 1)}
	t.Cleanup(func() {
		synctest.Wait()
		assert.NoError(t, network.Close())
	})
	for i := range n {
		f.delays[i].Store(int64(served))
		l, err := network.Host(hosts[i+1]).Listen("tcp", ":443")
		require.NoError(t, err)
		s := grpc.NewServer()
		testpb.RegisterTestServiceServer(s, member{fleet: f, n: i})
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		f.addrs = append(f.addrs, resolver.Address{Addr: hosts[i+1] + ":443"})
	}
	return f
}

// client returns a client whose interceptor knows the usual time, and its connection.
func (f *fleet) client(t *testing.T, config string, in *hedge.Interceptor, opts ...grpc.DialOption) (testpb.TestServiceClient, *grpc.ClientConn) {
	f.found.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) { f.conn <- cc }
	f.found.InitialState(resolver.State{Addresses: f.addrs})
	cc := dial(t, "fleet:///", append([]grpc.DialOption{
		grpc.WithResolvers(f.found), grpc.WithDefaultServiceConfig(config),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return f.network.Host("client").DialContext(ctx, "tcp", addr)
		}),
		grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream()),
	}, opts...)...)
	cc.Connect()
	time.Sleep(time.Second) // every backend is connected
	client := testpb.NewTestServiceClient(cc)
	for range 20 {
		_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
		require.NoError(t, err)
	}
	return client, cc
}

// call makes a call that the fleet notes, and returns where its attempts went.
func (f *fleet) call(ctx context.Context, call func(context.Context) error) (backends []int, err error) {
	id := fmt.Sprint(f.calls.Add(1))
	err = call(metadata.AppendToOutgoingContext(ctx, "id", id))
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen[id]), err
}

// unary and stream are calls.
func unary(client testpb.TestServiceClient) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		return err
	}
}

func stream(client testpb.TestServiceClient) func(context.Context) error {
	return func(ctx context.Context) error {
		s, err := client.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
		if err != nil {
			return err
		}
		if _, err = s.Recv(); err != nil {
			return err
		}
		if _, err = s.Recv(); err == io.EOF {
			return nil
		}
		return cmp.Or(err, errors.New("a second message"))
	}
}

var calls = map[string]func(testpb.TestServiceClient) func(context.Context) error{"unary": unary, "stream": stream}

func denied(in *hedge.Interceptor, reason hedge.Reason) (n int64) {
	for _, k := range in.Snapshot().Keys {
		n += k.Denied[reason]
	}
	return n
}

func TestNoFirstHedgeLandsOnThePrimarysBackend(t *testing.T) {
	for _, policy := range []string{"round_robin", "weighted_round_robin", "least_request_experimental"} {
		for _, n := range []int{2, 3, 10} {
			t.Run(fmt.Sprint(policy, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, n)
					in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(100))
					client, _ := f.client(t, elsewhere(policy), in)
					f.delays[0].Store(int64(time.Second))
					var hedged atomic.Int64
					var wg sync.WaitGroup
					for range 5 {
						wg.Go(func() {
							for range 40 {
								start := time.Now()
								at, err := f.call(t.Context(), unary(client))
								if !assert.NoError(t, err) || len(at) < 2 {
									continue
								}
								hedged.Add(1)
								assert.NotEqual(t, at[0], at[1])
								assert.Less(t, time.Since(start), 500*ms, "the hedge answered")
							}
						})
					}
					wg.Wait()
					assert.NotZero(t, hedged.Load())
					refused := denied(in, hedge.DeniedSameBackend)
					if policy == "least_request_experimental" { // draws lots, and may draw the same backend five times
						refused -= hedged.Load() / 20
					}
					assert.LessOrEqual(t, refused, int64(0))
					t.Logf("%d of 200 calls were hedged, and %d refused", hedged.Load(), denied(in, hedge.DeniedSameBackend))
				})
			})
		}
	}
}

func TestEveryHedgeOfACallHasABackendOfItsOwnWhileThereAreSome(t *testing.T) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 3)
				in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(300), hedge.WithMaxHedges(3))
				client, _ := f.client(t, elsewhere("round_robin"), in)
				for i := range f.delays {
					f.delays[i].Store(int64(time.Second))
				}
				for range 10 {
					at, err := f.call(hedge.WithDelay(t.Context(), 20*ms), call(client))
					require.NoError(t, err)
					require.Len(t, at, 4)
					assert.ElementsMatch(t, []int{1, 2, 3}, at[:3])
					assert.NotEqual(t, at[0], at[3], "the primary's is the last resort")
				}
			})
		})
	}
}

func TestTheBalancerWithinItselfPicksAnotherBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1))
		client, _ := f.client(t, `{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"hedge_elsewhere":{}}]}}]}`, in)
		f.delays[0].Store(int64(time.Second))
		for range 2 {
			at, err := f.call(hedge.WithDelay(t.Context(), 5*ms), unary(client))
			require.NoError(t, err)
			require.Len(t, at, 2)
			assert.NotEqual(t, at[0], at[1])
		}
	})
}

func TestOneBackendIsHedgedAsWithoutTheBalancer(t *testing.T) {
	for _, ready := range []int{1, 2} {
		for name, call := range calls {
			t.Run(fmt.Sprint(name, ready), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 1)
					if ready == 2 { // the other one is down
						f.addrs = append(f.addrs, resolver.Address{Addr: "client:443"})
					}
					in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1))
					client, _ := f.client(t, elsewhere("round_robin"), in)
					f.delays[0].Store(int64(time.Second))
					at, err := f.call(hedge.WithDelay(t.Context(), 20*ms), call(client))
					require.NoError(t, err)
					assert.Equal(t, []int{1, 1}, at)
					assert.Zero(t, denied(in, hedge.DeniedSameBackend))
				})
			})
		}
	}
}

// sticky is a policy that picks the first of its connections, whatever is asked for. Only
// the pick that counts stickyStrays down to 0 is another one's.
type sticky struct{}

var stickyPicks, stickyDone, stickyStrays atomic.Int64

func (sticky) Build(info basebalancer.PickerBuildInfo) balancer.Picker {
	var all picked
	for sc := range info.ReadySCs {
		all = append(all, sc)
	}
	if len(all) == 0 {
		return basebalancer.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	slices.SortFunc(all, func(a, b balancer.SubConn) int {
		return cmp.Compare(info.ReadySCs[a].Address.Addr, info.ReadySCs[b].Address.Addr)
	})
	return all
}

type picked []balancer.SubConn

func (p picked) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	stickyPicks.Add(1)
	sc := p[0]
	if stickyStrays.Add(-1) == 0 {
		sc = p[1]
	}
	return balancer.PickResult{SubConn: sc, Done: func(balancer.DoneInfo) { stickyDone.Add(1) }}, nil
}

func init() {
	balancer.Register(basebalancer.NewBalancerBuilder("test_sticky", sticky{}, basebalancer.Config{}))
}

func TestAHedgeThatHasNoOtherBackendIsNotSent(t *testing.T) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 2)
				seen := new(recorder)
				var stats *hedge.Stats
				in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithStats(&stats), hedge.WithObserver(seen))
				client, _ := f.client(t, elsewhere("test_sticky"), in)
				tokens := in.Snapshot().Keys[0].Budget
				f.delays[0].Store(int64(time.Second))
				seen.take()
				picks, done := stickyPicks.Load(), stickyDone.Load()
				start := time.Now()
				at, err := f.call(hedge.WithDelay(t.Context(), 20*ms), call(client))
				require.NoError(t, err)
				assert.Equal(t, time.Second, time.Since(start))
				assert.Equal(t, []int{1}, at)
				synctest.Wait()

				assert.EqualValues(t, 1, denied(in, hedge.DeniedSameBackend))
				assert.Zero(t, stats.HedgedRequests.Load())
				assert.Zero(t, stats.HedgesSent.Load())
				for _, k := range in.Snapshot().Keys {
					assert.Zero(t, k.Hedges)
					assert.GreaterOrEqual(t, k.Budget, tokens, "the token was given back")
				}
				assert.Equal(t, []string{"start 0", "budget above 10: true", "start 1", "denied: same-backend", "lost 1 after 0", "won 0 after 1000", "done by 0 of 1 after 1000"}, seen.take())
				assert.EqualValues(t, 6, stickyPicks.Load()-picks, "the primary's and five")
				assert.EqualValues(t, 6, stickyDone.Load()-done)
			})
		})
	}
}

func TestIfThePrimaryFailsAndTheHedgeIsRefusedThePrimarysErrorIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"))
		want := errors.New("of the primary")
		late := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if a, _ := hedge.AttemptFromContext(ctx); a.Number == 0 && f.calls.Load() > 0 {
				return want
			}
			return err
		}
		client, _ := f.client(t, elsewhere("test_sticky"), in, grpc.WithChainUnaryInterceptor(late))
		f.delays[0].Store(int64(time.Second))
		_, err := f.call(hedge.WithDelay(t.Context(), 20*ms), unary(client))
		assert.Same(t, want, err)
	})
}

func TestWhatIsCalledOnBehalfOfAHedgeGoesWhereTheBalancerSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2)
		in := hedge.NewInterceptor(hedge.WithMethods(testpb.TestService_UnaryCall_FullMethodName), hedge.WithMaxHedges(1))
		var nested []error
		fetchToken := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if a, _ := hedge.AttemptFromContext(ctx); a.Number > 0 && method != testpb.TestService_EmptyCall_FullMethodName {
				_, err := testpb.NewTestServiceClient(cc).EmptyCall(ctx, new(testpb.Empty))
				nested = append(nested, err)
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		client, _ := f.client(t, elsewhere("test_sticky"), in, grpc.WithChainUnaryInterceptor(fetchToken))
		f.delays[0].Store(int64(time.Second))
		_, err := f.call(hedge.WithDelay(t.Context(), 20*ms), unary(client))
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, []error{nil}, nested)
		assert.EqualValues(t, 1, denied(in, hedge.DeniedSameBackend))
	})
}

func TestAHedgeIsSentThoughThePrimaryHasNoBackendYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"))
		slow := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if a, _ := hedge.AttemptFromContext(ctx); a.Number == 0 && f.calls.Load() > 0 {
				if err := hedgetest.Sleep(ctx, time.Second); err != nil {
					return err
				}
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		client, _ := f.client(t, elsewhere("test_sticky"), in, grpc.WithChainUnaryInterceptor(slow))
		start := time.Now()
		_, err := f.call(hedge.WithDelay(t.Context(), 20*ms), unary(client))
		require.NoError(t, err)
		assert.Equal(t, 20*ms+served, time.Since(start))
	})
}

func TestTheChildPolicyChangesWithoutAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"))
		client, _ := f.client(t, `{}`, in)
		conn := <-f.conn
		for _, config := range []string{elsewhere("test_sticky"), elsewhere("round_robin"), elsewhere("least_request_experimental"), elsewhere("test_sticky")} {
			// A child that is replaced before it is ready leaves nothing behind either.
			for _, c := range []string{elsewhere("weighted_round_robin"), config} {
				f.found.UpdateState(resolver.State{Addresses: f.addrs, ServiceConfig: conn.ParseServiceConfig(c)})
			}
			for range 20 {
				start := time.Now()
				_, err := f.call(t.Context(), unary(client))
				require.NoError(t, err)
				assert.Equal(t, served, time.Since(start), config)
			}
		}
		seen := map[int]bool{}
		for range 10 {
			at, err := f.call(t.Context(), unary(client))
			require.NoError(t, err)
			seen[at[0]] = true
		}
		assert.Len(t, seen, 1, "the last policy is sticky")
	})
}

func TestABadBalancerConfigIsAnError(t *testing.T) {
	for config, want := range map[string]string{
		`[]`:                            "hedge_elsewhere: json: cannot unmarshal",
		`{"childPolicy":"round_robin"}`: "hedge_elsewhere: json: cannot unmarshal string",
		`{"childPolicy":[]}`:            "childPolicy names no registered policy: []",
		`{"childPolicy":[{}]}`:          "childPolicy[0] has 0 names instead of one",
		`{"childPolicy":[{"no_such":{}},{"nor_such":{}}]}`:          `childPolicy names no registered policy: ["no_such" "nor_such"]`,
		`{"childPolicy":[{"no_such":{}},{"a":{},"b":{}}]}`:          "childPolicy[1] has 2 names instead of one",
		`{"childPolicy":[{"pick_first":{"shuffleAddressList":1}}]}`: "childPolicy[0], pick_first: ",
	} {
		_, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"hedge_elsewhere":`+config+`}]}`))
		assert.ErrorContains(t, err, want, config)
	}
	for _, config := range []string{
		`{"loadBalancingConfig":[{"hedge_elsewhere":{}}]}`, `{"loadBalancingConfig":[{"hedge_elsewhere":null}]}`, `{"loadBalancingPolicy":"hedge_elsewhere"}`,
		`{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"no_such":{}},{"pick_first":{}}],"unknown":1}}]}`,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 2)
			client, _ := f.client(t, config, hedge.NewInterceptor(hedge.WithMethods("/*")))
			_, err := f.call(t.Context(), unary(client))
			assert.NoError(t, err, config)
		})
	}
}

// TestAHedgeElsewhereBridgesTheStopsOfABackend has ten callers for 8 s, one of whose
// backends stops for 100 ms of each second.
func TestAHedgeElsewhereBridgesTheStopsOfABackend(t *testing.T) {
	p999 := func(t *testing.T, n int, config string) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, n)
			in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBurst(20*time.Second))
			client, _ := f.client(t, config, in)
			f.stops.Store(true)
			began := time.Now()
			var mu sync.Mutex
			var all []time.Duration
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * ms)
					for time.Since(began) < 8*time.Second {
						start := time.Now()
						assert.NoError(t, unary(client)(t.Context()))
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
		same, other := p999(t, n, `{"loadBalancingConfig":[{"round_robin":{}}]}`), p999(t, n, elsewhere("round_robin"))
		t.Logf("%d backends: p99.9 %v with round_robin, %v with hedge_elsewhere", n, same, other)
		assert.LessOrEqual(t, other, same*3/10)
	}
}

// TestBackendsComeAndGoUnderHedges is over loopback: servers stop and start again, the resolver
// finds some of them, and the child policy changes, while every call is hedged.
func TestBackendsComeAndGoUnderHedges(t *testing.T) {
	const servers, changes = 4, 60
	f := &fleet{delays: make([]atomic.Int64, servers), seen: make(map[string][]int), found: manual.NewBuilderWithScheme("fleet"), conn: make(chan resolver.ClientConn, 1)}
	f.found.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) { f.conn <- cc }
	running := make([]*grpc.Server, servers)
	start := func(n int) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s := grpc.NewServer()
		f.delays[n].Store(int64(4 * ms))
		testpb.RegisterTestServiceServer(s, member{fleet: f, n: n})
		go func() { _ = s.Serve(l) }()
		running[n] = s
		for len(f.addrs) <= n {
			f.addrs = append(f.addrs, resolver.Address{})
		}
		f.addrs[n] = resolver.Address{Addr: l.Addr().String()}
	}
	for n := range servers {
		start(n)
	}
	f.found.InitialState(resolver.State{Addresses: slices.Clone(f.addrs)})
	in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithBudgetPercent(300), hedge.WithMinDelay(0))
	cc := dial(t, "fleet:///", grpc.WithResolvers(f.found), grpc.WithDefaultServiceConfig(elsewhere("round_robin")),
		grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream()))
	client := testpb.NewTestServiceClient(cc)

	cc.Connect()
	conn := <-f.conn

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var answered atomic.Int64
	for i := range 8 {
		call := unary(client)
		if i%2 == 1 {
			call = stream(client)
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				switch _, err := f.call(hedge.WithDelay(ctx, ms), call); status.Code(err) {
				case codes.OK:
					answered.Add(1)
				case codes.Unavailable, codes.Canceled: // a server has stopped, or the test is over
				default:
					assert.NoError(t, err)
				}
			}
		})
	}
	policies := []string{"round_robin", "least_request_experimental", "test_sticky", "weighted_round_robin"}
	for i := range changes {
		switch i % 3 {
		case 0:
			running[i%servers].Stop()
			start(i % servers)
		case 1:
			running[i%servers].GracefulStop() // the connection goes away under calls that it finishes
			start(i % servers)
		}
		f.found.UpdateState(resolver.State{Addresses: slices.Clone(f.addrs[:1+i%servers]), ServiceConfig: conn.ParseServiceConfig(elsewhere(policies[i/7%len(policies)]))})
		time.Sleep(10 * ms)
	}
	f.found.UpdateState(resolver.State{Addresses: f.addrs, ServiceConfig: conn.ParseServiceConfig(elsewhere("round_robin"))})
	before := answered.Load()
	require.Eventually(t, func() bool { return answered.Load() > before+100 }, 20*time.Second, ms)
	cancel()
	wg.Wait()
	for _, s := range running {
		s.Stop()
	}
	t.Logf("%d calls were answered, %d hedges refused", answered.Load(), denied(in, hedge.DeniedSameBackend))
}

// gRPC's own retries pick again for the same attempt: what the attempt tried before is not another attempt's.
func TestARetriedHedgeStaysAwayFromThePrimarysBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1))
		client, _ := f.client(t, `{"loadBalancingConfig":[{"hedge_elsewhere":{}}], "methodConfig":[{"name":[{}], "retryPolicy":
			{"maxAttempts":3, "initialBackoff":"0.001s", "maxBackoff":"0.001s", "backoffMultiplier":1, "retryableStatusCodes":["UNAVAILABLE"]}}]}`, in)
		for range 4 {
			for i := range f.delays {
				f.delays[i].Store(int64(time.Second))
			}
			f.refuse.Store(1) // of the hedges
			at, err := f.call(hedge.WithDelay(t.Context(), 20*ms), unary(client))
			require.NoError(t, err)
			require.Len(t, at, 2)
			assert.NotEqual(t, at[0], at[1])
			assert.Zero(t, f.refuse.Load())
			assert.Zero(t, denied(in, hedge.DeniedSameBackend))
		}
	})
}

// The first pick for the retry is not the first one for the hedge: that was sent.
func TestAHedgeThatWasSentAndMayNotBeRetriedIsPaidFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2)
		seen := new(recorder)
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithObserver(seen))
		client, _ := f.client(t, `{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"test_sticky":{}}]}}], "methodConfig":[{"name":[{}], "retryPolicy":
			{"maxAttempts":3, "initialBackoff":"0.001s", "maxBackoff":"0.001s", "backoffMultiplier":1, "retryableStatusCodes":["UNAVAILABLE"]}}]}`, in)
		f.delays[0].Store(int64(time.Second))
		f.refuse.Store(1)
		stickyStrays.Store(3) // after the primary's and the first for the hedge
		seen.take()
		at, err := f.call(hedge.WithDelay(t.Context(), 20*ms), unary(client))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2}, at)
		synctest.Wait()
		assert.Zero(t, f.refuse.Load())
		assert.Zero(t, denied(in, hedge.DeniedSameBackend))
		hedges := int64(0)
		for _, k := range in.Snapshot().Keys {
			hedges += k.Hedges
		}
		assert.EqualValues(t, 1, hedges)
		assert.Contains(t, seen.take(), "done by 0 of 2 after 1000")
	})
}
