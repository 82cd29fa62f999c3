package livetests_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/gohedge/hedge"
)

// http2.ConfigureTransports gives a Transport connections that its clones share.
func TestSecondPoolIsApartFromXNetsHTTP2(t *testing.T) {
	s := serve(t, "HTTP/2", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	g := newGate(t, s.Listener.Addr().String())
	target := "https://" + g.Addr().String()
	below := &http.Transport{TLSClientConfig: base(t, s).TLSClientConfig.Clone()}
	_, err := http2.ConfigureTransports(below)
	require.NoError(t, err)
	tr := hedge.New(below, hedge.WithBudgetPercent(100))
	defer tr.CloseIdleConnections()
	teach(t, tr, target)
	require.EqualValues(t, 1, g.Accepted.Load())
	g.Frozen.Store(true)
	for range 3 {
		ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 20*time.Millisecond), 5*time.Second)
		got, err := fetch(ctx, tr, target)
		cancel()
		require.NoError(t, err)
		assert.Equal(t, "HTTP/2.0", got)
	}
}

// Clones keep their way around a protocol that HTTP/2 itself has registered.
func TestHTTP2sOwnProtocolIsNotTakenForARegisteredOne(t *testing.T) {
	s := serve(t, "HTTP/2", func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			pause(r, 100*time.Millisecond)
		}
	})
	tr := hedge.New(base(t, s), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100))
	defer tr.CloseIdleConnections()
	teach(t, tr, s.URL)
	for range 3 {
		_, err := fetch(hedge.WithDelay(t.Context(), 20*time.Millisecond), tr, s.URL+"/slow")
		require.NoError(t, err)
	}
	assert.EqualValues(t, 2, s.Accepted.Load(), "one connection in each pool")
}

// A loser that has no connection would be sent for nobody.
func TestLoserWithoutAConnectionIsNotSent(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, "HTTP/1.1", func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			<-release
		}
	})
	limited := base(t, s)
	limited.MaxConnsPerHost = 2
	tr := hedge.New(limited, hedge.WithLinger(time.Hour), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100))
	defer tr.CloseIdleConnections()
	teach(t, tr, s.URL)
	var busy sync.WaitGroup
	for range 2 { // all connections of the primaries
		busy.Go(func() { _, _ = fetch(hedge.WithoutHedging(context.Background()), tr, s.URL+"/busy") })
	}
	for s.Hits.Load() < 12 {
		time.Sleep(time.Millisecond)
	}
	for range 20 {
		_, err := fetch(hedge.WithDelay(t.Context(), time.Millisecond), tr, s.URL)
		require.NoError(t, err)
	}
	close(release)
	busy.Wait()
	_, err := fetch(hedge.WithoutHedging(t.Context()), tr, s.URL) // behind all that wait for a connection
	require.NoError(t, err)
	assert.EqualValues(t, 10+2+20+1, s.Hits.Load())
}

func TestReverseProxysLosersLinger(t *testing.T) {
	s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Hedge-Attempt") == "" && r.URL.Path == "/slow" {
			pause(r, 40*time.Millisecond)
		}
		_, _ = io.WriteString(w, "ok")
	})
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	tr := hedge.New(base(t, s), hedge.WithAttemptHeader(hedge.AttemptHeader), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100), hedge.WithMaxDelay(5*time.Millisecond))
	defer tr.CloseIdleConnections()
	front := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u) }, Transport: tr})
	defer front.Close()
	teach(t, http.DefaultTransport, front.URL)
	for range 30 {
		_, err := fetch(t.Context(), http.DefaultTransport, front.URL+"/slow")
		require.NoError(t, err)
		time.Sleep(40 * time.Millisecond)
	}
	assert.Greater(t, tr.Snapshot().Stats.HedgeWins, int64(10))
	assert.LessOrEqual(t, s.Accepted.Load(), int64(6))
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// --- replicas ---

