// Package forward is a forwarding DNS server. It answers clients over UDP, TCP, TLS (RFC 7858) and HTTPS (RFC 8484)
// with the answers of a [dnshedge.Client].
//
//	client := &dnshedge.Client{
//		Cache:        new(dnshedge.Cache),
//		SpecialUse:   dnshedge.SpecialUseForwarder,
//		RebindFilter: new(dnshedge.RebindFilter), // removes private addresses from answers
//	}
//	defer client.Close()
//	f, err := forward.New(forward.Config{Client: client, Listen: []string{"127.0.0.1:53", "[::1]:53"}})
//	...
//	err = f.Serve(ctx) // until ctx ends
//
// The queries are answered by a [dnshedge.Server]. A Forwarder adds listeners with several UDP sockets for each
// address, DNS over HTTPS, an access list, limits for each client, and a cache that outlives a restart. The module
// dnshedge/quic has Listeners for DNS over QUIC and HTTP/3.
//
// # Clients
//
// A client is an IPv4 address, an IPv6 /64 network, or a link-local address. The access list and the limits apply to
// clients as follows:
//
//   - A client that the access list does not contain gets REFUSED over UDP. Its connections are closed at once.
//   - A question above the rate limit is dropped over UDP. Over TCP and TLS it waits for up to a second; if it would
//     wait for longer, its connection is closed. Over HTTPS the response has status 429.
//   - A request over HTTPS gets status 503 while 2048 requests of its client, or 8192 requests in all, are unanswered.
//   - A client that does not read its responses, or sends nothing, is disconnected: see dnshedge.Server for TCP and TLS.
//     Over HTTPS the limits are 10 s for a TLS handshake or the header of a request, 20 s for a request and its
//     response, and two minutes for an idle connection.
package forward

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/internal/socketerror"
	"github.com/gohedge/hedge/internal/connlimit"
)

// Config configures a Forwarder. Client must be set, and at least one of Listen, ListenTLS, ListenHTTPS and Listeners
// must have an element. The values in it must not be changed after New.
type Config struct {
	// Client answers the queries. Its Validate must return nil. The Forwarder does not close it.
	Client *dnshedge.Client

	// Listen lists addresses for UDP and TCP, such as "127.0.0.1:53". Each must have a port. With port 0, the system
	// chooses the port, which is the same for UDP and TCP.
	//
	// An address without a host stands for all addresses of the machine. Use that on Linux only: elsewhere a response
	// over UDP may be sent from another address than the address that was asked.
	Listen []string

	// ListenTLS lists addresses for DNS over TLS. It needs a TLSConfig.
	ListenTLS []string

	// ListenHTTPS lists addresses for DNS over HTTPS. The path is /dns-query, the methods are GET, HEAD and POST, and
	// the protocols are HTTP/1.1 and HTTP/2. It needs a TLSConfig.
	ListenHTTPS []string

	// Listeners answer clients over protocols of other modules, such as DNS over QUIC. Serve shuts them down. If New
	// fails, the caller must shut them down.
	Listeners []Listener

	// TLSConfig contains the certificate for ListenTLS and ListenHTTPS: see CertificateFiles. The application protocols in
	// it are not used for ListenTLS. Nil: there is no certificate.
	TLSConfig *tls.Config

	// Allow lists the clients that may ask. Nil: LocalNetworks. An empty list that is not nil: no client.
	Allow AccessList

	// Limits limits what clients may use. Nil: DefaultLimits.
	Limits *Limits

	// StateFile is the name of a file that keeps the cache and the measurements of servers over restarts. New imports
	// it if it exists, and Serve replaces it when it ends. Its folder must exist and be writable. Empty: nothing is
	// kept.
	//
	// If the Exchanger of Client is a recursor.Resolver, a second file keeps the Resolver's data. Its name is StateFile
	// with the ending ".servers". If the Exchanger is a dnssec.Validator that asks another Client, the second file has
	// the ending ".upstreams", and keeps that Client's data. A file that cannot be imported is ignored, and logged to
	// slog.Default.
	StateFile string

	// ListenMetrics is the address of an HTTP server whose handler is Metrics, for example a MetricsHandler.
	// Allow and Limits do not apply to it. It ends after the last query is answered. Empty: there is none.
	ListenMetrics string

	// Metrics must be set if ListenMetrics is set, and only then.
	Metrics http.Handler
}

