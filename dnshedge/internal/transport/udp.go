package transport

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/socketerror"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

func init() {
	registerScheme(Scheme{Name: "udp", RFC: 1035, Port: "53"}, func(c Config) sender {
		return &udpTransport{Config: c, tcp: newStreamTransport(c, nil), address: c.fixedAddress()}
	})
}

const (
	// MaxDatagrams is the number of times that one question is sent to one server over UDP before it is sent over TCP (RFC
	// 9520 §3.1). After TCP it is sent over UDP again, because not every server supports TCP.
	MaxDatagrams = 3

	// MaxDatagram is the size in bytes of the receive buffer for a UDP message. It is larger than the size in the query's
	// OPT record, because some servers send more than that.
	MaxDatagram = 4096

	// MaxWrongMessages is the number of messages that fit no query after which a UDP socket is closed.
	MaxWrongMessages = 3

	maxOwnSockets = 128 // number of queries that have a socket of their own; further queries share sockets

	// maxWrongUnrepeatable replaces MaxWrongMessages for a message that must not be sent twice, because its response
	// cannot be fetched over TCP instead.
	maxWrongUnrepeatable = 1024
)

var (
	// errTruncated means that the question must be sent over TCP, because the UDP response is truncated or cannot be
	// parsed.
	errTruncated = errors.New("dnshedge: answer has to be asked for over TCP")
	// errUnverified means that the question must be sent over TCP, because the UDP response lacks the letter case or the
	// cookie of the query. Many servers never copy these.
	errUnverified = errors.New("dnshedge: answer without the query's spelling or cookie")
	// ErrSpoofed means that the question must be sent over TCP, because too many messages with a wrong ID or question
	// arrived.
	ErrSpoofed = errors.New("dnshedge: too many messages that answer no query")
)

// A truncatedError means that the UDP response was truncated, and that the server has then refused the TCP connection
// with err. It does not unwrap to err, because the server works: it has responded over UDP.
type truncatedError struct{ err error }

func (e *truncatedError) Error() string { return errTruncated.Error() + ": " + e.err.Error() }

// IsTruncationError reports whether err means that a server works, but cannot deliver its response. The response over
// UDP was truncated, and the server refuses the TCP connection for the full one.
func IsTruncationError(err error) bool {
	var cut *truncatedError
	return errors.As(err, &cut)
}

// A udpTransport sends queries over UDP, each from a socket of its own with a random port. If 128 of these sockets
// (maxOwnSockets) are open, further queries share sockets. If the response is truncated, it sends the question over
// TCP.
type udpTransport struct {
	Config
	tcp           *streamTransport // sends questions over TCP; also runs the goroutines of the udpTransport
	address       *net.UDPAddr     // server's address; nil: openSocket uses the Dialer
	ownSockets    atomic.Int64     // number of open sockets with a single query
	sharedSockets socketPool       // sockets with several queries
	guard         spoofGuard       // protects queries while spoofed messages arrive
}

var _ sender = (*udpTransport)(nil)

// Ready implements Transport. It returns true, because a query over UDP needs no handshake.
func (u *udpTransport) Ready() bool { return true }

// Close implements Transport. It closes the streamTransport for questions over TCP, the shared sockets, and the sockets
// of abandoned queries. Any other query with a socket of its own ends when its response arrives or its own context
// ends.
func (u *udpTransport) Close() { u.tcp.Close() }

// fixedAddress returns the server's address if sockets can be opened without the Dialer. That is the case if the server
// has a single IP address, and the Dialer is a net.Dialer whose LocalAddr, Control and ControlContext are nil.
// Otherwise it returns nil.
func (c *Config) fixedAddress() *net.UDPAddr {
	d, ok := c.Dialer.(*net.Dialer)
	if !ok || d.LocalAddr != nil || d.Control != nil || d.ControlContext != nil || len(c.Addrs) > 1 {
		return nil
	}
	at, err := netip.ParseAddrPort(c.Addr)
	if len(c.Addrs) == 1 {
		_, port, _ := net.SplitHostPort(c.Addr)
		at, err = netip.ParseAddrPort(net.JoinHostPort(c.Addrs[0].String(), port))
	}
	if err != nil {
		return nil
	}
	return net.UDPAddrFromAddrPort(at)
}

