package httpattempt

import (
	"context"
	"errors"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/dialrace"
	"github.com/gohedge/hedge/internal/race"
)

// A Resolver looks up the IP addresses of a host. [net.Resolver] implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// maxPools is the largest number of pools in a replicaPools. When there are more, the least recently used pool is
// dropped.
const maxPools = 64

// A replicaPools holds connection pools for hedges, so that a hedge can be sent to another server (replica) of the host
// than the primary. Each pool avoids one address to which primaries have connected, and connects to the other addresses
// of the same host. It is safe for concurrent use.
type replicaPools struct {
	resolver Resolver // looks up the addresses of hosts
	// returns a new transport with the settings of the program's transport
	clone func() *http.Transport

	limits connLimits // applies MaxConnsPerHost to all pools together

	mu sync.Mutex // guards the fields below
	// number of calls of transportAvoiding; serves as a clock for replicaPool.used
	uses  uint64
	pools map[netip.Addr]*replicaPool // by avoided address; the zero Addr stands for the first address that the resolver returns

	unreachable map[netip.Addr]time.Time // time of the last failed or slow dial, by address
}

// A replicaPool is a transport that connects to all addresses of a host except the address that it avoids. If no other
// address can be reached, it connects to the avoided address as well.
type replicaPool struct {
	*http.Transport
	used            uint64    // value of replicaPools.uses when the pool was last used
	dialedAvoidedAt time.Time // time of the first dial to the avoided address; zero if there was none
}

// transportAvoiding returns a transport that connects to other addresses of a host than avoid, if any can be reached.
// The zero Addr avoids the first address that the resolver returns.
//
// If no other address can be reached, the transport connects to avoid. It then has connections to avoid, so
// transportAvoiding returns a new transport after unreachablePeriod.
func (r *replicaPools) transportAvoiding(avoid netip.Addr) http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uses++
	switch p := r.pools[avoid]; {
	case p == nil:
	case p.dialedAvoidedAt.IsZero() || time.Since(p.dialedAvoidedAt) < unreachablePeriod:
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

// leastRecentlyUsed returns the key in the map pools of the least recently used pool: the address that the pool avoids.
// The caller must hold mu.
func (r *replicaPools) leastRecentlyUsed() (oldest netip.Addr) {
	least := uint64(math.MaxUint64)
	for addr, p := range r.pools {
		if p.used < least {
			oldest, least = addr, p.used
		}
	}
	return oldest
}

// dropPool removes the pool that avoids addr, and closes its idle connections in the background. The caller must hold
// mu.
func (r *replicaPools) dropPool(addr netip.Addr) {
	p := r.pools[addr]
	go func() {
		_ = race.RecoverPanic(func() error { // Close methods of the program's connections may panic
			p.CloseIdleConnections()
			return nil
		})
	}()
	delete(r.pools, addr)
}

// newPool returns a new pool whose transport connects to other addresses than avoid, see dialReplica. It does not store
// the pool. The caller must hold mu.
func (r *replicaPools) newPool(avoid netip.Addr) *replicaPool {
	t := r.clone()
	if t.IdleConnTimeout == 0 {
		t.IdleConnTimeout = 90 * time.Second // as http.DefaultTransport has; a call that still uses a dropped pool may leave an idle connection
	}
	p := &replicaPool{Transport: t, used: r.uses}
	dial := dialFuncOf(t)
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		// net/http dials on a goroutine of its own. There a panic of the program's code would end the process, and
		// after runtime.Goexit net/http would wait for the connection for ever.
		guarded := dialrace.New(errNoDialResult)
		defer guarded.Close()
		guarded.Start(netip.Addr{}, func() (net.Conn, error) {
			return r.limits.dialWithSlot(ctx, addr, t.MaxConnsPerHost, func() { r.closeIdleConns(p) }, func() (net.Conn, error) {
				return r.dialReplica(ctx, dial, network, addr, avoid, p)
			})
		})
		d := <-guarded.Results
		return d.Conn, d.Err
	}
	return p
}

