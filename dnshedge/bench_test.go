package dnshedge_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/hedgetest"
)

// local starts a server on loopback and returns its upstream.
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

// A hit costs at most four allocations; the race detector adds its own.
func TestACacheHitIsCheap(t *testing.T) {
	if hedgetest.RaceEnabled {
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
