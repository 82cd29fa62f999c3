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

	"github.com/gohedge/hedge/internal/dialrace"
)

// dialInterval is the time between the dials of two addresses (RFC 8305 §5).
const dialInterval = 250 * time.Millisecond

var errNoConn = errors.New("names: Dialer returned neither a connection nor an error")

// DialContext dials the addresses of a host in order, and returns the first connection. The next dial starts after
// 250 ms, or at once after a failure.
//
// The network is tcp or udp, optionally with 4 or 6. For other networks, IP addresses and empty hosts, it calls Dialer
// directly.
//
// The error is that of the first failed dial, or a *net.OpError with the *net.DNSError of a failed lookup.
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
		return n.trackByAddress(ctx, conn, ip.Unmap()), nil
	}
	h, err := n.acquireResolvedHost(ctx, name, want, false)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	defer n.releaseHost(h)
	d := &hostDial{h: h, network: network, port: port, want: want}
	return d.runDial(ctx)
}

// callDialer connects to an address by the Dialer. It returns an error if the Dialer fails, panics, or returns neither
// a connection nor an error.
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

// A hostDial is the state of one call of DialContext for a host: the addresses that were tried, and the dials that are
// still running.
type hostDial struct {
	h             *host
	network, port string
	want          addressFamilies
	rotation      uint               // rotates the addresses of a family
	version       uint64             // version of the host's addresses from which untried was made
	untried       []netip.Addr       // addresses to dial, in order
	tried         map[netip.Addr]int // addresses dialled so far, with their position
	pending       []netip.Addr       // tried addresses without a result
	dials         *dialrace.Race     // the dials
	err           error              // error of the first address that failed
}

// runDial dials the addresses of the host in order, until a dial succeeds, and returns that connection. It reads the
// list of addresses before each dial, because a lookup may add some.
func (d *hostDial) runDial(ctx context.Context) (net.Conn, error) {
	n := d.h.n
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.dials, d.tried = dialrace.New(errNoConn), make(map[netip.Addr]int)
	defer d.dials.Close()
	n.mu.Lock()
	d.h.rotation++
	d.rotation = d.h.rotation
	n.mu.Unlock()
	next := time.NewTimer(dialInterval)
	defer next.Stop()
	patient := time.NewTimer(dialInterval)
	patient.Stop()
	defer patient.Stop()
	for {
		ip, changed, wait := d.nextAddress(time.Now())
		if ip.IsValid() {
			d.startAttempt(ctx, ip)
			next.Reset(dialInterval)
		} else if len(d.pending) == 0 {
			if wait <= 0 {
				return nil, d.err
			}
			patient.Reset(wait)
		}
		for again := false; !again; {
			select {
			case r := <-d.dials.Results:
				d.pending = slices.DeleteFunc(d.pending, func(ip netip.Addr) bool { return ip == r.IP })
				if r.Err == nil {
					return d.recordSuccess(r), nil
				}
				if ctx.Err() != nil {
					return nil, d.contextError(ctx)
				}
				d.recordFailure(r)
				if d.err == nil {
					d.err = r.Err
				}
				again = true
			case <-next.C:
				again = true
			case <-changed:
				again = !ip.IsValid() // otherwise the next address is dialled after dialInterval
				changed = nil
			case <-patient.C:
				return nil, d.err
			case <-ctx.Done():
				return nil, d.contextError(ctx)
			}
		}
	}
}

// contextError returns the error of a DialContext whose context ctx has ended: a *net.OpError with the cause of ctx.
func (d *hostDial) contextError(ctx context.Context) error {
	return &net.OpError{Op: "dial", Net: d.network, Err: context.Cause(ctx)}
}

// nextAddress returns the address to dial next, or the zero Addr if none is left. When a lookup closes changed, there
// may be another address. If all dials have failed, the caller should wait for changed, at most for the duration wait.
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
			d.err = &net.OpError{Op: "dial", Net: d.network, Err: newUnsuitableError(h.name)}
		}
		h.requestLookup(now) // all dials have failed: the host may have other addresses now
		h.startLookupIfDue(now)
		if h.lookup != nil {
			wait = h.lookup.waitEnd.Sub(now)
		}
	}
	return ip, h.changed, wait
}

// startAttempt starts a dial to the address ip in the background. Its result arrives in d.dials. A connection that is
// made after the end of DialContext is closed.
func (d *hostDial) startAttempt(ctx context.Context, ip netip.Addr) {
	d.tried[ip] = len(d.tried)
	d.pending = append(d.pending, ip)
	d.dials.Start(ip, func() (net.Conn, error) {
		return d.h.n.callDialer(ctx, d.network, net.JoinHostPort(ip.String(), d.port))
	})
}

