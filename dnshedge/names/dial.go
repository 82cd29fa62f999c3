package names

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// stagger is how long an address is waited for before the next one is tried as well (RFC 8305 §5).
const stagger = 250 * time.Millisecond

var errNoConn = errors.New("names: Dialer returned neither a connection nor an error")

// DialContext connects to address, a host and port, as the package says. It is for the DialContext
// field of an http.Transport and the like. The network is tcp or udp, or one of these with 4 or 6
// behind it; with any other, and if the host is an address or empty, Dialer connects by itself.
//
// If no address can be reached, the error is that of the first that failed. If the host is not
// known, it is a *net.OpError that wraps a *net.DNSError.
func (n *Names) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(address)
	want, other := familiesOf(network, "tcp", "udp")
	untracked := err != nil || other != nil || name == ""
	if ip, err := netip.ParseAddr(name); untracked || err == nil {
		if n.isClosed() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errClosed}
		}
		conn, err := n.callDialer(ctx, network, address)
		if untracked || err != nil {
			return conn, err
		}
		return n.trackReturned(ctx, conn, ip.Unmap()), nil
	}
	h, err := n.readyHost(ctx, name, want, false)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	defer n.releaseHost(h)
	d := &hostDial{h: h, network: network, port: port, want: want}
	return d.runDial(ctx)
}

// callDialer calls the Dialer. A panic is an error, and so is a result that has neither a connection nor an error.
func (n *Names) callDialer(ctx context.Context, network, address string) (conn net.Conn, err error) {
	defer func() {
		if p := recover(); p != nil {
			conn, err = nil, fmt.Errorf("names: Dialer panicked: %v", p)
		}
	}()
	conn, err = n.dialer().DialContext(ctx, network, address)
	switch {
	case err != nil:
		return nil, err
	case conn == nil:
		return nil, errNoConn
	}
	return conn, nil
}

// A hostDial is one call of DialContext.
type hostDial struct {
	h             *host
	network, port string
	want          addressFamilies
	rotation      uint
	version       uint64             // of the host's addresses that left is made of
	untried       []netip.Addr       // to try
	tried         map[netip.Addr]int // by number
	pending       []netip.Addr       // of those
	results       chan dialResult
	done          chan struct{} // closed when the dial has ended
	err           error         // of the first that failed
}

type dialResult struct {
	net.Conn
	ip  netip.Addr
	err error
}

// runDial connects to the first address that answers. It reads the list of addresses before each attempt, because a
// lookup may still add some.
func (d *hostDial) runDial(ctx context.Context) (net.Conn, error) {
	n := d.h.n
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.results, d.done, d.tried = make(chan dialResult), make(chan struct{}), make(map[netip.Addr]int)
	defer close(d.done)
	n.mu.Lock()
	d.h.rotation++
	d.rotation = d.h.rotation
	n.mu.Unlock()
	next := time.NewTimer(stagger)
	defer next.Stop()
	patient := time.NewTimer(stagger)
	patient.Stop()
	defer patient.Stop()
	for {
		ip, changed, wait := d.nextAddress(time.Now())
		if ip.IsValid() {
			d.startAttempt(ctx, ip)
			next.Reset(stagger)
		} else if len(d.pending) == 0 {
			if wait <= 0 {
				return nil, d.err
			}
			patient.Reset(wait)
		}
		for again := false; !again; {
			select {
			case r := <-d.results:
				d.pending = slices.DeleteFunc(d.pending, func(ip netip.Addr) bool { return ip == r.ip })
				if r.err == nil {
					return d.recordSuccess(r), nil
				}
				if ctx.Err() != nil {
					return nil, d.endError(ctx)
				}
				d.recordFailure(r)
				if d.err == nil {
					d.err = r.err
				}
				again = true
			case <-next.C:
				again = true
			case <-changed:
				again = !ip.IsValid() // otherwise the next address has time
				changed = nil
			case <-patient.C:
				return nil, d.err
			case <-ctx.Done():
				return nil, d.endError(ctx)
			}
		}
	}
}

func (d *hostDial) endError(ctx context.Context) error {
	return &net.OpError{Op: "dial", Net: d.network, Err: context.Cause(ctx)}
}

// nextAddress returns the address that is to be dialled next, if there is one. Otherwise changed is closed
// when there may be one. If none is left, it makes a lookup due, and returns how long to wait for it.
func (d *hostDial) nextAddress(now time.Time) (ip netip.Addr, changed <-chan struct{}, wait time.Duration) {
	h := d.h
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if d.version != h.version {
		d.version = h.version
		d.untried = slices.DeleteFunc(h.orderAddresses(d.want, d.rotation, d.port), func(ip netip.Addr) bool { _, tried := d.tried[ip]; return tried })
	}
	if len(d.untried) > 0 {
		ip, d.untried = d.untried[0], d.untried[1:]
	} else if len(d.pending) == 0 {
		if d.err == nil {
			d.err = &net.OpError{Op: "dial", Net: d.network, Err: unsuitableError(h.name)}
		}
		h.expireAddresses(now)
		h.startLookupIfDue(now)
		if h.lookup != nil {
			wait = h.lookup.patience.Sub(now)
		}
	}
	return ip, h.changed, wait
}