func TestReplicaPoolsExpire(t *testing.T) {
	var current atomic.Int32 // of the service, that moves from address to address
	address := func(n int32) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 1, byte(n)}) }
	l, err := net.Listen("tcp", "0.0.0.0:0")
	require.NoError(t, err)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).AddrPort().Addr().Unmap()
		if r.URL.Path == "/slow" && at == address(current.Load()) {
			pause(r, 5*time.Second)
		}
		_, _ = io.WriteString(w, at.String())
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	if c, err := net.Dial("tcp", address(1).String()+":"+port); err != nil {
		t.Skip(err) // not every system has all of 127.0.0.0/8
	} else {
		c.Close()
	}
	below := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if host, _, _ := net.SplitHostPort(addr); host == "catalog.test" {
			addr = address(current.Load()).String() + ":" + port
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	resolver := resolverFunc(func() []netip.Addr { return []netip.Addr{address(current.Load() + 1), address(current.Load())} })
	// A hedge that is due before the primary has a connection cannot know its address; the next does.
	tr := hedge.New(below, hedge.WithReplicas(resolver), hedge.WithMaxHedges(3), hedge.WithBudgetPercent(300))
	defer tr.CloseIdleConnections()
	for n := range int32(70) {
		current.Store(n + 1)
		below.CloseIdleConnections()
		if n == 0 {
			teach(t, tr, "http://catalog.test:"+port)
		}
		got, err := fetch(hedge.WithDelay(t.Context(), 10*time.Millisecond), tr, "http://catalog.test:"+port+"/slow")
		require.NoError(t, err)
		assert.NotEqual(t, address(n+1).String(), got, "the address of the primary; a hedge may use an idle connection to an earlier address")
	}
}

type resolverFunc func() []netip.Addr

func (f resolverFunc) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return f(), nil
}

func TestReplicasAreDialledAsTheBaseDoes(t *testing.T) {
	set := newReplicaSet(t)
	var dialled atomic.Int64
	//lint:ignore SA1019 users still have it
	below := &http.Transport{Dial: func(network, addr string) (net.Conn, error) {
		dialled.Add(1)
		host, port, _ := net.SplitHostPort(addr)
		if host == "catalog.test" {
			host = set.addrs[0].String()
		}
		return net.Dial(network, net.JoinHostPort(host, port))
	}}
	tr := hedge.New(below, hedge.WithReplicas(set), hedge.WithMaxHedges(1))
	defer tr.CloseIdleConnections()
	url := "http://catalog.test:" + set.port
	teach(t, tr, url)
	set.pauses(set.addrs[0])
	_, err := fetch(hedge.WithDelay(t.Context(), 20*time.Millisecond), tr, url)
	require.NoError(t, err)
	assert.EqualValues(t, 2, dialled.Load())
}

// movedConn is a connection to another address, as it says.
type movedConn struct {
	net.Conn
	to net.Addr
}

func (c movedConn) RemoteAddr() net.Addr { return c.to }

// What dials with TLS chooses the address by itself, and nothing bounds it but the pool's own limit.
func TestDialTLSNeedsNoPoolsForReplicas(t *testing.T) {
	var slow atomic.Bool
	s := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if slow.CompareAndSwap(true, false) {
			pause(r, 5*time.Second)
		}
	}))
	defer s.Close()
	var dialled atomic.Int64
	below := &http.Transport{MaxConnsPerHost: 1, DialTLSContext: func(_ context.Context, network, _ string) (net.Conn, error) {
		conn, err := tls.Dial(network, s.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return nil, err
		}
		return movedConn{conn, &net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(dialled.Add(1))), Port: 443}}, nil
	}}
	resolver := resolverFunc(func() []netip.Addr { t.Error("asked"); return nil })
	tr := hedge.New(below, hedge.WithReplicas(resolver), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(300), hedge.WithLinger(0))
	defer tr.CloseIdleConnections()
	teach(t, tr, s.URL)
	for range 4 {
		slow.Store(true)
		_, err := fetch(hedge.WithDelay(t.Context(), 200*time.Millisecond), tr, s.URL)
		require.NoError(t, err)
		time.Sleep(150 * time.Millisecond)
		_, err = fetch(hedge.WithoutHedging(t.Context()), tr, s.URL)
		require.NoError(t, err)
	}
	assert.EqualValues(t, 6, dialled.Load(), "five of primaries, and one that the hedges have after each other")
}

// The name to look up would be the proxy's.
func TestReplicasOfAProxyAreNotLookedUp(t *testing.T) {
	var slow atomic.Bool
	s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) { // the proxy
		if slow.CompareAndSwap(true, false) {
			pause(r, 5*time.Second)
		}
		_, _ = io.WriteString(w, r.URL.Host)
	})
	below := base(t, s)
	below.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(s.URL) }
	asked := resolverFunc(func() []netip.Addr { t.Error("asked"); return nil })
	tr := hedge.New(below, hedge.WithReplicas(asked), hedge.WithMaxHedges(1))
	defer tr.CloseIdleConnections()
	teach(t, tr, "http://catalog.test/")
	slow.Store(true)
	got, err := fetch(hedge.WithDelay(t.Context(), 20*time.Millisecond), tr, "http://catalog.test/")
	require.NoError(t, err)
	assert.Equal(t, "catalog.test", got)
}

