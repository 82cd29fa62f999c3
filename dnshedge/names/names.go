// Package names connects to hosts whose addresses change. It keeps the addresses of a
// host, looks them up again when their TTL ends or a dial fails, and drops connections to
// addresses that the host has no more.
//
//	n := &names.Names{Exchanger: client} // a *dnshedge.Client
//	base := http.DefaultTransport.(*http.Transport).Clone()
//	base.DialContext = n.DialContext
//	client := &http.Client{Transport: n.Drain(base)}
//
// With package hedge, n is the Resolver for hedges to other addresses as well, and drains
// their connections:
//
//	n.Drain(hedge.New(base, hedge.WithReplicas(n)))
//
// Package grpcnames does the same for gRPC.
//
// # When a host is looked up
//
// A host is looked up when it is first needed, and again when the TTL of its addresses has
// ended: at once while connections to it are open or somebody watches it, and otherwise when
// it is needed next. A failed dial and Refresh end the TTL early, but a host that has addresses is
// not looked up again before MinTTL has passed. All who wait for a lookup share it. The servers are
// asked, also by a Client with a Cache, unless the host is new.
//
// Thousands of hosts may be needed at once: 256 new ones are looked up at a time, or an eighth of the
// MaxInFlight of a Client, and as many known ones. The others wait for their turn, which comes when another
// lookup has ended or has taken a second. A new host that nobody waits for any more loses its place.
//
// A lookup that fails or finds no address changes nothing: the addresses that are known are
// used on, however old they are. The next lookup is MinTTL later, and after each failure the time
// doubles, to a minute. Who needs an address waits a second for a lookup, and not at all if the
// one before failed; then the old addresses are used.
// If only one address family fails, its addresses stay, and those of the other are new. A server that
// says of one type that there is no such host, and has addresses of the other, has failed.
//
// # Connecting
//
// The addresses are dialled as RFC 8305 says: they are sorted by RFC 6724, by the source addresses that this machine has if Dialer
// is nil or a net.Dialer, and the families take turns, that of the best address first; the next
// address is tried after 250 ms, or at once when one fails; and the first that connects wins.
// Addresses of a family take turns from one dial to the next. One that failed, or was overtaken,
// comes last for a minute when its port is dialled again. IPv4 waits 50 ms for IPv6 if the host is new. If all addresses fail,
// a dial waits for the lookup that it caused, for a second at most, and tries those that are new.
package names

import (
	"container/list"
	"context"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge"
)

const (
	defaultMinTTL  = 5 * time.Second // MinTTL
	defaultMaxTTL  = time.Hour       // MaxTTL
	maxUnusedHosts = 1024            // that are kept although nobody uses them
	maxUnusedAddrs = 1 << 16         // addresses of those
	dialTimeout    = 30 * time.Second
)

var errClosed = fmt.Errorf("names: Names is closed: %w", net.ErrClosed)

// Names keeps the addresses of hosts. The zero value works, and asks the servers of the system. Its fields must not be
// changed after first use. Names is safe for concurrent use.
//
// Hosts are complete names: search domains are not used. Case and a final dot do not matter. Besides hosts with open
// connections, Names keeps 1024 hosts, with 65,536 addresses in all. It removes the least recently used hosts first.
type Names struct {
	// Exchanger answers the questions, such as a *dnshedge.Client. Nil: a Client of the
	// system's servers with its defaults, that knows /etc/hosts when there is one. If it
	// panics, the lookup fails.
	Exchanger dnshedge.Exchanger

	// Dialer connects to addresses. Nil: a net.Dialer with a Timeout of 30 s. If it panics, or returns neither a
	// connection nor an error, the address fails.
	Dialer dnshedge.Dialer

	// MinTTL is the shortest time between two lookups of a host, and raises shorter TTLs. Zero,
	// and whatever is less: 5 s. A TTL that is shorter than that of the answer before is the
	// remainder in a server's cache, and ends after a second at the soonest.
	MinTTL time.Duration

	// MaxTTL lowers longer TTLs. Zero: an hour. Less than MinTTL is MinTTL.
	MaxTTL time.Duration

	once          sync.Once
	ctx           context.Context
	cancel        context.CancelFunc
	own           *defaultClients // in place of Exchanger; nil: it is set
	wg            sync.WaitGroup  // lookups and sweeps
	drainingHosts atomic.Int64    // hosts with connections that are to be drained
	slots         exchangerSlots

	mu          sync.Mutex // guards the fields below, and all hosts
	closed      bool
	hosts       map[string]*host
	unused      list.List // of *host: those that nobody uses, the last used first
	unusedAddrs int       // addresses of those
	returned    returnedAddresses
	drains      []interface{ CloseIdleConnections() }
}