// A dialFunc dials a connection, as the function in the DialContext field of an [http.Transport] does.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dialFuncOf returns the function by which t dials: its DialContext, its deprecated Dial, or the function of a
// [net.Dialer].
func dialFuncOf(t *http.Transport) dialFunc {
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

// dialReplica opens a connection of pool p to an address of addr, a host and port. It tries reachable addresses first,
// then addresses whose dial failed within unreachablePeriod, and at last the address avoid. If avoid is the zero Addr,
// it avoids the first address that the resolver returns.
//
// The function dial connects to one address on the given network. If the host cannot be looked up, or is an IP address,
// dialReplica calls dial with addr itself.
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
		return dial(ctx, network, addr) // dial resolves the host itself, or returns its own error
	}
	ips := make([]netip.Addr, len(found))
	for i, ip := range found {
		ips[i] = ip.Unmap()
	}
	if !avoid.IsValid() {
		avoid = ips[0]
	}
	r.mu.Lock()
	slices.SortStableFunc(ips, func(a, b netip.Addr) int { return r.dialRank(a, avoid) - r.dialRank(b, avoid) })
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
	if p.dialedAvoidedAt.IsZero() {
		p.dialedAvoidedAt = time.Now()
	}
	r.mu.Unlock()
	conn, last := dialOne(ctx, avoid)
	if last != nil {
		return nil, errors.Join(err, last)
	}
	return conn, nil
}

// dialRank returns the rank of the address ip in the order of dials. It is 0 for a reachable address, 1 for an address
// whose dial failed within unreachablePeriod, and 2 for avoid. Addresses with low ranks are dialed first. The caller
// must hold mu.
func (r *replicaPools) dialRank(ip, avoid netip.Addr) int {
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
	fallbackDelay     = 250 * time.Millisecond // time after which the next address is dialed in parallel (RFC 8305, section 5); also the longest wait for a slot of a connLimit
	unreachablePeriod = time.Minute            // time after a failed dial during which other addresses are preferred
	maxUnreachable    = 256                    // largest number of addresses in replicaPools.unreachable
)

// errNoDialResult is the error of a dial for which a function of the program ends its goroutine: the transport's dial
// function, or the Resolver.
var errNoDialResult = errors.New("hedge: the dial function of the transport, or the Resolver, returned no result")

// dialFirst dials the addresses in order and returns the first connection that is established (RFC 8305). It starts the
// next dial when the latest dial fails, or when fallbackDelay has passed. It closes connections that are established
// later. If all dials fail, the error joins their errors.
func (r *replicaPools) dialFirst(ctx context.Context, dial func(context.Context, netip.Addr) (net.Conn, error), ips []netip.Addr) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dials := dialrace.New(errNoDialResult)
	defer dials.Close()
	next := time.NewTimer(0)
	defer next.Stop()
	var errs []error
	for started := 0; len(errs) < len(ips); {
		select {
		case <-next.C:
			if started > 0 && ctx.Err() == nil { // the address dialed last has failed, or has had no result within fallbackDelay
				r.recordUnreachable(ips[started-1])
			}
			if started == len(ips) {
				continue
			}
			ip := ips[started]
			started++
			dials.Start(ip, func() (net.Conn, error) { return dial(ctx, ip) })
			next.Reset(fallbackDelay)
		case d := <-dials.Results:
			if d.Err == nil {
				return d.Conn, nil
			}
			if errs = append(errs, d.Err); ctx.Err() == nil {
				r.recordUnreachable(d.IP)
			}
			if d.IP == ips[started-1] {
				next.Reset(0)
			}
		}
	}
	return nil, errors.Join(errs...)
}

// recordUnreachable records that a dial of the address has failed or took longer than fallbackDelay.
func (r *replicaPools) recordUnreachable(ip netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unreachable == nil || len(r.unreachable) >= maxUnreachable {
		r.unreachable = make(map[netip.Addr]time.Time)
	}
	r.unreachable[ip] = time.Now()
}

// closeIdleConns closes the idle connections of all pools except the given pool, which may be nil.
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
