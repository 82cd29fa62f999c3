package doubles

import (
	"context"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Protocols maps the names of the protocols that a [Server] supports to the function that starts a server with that protocol.
var Protocols = map[string]func(*httptest.Server){
	"HTTP/1.1": (*httptest.Server).Start,
	"HTTP/1.1+TLS": func(s *httptest.Server) {
		s.StartTLS()
	},
	"HTTP/2": func(s *httptest.Server) {
		s.EnableHTTP2 = true
		s.StartTLS()
	},
}

// A Server is an HTTP server on the loopback interface that counts connections and requests.
type Server struct {
	*httptest.Server
	Accepted atomic.Int64 // number of connections that clients have opened
	Hits     atomic.Int64 // number of requests
}

// NewServer starts a server with the handler h and one of the [Protocols]. The server is closed when the test ends.
func NewServer(t testing.TB, protocol string, h http.HandlerFunc) *Server {
	s := new(Server)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Hits.Add(1)
		h(w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.Accepted.Add(1)
		}
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that cancel a handshake would cause log lines
	// Protocols are the protocols of a [Server], each with the function that starts the server.
	Protocols[protocol](s.Server)
	t.Cleanup(s.Close)
	return s
}

// NewTransport returns a new transport for requests to s, which keeps up to 256 idle connections. They are closed when the test
// ends.
func NewTransport(t testing.TB, s *Server) *http.Transport {
	tr := s.Client().Transport.(*http.Transport).Clone()
	tr.MaxIdleConnsPerHost = 256
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// Fetch sends a GET request for url and returns the body of the response.
func Fetch(ctx context.Context, rt http.RoundTripper, url string) (string, error) {
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

// WarmUp makes ten calls to url, so that rt knows enough latencies to hedge later calls. The ten calls themselves are not
// hedged. The test fails if a call fails.
func WarmUp(t testing.TB, rt http.RoundTripper, url string) {
	t.Helper()
	for range 10 {
		if _, err := Fetch(t.Context(), rt, url); err != nil {
			t.Fatal(err)
		}
	}
}

// WaitOrCanceled lets a handler wait for the duration d, or until the client cancels the request r.
func WaitOrCanceled(r *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}

// A Gate is a TCP proxy that simulates a connection that hangs. While Frozen is true, it drops all data of the first
// connection, but does not close it.
type Gate struct {
	net.Listener              // accepts the connections of clients
	Frozen       atomic.Bool  // drop all data of the first connection
	Accepted     atomic.Int64 // number of connections that clients have opened
}

// NewGate starts a proxy for the TCP server at the address target. The proxy is closed when the test ends.
func NewGate(t testing.TB, target string) *Gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{Listener: l}
	var all sync.WaitGroup
	var conns sync.Map
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			conns.Store(in, out)
			first := g.Accepted.Add(1) == 1
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				all.Go(func() {
					buf := make([]byte, 32<<10)
					for {
						n, err := way[0].Read(buf)
						if err != nil {
							way[1].Close()
							return
						}
						if first && g.Frozen.Load() {
							continue // dropped
						}
						if _, err := way[1].Write(buf[:n]); err != nil {
							way[0].Close()
							return
						}
					}
				})
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Range(func(in, out any) bool {
			in.(net.Conn).Close()
			out.(net.Conn).Close()
			return true
		})
		all.Wait()
	})
	return g
}

// NewRequest returns an HTTP request with the context ctx. The test fails if an argument is invalid.
func NewRequest(t testing.TB, ctx context.Context, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// ReadBody reads the whole body of a response, closes it, and returns its content. The test fails if an error occurs.
func ReadBody(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		err = resp.Body.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// AssertMaxDuration fails the test if each of 300 calls of f takes longer than most. It checks the fastest call: other load on
// the machine slows down some of the calls, but an expensive algorithm slows down all of them.
//
// With the race detector, it calls f once and does not check the time.
func AssertMaxDuration(t testing.TB, most time.Duration, f func()) {
	t.Helper()
	if RaceEnabled {
		f()
		return
	}
	least := time.Duration(math.MaxInt64)
	for tries := 0; tries < 300 && least > most; tries++ {
		start := time.Now()
		f()
		least = min(least, time.Since(start))
	}
	if least > most {
		t.Errorf("the fastest of 300 calls took %v; want at most %v", least, most)
	}
}
