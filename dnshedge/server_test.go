package dnshedge_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// startServer serves UDP and TCP on host c of the lab.
func (l *lab) startServer(s *dnshedge.Server) {
	pc, err := l.net.Host("c").ListenPacket("udp", ":53")
	require.NoError(l, err)
	ln, err := l.net.Host("c").Listen("tcp", ":53")
	require.NoError(l, err)
	var wg sync.WaitGroup
	wg.Go(func() { assert.ErrorIs(l, s.ServePacket(pc), dnshedge.ErrServerClosed) })
	wg.Go(func() { assert.ErrorIs(l, s.Serve(ln), dnshedge.ErrServerClosed) })
	l.Cleanup(func() {
		require.NoError(l, s.Shutdown(background))
		wg.Wait()
	})
}

// connect connects to the server.
func (l *lab) connect(network string) *dns.Conn {
	c, err := l.net.Host("client").DialContext(background, network, l.net.Host("c").Addr().String()+":53")
	require.NoError(l, err)
	l.Cleanup(func() { c.Close() })
	return &dns.Conn{Conn: c, UDPSize: 4096}
}

// put asks a question over a connection.
func put(t *testing.T, c *dns.Conn, m *dns.Msg) *dns.Msg {
	t.Helper()
	require.NoError(t, c.WriteMsg(m))
	r, err := c.ReadMsg()
	require.NoError(t, err)
	assert.Equal(t, m.Id, r.Id)
	assert.True(t, r.Response)
	return r
}

func TestServerMatchesServeDNS(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", zone)
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
		l.startServer(&dnshedge.Server{Client: c})
		for _, network := range []string{"udp", "tcp"} {
			conn := l.connect(network)
			for i := range 3 {
				for _, name := range []string{"Alias.example.", "nx.example.", "a.nx.example.", "broken.example.", "long.example."} {
					m := question(name, dns.TypeA)
					if name == "long.example." {
						m.Question[0].Qtype = dns.TypeTXT
					}
					m.SetEdns0(4096, false)
					if i == 0 {
						put(t, conn, m) // so that both responses come from the cache
					}
					got, want := put(t, conn, m), serve(t, c, network, m)
					for _, r := range []*dns.Msg{got, want} {
						for _, rr := range append(r.Answer, r.Ns...) {
							rr.Header().Ttl = 0
						}
					}
					assert.Equal(t, want.String(), got.String())
				}
			}
			odd := question("x.", dns.TypeA)
			odd.Opcode = dns.OpcodeUpdate
			assert.Equal(t, dns.RcodeNotImplemented, put(t, conn, odd).Rcode)
			assert.Equal(t, dns.RcodeRefused, put(t, conn, question("x.", dns.TypeAXFR)).Rcode)
			assert.Equal(t, dns.RcodeFormatError, put(t, conn, new(dns.Msg)).Rcode)
			odd = question("x.", dns.TypeA)
			odd.SetEdns0(1232, false)
			odd.IsEdns0().SetVersion(1)
			assert.Equal(t, dns.RcodeBadVers, put(t, conn, odd).Rcode)
			odd = question("x.", dns.TypeA)
			odd.SetTsig("key.", dns.HmacSHA256, 300, 0)
			b, err := odd.Pack()
			require.NoError(t, err)
			_, err = conn.Write(b)
			require.NoError(t, err)
			r, err := conn.ReadMsg()
			require.NoError(t, err)
			assert.Equal(t, dns.RcodeRefused, r.Rcode)
		}
	})
}

func TestServerDoesNotRespondToResponses(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		l.startServer(&dnshedge.Server{Client: l.client(new(dnshedge.Client), l.up("udp", "a"))})
		conn := l.connect("udp")
		m := question("x.example.", dns.TypeA)
		m.Response = true
		require.NoError(t, conn.WriteMsg(m))
		_, err := conn.Write([]byte{1, 2, 3})
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err = conn.ReadMsg()
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.NoError(t, conn.SetReadDeadline(time.Time{}))
		put(t, conn, question("x.example.", dns.TypeA))
	})
}

