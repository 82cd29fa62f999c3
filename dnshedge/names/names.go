// Package names connects to hosts whose addresses change. It stores the addresses of a host, looks them up again when
// their TTL ends or a dial fails, and drains connections to addresses that the host no longer has.
//
//	n := &names.Names{Exchanger: client} // a *dnshedge.Client
//	base := http.DefaultTransport.(*http.Transport).Clone()
//	base.DialContext = n.DialContext
//	client := &http.Client{Transport: n.Drain(base)}
//
// With package hedge, n is also the Resolver for hedges to other addresses, and drains their connections:
//
//	n.Drain(hedge.New(base, hedge.WithReplicas(n)))
//
// Package grpcnames does the same for gRPC.
//
// # When a host is looked up
//
// A host is looked up when it is first needed, and again after the TTL of its addresses has ended. The second lookup
// starts at once while connections to the host are open or it is watched, and otherwise when the host is needed next.
//
// A failed dial and Refresh end the TTL early. A host with addresses is not looked up again before MinTTL has passed.
//
// All callers that wait for a lookup share it. Lookups of a host with known addresses bypass the Cache of a Client.
//
// At most 256 lookups of new hosts run at a time, or an eighth of the MaxInFlight of a Client, and as many lookups of
// known hosts.
//
// Other lookups wait for a slot, which becomes free when a lookup has ended or has taken a second. A waiting lookup of
// a new host is dropped when no caller needs it any more.
//
// A lookup that fails or finds no address changes nothing: the known addresses remain in use, at any age. The next
// lookup follows after MinTTL. After each further failure the time doubles, up to a minute.
//
// A caller that needs an address waits a second for a lookup before it uses the old addresses. It does not wait if the
// previous lookup failed.
//
// If only one address family fails, its old addresses remain, and the other family is updated. NXDOMAIN for one family
// counts as a failure if the other family has addresses.
//
// # Connecting
//
// The addresses are dialled as RFC 8305 says. They are sorted by RFC 6724, with the source addresses of this machine if
// Dialer is nil or a net.Dialer. The families alternate, beginning with the family of the best address. The next
// address is tried after 250 ms, or at once when a dial fails. The first connection is used.
//
// Equal addresses of a family are rotated from one dial to the next. An address that failed, or was slower than a later
// one, comes last for a minute when its port is dialled again.
//
// For a new host, IPv4 waits 50 ms for IPv6. If all addresses fail, the dial starts a lookup, waits for it for at most
// a second, and tries new addresses.
//
// The lookup that has found the first addresses of a host may still be running then, because the answer for the other
// family is late. The dial waits for that answer, until ten seconds after the start of the lookup.
//
// # Draining
//
// A host has lost an address if its last successful lookup did not find it. If connections to the address are open,
// Names calls CloseIdleConnections of each RoundTripper that was passed to Drain, if it has this method. An
// *http.Transport then closes the idle connections of all hosts.
//
// The call is repeated after one second, two, four and so on, while connections to lost addresses are open. A panic of
// the method is recovered.
//
// The next requests to the host are sent with Request.Close set. An HTTP/1.1 connection closes after the request, which
// has the header "Connection: close". An HTTP/2 connection closes when all its requests have ended.
//
// Request.Close is not set for requests through a proxy, nor for URLs with a host that is not ASCII. A request whose
// connection closes before the request's body was read is sent again.
//
// If three lookups within ten minutes find lost addresses again, the host's name servers probably return a different
// part of a larger set each time. Connections to an address are then closed only after the address was in no answer for
// five minutes.
//
// LookupNetIP may return one address for several hosts. A connection that is dialled to it for a request through the
// RoundTripper of Drain belongs to the host in the request's URL. Any other connection to it belongs to all of these
// hosts, at most to the last eight.
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
	maxUnusedHosts = 1024            // limit of hosts that are stored although they are unused
	maxUnusedAddrs = 1 << 16         // limit of addresses of unused hosts
	dialTimeout    = 30 * time.Second
)

var errClosed = fmt.Errorf("names: Names is closed: %w", net.ErrClosed)