// Limits limits the questions and connections of the clients of a Forwarder, and sets the number of its UDP sockets. No
// field may be negative. Zero allows none, except in QuestionsPerSecond, where it means no limit.
type Limits struct {
	// QuestionsPerSecond limits the questions of one client. A client may ask as many at once as in a second, and at
	// least one. Zero: no limit.
	QuestionsPerSecond float64

	// Conns limits the connections of all clients. It applies separately to TCP and TLS together, to HTTPS, and to all
	// Listeners together. When one more connection arrives, the client with the most connections loses one: see
	// dnshedge.Server.MaxConns. Zero: no connection is accepted.
	Conns int

	// ConnsPerClient limits the connections of one client to each address and each Listener of the Forwarder. One more
	// connection is closed at once. Zero: no connection is accepted.
	ConnsPerClient int

	// UDPSockets is the number of UDP sockets of each address, among which the kernel distributes clients (SO_REUSEPORT).
	// It is at most 1 on Windows and Solaris, where this does not exist. Zero: there is no answer over UDP.
	UDPSockets int
}

// DefaultLimits returns the limits of a Config without Limits: no limit of questions, 1000 connections, 100 of one
// client, and one UDP socket. Where the kernel distributes clients evenly (Linux, FreeBSD, DragonFly), there are as
// many UDP sockets as processors in use (GOMAXPROCS).
func DefaultLimits() Limits {
	l := Limits{Conns: 1000, ConnsPerClient: 100, UDPSockets: 1}
	if slices.Contains([]string{"linux", "freebsd", "dragonfly"}, runtime.GOOS) {
		l.UDPSockets = runtime.GOMAXPROCS(0)
	}
	return l
}

// validate returns an error that names the first field with an invalid value, or nil.
func (c *Config) validate() error {
	t, l := c.TLSConfig, c.Limits
	switch {
	case c.Client == nil:
		return errors.New("forward: Config.Client is nil; want a Client")
	case len(c.Listen)+len(c.ListenTLS)+len(c.ListenHTTPS)+len(c.Listeners) == 0:
		return errors.New("forward: Config has no address; want one in Listen, ListenTLS or ListenHTTPS, or one of Listeners")
	case slices.Contains(c.Listeners, nil):
		return errors.New("forward: Config.Listeners contains nil")
	case len(c.ListenTLS)+len(c.ListenHTTPS) > 0 && (t == nil || len(t.Certificates) == 0 && t.GetCertificate == nil && t.GetConfigForClient == nil):
		return errors.New("forward: Config.TLSConfig has no certificate; ListenTLS and ListenHTTPS need one")
	case (c.ListenMetrics == "") != (c.Metrics == nil):
		return errors.New("forward: Config has one of ListenMetrics and Metrics; want both or none")
	case !(l.QuestionsPerSecond >= 0) || min(l.Conns, l.ConnsPerClient, l.UDPSockets) < 0:
		return fmt.Errorf("forward: Config.Limits is %+v; want 0 or more in each field", *l)
	}
	if err := c.Client.Validate(); err != nil {
		return fmt.Errorf("forward: Config.Client: %w", err)
	}
	if err := c.Allow.validate(); err != nil {
		return err
	}
	return c.validateListenAddresses()
}

// validateListenAddresses returns an error that names the first address without a port, or nil. For a missing port,
// package net would choose one; for an empty address, it would listen on all addresses of the machine.
func (c *Config) validateListenAddresses() error {
	for _, list := range []struct {
		field     string
		addresses []string
	}{
		{"Listen", c.Listen}, {"ListenTLS", c.ListenTLS}, {"ListenHTTPS", c.ListenHTTPS}, {"ListenMetrics", []string{c.ListenMetrics}},
	} {
		for _, at := range list.addresses {
			_, port, err := net.SplitHostPort(at)
			if at == "" && list.field != "ListenMetrics" || err == nil && port == "" {
				return fmt.Errorf("forward: Config.%s has %q; want a port, such as 53, or 0 for one that the system chooses", list.field, at)
			}
		}
	}
	return nil
}

// A Forwarder is a forwarding DNS server. It answers the queries of clients over UDP, TCP, TLS and HTTPS with the
// answers of a dnshedge.Client. It must be made by New.
type Forwarder struct {
	conf         Config
	access       accessControl
	server       *dnshedge.Server      // for UDP, TCP and TLS
	webServer    *dnshedge.Server      // for the queries over HTTPS that a dohHandler has admitted
	https        []*httpServer         // servers for HTTPS
	metrics      *httpServer           // nil: there is none
	services     []service             // started by Serve
	closing      context.Context       // ends when the shutdown begins
	startClosing context.CancelFunc    // ends closing
	state        map[string]stateStore // to save, by the name of the file
}

