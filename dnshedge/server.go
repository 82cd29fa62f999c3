package dnshedge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/connlimit"
)

const (
	defaultMaxConns     = 1000
	defaultIdleTimeout  = 10 * time.Second
	defaultWriteTimeout = 5 * time.Second

	maxPipelined = 128                  // questions of one connection that wait
	batchSize    = 32                   // datagrams that are read or written at a time
	batchBuffer  = 4096                 // bytes of a datagram that are read
	readPause    = 5 * time.Millisecond // after a socket failed

	drainTime    = time.Second            // for a client to notice that its connection was closed
	drainBytes   = 1 << 18                // of a connection that are read after Shutdown, and again while it is drained
	receivedTime = 100 * time.Millisecond // to read what had been received before Shutdown
)

// ErrServerClosed is the error of Serve and ServePacket after Shutdown.
var ErrServerClosed = errors.New("dnshedge: server is closed")

// Verdict says how a Server handles a query.
type Verdict int

// The verdicts.
const (
	Answer Verdict = iota // it is answered
	Refuse                // the response is REFUSED
	Ignore                // there is no response; over TCP the connection is closed
)

// Server answers DNS clients with a Client. It does what a dns.Server with
// Client.ServeDNS as its handler does, but an answer that is in the cache costs
// a quarter of the time: datagrams are read and written in batches (on Linux), messages
// are not unpacked, and no goroutine is started.
//
//	s := &dnshedge.Server{Client: c}
//	pc, err := net.ListenPacket("udp", ":53")
//	...
//	go s.ServePacket(pc)
//	ln, err := net.Listen("tcp", ":53")
//	...
//	go s.Serve(ln) // or tls.NewListener(ln, config), for DNS over TLS
//
// The fields must not be changed after first use. A Server is safe for concurrent use.
type Server struct {
	// Client answers. It must be set, and valid: Serve and ServePacket return at once what
	// its Validate returns.
	Client *Client

	// Admit says what becomes of a query, by the client's address, which is a
	// *net.UDPAddr for datagrams. It is called for every query, from several
	// goroutines, and must not block for datagrams; for others, blocking slows
	// down the one connection. If it panics, there is no response. Nil: all are answered.
	Admit func(client net.Addr) Verdict

	// MaxConns bounds the connections that are open. For one more, the client that has most closes one: that which has been
	// idle for the longest, or else one that is read no more and closed when its questions are answered, besides which an
	// eighth more may be open. If that is the client whose connection it is, and all its others are in use, the new one is
	// closed at once. A client is an IPv4 address, or an IPv6 network of 64 bits. Zero: 1000. Negative: no limit.
	MaxConns int

	// IdleTimeout is how long a connection may be without a question that waits or a
	// byte that is read. Zero: 10 s.
	IdleTimeout time.Duration

	// WriteTimeout is how long a client may take to read a response over a connection,
	// and those that wait before it; then the connection is closed. Zero: 5 s.
	WriteTimeout time.Duration

	once        sync.Once
	connLimiter *connlimit.Limiter // of connections
	closing     chan struct{}      // closed when Shutdown begins
	ctx         context.Context    // of the questions
	cancel      context.CancelFunc
	waiting     clientQueues // for answers

	answering atomic.Int64 // goroutines that answer a question of a connection

	mu     sync.Mutex         // guards the fields below
	closed bool               // nothing is accepted any more
	ended  bool               // no datagram is answered any more
	open   map[io.Closer]bool // what is to be closed; false for connections of clients
	wg     sync.WaitGroup     // of questions and connections
}

func (s *Server) init() {
	s.once.Do(func() {
		s.open, s.closing = make(map[io.Closer]bool), make(chan struct{})
		s.ctx, s.cancel = context.WithCancel(context.Background())
		if s.Client != nil {
			s.waiting.init(s.Client.MaxInFlight)
		}
		if s.MaxConns >= 0 {
			s.connLimiter = connlimit.New(cmp.Or(s.MaxConns, defaultMaxConns))
		}
	})
}

// startServing prepares to serve a listener or socket c. On an error it closes c.
func (s *Server) startServing(c io.Closer) error {
	err := ErrServerClosed
	switch {
	case s.Client == nil:
		err = errors.New("dnshedge: Server.Client is nil; want a Client")
	case s.IdleTimeout < 0:
		err = fmt.Errorf("dnshedge: Server.IdleTimeout is %v; want 0 or more", s.IdleTimeout)
	case s.WriteTimeout < 0:
		err = fmt.Errorf("dnshedge: Server.WriteTimeout is %v; want 0 or more", s.WriteTimeout)
	default:
		if e := s.Client.Validate(); e != nil {
			err = fmt.Errorf("dnshedge: Server.Client: %w", e)
		} else if s.registerCloser(c, true) {
			return nil
		}
	}
	_ = c.Close()
	return err
}

// registerCloser registers c for Shutdown to close. It reports false after Shutdown.
func (s *Server) registerCloser(c io.Closer, listens bool) bool {
	s.init()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.open[c] = listens
	if !listens {
		s.wg.Add(1)
	}
	return true
}

