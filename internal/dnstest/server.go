// Package dnstest provides a DNS server for tests, whose responses and faults the test controls. It serves UDP, TCP,
// TLS and HTTPS on sockets that the test provides. The sockets may be real or belong to package netsim.
package dnstest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// Name is the server name in the certificate that [Certificate] returns.
const Name = "dns.example"

// A Handler returns the reply to a query. The server may call it concurrently.
type Handler func(q Query) Reply

// A Query is a DNS query that a [Server] has received, with the network over which it arrived.
type Query struct {
	*dns.Msg
	Net    string // network of the query: udp, tcp, tls or https
	Conn   int    // number of the TCP or TLS connection, from 1; 0 for udp and https
	Method string // HTTP method; "" except for https
}

// A Reply describes how the server reacts to a query. The zero Reply means that the server sends nothing.
type Reply struct {
	Msg    *dns.Msg      // the response; it is sent unchanged, so the Handler must set its ID; nil: none
	Raw    []byte        // bytes that are sent as a further message; nil: none
	Delay  time.Duration // time from the query to the response
	Close  bool          // close the connection after the response; for https, instead of the response
	Status int           // HTTP status; 0 means 200
	Header http.Header   // additional HTTP header fields
}

// A Server is a DNS server for tests. Its exported fields must be set before a Serve method is called. The caller must
// call Close at the end.
type Server struct {
	Handler Handler
	TLS     *tls.Config // configuration for tls and https; nil: the server configuration of Certificate
	HTTP1   bool        // do not offer HTTP/2
	Streams int         // largest number of concurrent HTTP/2 streams per connection; 0: the default of net/http

	// Queries counts the received queries. Queries that cannot be parsed count too.
	Queries atomic.Int64
	// Conns counts the accepted connections for tcp, tls and https.
	Conns atomic.Int64

	mu      sync.Mutex // guards the fields below
	closed  bool
	closers map[io.Closer]bool // sockets and connections that Close must close
	wg      sync.WaitGroup     // counts goroutines, and elements of closers
	quit    chan struct{}      // closed by Close; nil before the first Serve method is called
}

// add registers a socket or connection, so that Close closes it. If the server is already closed, add closes c and
// returns false. If add returns true, remove must be called later.
func (s *Server) add(c io.Closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return false
	}
	if s.closers == nil {
		s.closers, s.quit = make(map[io.Closer]bool), make(chan struct{})
	}
	s.closers[c] = true
	s.wg.Add(1)
	return true
}

// remove closes a socket or connection that add has registered, and removes it from the server.
func (s *Server) remove(c io.Closer) {
	_ = c.Close()
	s.mu.Lock()
	delete(s.closers, c)
	s.mu.Unlock()
	s.wg.Done()
}

// Close closes all sockets and connections, and waits until all goroutines of the server have ended.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		for c := range s.closers {
			_ = c.Close()
		}
		if s.quit != nil {
			close(s.quit)
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// CloseConns closes all accepted connections, as the restart of a server does. The server continues to accept new
// connections.
func (s *Server) CloseConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.closers {
		if c, ok := c.(net.Conn); ok {
			_ = c.Close()
		}
	}
}

// wait sleeps for d. It returns false at once when the server is closed.
func (s *Server) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.quit:
		return false
	}
}

// handle passes the query b, in wire format, to the Handler. It waits for the delay of the Reply and calls send for
// each of its messages. It returns the Reply, which is zero if b cannot be parsed.
func (s *Server) handle(b []byte, network string, conn int, method string, send func([]byte)) Reply {
	s.Queries.Add(1)
	m := new(dns.Msg)
	if m.Unpack(b) != nil {
		return Reply{}
	}
	r := s.Handler(Query{m, network, conn, method})
	if (r.Msg == nil && r.Raw == nil && !r.Close) || !s.wait(r.Delay) {
		return r
	}
	if r.Msg != nil {
		if b, err := r.Msg.Pack(); err == nil {
			send(b)
		}
	}
	if r.Raw != nil {
		send(r.Raw)
	}
	return r
}

