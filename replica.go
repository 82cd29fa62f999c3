package hedge

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/race"
)

// A Resolver finds the addresses of a host. [*net.Resolver] is one, and so is
// dnshedge's Client.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// WithReplicas sends an HTTP hedge to another address of its host than the one
// the primary went to, if r knows any: to another replica, where the host's name
// stands for several. Each address has hedge connections of its own, made by the
// base's DialContext; host name, TLS server name and certificates stay the same.
// A primary that is still connecting counts as well: to where package net says,
// or else, with a DialContext that does not dial through it, to r's first address.
//
// While a replica that all primaries go to stands still, every call asks for a
// hedge at once: [WithBurst] says how many are saved up for that.
//
// It needs an *http.Transport below and has no effect without one, with its
// DialTLSContext, or through a proxy. It panics if r is nil.
func WithReplicas(r Resolver) Option {
	if r == nil {
		panic("hedge: WithReplicas: Resolver is nil")
	}
	return optionFunc(func(c *config) { c.resolver = r })
}

// maxPools bounds the addresses that have pools of their own; hedges around any other share one.
const maxPools = 64

// replicas keeps a pool of connections around each address that primaries went to.
type replicas struct {
	resolver Resolver
	clone    func() *http.Transport

	mu    sync.Mutex
	pools map[netip.Addr]*http.Transport // by the address that its connections avoid; none: the resolver's first
}

// around returns a transport whose connections go elsewhere than to avoid.
func (r *replicas) around(avoid netip.Addr) http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pools) >= maxPools && r.pools[avoid] == nil {
		avoid = netip.Addr{}
	}
	if t := r.pools[avoid]; t != nil {
		return t
	}
	t := r.clone()
	dial := t.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return r.dial(ctx, dial, network, addr, avoid)
	}
	if r.pools == nil {
		r.pools = make(map[netip.Addr]*http.Transport)
	}
	r.pools[avoid] = t
	return t
}

// dial connects to the first address of addr's host that answers, to avoid last.
func (r *replicas) dial(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), network, addr string, avoid netip.Addr) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return dial(ctx, network, addr)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return dial(ctx, network, addr)
	}
	ips, err := r.resolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(ips) == 0 {
		return dial(ctx, network, addr) // which will say what is wrong, or know better
	}
	if !avoid.IsValid() {
		avoid = ips[0].Unmap()
	}
	ips = slices.Clone(ips)
	slices.SortStableFunc(ips, func(a, b netip.Addr) int {
		switch same := a.Unmap() == avoid; {
		case same == (b.Unmap() == avoid):
			return 0
		case same:
			return 1
		default:
			return -1
		}
	})
	var errs []error
	for _, ip := range ips {
		conn, err := dial(ctx, network, net.JoinHostPort(ip.Unmap().String(), port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (r *replicas) closeIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.pools {
		t.CloseIdleConnections()
	}
}

// where hears which address an attempt went to, or is on its way to. It is not
// used again: a dial may outlive its attempt.
type where struct{ got, dialled atomic.Pointer[netip.Addr] }

func (w *where) trace(a *race.Attempt) context.Context {
	hear := func(p *atomic.Pointer[netip.Addr], addr string) {
		if ap, err := netip.ParseAddrPort(addr); err == nil {
			ip := ap.Addr().Unmap()
			p.Store(&ip)
		}
	}
	return httptrace.WithClientTrace(a, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { hear(&w.got, info.Conn.RemoteAddr().String()) },
		// A dial goes on when its request has found another connection, so it must not overwrite what that one says.
		ConnectStart: func(_, addr string) { hear(&w.dialled, addr) },
	})
}

func (w *where) get() netip.Addr {
	if w == nil {
		return netip.Addr{}
	}
	if addr := cmp.Or(w.got.Load(), w.dialled.Load()); addr != nil {
		return *addr
	}
	return netip.Addr{}
}
