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

// HedgeElsewhereConfig returns a service config that selects the load balancing policy hedge_elsewhere with the given
// child policy.
func HedgeElsewhereConfig(child string) string {
	return fmt.Sprintf(`{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{%q:{}}]}}]}`, child)
}

// DefaultDelay is the response time of each backend, unless a test changes it in Backends.Delays.
const DefaultDelay = 10 * time.Millisecond

// A Backends is a group of gRPC servers that record which backend got each attempt of each call. It is safe for
// concurrent use, except for the field Addrs.
type Backends struct {
	Network       *netsim.Network          // in-memory network of the servers; nil: the servers use loopback
	Delays        []atomic.Int64           // response time of each backend, in nanoseconds
	Codes         []atomic.Uint32          // status code that each backend returns
	IgnoresEnd    atomic.Bool              // each backend takes its whole response time, also if the attempt has ended before
	FirstPauses   atomic.Bool              // backend 0 pauses for the first 100 ms of each second
	RefusedHedges atomic.Int64             // number of further hedges that fail with UNAVAILABLE
	Calls         atomic.Int64             // number of recorded calls
	Resolver      *manual.Resolver         // resolves the target to Addrs
	ResolverConn  chan resolver.ClientConn // receives the connection to which Resolver sends its results
	Addrs         []resolver.Address       // addresses of the backends

	mu       sync.Mutex       // guards attempts
	attempts map[string][]int // keyed by ID of the call; for each attempt, by number, the number of its backend plus 1, or 0 if no backend got it
}

// A backendService is the gRPC service that the server of backend n provides.
type backendService struct {
	testpb.UnimplementedTestServiceServer
	*Backends
	n int
}

// serveAttempt records the attempt, waits for the response time of the backend, and returns the status of the backend.
// The argument ctx is the context of the RPC.
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
	if m.IgnoresEnd.Load() {
		ctx = context.WithoutCancel(ctx)
	}
	if err := doubles.Sleep(ctx, wait); err != nil {
		return err
	}
	return status.Error(codes.Code(m.Codes[m.n].Load()), "told to")
}

// UnaryCall returns the number of the backend as host name.
func (m backendService) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Hostname: fmt.Sprint(m.n)}, m.serveAttempt(ctx)
}

// EmptyCall returns at once and records nothing.
func (backendService) EmptyCall(_ context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	return new(testpb.Empty), nil
}

// StreamingOutputCall sends one message, whose payload is the number of the backend.
func (m backendService) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, s testpb.TestService_StreamingOutputCallServer) error {
	if err := m.serveAttempt(s.Context()); err != nil {
		return err
	}
	return s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: fmt.Append(nil, m.n)}})
}

// NewUnstartedBackends returns a group of n backends without servers. The caller must create and start the servers, see
// NewServer.
func NewUnstartedBackends(n int) *Backends {
	f := &Backends{Delays: make([]atomic.Int64, n), Codes: make([]atomic.Uint32, n), attempts: make(map[string][]int), Resolver: manual.NewBuilderWithScheme("fleet"), ResolverConn: make(chan resolver.ClientConn, 1)}
	f.Resolver.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) { f.ResolverConn <- cc }
	for i := range n {
		f.Delays[i].Store(int64(DefaultDelay))
	}
	return f
}

// NewServer returns a gRPC server for backend n. The caller must call its method Serve.
func (f *Backends) NewServer(n int) *grpc.Server {
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, backendService{Backends: f, n: n})
	return s
}

// NewBackends starts n backends on an in-memory network. It must be called in a testing/synctest bubble. The backends
// are stopped at the end of test t.
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

// An Interceptors value provides the interceptors of a client. A hedge.Interceptor implements it.
type Interceptors interface {
	Unary() grpc.UnaryClientInterceptor
	Stream() grpc.StreamClientInterceptor
}

// Client returns a client of all backends, and its connection. The connection uses the service config in config and the
// interceptors of in. The client has already made 20 calls, so that the interceptors have learned the latency.
func (f *Backends) Client(t *testing.T, config string, in Interceptors, opts ...grpc.DialOption) (testpb.TestServiceClient, *grpc.ClientConn) {
	f.Resolver.InitialState(resolver.State{Addresses: f.Addrs})
	cc := Dial(t, "fleet:///", append([]grpc.DialOption{
		grpc.WithResolvers(f.Resolver), grpc.WithDefaultServiceConfig(config),
		f.DialOption(),
		grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream()),
	}, opts...)...)
	return WarmUp(t, cc), cc
}

// WarmUp makes 20 calls over cc, so that its interceptors learn the latency. It returns the client.
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

// DialBackend returns a connection that uses backend n only.
func (f *Backends) DialBackend(t *testing.T, n int, opts ...grpc.DialOption) *grpc.ClientConn {
	return Dial(t, fmt.Sprintf("passthrough:///backend%d:443", n), append([]grpc.DialOption{f.DialOption()}, opts...)...)
}

// DialOption returns a dial option that opens connections in the in-memory network.
func (f *Backends) DialOption() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return f.Network.Host("client").DialContext(ctx, "tcp", addr)
	})
}

// RecordCall calls the function call, which must make one RPC with the given context. It returns the backend of each
// attempt of the RPC, by number of the attempt, and the error of call. The value is the number of the backend plus 1.
// It is 0 if the attempt reached no backend.
func (f *Backends) RecordCall(ctx context.Context, call func(context.Context) error) (backends []int, err error) {
	id := fmt.Sprint(f.Calls.Add(1))
	err = call(metadata.AppendToOutgoingContext(ctx, "id", id))
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.attempts[id]), err
}

// UnaryCaller returns a function that makes a unary RPC by the given client.
func UnaryCaller(client testpb.TestServiceClient) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		return err
	}
}

// StreamCaller returns a function that opens a server stream by the given client and reads the stream to its end. The
// function returns an error unless the stream has exactly one message.
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

// A stickyBuilder builds pickers of the load balancing policy test_sticky. The policy uses the first connection for
// every call. There is one exception: the pick that decrements StickyOtherPick to 0 uses the second connection.
type stickyBuilder struct{}

// StickyPicks counts the picks of the policy test_sticky, and StickyDone counts the picks that have ended.
// StickyOtherPick is the number of picks until the pick that uses the second connection.
var StickyPicks, StickyDone, StickyOtherPick atomic.Int64

func init() {
	balancer.Register(basebalancer.NewBalancerBuilder("test_sticky", stickyBuilder{}, basebalancer.Config{}))
}

// Build returns a picker for the ready connections. Without ready connections, calls wait.
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

// A stickyPicker is the picker of test_sticky. It holds the ready connections, sorted by address.
type stickyPicker []balancer.SubConn

// Pick returns the first connection, or the second connection when StickyOtherPick becomes 0.
func (p stickyPicker) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	StickyPicks.Add(1)
	sc := p[0]
	if StickyOtherPick.Add(-1) == 0 {
		sc = p[1]
	}
	return balancer.PickResult{SubConn: sc, Done: func(balancer.DoneInfo) { StickyDone.Add(1) }}, nil
}