// nowhere is a connection that does not say where it goes.
type nowhere struct{ net.Conn }

func (nowhere) RemoteAddr() net.Addr { return nil }

func TestConnectionsNeedNotSayWhereTheyGo(t *testing.T) {
	set := newReplicaSet(t)
	below := set.transport(t, 0)
	dial := below.DialContext
	below.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return nowhere{c}, err
	}
	tr := hedge.New(below, hedge.WithReplicas(set), hedge.WithMaxHedges(1))
	defer tr.CloseIdleConnections()
	url := "http://catalog.test:" + set.port
	teach(t, tr, url)
	set.pauses(set.addrs[0])
	ctx := httptrace.WithClientTrace(hedge.WithDelay(t.Context(), 20*time.Millisecond), new(httptrace.ClientTrace))
	_, err := fetch(ctx, tr, url)
	require.NoError(t, err)
}

// meet is a server that answers the second request for /slow at once and the first one late. It
// knows the connections that these came over.
type meet struct {
	mu   sync.Mutex
	from []string
}

func (m *meet) serve(_ http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/slow" {
		return
	}
	m.mu.Lock()
	m.from = append(m.from, r.Proto+" "+r.RemoteAddr)
	first := len(m.from) == 1
	m.mu.Unlock()
	if first {
		pause(r, 5*time.Second)
	}
}

func (m *meet) apart(t *testing.T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Len(t, m.from, 2)
	assert.NotEqual(t, m.from[0], m.from[1], "the hedge went over its primary's own connection")
}

// The connection of an HTTP/2 call may be what is stuck. Whatever else has taught its key, the
// hedge goes over another one.
func TestHedgesOverHTTP2HaveConnectionsOfTheirOwn(t *testing.T) {
	for name, c := range map[string]struct {
		taught []string // by these hosts
		url    string
		opts   []hedge.HTTPOption
	}{
		"known":                 {[]string{"https://shop.test"}, "https://shop.test/slow", nil},
		"after a redirect":      {[]string{"https://shop.test", "http://shop.test"}, "http://shop.test/slow", nil},
		"hosts that share keys": {[]string{"https://shop.test", "http://old.test"}, "https://shop.test/slow", []hedge.HTTPOption{hedge.WithKeyFunc(func(context.Context, string, string) string { return "all" })}},
		"hosts that share keys, the other way round": {[]string{"http://old.test", "https://shop.test"}, "https://shop.test/slow", []hedge.HTTPOption{hedge.WithKeyFunc(func(context.Context, string, string) string { return "all" })}},
		"never asked before":                         {nil, "https://shop.test/slow", nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := new(meet)
			secure := serve(t, "HTTP/2", m.serve)
			plain := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
				if r.Host == "shop.test" {
					http.Redirect(w, r, "https://shop.test"+r.URL.Path, http.StatusMovedPermanently)
				}
			})
			b := base(t, secure)
			b.TLSClientConfig.InsecureSkipVerify = true
			b.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				to := secure
				if strings.HasSuffix(addr, ":80") {
					to = plain
				}
				return new(net.Dialer).DialContext(ctx, network, to.Listener.Addr().String())
			}
			tr := hedge.New(b, append(c.opts, hedge.WithBudgetPercent(100), hedge.WithMaxHedges(1))...)
			defer tr.CloseIdleConnections()
			for _, url := range c.taught {
				teach(t, tr, url)
			}
			resp, err := (&http.Client{Transport: tr}).Do(request(t, hedge.WithDelay(t.Context(), 100*time.Millisecond), "GET", c.url, nil))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			m.apart(t)
		})
	}
}

