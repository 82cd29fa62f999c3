package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
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
	"golang.org/x/net/http2/hpack"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// A pipeListener accepts connections that have no buffers.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Addr() net.Addr { return new(net.TCPAddr) }

func (l *pipeListener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

// A pipeConn is the server's end of a connection. It counts the bytes that the server has read.
type pipeConn struct {
	net.Conn
	bytesRead atomic.Int64
	ended     context.CancelFunc
}

func (c *pipeConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1000}
}

func (c *pipeConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.bytesRead.Add(int64(n))
	return n, err
}

func (c *pipeConn) Close() error {
	c.ended()
	return c.Conn.Close()
}

// A dohServer is the HTTPS server of a Forwarder, in a bubble.
type dohServer struct {
	*testing.T
	listener *pipeListener
	requests *clientLimiter
}

// dohBubble calls f in a bubble with a server whose Client asks e.
func dohBubble(t *testing.T, e dnshedge.Exchanger, f func(s *dohServer)) {
	doubles.SkipWithoutHTTP2InBubble(t)
	serving, _ := dnstest.Certificate()
	synctest.Test(t, func(t *testing.T) {
		c := &dnshedge.Client{Exchanger: e}
		s := &dohServer{
			T: t, listener: &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})},
			requests: &clientLimiter{maxPerClient: maxRequestsOfClient, maxTotal: maxRequests, byClient: make(map[netip.Addr]int)},
		}
		web := newHTTPServer(&dohHandler{server: &dnshedge.Server{Client: c}, access: new(accessControl), requests: s.requests})
		web.TLSConfig = serving.Clone()
		var wg sync.WaitGroup
		wg.Go(func() { assert.ErrorIs(t, web.ServeTLS(s.listener, "", ""), http.ErrServerClosed) })
		t.Cleanup(func() {
			assert.NoError(t, web.Close())
			wg.Wait()
			c.Close()
		})
		f(s)
	})
}

// openRequests returns the number of requests that count against the limits.
func (s *dohServer) openRequests() int {
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	return s.requests.n
}

// A dohConn is a connection of a client to a dohServer.
type dohConn struct {
	net.Conn
	*http2.Framer // writes frames
	server        *pipeConn
	closed        context.Context // ends when the server closes the connection
	goAway        atomic.Int64    // code of the GOAWAY frame that the server has sent, plus one; 0: none
}

// connect opens a connection over TCP alone.
func (s *dohServer) connect() *dohConn {
	here, there := net.Pipe()
	c := &dohConn{Conn: here, server: &pipeConn{Conn: there}}
	c.closed, c.server.ended = context.WithCancel(context.Background())
	s.listener.conns <- c.server
	s.Cleanup(func() { here.Close() })
	return c
}

// connectTLS opens a connection with a protocol, and discards all bytes from the server.
func (s *dohServer) connectTLS(protocol string) *dohConn {
	c := s.handshake(protocol)
	go func() { _, _ = io.Copy(io.Discard, c.Conn) }()
	return c
}

// connectHTTP2 opens a connection over HTTP/2. It reads frames until one makes the function stops return true, and then
// reads nothing more.
func (s *dohServer) connectHTTP2(stops func(http2.Frame) bool) *dohConn {
	c := s.handshake("h2")
	go func() {
		f := http2.NewFramer(io.Discard, c.Conn)
		for {
			frame, err := f.ReadFrame()
			if err != nil || stops(frame) {
				return
			}
			if end, ok := frame.(*http2.GoAwayFrame); ok {
				c.goAway.CompareAndSwap(0, int64(end.ErrCode)+1)
			}
		}
	}()
	_, err := io.WriteString(c, http2.ClientPreface)
	require.NoError(s, err)
	c.Framer = http2.NewFramer(c.Conn, nil)
	const window = 1<<31 - 1
	require.NoError(s, c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}))
	require.NoError(s, c.WriteWindowUpdate(0, window-65535))
	return c
}

func (s *dohServer) handshake(protocol string) *dohConn {
	c := s.connect()
	_, trusting := dnstest.Certificate()
	trusting = trusting.Clone()
	trusting.ServerName, trusting.NextProtos = dnstest.Name, []string{protocol}
	secure := tls.Client(c.Conn, trusting)
	require.NoError(s, secure.Handshake())
	c.Conn = secure
	return c
}

// readsAll is for connectHTTP2: the client reads all frames.
func readsAll(http2.Frame) bool { return false }