// unregisterCloser unregisters and closes c. It closes without the lock, because closing a TLS connection may take as
// long as its client likes.
func (s *Server) unregisterCloser(c io.Closer, listens bool) {
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
	_ = c.Close()
	if !listens {
		s.wg.Done()
	}
}

// handledMessage is the outcome of reading a message.
type handledMessage struct {
	*wire.Query // nil: there is a reply already
	core        *core
	reply       []byte
	drop        bool // the message gets no response
}

// handleMessage reads a message of a client, and answers it if that takes no waiting. The
// response is appended to b, and has at most limit bytes, or as many as the client takes.
// It uses q.
func (s *Server) handleMessage(q *wire.Query, b, m []byte, from net.Addr, limit int) (out handledMessage) {
	if len(m) < wire.HeaderLen || m[2]&0x80 != 0 {
		return handledMessage{drop: true} // no query; to respond to a response could go on for ever
	}
	verdict := Answer
	if s.Admit != nil {
		if verdict = s.admitQuery(from); verdict == Ignore {
			return handledMessage{drop: true}
		}
	}
	if err := q.Parse(m); err != nil { // package dns would follow each name in m
		switch {
		case m[2]>>3&15 != dns.OpcodeQuery:
			return handledMessage{reply: appendHeader(b, m, dns.RcodeNotImplemented)}
		case q.Name == "":
			return handledMessage{reply: appendHeader(b, m, dns.RcodeFormatError)}
		}
		return handledMessage{reply: q.AppendFailure(b, rcodeForParseError(err), min(limit, wire.DefaultUDPSize))}
	}
	if limit < wire.MaxMsg {
		limit = min(limit, q.Size)
	}
	switch {
	case verdict == Refuse:
		return handledMessage{reply: q.AppendFailure(b, dns.RcodeRefused, limit, wire.EDE{Code: edeProhibited})}
	case !q.Standard():
		return handledMessage{reply: appendHeader(b, m, dns.RcodeNotImplemented)}
	case rcodeForType(q.Type) != dns.RcodeSuccess:
		return handledMessage{reply: q.AppendFailure(b, rcodeForType(q.Type), limit)}
	}
	core, err := s.Client.init()
	if err != nil {
		return handledMessage{reply: q.AppendFailure(b, dns.RcodeServerFailure, limit, wire.EDE{Code: edeOther})}
	}
	if f, ok := core.answerFromFreshCache(context.Background(), q); ok {
		return handledMessage{reply: f.appendResponse(b, q, limit)}
	}
	own := *q
	return handledMessage{Query: &own, core: core}
}

// admitQuery calls Admit. If that panics, there is no response.
func (s *Server) admitQuery(from net.Addr) (verdict Verdict) {
	defer func() {
		if p := recover(); p != nil {
			verdict = Ignore
			if core, err := s.Client.getCore(); err == nil {
				core.log.LogPanicIn("Server.Admit", p)
			}
		}
	}()
	return s.Admit(from)
}

// appendHeader appends a response without a question to a message that was not understood. The response has an OPT
// record if the message has one (RFC 6891 §6.1.1), with the same DO bit (RFC 3225 §3).
func appendHeader(b, m []byte, rcode byte) []byte {
	b = append(b, m[0], m[1], 0x80|m[2]&0x79, rcode)
	b = append(b, make([]byte, wire.HeaderLen-4)...)
	has, do := wire.FindOPT(m)
	if !has {
		return b
	}
	b[len(b)-1] = 1 // ARCOUNT
	b = append(b, 0, 0, byte(dns.TypeOPT), wire.DefaultUDPSize>>8, wire.DefaultUDPSize&0xff, 0, 0, boolByte(do)<<7, 0, 0, 0)
	return b
}

// ServePacket answers the datagrams that come over pc, until Shutdown, and then closes
// it. Several may be served at a time, as sockets of one address (SO_REUSEPORT), by one
// processor each.
//
// On Linux responses come from the address that was asked, even if pc listens on all;
// elsewhere listen on each address.
//
// Of twice as many questions as Client.MaxInFlight that wait at a time, copies of one
// included, the one that has waited longest gets no response when one more comes.
func (s *Server) ServePacket(pc net.PacketConn) error {
	if err := s.startServing(pc); err != nil {
		return err
	}
	read := s.readPackets
	if u, ok := pc.(*net.UDPConn); ok && runtime.GOOS == "linux" {
		read = func(net.PacketConn) error { return s.readBatches(u) }
	}
	for {
		err := read(pc)
		select {
		case <-s.closing: // Shutdown closes pc, over which answers may still be due
			return ErrServerClosed
		default:
		}
		if errors.Is(err, net.ErrClosed) {
			s.unregisterCloser(pc, true)
			return err
		}
		time.Sleep(readPause) // as when the system is short of memory
	}
}

