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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

func framed(t testing.TB, m *dns.Msg) []byte {
	b := pack(t, m)
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

func TestAConnIsAStream(t *testing.T) {
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

func TestAConnAnswersManyQuestions(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(off(), l.up("udp", "a"))
		k := l.dial(c, background)
		want := make(map[uint16]string)
		var all []byte
		for i := range 50 {
			m := question(fmt.Sprintf("n%d.example.", i), dns.TypeA)
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

func TestDeadlinesOfAConn(t *testing.T) {
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

func TestCloseOfAConnEndsReadsAndQuestions(t *testing.T) {
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

func TestTheDialsContextEndsAConn(t *testing.T) {
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

func TestWhatIsNoQuestionIsAnErrorOfWrite(t *testing.T) {
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

func TestConcurrentUseOfAConn(t *testing.T) {
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

// zone answers as a small zone does.
func zone(q dnstest.Query) dnstest.Reply {
	name, typ := strings.ToLower(q.Question[0].Name), q.Question[0].Qtype
	long := strings.Repeat(strings.Repeat("x", 255)+" ", 240)
	records := map[string][]string{
		"a.example. A":        {"A 192.0.2.1", "A 192.0.2.2"},
		"a.example. AAAA":     {"AAAA 2001:db8::1"},
		"alias.example. A":    {"CNAME a.example.", "a.example. A 192.0.2.1"},
		"alias.example. AAAA": {"CNAME a.example.", "a.example. AAAA 2001:db8::1"},
		"mx.example. MX":      {"MX 10 mail.example.", "MX 20 mail2.example."},
		"txt.example. TXT":    {`TXT "one two" three`},
		"long.example. TXT":   {"TXT " + long},
		"ns.example. NS":      {"NS ns1.example."},
		"_sip._tcp.srv.example. SRV": {
			"SRV 1 2 5060 a.example.", "SRV 2 2 5061 a.example."},
		"1.2.0.192.in-addr.arpa. PTR": {"PTR a.example."},
	}
	if name == "broken.example." {
		return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeServerFailure)}
	}
	if rrs, ok := records[name+" "+dns.TypeToString[typ]]; ok {
		m := dnstest.Answer(q, rrs...)
		m.Compress = true
		if q.Net == "udp" && m.Len() > 1232 {
			m.Answer, m.Truncated = nil, true
		}
		return dnstest.Reply{Msg: m}
	}
	for k := range records {
		if strings.HasPrefix(k, name+" ") {
			return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeSuccess, 300, 60)}
		}
	}
	return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 300, 60)}
}

func TestTheResolverAnswersAsGosOwn(t *testing.T) {
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

func TestAResolverWhoseServersAreSilentTimesOut(t *testing.T) {
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

func TestAnUpstreamsNameIsNotResolvedThroughItself(t *testing.T) {
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Net: "tcp", Addr: "dns.example:53"}}}
	c.Dialer = &net.Dialer{Resolver: c.Resolver()}
	defer c.Close()
	_, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
	require.ErrorContains(t, err, "upstream's own name")
}

func TestLookupAddrsTellsTTLs(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			v6 := q.Question[0].Qtype == dns.TypeAAAA
			switch q.Question[0].Name {
			case "both.example.":
				if v6 {
					return dnstest.Reply{Msg: dnstest.Answer(q, "90 AAAA 2001:db8::1")}
				}
				return dnstest.Reply{Msg: dnstest.Answer(q, "60 A 192.0.2.1")}
			case "alias.example.":
				if v6 {
					return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeServerFailure)}
				}
				return dnstest.Reply{Msg: dnstest.Answer(q, "20 CNAME Y.example.", "y.EXAMPLE. 60 A 192.0.2.2", "z.example. 60 A 203.0.113.9")}
			case "loop.example.":
				return dnstest.Reply{Msg: dnstest.Answer(q, "20 CNAME loop.example.")}
			}
			return zone(q)
		})
		c := l.client(off(), l.up("udp", "a"))
		for name, want := range map[string][]dnshedge.AddrTTL{
			"both.example":   {{netip.MustParseAddr("192.0.2.1"), time.Minute}, {netip.MustParseAddr("2001:db8::1"), 90 * time.Second}},
			"alias.example.": {{netip.MustParseAddr("192.0.2.2"), 20 * time.Second}},
			"2001:db8::7":    {{netip.MustParseAddr("2001:db8::7"), 0}},
		} {
			got, err := c.LookupAddrs(background, name)
			require.NoError(t, err, name)
			assert.Equal(t, want, got, name)
		}
		for name, check := range map[string]func(e *net.DNSError) bool{
			"nx.example":            func(e *net.DNSError) bool { return e.IsNotFound && !e.IsTemporary },
			"mx.example":            func(e *net.DNSError) bool { return e.IsNotFound },
			"loop.example":          func(e *net.DNSError) bool { return e.IsNotFound },
			"broken.example":        func(e *net.DNSError) bool { return e.IsTemporary && !e.IsNotFound },
			strings.Repeat("x", 99): func(e *net.DNSError) bool { return !e.IsNotFound },
		} {
			_, err := c.LookupAddrs(background, name)
			var e *net.DNSError
			require.ErrorAs(t, err, &e, name)
			assert.Equal(t, name, e.Name)
			assert.True(t, check(e), "%s: %#v", name, e)
		}
	})
}