func (n *Names) init() {
	n.once.Do(func() {
		n.ctx, n.cancel = context.WithCancel(context.Background())
		n.hosts = make(map[string]*host)
		n.returned.hosts = make(map[netip.Addr][]*host)
		n.slots = slotsOf(n.Exchanger)
		if n.Exchanger == nil {
			n.own = &defaultClients{hosts: "/etc/hosts"}
		}
	})
}

func (n *Names) exchanger() dnshedge.Exchanger {
	if n.own != nil {
		return n.own.getClient()
	}
	return n.Exchanger
}

func (n *Names) dialer() dnshedge.Dialer {
	if n.Dialer != nil {
		return n.Dialer
	}
	return &net.Dialer{Timeout: dialTimeout}
}

func (n *Names) minTTL() time.Duration { return max(n.MinTTL, defaultMinTTL) }

func (n *Names) maxTTL() time.Duration {
	if n.MaxTTL == 0 {
		return max(defaultMaxTTL, n.minTTL())
	}
	return max(n.MaxTTL, n.minTTL())
}

// LookupNetIP returns the addresses of a host, in the order in which they would be dialled.
// The network is ip, ip4 or ip6. Names thus is a hedge.Resolver. Errors are of type
// *net.DNSError if the host is not known.
//
// A connection that DialContext makes to one of the addresses belongs to the host, as those do that it makes to
// the host by name. If several hosts have the address, it belongs to the one of the request that it is made for, if
// that came through Drain, and otherwise to the eight of them that were looked up last.
func (n *Names) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	want, err := familiesOf(network, "ip")
	if err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		switch {
		case n.isClosed():
			return nil, errClosed
		case !want.hasFamilyOf(ip):
			return nil, unsuitableError(host)
		}
		return []netip.Addr{ip}, nil
	}
	h, err := n.readyHost(ctx, host, want, true)
	if err != nil {
		return nil, err
	}
	defer n.releaseHost(h)
	n.mu.Lock()
	defer n.mu.Unlock()
	addrs := h.orderAddresses(want, h.rotation, "")
	if len(addrs) == 0 {
		return nil, unsuitableError(host)
	}
	for _, ip := range addrs {
		n.returned.addHost(ip, h)
	}
	return addrs, nil
}

// Watch yields the addresses of a host, and again whenever they have changed, in the order in
// which they would be dialled. As long as no address is known, it yields the error of each lookup
// that failed, of type *net.DNSError; the next one begins a second later, and then after twice
// the time, up to a minute. The sequence ends with ctx and with Close.
func (n *Names) Watch(ctx context.Context, host string) iter.Seq2[[]netip.Addr, error] {
	return func(yield func([]netip.Addr, error) bool) {
		if ctx.Err() != nil {
			return
		}
		n.init()
		n.mu.Lock()
		if n.closed {
			n.mu.Unlock()
			return
		}
		h := n.acquireHost(host)
		defer n.releaseHost(h)
		var seen, failed uint64
		for {
			h.startLookupIfDue(time.Now())
			changed := h.changed
			var addrs []netip.Addr
			var err error
			switch {
			case h.version > seen:
				seen, addrs = h.version, h.orderAddresses(anyFamily, 0, "")
			case !h.isKnown() && h.failures > failed:
				failed, err = h.failures, h.err
			}
			n.mu.Unlock()
			if (addrs != nil || err != nil) && !yield(addrs, err) {
				return
			}
			if addrs == nil && err == nil {
				select {
				case <-changed:
				case <-ctx.Done():
				case <-n.ctx.Done():
				}
			}
			if ctx.Err() != nil || n.ctx.Err() != nil {
				return
			}
			n.mu.Lock()
		}
	}
}

// Refresh ends the TTL of a host's addresses, as a dial does that fails: they are looked up
// again now, or MinTTL after they were looked up last. It does not wait for that, and does
// nothing if the host is not known.
func (n *Names) Refresh(host string) {
	n.init()
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.hosts[canonicalHost(host)]; h != nil && !n.closed {
		h.expireAddresses(time.Now())
		if h.users > 0 {
			h.startLookupIfDue(time.Now())
		}
	}
}

// Close ends all lookups and waits until they have ended. It closes no connections. Lookups
// and dials after Close fail. It always returns nil.
func (n *Names) Close() error {
	n.init()
	n.mu.Lock()
	n.closed = true
	for _, h := range n.hosts {
		h.stopTimers()
	}
	n.mu.Unlock()
	n.cancel()
	n.wg.Wait()
	if n.own != nil {
		n.own.closeClients()
	}
	return nil
}