// startAttempt dials an address in a goroutine that ends when the Dialer has returned.
func (d *hostDial) startAttempt(ctx context.Context, ip netip.Addr) {
	d.tried[ip] = len(d.tried)
	d.pending = append(d.pending, ip)
	go func() {
		r := dialResult{ip: ip, err: errNoConn} // if the Dialer ends the goroutine
		defer func() {
			select {
			case d.results <- r:
			case <-d.done:
				if r.err == nil {
					runRecovered(func() { r.Close() })
				}
			}
		}()
		r.Conn, r.err = d.h.n.callDialer(ctx, d.network, net.JoinHostPort(ip.String(), d.port))
	}()
}

// runRecovered calls the user's code and drops its panic. On these goroutines no caller could recover it.
func runRecovered(f func()) {
	defer func() { _ = recover() }()
	f()
}

// recordFailure notes that an address failed. One that was reached before may have been given up, which
// a lookup will tell.
func (d *hostDial) recordFailure(r dialResult) {
	h := d.h
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	a, now := h.addrs[r.ip], time.Now()
	if a == nil {
		return
	}
	s := a.portHealthOf(d.port)
	s.failed = now
	if s.reached && a.removedAt.IsZero() {
		s.reached = false
		h.expireAddresses(now)
		h.startLookupIfDue(now)
	}
}

// recordSuccess returns the connection, and notes that the addresses that are still pending were overtaken.
func (d *hostDial) recordSuccess(r dialResult) net.Conn {
	h := d.h
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	for _, ip := range d.pending {
		if a := h.addrs[ip]; a != nil && d.tried[ip] < d.tried[r.ip] {
			a.portHealthOf(d.port).failed = time.Now()
		}
	}
	if a := h.addrs[r.ip]; a != nil {
		*a.portHealthOf(d.port) = portHealth{reached: true}
	}
	return h.n.trackConn(r.Conn, r.ip, []*host{h})
}

// connTracking is the record of an open connection: its host and address.
type connTracking struct {
	n      *Names
	hosts  []*host // that it belongs to
	ip     netip.Addr
	closes time.Time // when a request began that closes it; zero: none has
	once   sync.Once
}

// trackConn wraps a connection, so that it is known until it is closed. The caller holds mu.
func (n *Names) trackConn(c net.Conn, ip netip.Addr, hosts []*host) net.Conn {
	t := &connTracking{n: n, hosts: hosts, ip: ip}
	now := time.Now()
	for _, h := range hosts {
		a := h.addrs[ip]
		if a == nil { // it left while it was dialled
			a = &hostAddress{conns: make(map[*connTracking]struct{}), removedAt: now}
			h.addrs[ip] = a
		}
		a.conns[t] = struct{}{}
		h.addUser()
		if !a.removedAt.IsZero() {
			h.startDraining(now)
		}
	}
	switch c := c.(type) {
	case *net.TCPConn:
		return tcpConn{c, t}
	case *net.UDPConn:
		return udpConn{c, t}
	}
	return conn{c, t}
}

// trackReturned is track for a connection to an address that LookupNetIP may have returned.
func (n *Names) trackReturned(ctx context.Context, c net.Conn, ip netip.Addr) net.Conn {
	name, _ := ctx.Value(hostKey{}).(string)
	n.init()
	n.mu.Lock()
	defer n.mu.Unlock()
	hosts := slices.Clone(n.returned.hosts[ip])
	if h := n.hosts[canonicalHost(name)]; h != nil && h.addrs[ip] != nil {
		hosts = []*host{h}
	}
	if len(hosts) == 0 {
		return c
	}
	return n.trackConn(c, ip, hosts)
}

// recordClosed forgets a connection.
func (t *connTracking) recordClosed() {
	t.once.Do(func() {
		t.n.mu.Lock()
		defer t.n.mu.Unlock()
		for _, h := range t.hosts {
			if a := h.addrs[t.ip]; a != nil {
				delete(a.conns, t)
			}
			h.updateDraining(time.Now())
			h.removeUser()
		}
	})
}

// self returns the tracking of the connection that embeds it.
func (t *connTracking) self() *connTracking { return t }

// conn is a connection that tells when it is closed.
type conn struct {
	net.Conn
	*connTracking
}

func (c conn) Close() error {
	c.recordClosed()
	return c.Conn.Close()
}

// NetConn returns the Dialer's connection.
func (c conn) NetConn() net.Conn { return c.Conn }

// tcpConn is conn with the methods of a *net.TCPConn, for example ReadFrom.
type tcpConn struct {
	*net.TCPConn
	*connTracking
}

func (c tcpConn) Close() error {
	c.recordClosed()
	return c.TCPConn.Close()
}

// NetConn returns the Dialer's connection.
func (c tcpConn) NetConn() net.Conn { return c.TCPConn }

// udpConn is conn with the methods of a *net.UDPConn: it is a net.PacketConn.
type udpConn struct {
	*net.UDPConn
	*connTracking
}

func (c udpConn) Close() error {
	c.recordClosed()
	return c.UDPConn.Close()
}

// NetConn returns the Dialer's connection.
func (c udpConn) NetConn() net.Conn { return c.UDPConn }