// Each address that primaries went to has a pool of connections to the others. The limit is that of
// all pools together.
func TestReplicasObeyTheConnectionLimit(t *testing.T) {
	const limit, addresses = 2, 8
	var hedges, most, n atomic.Int64
	address := func(n int64) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 2, byte(1 + n%addresses)}) }
	s := serve(t, "HTTP/1.1", func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" && r.Header.Get(hedge.AttemptHeader) == "" {
			pause(r, 100*time.Millisecond)
		}
	})
	b := base(t, s)
	b.MaxConnsPerHost = limit
	b.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(addr)
		c, err := new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
		if err != nil {
			return nil, err
		}
		peer, closed := address(n.Add(1)), func() {} // a primary: the name's addresses take turns
		if ip, err := netip.ParseAddr(host); err == nil {
			peer, closed = ip, func() { hedges.Add(-1) }
			if open := hedges.Add(1); open > most.Load() {
				most.Store(open)
			}
		}
		return &connTo{c, &net.TCPAddr{IP: peer.AsSlice(), Port: 80}, sync.OnceFunc(closed)}, nil
	}
	var all []netip.Addr
	for i := range int64(addresses) {
		all = append(all, address(i))
	}
	tr := hedge.New(b, hedge.WithReplicas(resolverFunc(func() []netip.Addr { return all })), hedge.WithMaxHedges(1),
		hedge.WithBudgetPercent(100), hedge.WithAttemptHeader(hedge.AttemptHeader))
	defer tr.CloseIdleConnections()
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	url := "http://shop.test:" + port
	teach(t, tr, url)
	wins := tr.Snapshot().Stats.HedgeWins
	for range 2 * addresses {
		b.CloseIdleConnections() // as when they were idle for long, or the server has closed them
		_, err := fetch(hedge.WithDelay(t.Context(), 20*time.Millisecond), tr, url+"/slow")
		require.NoError(t, err)
	}
	assert.LessOrEqual(t, most.Load(), int64(limit))
	assert.Greater(t, tr.Snapshot().Stats.HedgeWins-wins, int64(addresses), "hedges still get connections")
}

// connTo is a connection that says it goes to peer.
type connTo struct {
	net.Conn
	peer   net.Addr
	closed func()
}

func (c *connTo) RemoteAddr() net.Addr { return c.peer }

func (c *connTo) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

func TestPanicOfAResolverOrADialIsAFailedHedge(t *testing.T) {
	for _, where := range []string{"resolver", "dial"} {
		s := serve(t, "HTTP/1.1", func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				pause(r, 200*time.Millisecond)
			}
		})
		b := base(t, s)
		b.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if strings.HasPrefix(addr, "192.0.2.") {
				panic(where)
			}
			return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
		}
		var stats *hedge.Stats
		tr := hedge.New(b, hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100), hedge.WithStats(&stats), hedge.WithReplicas(resolverFunc(func() []netip.Addr {
			if where == "resolver" {
				panic(where)
			}
			return []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		})))
		teach(t, tr, "http://shop.test")
		_, err := fetch(hedge.WithDelay(t.Context(), 20*time.Millisecond), tr, "http://shop.test/slow")
		require.NoError(t, err)
		assert.EqualValues(t, 1, stats.HedgesSent.Load())
		assert.EqualValues(t, 1, stats.HedgePanics.Load())
		tr.CloseIdleConnections()
	}
}

// RegisterProtocol may be called at any time.
func TestProtocolThatIsRegisteredLateCarriesItsHedges(t *testing.T) {
	slow := func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			pause(r, 100*time.Millisecond)
		}
	}
	s := serve(t, "HTTP/1.1", slow)
	b := base(t, s)
	b.MaxConnsPerHost = 4 // so that hedges have a pool of their own
	tr := hedge.New(b, hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100))
	defer tr.CloseIdleConnections()
	teach(t, tr, s.URL)
	var registering sync.WaitGroup
	registering.Go(func() {
		for i := range 50 {
			b.RegisterProtocol(fmt.Sprint("other", i), http.NewFileTransport(http.Dir(".")))
			time.Sleep(time.Millisecond)
		}
	})
	call := func() {
		_, err := fetch(hedge.WithDelay(t.Context(), 20*time.Millisecond), tr, s.URL+"/slow")
		require.NoError(t, err)
	}
	call()
	registering.Wait()
	hits := s.Hits.Load()
	var carried atomic.Int64
	b.RegisterProtocol("http", roundTripper(func(req *http.Request) (*http.Response, error) {
		carried.Add(1)
		w := httptest.NewRecorder()
		slow(w, req)
		return w.Result(), nil
	}))
	call()
	assert.EqualValues(t, 2, carried.Load())
	assert.Equal(t, hits, s.Hits.Load())
}