// readPackets reads datagrams one at a time until that fails.
func (s *Server) readPackets(pc net.PacketConn) error {
	var scratch wire.Query
	in, out := make([]byte, batchBuffer), make([]byte, 0, 2048)
	for {
		n, from, err := pc.ReadFrom(in)
		if err != nil {
			return err
		}
		q := s.handleMessage(&scratch, out[:0], in[:n], from, wire.DefaultUDPSize)
		switch {
		case q.drop:
		case q.Query == nil:
			_, _ = pc.WriteTo(q.reply, from)
		default:
			s.answerPacket(q, func(b []byte) { usercode.RunGuarded(func() { _, _ = pc.WriteTo(b, from) }) })
		}
	}
}

// answerPacket answers a question of a datagram in a goroutine that Shutdown waits for. If too
// many wait, the one that has waited longest gets no response.
func (s *Server) answerPacket(q handledMessage, write func(b []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	w := q.core.enterQueue(s.ctx, &s.waiting.datagrams, q.Zone())
	s.wg.Go(func() {
		defer w.End(nil)
		r, displaced := w.answerInQueue(s.ctx, q.Query)
		if !displaced {
			p := responseBuffers.Get().(*responseBuffer)
			defer responseBuffers.Put(p)
			p.b = appendResult(p.b[:0], q.Query, r, min(q.Size, wire.DefaultUDPSize))
			write(p.b)
		}
	})
}

// readBatches reads and writes several datagrams with one system call, until that fails.
func (s *Server) readBatches(u *net.UDPConn) error {
	batches := ipv4.NewPacketConn(u) // whose batches are not of IPv4 only
	all := u.LocalAddr().(*net.UDPAddr).IP.IsUnspecified()
	if all {
		// One of them works, or both for a socket of both families.
		_ = batches.SetControlMessage(ipv4.FlagDst, true)
		_ = ipv6.NewPacketConn(u).SetControlMessage(ipv6.FlagDst, true)
	}
	in, out := make([]ipv4.Message, batchSize), make([]ipv4.Message, batchSize)
	for i := range in {
		in[i].Buffers = [][]byte{make([]byte, batchBuffer)}
		if all {
			in[i].OOB = make([]byte, 128)
		}
		out[i].Buffers = make([][]byte, 1)
	}
	var scratch wire.Query
	replies := make([][]byte, batchSize) // whose memory is used again
	for {
		n, err := batches.ReadBatch(in, 0)
		if err != nil {
			return err
		}
		k := 0
		for i := range in[:n] {
			m := &in[i]
			to := m.Addr.(*net.UDPAddr)
			q := s.handleMessage(&scratch, replies[k][:0], m.Buffers[0][:m.N], to, wire.DefaultUDPSize)
			if q.drop {
				continue
			}
			var source []byte
			if all {
				source = controlFrom(m.OOB[:m.NN])
			}
			if q.Query != nil {
				s.answerPacket(q, func(b []byte) { _, _, _ = u.WriteMsgUDP(b, source, to) })
				continue
			}
			replies[k] = q.reply
			out[k].Buffers[0], out[k].Addr, out[k].OOB = q.reply, to, source
			k++
		}
		for sent := 0; sent < k; {
			n, err := batches.WriteBatch(out[sent:k], 0)
			if err != nil || n == 0 {
				n = 1 // the client of the first one cannot be reached
			}
			sent += n
		}
	}
}

// controlFrom returns the control message of a response to a datagram that came with
// the given one: it is sent from the address that the datagram was sent to.
func controlFrom(oob []byte) []byte {
	var c6 ipv6.ControlMessage
	if c6.Parse(oob) == nil && c6.Dst != nil {
		if c6.Dst.To4() == nil {
			return (&ipv6.ControlMessage{Src: c6.Dst}).Marshal()
		}
		return (&ipv4.ControlMessage{Src: c6.Dst}).Marshal()
	}
	var c4 ipv4.ControlMessage
	if c4.Parse(oob) == nil && c4.Dst != nil {
		return (&ipv4.ControlMessage{Src: c4.Dst}).Marshal()
	}
	return nil
}

// Shutdown ends Serve and ServePacket, answers the received queries, and returns when all are
// answered. If ctx ends first, it closes the remaining connections, and returns the context's
// cause without waiting for their goroutines. It reads at most 256 KiB from each connection. The Client stays open.
func (s *Server) Shutdown(ctx context.Context) error {
	s.init()
	received := s.endReading()
	if received {
		t := time.NewTimer(receivedTime)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.cancel()
	s.mu.Lock()
	for c, listens := range s.open {
		if listens {
			_ = c.Close()
		} else {
			go c.Close()
		}
	}
	s.mu.Unlock()
	return err
}

// endReading closes listeners, and sets a deadline to read the queries that sockets and connections have received. It
// reports whether there are sockets or connections.
func (s *Server) endReading() (received bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	for c, listens := range s.open {
		switch c := c.(type) {
		case interface{ SetReadDeadline(time.Time) error }:
			_ = c.SetReadDeadline(time.Now().Add(receivedTime)) // answers are still written to it
			_, datagrams := c.(net.PacketConn)
			received = received || datagrams
		default:
			if listens {
				_ = c.Close()
			}
		}
	}
	return received
}

// isClosing reports whether Shutdown has begun.
func (s *Server) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}