func TestServerAdmitSelectsClients(t *testing.T) {
	bubble(t, func(l *lab) {
		up := l.serve("a", good)
		var verdict, asked atomic.Int64
		s := &dnshedge.Server{
			Client: l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a")),
			Admit: func(a net.Addr) dnshedge.Verdict {
				assert.Contains(l, a.String(), l.net.Host("client").Addr().String())
				asked.Add(1)
				return dnshedge.Verdict(verdict.Load())
			},
		}
		l.startServer(s)
		for _, network := range []string{"udp", "tcp"} {
			verdict.Store(int64(dnshedge.Refuse))
			m := question("x.example.", dns.TypeA)
			m.SetEdns0(1232, false)
			conn := l.connect(network)
			r := put(t, conn, m)
			assert.Equal(t, dns.RcodeRefused, r.Rcode)
			assert.Equal(t, []uint16{18}, edes(r))
			verdict.Store(int64(dnshedge.Ignore))
			require.NoError(t, conn.WriteMsg(m))
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
			_, err := conn.ReadMsg()
			require.Error(t, err)
			assert.Equal(t, network == "tcp", err == io.EOF)
		}
		assert.Zero(t, up.Queries.Load())
		assert.EqualValues(t, 4, asked.Load())
	})
}

func TestServerAnswersQuestionsOfConnectionConcurrently(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Name == "slow.example." {
				return after(time.Second, good)(q)
			}
			return good(q)
		})
		l.startServer(&dnshedge.Server{Client: l.client(off(), l.up("udp", "a"))})
		conn := l.connect("tcp")
		slow := question("slow.example.", dns.TypeA)
		require.NoError(t, conn.WriteMsg(slow))
		start := time.Now()
		put(t, conn, question("x.example.", dns.TypeA))
		assert.Less(t, time.Since(start), 100*ms)
		for range 1000 { // more than may wait at a time
			require.NoError(t, conn.WriteMsg(slow))
		}
		for range 1001 {
			r, err := conn.ReadMsg()
			require.NoError(t, err)
			assert.Equal(t, slow.Id, r.Id)
		}
	})
}

// Queries fit into the buffer of a connection, or do not, and arrive together, or byte by byte.
func TestServerReadsQueriesOfAnyLength(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		l.startServer(&dnshedge.Server{Client: l.client(off(), l.up("udp", "a"))})
		conn := l.connect("tcp")
		var sent []byte
		var ids []uint16
		for _, length := range []int{100, 285, 286, 287, 288, 289, 4000, 100} {
			q := question("x.example.", dns.TypeA).SetEdns0(1232, false)
			q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, length-q.Len()-4)}}
			b, err := q.Pack()
			require.NoError(t, err)
			require.Len(t, b, length)
			sent, ids = append(binary.BigEndian.AppendUint16(sent, uint16(length)), b...), append(ids, q.Id)
		}
		_, err := conn.Conn.Write(sent)
		require.NoError(t, err)
		for i := range sent {
			_, err := conn.Conn.Write(sent[i : i+1])
			require.NoError(t, err)
		}
		var answered []uint16
		for range 2 * len(ids) {
			r, err := conn.ReadMsg()
			require.NoError(t, err)
			assert.Equal(t, "192.0.2.1", addr(r))
			answered = append(answered, r.Id)
		}
		assert.ElementsMatch(t, append(ids, ids...), answered)
	})
}

func TestServerClosesOnlyIdleConnections(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", after(3*time.Second, good))
		l.startServer(&dnshedge.Server{Client: l.client(off(), l.up("udp", "a")), IdleTimeout: time.Second})
		conn := l.connect("tcp")
		put(t, conn, question("x.example.", dns.TypeA))
		start := time.Now()
		_, err := conn.ReadMsg()
		require.ErrorIs(t, err, io.EOF)
		assert.LessOrEqual(t, time.Since(start), 1100*ms)
		conn = l.connect("tcp")
		start = time.Now()
		_, err = conn.Conn.Write([]byte{0}) // and never the rest
		require.NoError(t, err)
		_, err = conn.ReadMsg()
		require.ErrorIs(t, err, io.EOF)
		assert.LessOrEqual(t, time.Since(start), 1100*ms)
	})
}

