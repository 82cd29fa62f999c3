// Package grpcnames resolves the targets of gRPC clients with package names. A client then gets the new addresses of a
// host when their TTL ends. gRPC's own resolver looks a host up again only when a connection fails.
//
//	conn, err := grpc.NewClient("hedgedns:///api.example:443", creds,
//		grpc.WithResolvers(grpcnames.NewBuilder(n))) // n is a *names.Names
//
// When addresses change, gRPC connects to new addresses. It closes connections to removed addresses when their calls
// have ended.
//
// When a connection fails, gRPC asks for a lookup (ResolveNow). The lookup starts at once, or MinTTL after the last
// lookup if that is later. A failed lookup changes nothing if an address is known.
//
// If gRPC refuses the addresses of a host, a lookup starts in the same way. The addresses are passed again after one
// second, two, four and so on, up to a minute.
//
// When Names is closed before an address is known, calls fail with an error that wraps net.ErrClosed.
package grpcnames

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/resolver"

	"github.com/gohedge/hedge/dnshedge/names"
	"github.com/gohedge/hedge/internal/redact"
)

// Scheme is the scheme of the targets: hedgedns:///host:port. The default port is 443, as for gRPC's dns scheme. A
// target has no authority, which would be a name server: Names chooses the servers. Service configs are not looked up.
const Scheme = "hedgedns"

const (
	firstRetry    = time.Second // delay before a state that gRPC has refused is passed again
	maxRetryDelay = time.Minute // longest delay, after repeated refusals
)

var errClosed = fmt.Errorf("grpcnames: Names is closed: %w", net.ErrClosed)

// NewBuilder returns a Builder, for grpc.WithResolvers or resolver.Register, whose resolvers look hosts up with n.
// Several connections and other clients may share n. NewBuilder panics if n is nil.
//
// A resolver passes the addresses of its host to gRPC whenever they change. Until an address is known, it passes the
// error of each failed lookup. When n is closed, it passes an error that wraps net.ErrClosed.
func NewBuilder(n *names.Names) resolver.Builder {
	if n == nil {
		panic("grpcnames: NewBuilder: Names is nil")
	}
	return builder{n}
}

type builder struct{ n *names.Names }

func (builder) Scheme() string { return Scheme }

// Build starts to watch the host of a target, and passes its addresses to cc. The default port is 443. Build returns an
// error if the target has an authority, no host, or an empty port.
func (b builder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	host, port, err := splitTarget(target)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &hostWatcher{n: b.n, cc: cc, host: host, port: port, ctx: ctx, cancel: cancel, found: make(chan watchResult)}
	w.wg.Go(w.watchHost)
	w.wg.Go(w.updateConn)
	return w, nil
}

// splitTarget returns the host and port of a target such as hedgedns:///host:port. The default port is 443. It returns
// an error if the target has an authority, no host, or an empty port.
func splitTarget(target resolver.Target) (host, port string, err error) {
	if target.URL.Host != "" {
		return "", "", fmt.Errorf("grpcnames: target %q has the authority %q; want %s:///host:port", redact.URL(target.URL.String()), target.URL.Host, Scheme)
	}
	endpoint := target.Endpoint()
	if ip, err := netip.ParseAddr(endpoint); err == nil {
		return ip.String(), "443", nil
	}
	host, port, err = net.SplitHostPort(endpoint)
	if err != nil {
		if host, port, err = net.SplitHostPort(endpoint + ":443"); err != nil {
			return "", "", fmt.Errorf("grpcnames: target %q: %w", redact.URL(target.URL.String()), err)
		}
	}
	if host == "" || port == "" {
		return "", "", fmt.Errorf("grpcnames: target %q lacks a host or a port; want %s:///host:port", redact.URL(target.URL.String()), Scheme)
	}
	return host, port, nil
}

// A hostWatcher is the gRPC resolver for one target. It passes the addresses of the target's host to gRPC whenever they
// change.
type hostWatcher struct {
	n          *names.Names
	cc         resolver.ClientConn
	host, port string
	ctx        context.Context
	cancel     context.CancelFunc
	wg         sync.WaitGroup
	found      chan watchResult // results for updateConn; closed when the watch has ended
}

// A watchResult is one element of names.Watch: the addresses of the host, or the error of a lookup.
type watchResult struct {
	addrs []netip.Addr
	err   error
}

// watchHost watches the host until the resolver is closed. It sends the host's addresses to updateConn whenever they
// change, and the errors of failed lookups. If the host is an IP address, it sends that address once.
func (w *hostWatcher) watchHost() {
	defer close(w.found)
	if ip, err := netip.ParseAddr(w.host); err == nil {
		w.sendResult(watchResult{addrs: []netip.Addr{ip}})
		<-w.ctx.Done()
		return
	}
	for addrs, err := range w.n.Watch(w.ctx, w.host) {
		w.sendResult(watchResult{addrs, err})
	}
}

// sendResult passes f to the goroutine of updateConn, which reports it to gRPC. It drops f if the resolver is closed
// meanwhile.
func (w *hostWatcher) sendResult(f watchResult) {
	select {
	case w.found <- f:
	case <-w.ctx.Done():
	}
}

// updateConn passes the results from watchHost to gRPC, until the resolver or Names is closed. If gRPC refuses
// addresses, updateConn makes the next lookup due (Names.Refresh). It passes the addresses again after one second, two,
// four and so on, up to a minute.
func (w *hostWatcher) updateConn() {
	var addrs []netip.Addr
	again := time.NewTimer(0)
	again.Stop()
	defer again.Stop()
	pause := firstRetry
	for {
		select {
		case f, ok := <-w.found:
			if w.ctx.Err() != nil {
				return
			}
			if !ok {
				w.cc.ReportError(errClosed)
				return
			}
			if f.err != nil {
				w.cc.ReportError(f.err)
				continue
			}
			addrs, pause = f.addrs, firstRetry
		case <-again.C:
		case <-w.ctx.Done():
			return
		}
		again.Stop()
		var state resolver.State
		for _, ip := range addrs {
			state.Addresses = append(state.Addresses, resolver.Address{Addr: net.JoinHostPort(ip.String(), w.port)})
		}
		if w.cc.UpdateState(state) != nil { // gRPC's contract: the host is looked up again
			w.n.Refresh(w.host)
			again.Reset(pause)
			pause = min(2*pause, maxRetryDelay)
		}
	}
}

func (w *hostWatcher) ResolveNow(resolver.ResolveNowOptions) { w.n.Refresh(w.host) }

// Close ends the watch. After it has returned, gRPC gets no more results.
func (w *hostWatcher) Close() {
	w.cancel()
	w.wg.Wait()
}