// header returns the header of a request for a question, in the format of HTTP/2.
func header(method, name string, more ...hpack.HeaderField) []byte {
	b, _ := new(dns.Msg).SetQuestion(name, dns.TypeTXT).Pack()
	var out bytes.Buffer
	e := hpack.NewEncoder(&out)
	e.SetMaxDynamicTableSize(0) // each header is complete by itself
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: dnstest.Name},
		{Name: ":path", Value: dohPath + "?dns=" + base64.RawURLEncoding.EncodeToString(b)}, {Name: "content-type", Value: mediaType},
	}, more...) {
		_ = e.WriteField(f)
	}
	return out.Bytes()
}

// streamID returns the ID of a request of a client, which are counted from 0.
func streamID(request int) uint32 { return uint32(2*request + 1) }

// A client that resets its requests at once ("rapid reset", CVE-2023-44487) has as many questions in flight as a client
// that waits for the answers, and loses its connection.
func TestDoHCancelledRequestsCountUntilAnswered(t *testing.T) {
	var asked atomic.Int64
	stuck := exchangerFunc(func(ctx context.Context, _ *dns.Msg) (*dns.Msg, error) {
		asked.Add(1)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	dohBubble(t, stuck, func(s *dohServer) {
		c := s.connectHTTP2(readsAll)
		for i := range 2000 {
			name := strings.Repeat("a", 1+i%60) + "." + strings.Repeat("b", 1+i/60) + ".example."
			err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: streamID(i), BlockFragment: header("GET", name), EndStream: true, EndHeaders: true})
			if err == nil {
				err = c.WriteRSTStream(streamID(i), http2.ErrCodeCancel)
			}
			if err != nil {
				break // the connection has ended
			}
		}
		synctest.Wait()
		assert.EqualValues(t, 128, asked.Load())
		assert.LessOrEqual(t, s.openRequests(), 128)
		assert.EqualValues(t, http2.ErrCodeEnhanceYourCalm+1, c.goAway.Load())
		time.Sleep(10 * time.Second)
		assert.Error(t, c.closed.Err())
		assert.EqualValues(t, 128, asked.Load(), "requests that were reset before they began are not answered")
		assert.Zero(t, s.openRequests())
	})
}

// A header that does not end (CONTINUATION flood, CVE-2023-45288) ends its connection.
func TestDoHEndlessHeaderEndsConnection(t *testing.T) {
	none := exchangerFunc(func(context.Context, *dns.Msg) (*dns.Msg, error) { panic("a request without an end was answered") })
	dohBubble(t, none, func(s *dohServer) {
		c := s.connectHTTP2(readsAll)
		err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header("GET", "a.example."), EndStream: true})
		field := header("GET", "a.example.", hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 1000), Sensitive: true})
		for n := 0; err == nil && n < 64<<20; n += len(field) {
			err = c.WriteContinuation(1, false, field)
		}
		assert.Error(t, err)
		assert.Error(t, c.closed.Err())
		assert.Less(t, c.server.bytesRead.Load(), int64(512<<10))
	})
}

// A client that reads no responses, although HTTP/2 permits the server to send them, loses its connection. Otherwise a few
// clients could use up the requests of all.
func TestDoHUnreadResponsesEndConnection(t *testing.T) {
	long := exchangerFunc(func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		return dnstest.Answer(dnstest.Query{Msg: m}, "TXT "+strings.Repeat(strings.Repeat("x", 255)+" ", 200)), nil
	})
	dohBubble(t, long, func(s *dohServer) {
		c := s.connectHTTP2(func(frame http2.Frame) bool { _, settings := frame.(*http2.SettingsFrame); return settings })
		for i := range 100 {
			require.NoError(t, c.WriteHeaders(http2.HeadersFrameParam{
				StreamID: streamID(i), BlockFragment: header("GET", "long.example."), EndStream: true, EndHeaders: true,
			}))
		}
		time.Sleep(time.Second)
		assert.Greater(t, s.openRequests(), 50, "the responses wait")
		time.Sleep(2*idleTime + 5*time.Second) // package crypto/tls takes five seconds to say so
		assert.Error(t, c.closed.Err())
		assert.Zero(t, s.openRequests())
	})
}

