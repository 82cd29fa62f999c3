package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/gohedge/hedge/debug"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/connlimit"
)

// A forwarder answers DNS clients on several listeners by one dnshedge.Client. The fields of the first block must be
// set before start.
type forwarder struct {
	client         *dnshedge.Client
	resolver       *recursor.Resolver // asked by client; nil: there is none
	validating     *validatingClient  // asked by client; nil: client asks upstreams itself
	access         accessControl
	listen         []string // addresses for UDP and TCP
	dot            []string // addresses for DNS over TLS
	doh            []string // addresses for DNS over HTTPS
	metrics        string   // address of the HTTP server with metrics; empty: none
	sockets        int      // UDP sockets of each address
	conns          int      // limit of the connections of all clients, over TCP and TLS, and separately over HTTPS
	connsPerClient int      // limit of the connections of one client
	cert           *certificate

	server        *dnshedge.Server // for UDP, TCP and TLS
	https         []*webServer     // servers for HTTPS
	metricsServer *webServer       // server of the metrics; nil: none
	failed        chan error       // error of a server; capacity 1
}

// start opens all listeners and serves them in goroutines until shutDown is called. If it returns an error, some
// listeners may remain open.
func (f *forwarder) start() error {
	f.failed = make(chan error, 1)
	f.server = &dnshedge.Server{Client: f.client, Admit: f.admitQuery, MaxConns: max(f.conns, 1)}
	var config *tls.Config
	if len(f.dot)+len(f.doh) > 0 {
		if f.cert == nil {
			return errors.New("dnsforward: -listen-tls and -listen-https need -cert and -key")
		}
		if _, err := f.cert.getCertificate(nil); err != nil {
			return fmt.Errorf("dnsforward: certificate: %w", err)
		}
		config = &tls.Config{GetCertificate: f.cert.getCertificate, MinVersion: tls.VersionTLS12}
	}
	for _, at := range f.listen {
		if err := f.startUDP(at); err != nil {
			return fmt.Errorf("dnsforward: listen on udp %s: %w", at, err)
		}
		l, err := f.listenTCP(at, nil)
		if err != nil {
			return err
		}
		f.serveStreams(l)
	}
	for _, at := range f.dot {
		l, err := f.listenTCP(at, nil)
		if err != nil {
			return err
		}
		c := config.Clone()
		c.NextProtos = []string{"dot"}
		f.serveStreams(tls.NewListener(l, c))
	}
	if err := f.startHTTPS(config); err != nil {
		return err
	}
	if f.metrics != "" {
		l, err := net.Listen("tcp", f.metrics)
		if err != nil {
			return fmt.Errorf("dnsforward: listen on %s: %w", f.metrics, err)
		}
		mux := http.NewServeMux()
		mux.Handle("/metrics", metricsHandler{f})
		pages := []debug.Source{debug.DNS(f.client)}
		if f.resolver != nil {
			pages = append(pages, debug.Recursor(f.resolver))
		}
		if f.validating != nil {
			pages = append(pages, debug.DNS(f.validating.upstreams), debug.Recursor(f.validating))
		}
		mux.Handle("/debug/hedge", debug.Handler(pages...))
		f.metricsServer = newWebServer(mux)
		f.serveInBackground(func() error { return f.metricsServer.Serve(l) })
	}
	return nil
}

// startHTTPS opens the listeners for HTTPS and starts to serve them.
func (f *forwarder) startHTTPS(config *tls.Config) error {
	room, requests := connlimit.New(max(f.conns, 1)), &clientCounter{maxPerClient: maxRequestsOfClient, maxTotal: maxRequests}
	for _, at := range f.doh {
		l, err := f.listenTCP(at, room)
		if err != nil {
			return err
		}
		mux := http.NewServeMux()
		mux.Handle("/dns-query", &dohHandler{client: f.client, access: &f.access, requests: requests})
		s := newWebServer(mux)
		s.stateChanged, s.ConnContext = trackConnUse, withLimitedConn
		s.TLSConfig = config.Clone()
		f.https = append(f.https, s)
		f.serveInBackground(func() error { return s.ServeTLS(l, "", "") })
	}
	return nil
}

// serveInBackground calls serve in a goroutine. It sends the error of serve to f.failed, except for the errors after a
// normal shutdown.
func (f *forwarder) serveInBackground(serve func() error) {
	go func() {
		if err := serve(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, dnshedge.ErrServerClosed) {
			select {
			case f.failed <- err:
			default:
			}
		}
	}()
}

// serveStreams answers the queries on connections that the listener l accepts, in a goroutine.
func (f *forwarder) serveStreams(l net.Listener) {
	f.serveInBackground(func() error { return f.server.Serve(l) })
}

// listenTCP opens a TCP listener at the address at, which accepts only connections of allowed clients. slots limits the
// connections of all clients; nil: no limit.
func (f *forwarder) listenTCP(at string, slots *connlimit.Limiter) (net.Listener, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("dnsforward: listen on tcp %s: %w", at, err)
	}
	return &limitedListener{Listener: l, access: &f.access, conns: clientCounter{maxPerClient: f.connsPerClient}, slots: slots, closing: make(chan struct{})}, nil
}

// startUDP opens UDP sockets on the address at, and answers the queries that they receive, in goroutines.
func (f *forwarder) startUDP(at string) error {
	sockets, err := listenPackets(at, max(f.sockets, 1))
	for _, pc := range sockets {
		f.serveInBackground(func() error { return f.server.ServePacket(pc) })
	}
	return err
}

// admitQuery decides how a query is handled. Over UDP, a client that is not allowed gets REFUSED, which is not longer
// than its question. A query above the rate limit gets no response over UDP, so the client asks again. Over a stream
// such a query waits. If it would wait for more than maxWait, the connection is closed.
func (f *forwarder) admitQuery(at net.Addr) dnshedge.Verdict {
	ip := clientAddress(at)
	if _, udp := at.(*net.UDPAddr); !udp {
		wait := f.access.reserveQuestion(ip)
		if wait > maxWait {
			return dnshedge.Ignore
		}
		time.Sleep(wait)
		return dnshedge.Answer
	}
	switch {
	case !f.access.isAllowed(ip):
		return dnshedge.Refuse
	case !f.access.allowQuestion(ip):
		return dnshedge.Ignore
	}
	return dnshedge.Answer
}

// shutDown answers the queries that were received, until ctx ends, and closes all listeners and connections. The server
// of the metrics ends last, with a time limit of its own, so that its clients do not delay the answers.
func (f *forwarder) shutDown(ctx context.Context) error {
	errs := make([]error, len(f.https)+1)
	var wg sync.WaitGroup
	for i, s := range f.https {
		wg.Go(func() { errs[i] = s.shutDown(ctx) })
	}
	errs[len(f.https)] = f.server.Shutdown(ctx)
	wg.Wait()
	if f.metricsServer != nil {
		ctx, cancel := context.WithTimeout(context.Background(), pageTime)
		defer cancel()
		errs = append(errs, f.metricsServer.shutDown(ctx))
	}
	return errors.Join(errs...)
}

// defaultUDPSockets returns the default number of UDP sockets of an address. It is the number of processors where the
// kernel distributes clients among sockets, so that all processors serve them.
func defaultUDPSockets() int {
	switch runtime.GOOS {
	case "linux", "freebsd", "dragonfly":
		return runtime.GOMAXPROCS(0)
	}
	return 1
}