// isClosed reports whether Close has been called.
func (n *Names) isClosed() bool {
	n.init()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed
}

// readyHost returns a host with known addresses, which are fresh if a lookup finishes in time. With all it waits for
// all wanted families. The caller releases the host.
func (n *Names) readyHost(ctx context.Context, name string, want addressFamilies, all bool) (*host, error) {
	h, err := n.awaitHost(ctx, name, want, all)
	if err != nil && ctx.Err() != nil {
		err = contextError(name, ctx)
	}
	return h, err
}

// awaitHost is ready, but for the error of a caller whose context has ended.
func (n *Names) awaitHost(ctx context.Context, name string, want addressFamilies, all bool) (*host, error) {
	n.init()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, errClosed
	}
	h := n.acquireHost(name)
	began := h.failures
	h.startLookupIfNeeded(time.Now())
	for h.lookup != nil && h.failures == began && !h.lookup.hasEnough(want, all) && !h.lookup.doubtful &&
		h.waitForLookup(ctx, h.lookup.waitLimit(all && h.hasFamilies(want)), h.isKnown()) {
	}
	if h.isKnown() {
		if h.hasUnsureSource {
			h.determineSources()
		}
		return h, nil
	}
	h.removeUser()
	if h.failures == began {
		return nil, errClosed
	}
	return nil, h.err
}

// releaseHost ends a hold.
func (n *Names) releaseHost(h *host) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h.removeUser()
}

// acquireHost returns the state of a host, and creates it if necessary. The caller holds mu, and releases the host.
func (n *Names) acquireHost(name string) *host {
	name = canonicalHost(name)
	h := n.hosts[name]
	if h == nil {
		h = &host{n: n, name: name, addrs: make(map[netip.Addr]*hostAddress), changed: make(chan struct{})}
		n.hosts[name] = h
	}
	h.addUser()
	return h
}

// addUnusedHost keeps an unused host, if its addresses are known, and removes the least recently used hosts if there are
// too many. The caller holds mu.
func (n *Names) addUnusedHost(h *host) {
	if h.unusedElement == nil {
		h.unusedElement = n.unused.PushFront(h)
		n.unusedAddrs += len(h.addrs)
	}
	if !h.isKnown() {
		n.forgetHost(h)
	}
	for n.unused.Len() > maxUnusedHosts || n.unusedAddrs > maxUnusedAddrs {
		n.forgetHost(n.unused.Back().Value.(*host))
	}
}

// removeUnusedHost takes a host out of the list of unused hosts. The caller holds mu.
func (n *Names) removeUnusedHost(h *host) {
	if h.unusedElement != nil {
		n.unused.Remove(h.unusedElement)
		n.unusedAddrs -= len(h.addrs)
		h.unusedElement = nil
	}
}

func (n *Names) forgetHost(h *host) {
	n.removeUnusedHost(h)
	delete(n.hosts, h.name)
	for ip := range h.addrs {
		h.dropAddress(ip)
	}
}

// canonicalHost returns a host's name as the key of Names.hosts.
func canonicalHost(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// addressFamilies says which address families a network has.
type addressFamilies [2]bool // IPv4, IPv6

var anyFamily = addressFamilies{true, true}

func (f addressFamilies) hasFamilyOf(ip netip.Addr) bool { return f[familyIndex(ip)] }

func familyIndex(ip netip.Addr) int {
	if ip.Unmap().Is4() {
		return 0
	}
	return 1
}

// familiesOf returns the families of a network that is one of the kinds, with 4 or 6 behind it
// or nothing.
func familiesOf(network string, kinds ...string) (addressFamilies, error) {
	kind := strings.TrimRight(network, "46")
	if slices.Contains(kinds, kind) {
		switch network[len(kind):] {
		case "":
			return anyFamily, nil
		case "4":
			return addressFamilies{true, false}, nil
		case "6":
			return addressFamilies{false, true}, nil
		}
	}
	return addressFamilies{}, net.UnknownNetworkError(network)
}

func unsuitableError(host string) error {
	return &net.DNSError{Err: "no suitable address", Name: host, IsNotFound: true}
}

func contextError(host string, ctx context.Context) error {
	err := context.Cause(ctx)
	return &net.DNSError{UnwrapErr: err, Err: err.Error(), Name: host, IsTimeout: ctx.Err() == context.DeadlineExceeded}
}
