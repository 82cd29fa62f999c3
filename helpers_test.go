package hedge_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/hedgetest"
	"github.com/gohedge/hedge/internal/netsim"
)

const (
	ms   = time.Millisecond
	site = "http://catalog.test/item"
)

var errDown = errors.New("connection refused")

// usual is how long the service of these tests takes; its delay is then 1 to 2 % above.
const usual = 10 * ms

// quick answers every request after the usual time.
func quick(rt *hedgetest.RoundTripper) func(*http.Request, int) (*http.Response, error) {
	return after(rt, usual)
}

// after answers attempt n after the n-th duration, and all later ones after the last.
func after(rt *hedgetest.RoundTripper, ds ...time.Duration) func(*http.Request, int) (*http.Response, error) {
	return func(req *http.Request, n int) (*http.Response, error) {
		if err := hedgetest.Sleep(req.Context(), ds[min(n, len(ds)-1)]); err != nil {
			return nil, err
		}
		return rt.Response(req, 200, fmt.Sprint("answer ", n)), nil
	}
}

func get(t *testing.T, rt http.RoundTripper, url string) (*http.Response, error) {
	t.Helper()
	return rt.RoundTrip(request(t, t.Context(), "GET", url, nil))
}

func request(t *testing.T, ctx context.Context, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	require.NoError(t, err)
	return req
}

func text(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(b)
}

// warm returns a Transport over rt that has learned the usual time of the hosts.
func warm(t *testing.T, rt *hedgetest.RoundTripper, opts ...hedge.Option) *hedge.Transport {
	t.Helper()
	script := rt.Answer
	rt.Answer = quick(rt)
	tr := hedge.New(rt, opts...)
	warmUp(t, tr)
	rt.Answer = script
	rt.Forget()
	return tr
}

func warmUp(t *testing.T, tr http.RoundTripper) {
	for range 20 {
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
}

// bubble runs f in fake time with a RoundTripper, and checks that no response body was left open.
func bubble(t *testing.T, f func(t *testing.T, rt *hedgetest.RoundTripper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rt := new(hedgetest.RoundTripper)
		f(t, rt)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, rt.Open(), "a response body was not closed")
	})
}

// sources returns the files that match, one after another.
func sources(t *testing.T, patterns ...string) string {
	var all strings.Builder
	for _, p := range patterns {
		names, err := filepath.Glob(p)
		require.NoError(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			all.Write(b)
		}
	}
	return all.String()
}

func serveGRPC(t testing.TB, impl testpb.TestServiceServer, opts ...grpc.ServerOption) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(opts...)
	testpb.RegisterTestServiceServer(s, impl)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func dial(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	cc, err := grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	return cc
}

// overMemory serves and dials over a network in memory, for bubbles. The
// n-th connection of the client is made from the host of that name.
func overMemory(t *testing.T, impl testpb.TestServiceServer) (*netsim.Network, func(from string, opts ...grpc.DialOption) *grpc.ClientConn) {
	network, err := netsim.NewMemory(1, "client", "detour", "server")
	require.NoError(t, err)
	l, err := network.Host("server").Listen("tcp", ":443")
	require.NoError(t, err)
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, impl)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		synctest.Wait()
		assert.NoError(t, network.Close())
	})
	return network, func(from string, opts ...grpc.DialOption) *grpc.ClientConn {
		return dial(t, "passthrough:///server:443", append(opts, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return network.Host(from).DialContext(ctx, "tcp", addr)
		}))...)
	}
}

// --- over loopback ---

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(m.Run()) // the fuzzer leaves a goroutine that waits for signals
	}
	hedgetest.RunWithoutLeaks(m, http.DefaultClient.CloseIdleConnections)
}

// server is a loopback server that counts its connections.
type server struct {
	*httptest.Server
	accepted atomic.Int64
	hits     atomic.Int64
}

// protocols are what a server here can speak.
var protocols = map[string]func(*httptest.Server){
	"HTTP/1.1": (*httptest.Server).Start,
	"HTTP/1.1+TLS": func(s *httptest.Server) {
		s.StartTLS()
	},
	"HTTP/2": func(s *httptest.Server) {
		s.EnableHTTP2 = true
		s.StartTLS()
	},
}

func serve(t testing.TB, protocol string, h http.HandlerFunc) *server {
	s := new(server)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		h(w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.accepted.Add(1)
		}
	}
	protocols[protocol](s.Server)
	t.Cleanup(s.Close)
	return s
}

// base is a transport as a user would configure one for a busy host.
func base(t testing.TB, s *server) *http.Transport {
	tr := s.Client().Transport.(*http.Transport).Clone()
	tr.MaxIdleConnsPerHost = 256
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func fetch(ctx context.Context, rt http.RoundTripper, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return "", err
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// teach makes the calls after which hedging begins: none of them is hedged, however slow.
func teach(t testing.TB, rt http.RoundTripper, url string) {
	for range 10 {
		_, err := fetch(t.Context(), rt, url)
		require.NoError(t, err)
	}
}

// pause waits like a server that stops when its client does.
func pause(r *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}
