package dnshedge_test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// A userCode is an Exchanger and a Dialer that calls its function, as user code may do.
type userCode func() (net.Conn, error)

func (f userCode) ExchangeContext(context.Context, *dns.Msg, string) (*dns.Msg, time.Duration, error) {
	_, err := f()
	return nil, 0, err
}

func (f userCode) DialContext(context.Context, string, string) (net.Conn, error) { return f() }

func panics() (net.Conn, error)         { panic("in the user's code") }
func returnsNothing() (net.Conn, error) { return nil, nil }

// oddExchanger is an Exchanger whose response cannot be packed.
type oddExchanger struct{}

func (oddExchanger) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	r := new(dns.Msg)
	r.SetReply(m)
	r.Answer, r.Extra = []dns.RR{nil, (*dns.A)(nil)}, []dns.RR{(*dns.OPT)(nil)}
	return r, 0, nil
}

// belowExchanger is an Exchanger that panics in its method NothingBelow.
type belowExchanger struct{}

func (belowExchanger) NothingBelow(string) bool { panic("in the user's code") }

func (belowExchanger) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	r := new(dns.Msg)
	r.SetReply(m)
	r.AuthenticatedData = true
	r.Rcode = dns.RcodeNameError
	return r, 0, nil
}

func TestPanicOfExchangerIsErrorOfQuestion(t *testing.T) {
	up := []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}
	for name, row := range map[string]struct {
		client *dnshedge.Client
		want   string
	}{
		"Exchanger":            {&dnshedge.Client{Exchanger: userCode(panics)}, "Exchanger panicked: in the user's code"},
		"Exchanger, nothing":   {&dnshedge.Client{Exchanger: userCode(returnsNothing)}, "neither a response nor an error"},
		"Exchanger, odd":       {&dnshedge.Client{Exchanger: oddExchanger{}}, "dnshedge: x.example. A: "},
		"route":                {&dnshedge.Client{Upstreams: up, Routes: map[string]dnshedge.Exchanger{".": userCode(panics)}}, "Exchanger panicked"},
		"Dialer over udp":      {&dnshedge.Client{Upstreams: up, Dialer: userCode(panics)}, "Dialer panicked: in the user's code"},
		"Dialer of a named":    {&dnshedge.Client{Upstreams: []dnshedge.Upstream{{Net: "tcp", Addr: "dns.example:53"}}, Dialer: userCode(panics)}, "Dialer panicked"},
		"Dialer over udp, nil": {&dnshedge.Client{Upstreams: up, Dialer: userCode(returnsNothing)}, "neither a connection nor an error"},
		"Dialer over tcp":      {&dnshedge.Client{Upstreams: []dnshedge.Upstream{{Net: "tcp", Addr: "192.0.2.1:53"}}, Dialer: userCode(panics)}, "Dialer panicked"},
		"Dialer over tcp, nil": {&dnshedge.Client{Upstreams: []dnshedge.Upstream{{Net: "tcp", Addr: "192.0.2.1:53"}}, Dialer: userCode(returnsNothing)}, "neither a connection"},
		"Dialer over https":    {&dnshedge.Client{Upstreams: []dnshedge.Upstream{{Net: "https", Addr: "192.0.2.1:443"}}, Dialer: userCode(panics)}, "Dialer panicked"},
	} {
		for _, cache := range []*dnshedge.Cache{nil, new(dnshedge.Cache)} {
			bubbleOnly(t, func(t *testing.T) {
				c := row.client
				d := &dnshedge.Client{Exchanger: c.Exchanger, Upstreams: c.Upstreams, Routes: c.Routes, Dialer: c.Dialer, Cache: cache}
				defer d.Close()
				for _, ctx := range []context.Context{background, t.Context()} {
					_, _, err := d.ExchangeContext(ctx, question("x.example.", dns.TypeA), "")
					require.ErrorContains(t, err, row.want, name)
					require.ErrorAs(t, err, new(*dnshedge.Error), name)
				}
				require.NoError(t, d.Close())
			})
		}
	}
}