// A service is an open listener or UDP socket of a Forwarder. Its function serve answers the queries of clients until
// the shutdown. The Closer, which closes it after a failed New, is nil for a Listener of another module.
type service struct {
	io.Closer
	serve func() error
}

// New validates a Config, imports its StateFile and opens all listeners. If it returns an error, no listener is open.
//
// Queries are answered when Serve is called. Serve must be called exactly once, also to close the listeners.
func New(conf Config) (*Forwarder, error) {
	defaults := DefaultLimits()
	limits := *cmp.Or(conf.Limits, &defaults)
	if conf.Limits = &limits; conf.Allow == nil {
		conf.Allow = LocalNetworks()
	}
	if err := conf.validate(); err != nil {
		return nil, err
	}
	if limits.Conns == 0 {
		limits.ConnsPerClient = 0 // a dnshedge.Server takes 0 for its default
	}
	f := &Forwarder{conf: conf, access: accessControl{allowed: conf.Allow, perSecond: limits.QuestionsPerSecond}}
	f.closing, f.startClosing = context.WithCancel(context.Background())
	f.server = &dnshedge.Server{Client: conf.Client, Admit: f.access.admitQuery, MaxConns: limits.Conns}
	f.webServer = &dnshedge.Server{Client: conf.Client}
	if conf.StateFile != "" {
		f.state = findForwarderParts(conf.Client).stateStores(conf.StateFile)
	}
	for path, s := range f.state {
		if err := checkWritable(path); err != nil {
			return nil, fmt.Errorf("forward: Config.StateFile cannot be written: %w", err)
		}
		if err := loadState(s, path); err != nil {
			return nil, fmt.Errorf("forward: read state: %w", err)
		}
	}
	if err := f.openListeners(); err != nil {
		for _, s := range f.services {
			_ = s.Close()
		}
		return nil, err
	}
	f.addListeners()
	return f, nil
}

// openListeners opens all listeners and UDP sockets of the configuration, and adds them to f.services, so that
// Forwarder.Serve starts them. After an error, f.services has the listeners that were opened before.
func (f *Forwarder) openListeners() error {
	for _, at := range f.conf.Listen {
		if err := f.listenPlain(at); err != nil {
			return err
		}
	}
	for _, at := range f.conf.ListenTLS {
		config := f.conf.TLSConfig.Clone()
		config.NextProtos = []string{"dot"}
		err := f.listenTCP(at, nil, func(l net.Listener) error { return f.server.Serve(tls.NewListener(l, config)) })
		if err != nil {
			return err
		}
	}
	slots, web := connlimit.New(f.conf.Limits.Conns), f.newDoHHandler()
	for _, at := range f.conf.ListenHTTPS {
		s := newHTTPServer(web)
		s.stateChanged, s.ConnContext = trackConnUse, withLimitedConn
		s.TLSConfig = f.conf.TLSConfig.Clone()
		f.https = append(f.https, s)
		if err := f.listenTCP(at, slots, func(l net.Listener) error { return s.ServeTLS(l, "", "") }); err != nil {
			return err
		}
	}
	if f.conf.Metrics == nil {
		return nil
	}
	l, err := net.Listen("tcp", f.conf.ListenMetrics)
	if err != nil {
		return fmt.Errorf("forward: listen on %s: %w", f.conf.ListenMetrics, err)
	}
	f.metrics = newHTTPServer(f.conf.Metrics)
	f.services = append(f.services, service{l, func() error { return f.metrics.Serve(l) }})
	return nil
}

// maxPortTries limits how many ports listenPlain tries if the system chooses the port.
const maxPortTries = 8

// listenPlain opens the UDP sockets and the TCP listener at address, and adds them to f.services. With port 0, the
// system chooses one port for all of them. After an error, f.services may contain listeners, which the caller must
// close.
func (f *Forwarder) listenPlain(address string) error {
	for try := 1; ; try++ {
		earlier := len(f.services)
		sockets, bound, err := listenPackets(address, f.conf.Limits.UDPSockets)
		for _, pc := range sockets {
			f.services = append(f.services, service{pc, func() error { return f.server.ServePacket(pc) }})
		}
		if err != nil {
			return fmt.Errorf("forward: listen on udp %s: %w", address, err)
		}
		if err = f.listenTCP(bound, nil, f.server.Serve); bound == address || !socketerror.IsAny(err, syscall.EADDRINUSE) || try == maxPortTries {
			return err
		}
		// the port that the system has chosen for UDP is in use for TCP
		for _, s := range f.services[earlier:] {
			_ = s.Close()
		}
		f.services = f.services[:earlier]
	}
}