func TestServerAnswersInvalidMessageWithFORMERR(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		l.startServer(&dnshedge.Server{Client: l.client(off(), l.up("udp", "a"))})
		for _, network := range []string{"udp", "tcp"} {
			conn := l.connect(network)
			_, err := conn.Write([]byte{0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 99})
			require.NoError(t, err)
			r, err := conn.ReadMsg()
			require.NoError(t, err)
			assert.EqualValues(t, 0xabcd, r.Id)
			assert.True(t, r.Response)
			assert.True(t, r.RecursionDesired)
			assert.Equal(t, dns.RcodeFormatError, r.Rcode)
		}
	})
}

func TestServerDisconnectsClientThatStopsReading(t *testing.T) {
	s := &dnshedge.Server{
		Client:       &dnshedge.Client{Upstreams: []dnshedge.Upstream{local(t, "tcp", zone)}, Cache: new(dnshedge.Cache)},
		WriteTimeout: 50 * ms,
	}
	defer s.Client.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.Serve(ln) }()
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	b, err := question("long.example.", dns.TypeTXT).Pack()
	require.NoError(t, err)
	b = append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
	require.NoError(t, conn.SetWriteDeadline(time.Now().Add(20*time.Second)))
	for err == nil {
		_, err = conn.Write(b)
	}
	assert.NotErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, s.Shutdown(background))
}

// askALot asks for a long answer over a connection without a buffer, 100 times before it
// comes, and reads nothing. It returns the connection.
func (l *lab) askALot(timeout time.Duration) *dns.Conn {
	l.serve("a", after(time.Second, zone))
	c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("tcp", "a"))
	s := &dnshedge.Server{Client: c, WriteTimeout: timeout}
	l.startServer(s)
	here, there := net.Pipe()
	ln, err := l.net.Host("c").Listen("tcp", ":5353")
	require.NoError(l, err)
	go func() { _ = s.Serve(&once{ln, there}) }()
	l.Cleanup(func() { here.Close() })
	conn := &dns.Conn{Conn: here}
	for range 100 {
		require.NoError(l, conn.WriteMsg(question("long.example.", dns.TypeTXT)))
	}
	return conn
}

func TestServerSharesMemoryOfUnreadAnswers(t *testing.T) {
	bubble(t, func(l *lab) {
		heap := func() int64 {
			synctest.Wait()
			for range 3 { // a sync.Pool is empty after two
				runtime.GC()
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		conn := l.askALot(time.Minute)
		before := heap()
		time.Sleep(2 * time.Second)
		grown := heap() - before
		r, err := conn.ReadMsg()
		require.NoError(t, err)
		size := int64(r.Len())
		require.Greater(t, size, int64(10_000))
		assert.Less(t, grown, 50*size, "100 answers wait")
	})
}

func TestServerDisconnectsSlowReader(t *testing.T) {
	bubble(t, func(l *lab) {
		conn := l.askALot(0)
		time.Sleep(2 * time.Second) // so the responses have waited for a second
		read := 0
		for ; read < 100; read++ {
			if _, err := conn.ReadMsg(); err != nil {
				break
			}
			time.Sleep(1100 * ms)
		}
		assert.Equal(t, 4, read, "within the five seconds that every answer has from when it is ready")
	})
}

func TestServerBoundsGoroutinesInFloodOfOneQuestion(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Name == "dead.example." {
				return dnstest.Reply{}
			}
			return good(q)
		})
		c := l.client(&dnshedge.Client{MaxInFlight: 10, Cache: new(dnshedge.Cache), Hedge: dnshedge.Hedge{Off: true}}, l.up("tcp", "a"))
		l.startServer(&dnshedge.Server{Client: c})
		conn := l.connect("udp")
		put(t, conn, question("x.example.", dns.TypeA))
		synctest.Wait()
		before := runtime.NumGoroutine()
		for range 1000 {
			require.NoError(t, conn.WriteMsg(question("dead.example.", dns.TypeA)))
		}
		time.Sleep(100 * ms)
		synctest.Wait()
		assert.Less(t, runtime.NumGoroutine(), before+100)
		asked := c.Stats().Queries - 1
		assert.Greater(t, asked, int64(500), "the rest did not fit into the socket")
		assert.Equal(t, asked-20, c.Stats().Dropped)
		start := time.Now()
		put(t, conn, question("y.example.", dns.TypeA))
		assert.Equal(t, 40*ms, time.Since(start))
	})
}