// Names looks up and stores the addresses of hosts, and connects to hosts. The zero value uses the system's DNS
// servers. The fields must not be changed after first use. Names is safe for concurrent use.
//
// Host names are complete: search domains are not used. Case and a final dot do not matter. Besides hosts in use, the
// 1024 most recently used hosts are stored, with at most 65,536 addresses.
type Names struct {
	// Exchanger answers the DNS questions, for example a *dnshedge.Client. If it panics, the lookup fails. Nil: a
	// Client of the system's servers with default settings, and with the hosts file /etc/hosts if the file exists.
	Exchanger dnshedge.Exchanger

	// Dialer connects to addresses. Nil: a net.Dialer with a Timeout of 30 s. If it panics, or returns neither a
	// connection nor an error, the dial to the address fails.
	Dialer dnshedge.Dialer

	// MinTTL is the shortest time between two lookups of a host with addresses, and raises shorter TTLs. Values below
	// five seconds, including zero, mean five seconds.
	//
	// A TTL below MinTTL is raised only to one second if one of the two previous TTLs of its address family was at
	// least MinTTL. The TTL is then the remaining TTL in a server's cache.
	MinTTL time.Duration

	// MaxTTL lowers longer TTLs. Zero: an hour. A value below MinTTL means MinTTL.
	MaxTTL time.Duration

	once          sync.Once
	ctx           context.Context
	cancel        context.CancelFunc
	own           *defaultClients // used if Exchanger is nil; otherwise nil
	wg            sync.WaitGroup  // lookups, and sweeps of idle connections
	drainingHosts atomic.Int64    // number of hosts with connections to be drained
	slots         exchangerSlots  // limits how many lookups run at a time

	mu          sync.Mutex // guards the fields below, and all hosts
	closed      bool
	hosts       map[string]*host
	unused      list.List         // of *host; the most recently used host is first
	unusedAddrs int               // number of addresses of unused hosts
	returned    returnedAddresses // addresses that LookupNetIP has returned
	drains      []interface{ CloseIdleConnections() }
}

func (n *Names) init() {
	n.once.Do(func() {
		n.ctx, n.cancel = context.WithCancel(context.Background())
		n.hosts = make(map[string]*host)
		n.returned.hosts = make(map[netip.Addr][]*host)
		n.slots = newExchangerSlots(n.Exchanger)
		if n.Exchanger == nil {
			n.own = &defaultClients{hosts: "/etc/hosts"}
		}
	})
}

// exchanger returns the Exchanger for lookups. It is the field Exchanger, or a Client of the system's servers if that
// field is nil.
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

// LookupNetIP returns the addresses of a host, in the order in which DialContext would dial them. The network is ip,
// ip4 or ip6. The error of a failed lookup is a *net.DNSError. With this method, Names is a hedge.Resolver.
//
// A connection that DialContext makes to a returned address counts as a connection to the host. If the host loses the
// address, the RoundTripper of Drain closes the connection.
func (n *Names) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	want, err := familiesOf(network, "ip")
	if err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		switch {
		case n.isClosed():
			return nil, errClosed
		case !want[familyIndex(ip)]:
			return nil, newUnsuitableError(host)
		}
		return []netip.Addr{ip}, nil
	}
	h, err := n.acquireResolvedHost(ctx, host, want, true)
	if err != nil {
		return nil, err
	}
	defer n.releaseHost(h)
	n.mu.Lock()
	defer n.mu.Unlock()
	addrs := h.orderAddresses(want, h.rotation, "")
	if len(addrs) == 0 {
		return nil, newUnsuitableError(host)
	}
	for _, ip := range addrs {
		n.returned.addHost(ip, h)
	}
	return addrs, nil
}

// Watch yields the addresses of a host, in the order in which DialContext would dial them, and yields them again
// whenever they change. The sequence ends when ctx ends or Close is called.
//
// Until an address is known, Watch yields the *net.DNSError of each failed lookup. Failed lookups are repeated after
// one second, two, four and so on, up to a minute.
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
			case !h.hasAddresses() && h.failures > failed:
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

// Refresh starts a lookup of a host before the TTL of its addresses has ended: at once, or MinTTL after the last lookup
// if that is later. It does not wait for the result. The known addresses remain in use.
//
// A host without connections, dials or watchers is looked up at its next use. Refresh does nothing for an unknown host
// or after Close.
func (n *Names) Refresh(host string) {
	n.init()
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.hosts[canonicalHost(host)]; h != nil && !n.closed {
		h.requestLookup(time.Now())
		if h.users > 0 {
			h.startLookupIfDue(time.Now())
		}
	}
}

// Close cancels all lookups and waits until they have ended. It closes no connections. Later lookups and dials fail. It
// always returns nil.
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

