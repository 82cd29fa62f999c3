package transport_test

import (
	"cmp"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

// handshakes are the durations of a handshake if a round trip takes 20 ms.
var handshakes = map[string]time.Duration{"tcp": 20 * time.Millisecond, "tls": 40 * time.Millisecond, "https": 40 * time.Millisecond}

// runNetwork runs f in fake time with a transport over the given protocol to a server. A round trip takes 20 ms. The
// function configure changes the configuration of the transport.
func runNetwork(t *testing.T, protocol string, h dnstest.Handler, configure func(*transport.Config), f func(t *testing.T, client transport.Transport)) {
	serverTLS, clientTLS := dnstest.Certificate() // outside the bubble
	synctest.Test(t, func(t *testing.T) {
		if protocol == "https" {
			doubles.SkipWithoutHTTP2InBubble(t)
		}
		n, err := netsim.NewMemory(1, "client", "server")
		require.NoError(t, err)
		defer n.Close()
		n.Set("client", "server", netsim.Profile{Delay: netsim.Constant(10 * time.Millisecond)})
		s := &dnstest.Server{Handler: h, TLS: serverTLS}
		defer s.Close()
		ln, err := n.Host("server").Listen("tcp", ":443")
		require.NoError(t, err)
		pc, err := n.Host("server").ListenPacket("udp", ":443")
		require.NoError(t, err)
		s.ServeUDP(pc)
		map[string]func(net.Listener){"udp": s.ServeTCP, "tcp": s.ServeTCP, "tls": s.ServeTLS, "https": s.ServeHTTPS}[protocol](ln)
		scheme, ok := transport.FindScheme(protocol)
		require.True(t, ok)
		c := transport.Config{Owner: new(owner), Dialer: n.Host("client"), Addr: ln.Addr().String(), Path: scheme.Path, Size: 1232}
		if scheme.TLS {
			c.TLS = clientTLS.Clone()
			c.TLS.ServerName = dnstest.Name
		}
		configure(&c)
		client := scheme.New(c)
		defer client.Close()
		f(t, client)
	})
}

func keepConfig(*transport.Config) {}

// sendQuestion sends a question, and returns the time that it waited for handshakes.
func sendQuestion(t *testing.T, client transport.Transport, name string) time.Duration {
	q, err := wire.NewQuery(new(dns.Msg).SetQuestion(name, dns.TypeA))
	assert.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, setup, err := client.Exchange(ctx, q, 0, new(transport.QueryPath))
	assert.NoError(t, err, name)
	return setup
}

// Two questions wait for the same handshake.
func TestTransportReturnsSharedHandshakeTime(t *testing.T) {
	for protocol, handshake := range handshakes {
		runNetwork(t, protocol, success, keepConfig, func(t *testing.T, client transport.Transport) {
			var wg sync.WaitGroup
			for i := range 2 {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * time.Millisecond)
					assert.Equal(t, handshake-time.Duration(i)*time.Millisecond, sendQuestion(t, client, "x.example."), protocol)
				})
			}
			wg.Wait()
			assert.Zero(t, sendQuestion(t, client, "y.example."), protocol)
		})
	}
}

func success(q dnstest.Query) dnstest.Reply {
	return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeSuccess)}
}

// The server closes the first connection because of one question. Each of two questions on it is sent again over
// another connection.
func TestTransportReturnsTimeOfAllHandshakes(t *testing.T) {
	for protocol, handshake := range handshakes {
		var mu sync.Mutex
		queries := 0
		h := func(q dnstest.Query) dnstest.Reply {
			mu.Lock()
			defer mu.Unlock()
			if queries++; queries <= 2 {
				return dnstest.Reply{Close: queries == 2, Delay: time.Millisecond}
			}
			return success(q)
		}
		runNetwork(t, protocol, h, keepConfig, func(t *testing.T, client transport.Transport) {
			var wg sync.WaitGroup
			for _, name := range []string{"x.example.", "y.example."} {
				wg.Go(func() { assert.Equal(t, 2*handshake, sendQuestion(t, client, name), protocol) })
			}
			wg.Wait()
		})
	}
}

// The server permits no query at first.
func TestProtocolReturnsHandshakeTimeOfRepeatedQuery(t *testing.T) {
	const handshake = 20 * time.Millisecond
	s := &fakeServer{
		accept: func(ctx context.Context, _ int) error { return sleep(ctx, handshake) },
		answer: func(_ context.Context, c *fakeServerConn) error {
			if c.queries == 1 {
				return localerror.ErrNoStream
			}
			return nil
		},
	}
	runFake(t, s, func(t *testing.T, client transport.Transport) {
		assert.Equal(t, handshake, sendQuestion(t, client, "x.example."))
	})
}

// A connection ends with two queries in flight, each of which is sent again over a connection of its own.
func TestProtocolReturnsTimeOfAllHandshakes(t *testing.T) {
	const handshake = 20 * time.Millisecond
	s := &fakeServer{
		accept: func(ctx context.Context, _ int) error { return sleep(ctx, handshake) },
		answer: func(_ context.Context, c *fakeServerConn) error {
			if c.number > 1 {
				return nil
			}
			time.Sleep(time.Millisecond)
			return cmp.Or(c.Close(), io.EOF)
		},
	}
	runFake(t, s, func(t *testing.T, client transport.Transport) {
		var wg sync.WaitGroup
		for _, name := range []string{"x.example.", "y.example."} {
			wg.Go(func() { assert.Equal(t, 2*handshake, sendQuestion(t, client, name)) })
		}
		wg.Wait()
	})
}
