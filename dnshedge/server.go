package dnshedge

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
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
	"github.com/gohedge/hedge/internal/seats"
)

const (
	defaultMaxConns     = 1000
	defaultIdleTimeout  = 10 * time.Second
	defaultWriteTimeout = 5 * time.Second

	maxPipelined = 128                  // questions of one connection that wait
	batchSize    = 32                   // datagrams that are read or written at a time
	batchBuffer  = 4096                 // bytes of a datagram that are read
	readPause    = 5 * time.Millisecond // after a socket failed
)

// ErrServerClosed is what Serve and ServePacket return after Shutdown.
var ErrServerClosed = errors.New("dnshedge: server is closed")

// Verdict is what becomes of a query.
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

	once    sync.Once
	seats   *seats.Seats    // of connections
	closing chan struct{}   // closed when Shutdown begins
	ctx     context.Context // of the questions
	cancel  context.CancelFunc
	waiting waiters // for answers

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
			s.seats = seats.New(cmp.Or(s.MaxConns, defaultMaxConns))
		}
	})
}

// begin prepares for serving what c listens to. If it cannot be served, c is closed.
func (s *Server) begin(c io.Closer) error {
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
		} else if s.add(c, true) {
			return nil
		}
	}
	_ = c.Close()
	return err
}

// add remembers what Shutdown has to close, or reports false after Shutdown.
func (s *Server) add(c io.Closer, listens bool) bool {
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

// remove closes what was added. It does so without the lock, because to close a
// connection over TLS may take as long as its client likes to.
func (s *Server) remove(c io.Closer, listens bool) {
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
	_ = c.Close()
	if !listens {
		s.wg.Done()
	}
}

// query is what came of reading a message.
type query struct {
	*wire.Query // nil: there is a reply already
	core        *core
	reply       []byte
	drop        bool // the message gets no response
}

// read reads a message of a client, and answers it if that takes no waiting. The
// response is appended to b, and has at most limit bytes, or as many as the client takes.
// It uses q.
func (s *Server) read(q *wire.Query, b, m []byte, from net.Addr, limit int) (out query) {
	if len(m) < wire.HeaderLen || m[2]&0x80 != 0 {
		return query{drop: true} // no query; to respond to a response could go on for ever
	}
	verdict := Answer
	if s.Admit != nil {
		if verdict = s.admit(from); verdict == Ignore {
			return query{drop: true}
		}
	}
	if err := q.Parse(m); err != nil { // package dns would follow each name in m
		switch {
		case m[2]>>3&15 != dns.OpcodeQuery:
			return query{reply: appendHeader(b, m, dns.RcodeNotImplemented)}
		case q.Name == "":
			return query{reply: appendHeader(b, m, dns.RcodeFormatError)}
		}
		return query{reply: q.AppendFailure(b, badQuery(err), min(limit, wire.DefaultUDPSize))}
	}
	if limit < wire.MaxMsg {
		limit = min(limit, q.Size)
	}
	switch {
	case verdict == Refuse:
		return query{reply: q.AppendFailure(b, dns.RcodeRefused, limit, wire.EDE{Code: edeProhibited})}
	case !q.Standard():
		return query{reply: appendHeader(b, m, dns.RcodeNotImplemented)}
	case badType(q.Type) != dns.RcodeSuccess:
		return query{reply: q.AppendFailure(b, badType(q.Type), limit)}
	}
	core, err := s.Client.init()
	if err != nil {
		return query{reply: q.AppendFailure(b, dns.RcodeServerFailure, limit, wire.EDE{Code: edeOther})}
	}
	if f, ok := core.hit(context.Background(), q); ok {
		return query{reply: f.append(b, q, limit)}
	}
	own := *q
	return query{Query: &own, core: core}
}

// admit calls Admit. If that panics, there is no response.
func (s *Server) admit(from net.Addr) (verdict Verdict) {
	defer func() {
		if p := recover(); p != nil {
			verdict = Ignore
			if core, err := s.Client.setup(); err == nil {
				core.log.PanickedIn("Server.Admit", p)
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
	if err := s.begin(pc); err != nil {
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
			s.remove(pc, true)
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
		q := s.read(&scratch, out[:0], in[:n], from, wire.DefaultUDPSize)
		switch {
		case q.drop:
		case q.Query == nil:
			_, _ = pc.WriteTo(q.reply, from)
		default:
			s.answer(q, func(b []byte) { usercode.Run(func() { _, _ = pc.WriteTo(b, from) }) })
		}
	}
}

// answer answers a question of a datagram in a goroutine that Shutdown waits for. If too
// many wait, the one that has waited longest gets no response.
func (s *Server) answer(q query, write func(b []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	w := q.core.enter(s.ctx, &s.waiting.datagrams, q.Zone())
	s.wg.Go(func() {
		defer w.cancel()
		r, displaced := w.answer(s.ctx, q.Query)
		if !displaced {
			p := responses.Get().(*response)
			defer responses.Put(p)
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
			q := s.read(&scratch, replies[k][:0], m.Buffers[0][:m.N], to, wire.DefaultUDPSize)
			if q.drop {
				continue
			}
			var source []byte
			if all {
				source = controlFrom(m.OOB[:m.NN])
			}
			if q.Query != nil {
				s.answer(q, func(b []byte) { _, _, _ = u.WriteMsgUDP(b, source, to) })
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

// Serve answers what is asked over the connections that ln accepts, until Shutdown,
// and closes it. Questions of one connection are answered in the order in which their
// answers come, and 128 at a time (RFC 7766 §6.2.1.1). Over TLS, responses to queries with
// EDNS are padded to multiples of 468 bytes (RFC 7830, RFC 8467).
//
// Over all connections, twice as many questions as Client.MaxInFlight wait at a time, copies of one included. When one more
// comes, the client that has most gets SERVFAIL for the one that has waited longest. A client is as for MaxConns.
func (s *Server) Serve(ln net.Listener) error {
	if err := s.begin(ln); err != nil {
		return err
	}
	defer s.remove(ln, true)
	for {
		conn, err := ln.Accept()
		if err == nil && conn == nil {
			return errors.New("dnshedge: accept: the Listener returned neither a connection nor an error")
		}
		if err == nil {
			s.accept(conn)
			continue
		}
		select {
		case <-s.closing:
			return ErrServerClosed
		default:
		}
		if t := net.Error(nil); !errors.As(err, &t) || errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("dnshedge: accept: %w", err)
		}
		time.Sleep(readPause) // as when there are too many open files
	}
}

// accept serves a connection in a goroutine, or closes it if there is no room for it.
func (s *Server) accept(conn net.Conn) {
	_, pads := conn.(interface{ ConnectionState() tls.ConnectionState })
	conn = usercode.WrapConn(conn)
	c := &serverConn{
		Conn: conn, s: s, pads: pads, lane: streamLane(conn.RemoteAddr()),
		writing: make(chan struct{}, 1), waiting: make(chan struct{}, maxPipelined),
	}
	seat, ok := s.seats.Take(seats.Of(conn.RemoteAddr()), s.closing, c.leave)
	if !ok {
		_ = conn.Close()
		return
	}
	if !s.add(conn, false) {
		seat.Free()
		_ = conn.Close()
		return
	}
	c.seat = seat
	go c.serve()
}

// serverConn is a connection of a client.
type serverConn struct {
	net.Conn
	s       *Server
	pads    bool          // TLS hides what is written, but not its length
	writing chan struct{} // a lock: holds a value while a response is written
	waiting chan struct{} // one value per question that waits
	seat    *seats.Seat
	lane    string // of the client, in the line of questions that wait
	left    bool   // no more questions are read; guarded by s.mu
	drains  bool   // it was in use then; guarded by s.mu

	wrote    time.Time     // when a response was last written; guarded by writing
	received int           // bytes that were read after Shutdown
	readFor  time.Duration // the time that was waited for them
}

// leave is called when the connection has to give up its seat: no more questions are read.
func (c *serverConn) leave(inUse bool) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.left, c.drains = true, inUse
	_ = c.SetReadDeadline(time.Unix(1, 0))
}

func (c *serverConn) serve() {
	s := c.s
	defer c.seat.Free()
	defer s.remove(c.Conn, false)
	defer c.drain()
	var wg sync.WaitGroup
	defer wg.Wait() // a client that has closed its half still reads
	from := c.RemoteAddr()
	var scratch wire.Query
	in, out := make([]byte, 0, 512), make([]byte, 0, 1024)
	for {
		m, err := c.readMessage(in[:0])
		if err != nil {
			return
		}
		in = m
		c.seat.Begin()
		q := s.read(&scratch, append(out[:0], 0, 0), m, from, wire.MaxMsg)
		if q.Query != nil && c.answer(q, &wg) {
			continue
		}
		switch {
		case q.drop:
			return
		case q.Query != nil:
			q.reply = q.AppendFailure(append(out[:0], 0, 0), dns.RcodeServerFailure, wire.MaxMsg, wire.EDE{Code: edeOther})
		}
		out = c.padded(q.reply)
		c.lock()
		err = c.write(out)
		c.unlock()
		c.seat.End()
		if err != nil {
			return
		}
	}
}

// answer answers a question in a goroutine of wg, or reports false if there are too many. Questions that have lost their place in
// the line count until their responses are written, so that clients that do not read take no more memory than others.
func (c *serverConn) answer(q query, wg *sync.WaitGroup) bool {
	s := c.s
	c.waiting <- struct{}{}
	if s.answering.Add(1) > int64(2*s.waiting.streams.max) {
		s.answering.Add(-1)
		<-c.waiting
		q.core.count.dropped.Add(1)
		return false
	}
	w := q.core.enter(s.ctx, &s.waiting.streams, c.lane)
	wg.Go(func() {
		defer func() {
			w.cancel()
			s.answering.Add(-1)
			<-c.waiting
			c.seat.End()
		}()
		r, _ := w.answer(s.ctx, q.Query)
		c.lock()
		defer c.unlock()
		// What waits to be written is the answer, which all have in common.
		p := responses.Get().(*response)
		defer responses.Put(p)
		p.b = c.padded(appendResult(append(p.b[:0], 0, 0), q.Query, r, wire.MaxMsg))
		_ = c.write(p.b)
	})
	return true
}

// readMessage reads a message, into b if it has room. A connection over which
// questions wait is not idle.
func (c *serverConn) readMessage(b []byte) ([]byte, error) {
	var head [2]byte
	start, closing := time.Now(), c.s.isClosing()
	idle := cmp.Or(c.s.IdleTimeout, defaultIdleTimeout)
	for {
		if err := c.setReadDeadline(idle); err != nil {
			return nil, err
		}
		n, err := io.ReadFull(c, head[:])
		if err == nil {
			break
		}
		if t := net.Error(nil); n > 0 || !errors.As(err, &t) || !t.Timeout() || len(c.waiting) == 0 || c.s.isClosing() {
			return nil, err
		}
	}
	n := int(binary.BigEndian.Uint16(head[:]))
	if cap(b) < n {
		b = make([]byte, n)
	}
	_, err := io.ReadFull(c, b[:n])
	if closing {
		c.received += len(head) + n
		c.readFor += time.Since(start)
	}
	return b[:n], err
}

// setReadDeadline sets how long the next message may take. It fails after leave, and after Shutdown when enough has been read
// that may have been received before.
func (c *serverConn) setReadDeadline(idle time.Duration) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.left || c.s.closed && (c.received >= drainBytes || c.readFor >= drainTime) {
		return ErrServerClosed
	}
	if c.s.closed {
		idle = receivedTime
	}
	return c.SetReadDeadline(time.Now().Add(idle))
}

// lock locks writing, and sets the deadline of a response that is to be written now: the
// time in which those before it are written counts, or a client that reads one now and
// then would have all of them kept.
func (c *serverConn) lock() {
	deadline := time.Now().Add(cmp.Or(c.s.WriteTimeout, defaultWriteTimeout))
	c.writing <- struct{}{}
	_ = c.SetWriteDeadline(deadline)
}

func (c *serverConn) unlock() { <-c.writing }

// padded pads a response that is sent over TLS, behind two bytes for its length.
func (c *serverConn) padded(b []byte) []byte {
	if c.pads {
		return wire.PadResponse(b, 2)
	}
	return b
}

// write writes a response, for whose length b has two bytes in front, after lock. If the
// client does not read it, the connection is closed.
func (c *serverConn) write(b []byte) error {
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	_, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close()
	} else {
		c.wrote = time.Now()
	}
	return err
}