// ServeUDP starts to serve DNS over UDP on pc, and returns at once. Close closes pc.
func (s *Server) ServeUDP(pc net.PacketConn) {
	if !s.add(pc) {
		return
	}
	go func() {
		defer s.remove(pc)
		buf := make([]byte, 1<<16)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			b := append([]byte(nil), buf[:n]...)
			s.wg.Go(func() {
				s.handle(b, "udp", 0, "", func(b []byte) { _, _ = pc.WriteTo(b, from) })
			})
		}
	}()
}

// ServeTCP starts to serve DNS over TCP on connections that l accepts, and returns at once. It sends each response as
// soon as it is ready, so responses may arrive in another order than the queries. Close closes l.
func (s *Server) ServeTCP(l net.Listener) { s.serveStream(l, "tcp") }

// ServeTLS starts to serve DNS over TLS on connections that l accepts, and returns at once. Close closes l.
func (s *Server) ServeTLS(l net.Listener) {
	c := s.tlsConfig()
	c.NextProtos = []string{"dot"}
	s.serveStream(tls.NewListener(l, c), "tls")
}

// tlsConfig returns a copy of the field TLS, or of the server configuration of [Certificate] if the field is nil.
func (s *Server) tlsConfig() *tls.Config {
	if s.TLS != nil {
		return s.TLS.Clone()
	}
	c, _ := Certificate()
	return c.Clone()
}

// serveStream accepts connections from l and serves DNS over TCP on each of them. The network is tcp or tls.
func (s *Server) serveStream(l net.Listener, network string) {
	if !s.add(l) {
		return
	}
	go func() {
		defer s.remove(l)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if !s.add(c) {
				return
			}
			n := int(s.Conns.Add(1))
			go func() {
				defer s.remove(c)
				s.serveConn(c, network, n)
			}()
		}
	}()
}

// serveConn serves DNS over TCP on connection c, which has the number n, until the client closes it.
func (s *Server) serveConn(c net.Conn, network string, n int) {
	var mu sync.Mutex
	for {
		var head [2]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint16(head[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		s.wg.Go(func() {
			r := s.handle(b, network, n, "", func(b []byte) {
				mu.Lock()
				defer mu.Unlock()
				_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
			})
			if r.Close {
				_ = c.Close()
			}
		})
	}
}

// ServeHTTPS starts to serve DNS over HTTPS at the path /dns-query on connections that l accepts, and returns at once.
// Close closes l.
func (s *Server) ServeHTTPS(l net.Listener) {
	if !s.add(l) {
		return
	}
	h := &http.Server{Handler: http.HandlerFunc(s.handleHTTP), TLSConfig: s.tlsConfig(), ErrorLog: log.New(io.Discard, "", 0)}
	h.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: s.Streams}
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	h.TLSConfig.NextProtos = []string{"h2", "http/1.1"}
	if s.HTTP1 {
		h.TLSConfig.NextProtos = h.TLSConfig.NextProtos[1:]
	}
	go func() {
		defer s.remove(l)
		_ = h.Serve(tls.NewListener(&trackingListener{l, s}, h.TLSConfig))
		_ = h.Close()
	}()
}

// A connKey is the context key under which the context of an HTTP request has its [net.Conn].
type connKey struct{}

// A trackingListener counts the connections that it accepts, and registers them so that [Server.Close] closes them.
type trackingListener struct {
	net.Listener
	s *Server
}

// Accept waits for the next connection and registers it. It returns an error if the server is closed.
func (l *trackingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if !l.s.add(c) {
		return nil, net.ErrClosed
	}
	l.s.Conns.Add(1)
	return &trackedConn{Conn: c, s: l.s}, nil
}

// A trackedConn value is a connection that removes itself from the server when it is closed.
type trackedConn struct {
	net.Conn
	s    *Server
	once sync.Once
}

// Close closes the connection and removes it from the server. A second call returns [net.ErrClosed].
func (c *trackedConn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() { err = nil; c.s.remove(c.Conn) })
	return err
}

