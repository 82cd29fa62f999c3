package grpctest

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

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	basebalancer "google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

// Elsewhere returns a service config in which hedge_elsewhere stands above the policy.
func Elsewhere(child string) string {
	return fmt.Sprintf(`{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{%q:{}}]}}]}`, child)
}

// Served is what a backend takes for a call at first.
const Served = 10 * time.Millisecond

// A Fleet is a number of backends that note which attempts they see. It is safe for concurrent use, but for Addrs.
type Fleet struct {
	Network *netsim.Network // nil over loopback
	Delays  []atomic.Int64  // of each backend, per call
	Fails   []atomic.Uint32 // the code with which each backend ends its calls after that
	Stops   atomic.Bool     // the first one, for 100 ms of each second
	Refuse  atomic.Int64    // so many hedges, with UNAVAILABLE
	Calls   atomic.Int64    // that were noted
	Found   *manual.Resolver
	Conn    chan resolver.ClientConn // of the client
	Addrs   []resolver.Address

	mu   sync.Mutex       // guards seen
	seen map[string][]int // the backends of each call, by attempt number
}

// member is the service of backend n.
type member struct {
	testpb.UnimplementedTestServiceServer
	*Fleet
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
	if attempt > 0 && m.Refuse.Load() > 0 {
		m.Refuse.Add(-1)
		return status.Error(codes.Unavailable, "refused")
	}
	wait := time.Duration(m.Delays[m.n].Load())
	if in := time.Duration(time.Now().UnixNano()) % time.Second; m.Stops.Load() && m.n == 0 && in < 100*time.Millisecond {
		wait += 100*time.Millisecond - in
	}
	if err := doubles.Sleep(ctx, wait); err != nil {
		return err
	}
	return status.Error(codes.Code(m.Fails[m.n].Load()), "told to")
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

// MakeFleet returns a fleet of n backends whose servers are still to be made.
func MakeFleet(n int) *Fleet {
	f := &Fleet{Delays: make([]atomic.Int64, n), Fails: make([]atomic.Uint32, n), seen: make(map[string][]int), Found: manual.NewBuilderWithScheme("fleet"), Conn: make(chan resolver.ClientConn, 1)}
	f.Found.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) { f.Conn <- cc }
	for i := range n {
		f.Delays[i].Store(int64(Served))
	}
	return f
}

// NewServer returns a server of backend n.
func (f *Fleet) NewServer(n int) *grpc.Server {
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, member{Fleet: f, n: n})
	return s
}

// NewFleet starts n backends on an in-memory network, for testing/synctest bubbles. They are stopped when t ends.
func NewFleet(t *testing.T, n int) *Fleet {
	hosts := []string{"client"}
	for i := range n {
		hosts = append(hosts, fmt.Sprint("backend", i))
	}
	network, err := netsim.NewMemory(1, hosts...)
	if err != nil {
		t.Fatal(err)
	}
	f := MakeFleet(n)
	f.Network = network
	t.Cleanup(func() {
		synctest.Wait()
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range n {
		l, err := network.Host(hosts[i+1]).Listen("tcp", ":443")
		if err != nil {
			t.Fatal(err)
		}
		s := f.NewServer(i)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		f.Addrs = append(f.Addrs, resolver.Address{Addr: hosts[i+1] + ":443"})
	}
	return f
}

// Interceptors are those of a client.
type Interceptors interface {
	Unary() grpc.UnaryClientInterceptor
	Stream() grpc.StreamClientInterceptor
}

// Client returns a client whose interceptors know the usual time, and its connection.
func (f *Fleet) Client(t *testing.T, config string, in Interceptors, opts ...grpc.DialOption) (testpb.TestServiceClient, *grpc.ClientConn) {
	f.Found.InitialState(resolver.State{Addresses: f.Addrs})
	cc := Dial(t, "fleet:///", append([]grpc.DialOption{
		grpc.WithResolvers(f.Found), grpc.WithDefaultServiceConfig(config),
		f.Dialer(),
		grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream()),
	}, opts...)...)
	return Warm(t, cc), cc
}

// Warm returns a client of cc whose interceptors know the usual time.
func Warm(t *testing.T, cc *grpc.ClientConn) testpb.TestServiceClient {
	cc.Connect()
	time.Sleep(time.Second) // every backend is connected
	client := testpb.NewTestServiceClient(cc)
	for range 20 {
		_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
		if err != nil {
			t.Fatal(err)
		}
	}
	return client
}

// To returns a connection to backend n alone.
func (f *Fleet) To(t *testing.T, n int, opts ...grpc.DialOption) *grpc.ClientConn {
	return Dial(t, fmt.Sprintf("passthrough:///backend%d:443", n), append([]grpc.DialOption{f.Dialer()}, opts...)...)
}

// Dialer dials in the network.
func (f *Fleet) Dialer() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return f.Network.Host("client").DialContext(ctx, "tcp", addr)
	})
}

// Call makes a call that the fleet notes, and returns where its attempts went.
func (f *Fleet) Call(ctx context.Context, call func(context.Context) error) (backends []int, err error) {
	id := fmt.Sprint(f.Calls.Add(1))
	err = call(metadata.AppendToOutgoingContext(ctx, "id", id))
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen[id]), err
}

// CallUnary returns what makes a unary call.
func CallUnary(client testpb.TestServiceClient) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		return err
	}
}

// CallStream returns what makes a call and reads its stream to the end.
func CallStream(client testpb.TestServiceClient) func(context.Context) error {
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

// test_sticky is a policy that picks the first of its connections, whatever is asked for. Only
// the pick that counts StickyStrays down to 0 is another one's.
type sticky struct{}

// What test_sticky has done, and is to do.
var StickyPicks, StickyDone, StickyStrays atomic.Int64

func init() {
	balancer.Register(basebalancer.NewBalancerBuilder("test_sticky", sticky{}, basebalancer.Config{}))
}

func (sticky) Build(info basebalancer.PickerBuildInfo) balancer.Picker {
	if all := ordered(info); len(all) > 0 {
		return picked(all)
	}
	return basebalancer.NewErrPicker(balancer.ErrNoSubConnAvailable)
}

// ordered returns the connections that are ready, by their addresses.
func ordered(info basebalancer.PickerBuildInfo) (all []balancer.SubConn) {
	for sc := range info.ReadySCs {
		all = append(all, sc)
	}
	slices.SortFunc(all, func(a, b balancer.SubConn) int {
		return cmp.Compare(info.ReadySCs[a].Address.Addr, info.ReadySCs[b].Address.Addr)
	})
	return all
}

type picked []balancer.SubConn

func (p picked) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	StickyPicks.Add(1)
	sc := p[0]
	if StickyStrays.Add(-1) == 0 {
		sc = p[1]
	}
	return balancer.PickResult{SubConn: sc, Done: func(balancer.DoneInfo) { StickyDone.Add(1) }}, nil
}
