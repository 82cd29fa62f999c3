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

// A Resolver finds the addresses of a host.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// maxPools bounds the addresses with pools of their own. With one more, the pool that was
// not used for the longest time is given up.
const maxPools = 64

// replicas keeps, for each address that primaries went to, a pool of connections to the others.
type replicas struct {
	resolver Resolver
	clone    func() *http.Transport

	hosts hosts // to which the pools together obey MaxConnsPerHost

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
		r.drop(avoid)
	}
	if len(r.pools) >= maxPools {
		r.drop(r.oldest())
	}
	p := r.newPool(avoid)
	if r.pools == nil {
		r.pools = make(map[netip.Addr]*replicaPool)
	}
	r.pools[avoid] = p
	return p
}

// oldest returns the address whose pool was not used for the longest time. The caller holds mu.
func (r *replicas) oldest() (oldest netip.Addr) {
	least := uint64(math.MaxUint64)
	for addr, p := range r.pools {
		if p.used < least {
			oldest, least = addr, p.used
		}
	}
	return oldest
}

// drop gives up a pool. The caller holds mu.
func (r *replicas) drop(addr netip.Addr) {
	p := r.pools[addr]
	go func() {
		_ = race.RecoverPanic(func() error { // of connections that are users' own
			p.CloseIdleConnections()
			return nil
		})
	}()
	delete(r.pools, addr)
}

// newPool returns a pool of connections to other addresses than avoid. The caller holds mu.
func (r *replicas) newPool(avoid netip.Addr) *replicaPool {
	t := r.clone()
	if t.IdleConnTimeout == 0 {
		t.IdleConnTimeout = 90 * time.Second // as http.DefaultTransport: who still uses a pool that was given up may leave a connection in it
	}
	p := &replicaPool{Transport: t, used: r.uses}
	dial := dialOf(t)
	t.DialContext = func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		defer func() { // net/http dials on a goroutine where nobody can recover
			if p := recover(); p != nil {
				conn, err = nil, &race.Panic{Value: p, Stack: debug.Stack()}
			}
		}()
		return r.hosts.dial(ctx, addr, t.MaxConnsPerHost, func() { r.closeIdle(p) }, func() (net.Conn, error) {
			return r.dial(ctx, dial, network, addr, avoid, p)
		})
	}
	return p
}

// dialFunc is a Transport's DialContext.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dialOf returns how t dials.
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
				d := dialled{ip: ip}
				d.err = race.RecoverPanic(func() (err error) {
					d.Conn, err = dial(ctx, ip)
					return err
				})
				results <- d
			}()
			next.Reset(patience)
		case d := <-results:
			if d.err == nil {
				go func(pending int) { // what connects too late
					for range pending {
						if late := <-results; late.err == nil && late.Conn != nil {
							_ = race.RecoverPanic(late.Close)
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

// closeIdle closes the idle connections of all pools but one, which may be nil.
func (r *replicas) closeIdle(but *replicaPool) {
	r.mu.Lock()
	pools := slices.Collect(maps.Values(r.pools))
	r.mu.Unlock()
	for _, p := range pools {
		if p != but {
			p.CloseIdleConnections()
		}
	}
}