// recordFailure records that the dial r has failed, so that its address is dialled last for a minute at this port. If
// the dial before it succeeded at this address and port, recordFailure also requests a lookup, because the host may
// have lost the address.
func (d *hostDial) recordFailure(r dialrace.Result) {
	h := d.h
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	a, now := h.addrs[r.IP], time.Now()
	if a == nil {
		return
	}
	s := a.portHealthOf(d.port)
	s.failed = now
	if s.reached && a.removedAt.IsZero() {
		s.reached = false
		h.requestLookup(now)
		h.startLookupIfDue(now)
	}
}

// recordSuccess records that the dial r has succeeded. It returns the connection, which counts as a connection of the
// host until it is closed. Addresses whose dial started earlier and is still running are recorded as failed, because
// they are slower.
func (d *hostDial) recordSuccess(r dialrace.Result) net.Conn {
	h := d.h
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	for _, ip := range d.pending {
		if a := h.addrs[ip]; a != nil && d.tried[ip] < d.tried[r.IP] {
			a.portHealthOf(d.port).failed = time.Now()
		}
	}
	if a := h.addrs[r.IP]; a != nil {
		*a.portHealthOf(d.port) = portHealth{reached: true}
	}
	return h.n.trackConn(r.Conn, r.IP, []*host{h})
}

// A trackedConn records the remote address of one open connection, and the hosts to which the connection belongs. Names
// uses it to find connections to addresses that a host has lost. Names.mu guards the field closes.
type trackedConn struct {
	n      *Names
	hosts  []*host // hosts to which the connection belongs
	ip     netip.Addr
	closes time.Time // when a request that closes the connection started; zero: no request closes it
	once   sync.Once
}

// trackConn records that the open connection c to the address ip belongs to hosts. It returns a wrapper of c, whose
// Close removes the record. Until then, the hosts are looked up again whenever the TTL of their addresses ends. The
// caller must hold mu.
func (n *Names) trackConn(c net.Conn, ip netip.Addr, hosts []*host) net.Conn {
	t := &trackedConn{n: n, hosts: hosts, ip: ip}
	now := time.Now()
	for _, h := range hosts {
		a := h.addrs[ip]
		if a == nil { // it was removed while it was dialled
			a = &hostAddress{conns: make(map[*trackedConn]struct{}), removedAt: now}
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

// trackByAddress records the hosts of the connection c to ip: the host of the request in ctx, or all hosts for which
// LookupNetIP has returned ip. It returns a wrapper of c, or c if there is no host. The caller must not hold mu.
func (n *Names) trackByAddress(ctx context.Context, c net.Conn, ip netip.Addr) net.Conn {
	name, _ := ctx.Value(hostContextKey{}).(string)
	n.init()
	n.mu.Lock()
	defer n.mu.Unlock()
	hosts := slices.Clone(n.returned.hosts[ip])
	if h := n.hosts[canonicalHost(name)]; h != nil && h.addrs[ip] != nil { // the host has or had ip
		hosts = []*host{h}
	}
	if len(hosts) == 0 {
		return c
	}
	return n.trackConn(c, ip, hosts)
}

// recordClosed removes the connection from the hosts to which it belongs, because it is closed. Only the first call has
// an effect.
func (t *trackedConn) recordClosed() {
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

// getTracking returns t. Connection types that embed a *trackedConn inherit this method, and trackingOf calls it to
// find the record of a connection.
func (t *trackedConn) getTracking() *trackedConn { return t }

// A conn is a connection that DialContext returns, if it is neither a *net.TCPConn nor a *net.UDPConn. Its Close also
// removes it from the hosts to which it belongs (recordClosed).
type conn struct {
	net.Conn
	*trackedConn
}

func (c conn) Close() error {
	c.recordClosed()
	return c.Conn.Close()
}

// NetConn returns the wrapped connection, as the Dialer has opened it.
func (c conn) NetConn() net.Conn { return c.Conn }

// tcpConn is a TCP connection that DialContext returns. It has the methods of a *net.TCPConn, for example ReadFrom. Its
// Close also removes it from the hosts to which it belongs (recordClosed).
type tcpConn struct {
	*net.TCPConn
	*trackedConn
}

func (c tcpConn) Close() error {
	c.recordClosed()
	return c.TCPConn.Close()
}

// NetConn returns the wrapped connection, as the Dialer has opened it.
func (c tcpConn) NetConn() net.Conn { return c.TCPConn }

// udpConn is a UDP connection that DialContext returns. It has the methods of a *net.UDPConn, so it is a
// net.PacketConn. Its Close also removes it from the hosts to which it belongs (recordClosed).
type udpConn struct {
	*net.UDPConn
	*trackedConn
}

func (c udpConn) Close() error {
	c.recordClosed()
	return c.UDPConn.Close()
}

// NetConn returns the wrapped connection, as the Dialer has opened it.
func (c udpConn) NetConn() net.Conn { return c.UDPConn }
