package dns_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
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
	"github.com/gohedge/hedge/internal/doubles"
)

// server is the other end of the protocol fake. Each test sets its own.
var server *fakeServer

var fake = dnshedge.Protocol{
	Scheme: "fake", RFC: 9999, Port: "99", Path: "/here",
	Dial: func(ctx context.Context, to dnshedge.DialTarget) (dnshedge.ProtocolConn, error) {
		return server.dial(ctx, to)
	},
}

func init() { dnshedge.RegisterProtocol(fake) }

func TestMain(m *testing.M) {
	doubles.PreloadNetConfig()
	os.Exit(m.Run())
}

// A fakeServer answers the queries of all fakeConns after 10 ms, unless answer says otherwise.
type fakeServer struct {
	answer func(c *fakeConn, query []byte) ([]byte, error) // nil: reply
	refuse error                                           // the error of a dial

	mu      sync.Mutex
	targets []dnshedge.DialTarget // one for each connection
	conns   []*fakeConn
	queries [][]byte
}

type fakeConn struct {
	number int
	done   chan struct{}
	close  sync.Once
}

func (s *fakeServer) dial(ctx context.Context, to dnshedge.DialTarget) (dnshedge.ProtocolConn, error) {
	if err := doubles.Sleep(ctx, 20*time.Millisecond); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return nil, s.refuse
	}
	s.targets = append(s.targets, to)
	c := &fakeConn{number: len(s.targets), done: make(chan struct{})}
	s.conns = append(s.conns, c)
	return c, nil
}

func (c *fakeConn) Exchange(ctx context.Context, query []byte) ([]byte, error) {
	server.mu.Lock()
	server.queries = append(server.queries, query)
	server.mu.Unlock()
	if err := doubles.Sleep(ctx, 10*time.Millisecond); err != nil {
		return nil, err
	}
	if server.answer != nil {
		return server.answer(c, query)
	}
	return reply(query)
}

func (c *fakeConn) Done() <-chan struct{} { return c.done }

func (c *fakeConn) Close() error {
	c.close.Do(func() { close(c.done) })
	return nil
}

// reply answers a query with an address.
func reply(query []byte) ([]byte, error) {
	m := new(dns.Msg)
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	return dnstest.Answer(dnstest.Query{Msg: m}, "A 192.0.2.1").Pack()
}

// bubble runs f in fake time with a server and a client that has that server alone.
func bubble(t *testing.T, s *fakeServer, f func(t *testing.T, c *dnshedge.Client)) {
	synctest.Test(t, func(t *testing.T) {
		server = s
		up, err := dnshedge.ParseUpstream("fake://192.0.2.1#dns.example")
		require.NoError(t, err)
		c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{up}}
		defer c.Close()
		f(t, c)
	})
}

func ask(c *dnshedge.Client, name string) (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	r, _, err := c.Exchange(m, "")
	if err == nil && len(r.Answer) != 1 {
		err = errors.New(dns.RcodeToString[r.Rcode])
	}
	return r, err
}

func TestProtocolQueriesShareConnection(t *testing.T) {
	bubble(t, new(fakeServer), func(t *testing.T, c *dnshedge.Client) {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				_, err := ask(c, dns.Fqdn(strings.Repeat("a", i+1)+".example"))
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		start := time.Now()
		_, err := ask(c, "warm.example.")
		require.NoError(t, err)
		assert.Equal(t, 10*time.Millisecond, time.Since(start), "without a handshake")
		require.Len(t, server.targets, 1)
		to := server.targets[0]
		assert.Equal(t, "192.0.2.1:99", to.Addr)
		assert.Equal(t, "/here", to.Path)
		assert.Equal(t, "dns.example", to.TLS.ServerName)
		for _, q := range server.queries {
			assert.Zero(t, q[0]|q[1], "the ID")
			assert.Zero(t, len(q)%128, "padding")
		}
	})
}