// openSocket returns a new UDP socket that is connected to the server. The caller must close it.
func (u *udpTransport) openSocket(ctx context.Context) (net.Conn, error) {
	if u.address == nil {
		return u.DialServer(ctx, "udp")
	}
	c, err := net.DialUDP("udp", nil, u.address) // needs half of the Dialer's allocations
	if err != nil {
		return nil, err // not c, which would be an interface with a nil pointer
	}
	return c, nil
}

// datagrams is a pool of message buffers of MaxDatagram bytes.
var datagrams = sync.Pool{New: func() any { return new([MaxDatagram]byte) }}

// Exchange implements Transport. It returns the response to q, and the time that handshakes took. n is the number of
// earlier queries with the same question to this server. TCP is used after every three queries over UDP, and after an
// unusable UDP response.
func (u *udpTransport) Exchange(ctx context.Context, q *wire.Query, n int, _ *QueryPath) (*wire.Answer, time.Duration, error) {
	if n%(MaxDatagrams+1) == MaxDatagrams {
		// The QueryPath stays empty, because responses over TCP do not show whether UDP messages are lost.
		a, setup, err := u.tcp.Exchange(ctx, q, n, new(QueryPath))
		if !socketerror.IsAny(err, syscall.ECONNREFUSED) {
			return a, setup, err
		} // the server has no TCP: send the query over UDP
	}
	a, err := u.exchangeDatagram(ctx, q, false)
	if err != errTruncated && err != ErrSpoofed && err != errUnverified {
		return a, 0, err
	}
	why, over := err, ctx
	if why == errUnverified {
		var cancel context.CancelFunc
		over, cancel = context.WithTimeout(ctx, u.Owner.StallTimeout())
		defer cancel()
	}
	a, setup, err := u.tcp.Exchange(over, q, n, new(QueryPath))
	if why == errTruncated && socketerror.IsAny(err, syscall.ECONNREFUSED) {
		return nil, 0, &truncatedError{err}
	}
	if err == nil || why == errTruncated || ctx.Err() != nil {
		return a, setup, err
	}
	// TCP has failed, so the query is sent over UDP again, from another port.
	if a, err = u.exchangeDatagram(ctx, q, why == errUnverified); err == errTruncated || err == errUnverified {
		err = ErrSpoofed
	}
	return a, 0, err
}

// SendOnce implements sender. It sends q, which the server must not get twice, as one UDP message, and returns the
// response a, even if truncated. setup is always 0. With an error, written is true if the server may have
// received q.
func (u *udpTransport) SendOnce(ctx context.Context, q *wire.Query, _ *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error) {
	d := &udpQuery{udpTransport: u, q: q}
	u.ownSockets.Add(1)
	a, err = d.exchangeOverOwnSocket(ctx)
	// These errors mean that the only message of this socket was not delivered, for example because the port is closed.
	return a, 0, d.written && !socketerror.IsAny(err, syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH), err
}

// exchangeDatagram sends q as one UDP message and returns the response. With isExclusive, q has a socket of its own,
// and the first message that is not the response ends the wait. The error is errTruncated, errUnverified or ErrSpoofed
// if TCP must be used.
func (u *udpTransport) exchangeDatagram(ctx context.Context, q *wire.Query, isExclusive bool) (*wire.Answer, error) {
	d := &udpQuery{udpTransport: u, q: q, isExclusive: isExclusive}
	if !isExclusive { // isExclusive: the server has not copied the letter case or the cookie
		d.q, d.cookie = u.guard.protectQuery(q)
	}
	if u.ownSockets.Add(1) > maxOwnSockets {
		u.ownSockets.Add(-1)
		if isExclusive {
			return nil, errTruncated // q was not sent
		}
		return u.sharedSockets.exchangeShared(ctx, d)
	}
	return d.exchangeOverOwnSocket(ctx)
}

