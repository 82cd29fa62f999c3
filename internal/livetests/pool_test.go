package livetests_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/netip"
	"net/url"
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
	_, err := http2.ConfigureTransports(below) //lint:ignore SA1019 users still call it
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
		assert.Equal(t, address(n+2).String(), got)
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
