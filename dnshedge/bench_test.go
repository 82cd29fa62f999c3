package dnshedge_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// local starts a server on the loopback interface and returns its upstream.
func local(tb testing.TB, network string, h dnstest.Handler) dnshedge.Upstream {
	tb.Helper()
	s := &dnstest.Server{Handler: h}
	tb.Cleanup(s.Close)
	up := dnshedge.Upstream{Net: network, ServerName: dnstest.Name}
	if network == "udp" {
		up.ServerName = ""
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(tb, err)
		s.ServeUDP(pc)
		up.Addr = pc.LocalAddr().String()
		return up
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	up.Addr = ln.Addr().String()
	switch network {
	case "tls":
		s.ServeTLS(ln)
	case "https":
		s.ServeHTTPS(ln)
	default:
		up.ServerName = ""
		s.ServeTCP(ln)
	}
	return up
}

func BenchmarkCacheHit(b *testing.B) {
	c := trusting(&dnshedge.Client{Upstreams: []dnshedge.Upstream{local(b, "udp", good)}, Cache: new(dnshedge.Cache)})
	defer c.Close()
	m := question("www.example.com.", dns.TypeA)
	b.Run("exchange", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := c.Exchange(m, ""); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("exchange/parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, _, err := c.Exchange(m, ""); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
	b.Run("serve", func(b *testing.B) {
		w := &discard{remote: &net.UDPAddr{}}
		b.ReportAllocs()
		for b.Loop() {
			c.ServeDNS(w, m)
		}
	})
	b.Run("resolver", func(b *testing.B) {
		r := c.Resolver()
		b.ReportAllocs()
		for b.Loop() {
			if _, err := r.LookupNetIP(context.Background(), "ip4", "www.example.com."); err != nil {
				b.Fatal(err)
			}
		}
	})
}

type discard struct {
	dns.ResponseWriter
	remote net.Addr
}

func (w *discard) RemoteAddr() net.Addr { return w.remote }

func (w *discard) ConnectionState() *tls.ConnectionState { return nil } // as a dns.Server's own

func (w *discard) WriteMsg(m *dns.Msg) error {
	b, err := m.Pack()
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

func (w *discard) Write(b []byte) (int, error) { return len(b), nil }

func BenchmarkWarmExchange(b *testing.B) {
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		b.Run(network, func(b *testing.B) {
			c := trusting(&dnshedge.Client{Upstreams: []dnshedge.Upstream{local(b, network, good)}})
			defer c.Close()
			m := question("www.example.com.", dns.TypeA)
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := c.Exchange(m, ""); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("udp/miekg", func(b *testing.B) {
		up := local(b, "udp", good)
		c := new(dns.Client)
		m := question("www.example.com.", dns.TypeA)
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := c.Exchange(m, up.Addr); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A response from the cache needs at most four allocations. The race detector allocates more.
func TestCacheHitAllocatesLittle(t *testing.T) {
	if doubles.RaceEnabled {
		t.Skip("counts allocations")
	}
	c := trusting(&dnshedge.Client{Upstreams: []dnshedge.Upstream{local(t, "udp", good)}, Cache: new(dnshedge.Cache)})
	defer c.Close()
	m := question("www.example.com.", dns.TypeA)
	n := testing.AllocsPerRun(1000, func() {
		if _, _, err := c.Exchange(m, ""); err != nil {
			t.Fatal(err)
		}
	})
	require.LessOrEqual(t, n, 4.0)
}

// frugal starts a server on the loopback interface that does not allocate, and returns its upstream. Every name has the
// address 192.0.2.1.
func frugal(tb testing.TB) dnshedge.Upstream {
	tb.Helper()
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(tb, err)
	done := make(chan struct{})
	tb.Cleanup(func() { pc.Close(); <-done })
	go func() {
		defer close(done)
		var buf [512]byte
		for {
			n, from, err := pc.ReadFromUDPAddrPort(buf[:])
			if err != nil {
				return
			}
			// The response has the same OPT record as the query, at the end.
			opt := [11]byte(buf[n-11:])
			b := append(buf[:n-11], 0xc0, 12, 0, byte(dns.TypeA), 0, byte(dns.ClassINET), 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
			b = append(b, opt[:]...)
			binary.BigEndian.PutUint16(b[2:], 0x8180) // a response, RD, RA
			b[7] = 1                                  // answer
			_, _ = pc.WriteToUDPAddrPort(b, from)
		}
	}()
	return dnshedge.Upstream{Addr: pc.LocalAddr().String()}
}

// names returns n questions.
func names(n int) []*dns.Msg {
	out := make([]*dns.Msg, n)
	for i := range out {
		out[i] = question(fmt.Sprintf("www%d.example.com.", i), dns.TypeA)
	}
	return out
}

func BenchmarkCacheMiss(b *testing.B) {
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{frugal(b)}, Cache: new(dnshedge.Cache)}
	defer c.Close()
	ms := names(b.N) // not b.Loop: each is asked once
	b.ReportAllocs()
	b.ResetTimer()
	for _, m := range ms {
		if _, _, err := c.Exchange(m, ""); err != nil {
			b.Fatal(err)
		}
	}
}

// A miss costs 36 allocations over UDP, the socket's and the cache's included, or 35
// through ServeDNS; a hedge now and then adds some.
func TestCacheMissAllocatesLittle(t *testing.T) {
	if doubles.RaceEnabled {
		t.Skip("counts allocations")
	}
	const runs = 1000
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{frugal(t)}, Cache: new(dnshedge.Cache)}
	defer c.Close()
	ms := names(2*(1+runs) + 500)
	next := func() *dns.Msg {
		m := ms[0]
		ms = ms[1:]
		return m
	}
	exchange := func() {
		if _, _, err := c.Exchange(next(), ""); err != nil {
			t.Fatal(err)
		}
	}
	for range 500 {
		exchange()
	}
	w := &discard{remote: &net.UDPAddr{}}
	assert.LessOrEqual(t, testing.AllocsPerRun(runs, exchange), 42.0)
	assert.LessOrEqual(t, testing.AllocsPerRun(runs, func() { c.ServeDNS(w, next()) }), 42.0)
	assert.Zero(t, c.Stats().Hits)
}
