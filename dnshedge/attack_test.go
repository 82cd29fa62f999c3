package dnshedge_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// forged is the address in the records by which tests try to poison a cache.
const forged = "203.0.113.66"

// A response may have records of other names in any section. Only its own question is answered from the cache.
func TestCacheIgnoresRecordsOfOtherNames(t *testing.T) {
	victims := []string{"bank.example.", "www.bank.example.", "ns.bank.example.", "attacker.example.", "example."}
	for name, poison := range map[string]func(m *dns.Msg){
		"additional": func(m *dns.Msg) {
			for _, victim := range victims {
				m.Extra = append(m.Extra, mustRR(t, victim, "86400 A "+forged))
			}
		},
		"authority": func(m *dns.Msg) {
			m.Ns = append(m.Ns, mustRR(t, "bank.example.", "86400 NS ns.bank.example."), mustRR(t, "example.", "86400 NS ns.bank.example."))
			m.Extra = append(m.Extra, mustRR(t, "ns.bank.example.", "86400 A "+forged))
		},
		"answer": func(m *dns.Msg) { m.Answer = append(m.Answer, mustRR(t, "bank.example.", "86400 A "+forged)) },
		"alias": func(m *dns.Msg) {
			m.Answer = []dns.RR{mustRR(t, m.Question[0].Name, "CNAME www.bank.example."), mustRR(t, "www.bank.example.", "86400 A "+forged)}
		},
		"denial of the parent": func(m *dns.Msg) {
			m.Rcode, m.Answer = dns.RcodeNameError, nil
			m.Ns = []dns.RR{mustRR(t, "example.", "86400 SOA ns. mail. 1 1 1 1 86400")}
		},
	} {
		bubble(t, func(l *lab) {
			c, s := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
				r := good(q)
				if q.Question[0].Name == "x.attacker.example." {
					poison(r.Msg)
				}
				return r
			})
			l.must(c, "x.attacker.example.")
			l.must(c, "x.attacker.example.")
			assert.EqualValues(t, 1, s.Queries.Load(), "%s: cached", name)
			assert.Equal(t, 1, c.Cache.Len(), name)
			for i, victim := range victims {
				r, _ := l.must(c, victim)
				assert.Equal(t, "192.0.2.1", addr(r), "%s: %s", name, victim)
				assert.EqualValues(t, 2+i, s.Queries.Load(), "%s: %s is asked for", name, victim)
			}
		})
	}
}

func mustRR(t *testing.T, owner, s string) dns.RR {
	t.Helper()
	rr, err := dnstest.RR(owner, s)
	require.NoError(t, err)
	return rr
}

// Questions about different client subnets are sent at the same time, so that a forged response has many chances to fit one
// (RebirthDay, CVE-2025-5994). No other client gets such a response, whatever scope it has.
func TestAnswerForSubnetReachesNoOtherClient(t *testing.T) {
	for name, option := range map[string]*dns.EDNS0_SUBNET{
		"the same subnet":  {Family: 1, SourceNetmask: 24, SourceScope: 24, Address: net.IPv4(198, 51, 1, 0)},
		"for all clients":  {Family: 1, SourceNetmask: 24, SourceScope: 0, Address: net.IPv4(198, 51, 1, 0)},
		"longer than sent": {Family: 1, SourceNetmask: 24, SourceScope: 32, Address: net.IPv4(198, 51, 1, 0)},
		"another family":   {Family: 2, SourceNetmask: 56, SourceScope: 0, Address: net.ParseIP("2001:db8::")},
		"none":             nil,
	} {
		bubble(t, func(l *lab) {
			c, s := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
				r := after(100*ms, good)(q)
				if opt := q.IsEdns0(); slices.Contains(codes(opt), dns.EDNS0SUBNET) {
					r.Msg = dnstest.Answer(q, "86400 A "+forged)
				}
				if option != nil { // also in responses to queries without the option
					o := *option
					o.Code = dns.EDNS0SUBNET
					r.Msg.IsEdns0().Option = append(r.Msg.IsEdns0().Option, &o)
				}
				return r
			})
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					r, _, err := c.Exchange(subnet("x.example.", byte(i)), "")
					assert.NoError(t, err)
					assert.Equal(t, forged, addr(r))
				})
			}
			wg.Go(func() {
				r, err := l.edns(c, "x.example.")
				assert.NoError(t, err)
				assert.Equal(t, "192.0.2.1", addr(r), name)
				assert.Empty(t, r.IsEdns0().Option, "%s: the client has sent no option", name)
			})
			wg.Wait()
			assert.EqualValues(t, 101, s.Queries.Load(), name)
			assert.Equal(t, 1, c.Cache.Len(), "%s: no answer for a subnet is stored", name)
			r, took := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r), name)
			assert.Zero(t, took, name)
		})
	}
}

