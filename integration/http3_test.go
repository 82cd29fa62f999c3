package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestHTTP3(t *testing.T) {
	t.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true")
	var primaries, hedges sync.Map // remote addresses
	var server *http3.Server
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get(number) {
		case "", "0":
			primaries.Store(r.RemoteAddr, true)
		default:
			hedges.Store(r.RemoteAddr, true)
		}
		fmt.Fprint(w, r.Proto)
	}), func(s *httptest.Server) {
		s.StartTLS() // for its certificate
		socket := listen(t)
		s.URL = "https://" + socket.LocalAddr().String()
		server = &http3.Server{Handler: s.Config.Handler, TLSConfig: http3.ConfigureTLSConfig(s.TLS)}
		go func() { _ = server.Serve(socket) }()
	})
	tlsConfig := s.Client().Transport.(*http.Transport).TLSClientConfig
	path := &path{PacketConn: listen(t)}
	path.quic = &quic.Transport{Conn: path}
	first, second := &http3.Transport{TLSClientConfig: tlsConfig, Dial: path.dial}, &http3.Transport{TLSClientConfig: tlsConfig}
	base, hedgeVia := numbered{first}, numbered{second}

	transport := hedge.New(base, hedge.WithHedgeTransport(hedgeVia))
	client := &http.Client{Transport: transport}

	get := func(c *http.Client) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
			if err != nil {
				return "", err
			}
			return whole(c.Do(req))
		}
	}
	for range 10 {
		require.Equal(t, "HTTP/3.0", same(t, s, transport, get(&http.Client{Transport: base}), get(client)))
	}
	hedges.Range(func(from, _ any) bool {
		_, both := primaries.Load(from)
		return assert.False(t, both, "a hedge came over a primary's connection")
	})
	once(t, s, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, strings.NewReader("lamp"))
		if err == nil {
			_, err = whole(client.Do(req))
		}
		return err
	})
	assert.Eventually(t, func() bool { return s.gone.Load() == s.stuck.Load() }, limit, time.Millisecond, "a loser is not cancelled")

	// Only a hedge over another connection helps if the primary's stands still.
	path.cut.Store(true)
	wins := transport.Snapshot().Stats.HedgeWins
	ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), delay), limit)
	defer cancel()
	_, err := get(client)(ctx)
	require.NoError(t, err)
	assert.EqualValues(t, 1, transport.Snapshot().Stats.HedgeWins-wins)
	ctx, cancel = context.WithTimeout(ctx, 10*delay)
	defer cancel()
	_, err = get(&http.Client{Transport: hedge.New(base)})(ctx)
	assert.ErrorIs(t, err, context.DeadlineExceeded)

	transport.CloseIdleConnections()
	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	require.NoError(t, path.quic.Close())
	require.NoError(t, server.Close())
	stacks := make([]byte, 16<<20)
	assert.Eventually(t, func() bool {
		return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "quic-go")
	}, limit, 10*time.Millisecond, "a goroutine stays")
}

// listen returns a socket of UDP.
func listen(t *testing.T) net.PacketConn {
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { socket.Close() })
	return socket
}

// A path is a socket for QUIC connections. While it is cut, what is sent is lost.
type path struct {
	net.PacketConn
	quic *quic.Transport
	cut  atomic.Bool
}

func (p *path) WriteTo(b []byte, to net.Addr) (int, error) {
	if p.cut.Load() {
		return len(b), nil
	}
	return p.PacketConn.WriteTo(b, to)
}

func (p *path) dial(ctx context.Context, address string, t *tls.Config, q *quic.Config) (*quic.Conn, error) {
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	return p.quic.DialEarly(ctx, to, t, q)
}
