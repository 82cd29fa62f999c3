//go:build unix

package grpcnames_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/grpcnames"
	"github.com/gohedge/hedge/dnshedge/names"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) { doubles.RunWithoutLeaks(m, func() {}) }

// process starts a server, which ends with the test.
func process(t *testing.T, name string, args ...string) *os.Process {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	cmd := exec.Command(path, args...)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s: %s", name, log.String())
		}
	})
	return cmd.Process
}

// freePort returns a port that is free for UDP and TCP on 127.0.0.1 and 127.0.0.2.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := "0"
		free := true
		for _, ip := range []string{"127.0.0.1", "127.0.0.2"} {
			l, err := net.Listen("tcp", ip+":"+port)
			if err != nil {
				free = false
				break
			}
			_, port, _ = net.SplitHostPort(l.Addr().String())
			l.Close()
			pc, err := net.ListenPacket("udp", ip+":"+port)
			if err != nil {
				free = false
				break
			}
			pc.Close()
		}
		if free {
			return port
		}
	}
	t.Skip("127.0.0.2 cannot be listened on") // not every system has all of 127.0.0.0/8
	return ""
}

// knot is an authoritative server of a zone that changes.
type knot struct {
	*os.Process
	t      *testing.T
	port   string
	zone   string
	serial int
}

const ttl = 5 * time.Second