// Many clients ask for a name whose answer is due for a refresh, or has expired, while its servers are dead.
func TestFloodOfQuestionsRefreshesOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		cache *dnshedge.Cache
		age   time.Duration
	}{
		"due":     {new(dnshedge.Cache), 91 * time.Second},
		"expired": {&dnshedge.Cache{StaleAfter: -1}, 101 * time.Second},
	} {
		bubble(t, func(l *lab) {
			var dead atomic.Bool
			c, s := cached(l, tc.cache, func(q dnstest.Query) dnstest.Reply {
				if dead.Load() {
					return drop(q)
				}
				return with("100 A 192.0.2.1")(q)
			})
			for range 3 {
				l.must(c, "x.example.")
			}
			time.Sleep(tc.age)
			dead.Store(true)
			before := s.Queries.Load()
			var wg sync.WaitGroup
			for range 1000 {
				wg.Go(func() {
					for range 8 { // within nine seconds, so that the answer that is due does not expire
						r, took := l.must(c, "x.example.")
						assert.Equal(t, "192.0.2.1", addr(r), name)
						assert.Zero(t, took, name)
						time.Sleep(time.Second)
					}
				})
			}
			wg.Wait()
			assert.Positive(t, s.Queries.Load()-before, name)
			assert.LessOrEqual(t, s.Queries.Load()-before, int64(10), "%s: one question, with its retransmissions and probes", name)
		})
	}
}

// A response over UDP may go to the victim of a forged address. The table has the worst messages of a client.
func TestServerAmplifiesLittleOverUDP(t *testing.T) {
	edns := func(m *dns.Msg, size uint16) *dns.Msg { return m.SetEdns0(size, true) }
	bare := func(counts ...byte) []byte {
		return append([]byte{0, 1, 1, 0, 0, counts[0], 0, counts[1], 0, counts[2], 0, counts[3]}, counts[4:]...)
	}
	messages := map[string]any{
		"short answer":      question("a.example.", dns.TypeA),
		"long answer":       question("long.example.", dns.TypeTXT),
		"long, large size":  edns(question("long.example.", dns.TypeTXT), 65535),
		"long, size 0":      edns(question("long.example.", dns.TypeTXT), 0),
		"ANY":               edns(question("long.example.", dns.TypeANY), 65535),
		"failure":           edns(question("broken.example.", dns.TypeA), 65535),
		"transfer":          question("example.", dns.TypeAXFR),
		"two questions":     bare(2, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1),
		"no question":       bare(0, 0, 0, 0),
		"pointer to itself": bare(1, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1),
		"records missing":   bare(1, 255, 255, 255, 0, 0, 1, 0, 1),
		"response":          new(dns.Msg).SetReply(question("a.example.", dns.TypeA)),
		"three bytes":       []byte{1, 2, 3},
	}
	long := "TXT " + strings.Repeat(strings.Repeat("x", 255)+" ", 100)
	for _, verdict := range []dnshedge.Verdict{dnshedge.Answer, dnshedge.Refuse} {
		bubble(t, func(l *lab) {
			up := l.serve("a", func(q dnstest.Query) dnstest.Reply {
				switch r := zone(q); q.Question[0].Qtype {
				case dns.TypeANY:
					return dnstest.Reply{Msg: dnstest.Answer(q, long)}
				default:
					return r
				}
			})
			c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache), Hedge: dnshedge.Hedge{Off: true}}, l.up("tcp", "a"))
			l.startServer(&dnshedge.Server{Client: c, Admit: func(net.Addr) dnshedge.Verdict { return verdict }})
			conn := l.connect("udp")
			for name, message := range messages {
				b, ok := message.([]byte)
				if !ok {
					var err error
					b, err = message.(*dns.Msg).Pack()
					require.NoError(t, err)
				}
				_, err := conn.Conn.Write(b)
				require.NoError(t, err)
				require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
				r := make([]byte, 1<<16)
				n, err := conn.Conn.Read(r)
				if name == "response" || name == "three bytes" {
					assert.Error(t, err, name)
					continue
				}
				require.NoError(t, err, name)
				// A long answer is truncated to its question. Only short answers have records.
				limit := len(b) + 6 // an extended error without text
				if name == "short answer" {
					limit = len(b) + 2*16
				}
				assert.LessOrEqual(t, n, limit, name)
			}
			if verdict == dnshedge.Refuse {
				assert.Zero(t, up.Queries.Load())
			}
		})
	}
}

