package httpattempt

import (
	"context"
	"errors"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A Resolver looks up the addresses of a host. A [net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// maxPools is the largest number of pools. Beyond it, the least recently used pool is dropped.
const maxPools = 64

// A replicaPools holds connection pools for hedges. Each pool avoids one address to which primaries have connected, and
// connects to the other addresses of the host. It is safe for concurrent use.
type replicaPools struct {
	resolver Resolver
	// returns a new transport with the program's settings
	clone func() *http.Transport

	limits connLimits // apply MaxConnsPerHost to all pools together

	mu sync.Mutex // guards the fields below
	// number of calls of transportAvoiding
	uses  uint64
	pools map[netip.Addr]*replicaPool // by the avoided address; the zero Addr stands for the first address that the resolver returns

	unreachable map[netip.Addr]time.Time // time of the last failed dial, by address
}

// A replicaPool is a transport that connects to all addresses of a host except one.
type replicaPool struct {
	*http.Transport
	used       uint64    // value of replicaPools.uses at the last use
	mixedSince time.Time // since when connections to the avoided address are possible; zero: there are none
}

// transportAvoiding returns a transport that connects to addresses other than avoid. A pool that had to use avoid
// serves for unreachablePeriod, and is then replaced.
func (r *replicaPools) transportAvoiding(avoid netip.Addr) http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uses++
	switch p := r.pools[avoid]; {
	case p == nil:
	case p.mixedSince.IsZero() || time.Since(p.mixedSince) < unreachablePeriod:
		p.used = r.uses
		return p
	default:
		r.dropPool(avoid)
	}
	if len(r.pools) >= maxPools {
		r.dropPool(r.leastRecentlyUsed())
	}
	p := r.newPool(avoid)
	if r.pools == nil {
		r.pools = make(map[netip.Addr]*replicaPool)
	}
	r.pools[avoid] = p
	return p
}

// leastRecentlyUsed returns the avoided address of the least recently used pool. The caller holds mu.
func (r *replicaPools) leastRecentlyUsed() (oldest netip.Addr) {
	least := uint64(math.MaxUint64)
	for addr, p := range r.pools {
		if p.used < least {
			oldest, least = addr, p.used
		}
	}
	return oldest
}

// dropPool removes the pool that avoids addr, and closes its idle connections in the background. The caller holds mu.
func (r *replicaPools) dropPool(addr netip.Addr) {
	p := r.pools[addr]
	go func() {
		_ = race.RecoverPanic(func() error { // of connections that the program has made
			p.CloseIdleConnections()
			return nil
		})
	}()
	delete(r.pools, addr)
}

// newPool returns a new pool that avoids the given address. The caller holds mu.
func (r *replicaPools) newPool(avoid netip.Addr) *replicaPool {
	t := r.clone()
	if t.IdleConnTimeout == 0 {
		t.IdleConnTimeout = 90 * time.Second // as http.DefaultTransport has; a call that still uses a dropped pool may leave an idle connection
	}
	p := &replicaPool{Transport: t, used: r.uses}
	dial := dialOf(t)
	t.DialContext = func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		defer func() { // net/http dials on a goroutine of its own, where a panic ends the process
			if p := recover(); p != nil {
				conn, err = nil, &race.Panic{Value: p, Stack: debug.Stack()}
			}
		}()
		return r.limits.dialWithSlot(ctx, addr, t.MaxConnsPerHost, func() { r.closeIdleConns(p) }, func() (net.Conn, error) {
			return r.dialReplica(ctx, dial, network, addr, avoid, p)
		})
	}
	return p
}

// A dialFunc has the signature of [http.Transport] field DialContext.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dialOf returns the function with which t dials.
func dialOf(t *http.Transport) dialFunc {
	switch {
	case t.DialContext != nil:
		return t.DialContext
	case t.Dial != nil: //lint:ignore SA1019 it is deprecated, and obeyed by net/http all the same
		plain := t.Dial //lint:ignore SA1019 as above
		return func(_ context.Context, network, addr string) (net.Conn, error) { return plain(network, addr) }
	default:
		return new(net.Dialer).DialContext
	}
}