// exchangeOverOwnSocket sends the query from a new socket that no other query uses, and returns the response. If ctx
// ends first, it abandons the query and returns the cause of ctx. The caller must have incremented
// udpTransport.ownSockets, which is decremented when the socket is closed or cannot be opened.
func (d *udpQuery) exchangeOverOwnSocket(ctx context.Context) (*wire.Answer, error) {
	d.id = wire.RandomID()
	defer func() {
		if d.conn == nil { // the Dialer has failed or called runtime.Goexit
			d.ownSockets.Add(-1)
		}
	}()
	conn, err := d.openSocket(ctx)
	if err != nil {
		return nil, err
	}
	d.conn = conn
	d.sent = time.Now()
	if err := d.writeQuery(conn); err != nil {
		d.closeSocket()
		return nil, err
	}
	d.written = true
	deadline, _ := ctx.Deadline()
	_ = d.conn.SetReadDeadline(deadline)
	interruptPending := false
	var a *wire.Answer
	s, ok := ctx.(*EmbeddedContext)
	if _, own := conn.(*net.UDPConn); ok && own { // other net.Conns may use ctx, which is locked while it calls d
		s.addListener(d)
		a, err = d.readResponse()
		s.removeListener(d)
	} else {
		stop := context.AfterFunc(ctx, func() { d.endContext(nil, nil) })
		a, err = d.readResponse()
		interruptPending = !stop()
	}
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		// The socket's deadline may pass a moment before the context's. Without this wait,
		// the caller would take the timeout for a failure of the server and try another one.
		<-ctx.Done()
		d.abandonQuery(interruptPending)
		return nil, contextCause(ctx)
	}
	d.closeSocket()
	return a, err
}

// A udpQuery is a query that was sent over UDP and waits for its response. It has a socket of its own, or uses a
// sharedSocket.
type udpQuery struct {
	*udpTransport
	q           *wire.Query // the question that was sent
	cookie      []byte      // DNS cookie in the query; nil: none
	id          uint16      // ID of the message
	isExclusive bool        // the first message that does not fit ends the wait; see exchangeDatagram
	sent        time.Time   // time at which the query was about to be written

	written bool // the query was written to a socket of its own

	conn   net.Conn    // the query's own socket; nil: the query uses a sharedSocket
	closed atomic.Bool // conn is closed

	done chan udpResult // receives the outcome of a query on a sharedSocket; capacity 1
}

// A udpResult is the outcome of a udpQuery on a sharedSocket: a response or an error. Both are nil if the query has
// ended without either, after its caller stopped waiting.
type udpResult struct {
	a   *wire.Answer
	err error
}

// closeSocket closes the query's own socket. Further calls have no effect.
func (d *udpQuery) closeSocket() {
	if d.closed.CompareAndSwap(false, true) {
		_ = d.conn.Close()
		d.ownSockets.Add(-1)
	}
}

// endContext implements endListener. It is called when the query's context ends. It interrupts a read of the query's
// own socket, which returns a timeout error. It does not use its parameters, the error and the cause of the context.
func (d *udpQuery) endContext(error, error) { _ = d.conn.SetReadDeadline(time.Unix(1, 0)) }

// writeQuery writes the query to the socket c, and reports the query to the Owner.
func (d *udpQuery) writeQuery(c net.Conn) error {
	d.Owner.RecordQuery()
	return SendDatagram(c, d.q, d.id, wire.PackOptions{Size: d.Size, Cookie: d.cookie})
}

// SendDatagram writes the query q as one UDP message to c, a socket that is connected to the server. id is the ID of
// the message. options are the EDNS settings that depend on the transport: the maximum size of the response, and the
// cookie.
func SendDatagram(c net.Conn, q *wire.Query, id uint16, options wire.PackOptions) error {
	out := datagrams.Get().(*[MaxDatagram]byte)
	defer datagrams.Put(out)
	_, err := c.Write(q.Append(out[:0], id, options))
	return err
}