// Two forwarders forward all questions to each other.
func TestTwoForwardersEndForwardingLoop(t *testing.T) {
	for name, m := range kinds() {
		bubble(t, func(l *lab) {
			first := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "b"))
			l.startServer(&dnshedge.Server{Client: first})
			second := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "c"))
			second.Dialer = l.net.Host("b")
			s := &dnshedge.Server{Client: second}
			pc, err := l.net.Host("b").ListenPacket("udp", ":53")
			require.NoError(t, err)
			var wg sync.WaitGroup
			wg.Go(func() { assert.ErrorIs(t, s.ServePacket(pc), dnshedge.ErrServerClosed) })
			l.Cleanup(func() {
				require.NoError(t, s.Shutdown(background))
				wg.Wait()
			})
			l.net.Set("b", "c", netsim.Profile{Delay: netsim.Constant(10 * ms)})
			require.NoError(t, l.connect("udp").WriteMsg(m))
			time.Sleep(30 * time.Second)
			n := first.Stats().Wire + second.Stats().Wire
			assert.Greater(t, n, int64(1), name)
			assert.LessOrEqual(t, n, int64(64), name)
			time.Sleep(time.Minute)
			assert.Equal(t, n, first.Stats().Wire+second.Stats().Wire, "%s: the loop has ended", name)
		})
	}
}

