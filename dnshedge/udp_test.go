package dnshedge_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// forger answers each datagram with many, each with another ID, and streams as h does.
func (l *lab) forger(host string, h dnstest.Handler, tcp bool) (datagrams *atomic.Int64) {
	datagrams = new(atomic.Int64)
	at := l.net.Host(host)
	pc, err := at.ListenPacket("udp", ":53")
	require.NoError(l, err)
	l.Cleanup(func() { pc.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			m := new(dns.Msg)
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			datagrams.Add(1)
			b, _ := dnstest.Answer(dnstest.Query{Msg: m}, "A 203.0.113.66").Pack()
			for i := range 100 {
				binary.BigEndian.PutUint16(b, m.Id+50-uint16(i)) // the correct ID is among them
				_, _ = pc.WriteTo(b, from)
			}
		}
	}()
	if tcp {
		s := &dnstest.Server{Handler: h}
		ln, err := at.Listen("tcp", ":53")
		require.NoError(l, err)
		s.ServeTCP(ln)
		l.Cleanup(s.Close)
	}
	return datagrams
}

func TestUDPFailsOverToTCPInFloodOfWrongIDs(t *testing.T) {
	bubble(t, func(l *lab) {
		l.forger("a", good, true)
		c := l.client(off(), l.up("udp", "a"))
		r, took := l.must(c, "bank.example.")
		assert.Equal(t, "192.0.2.1", addr(r), "asked for over TCP")
		assert.Equal(t, 60*ms, took)
		assert.EqualValues(t, 3, c.Stats().Ignored)
	})
	bubble(t, func(l *lab) {
		n := l.forger("a", good, false)
		c := l.client(off(), l.up("udp", "a"))
		_, _, err := l.ask(c, "bank.example.")
		require.ErrorContains(t, err, "answer no query")
		assert.EqualValues(t, 2, n.Load(), "a server without TCP is asked once more over UDP, and the forgery is not believed")
	})
}

// After several queries over UDP, a query is sent over TCP, which firewalls drop less often. A server that refuses TCP
// gets another UDP message instead, within the same attempt.
func TestUDPIsUsedAgainForServerWithoutTCP(t *testing.T) {
	bubble(t, func(l *lab) {
		var n atomic.Int64
		at, datagrams := l.net.Host("a"), &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
			if n.Add(1) <= 3 {
				return dnstest.Reply{}
			}
			return good(q)
		}}
		pc, err := at.ListenPacket("udp", ":53")
		require.NoError(l, err)
		datagrams.ServeUDP(pc)
		l.Cleanup(datagrams.Close)
		c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Off: true}, Timeout: 10 * time.Second}, l.up("udp", "a"))
		_, took := l.must(c, "x.example.")
		assert.Equal(t, 7*time.Second+2*20*ms, took, "the queries are 1, 2 and 4 seconds apart (RFC 6298)")
	})
}

func TestUDPRetriesDamagedDatagramOverTCP(t *testing.T) {
	for name, damage := range map[string]func(q dnstest.Query) []byte{
		"damaged": func(q dnstest.Query) []byte {
			b, _ := dnstest.Answer(q, "A 203.0.113.9").Pack()
			return b[:len(b)-3]
		},
		"compression loop": func(q dnstest.Query) []byte {
			b, _ := dnstest.Answer(q).Pack()
			b[7]++
			at := uint16(len(b))
			b = binary.BigEndian.AppendUint16(b, 0xc000|at)
			return append(b, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 203, 0, 113, 9)
		},
		"longer than the buffer": func(q dnstest.Query) []byte {
			b, _ := dnstest.Answer(q, "TXT "+strings.Repeat(strings.Repeat("x", 200)+" ", 30)).Pack()
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				l.serve("a", func(q dnstest.Query) dnstest.Reply {
					if q.Net == "udp" {
						return dnstest.Reply{Raw: damage(q)}
					}
					return good(q)
				})
				c := l.client(off(), l.up("udp", "a"))
				r, took := l.must(c, "x.example.")
				assert.Equal(t, "192.0.2.1", addr(r))
				assert.Equal(t, 60*ms, took)
				assert.EqualValues(t, 1, c.Stats().Ignored)
			})
		})
	}
}