func TestServerShutdownAnswersPendingQuestions(t *testing.T) {
	for _, patient := range []bool{true, false} {
		bubble(t, func(l *lab) {
			l.serve("a", after(time.Second, good))
			s := &dnshedge.Server{Client: l.client(off(), l.up("udp", "a"))}
			l.startServer(s)
			var wg sync.WaitGroup
			for _, network := range []string{"udp", "tcp"} {
				conn := l.connect(network)
				wg.Go(func() {
					assert.NoError(t, conn.WriteMsg(question("x.example.", dns.TypeA)))
					assert.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
					r, err := conn.ReadMsg()
					if patient {
						if assert.NoError(t, err) {
							assert.Equal(t, "192.0.2.1", addr(r))
						}
					} else if err == nil {
						assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
					}
				})
			}
			time.Sleep(100 * ms)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(background, 500*ms)
			if patient {
				cancel()
				ctx, cancel = context.WithTimeout(background, time.Minute)
			}
			defer cancel()
			start := time.Now()
			err := s.Shutdown(ctx)
			if patient {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Equal(t, 500*ms, time.Since(start))
			}
			wg.Wait()
		})
	}
}

func TestServerShutdownDoesNotWaitForBlockingAdmit(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		s := &dnshedge.Server{
			Client: l.client(off(), l.up("udp", "a")),
			Admit:  func(net.Addr) dnshedge.Verdict { time.Sleep(time.Hour); return dnshedge.Answer },
		}
		l.startServer(s)
		require.NoError(t, l.connect("tcp").WriteMsg(question("x.example.", dns.TypeA)))
		time.Sleep(100 * ms)
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, s.Shutdown(ctx), context.DeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(start))
	})
}

// The test uses real sockets, which are bound to all addresses and receive UDP messages in batches.
func TestServerAnswersFromQueriedAddress(t *testing.T) {
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{local(t, "udp", good)}, Cache: new(dnshedge.Cache)}
	defer c.Close()
	s := &dnshedge.Server{Client: c}
	for _, network := range []string{"udp", "udp4"} {
		pc, err := net.ListenPacket(network, ":0")
		require.NoError(t, err)
		go func() { _ = s.ServePacket(pc) }()
		_, port, err := net.SplitHostPort(pc.LocalAddr().String())
		require.NoError(t, err)
		for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
			conn, err := net.Dial("udp", net.JoinHostPort(host, port)) // accepts UDP messages from that address only
			require.NoError(t, err)
			defer conn.Close()
			dc := &dns.Conn{Conn: conn}
			require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
			for i := range 100 {
				name := string(rune('a'+i%26)) + ".example."
				assert.Equal(t, "192.0.2.1", addr(put(t, dc, question(name, dns.TypeA))))
			}
		}
	}
	require.NoError(t, s.Shutdown(background))
}

func TestServerReportsInvalidFields(t *testing.T) {
	c := new(dnshedge.Client)
	for want, s := range map[string]*dnshedge.Server{
		"Server.Client is nil":        {},
		"Server.IdleTimeout is -1ns":  {Client: c, IdleTimeout: -1},
		"Server.WriteTimeout is -1ns": {Client: c, WriteTimeout: -1},
	} {
		mustNotServe(t, s, want)
	}
}

// mustNotServe checks that an invalid Server returns an error with the given text, and closes its listener or socket.
func mustNotServe(t *testing.T, s *dnshedge.Server, want string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.ErrorContains(t, s.Serve(ln), want)
	_, err = ln.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	require.ErrorContains(t, s.ServePacket(pc), want)
	_, _, err = pc.ReadFrom(nil)
	require.ErrorIs(t, err, net.ErrClosed)
}

// invalid is an Exchanger whose fields are out of their limits.
type invalid struct{ dnshedge.Exchanger }

func (invalid) Validate() error { return errors.New("Limits.Queries is -1") }