// newDoHHandler returns a handler for DNS over HTTPS. Each handler has its own limit of open requests, so that requests
// to one do not count for another.
func (f *Forwarder) newDoHHandler() *dohHandler {
	requests := &clientLimiter{maxPerClient: maxRequestsOfClient, maxTotal: maxRequests, byClient: make(map[netip.Addr]int)}
	return &dohHandler{server: f.webServer, access: &f.access, requests: requests}
}

// addListeners adds Config.Listeners to f.services, so that Forwarder.Serve starts them. Each gets a QueryHandler that
// counts the connections of each client to this Listener.
func (f *Forwarder) addListeners() {
	all := QueryHandler{access: &f.access, server: f.server, closing: f.closing, slots: connlimit.New(f.conf.Limits.Conns), web: f.newDoHHandler()}
	for _, l := range f.conf.Listeners {
		h := all
		h.conns = &clientLimiter{maxPerClient: f.conf.Limits.ConnsPerClient, byClient: make(map[netip.Addr]int)}
		f.services = append(f.services, service{nil, func() error { return l.Serve(&h) }})
	}
}

// listenTCP opens a TCP listener at address, such as "127.0.0.1:53", which accepts only connections of allowed clients.
// Forwarder.Serve later passes the listener to serve. slots limits the connections of all clients together; it is nil
// if serve limits them itself.
func (f *Forwarder) listenTCP(address string, slots *connlimit.Limiter, serve func(net.Listener) error) error {
	var config net.ListenConfig
	if slots == nil {
		config.KeepAlive = -1 // a dnshedge.Server closes idle connections before the first probe
	}
	inner, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return fmt.Errorf("forward: listen on tcp %s: %w", address, err)
	}
	l := &limitedListener{
		Listener: inner, access: &f.access, slots: slots, closing: make(chan struct{}),
		conns: clientLimiter{maxPerClient: f.conf.Limits.ConnsPerClient, byClient: make(map[netip.Addr]int)},
	}
	f.services = append(f.services, service{l, func() error { return serve(l) }})
	return nil
}

// shutdownTime is how long the shutdown may take, in addition to the Timeout of a question.
const shutdownTime = 2 * time.Second

// Serve answers queries until ctx ends or a listener fails. It then closes the listeners, answers the queries that were
// received before, and writes StateFile. Queries without an answer after the Client's Timeout plus 2 s are dropped.
// Serve must be called exactly once.
//
// The result is nil if no listener failed, all queries were answered, and all files were written.
func (f *Forwarder) Serve(ctx context.Context) error {
	var running sync.WaitGroup
	failed := make(chan error, len(f.services))
	for _, s := range f.services {
		running.Go(func() {
			if err := s.serve(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, dnshedge.ErrServerClosed) {
				failed <- err
			}
		})
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	// The last question may take all of its Timeout, and its response is written after that.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(f.conf.Client.Timeout, 5*time.Second)+shutdownTime)
	defer cancel()
	err = errors.Join(err, f.shutdown(end))
	running.Wait()
	for path, s := range f.state {
		err = errors.Join(err, saveState(s, path))
	}
	return err
}

// shutdown closes all listeners, and then answers the queries that were received before, until ctx ends. It then closes
// all connections. The metrics server is shut down last. The result contains the errors of all servers.
func (f *Forwarder) shutdown(ctx context.Context) error {
	f.startClosing()
	errs := make([]error, len(f.https)+1, len(f.https)+len(f.conf.Listeners)+2)
	var wg sync.WaitGroup
	for _, l := range f.conf.Listeners {
		errs = append(errs, nil)
		err := &errs[len(errs)-1]
		wg.Go(func() { *err = l.Shutdown(ctx) })
	}
	for i, s := range f.https {
		wg.Go(func() { errs[i] = s.Shutdown(ctx) })
	}
	errs[len(f.https)] = f.server.Shutdown(ctx)
	wg.Wait()
	if f.metrics != nil {
		// a time limit of its own, because ctx may have ended
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageTime)
		defer cancel()
		errs = append(errs, f.metrics.Shutdown(ctx))
	}
	return errors.Join(errs...)
}