// dialReplica connects pool p to the host and port in addr. It tries the addresses of the host in this order: reachable
// addresses, addresses whose dial failed within unreachablePeriod, and the address avoid.
func (r *replicaPools) dialReplica(ctx context.Context, dial dialFunc, network, addr string, avoid netip.Addr, p *replicaPool) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return dial(ctx, network, addr)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return dial(ctx, network, addr)
	}
	found, err := r.resolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(found) == 0 {
		return dial(ctx, network, addr) // it resolves the host itself, or returns its own error
	}
	ips := make([]netip.Addr, len(found))
	for i, ip := range found {
		ips[i] = ip.Unmap()
	}
	if !avoid.IsValid() {
		avoid = ips[0]
	}
	r.mu.Lock()
	slices.SortStableFunc(ips, func(a, b netip.Addr) int { return r.dialOrder(a, avoid) - r.dialOrder(b, avoid) })
	r.mu.Unlock()
	others := len(ips)
	if i := slices.Index(ips, avoid); i >= 0 {
		others = i
	}
	dialOne := func(ctx context.Context, ip netip.Addr) (net.Conn, error) {
		return dial(ctx, network, net.JoinHostPort(ip.String(), port))
	}
	if others == 0 {
		return r.dialFirst(ctx, dialOne, ips)
	}
	conn, err := r.dialFirst(ctx, dialOne, ips[:others])
	if err == nil || others == len(ips) || ctx.Err() != nil {
		return conn, err
	}
	r.mu.Lock()
	if p.mixedSince.IsZero() {
		p.mixedSince = time.Now()
	}
	r.mu.Unlock()
	conn, last := dialOne(ctx, avoid)
	if last != nil {
		return nil, errors.Join(err, last)
	}
	return conn, nil
}

// dialOrder returns the rank of the address ip in the order of dials; the lowest rank comes first. The caller holds mu.
func (r *replicaPools) dialOrder(ip, avoid netip.Addr) int {
	switch {
	case ip == avoid:
		return 2
	case time.Since(r.unreachable[ip]) < unreachablePeriod:
		return 1
	default:
		return 0
	}
}

const (
	fallbackDelay     = 250 * time.Millisecond // time after which the next address is dialed in parallel (RFC 8305, section 5)
	unreachablePeriod = time.Minute            // time for which an address is dialed late after a failed dial
	maxUnreachable    = 256                    // largest number of addresses in replicaPools.unreachable
)

// dialFirst dials the addresses in order and returns the first connection. It dials the next address when a dial fails,
// or after fallbackDelay without a result. It closes connections that arrive later.
func (r *replicaPools) dialFirst(ctx context.Context, dial func(context.Context, netip.Addr) (net.Conn, error), ips []netip.Addr) (net.Conn, error) {
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
			if started > 0 && ctx.Err() == nil { // the last address has failed, or its time is over
				r.recordUnreachable(ips[started-1])
			}
			if started == len(ips) {
				continue
			}
			ip := ips[started]
			started++
			go func() {
				d := dialled{ip: ip}
				d.err = race.RecoverPanic(func() (err error) {
					d.Conn, err = dial(ctx, ip)
					return err
				})
				results <- d
			}()
			next.Reset(fallbackDelay)
		case d := <-results:
			if d.err == nil {
				go func(pending int) { // closes connections that come later
					for range pending {
						if late := <-results; late.err == nil && late.Conn != nil {
							_ = race.RecoverPanic(late.Close)
						}
					}
				}(started - len(errs) - 1)
				return d.Conn, nil
			}
			if errs = append(errs, d.err); ctx.Err() == nil {
				r.recordUnreachable(d.ip)
			}
			if d.ip == ips[started-1] {
				next.Reset(0)
			}
		}
	}
	return nil, errors.Join(errs...)
}

// recordUnreachable records that a dial of the address has failed or was too slow.
func (r *replicaPools) recordUnreachable(ip netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unreachable == nil || len(r.unreachable) >= maxUnreachable {
		r.unreachable = make(map[netip.Addr]time.Time)
	}
	r.unreachable[ip] = time.Now()
}

// closeIdleConns closes the idle connections of all pools except the given one, which may be nil.
func (r *replicaPools) closeIdleConns(except *replicaPool) {
	r.mu.Lock()
	pools := slices.Collect(maps.Values(r.pools))
	r.mu.Unlock()
	for _, p := range pools {
		if p != except {
			p.CloseIdleConnections()
		}
	}
}