func TestServerRejectsInvalidClient(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	tooMuch := dnshedge.Hedge{BudgetPercent: 200}
	for want, c := range map[string]*dnshedge.Client{
		"Client.Hosts: stat " + missing: {Hosts: missing},
		"Hedge.BudgetPercent is 200":    {Hedge: tooMuch},
		"Client.Timeout is -1ns":        {Timeout: -1},
		`upstream udp://192.0.2.1:0`:    {Upstreams: []dnshedge.Upstream{{Addr: "192.0.2.1:0"}}},
		"Client.Exchanger: Limits":      {Exchanger: invalid{}},
		`Client.Routes["corp.example"]: dnshedge: Hedge.BudgetPercent is 200`: {
			Routes: map[string]dnshedge.Exchanger{"corp.example": &dnshedge.Client{Hedge: tooMuch}},
		},
	} {
		require.ErrorContains(t, c.Validate(), want)
		mustNotServe(t, &dnshedge.Server{Client: c}, "Server.Client: ")
		mustNotServe(t, &dnshedge.Server{Client: c}, want)
	}
	both := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}}
	both.Routes = map[string]dnshedge.Exchanger{"a.example": both, "b.example": nil, "c.example": (*dnshedge.Client)(nil)}
	assert.NoError(t, both.Validate())
}

// Clients may ask each other through Validators, for different domains.
func TestClientValidateEndsForMutualClients(t *testing.T) {
	a, b := new(dnshedge.Client), new(dnshedge.Client)
	a.Upstreams = []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}
	b.Upstreams = a.Upstreams
	validator := func(c *dnshedge.Client) *dnssec.Validator {
		return &dnssec.Validator{Exchanger: c, Trust: dnssec.Trust{Off: true}}
	}
	a.Routes = map[string]dnshedge.Exchanger{"b.example": validator(b)}
	b.Routes = map[string]dnshedge.Exchanger{"a.example": validator(a), "c.example": invalid{}}
	outer := &dnshedge.Client{Exchanger: validator(a)}
	for _, c := range []*dnshedge.Client{a, b, outer} {
		defer c.Close()
	}
	assert.NoError(t, a.Validate())
	assert.NoError(t, outer.Validate())
	assert.ErrorContains(t, b.Validate(), `Client.Routes["c.example"]: Limits`)
}

// stuck is a net.Conn whose Close blocks until the test permits it.
type stuck struct {
	net.Conn
	closing, free chan struct{}
}

func (c *stuck) Close() error {
	close(c.closing)
	<-c.free
	return c.Conn.Close()
}

type once struct {
	net.Listener
	conn net.Conn
}

func (l *once) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	return l.Listener.Accept()
}

func TestServerShutdownDoesNotWaitForBlockingClose(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		s := &dnshedge.Server{Client: l.client(off(), l.up("udp", "a"))}
		here, there := net.Pipe()
		c := &stuck{there, make(chan struct{}), make(chan struct{})}
		ln, err := l.net.Host("c").Listen("tcp", ":5353")
		require.NoError(t, err)
		l.startServer(s)
		go func() { _ = s.Serve(&once{ln, c}) }()
		here.Close()
		<-c.closing
		put(t, l.connect("udp"), question("x.example.", dns.TypeA))
		close(c.free)
	})
}

// A malformed UDP message must not end the process, in particular if the client is not allowed.
func TestServerAnswersMisplacedOPTWithFORMERR(t *testing.T) {
	s := &dnshedge.Server{Client: off(), Admit: func(net.Addr) dnshedge.Verdict { return dnshedge.Refuse }}
	defer s.Client.Close()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.ServePacket(pc) }()
	conn, err := net.Dial("udp", pc.LocalAddr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	ask := func(counts ...byte) int {
		m := append([]byte{0, 1, 1, 0, 0, 1, 0}, counts[0], 0, counts[1], 0, counts[2])
		m = append(m, "\x01a\x00\x00\x01\x00\x01"+"\x00\x00\x29\x04\xd0\x00\x01\x00\x00\x00\x00"...) // version 1
		_, err := conn.Write(m)
		require.NoError(t, err)
		b := make([]byte, 512)
		n, err := conn.Read(b)
		require.NoError(t, err)
		r := new(dns.Msg)
		require.NoError(t, r.Unpack(b[:n]))
		return r.Rcode
	}
	assert.Equal(t, dns.RcodeFormatError, ask(1, 0, 0), "in the answer")
	assert.Equal(t, dns.RcodeFormatError, ask(0, 1, 0), "in the authority section")
	assert.Equal(t, dns.RcodeBadVers, ask(0, 0, 1))
	require.NoError(t, s.Shutdown(background))
}