// Connections over TLS on which no complete query arrives end after the IdleTimeout, even if bytes arrive.
func TestServerEndsIncompleteQueriesOverTLS(t *testing.T) {
	query, err := question("x.example.", dns.TypeA).Pack()
	require.NoError(t, err)
	query = append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)
	for name, begin := range map[string]func(raw net.Conn, secure *tls.Conn){
		"no handshake": func(net.Conn, *tls.Conn) {},
		"handshake byte by byte": func(raw net.Conn, _ *tls.Conn) {
			for _, b := range append([]byte{22, 3, 1, 1, 0}, make([]byte, 256)...) {
				if _, err := raw.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		},
		"no query": func(_ net.Conn, secure *tls.Conn) { _ = secure.Handshake() },
		"late handshake, no query": func(_ net.Conn, secure *tls.Conn) {
			time.Sleep(9 * time.Second)
			_ = secure.Handshake()
		},
		"half of a length": func(_ net.Conn, secure *tls.Conn) { _, _ = secure.Write(query[:1]) },
		"half of a query":  func(_ net.Conn, secure *tls.Conn) { _, _ = secure.Write(query[:10]) },
		"query byte by byte": func(_ net.Conn, secure *tls.Conn) {
			for _, b := range query {
				if _, err := secure.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		},
	} {
		bubble(t, func(l *lab) {
			open := l.crowded(200)
			synctest.Wait()
			before := runtime.NumGoroutine()
			var wg sync.WaitGroup
			for range 100 {
				raw, err := l.net.Host("client").DialContext(background, "tcp", l.net.Host("c").Addr().String()+":853")
				require.NoError(t, err)
				_, trusting := dnstest.Certificate()
				config := trusting.Clone()
				config.ServerName = dnstest.Name
				wg.Go(func() { begin(raw, tls.Client(raw, config)) })
				l.Cleanup(func() { raw.Close() })
			}
			time.Sleep(time.Second)
			assert.EqualValues(t, 100, open.now.Load(), name)
			time.Sleep(10 * time.Second)
			assert.Zero(t, open.now.Load(), name)
			wg.Wait()
			synctest.Wait()
			assert.LessOrEqual(t, runtime.NumGoroutine(), before+20, name) // of 100 connections
			assert.True(t, works(t, l.from("b", "tls"), "x.example."), name)
		})
	}
}

// pipeToTLSServer starts a Server and connects it to a client by a pipe, in which a write waits for the reader. The channel
// is closed when the Server closes the connection.
func (l *lab) pipeToTLSServer(s *dnshedge.Server, config *tls.Config) (client net.Conn, closed chan struct{}) {
	l.serve("a", good)
	s.Client = l.client(off(), l.up("udp", "a"))
	here, there := net.Pipe()
	closed = make(chan struct{})
	inner, err := l.net.Host("c").Listen("tcp", ":853")
	require.NoError(l, err)
	var wg sync.WaitGroup
	conn := tls.Server(&countedConn{there, sync.OnceFunc(func() { close(closed) })}, config)
	wg.Go(func() { assert.ErrorIs(l, s.Serve(&once{Listener: inner, conn: conn}), dnshedge.ErrServerClosed) })
	l.Cleanup(func() {
		require.NoError(l, s.Shutdown(background))
		wg.Wait()
		here.Close()
	})
	return here, closed
}

// Over TLS the server also writes while it reads. A client that reads nothing must not keep its connection.
func TestServerEndsHandshakeOfClientThatReadsNothing(t *testing.T) {
	bubble(t, func(l *lab) {
		serving, trusting := dnstest.Certificate()
		client, closed := l.pipeToTLSServer(new(dnshedge.Server), serving.Clone())
		config := trusting.Clone()
		config.ServerName = dnstest.Name
		hello := make(chan []byte, 1)
		go func() { // the first message of a client
			mute, other := net.Pipe()
			go func() {
				b := make([]byte, 4096)
				n, _ := other.Read(b)
				hello <- b[:n]
				other.Close()
			}()
			_ = tls.Client(mute, config).Handshake()
			mute.Close()
		}()
		_, err := client.Write(<-hello)
		require.NoError(t, err)
		start := time.Now()
		<-closed
		assert.LessOrEqual(t, time.Since(start), 16*time.Second, "IdleTimeout, and five seconds in which package tls announces the end")
	})
}

func TestServerClosesConnectionIfTLSConfigEndsGoroutine(t *testing.T) {
	bubble(t, func(l *lab) {
		_, trusting := dnstest.Certificate()
		client, closed := l.pipeToTLSServer(new(dnshedge.Server), &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			runtime.Goexit()
			return nil, nil
		}})
		config := trusting.Clone()
		config.ServerName = dnstest.Name
		go func() { _ = tls.Client(client, config).Handshake() }()
		start := time.Now()
		<-closed
		assert.LessOrEqual(t, time.Since(start), 16*time.Second)
	})
}

// A countingDialer counts the bytes that arrive on its connections.
type countingDialer struct {
	dnshedge.Dialer
	bytesRead atomic.Int64
}

func (d *countingDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, address)
	return &countingConn{c, d}, err
}

type countingConn struct {
	net.Conn
	dialer *countingDialer
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.dialer.bytesRead.Add(int64(n))
	return n, err
}