// parseResponse parses the received message b. isResponse is true if b is the response to the query, usable or not. If
// it is false, err is the reason. The errors errTruncated and errUnverified mean that the question must be sent over
// TCP.
func (d *udpQuery) parseResponse(b []byte) (a *wire.Answer, isResponse bool, err error) {
	switch err := d.q.CheckResponse(b, d.id); {
	case err == wire.ErrSpelling:
		return nil, true, errUnverified // the server has changed the letter case, or the message is forged
	case err != nil:
		return nil, false, err
	case !d.q.IsStandard(): // must not be sent again over TCP
		a, err = wire.ParseAnswer(b, d.q)
		return a, true, err
	}
	if a, err = wire.ParseDatagram(b, d.q); err != nil {
		d.Owner.RecordIgnored(err)
	}
	switch {
	case a == nil:
		return nil, true, errTruncated
	case d.cookie == nil:
		return a, true, nil
	}
	err = d.guard.verifyCookie(d.cookie, a)
	return a, err != errCookie, err
}

// readResponse reads the query's own socket until the response arrives, and returns the response. It ignores messages
// that do not fit the query, and returns ErrSpoofed after too many of them.
func (d *udpQuery) readResponse() (a *wire.Answer, err error) {
	most := MaxWrongMessages
	switch {
	case !d.q.IsStandard():
		most = maxWrongUnrepeatable
	case d.isExclusive:
		most = 1
	}
	readErr := ReceiveResponse(d.conn, most, func(b []byte) bool {
		var isResponse bool
		if a, isResponse, err = d.parseResponse(b); isResponse {
			d.Owner.RecordAnswer(time.Since(d.sent), 0)
		} else {
			d.reportSpoofed(err) // the message is forged or damaged, and the real response may follow
		}
		return isResponse
	}, func(err error) bool {
		tooLong := errors.Is(err, syscall.EMSGSIZE)
		if tooLong {
			d.Owner.RecordIgnored(err)
		}
		return tooLong
	})
	if readErr != nil {
		return nil, readErr
	}
	return a, err
}

// ReceiveResponse reads UDP messages from c until isResponse returns true for a message, and then returns nil. After
// maxWrong other messages, it returns ErrSpoofed. If reading fails, it reads again if canContinue returns true for the
// error, and returns the error otherwise.
func ReceiveResponse(c net.Conn, maxWrong int, isResponse func(b []byte) bool, canContinue func(err error) bool) error {
	buf := datagrams.Get().(*[MaxDatagram]byte)
	defer datagrams.Put(buf)
	for wrong := 0; wrong < maxWrong; {
		n, err := receiveDatagram(c, buf[:])
		switch {
		case err == nil && isResponse(buf[:n]):
			return nil
		case err == nil:
			wrong++
		case !canContinue(err):
			return err
		}
	}
	return ErrSpoofed
}

// wsaEMSGSIZE is the error number that Windows returns for a UDP message that is longer than the buffer.
const wsaEMSGSIZE = syscall.Errno(10040)

// receiveDatagram reads one UDP message from c into b and returns its length. If the message is longer than b, the rest
// of the message is lost. On Windows, it hides the error that this causes.
func receiveDatagram(c net.Conn, b []byte) (int, error) {
	n, err := c.Read(b)
	if errors.Is(err, wsaEMSGSIZE) {
		err = nil
	}
	return n, err
}

// reportSpoofed reports to the Owner of the transport a received message that is not the response to a waiting query.
// err says why it is not. reportSpoofed also activates the spoofGuard.
func (u *udpTransport) reportSpoofed(err error) {
	u.Owner.RecordIgnored(err)
	u.guard.recordWrongMessage()
}