func TestPanicOfNothingBelowIsNoProof(t *testing.T) {
	c := &dnshedge.Client{Exchanger: belowExchanger{}, Cache: new(dnshedge.Cache)}
	defer c.Close()
	r, _, err := c.ExchangeContext(t.Context(), question("x.example.", dns.TypeA), "")
	require.NoError(t, err)
	assert.Equal(t, dns.RcodeNameError, r.Rcode)
}

func TestPanicOfTraceIsCounted(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", with("A 192.0.2.1"))
		trace := &dnshedge.Trace{
			Attempt: func(context.Context, dnshedge.AttemptInfo) { panic("in Attempt") },
			Done:    func(context.Context, dnshedge.AttemptInfo, time.Duration, error) { panic("in Done") },
			Answer:  func(context.Context, dnshedge.AnswerInfo) { panic("in Answer") },
		}
		c := l.client(&dnshedge.Client{Trace: trace, Cache: new(dnshedge.Cache), Logger: slog.New(slog.DiscardHandler)}, l.up("udp", "a"))
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		assert.EqualValues(t, 3, c.Stats().ObserverPanics)
		l.must(c, "x.example.")
		assert.EqualValues(t, 4, c.Stats().ObserverPanics, "of a hit")
	})
}

// A panickingConn is a net.Conn that panics in the method with the given name. Values of its type cannot be compared.
type panickingConn struct {
	net.Conn
	in string
	_  []int
}

func (c panickingConn) check(method string) {
	if c.in == method {
		panic("in " + method)
	}
}

func (c panickingConn) Read(b []byte) (int, error) {
	c.check("Read")
	return c.Conn.Read(b)
}

func (c panickingConn) Write(b []byte) (int, error) {
	c.check("Write")
	return c.Conn.Write(b)
}

func (c panickingConn) SetReadDeadline(t time.Time) error {
	c.check("SetReadDeadline")
	return c.Conn.SetReadDeadline(t)
}

func (c panickingConn) SetWriteDeadline(t time.Time) error {
	c.check("SetWriteDeadline")
	return c.Conn.SetWriteDeadline(t)
}

func (c panickingConn) Close() error {
	_ = c.Conn.Close()
	c.check("Close")
	return nil
}

func (c panickingConn) LocalAddr() net.Addr {
	c.check("LocalAddr")
	return nil
}

func (c panickingConn) RemoteAddr() net.Addr {
	c.check("RemoteAddr")
	return nil
}

type dialsPanicking struct {
	dnshedge.Dialer
	in string
}

func (d dialsPanicking) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return panickingConn{Conn: c, in: d.in}, nil
}

func TestPanicOfConnectionOfDialerEndsNoProcess(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		for _, method := range []string{"none", "Read", "Write", "SetReadDeadline", "SetWriteDeadline", "Close", "LocalAddr", "RemoteAddr"} {
			bubble(t, func(l *lab) {
				l.serve("a", with("A 192.0.2.1"))
				c := l.client(&dnshedge.Client{Timeout: time.Second}, l.up(network, "a"))
				c.Dialer = dialsPanicking{c.Dialer, method}
				r, _, err := l.ask(c, "x.example.")
				if method == "none" {
					require.NoError(t, err, network)
					assert.Equal(t, "192.0.2.1", addr(r))
				}
				time.Sleep(time.Minute)
				require.NoError(t, c.Close())
			})
		}
	}
}

func TestPanicOfTLSConfigIsErrorOfQuestion(t *testing.T) {
	for _, network := range []string{"tls", "https"} {
		for name, set := range map[string]func(*tls.Config){
			"VerifyConnection": func(c *tls.Config) {
				c.VerifyConnection = func(tls.ConnectionState) error { panic("in the user's code") }
			},
			"Rand": func(c *tls.Config) { c.KeyLogWriter = panickingWriter{} },
		} {
			bubble(t, func(l *lab) {
				l.serve("a", with("A 192.0.2.1"))
				c := l.client(&dnshedge.Client{Timeout: time.Second}, l.up(network, "a"))
				conf := c.TLSConfig.Clone()
				set(conf)
				c.TLSConfig = conf
				_, _, err := l.ask(c, "x.example.")
				require.ErrorContains(t, err, "panicked", "%s %s", network, name)
			})
		}
	}
}

