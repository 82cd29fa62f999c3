package dnshedge_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

func framed(t testing.TB, m *dns.Msg) []byte {
	b, err := m.Pack()
	require.NoError(t, err)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
}

func readFramed(t testing.TB, c io.Reader) *dns.Msg {
	var head [2]byte
	_, err := io.ReadFull(c, head[:])
	require.NoError(t, err)
	b := make([]byte, binary.BigEndian.Uint16(head[:]))
	_, err = io.ReadFull(c, b)
	require.NoError(t, err)
	m := new(dns.Msg)
	require.NoError(t, m.Unpack(b))
	return m
}

func (l *lab) dial(c *dnshedge.Client, ctx context.Context) net.Conn {
	l.Helper()
	k, err := c.Dial(ctx, "udp", "192.0.2.53:53")
	require.NoError(l, err)
	l.Cleanup(func() { k.Close() })
	return k
}

func TestConnIsStream(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(off(), l.up("udp", "a"))
		k := l.dial(c, background)
		_, packets := k.(net.PacketConn)
		assert.False(t, packets)
		assert.Equal(t, "192.0.2.53:53", k.RemoteAddr().String())
		assert.Equal(t, "udp", k.RemoteAddr().Network())
		assert.NotNil(t, k.LocalAddr())
		m := question("x.example.", dns.TypeA)
		for _, b := range framed(t, m) { // a byte at a time
			n, err := k.Write([]byte{b})
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
		r := readFramed(t, k)
		assert.Equal(t, m.Id, r.Id)
		assert.Equal(t, "192.0.2.1", addr(r))
	})
}

func TestConnAnswersManyQuestions(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(off(), l.up("udp", "a"))
		k := l.dial(c, background)
		want := make(map[uint16]string)
		var all []byte
		for i := range 50 {
			m := question(fmt.Sprintf("n%d.example.", i), dns.TypeA)
			m.Id = uint16(i) // random IDs may be equal
			want[m.Id] = m.Question[0].Name
			all = append(all, framed(t, m)...)
		}
		_, err := k.Write(all)
		require.NoError(t, err)
		for range 50 {
			r := readFramed(t, k)
			assert.Equal(t, want[r.Id], r.Question[0].Name)
		}
	})
}

func TestConnHonorsDeadlines(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", after(time.Second, good))
		c := l.client(off(), l.up("udp", "a"))
		buf := make([]byte, 512)
		isTimeout := func(err error) {
			t.Helper()
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			var ne net.Error
			require.ErrorAs(t, err, &ne)
			assert.True(t, ne.Timeout())
		}
		k := l.dial(c, background)
		require.NoError(t, k.SetDeadline(time.Now().Add(-time.Second)))
		_, err := k.Read(buf)
		isTimeout(err)
		_, err = k.Write([]byte{0})
		isTimeout(err)

		require.NoError(t, k.SetDeadline(time.Time{}))
		_, err = k.Write(framed(t, question("x.example.", dns.TypeA)))
		require.NoError(t, err)
		start := time.Now()
		require.NoError(t, k.SetReadDeadline(start.Add(100*ms)))
		_, err = k.Read(buf)
		isTimeout(err)
		assert.Equal(t, 100*ms, time.Since(start))

		// Moved while a Read waits, to and fro.
		require.NoError(t, k.SetReadDeadline(time.Time{}))
		done := make(chan error, 1)
		go func() { _, err := k.Read(buf); done <- err }()
		synctest.Wait()
		require.NoError(t, k.SetReadDeadline(time.Now().Add(time.Hour)))
		synctest.Wait()
		require.NoError(t, k.SetReadDeadline(time.Now().Add(50*ms)))
		isTimeout(<-done)
		assert.Equal(t, 150*ms, time.Since(start))

		require.NoError(t, k.SetReadDeadline(time.Time{}))
		r := readFramed(t, k)
		assert.Equal(t, "192.0.2.1", addr(r), "the question went on")
		assert.Equal(t, 1020*ms, time.Since(start))
	})
}

func TestConnCloseEndsReadsAndQuestions(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		c := l.client(off(), l.up("udp", "a"))
		k := l.dial(c, background)
		_, err := k.Write(framed(t, question("x.example.", dns.TypeA)))
		require.NoError(t, err)
		done := make(chan error, 2)
		for range 2 {
			go func() { _, err := k.Read(make([]byte, 9)); done <- err }()
		}
		time.Sleep(100 * ms)
		require.NoError(t, k.Close())
		for range 2 {
			require.ErrorIs(t, <-done, net.ErrClosed)
		}
		require.ErrorIs(t, k.Close(), net.ErrClosed)
		_, err = k.Write([]byte{1})
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, k.SetDeadline(time.Now()), net.ErrClosed)
		start := time.Now()
		c.Close()
		assert.Zero(t, time.Since(start), "the question ended with the connection")
	})
}