// abandonQuery ends a query whose caller no longer waits for the response. If the Owner permits it, the socket waits in
// the background for a late response. interruptPending must be true if a running call of endContext may still interrupt
// a read of the socket.
func (d *udpQuery) abandonQuery(interruptPending bool) {
	left := d.Owner.AbandonedQueryLifetime() - time.Since(d.sent)
	if left <= 0 || !d.Owner.TryBeginAbandonedQuery() {
		d.closeSocket()
		return
	}
	// While the socket is open, a late response cannot reach another socket with the same port.
	ok := d.tcp.spawnGoroutine(func() {
		defer d.Owner.EndAbandonedQuery()
		defer d.closeSocket()
		stop := context.AfterFunc(d.tcp.ctx, d.closeSocket)
		defer stop()
		end := time.Now().Add(left)
		for {
			_ = d.conn.SetReadDeadline(end)
			_, err := d.readResponse()
			if interruptPending && errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
				continue
			}
			return
		}
	})
	if !ok {
		d.Owner.EndAbandonedQuery()
		d.closeSocket()
	}
}

const (
	protectionTime = 10 * time.Minute // how long queries are protected after a message that fits no query

	clientCookie = 8  // length in bytes of a client cookie (RFC 7873 §4)
	shortCookie  = 16 // least length in bytes of a client and a server cookie together
	longCookie   = 40 // maximum length in bytes of a client and a server cookie together
)

// errCookie is the error of a message whose client cookie differs from the cookie of the query.
var errCookie = errors.New("dnshedge: message without our cookie")

// A spoofGuard makes queries to one server harder to guess while an attacker sends spoofed messages. It randomizes the
// letter case of the name, and adds a cookie (RFC 7873) to queries with EDNS. The zero value is inactive. It is safe
// for concurrent use.
type spoofGuard struct {
	activeUntil atomic.Int64 // end of the protection, in Unix nanoseconds; 0: never active

	mu     sync.Mutex // guards cookie
	cookie []byte     // client cookie, followed by the server cookie if known; never modified in place
}

// recordWrongMessage activates the guard for the next ten minutes (protectionTime). If the guard was inactive, it also
// creates a client cookie. It must be called for each received message that matches no waiting query, because that
// message may be spoofed.
func (g *spoofGuard) recordWrongMessage() {
	now := time.Now()
	if g.activeUntil.Swap(now.Add(protectionTime).UnixNano()) > now.UnixNano() {
		return
	}
	c := make([]byte, clientCookie)
	_, _ = rand.Read(c) // never fails
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cookie = c
}

// protectQuery returns the query to send in place of q, with random letter case, and the cookie to add to it, or nil.
// It returns q and nil while the guard is inactive, and for an opcode other than QUERY.
func (g *spoofGuard) protectQuery(q *wire.Query) (*wire.Query, []byte) {
	until := g.activeUntil.Load()
	if until == 0 || time.Now().UnixNano() >= until || !q.IsStandard() {
		return q, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if q.OmitsEDNS() {
		return q.WithRandomCase(), nil // most servers copy the letter case to the response
	}
	return q.WithRandomCase(), g.cookie
}

// verifyCookie checks the cookie of the response a, and stores a new server cookie. sent is the cookie of the query.
// The error is errCookie for a wrong cookie, errUnverified if an expected cookie is missing, and errTruncated for the
// response code BADCOOKIE.
func (g *spoofGuard) verifyCookie(sent []byte, a *wire.Answer) error {
	got := a.Cookie
	if len(got) == 0 {
		if len(sent) > clientCookie || a.Rcode() == dns.RcodeFormatError {
			return errUnverified
		}
		return nil
	}
	if len(got) < clientCookie || !bytes.Equal(got[:clientCookie], sent[:clientCookie]) {
		return errCookie // RFC 7873 §5.3
	}
	if shortCookie <= len(got) && len(got) <= longCookie {
		g.mu.Lock()
		if bytes.Equal(g.cookie[:clientCookie], got[:clientCookie]) {
			g.cookie = got
		}
		g.mu.Unlock()
	}
	if a.Extended == dns.RcodeBadCookie {
		return errTruncated // the next query has the server's new cookie
	}
	return nil
}
