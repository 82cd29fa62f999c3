package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
)

// forwarder is a client with listeners. The fields of the first block are set before
// start.
type forwarder struct {
	client  *dnshedge.Client
	access  access
	listen  []string // for UDP and TCP
	dot     []string // for TLS
	doh     []string // for HTTPS
	metrics string   // for HTTP; empty: none
	sockets int      // for UDP, of each address
	conns   int      // connections of all clients
	each    int      // connections of one client
	cert    *certificate

	udp     []*dns.Server
	streams streams
	web     []*http.Server
	closers []net.Listener
	failed  chan error // of a listener; capacity 1
}

// start listens, and answers until close.
func (f *forwarder) start() error {
	f.failed = make(chan error, 1)
	f.streams.handler, f.streams.access = dns.HandlerFunc(f.client.ServeDNS), &f.access
	var config *tls.Config
	if len(f.dot)+len(f.doh) > 0 {
		if f.cert == nil {
			return errors.New("dnsforward: -listen-tls and -listen-https need -cert and -key")
		}
		if _, err := f.cert.get(nil); err != nil {
			return fmt.Errorf("dnsforward: certificate: %w", err)
		}
		config = &tls.Config{GetCertificate: f.cert.get, MinVersion: tls.VersionTLS12}
	}
	for _, at := range f.listen {
		if err := f.startUDP(at); err != nil {
			return fmt.Errorf("dnsforward: listen on udp %s: %w", at, err)
		}
		l, err := f.open(at)
		if err != nil {
			return err
		}
		f.serve(l)
	}
	for _, at := range f.dot {
		l, err := f.open(at)
		if err != nil {
			return err
		}
		c := config.Clone()
		c.NextProtos = []string{"dot"}
		f.serve(tls.NewListener(l, c))
	}
	for _, at := range f.doh {
		l, err := f.open(at)
		if err != nil {
			return err
		}
		mux := http.NewServeMux()
		mux.Handle("/dns-query", &doh{handler: f.streams.handler, access: &f.access})
		s := httpServer(mux)
		s.TLSConfig = config.Clone()
		f.web = append(f.web, s)
		f.run(func() error { return s.ServeTLS(l, "", "") })
	}
	if f.metrics != "" {
		l, err := net.Listen("tcp", f.metrics)
		if err != nil {
			return fmt.Errorf("dnsforward: listen on %s: %w", f.metrics, err)
		}
		mux := http.NewServeMux()
		mux.Handle("/metrics", metrics{f.client})
		s := httpServer(mux)
		f.web = append(f.web, s)
		f.run(func() error { return s.Serve(l) })
	}
	return nil
}

// run calls serve, which ends when its listener is closed, and tells failed of other ends.
func (f *forwarder) run(serve func() error) {
	go func() {
		if err := serve(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			select {
			case f.failed <- err:
			default:
			}
		}
	}()
}

// serve answers over the streams of a listener.
func (f *forwarder) serve(l net.Listener) {
	f.closers = append(f.closers, l)
	f.run(func() error { return f.streams.serve(l) })
}

// open listens for connections of clients that may ask.
func (f *forwarder) open(at string) (net.Listener, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("dnsforward: listen on tcp %s: %w", at, err)
	}
	return &guard{Listener: l, access: &f.access, conns: f.conns, each: f.each}, nil
}

// startUDP opens UDP sockets, and returns when they are open.
func (f *forwarder) startUDP(at string) error {
	n := max(f.sockets, 1)
	up := make(chan error, n)
	for range n {
		s := &dns.Server{
			Addr: at, Net: "udp", ReusePort: n > 1, UDPSize: 4096,
			Handler: dns.HandlerFunc(f.serveUDP), NotifyStartedFunc: func() { up <- nil },
		}
		f.udp = append(f.udp, s)
		go func() {
			if err := s.ListenAndServe(); err != nil {
				select {
				case up <- err:
				default:
				}
				select {
				case f.failed <- err:
				default:
				}
			}
		}()
	}
	for range n {
		if err := <-up; err != nil {
			return err
		}
	}
	return nil
}

// serveUDP answers a datagram. Strangers get REFUSED, which is no longer than their
// question; who asks too much gets nothing, and asks again.
func (f *forwarder) serveUDP(w dns.ResponseWriter, r *dns.Msg) {
	ip := client(w.RemoteAddr())
	if !f.access.allows(ip) {
		m := new(dns.Msg)
		_ = w.WriteMsg(m.SetRcode(r, dns.RcodeRefused))
		return
	}
	if f.access.take(ip) {
		f.client.ServeDNS(w, r)
	}
}

// close answers what was asked, until ctx ends, and closes all.
func (f *forwarder) close(ctx context.Context) error {
	var errs []error
	for _, l := range f.closers {
		errs = append(errs, l.Close())
	}
	for _, s := range f.web {
		errs = append(errs, s.Shutdown(ctx))
	}
	errs = append(errs, f.streams.shutdown(ctx))
	for _, s := range f.udp {
		errs = append(errs, s.ShutdownContext(ctx))
	}
	return errors.Join(errs...)
}

// udpSockets is how many sockets share an address by default, so that all processors
// serve it.
func udpSockets() int {
	switch runtime.GOOS {
	case "linux", "freebsd", "dragonfly":
		return runtime.GOMAXPROCS(0)
	}
	return 1 // where the kernel does not spread clients among sockets
}
