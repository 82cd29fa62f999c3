package quic_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	quicgo "github.com/quic-go/quic-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/doubles"
)

var schemes = []string{"quic", "h3"}

func TestUpstreamAddresses(t *testing.T) {
	for s, want := range map[string]dnshedge.Upstream{
		"quic://192.0.2.1#dns.example":      {Net: "quic", Addr: "192.0.2.1:853", ServerName: "dns.example"},
		"quic://dns.example:8853":           {Net: "quic", Addr: "dns.example:8853"},
		"h3://dns.example":                  {Net: "h3", Addr: "dns.example:443", Path: "/dns-query"},
		"h3://192.0.2.1/x#dns.example;post": {Net: "h3", Addr: "192.0.2.1:443", Path: "/x", ServerName: "dns.example", Post: true},
	} {
		up, err := dnshedge.ParseUpstream(s)
		require.NoError(t, err, s)
		assert.Equal(t, want, up)
	}
	_, err := dnshedge.ParseUpstream("quic://dns.example/path")
	assert.Error(t, err)
}

func TestClientAsksForwarder(t *testing.T) {
	f := startForwarder(t, nil)
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			c := f.newClient(t, scheme)
			var wg sync.WaitGroup
			for range 300 {
				wg.Go(func() { ask(t, c, "a.example.") })
			}
			wg.Wait()
			long := new(dns.Msg).SetQuestion("long.example.", dns.TypeTXT)
			r, _, err := c.Exchange(long, "")
			require.NoError(t, err)
			assert.Greater(t, r.Len(), 61000)
		})
	}
}

// The TLS configuration of the Client writes the keys for a packet sniffer, and pins hold.
func TestClientUsesTLSConfig(t *testing.T) {
	var keys bytes.Buffer
	f := startForwarder(t, nil)
	for _, scheme := range schemes {
		c := f.newClient(t, scheme)
		c.TLSConfig = c.TLSConfig.Clone()
		c.TLSConfig.KeyLogWriter = &keys
		ask(t, c, "a.example.")
		assert.Contains(t, keys.String(), "CLIENT_TRAFFIC_SECRET_0")
		keys.Reset()

		other := f.newClient(t, scheme)
		other.Timeout = time.Second
		other.Upstreams[0].Pins = []string{"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}
		_, _, err := other.Exchange(question("a.example."), "")
		assert.ErrorContains(t, err, "pinned keys")

		other = f.newClient(t, scheme)
		other.Timeout = time.Second
		other.TLSConfig = new(tls.Config)
		_, _, err = other.Exchange(question("a.example."), "")
		assert.ErrorContains(t, err, "certificate")
	}
}

// A port where nothing listens is known at once, so that another server is asked.
func TestClientFailsOverFromClosedPort(t *testing.T) {
	f := startForwarder(t, nil)
	closed, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for _, scheme := range schemes {
		c := f.newClient(t, scheme)
		c.Upstreams = append([]dnshedge.Upstream{{Net: scheme, Addr: closed.LocalAddr().String()}}, c.Upstreams...)
		c.Order = dnshedge.OrderStrict
		assert.Less(t, ask(t, c, "a.example."), time.Second, scheme)
	}
}

// A lossyDialer makes connections that drop all packets after a while.
type lossyDialer struct{ dead atomic.Pointer[deadConn] }

type deadConn struct {
	net.Conn
	drops atomic.Bool
}

func (d *lossyDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	c := &deadConn{Conn: conn}
	d.dead.Store(c)
	return c, err
}

func (c *deadConn) Read(b []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(b); err != nil || !c.drops.Load() {
			return n, err
		}
	}
}

func (c *deadConn) Write(b []byte) (int, error) {
	if c.drops.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// A query on a connection whose path has died is sent over another one after a second, without a hedge.
func TestClientReplacesDeadConnection(t *testing.T) {
	f := startForwarder(t, nil)
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			var d lossyDialer
			c := f.newClient(t, scheme)
			c.Dialer, c.Hedge.Off = &d, true
			ask(t, c, "a.example.")
			d.dead.Load().drops.Store(true)
			took := ask(t, c, "b.example.")
			assert.Greater(t, took, 900*time.Millisecond)
			assert.Less(t, took, 2*time.Second)
		})
	}
}

// A slow answer is no dead connection.
func TestClientWaitsForSlowAnswer(t *testing.T) {
	s := serveRaw(t, "doq", func(_ *quicgo.Conn, stream *quicgo.Stream, query []byte) {
		if bytes.Contains(query, []byte("slow")) {
			time.Sleep(2500 * time.Millisecond)
		}
		respond(stream, reply(t, query))
	})
	c := newClient(t, "quic", s.at.String())
	c.Hedge.Off = true
	ask(t, c, "a.example.")
	assert.Greater(t, ask(t, c, "slow.example."), 2400*time.Millisecond)
	assert.Len(t, s.conns, 1)
}

func TestClientHedgesOverSecondConnection(t *testing.T) {
	var first atomic.Pointer[quicgo.Conn]
	var hedged atomic.Bool
	s := serveRaw(t, "doq", func(conn *quicgo.Conn, stream *quicgo.Stream, query []byte) {
		first.CompareAndSwap(nil, conn)
		if bytes.Contains(query, []byte("slow")) {
			if conn == first.Load() {
				_ = doubles.Sleep(t.Context(), 4*time.Second)
			} else {
				hedged.Store(true)
			}
		}
		respond(stream, reply(t, query))
	})
	c := newClient(t, "quic", s.at.String())
	for range 40 {
		ask(t, c, "learn.example.")
	}
	assert.Less(t, ask(t, c, "slow.example."), 3500*time.Millisecond)
	assert.True(t, hedged.Load())
	stats := c.Stats()
	assert.GreaterOrEqual(t, stats.HedgeWins, int64(1))
	assert.Zero(t, stats.Resends)
}

// A server that closes a connection does not lose queries.
func TestClientSendsQueriesOfClosedConnectionAgain(t *testing.T) {
	var closed atomic.Bool
	s := serveRaw(t, "doq", func(conn *quicgo.Conn, stream *quicgo.Stream, query []byte) {
		if bytes.Contains(query, []byte("restart")) && closed.CompareAndSwap(false, true) {
			_ = conn.CloseWithError(noError, "")
			return
		}
		respond(stream, reply(t, query))
	})
	c := newClient(t, "quic", s.at.String())
	ask(t, c, "a.example.")
	assert.Less(t, ask(t, c, "restart.example."), time.Second)
	assert.Len(t, s.conns, 2)
}