// handleHTTP handles an HTTP request to the path /dns-query, which must contain a DNS query (RFC 8484).
func (s *Server) handleHTTP(w http.ResponseWriter, r *http.Request) {
	var b []byte
	var err error
	switch r.Method {
	case http.MethodGet:
		b, err = base64.RawURLEncoding.DecodeString(r.URL.Query().Get("dns"))
	case http.MethodPost:
		b, err = io.ReadAll(r.Body)
	}
	if err != nil || r.URL.Path != "/dns-query" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	var body []byte
	reply := s.handle(b, "https", 0, r.Method, func(b []byte) { body = append(body, b...) })
	if reply.Close {
		_ = r.Context().Value(connKey{}).(net.Conn).Close()
		return
	}
	if reply.Msg == nil && reply.Raw == nil && reply.Status == 0 {
		select { // send no response
		case <-r.Context().Done():
		case <-s.quit:
		}
		return
	}
	w.Header().Set("Content-Type", "application/dns-message")
	for k, v := range reply.Header {
		w.Header()[k] = v
	}
	if reply.Status != 0 {
		w.WriteHeader(reply.Status)
	}
	_, _ = w.Write(body)
}

// Certificate returns two TLS configurations: for a server with the name [Name], and for clients that trust the
// certificate of this server. The certificate is valid from 1990 to 2090. The caller must clone a configuration before
// changing it.
var Certificate = sync.OnceValues(func() (server, client *tls.Config) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: Name}, // kdig rejects a certificate without a common name
		NotBefore:    time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC),
		DNSNames:     []string{Name},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:         true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}},
		&tls.Config{RootCAs: pool}
})

// CertificatePEM returns the certificate of [Certificate] and its private key in PEM, for files of server programs.
func CertificatePEM() (cert, key []byte) {
	server, _ := Certificate()
	c := server.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		panic(err)
	}
	block := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	return block("CERTIFICATE", c.Certificate[0]), block("PRIVATE KEY", der)
}

// Answer returns a response to q with the given records in the answer section. A record has the form "[TTL] TYPE DATA"
// or "NAME [TTL] TYPE DATA". The default NAME is the name in the question, and the default TTL is 300 seconds. Answer
// panics if a record is invalid.
func Answer(q Query, records ...string) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q.Msg)
	m.RecursionAvailable = true
	for _, r := range records {
		rr, err := RR(q.Question[0].Name, r)
		if err != nil {
			panic(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	if opt := q.IsEdns0(); opt != nil {
		m.SetEdns0(1232, opt.Do())
	}
	return m
}

// RR parses a record s in the form that [Answer] describes. The argument name is the name of the record if s contains
// no name.
func RR(name, s string) (dns.RR, error) {
	f := strings.Fields(s)
	ttl := "300"
	if len(f) > 0 {
		if _, err := strconv.ParseUint(f[0], 10, 32); err == nil {
			ttl, f = f[0], f[1:]
		}
	}
	if len(f) < 2 {
		return nil, errors.New("dnstest: record too short: " + s)
	}
	if _, ok := dns.StringToType[f[0]]; !ok {
		name, f = f[0], f[1:]
		if _, err := strconv.ParseUint(f[0], 10, 32); err == nil {
			ttl, f = f[0], f[1:]
		}
	}
	return dns.NewRR(name + " " + ttl + " IN " + strings.Join(f, " "))
}

// Rcode returns a response to q with the given response code and no records.
func Rcode(q Query, rcode int) *dns.Msg {
	m := Answer(q)
	m.Rcode = rcode
	return m
}

// Negative returns a negative response to q with the given response code. Its authority section contains an SOA record
// with the given TTL and MINIMUM, both in seconds. Together they limit how long the response may be cached.
func Negative(q Query, rcode int, ttl, minimum uint32) *dns.Msg {
	m := Rcode(q, rcode)
	m.Ns = []dns.RR{&dns.SOA{
		Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
		Ns:  "ns.example.", Mbox: "admin.example.", Serial: 1, Refresh: 1, Retry: 1, Expire: 1, Minttl: minimum,
	}}
	return m
}

// EDE adds an Extended DNS Error (RFC 8914) with the given code to m, and returns m. If m has no OPT record, EDE does
// not change m.
func EDE(m *dns.Msg, code uint16) *dns.Msg {
	if opt := m.IsEdns0(); opt != nil {
		opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: code})
	}
	return m
}

// Fixed returns a Handler that responds after the given delay: to A queries with the address ip, and to other queries
// with NODATA.
func Fixed(ip netip.Addr, delay time.Duration) Handler {
	return func(q Query) Reply {
		if q.Question[0].Qtype == dns.TypeA {
			return Reply{Msg: Answer(q, "A "+ip.String()), Delay: delay}
		}
		return Reply{Msg: Negative(q, dns.RcodeSuccess, 300, 300), Delay: delay}
	}
}
