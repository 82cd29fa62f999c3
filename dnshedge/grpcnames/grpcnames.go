// Package grpcnames resolves the targets of gRPC clients with package names: a client
// follows the addresses of a host when their TTL ends. gRPC's own resolver asks again only when a
// connection fails.
//
//	conn, err := grpc.NewClient("hedgedns:///api.example:443", creds,
//		grpc.WithResolvers(grpcnames.NewBuilder(n))) // n is a *names.Names
//
// When addresses change, gRPC connects to those that are new, and closes connections to those that
// have gone when their calls have ended.
package grpcnames

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/resolver"

	"github.com/gohedge/hedge/dnshedge/names"
)

// Scheme is that of the targets: hedgedns:///host:port. Without a port it is 443, as for gRPC's dns
// scheme. There is no authority, which would be a name server: Names knows whom to ask. Service
// configs are not looked up.
const Scheme = "hedgedns"

// NewBuilder returns a Builder whose resolvers look hosts up with n, which several
// connections and HTTP clients may share. It is for grpc.WithResolvers or resolver.Register. It
// panics if n is nil.
//
// The balancer gets the addresses whenever they have changed. As long as there is none, it gets
// the errors of the lookups; after that, failed lookups change nothing. ResolveNow, which gRPC
// calls when a connection fails, has the host looked up at once, or n's MinTTL after the last lookup.
func NewBuilder(n *names.Names) resolver.Builder {
	if n == nil {
		panic("grpcnames: NewBuilder: Names is nil")
	}
	return builder{n}
}

type builder struct{ n *names.Names }

func (builder) Scheme() string { return Scheme }

// Build begins to watch the target's host. It returns an error if the target is none of Scheme.
func (b builder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	host, port, err := split(target)
	if err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		// Errors are the balancer's business: another lookup finds nothing else.
		_ = cc.UpdateState(state([]netip.Addr{ip}, port))
		return fixed{}, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{n: b.n, host: host, cancel: cancel}
	w.wg.Go(func() {
		for addrs, err := range b.n.Watch(ctx, host) {
			if err != nil {
				cc.ReportError(err)
			} else if cc.UpdateState(state(addrs, port)) != nil {
				b.n.Refresh(host) // gRPC's contract: the addresses are not usable
			}
		}
	})
	return w, nil
}

// split returns the host and port of a target.
func split(target resolver.Target) (host, port string, err error) {
	if target.URL.Host != "" {
		return "", "", fmt.Errorf("grpcnames: target %q has the authority %q; want %s:///host:port", target.URL.String(), target.URL.Host, Scheme)
	}
	endpoint := target.Endpoint()
	if ip, err := netip.ParseAddr(endpoint); err == nil {
		return ip.String(), "443", nil
	}
	host, port, err = net.SplitHostPort(endpoint)
	if err != nil {
		if host, port, err = net.SplitHostPort(endpoint + ":443"); err != nil {
			return "", "", fmt.Errorf("grpcnames: target %q: %w", target.URL.String(), err)
		}
	}
	if host == "" || port == "" {
		return "", "", fmt.Errorf("grpcnames: target %q lacks a host or a port; want %s:///host:port", target.URL.String(), Scheme)
	}
	return host, port, nil
}

func state(addrs []netip.Addr, port string) resolver.State {
	var s resolver.State
	for _, ip := range addrs {
		s.Addresses = append(s.Addresses, resolver.Address{Addr: net.JoinHostPort(ip.String(), port)})
	}
	return s
}

// watcher follows the addresses of a host.
type watcher struct {
	n      *names.Names
	host   string
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (w *watcher) ResolveNow(resolver.ResolveNowOptions) { w.n.Refresh(w.host) }

// Close ends the watch, and returns when nothing more is told.
func (w *watcher) Close() {
	w.cancel()
	w.wg.Wait()
}

// fixed is the resolver of an address.
type fixed struct{}

func (fixed) ResolveNow(resolver.ResolveNowOptions) {}
func (fixed) Close()                                {}