// Parsing each name of such a record takes time in proportion to its length, and any client can send such a record in
// every message.
func TestServerRefusesMessageCheaply(t *testing.T) {
	hip := func(counts [4]byte, before string) []byte {
		m := []byte{0, 1, 1, 0}
		for _, n := range counts {
			m = append(m, 0, n)
		}
		m = append(m, strings.Repeat("\x01\x00", 127)+"\x00\x00\x01\x00\x01"+before+"\xc0\x0c\x00\x37\x00\x01\x00\x00\x00\x00"...)
		n := (65000 - len(m)) &^ 1
		m = append(binary.BigEndian.AppendUint16(m, uint16(4+n)), 0, 2, 0, 0)
		return append(m, strings.Repeat("\xc0\x0c", n/2)...)
	}
	const version1, name = "\x00\x00\x29\x04\xd0\x00\x01\x00\x00\x00\x00", "\xc0\x0c\x00\x01\x00\x01"
	s := &dnshedge.Server{Client: off()}
	defer s.Client.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.Serve(ln) }()
	defer func() { require.NoError(t, s.Shutdown(background)) }()
	tcp, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer tcp.Close()
	conn := &dns.Conn{Conn: tcp}
	for rcode, m := range map[int][]byte{
		dns.RcodeBadVers:     hip([4]byte{1, 0, 0, 2}, version1),
		dns.RcodeFormatError: hip([4]byte{2, 0, 0, 1}, name),
	} {
		doubles.AssertMaxDuration(t, 10*ms, func() {
			_, err := conn.Write(m)
			require.NoError(t, err)
			r, err := conn.ReadMsg()
			require.NoError(t, err)
			assert.Equal(t, rcode, r.Rcode)
		})
	}
}

func TestServerPadsResponsesOverTLS(t *testing.T) {
	bubble(t, func(l *lab) {
		c, _ := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
			if strings.HasPrefix(q.Question[0].Name, "nx") {
				return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 300, 60)}
			}
			return good(q)
		})
		s := &dnshedge.Server{Client: c}
		l.startServer(s)
		ln, err := l.net.Host("c").Listen("tcp", ":853")
		require.NoError(t, err)
		serving, trusting := dnstest.Certificate()
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Serve(tls.NewListener(ln, serving.Clone())) })
		l.Cleanup(wg.Wait)
		l.Cleanup(func() { ln.Close() })
		raw, err := l.net.Host("client").DialContext(background, "tcp", l.net.Host("c").Addr().String()+":853")
		require.NoError(t, err)
		defer raw.Close()
		config := trusting.Clone()
		config.ServerName = dnstest.Name
		lengths := func(conn *dns.Conn, edns bool) map[int]bool {
			all := make(map[int]bool)
			for _, name := range []string{"a.example.", "a.example.", "abcdefghijklmnop.example.", "nx.example.", "axfr.example."} {
				m := question(name, dns.TypeA)
				if name == "axfr.example." {
					m.Question[0].Qtype = dns.TypeAXFR
				}
				if edns {
					m.SetEdns0(1232, false)
				}
				require.NoError(t, conn.WriteMsg(m))
				b, err := conn.ReadMsgHeader(nil)
				require.NoError(t, err)
				all[len(b)] = true
				require.NoError(t, new(dns.Msg).Unpack(b))
			}
			return all
		}
		encrypted := &dns.Conn{Conn: tls.Client(raw, config), UDPSize: 4096}
		assert.Equal(t, map[int]bool{468: true}, lengths(encrypted, true))
		assert.Greater(t, len(lengths(encrypted, false)), 3, "without EDNS there is no padding")
		assert.Greater(t, len(lengths(l.connect("tcp"), true)), 3, "there is nothing to hide over TCP")
	})
}