// Connections without a complete request end after a fixed time, even if bytes arrive.
func TestDoHIncompleteRequestsEndConnection(t *testing.T) {
	answer := exchangerFunc(func(_ context.Context, m *dns.Msg) (*dns.Msg, error) { return new(dns.Msg).SetReply(m), nil })
	for name, test := range map[string]struct {
		begin func(s *dohServer) *dohConn
		end   time.Duration
	}{
		"no handshake": {(*dohServer).connect, idleTime},
		"half of a handshake": {func(s *dohServer) *dohConn {
			c := s.connect()
			_, err := c.Write([]byte{22, 3, 1, 2, 0, 1})
			require.NoError(s, err)
			return c
		}, idleTime},
		"no preface":  {func(s *dohServer) *dohConn { return s.connectTLS("h2") }, idleTime},
		"no request":  {func(s *dohServer) *dohConn { return s.connectHTTP2(readsAll) }, 2*time.Minute + time.Second},
		"HTTP/1 only": {func(s *dohServer) *dohConn { return s.connectTLS("http/1.1") }, idleTime},
		"header byte by byte": {func(s *dohServer) *dohConn {
			c := s.connectTLS("http/1.1")
			go func() {
				for _, b := range []byte("GET /dns-query HTTP/1.1\r\nHost: " + strings.Repeat("x", 1000)) {
					if _, err := c.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			}()
			return c
		}, idleTime},
		"header without an end": {func(s *dohServer) *dohConn {
			c := s.connectHTTP2(readsAll)
			require.NoError(s, c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header("GET", "a.example."), EndStream: true}))
			return c
		}, 2*time.Minute + time.Second},
		"body without an end": {func(s *dohServer) *dohConn {
			c := s.connectHTTP2(readsAll)
			require.NoError(s, c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header("POST", "a.example."), EndHeaders: true}))
			go func() {
				for c.WriteData(1, false, []byte{0}) == nil {
					time.Sleep(time.Second)
				}
			}()
			time.Sleep(2*idleTime + time.Second)
			assert.Zero(s, s.openRequests(), "the request has ended")
			return c
		}, 3 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			dohBubble(t, answer, func(s *dohServer) {
				start := time.Now()
				c := test.begin(s)
				select {
				case <-c.closed.Done():
				case <-time.After(time.Hour):
				}
				assert.LessOrEqual(t, time.Since(start), test.end)
				assert.Zero(t, s.openRequests())
				time.Sleep(time.Second) // so that the goroutine of the client ends
			})
		})
	}
}

// longQuery returns a message of 64 KiB with a HIP record, whose compressed names refer to a long name. counts has the
// numbers of records in the sections.
func longQuery(opcode byte, counts [3]byte) []byte {
	m := []byte{0, 0, opcode << 3, 0, 0, 1, 0, counts[0], 0, counts[1], 0, counts[2]}
	m = append(m, strings.Repeat("\x01a", 127)+"\x00\x00\x01\x00\x01"+"\xc0\x0c\x00\x37\x00\x01\x00\x00\x00\x00"...)
	n := (65000 - len(m)) &^ 1
	m = append(binary.BigEndian.AppendUint16(m, uint16(4+n)), 0, 2, 0, 0)
	return append(m, strings.Repeat("\xc0\x0c", n/2)...)
}

// To write out the names of such a record takes time in proportion to their length, and any client can send one in each
// message.
func TestDoHRefusesMessageCheaply(t *testing.T) {
	c := new(dnshedge.Client)
	defer c.Close()
	d := &dohHandler{
		server: &dnshedge.Server{Client: c}, access: new(accessControl),
		requests: &clientLimiter{maxPerClient: 1, byClient: make(map[netip.Addr]int)},
	}
	for rcode, query := range map[int][]byte{
		dns.RcodeFormatError:    longQuery(dns.OpcodeQuery, [3]byte{0, 0, 1}),
		dns.RcodeNotImplemented: longQuery(dns.OpcodeUpdate, [3]byte{0, 1, 0}),
	} {
		doubles.AssertMaxDuration(t, 10*time.Millisecond, func() {
			r := httptest.NewRequest(http.MethodPost, dohPath, bytes.NewReader(query))
			r.Header.Set("Content-Type", mediaType)
			w := httptest.NewRecorder()
			d.ServeHTTP(w, r)
			require.Equal(t, http.StatusOK, w.Code)
			assert.EqualValues(t, rcode, w.Body.Bytes()[3]&15)
			assert.Less(t, w.Body.Len(), 512)
		})
	}
}