func TestProtocolConnectionsAreOpenedForManyQueries(t *testing.T) {
	bubble(t, new(fakeServer), func(t *testing.T, c *dnshedge.Client) {
		_, err := ask(c, "first.example.")
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 250 {
			wg.Go(func() {
				_, err := ask(c, dns.Fqdn(strings.Repeat("x", i%60+1)+"."+strings.Repeat("y", i/60+1)+".example"))
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		assert.Greater(t, len(server.targets), 1)
		assert.LessOrEqual(t, len(server.targets), 8)
	})
}

// A hedge is the only query that is sent for a question again, and it uses a second connection.
func TestProtocolHedgesOverSecondConnectionAndRetransmitsNothing(t *testing.T) {
	var first *fakeConn
	s := &fakeServer{answer: func(c *fakeConn, query []byte) ([]byte, error) {
		if strings.Contains(string(query), "slow") && c == first {
			time.Sleep(3 * time.Second)
		}
		return reply(query)
	}}
	bubble(t, s, func(t *testing.T, c *dnshedge.Client) {
		for range 40 {
			_, err := ask(c, "learn.example.")
			require.NoError(t, err)
		}
		first = s.conns[0]
		start := time.Now()
		_, err := ask(c, "slow.example.")
		require.NoError(t, err)
		assert.Less(t, time.Since(start), 200*time.Millisecond)
		assert.Positive(t, c.Stats().Hedges)
		assert.Zero(t, c.Stats().Resends)
		assert.Len(t, s.conns, 2)
		time.Sleep(5 * time.Second)
	})
	bubble(t, s, func(t *testing.T, c *dnshedge.Client) {
		c.Hedge.Off = true
		s.conns, s.queries = nil, nil
		_, err := ask(c, "learn.example.")
		require.NoError(t, err)
		first = s.conns[0]
		_, err = ask(c, "slow.example.")
		require.NoError(t, err)
		assert.Len(t, s.queries, 2)
		assert.Zero(t, c.Stats().Resends)
	})
}

// A question goes to another server although the first one is only late, as with the other protocols.
func TestProtocolQuestionGoesToOtherServer(t *testing.T) {
	s := &fakeServer{answer: func(c *fakeConn, query []byte) ([]byte, error) {
		if c.number == 1 {
			<-c.done
			return nil, net.ErrClosed
		}
		return reply(query)
	}}
	bubble(t, s, func(t *testing.T, c *dnshedge.Client) {
		c.Hedge.Off = true
		c.Upstreams = append(c.Upstreams, dnshedge.Upstream{Net: "fake", Addr: "192.0.2.2:99"})
		start := time.Now()
		_, err := ask(c, "a.example.")
		require.NoError(t, err)
		assert.Less(t, time.Since(start), 3*time.Second)
		require.Len(t, s.targets, 2)
		assert.NotEqual(t, s.targets[0].Addr, s.targets[1].Addr)
		for _, c := range s.conns {
			c.Close()
		}
	})
}

func TestProtocolQueriesOfEndedConnectionAreSentAgain(t *testing.T) {
	s := &fakeServer{answer: func(c *fakeConn, query []byte) ([]byte, error) {
		if c.number == 1 && strings.Contains(string(query), "later") {
			c.Close()
			return nil, errors.New("the server restarts")
		}
		return reply(query)
	}}
	bubble(t, s, func(t *testing.T, c *dnshedge.Client) {
		_, err := ask(c, "first.example.")
		require.NoError(t, err)
		var wg sync.WaitGroup
		for _, name := range []string{"later.example.", "later.test."} {
			wg.Go(func() {
				_, err := ask(c, name)
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		assert.Len(t, s.targets, 2)
	})
}

func TestProtocolUpdateIsSentOnce(t *testing.T) {
	s := &fakeServer{answer: func(c *fakeConn, query []byte) ([]byte, error) {
		c.Close()
		return nil, errors.New("the server restarts")
	}}
	bubble(t, s, func(t *testing.T, c *dnshedge.Client) {
		_, _, err := c.Exchange(new(dns.Msg).SetUpdate("example."), "")
		require.Error(t, err)
		assert.Len(t, s.queries, 1)
	})
}

func TestProtocolErrorsReachCaller(t *testing.T) {
	for name, test := range map[string]struct {
		server *fakeServer
		check  func(t *testing.T, err error)
	}{
		"dial": {&fakeServer{refuse: errors.New("no route")}, func(t *testing.T, err error) { assert.ErrorContains(t, err, "no route") }},
		"status": {&fakeServer{answer: func(*fakeConn, []byte) ([]byte, error) {
			return nil, &dnshedge.StatusError{Code: http.StatusForbidden}
		}}, func(t *testing.T, err error) {
			var status *dnshedge.StatusError
			require.ErrorAs(t, err, &status)
			assert.Equal(t, http.StatusForbidden, status.Code)
			assert.Equal(t, "192.0.2.1:99", status.Upstream.Addr)
		}},
		"overload": {&fakeServer{answer: func(*fakeConn, []byte) ([]byte, error) {
			return nil, &dnshedge.StatusError{Code: http.StatusTooManyRequests, RetryAfter: time.Minute}
		}}, func(t *testing.T, err error) {
			var status *dnshedge.StatusError
			require.ErrorAs(t, err, &status)
			assert.Equal(t, time.Minute, status.RetryAfter)
		}},
		"other question": {&fakeServer{answer: func(_ *fakeConn, query []byte) ([]byte, error) {
			b, err := reply(query)
			b[13] ^= 1
			return b, err
		}}, func(t *testing.T, err error) { assert.ErrorContains(t, err, "question") }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, test.server, func(t *testing.T, c *dnshedge.Client) {
				_, err := ask(c, "a.example.")
				require.Error(t, err)
				test.check(t, err)
			})
		})
	}
}

func TestProtocolCloseEndsQueriesAndConnections(t *testing.T) {
	s := &fakeServer{answer: func(c *fakeConn, query []byte) ([]byte, error) {
		<-c.done
		return nil, net.ErrClosed
	}}
	synctest.Test(t, func(t *testing.T) {
		server = s
		c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Net: "fake", Addr: "192.0.2.1:99"}}}
		ended := make(chan error, 1)
		go func() {
			_, err := ask(c, "a.example.")
			ended <- err
		}()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		for _, c := range s.conns {
			go func() {
				time.Sleep(time.Millisecond)
				c.Close()
			}()
		}
		c.Close()
		assert.Error(t, <-ended)
		_, err := ask(c, "b.example.")
		assert.Error(t, err)
		assert.Len(t, s.targets, 1)
	})
}

func TestRegisterProtocolPanics(t *testing.T) {
	assert.Panics(t, func() { dnshedge.RegisterProtocol(fake) }, "twice")
	assert.Panics(t, func() { dnshedge.RegisterProtocol(dnshedge.Protocol{Scheme: "other", RFC: 1, Port: "1"}) }, "without Dial")
	_, err := dnshedge.ParseUpstream("other://192.0.2.1")
	assert.ErrorContains(t, err, "udp, tcp, tls, https or fake")
	up, err := dnshedge.ParseUpstream("fake://dns.example/x#;post")
	require.NoError(t, err)
	assert.Equal(t, dnshedge.Upstream{Net: "fake", Addr: "dns.example:99", Path: "/x", Post: true}, up)
	assert.Equal(t, "fake://dns.example:99/x#;post", up.String())
}
