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

	maxPipelined = 128                  // limit of the questions in flight of one connection
	batchSize    = 32                   // datagrams that one system call reads or writes
	batchBuffer  = 4096                 // bytes of a datagram that are read; the rest is lost
	readPause    = 5 * time.Millisecond // pause after a socket or listener has failed

	drainTime    = time.Second            // time for a client to read the last responses before its connection is closed
	drainBytes   = 1 << 18                // limit of the bytes read from a connection after Shutdown, and again while it is drained
	receivedTime = 100 * time.Millisecond // time to read the queries that were received before Shutdown
)

// ErrServerClosed is the error of Serve and ServePacket after Shutdown.
var ErrServerClosed = errors.New("dnshedge: server is closed")

// Verdict determines how a Server handles a query. The zero value is Answer.
type Verdict int

// The verdicts.
const (
	Answer Verdict = iota // the query is answered
	Refuse                // the response is REFUSED
	Ignore                // there is no response; over a stream the connection is closed
)

// Server answers DNS clients over UDP, TCP and TLS with the answers of a Client. It is faster than a dns.Server whose
// handler is Client.ServeDNS.
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
	// Client answers the queries. It must be set. If its Validate returns an error, Serve and ServePacket return that
	// error.
	Client *Client

	// Admit decides how a query is handled, by the client's address, which is a *net.UDPAddr for datagrams. It is
	// called for every query, from several goroutines. It must not block for datagrams. For a stream, blocking delays
	// only that connection. If Admit panics, there is no response. Nil: all queries are answered.
	Admit func(client net.Addr) Verdict

	// MaxConns limits the open connections. Zero: 1000. Negative: no limit. At the limit, a new connection takes the
	// place of a connection of the client with the most connections. A client is an IPv4 address or an IPv6 /64
	// network.
	//
	// The connection that has been idle for the longest is closed. If all of that client's connections are in use, no
	// more questions are read from one of them, and it is closed after its answers. Until then up to an eighth more
	// connections may be open.
	//
	// If the new connection belongs to that client itself, and all the client's connections are in use, the new
	// connection is closed at once.
	MaxConns int

	// IdleTimeout limits the time until the next query of a connection has arrived, including the TLS handshake before
	// the first query. A connection whose questions wait for answers stays open for longer, unless it has received a
	// part of the next query. Zero: 10 s.
	IdleTimeout time.Duration

	// WriteTimeout limits the time that a client may take to read a response, together with the responses before it.
	// After that the connection is closed. Zero: 5 s.
	WriteTimeout time.Duration

	once        sync.Once
	connLimiter *connlimit.Limiter // nil: no limit
	closing     chan struct{}      // closed when Shutdown begins
	ctx         context.Context    // context of the questions
	cancel      context.CancelFunc
	waiting     *clientQueues // queues of questions that wait for answers

	answering atomic.Int64 // goroutines that answer a question of a stream

	mu             sync.Mutex         // guards the fields below
	closed         bool               // no socket or connection is accepted any more
	answersStopped bool               // no datagram is answered any more
	open           map[io.Closer]bool // sockets, listeners and connections to close; the value is false for connections of clients
	wg             sync.WaitGroup     // questions and connections
}

func (s *Server) init() {
	s.once.Do(func() {
		s.open, s.closing = make(map[io.Closer]bool), make(chan struct{})
		s.ctx, s.cancel = context.WithCancel(context.Background())
		if s.Client != nil {
			s.waiting = newClientQueues(s.Client.MaxInFlight)
		}
		if s.MaxConns >= 0 {
			s.connLimiter = connlimit.New(cmp.Or(s.MaxConns, defaultMaxConns))
		}
	})
}

// startServing validates the Server and registers c, a listener or UDP socket, so that Shutdown closes c. It returns an
// error if the Server is invalid or was shut down. After an error, c is closed.
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

