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

// A Resolver finds the addresses of a host. [*net.Resolver] is one, and so are dnshedge's
// Client and, for hosts that move, Names of package dnshedge/names.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// WithReplicas sends an HTTP hedge to another address of its host than the primary's,
// if r knows one. It is for host names that stand for several replicas. Each address
// has hedge connections of its own, made by the base's DialContext or Dial; the host name,
// the TLS server name and the certificates stay the same. An address that has not answered
// after 250 ms no longer holds up the next one, and comes late for a minute. Only if all
// others fail does a hedge go to the primary's address; a minute later they are tried again.
// If the primary is still connecting, its address is the one that package net connects to.
// A DialContext that does not use package net hides it; then it is taken to be r's first address.
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

	missed map[netip.Addr]time.Time // when addresses were not reached
}

type replicaPool struct {
	*http.Transport
	used  uint64    // the number of its last use
	mixed time.Time // since when it may have connections to the address that it avoids; zero: it has none
}

// avoiding returns a transport whose connections go to other addresses than avoid.
func (r *replicas) avoiding(avoid netip.Addr) http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uses++
	switch p := r.pools[avoid]; {
	case p == nil:
	case p.mixed.IsZero() || time.Since(p.mixed) < forgiven:
		p.used = r.uses
		return p
	default:
		go p.CloseIdleConnections()
		delete(r.pools, avoid)
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
	p := &replicaPool{Transport: t, used: r.uses}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return r.dial(ctx, dial, network, addr, avoid, p)
	}
	if r.pools == nil {
		r.pools = make(map[netip.Addr]*replicaPool)
	}
	r.pools[avoid] = p
	return p
}

// dialFunc is a Transport's DialContext.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dial connects to an address of addr's host, for pool p: avoid comes last, and before it come
// those that could not be reached lately.
func (r *replicas) dial(ctx context.Context, dial dialFunc, network, addr string, avoid netip.Addr, p *replicaPool) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return dial(ctx, network, addr)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return dial(ctx, network, addr)
	}
	found, err := r.resolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(found) == 0 {
		return dial(ctx, network, addr) // may find an address by itself, or says what is wrong
	}
	ips := make([]netip.Addr, len(found))
	for i, ip := range found {
		ips[i] = ip.Unmap()
	}
	if !avoid.IsValid() {
		avoid = ips[0]
	}
	r.mu.Lock()
	slices.SortStableFunc(ips, func(a, b netip.Addr) int { return r.rank(a, avoid) - r.rank(b, avoid) })
	r.mu.Unlock()
	others := len(ips)
	if i := slices.Index(ips, avoid); i >= 0 {
		others = i
	}
	dialOne := func(ctx context.Context, ip netip.Addr) (net.Conn, error) {
		return dial(ctx, network, net.JoinHostPort(ip.String(), port))
	}
	if others == 0 {
		return r.first(ctx, dialOne, ips)
	}
	conn, err := r.first(ctx, dialOne, ips[:others])
	if err == nil || others == len(ips) || ctx.Err() != nil {
		return conn, err
	}
	r.mu.Lock()
	if p.mixed.IsZero() {
		p.mixed = time.Now()
	}
	r.mu.Unlock()
	conn, last := dialOne(ctx, avoid)
	if last != nil {
		return nil, errors.Join(err, last)
	}
	return conn, nil
}

// rank says how late an address is tried. The caller holds mu.
func (r *replicas) rank(ip, avoid netip.Addr) int {
	switch {
	case ip == avoid:
		return 2
	case time.Since(r.missed[ip]) < forgiven:
		return 1
	default:
		return 0
	}
}

const (
	patience  = 250 * time.Millisecond // before the next address is tried as well: RFC 8305, section 5
	forgiven  = time.Minute            // for which an address that was not reached comes late
	maxMissed = 256                    // addresses that are remembered
)

// first connects to the first of the addresses that answers. They are tried in turn: the
// next one when the last has failed, or has not answered for as long as patience.
func (r *replicas) first(ctx context.Context, dial func(context.Context, netip.Addr) (net.Conn, error), ips []netip.Addr) (net.Conn, error) {
	type dialled struct {
		net.Conn
		err error
		ip  netip.Addr
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan dialled, len(ips))
	next := time.NewTimer(0)
	defer next.Stop()
	var errs []error
	for started := 0; len(errs) < len(ips); {
		select {
		case <-next.C:
			if started > 0 && ctx.Err() == nil { // it has failed, or had its time
				r.miss(ips[started-1])
			}
			if started == len(ips) {
				continue
			}
			ip := ips[started]
			started++
			go func() {
				conn, err := dial(ctx, ip)
				results <- dialled{conn, err, ip}
			}()
			next.Reset(patience)
		case d := <-results:
			if d.err == nil {
				go func(pending int) { // what connects too late
					for range pending {
						if late := <-results; late.err == nil && late.Conn != nil {
							late.Close()
						}
					}
				}(started - len(errs) - 1)
				return d.Conn, nil
			}
			if errs = append(errs, d.err); ctx.Err() == nil {
				r.miss(d.ip)
			}
			if d.ip == ips[started-1] {
				next.Reset(0)
			}
		}
	}
	return nil, errors.Join(errs...)
}

// miss remembers that an address was not reached.
func (r *replicas) miss(ip netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.missed == nil || len(r.missed) >= maxMissed {
		r.missed = make(map[netip.Addr]time.Time)
	}
	r.missed[ip] = time.Now()
}

func (r *replicas) closeIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.pools {
		t.CloseIdleConnections()
	}
}