// alarmed answers the first query with a wrong ID besides.
func alarmed(h dnstest.Handler) dnstest.Handler {
	var once sync.Once
	return func(q dnstest.Query) dnstest.Reply {
		r := h(q)
		once.Do(func() {
			b, _ := r.Msg.Pack()
			r.Msg.Id++
			r.Raw = b
		})
		return r
	}
}

func TestUDPHardensQueriesAfterWrongMessage(t *testing.T) {
	bubble(t, func(l *lab) {
		var mu sync.Mutex
		names := make(map[string]bool)
		cookies := make(map[string]bool)
		server := "0123456789abcdef"
		l.serve("a", alarmed(func(q dnstest.Query) dnstest.Reply {
			mu.Lock()
			defer mu.Unlock()
			names[q.Question[0].Name] = true
			r := good(q)
			for _, o := range q.IsEdns0().Option {
				if c, ok := o.(*dns.EDNS0_COOKIE); ok {
					cookies[c.Cookie] = true
					r.Msg.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: c.Cookie[:16] + server}}
					if q.Net == "udp" && !strings.HasSuffix(c.Cookie, server) {
						r.Msg.Rcode = dns.RcodeBadCookie
					}
				}
			}
			return r
		}))
		c := l.client(off(), l.up("udp", "a"))
		l.must(c, "a-long-name.example.")
		assert.Equal(t, map[string]bool{"a-long-name.example.": true}, names)
		assert.Empty(t, cookies)
		_, took := l.must(c, "a-long-name.example.")
		assert.Equal(t, 60*ms, took, "BADCOOKIE: it goes over TCP")
		for range 10 {
			r, took := l.must(c, "a-long-name.example.")
			assert.Equal(t, 20*ms, took)
			assert.Equal(t, "a-long-name.example.", r.Question[0].Name, "the spelling is the caller's")
		}
		assert.Greater(t, len(names), 5)
		assert.Len(t, cookies, 2, "without and with the server's")
		time.Sleep(11 * time.Minute)
		clear(names)
		clear(cookies)
		l.must(c, "a-long-name.example.")
		assert.Equal(t, map[string]bool{"a-long-name.example.": true}, names, "for ten minutes")
		assert.Empty(t, cookies)
	})
}

func TestUDPRetriesOverTCPWithoutCookieOrSpelling(t *testing.T) {
	for name, spoil := range map[string]func(m *dns.Msg){
		"none":     func(m *dns.Msg) { m.IsEdns0().Option = nil },
		"spelling": func(m *dns.Msg) { m.Question[0].Name = strings.ToLower(m.Question[0].Name) },
	} {
		bubble(t, func(l *lab) {
			spoiled := false
			l.serve("a", alarmed(func(q dnstest.Query) dnstest.Reply {
				r := good(q)
				for _, o := range q.IsEdns0().Option {
					if c, ok := o.(*dns.EDNS0_COOKIE); ok {
						r.Msg.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: c.Cookie[:16] + "0123456789abcdef"}}
					}
				}
				if spoiled && q.Net == "udp" {
					r.Msg.Answer[0].(*dns.A).A = net.IPv4(203, 0, 113, 66)
					spoil(r.Msg)
				}
				return r
			}))
			c := l.client(off(), l.up("udp", "a"))
			l.must(c, "a-long-name.example.")
			l.must(c, "a-long-name.example.")
			spoiled = true
			r, took := l.must(c, "a-long-name.example.")
			assert.Equal(t, "192.0.2.1", addr(r), name)
			assert.Equal(t, 60*ms, took)
		})
	}
}

// openConns counts the connections that are open.
type openConns struct {
	dnshedge.Dialer
	now, most atomic.Int64
}

func (o *openConns) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := o.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	n := o.now.Add(1)
	for m := o.most.Load(); n > m && !o.most.CompareAndSwap(m, n); m = o.most.Load() {
	}
	return &openConn{Conn: c, o: o}, nil
}

type openConn struct {
	net.Conn
	o    *openConns
	once sync.Once
}

func (c *openConn) Close() error {
	c.once.Do(func() { c.o.now.Add(-1) })
	return c.Conn.Close()
}

