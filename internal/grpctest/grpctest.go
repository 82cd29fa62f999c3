// Package grpctest starts gRPC servers and clients for tests of several packages. It is separate from package doubles,
// so that tests without gRPC do not depend on gRPC.
package grpctest

import (
	"context"
	"net"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gohedge/hedge/internal/netsim"
)

// Serve starts a gRPC server with the service impl on a loopback port, and returns its address. The server is stopped
// at the end of test t.
func Serve(t testing.TB, impl testpb.TestServiceServer, opts ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(opts...)
	testpb.RegisterTestServiceServer(s, impl)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// Dial returns a gRPC connection to target without encryption. It is closed at the end of test t.
func Dial(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// Connect starts to connect cc and waits until cc is ready. It fails test t if the test ends first.
func Connect(t testing.TB, cc *grpc.ClientConn) {
	t.Helper()
	cc.Connect()
	for s := cc.GetState(); s != connectivity.Ready; s = cc.GetState() {
		if !cc.WaitForStateChange(t.Context(), s) {
			t.Fatal(s)
		}
	}
}

// ServeInMemory starts a gRPC server with the service impl on the host "server" of an in-memory network. It must be
// called in a testing/synctest bubble. The server is stopped at the end of test t.
//
// The function dial returns a connection to the server from another host of the network. The argument from is "client"
// or "detour".
func ServeInMemory(t *testing.T, impl testpb.TestServiceServer) (network *netsim.Network, dial func(from string, opts ...grpc.DialOption) *grpc.ClientConn) {
	t.Helper()
	network, err := netsim.NewMemory(1, "client", "detour", "server")
	if err != nil {
		t.Fatal(err)
	}
	l, err := network.Host("server").Listen("tcp", ":443")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, impl)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		synctest.Wait()
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	return network, func(from string, opts ...grpc.DialOption) *grpc.ClientConn {
		return Dial(t, "passthrough:///server:443", append(opts, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return network.Host(from).DialContext(ctx, "tcp", addr)
		}))...)
	}
}
