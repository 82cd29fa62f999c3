package hedge

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A Resolver finds the addresses of a host. [*net.Resolver] is one, and so is
// dnshedge's Client.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// WithReplicas sends an HTTP hedge to another address of its host than the primary's,
// if r knows one. It is for host names that stand for several replicas. Each address
// has hedge connections of its own, made by the base's DialContext or Dial; the host name,
// the TLS server name and the certificates stay the same. If the primary is still
// connecting, its address is the one that package net connects to. A DialContext
// that does not use package net hides it; then it is taken to be r's first address.
//
// While a replica that all primaries go to stands still, every call needs a hedge at
// once. [WithBurst] sets how many are saved up for that.
//
// WithReplicas needs an *http.Transport below. It has no effect without one, with
// the transport's DialTLSContext, or through a proxy. It panics if r is nil.
func WithReplicas(r Resolver) Option {
	if r == nil {
		panic("hedge: WithReplicas: Resolver is nil")
	}
	return optionFunc(func(c *config) { c.resolver = r })
}

// maxPools bounds the addresses with pools of their own. With one more, the pool that was
// not used for the longest time is given up.
const maxPools = 64

// replicas keeps, for each address that primaries went to, a pool of connections to the others.
type replicas struct {
	resolver Resolver
	clone    func() *http.Transport

	mu    sync.Mutex // guards the fields below
	uses  uint64
	pools map[netip.Addr]*replicaPool // by the address that its connections avoid; the zero Addr is the resolver's first
}

type replicaPool struct {
	*http.Transport
	used uint64 // the number of its last use
}

// avoiding returns a transport whose connections go to other addresses than avoid.
func (r *replicas) avoiding(avoid netip.Addr) http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uses++
	if p := r.pools[avoid]; p != nil {
		p.used = r.uses
		return p
	}
	if len(r.pools) >= maxPools {
		oldest := avoid
		for addr, p := range r.pools {
			if q := r.pools[oldest]; q == nil || p.used < q.used {
				oldest = addr
			}
		}
		go r.pools[oldest].CloseIdleConnections()
		delete(r.pools, oldest)
	}
	t := r.clone()
	if t.IdleConnTimeout == 0 {
		t.IdleConnTimeout = 90 * time.Second // as http.DefaultTransport: who still uses a pool that was given up may leave a connection in it
	}
	dial := t.DialContext
	switch {
	case dial != nil:
	case t.Dial != nil: //lint:ignore SA1019 it is deprecated, and obeyed by net/http all the same
		plain := t.Dial //lint:ignore SA1019 as above
		dial = func(_ context.Context, network, addr string) (net.Conn, error) { return plain(network, addr) }
	default:
		dial = new(net.Dialer).DialContext
	}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return r.dial(ctx, dial, network, addr, avoid)
	}
	if r.pools == nil {
		r.pools = make(map[netip.Addr]*replicaPool)
	}
	r.pools[avoid] = &replicaPool{t, r.uses}
	return t
}

// dial connects to the first address of addr's host that answers. It tries avoid last.
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
		return dial(ctx, network, addr) // may find an address by itself, or says what is wrong
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
