package dnshedge_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// More questions have been received than a connection has answered at a time.
func TestServerShutdownAnswersUnreadQuestions(t *testing.T) {
	for _, network := range []string{"tcp", "tls"} {
		bubble(t, func(l *lab) {
			l.serve("a", after(1500*ms, good))
			s := &dnshedge.Server{Client: l.client(off(), l.up("udp", "a"))}
			serving, _ := dnstest.Certificate()
			ln, err := l.net.Host("c").Listen("tcp", map[string]string{"tcp": ":53", "tls": ":853"}[network])
			require.NoError(t, err)
			if network == "tls" {
				ln = tls.NewListener(ln, serving.Clone())
			}
			go s.Serve(ln)
			conn := l.from("client", network)
			const questions = 300
			for i := range questions {
				require.NoError(t, conn.WriteMsg(question(fmt.Sprintf("n%d.example.", i), dns.TypeA)))
			}
			time.Sleep(time.Second)
			ended := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(background, 20*time.Second)
				defer cancel()
				ended <- s.Shutdown(ctx)
			}()
			answers := 0
			for err == nil {
				var r *dns.Msg
				if r, err = conn.ReadMsg(); err == nil {
					assert.Equal(t, "192.0.2.1", addr(r))
					answers++
				}
			}
			assert.ErrorIs(t, err, io.EOF, network)
			assert.Equal(t, questions, answers, network)
			conn.Close()
			assert.NoError(t, <-ended)
		})
	}
}

func TestServerShutdownAnswersLatestQuestions(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		bubble(t, func(l *lab) {
			l.serve("a", good)
			s := &dnshedge.Server{Client: l.client(off(), l.up("udp", "a"))}
			l.startServer(s)
			conn := l.connect(network)
			put(t, conn, question("x.example.", dns.TypeA))
			require.NoError(t, conn.WriteMsg(question("y.example.", dns.TypeA))) // arrives after 10 ms
			ended := make(chan error, 1)
			go func() { ended <- s.Shutdown(background) }()
			r, err := conn.ReadMsg()
			require.NoError(t, err, network)
			assert.Equal(t, "192.0.2.1", addr(r))
			require.NoError(t, <-ended)
		})
	}
}

// A client keeps sending questions during Shutdown.
func TestServerShutdownEndsDespiteNewQuestions(t *testing.T) {
	for _, pause := range []time.Duration{ms, 90 * ms} {
		bubble(t, func(l *lab) {
			l.serve("a", good)
			s := &dnshedge.Server{Client: l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))}
			l.startServer(s)
			conn := l.connect("tcp")
			put(t, conn, question("x.example.", dns.TypeA))
			go io.Copy(io.Discard, conn.Conn)
			go func() {
				for conn.WriteMsg(question("x.example.", dns.TypeA)) == nil {
					time.Sleep(pause)
				}
			}()
			time.Sleep(time.Second)
			start := time.Now()
			require.NoError(t, s.Shutdown(background))
			assert.LessOrEqual(t, time.Since(start), 3*time.Second)
		})
	}
}

func TestClientExchangesAfterCloseFail(t *testing.T) {
	hosts := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(hosts, []byte("192.0.2.7 known.example\n"), 0o600))
	for _, ttl := range []time.Duration{0, 2 * time.Hour} { // the answers are fresh, or stale
		bubble(t, func(l *lab) {
			l.serve("a", good)
			c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache), Hosts: hosts, Timeout: time.Second}, l.up("udp", "a"))
			names := []string{"x.example.", "known.example.", "localhost.", "new.example."}
			for _, name := range names[:3] {
				l.must(c, name)
			}
			time.Sleep(ttl)
			require.NoError(t, c.Close())
			for _, name := range names {
				for _, address := range []string{"", l.up("udp", "a").String()} {
					r, _, err := c.Exchange(question(name, dns.TypeA), address)
					assert.Error(t, err, "%s: %v", name, r)
				}
				for _, network := range []string{"udp", "tcp"} {
					assert.Equal(t, dns.RcodeServerFailure, serve(t, c, network, question(name, dns.TypeA)).Rcode, name)
				}
				addrs, err := c.LookupAddrs(background, name)
				assert.Error(t, err, "%s: %v", name, addrs)
			}
		})
	}
}

// wrappedConn is a net.Conn without the method CloseWrite.
type wrappedConn struct{ net.Conn }

type wrappingListener struct{ net.Listener }

func (l wrappingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return wrappedConn{c}, nil
}

// The test uses real sockets, which reset a connection that is closed with unread bytes.
func TestServerDrainsConnectionsWithoutCloseWrite(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &dnshedge.Client{Exchanger: slowExchanger(300 * ms)}
	defer c.Close()
	s := &dnshedge.Server{Client: c}
	go s.Serve(wrappingListener{ln})
	nc, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer nc.Close()
	conn := &dns.Conn{Conn: nc}
	const questions = 140
	for i := range questions {
		require.NoError(t, conn.WriteMsg(question(fmt.Sprintf("n%d.example.", i), dns.TypeA)))
	}
	time.Sleep(50 * ms)
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(background) }()
	answers := 0
	for err == nil {
		if _, err = conn.ReadMsg(); err == nil {
			answers++
		}
	}
	assert.ErrorIs(t, err, io.EOF)
	assert.Equal(t, questions, answers)
	assert.NoError(t, <-ended)
}

// slowExchanger answers after a while.
type slowExchanger time.Duration

func (s slowExchanger) ExchangeContext(ctx context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	select {
	case <-time.After(time.Duration(s)):
		return new(dns.Msg).SetReply(m), 0, nil
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
}