// An upstream over HTTPS sends a response without an end. The question fails, few of the bytes are read, and the connection
// ends. Over HTTP/2, the bytes of a response that was cancelled are discarded until then.
func TestHTTPSEndlessResponseFails(t *testing.T) {
	http1 := func(begin, more string) func(net.Conn) {
		return func(c net.Conn) {
			if n, err := c.Read(make([]byte, 1<<14)); err != nil || n == 0 {
				return
			}
			_, err := io.WriteString(c, begin)
			for err == nil {
				_, err = io.WriteString(c, strings.Repeat(more, 1<<14/len(more)))
				time.Sleep(ms)
			}
		}
	}
	const ok = "HTTP/1.1 200 OK\r\nContent-Type: application/dns-message\r\n"
	for name, tc := range map[string]struct {
		protocol string
		serve    func(net.Conn)
	}{
		"status line":      {"http/1.1", http1("HTTP/1.1 200 ", "x")},
		"header":           {"http/1.1", http1(ok, "X: y\r\n")},
		"early responses":  {"http/1.1", http1("", "HTTP/1.1 103 Early Hints\r\n\r\n")},
		"body":             {"http/1.1", http1(ok+"\r\n", "x")},
		"body in chunks":   {"http/1.1", http1(ok+"Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n")},
		"trailers":         {"http/1.1", http1(ok+"Transfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n")},
		"header of HTTP/2": {"h2", endlessHTTP2(false)},
		"body of HTTP/2":   {"h2", endlessHTTP2(true)},
	} {
		bubble(t, func(l *lab) {
			c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Off: true}, Timeout: 2 * time.Second}, l.up("https", "a"))
			d := &countingDialer{Dialer: c.Dialer}
			c.Dialer = d
			ln, err := l.net.Host("a").Listen("tcp", ":443")
			require.NoError(t, err)
			var conns, ended atomic.Int64
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					raw, err := ln.Accept()
					if err != nil {
						return
					}
					conns.Add(1)
					wg.Go(func() {
						defer ended.Add(1)
						defer raw.Close()
						tc.serve(tls.Server(raw, serverTLS(tc.protocol)))
					})
				}
			})
			_, took, err := l.ask(c, "x.example.")
			require.Error(t, err, name)
			assert.LessOrEqual(t, took, 2*time.Second, name)
			time.Sleep(time.Minute)
			require.Positive(t, conns.Load(), name)
			assert.LessOrEqual(t, conns.Load(), int64(8), name)
			assert.Equal(t, conns.Load(), ended.Load(), name)
			if name != "body of HTTP/2" {
				assert.LessOrEqual(t, d.bytesRead.Load(), conns.Load()*512<<10, name)
			}
			require.NoError(t, c.Close())
			require.NoError(t, ln.Close())
			wg.Wait()
		})
	}
}

// endlessHTTP2 returns a function that serves an HTTP/2 connection, and answers a request with a header or a body that has
// no end. It obeys no flow control.
func endlessHTTP2(body bool) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(c, c)
		_ = f.WriteSettings()
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if _, ok := frame.(*http2.HeadersFrame); !ok {
				continue
			}
			stream := frame.Header().StreamID
			status := append([]byte{0x88, 0x0f, 0x10, byte(len("application/dns-message"))}, "application/dns-message"...)
			err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: status, EndHeaders: body})
			field := append([]byte{0x00, 0x01, 'x', 100}, strings.Repeat("y", 100)...)
			for err == nil {
				if body {
					err = f.WriteData(stream, false, make([]byte, 1<<14))
				} else {
					err = f.WriteContinuation(stream, false, slices.Repeat(field, 100))
				}
				time.Sleep(20 * ms)
			}
		}
	}
}

// An attacker who cannot see the queries has to guess the port and the ID of each (RFC 5452). This test uses the ports of
// the operating system.
func TestUDPPortsAndIDsAreNotPredictable(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the ports are chosen by the system")
	}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	var ports, ids []int
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 512)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			ports, ids = append(ports, from.(*net.UDPAddr).Port), append(ids, int(binary.BigEndian.Uint16(b)))
			m := new(dns.Msg)
			if m.Unpack(b[:n]) == nil {
				r, _ := dnstest.Answer(dnstest.Query{Msg: m}, "A 192.0.2.1").Pack()
				_, _ = pc.WriteTo(r, from)
			}
		}
	})
	c := off()
	c.Upstreams, c.Timeout = []dnshedge.Upstream{{Addr: pc.LocalAddr().String()}}, 20*time.Second
	for i := range 400 {
		_, _, err := c.Exchange(question(fmt.Sprintf("x%d.example.", i), dns.TypeA), "")
		require.NoError(t, err)
	}
	require.NoError(t, c.Close())
	pc.Close()
	wg.Wait()
	for what, values := range map[string][]int{"ports": ports, "IDs": ids} {
		distinct, near := make(map[int]bool), 0
		for i, v := range values {
			distinct[v] = true
			if i > 0 && max(v-values[i-1], values[i-1]-v) <= 16 {
				near++
			}
		}
		assert.Greater(t, len(distinct), 380, "%s: of 400; 397 are expected of 28,232 ports", what)
		assert.Less(t, near, 20, "%s: 0.5 of 400 follow their predecessor by chance", what)
	}
}