type panickingWriter struct{}

func (panickingWriter) Write([]byte) (int, error) { panic("in the user's code") }

// panickingSessions are sessions whose Put is called when a session ticket is read, after the handshake.
type panickingSessions struct{}

func (panickingSessions) Get(string) (*tls.ClientSessionState, bool) { panic("in Get") }
func (panickingSessions) Put(string, *tls.ClientSessionState)        { panic("in Put") }

func TestPanicOfSessionCacheIsNoError(t *testing.T) {
	for _, network := range []string{"tls", "https"} {
		bubble(t, func(l *lab) {
			l.serve("a", with("A 192.0.2.1"))
			c := l.client(new(dnshedge.Client), l.up(network, "a"))
			conf := c.TLSConfig.Clone()
			conf.ClientSessionCache = panickingSessions{}
			c.TLSConfig = conf
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r))
		})
	}
}

// panickingListener accepts connections that panic in Read.
type panickingListener struct{ net.Listener }

func (l panickingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return panickingConn{Conn: c, in: "Read"}, nil
}

func TestPanicOfCodeOfServerEndsNoProcess(t *testing.T) {
	c := &dnshedge.Client{Exchanger: &exchanger{addr: "192.0.2.1"}, Logger: slog.New(slog.DiscardHandler)}
	defer c.Close()
	s := &dnshedge.Server{Client: c, Admit: func(net.Addr) dnshedge.Verdict { panic("in Admit") }}
	defer s.Shutdown(t.Context())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go s.Serve(ln)
	_, _, err = (&dns.Client{Net: "tcp"}).Exchange(question("x.example.", dns.TypeA), ln.Addr().String())
	require.Error(t, err)
	assert.EqualValues(t, 1, c.Stats().ObserverPanics)

	odd := &dnshedge.Server{Client: c}
	defer odd.Shutdown(t.Context())
	ln, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go odd.Serve(panickingListener{ln})
	_, _, err = (&dns.Client{Net: "tcp"}).Exchange(question("x.example.", dns.TypeA), ln.Addr().String())
	require.Error(t, err)
}

// A proxied dialer always connects to the same address, and records the requested addresses.
type proxied struct {
	dnshedge.Dialer
	to    string
	given []string
}

func (p *proxied) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	p.given = append(p.given, address)
	return p.Dialer.DialContext(ctx, network, p.to)
}

// The remote address of a connection through a proxy is the proxy's.
func TestDialerGetsUpstreamNameForEachConnection(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "tls"} {
		bubble(t, func(l *lab) {
			l.serve("a", with("A 192.0.2.1"))
			up := l.up(network, "a")
			to := up.Addr
			_, port, _ := net.SplitHostPort(to)
			up.Addr = net.JoinHostPort(dnstest.Name, port)
			c := l.client(new(dnshedge.Client), up)
			d := &proxied{Dialer: c.Dialer, to: to}
			c.Dialer = d
			for range 3 {
				l.must(c, "x.example.")
				time.Sleep(15 * time.Second) // after which an idle connection is closed
			}
			assert.Equal(t, []string{up.Addr, up.Addr, up.Addr}, d.given, network)
		})
	}
}

func TestDialerGoexitEndsAttempt(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", with("A 192.0.2.1"))
		c := l.client(&dnshedge.Client{Timeout: time.Second}, l.up("tcp", "a"))
		good := c.Dialer
		c.Dialer = userCode(func() (net.Conn, error) {
			if good == nil {
				return l.net.Host("client").DialContext(l.Context(), "tcp", l.up("tcp", "a").Addr)
			}
			good = nil
			runtime.Goexit()
			return nil, nil
		})
		_, _, err := l.ask(c, "x.example.")
		require.Error(t, err)
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
	})
}