// acquireResolvedHost returns the state of the host with this name, once an address is known. If necessary, it waits
// for a lookup: for all families if waitForAll is true, and otherwise for one result. If the error is nil, the caller
// must call releaseHost.
func (n *Names) acquireResolvedHost(
	ctx context.Context, name string, families addressFamilies, waitForAll bool,
) (*host, error) {
	h, err := n.waitForResolvedHost(ctx, name, families, waitForAll)
	if err != nil && ctx.Err() != nil {
		cause := context.Cause(ctx)
		err = &net.DNSError{UnwrapErr: cause, Err: cause.Error(), Name: name, IsTimeout: ctx.Err() == context.DeadlineExceeded}
	}
	return h, err
}

// waitForResolvedHost looks up the host name if it has no addresses or their TTL has ended. It waits for the results of
// all families if waitForAll is true, and otherwise for one result. If the error is nil, the caller must call
// releaseHost.
func (n *Names) waitForResolvedHost(
	ctx context.Context, name string, families addressFamilies, waitForAll bool,
) (*host, error) {
	n.init()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, errClosed
	}
	h := n.acquireHost(name)
	began := h.failures
	if now := time.Now(); !h.hasAddresses() || !now.Before(h.nextLookup) {
		h.startLookup(now)
	}
	// with known addresses, at most lookupPatience, or not at all after a failed lookup
	for h.lookup != nil && h.failures == began && !h.lookup.hasEnoughResults(families, waitForAll) &&
		!h.lookup.previousFailed &&
		h.waitForLookup(ctx, h.lookup.waitDeadline(waitForAll && h.hasFamilies(families)), h.hasAddresses()) {
	}
	if h.hasAddresses() {
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

// releaseHost ends one use of h, which began with acquireResolvedHost or acquireHost. After the last use, h is not
// looked up again, and may be removed from memory. The caller must not hold mu.
func (n *Names) releaseHost(h *host) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h.removeUser()
}

// acquireHost returns the state of a host for use, and creates it if necessary. The state is not removed from memory
// before the caller has called releaseHost. The caller must hold mu.
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

// addUnusedHost adds a host that no connection, dial or watcher uses to the list of unused hosts. If the list is then
// too long (maxUnusedHosts, maxUnusedAddrs), the least recently used hosts are removed from memory. The caller must
// hold mu.
func (n *Names) addUnusedHost(h *host) {
	if h.unusedElement == nil {
		h.unusedElement = n.unused.PushFront(h)
		n.unusedAddrs += len(h.addrs)
	}
	if !h.hasAddresses() { // there is nothing to keep
		n.forgetHost(h)
	}
	for n.unused.Len() > maxUnusedHosts || n.unusedAddrs > maxUnusedAddrs {
		n.forgetHost(n.unused.Back().Value.(*host))
	}
}

// removeUnusedHost removes a host from the list of unused hosts, because the host is used again or forgotten. It does
// nothing if the host is not in the list. The caller must hold mu.
func (n *Names) removeUnusedHost(h *host) {
	if h.unusedElement != nil {
		n.unused.Remove(h.unusedElement)
		n.unusedAddrs -= len(h.addrs)
		h.unusedElement = nil
	}
}

// forgetHost removes a host that no connection, dial or watcher uses, and all its addresses, from memory. A later
// lookup of the host starts anew. The caller must hold mu.
func (n *Names) forgetHost(h *host) {
	n.removeUnusedHost(h)
	delete(n.hosts, h.name)
	for ip := range h.addrs {
		h.dropAddress(ip)
	}
}

// canonicalHost returns a host name in lower case and without a final dot, so that equal names have equal strings.
// Names.hosts uses this form.
func canonicalHost(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// addressFamilies is a set of address families: the first element stands for IPv4, and the second for IPv6.
type addressFamilies [2]bool // IPv4, IPv6

var anyFamily = addressFamilies{true, true}

// familyIndex returns the index for the address family of ip in an addressFamilies or in host.families. It is 0 for an
// IPv4 address, also one mapped into IPv6, and 1 for an IPv6 address.
func familyIndex(ip netip.Addr) int {
	if ip.Unmap().Is4() {
		return 0
	}
	return 1
}

// familiesOf returns the address families that a network such as "tcp6" permits. kinds lists the permitted networks
// without a suffix 4 or 6, for example "tcp". For any other network, the error is a net.UnknownNetworkError.
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

// newUnsuitableError returns a *net.DNSError for a host that has no address of the requested family.
func newUnsuitableError(host string) error {
	return &net.DNSError{Err: "no suitable address", Name: host, IsNotFound: true}
}