func TestUDPUnansweredQuestionsShareSockets(t *testing.T) {
	bubble(t, func(l *lab) {
		for _, h := range []string{"a", "b"} {
			l.serve(h, func(q dnstest.Query) dnstest.Reply {
				if strings.HasSuffix(q.Question[0].Name, ".dead.example.") {
					return dnstest.Reply{}
				}
				return good(q)
			})
		}
		c := l.client(off(), l.up("udp", "a"), l.up("udp", "b"))
		o := &openConns{Dialer: c.Dialer}
		c.Dialer = o
		c.Timeout = time.Second
		l.must(c, "x.example.")
		var wg sync.WaitGroup
		for i := range 2000 { // 4,000 a second
			time.Sleep(250 * time.Microsecond)
			wg.Go(func() { _, _, _ = l.ask(c, fmt.Sprintf("x%d.dead.example.", i)) })
			if i%50 == 0 {
				wg.Go(func() {
					_, took := l.must(c, fmt.Sprintf("healthy%d.example.", i))
					assert.Equal(t, 20*ms, took)
				})
			}
		}
		wg.Wait()
		t.Logf("%d sockets at most", o.most.Load())
		assert.Less(t, o.most.Load(), int64(550), "of two servers")
		assert.Zero(t, c.Stats().Ignored)
		time.Sleep(10 * time.Second)
		assert.Zero(t, o.now.Load(), "none stays")
		c.Close()
	})
}

func TestUDPFailsOverToTCPInFloodAtSharedSocket(t *testing.T) {
	bubble(t, func(l *lab) {
		forged := l.forger("a", good, true)
		c := l.client(off(), l.up("udp", "a"))
		var wg sync.WaitGroup
		for i := range 400 {
			wg.Go(func() {
				r, _ := l.must(c, fmt.Sprintf("x%d.example.", i))
				assert.Equal(t, "192.0.2.1", addr(r))
			})
		}
		wg.Wait()
		assert.Positive(t, forged.Load())
	})
}

// windowsConn reads UDP messages as Windows does: a message that is longer than the buffer is truncated and returned
// with an error.
type windowsConn struct{ net.Conn }

type windowsDialer struct{ dnshedge.Dialer }

func (d windowsDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, address)
	if err != nil || network != "udp" {
		return c, err
	}
	return windowsConn{c}, nil
}

func (c windowsConn) Read(b []byte) (int, error) {
	whole := make([]byte, 1<<16)
	n, err := c.Conn.Read(whole)
	k := copy(b, whole[:n])
	if err == nil && k < n {
		err = &net.OpError{Op: "read", Net: "udp", Err: os.NewSyscallError("wsarecv", syscall.Errno(10040))} // WSAEMSGSIZE
	}
	return k, err
}

func TestUDPRetriesLongDatagramOverTCP(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if q.Net == "udp" {
				b, _ := dnstest.Answer(q, "TXT "+strings.Repeat(strings.Repeat("x", 200)+" ", 30)).Pack()
				return dnstest.Reply{Raw: b}
			}
			return good(q)
		})
		c := l.client(off(), l.up("udp", "a"))
		c.Dialer = windowsDialer{c.Dialer}
		var wg sync.WaitGroup
		for i := range 200 { // more than have a socket of their own
			wg.Go(func() {
				r, _ := l.must(c, fmt.Sprintf("x%d.example.", i))
				assert.Equal(t, "192.0.2.1", addr(r))
			})
		}
		wg.Wait()
		assert.EqualValues(t, 200, c.Stats().Ignored)
	})
}

// contextConn checks in SetReadDeadline that its dial context can be used, which must not be locked at that time.
type contextConn struct {
	net.Conn
	t   *testing.T
	ctx context.Context
}

func (c *contextConn) SetReadDeadline(at time.Time) error {
	asked := make(chan struct{})
	go func() {
		_ = c.ctx.Err()
		close(asked)
	}()
	select {
	case <-asked:
	case <-time.After(5 * time.Second):
		c.t.Error("the context is locked")
	}
	return c.Conn.SetReadDeadline(at)
}

func TestUDPHoldsNoLockDuringSetDeadline(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	c := off()
	c.Upstreams = []dnshedge.Upstream{{Addr: silent.LocalAddr().String()}}
	c.Dialer = dialFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &contextConn{conn, t, ctx}, err
	})
	defer c.Close()
	ctx, cancel := context.WithTimeout(background, 100*ms)
	defer cancel()
	_, _, err = c.ExchangeContext(ctx, question("x.example.", dns.TypeA), "")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