// registerCloser makes Shutdown close c. It returns false, without effect, if Shutdown has been called. listens is true
// for a listener or UDP socket. It is false for a connection of a client, whose end Shutdown waits for.
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

// unregisterCloser undoes registerCloser and closes c. listens must have the same value as in the call of
// registerCloser. The caller must not hold mu.
func (s *Server) unregisterCloser(c io.Closer, listens bool) {
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
	_ = c.Close() // without mu, because a client can delay the closing of a TLS connection
	if !listens {
		s.wg.Done()
	}
}

// A handledMessage is a Server's decision about a client's message: write a reply, ignore the message, or query the
// servers for the question in it.
type handledMessage struct {
	*wire.Query        // the question to ask; nil: there is a reply, or no response
	core        *core  // state of the Client that must ask it
	reply       []byte // the response in wire format
	drop        bool   // the message gets no response
}

// handleMessage decides whether to reply to a client's message m, ignore it, or query the servers. It appends the reply
// to b, in wire format, with at most limit bytes. limit is below wire.MaxMsg for datagrams. q is reusable memory for
// the parsed query.
func (s *Server) handleMessage(q *wire.Query, b, m []byte, client net.Addr, limit int) (out handledMessage) {
	if len(m) < wire.HeaderLen || m[2]&0x80 != 0 {
		return handledMessage{drop: true} // not a query; two servers could respond to each other's responses for ever
	}
	verdict := Answer
	if s.Admit != nil {
		if verdict = s.admitQuery(client); verdict == Ignore {
			return handledMessage{drop: true}
		}
	}
	if err := q.Parse(m); err != nil { // package dns would parse all records of m
		switch {
		case m[2]>>3&15 != dns.OpcodeQuery:
			return handledMessage{reply: appendHeaderOnlyResponse(b, m, dns.RcodeNotImplemented)}
		case q.Name == "":
			return handledMessage{reply: appendHeaderOnlyResponse(b, m, dns.RcodeFormatError)}
		}
		return handledMessage{reply: q.AppendFailure(b, rcodeForParseError(err), min(limit, wire.DefaultUDPSize))}
	}
	if limit < wire.MaxMsg { // a datagram: the client may accept less
		limit = min(limit, q.Size)
	}
	switch {
	case verdict == Refuse:
		return handledMessage{reply: q.AppendFailure(b, dns.RcodeRefused, limit, wire.EDE{Code: edeProhibited})}
	case !q.IsStandard():
		return handledMessage{reply: appendHeaderOnlyResponse(b, m, dns.RcodeNotImplemented)}
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

// admitQuery asks the function Admit, which must be set, how to handle a query of the client with the address from. If
// Admit panics, it logs the panic and returns Ignore.
func (s *Server) admitQuery(from net.Addr) (verdict Verdict) {
	defer func() {
		if p := recover(); p != nil {
			verdict = Ignore
			if core, err := s.Client.getCore(); err == nil {
				core.log.LogPanic("Server.Admit", p)
			}
		}
	}()
	return s.Admit(from)
}

// appendHeaderOnlyResponse appends to b, in wire format, a response to m with the response code rcode and without a
// question. If m has an OPT record, the response has one with the same DO bit (RFC 6891 §6.1.1, RFC 3225 §3).
func appendHeaderOnlyResponse(b, m []byte, rcode byte) []byte {
	b = append(b, m[0], m[1], 0x80|m[2]&0x79, rcode)
	b = append(b, make([]byte, wire.HeaderLen-4)...)
	has, do := wire.FindOPT(m)
	if !has {
		return b
	}
	b[len(b)-1] = 1 // ARCOUNT
	b = append(b, 0, 0, byte(dns.TypeOPT), wire.DefaultUDPSize>>8, wire.DefaultUDPSize&0xff, 0, 0, boolToByte(do)<<7, 0, 0, 0)
	return b
}

// ServePacket answers the datagrams that pc receives. After Shutdown, which closes pc, it returns ErrServerClosed. It
// also returns an error if pc is closed, or the Server is invalid; then it closes pc.
//
//   - Several sockets may be served at a time.
//   - On systems other than Linux, use one socket for each local address.
//   - At most twice Client.MaxInFlight questions of all sockets wait. When one more arrives, the oldest question of the
//     domain (the last two labels) with the most waiting questions gets no response.
func (s *Server) ServePacket(pc net.PacketConn) error {
	if err := s.startServing(pc); err != nil {
		return err
	}
	read := s.servePackets
	if u, ok := pc.(*net.UDPConn); ok && runtime.GOOS == "linux" {
		read = func(net.PacketConn) error { return s.readBatches(u) }
	}
	for {
		err := read(pc)
		if s.isClosing() { // Shutdown closes pc after the last response
			return ErrServerClosed
		}
		if errors.Is(err, net.ErrClosed) {
			s.unregisterCloser(pc, true)
			return err
		}
		time.Sleep(readPause) // for example, the system lacks memory
	}
}

// servePackets reads and answers datagrams one at a time, until reading fails.
func (s *Server) servePackets(pc net.PacketConn) error {
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

// answerPacket answers q, the question of a datagram, in a new goroutine, and passes the response to write, which must
// not keep b. There is no response if newer questions displace q, or if Shutdown already waits for the last answers.
func (s *Server) answerPacket(q handledMessage, write func(b []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answersStopped {
		return
	}
	w := q.core.enqueueQuery(s.ctx, &s.waiting.datagrams, q.ApproximateZone())
	s.wg.Go(func() {
		r, displaced := w.answerQueuedQuery(s.ctx, q.Query)
		if !displaced { // otherwise too many questions wait, and this is the oldest of the busiest domain
			p := messageBuffers.Get().(*messageBuffer)
			defer messageBuffers.Put(p)
			p.b = appendResult(p.b[:0], q.Query, r, min(q.Size, wire.DefaultUDPSize))
			write(p.b)
		}
	})
}

// readBatches reads and answers datagrams, several with one system call, until reading fails.
func (s *Server) readBatches(u *net.UDPConn) error {
	batches := ipv4.NewPacketConn(u) // its batch methods also work for IPv6
	all := u.LocalAddr().(*net.UDPAddr).IP.IsUnspecified()
	if all {
		// One call succeeds, or both for a dual-stack socket.
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
	replies := make([][]byte, batchSize) // the memory is reused
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
				source = replyControlMessage(m.OOB[:m.NN])
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
				n = 1 // skip the first message: its client cannot be reached
			}
			sent += n
		}
	}
}

// replyControlMessage returns the control message (IP_PKTINFO or IPV6_PKTINFO) that makes the kernel send a response
// from the address that received the query. oob is the control message of the query. The result is nil if oob has no
// address.
func replyControlMessage(oob []byte) []byte {
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

// Shutdown makes Serve and ServePacket return, answers the queries that were received before the call, and closes all
// sockets and connections. It reads at most 256 KiB more from each connection.
//
// If ctx ends first, Shutdown closes the connections without waiting and returns context.Cause(ctx). The Client stays
// open.
func (s *Server) Shutdown(ctx context.Context) error {
	s.init()
	if s.stopAcceptingQueries() {
		pause, cancel := context.WithTimeout(ctx, receivedTime)
		<-pause.Done()
		cancel()
	}
	s.mu.Lock()
	s.answersStopped = true
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

// stopAcceptingQueries closes the listeners. It sets a read deadline in 100 ms for UDP sockets and connections, so that
// queries received before Shutdown are still read. If hasSockets is true, there are UDP sockets, and the caller must
// wait for these 100 ms.
func (s *Server) stopAcceptingQueries() (hasSockets bool) {
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
			hasSockets = hasSockets || datagrams
		default:
			if listens {
				_ = c.Close()
			}
		}
	}
	return hasSockets
}

// isClosing reports whether Shutdown has been called.
func (s *Server) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}
