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

// HedgeElsewhereConfig returns a service config with the balancer hedge_elsewhere and the given child policy.
func HedgeElsewhereConfig(child string) string {
	return fmt.Sprintf(`{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{%q:{}}]}}]}`, child)
}

// DefaultDelay is the initial response time of each backend.
const DefaultDelay = 10 * time.Millisecond

// A Backends is a group of gRPC servers that record the attempts of each call. It is safe for concurrent use, except
// for Addrs.
type Backends struct {
	Network       *netsim.Network          // nil: the servers use loopback
	Delays        []atomic.Int64           // response time of each backend, in nanoseconds
	Codes         []atomic.Uint32          // status code of each backend
	FirstPauses   atomic.Bool              // backend 0 pauses for 100 ms in each second
	RefusedHedges atomic.Int64             // number of next hedges that fail with UNAVAILABLE
	Calls         atomic.Int64             // number of recorded calls
	Resolver      *manual.Resolver         // resolves the target to Addrs
	ResolverConn  chan resolver.ClientConn // gets the connection that Resolver reports to
	Addrs         []resolver.Address

	mu       sync.Mutex       // guards attempts
	attempts map[string][]int // backend number + 1 by attempt number, of each call
}

// A backendService implements the service of backend n.
type backendService struct {
	testpb.UnimplementedTestServiceServer
	*Backends
	n int
}

// serveAttempt records the attempt, waits for the response time of the backend, and returns its status.
func (m backendService) serveAttempt(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	attempt := 0
	if v := md["grpc-previous-rpc-attempts"]; len(v) > 0 {
		_, _ = fmt.Sscan(v[0], &attempt)
	}
	if id := md["id"]; len(id) > 0 {
		m.mu.Lock()
		at := append(m.attempts[id[0]], make([]int, 4)...)[:max(len(m.attempts[id[0]]), attempt+1)]
		at[attempt] = m.n + 1
		m.attempts[id[0]] = at
		m.mu.Unlock()
	}
	if attempt > 0 && m.RefusedHedges.Load() > 0 {
		m.RefusedHedges.Add(-1)
		return status.Error(codes.Unavailable, "refused")
	}
	wait := time.Duration(m.Delays[m.n].Load())
	if in := time.Duration(time.Now().UnixNano()) % time.Second; m.FirstPauses.Load() && m.n == 0 && in < 100*time.Millisecond {
		wait += 100*time.Millisecond - in
	}
	if err := doubles.Sleep(ctx, wait); err != nil {
		return err
	}
	return status.Error(codes.Code(m.Codes[m.n].Load()), "told to")
}

func (m backendService) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Hostname: fmt.Sprint(m.n)}, m.serveAttempt(ctx)
}

func (backendService) EmptyCall(_ context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	return new(testpb.Empty), nil
}

func (m backendService) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, s testpb.TestService_StreamingOutputCallServer) error {
	if err := m.serveAttempt(s.Context()); err != nil {
		return err
	}
	return s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: fmt.Append(nil, m.n)}})
}

// NewUnstartedBackends returns n backends without servers. The caller creates them by NewServer.
func NewUnstartedBackends(n int) *Backends {
	f := &Backends{Delays: make([]atomic.Int64, n), Codes: make([]atomic.Uint32, n), attempts: make(map[string][]int), Resolver: manual.NewBuilderWithScheme("fleet"), ResolverConn: make(chan resolver.ClientConn, 1)}
	f.Resolver.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) { f.ResolverConn <- cc }
	for i := range n {
		f.Delays[i].Store(int64(DefaultDelay))
	}
	return f
}

// NewServer returns a server of backend n, which does not listen yet.
func (f *Backends) NewServer(n int) *grpc.Server {
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, backendService{Backends: f, n: n})
	return s
}