func newKnot(t *testing.T) *knot {
	dir := t.TempDir()
	k := &knot{t: t, port: freePort(t), zone: filepath.Join(dir, "example.zone")}
	conf := filepath.Join(dir, "knot.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `
server:
    rundir: %[1]q
    listen: 127.0.0.1@%[2]s
database:
    storage: %[1]q
zone:
  - domain: example
    file: %[3]q
log:
  - target: stderr
    any: warning
`, dir, k.port, k.zone), 0o644))
	k.write("127.0.0.1")
	k.Process = process(t, "knotd", "-c", conf)
	return k
}

func (k *knot) write(ip string) {
	k.serial++
	require.NoError(k.t, os.WriteFile(k.zone, fmt.Appendf(nil, "$ORIGIN example.\n$TTL %d\n@ SOA ns admin %d 3600 600 86400 1\n@ NS ns\nns A 127.0.0.1\nsvc A %s\n",
		int(ttl.Seconds()), k.serial, ip), 0o644))
}

// become changes the address of svc.example, and returns when knot has read it.
func (k *knot) become(ip string) time.Time {
	k.write(ip)
	require.NoError(k.t, k.Signal(syscall.SIGHUP))
	return k.has(ip)
}

// has waits until knot answers with an address.
func (k *knot) has(ip string) time.Time {
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: "127.0.0.1:" + k.port}}}
	defer c.Close()
	require.Eventually(k.t, func() bool {
		found, err := c.LookupAddrs(k.t.Context(), "svc.example")
		return err == nil && found[0].Addr.String() == ip
	}, 20*time.Second, 10*time.Millisecond)
	return time.Now()
}

// unbound forwards to knot with a cache of its own.
func unbound(t *testing.T, to string) (port string) {
	dir, port := t.TempDir(), freePort(t)
	conf := filepath.Join(dir, "unbound.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `
server:
	interface: 127.0.0.1
	port: %s
	directory: %q
	pidfile: ""
	username: ""
	chroot: ""
	use-syslog: no
	do-daemonize: no
	do-not-query-localhost: no
	module-config: "iterator"
	num-threads: 1
stub-zone:
	name: example
	stub-addr: 127.0.0.1@%s
`, port, dir, to), 0o644))
	process(t, "unbound", "-d", "-c", conf)
	return port
}

// listener counts the connections that are open.
type listener struct {
	net.Listener
	open atomic.Int64
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &counted{Conn: c, l: l}, nil
}

type counted struct {
	net.Conn
	l    *listener
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() { c.l.open.Add(-1) })
	return c.Conn.Close()
}

// served is one protocol, which a server speaks on each of two addresses.
type served struct {
	port      string
	listeners map[string]*listener
}

// listen listens on a port that is free at both addresses.
func listen(t *testing.T) *served {
	for range 100 {
		port := freePort(t)
		first, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			continue
		}
		second, err := net.Listen("tcp", "127.0.0.2:"+port)
		if err != nil {
			_ = first.Close()
			continue
		}
		return &served{port, map[string]*listener{"127.0.0.1": {Listener: first}, "127.0.0.2": {Listener: second}}}
	}
	t.Fatal("no port is free at both addresses")
	return nil
}

// load is a client that calls without a pause.
type load struct {
	name string
	*served
	call func() (ip string, err error)

	calls, failed atomic.Int64
	mu            sync.Mutex
	last          map[string]time.Time // call, by address
}

func (l *load) run(t *testing.T, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(2 * time.Millisecond):
		}
		began := time.Now()
		ip, err := l.call()
		l.calls.Add(1)
		if err != nil {
			l.failed.Add(1)
			t.Errorf("%s: %v", l.name, err)
			return
		}
		l.mu.Lock()
		if began.After(l.last[ip]) {
			l.last[ip] = began
		}
		l.mu.Unlock()
	}
}

// A zone changes under clients that are busy. No call fails, also while the name server is down; the new address is
// used a TTL and a second later, and no client is connected to the old one.
func TestClientsFollowChangesOfZone(t *testing.T) {
	for _, through := range []string{"knot", "unbound"} {
		t.Run(through, func(t *testing.T) {
			t.Parallel()
			follow(t, through == "unbound")
		})
	}
}

func follow(t *testing.T, cached bool) {
	k := newKnot(t)
	k.has("127.0.0.1")
	port := k.port
	if cached {
		port = unbound(t, k.port)
	}
	client := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: "127.0.0.1:" + port}}, Cache: new(dnshedge.Cache), Timeout: time.Second}
	defer client.Close()
	n := &names.Names{Exchanger: client}
	defer n.Close()
	require.Eventually(t, func() bool {
		_, err := n.LookupNetIP(t.Context(), "ip", "svc.example")
		return err == nil
	}, 20*time.Second, 50*time.Millisecond)

	serverTLS, clientTLS := dnstest.Certificate()
	clientTLS = clientTLS.Clone()
	clientTLS.ServerName = dnstest.Name
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ip, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
		time.Sleep(2 * time.Millisecond)
		_, _ = io.WriteString(w, ip)
	})
	web := func(h2 bool) *served {
		s := listen(t)
		for _, l := range s.listeners {
			server := &http.Server{Handler: handler, TLSConfig: serverTLS.Clone(), ErrorLog: log.New(io.Discard, "", 0)}
			if h2 {
				go func() { _ = server.ServeTLS(l, "", "") }()
			} else {
				go func() { _ = server.Serve(l) }()
			}
			t.Cleanup(func() { server.Close() })
		}
		return s
	}
	get := func(url, method string, rt http.RoundTripper) func() (string, error) {
		c := &http.Client{Transport: rt}
		t.Cleanup(c.CloseIdleConnections)
		return func() (string, error) {
			var body io.Reader
			if method == "POST" {
				body = io.MultiReader(strings.NewReader("once"))
			}
			req, err := http.NewRequest(method, url, body)
			if err != nil {
				return "", err
			}
			resp, err := c.Do(req)
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			ip, err := io.ReadAll(resp.Body)
			return string(ip), err
		}
	}
	transport := func() *http.Transport {
		return &http.Transport{DialContext: n.DialContext, TLSClientConfig: clientTLS.Clone(), ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 10}
	}
	var loads []*load
	add := func(name string, s *served, call func() (string, error)) {
		loads = append(loads, &load{name: name, served: s, call: call, last: make(map[string]time.Time)})
	}
	h1, h2, hedged := web(false), web(true), web(false)
	plain, secure := n.Drain(transport()), n.Drain(transport())
	for _, method := range []string{"GET", "POST"} {
		add("HTTP/1.1 "+method, h1, get("http://svc.example:"+h1.port, method, plain))
		add("HTTP/2 "+method, h2, get("https://svc.example:"+h2.port, method, secure))
	}
	add("hedged", hedged, get("http://svc.example:"+hedged.port, "GET", n.Drain(hedge.New(transport(), hedge.WithReplicas(n)))))

	streaming, endStreams := context.WithCancel(t.Context())
	defer endStreams()
	var streams []healthpb.Health_WatchClient
	var status []*health.Server
	for _, balancer := range []string{"pick_first", "round_robin"} {
		s := listen(t)
		for _, l := range s.listeners {
			server, h := grpc.NewServer(), health.NewServer()
			healthpb.RegisterHealthServer(server, h)
			status = append(status, h)
			go func() { _ = server.Serve(l) }()
			t.Cleanup(server.Stop)
		}
		conn, err := grpc.NewClient("hedgedns:///svc.example:"+s.port, grpc.WithResolvers(grpcnames.NewBuilder(n)),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"`+balancer+`":{}}]}`))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		checks := healthpb.NewHealthClient(conn)
		add("gRPC "+balancer, s, func() (string, error) {
			var p peer.Peer
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, err := checks.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&p)); err != nil {
				return "", err
			}
			ip, _, err := net.SplitHostPort(p.Addr.String())
			return ip, err
		})
		stream, err := checks.Watch(streaming, &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		streams = append(streams, stream)
	}

	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer sync.OnceFunc(func() { close(stop) })()
	for _, l := range loads {
		for range 3 {
			wg.Go(func() { l.run(t, stop) })
		}
	}
	time.Sleep(2 * time.Second)
	for _, l := range loads {
		assert.Positive(t, l.listeners["127.0.0.1"].open.Load(), l.name)
	}
	changed := k.become("127.0.0.2")
	time.Sleep(ttl + 2*time.Second)
	for _, h := range status {
		h.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	}
	for _, stream := range streams { // they go on, at the old address
		_, err := stream.Recv()
		assert.NoError(t, err)
	}
	for _, h := range status {
		h.Shutdown()
		h.Resume()
	}
	endStreams()
	_ = k.Signal(syscall.SIGSTOP) // no lookup is answered
	time.Sleep(ttl + 3*time.Second)
	for _, l := range loads {
		l.mu.Lock()
		late := l.last["127.0.0.1"].Sub(changed)
		t.Logf("%-18s %5d calls, the last to the old address %v after the change", l.name, l.calls.Load(), late.Round(time.Millisecond))
		assert.LessOrEqual(t, late, ttl+2*time.Second, l.name)
		assert.Less(t, time.Since(l.last["127.0.0.2"]), 2*time.Second, "%s goes on", l.name)
		l.mu.Unlock()
		assert.Zero(t, l.listeners["127.0.0.1"].open.Load(), l.name)
		assert.Positive(t, l.listeners["127.0.0.2"].open.Load(), l.name)
	}
}
