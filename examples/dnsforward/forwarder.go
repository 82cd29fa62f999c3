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

// forwarder is a client with listeners. The fields of the first block are set before
// start.
type forwarder struct {
	client         *dnshedge.Client
	resolver       *recursor.Resolver // that client asks; nil: it asks upstreams
	validating     *validatingClient  // that client asks; nil: it asks upstreams itself
	access         accessControl
	listen         []string // for UDP and TCP
	dot            []string // for TLS
	doh            []string // for HTTPS
	metrics        string   // for HTTP; empty: none
	sockets        int      // for UDP, of each address
	conns          int      // connections of all clients, over TCP and TLS, and as many over HTTPS
	connsPerClient int      // connections of one client
	cert           *certificate

	server *dnshedge.Server // over UDP, TCP and TLS
	https  []*webServer     // that answer over HTTPS
	page   *webServer       // of the metrics; nil: there is none
	failed chan error       // of a listener; capacity 1
}

// start listens, and answers until close.
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
		f.page = newWebServer(mux)
		f.serveInBackground(func() error { return f.page.Serve(l) })
	}
	return nil
}

// startHTTPS answers over HTTPS.
func (f *forwarder) startHTTPS(config *tls.Config) error {
	room, requests := connlimit.New(max(f.conns, 1)), &clientCounter{each: maxRequestsOfClient, all: maxRequests}
	for _, at := range f.doh {
		l, err := f.listenTCP(at, room)
		if err != nil {
			return err
		}
		mux := http.NewServeMux()
		mux.Handle("/dns-query", &dohHandler{client: f.client, access: &f.access, requests: requests})
		s := newWebServer(mux)
		s.stateChanged, s.ConnContext = trackConnUse, withGuardedConn
		s.TLSConfig = config.Clone()
		f.https = append(f.https, s)
		f.serveInBackground(func() error { return s.ServeTLS(l, "", "") })
	}
	return nil
}

// serveInBackground calls serve, which ends when its listener is closed, and tells failed of other ends.
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

// serveStreams answers over the streams of a listener.
func (f *forwarder) serveStreams(l net.Listener) {
	f.serveInBackground(func() error { return f.server.Serve(l) })
}

// listenTCP listens for connections of clients that may ask. If room is not nil, it bounds them.
func (f *forwarder) listenTCP(at string, room *connlimit.Limiter) (net.Listener, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("dnsforward: listen on tcp %s: %w", at, err)
	}
	return &guardedListener{Listener: l, access: &f.access, conns: clientCounter{each: f.connsPerClient}, slots: room, closing: make(chan struct{})}, nil
}

// startUDP opens UDP sockets.
func (f *forwarder) startUDP(at string) error {
	sockets, err := listenPackets(at, max(f.sockets, 1))
	for _, pc := range sockets {
		f.serveInBackground(func() error { return f.server.ServePacket(pc) })
	}
	return err
}

// admitQuery says what becomes of a query. Strangers get REFUSED over UDP, which is no longer
// than their question, and no connection. Who asks too much over UDP gets nothing, and
// asks again; over a connection the next question waits, and if that took more than a
// second, the connection is closed.
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

// shutDown answers what was asked, until ctx ends, and closes all. The page of the metrics ends last, and has a time of its own, so
// that its clients take none from questions.
func (f *forwarder) shutDown(ctx context.Context) error {
	errs := make([]error, len(f.https)+1)
	var wg sync.WaitGroup
	for i, s := range f.https {
		wg.Go(func() { errs[i] = s.shutDown(ctx) })
	}
	errs[len(f.https)] = f.server.Shutdown(ctx)
	wg.Wait()
	if f.page != nil {
		ctx, cancel := context.WithTimeout(context.Background(), pageTime)
		defer cancel()
		errs = append(errs, f.page.shutDown(ctx))
	}
	return errors.Join(errs...)
}

// defaultUDPSockets is how many sockets share an address by default, so that all processors
// serve it.
func defaultUDPSockets() int {
	switch runtime.GOOS {
	case "linux", "freebsd", "dragonfly":
		return runtime.GOMAXPROCS(0)
	}
	return 1 // where the kernel does not spread clients among sockets
}