// NewBackends starts n backends on an in-memory network. It must be called in a testing/synctest bubble. The backends
// are stopped when t ends.
func NewBackends(t *testing.T, n int) *Backends {
	hosts := []string{"client"}
	for i := range n {
		hosts = append(hosts, fmt.Sprint("backend", i))
	}
	network, err := netsim.NewMemory(1, hosts...)
	if err != nil {
		t.Fatal(err)
	}
	f := NewUnstartedBackends(n)
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

// Interceptors have the interceptors of a client, such as a hedge.Interceptor.
type Interceptors interface {
	Unary() grpc.UnaryClientInterceptor
	Stream() grpc.StreamClientInterceptor
}

// Client returns a client of all backends, and its connection. The client has made enough calls for the interceptors to
// learn the latency.
func (f *Backends) Client(t *testing.T, config string, in Interceptors, opts ...grpc.DialOption) (testpb.TestServiceClient, *grpc.ClientConn) {
	f.Resolver.InitialState(resolver.State{Addresses: f.Addrs})
	cc := Dial(t, "fleet:///", append([]grpc.DialOption{
		grpc.WithResolvers(f.Resolver), grpc.WithDefaultServiceConfig(config),
		f.DialOption(),
		grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream()),
	}, opts...)...)
	return WarmUp(t, cc), cc
}

// WarmUp returns a client of cc that has made enough calls for its interceptors to learn the latency.
func WarmUp(t *testing.T, cc *grpc.ClientConn) testpb.TestServiceClient {
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

// DialBackend returns a connection to backend n only.
func (f *Backends) DialBackend(t *testing.T, n int, opts ...grpc.DialOption) *grpc.ClientConn {
	return Dial(t, fmt.Sprintf("passthrough:///backend%d:443", n), append([]grpc.DialOption{f.DialOption()}, opts...)...)
}

// DialOption returns an option that dials in the in-memory network.
func (f *Backends) DialOption() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return f.Network.Host("client").DialContext(ctx, "tcp", addr)
	})
}

// RecordCall calls the function call, which makes one RPC, and returns the backends of its attempts. The element of an
// attempt is the number of the backend plus 1; 0 means that the attempt reached no backend.
func (f *Backends) RecordCall(ctx context.Context, call func(context.Context) error) (backends []int, err error) {
	id := fmt.Sprint(f.Calls.Add(1))
	err = call(metadata.AppendToOutgoingContext(ctx, "id", id))
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.attempts[id]), err
}

// UnaryCaller returns a function that makes a unary RPC.
func UnaryCaller(client testpb.TestServiceClient) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		return err
	}
}

// StreamCaller returns a function that opens a server stream and reads it to its end.
func StreamCaller(client testpb.TestServiceClient) func(context.Context) error {
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

// A stickyBuilder builds pickers of the load balancing policy test_sticky. They pick the first connection for every
// call, except that the pick that decrements StickyOtherPick to 0 gets the second.
type stickyBuilder struct{}

// StickyPicks counts the picks of test_sticky, and StickyDone the picks that have ended. StickyOtherPick counts down to
// the pick that gets another connection.
var StickyPicks, StickyDone, StickyOtherPick atomic.Int64

func init() {
	balancer.Register(basebalancer.NewBalancerBuilder("test_sticky", stickyBuilder{}, basebalancer.Config{}))
}

func (stickyBuilder) Build(info basebalancer.PickerBuildInfo) balancer.Picker {
	if all := sortReadyConns(info); len(all) > 0 {
		return stickyPicker(all)
	}
	return basebalancer.NewErrPicker(balancer.ErrNoSubConnAvailable)
}

// sortReadyConns returns the ready connections, sorted by address.
func sortReadyConns(info basebalancer.PickerBuildInfo) (all []balancer.SubConn) {
	for sc := range info.ReadySCs {
		all = append(all, sc)
	}
	slices.SortFunc(all, func(a, b balancer.SubConn) int {
		return cmp.Compare(info.ReadySCs[a].Address.Addr, info.ReadySCs[b].Address.Addr)
	})
	return all
}

type stickyPicker []balancer.SubConn

func (p stickyPicker) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	StickyPicks.Add(1)
	sc := p[0]
	if StickyOtherPick.Add(-1) == 0 {
		sc = p[1]
	}
	return balancer.PickResult{SubConn: sc, Done: func(balancer.DoneInfo) { StickyDone.Add(1) }}, nil
}