func TestWarmConnectsAndLooksUp(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", good)
		l.serve("b", good)
		c := &dnshedge.Client{Cache: new(dnshedge.Cache), Fallback: []dnshedge.Upstream{l.up("https", "b")}}
		l.client(c, l.up("tls", "a"))
		require.NoError(t, c.Warm(background, "x.example"))
		_, took := l.must(c, "x.example.")
		assert.Zero(t, took)
		_, took = l.must(c, "y.example.")
		assert.Equal(t, 20*ms, took)
		assert.EqualValues(t, 1, s.Conns.Load())
		for _, u := range c.Stats().Upstreams {
			assert.Equal(t, 20*ms, u.SRTT)
			assert.Equal(t, 40*ms, u.Handshake)
		}
		l.link("a", netsim.Profile{BlackHole: true})
		err := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b")).Warm(background)
		require.ErrorContains(t, err, "upstream udp://10.77.0.2:53")
		assert.NotContains(t, err.Error(), "10.77.0.3")
	})
}

// recorder is a dns.ResponseWriter.
type recorder struct {
	dns.ResponseWriter
	remote net.Addr
	wire   []byte
}

func (w *recorder) RemoteAddr() net.Addr { return w.remote }
func (w *recorder) Write(b []byte) (int, error) {
	w.wire = append([]byte(nil), b...)
	return len(b), nil
}

func serve(t *testing.T, c *dnshedge.Client, network string, m *dns.Msg) *dns.Msg {
	t.Helper()
	w := &recorder{remote: &net.TCPAddr{}}
	if network == "udp" {
		w.remote = &net.UDPAddr{}
	}
	c.ServeDNS(w, m)
	r := new(dns.Msg)
	require.NoError(t, r.Unpack(w.wire))
	assert.Equal(t, m.Id, r.Id)
	assert.True(t, r.Response)
	return r
}

func TestServeDNSForwards(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", zone)
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
		for range 2 {
			r := serve(t, c, "udp", question("A.example.", dns.TypeA))
			assert.Len(t, r.Answer, 2)
			assert.Equal(t, "A.example.", r.Question[0].Name)
			assert.Nil(t, r.IsEdns0())
			r = serve(t, c, "udp", question("nx.example.", dns.TypeA))
			assert.Equal(t, dns.RcodeNameError, r.Rcode)

			m := question("long.example.", dns.TypeTXT)
			m.SetEdns0(1232, false)
			r = serve(t, c, "udp", m)
			assert.True(t, r.Truncated)
			assert.Empty(t, r.Answer)
			assert.NotNil(t, r.IsEdns0())
			r = serve(t, c, "tcp", m)
			assert.False(t, r.Truncated)
			assert.Len(t, r.Answer, 1)
		}
		odd := question("x.", dns.TypeA)
		odd.Opcode = dns.OpcodeUpdate
		assert.Equal(t, dns.RcodeNotImplemented, serve(t, c, "udp", odd).Rcode)
		odd = question("x.", dns.TypeAXFR)
		assert.Equal(t, dns.RcodeFormatError, serve(t, c, "tcp", odd).Rcode)
		odd = &dns.Msg{}
		assert.Equal(t, dns.RcodeFormatError, serve(t, c, "tcp", odd).Rcode)
	})
}

func TestServeDNSSaysWhyItFails(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		for code, up := range map[uint16]dnshedge.Upstream{22: l.up("udp", "a"), 23: l.up("udp", "b")} {
			c := l.client(&dnshedge.Client{}, up)
			m := question("x.example.", dns.TypeA)
			m.SetEdns0(1232, true)
			r := serve(t, c, "udp", m)
			assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
			assert.Equal(t, []uint16{code}, edes(r))
			assert.True(t, r.IsEdns0().Do())
			r = serve(t, c, "udp", question("x.example.", dns.TypeA))
			assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
			assert.Nil(t, r.IsEdns0())
		}
	})
}

func TestTheZeroClientAsksTheSystemsServers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(lines ...string) {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	}
	bubble(t, func(l *lab) {
		l.serve("a", with("A 192.0.2.1"))
		l.serve("b", with("A 192.0.2.2"))
		write("# a comment", "nameserver "+l.net.Host("a").Addr().String(), "options ndots:5")
		c := l.client(&dnshedge.Client{ResolvConf: file})
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		write("nameserver " + l.net.Host("b").Addr().String() + " ")
		r, _ = l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r), "looked at every five seconds")
		time.Sleep(5 * time.Second)
		r, _ = l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.2", addr(r))
		require.NoError(t, os.Remove(file))
		time.Sleep(5 * time.Second)
		_, _, err := l.ask(c, "x.example.")
		require.ErrorContains(t, err, "127.0.0.1:53")
	})
}