func TestConnEndsWithDialContext(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		c := l.client(off(), l.up("udp", "a"))
		ctx, cancel := context.WithTimeout(background, 200*ms)
		defer cancel()
		k := l.dial(c, ctx)
		_, err := k.Write(framed(t, question("x.example.", dns.TypeA)))
		require.NoError(t, err)
		start := time.Now()
		_, err = k.Read(make([]byte, 9))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 200*ms, time.Since(start))
		<-ctx.Done() // a socket's deadline may pass a moment before
		_, err = c.Dial(ctx, "udp", "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestConnWriteRejectsInvalidQuestion(t *testing.T) {
	bubble(t, func(l *lab) {
		c := l.client(off(), l.up("udp", "a"))
		response := question("x.", dns.TypeA)
		response.Response = true
		notify := new(dns.Msg)
		notify.SetNotify("x.")
		two := question("x.", dns.TypeA)
		two.Question = append(two.Question, two.Question[0])
		for want, b := range map[string][]byte{
			"shorter than a header": {0, 3, 1, 2, 3},
			"is a response":         framed(t, response),
			"not a query":           framed(t, notify),
			"2 questions":           framed(t, two),
			"malformed":             append([]byte{0, 14}, append(make([]byte, 5), 1, 0, 0, 0, 0, 0, 0, 0xc0, 0x0c)...),
		} {
			k := l.dial(c, background)
			_, err := k.Write(b)
			require.ErrorContains(t, err, want)
		}
	})
}

func TestConnAllowsConcurrentUse(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(off(), l.up("udp", "a"))
		k := l.dial(c, background)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				_, _ = k.Write(framed(t, question("x.example.", dns.TypeA)))
				_ = k.SetDeadline(time.Now().Add(50 * ms))
				_ = k.SetReadDeadline(time.Now().Add(60 * ms))
				_ = k.SetWriteDeadline(time.Now().Add(70 * ms))
				_, _ = k.Read(make([]byte, 16))
				k.LocalAddr()
				k.RemoteAddr()
			})
		}
		wg.Wait()
	})
}

func TestResolverMatchesGoResolver(t *testing.T) {
	s := &dnstest.Server{Handler: zone}
	at := "127.0.0.1:" + freePorts(t, 1)[0]
	pc, err := net.ListenPacket("udp", at)
	require.NoError(t, err)
	s.ServeUDP(pc)
	defer s.Close()
	ln, err := net.Listen("tcp", at)
	require.NoError(t, err)
	s.ServeTCP(ln)
	own := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	}}
	up, err := dnshedge.ParseUpstream(at)
	require.NoError(t, err)
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{up}, Cache: new(dnshedge.Cache)}
	defer c.Close()
	ours := c.Resolver()

	type lookup func(r *net.Resolver) (any, error)
	for name, f := range map[string]lookup{
		"A": func(r *net.Resolver) (any, error) {
			v, err := r.LookupNetIP(t.Context(), "ip4", "a.example.")
			slices.SortFunc(v, netip.Addr.Compare)
			return v, err
		},
		"AAAA": func(r *net.Resolver) (any, error) { return r.LookupNetIP(t.Context(), "ip6", "a.example.") },
		"both": func(r *net.Resolver) (any, error) {
			v, err := r.LookupHost(t.Context(), "a.example.")
			slices.Sort(v)
			return v, err
		},
		"CNAME":    func(r *net.Resolver) (any, error) { return r.LookupCNAME(t.Context(), "alias.example.") },
		"MX":       func(r *net.Resolver) (any, error) { return r.LookupMX(t.Context(), "mx.example.") },
		"TXT":      func(r *net.Resolver) (any, error) { return r.LookupTXT(t.Context(), "txt.example.") },
		"long TXT": func(r *net.Resolver) (any, error) { return r.LookupTXT(t.Context(), "long.example.") },
		"NS":       func(r *net.Resolver) (any, error) { return r.LookupNS(t.Context(), "ns.example.") },
		"SRV": func(r *net.Resolver) (any, error) {
			_, v, err := r.LookupSRV(t.Context(), "sip", "tcp", "srv.example.")
			return v, err
		},
		"PTR":      func(r *net.Resolver) (any, error) { return r.LookupAddr(t.Context(), "192.0.2.1") },
		"NXDOMAIN": func(r *net.Resolver) (any, error) { return r.LookupHost(t.Context(), "nx.example.") },
		"NODATA":   func(r *net.Resolver) (any, error) { return r.LookupMX(t.Context(), "a.example.") },
		"SERVFAIL": func(r *net.Resolver) (any, error) { return r.LookupHost(t.Context(), "broken.example.") },
	} {
		t.Run(name, func(t *testing.T) {
			want, wantErr := f(own)
			for range 2 { // from the server, from the cache
				got, err := f(ours)
				assert.Equal(t, want, got)
				var e, w *net.DNSError
				require.Equal(t, errors.As(wantErr, &w), errors.As(err, &e), "%v; want %v", err, wantErr)
				if w != nil {
					assert.Equal(t, []bool{w.IsNotFound, w.IsTemporary, w.IsTimeout}, []bool{e.IsNotFound, e.IsTemporary, e.IsTimeout})
					assert.Equal(t, w.Err, e.Err)
				}
			}
		})
	}
}

func TestResolverTimesOutWithSilentServers(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		c := l.client(off(), l.up("udp", "a"))
		ctx, cancel := context.WithTimeout(background, 700*ms)
		defer cancel()
		start := time.Now()
		_, err := c.LookupNetIP(ctx, "ip", "x.example.")
		var e *net.DNSError
		require.ErrorAs(t, err, &e)
		assert.True(t, e.IsTimeout, err)
		assert.Equal(t, 700*ms, time.Since(start))
	})
}

func TestClientDoesNotResolveUpstreamThroughItself(t *testing.T) {
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Net: "tcp", Addr: "dns.example:53"}}}
	c.Dialer = &net.Dialer{Resolver: c.Resolver()}
	defer c.Close()
	_, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
	require.ErrorContains(t, err, "upstream's own name")
}
