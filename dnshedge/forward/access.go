package forward

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/connlimit"
)

// An AccessList lists the networks whose clients may send queries. An empty list admits no client.
type AccessList []netip.Prefix

// ParseNetwork parses an element of an AccessList from s: a network, such as "192.0.2.0/24", or a single address, such
// as "2001:db8::1". It returns an error for other texts, for an address with a zone, and for an IPv4 network in IPv6
// form.
func ParseNetwork(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if ip, e := netip.ParseAddr(s); e == nil && ip.Zone() == "" {
		ip = ip.Unmap()
		p, err = ip.Prefix(ip.BitLen())
	}
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("forward: %q is neither an address nor a network", s)
	}
	return p.Masked(), nil
}

// LocalNetworks returns the loopback, private, shared (100.64.0.0/10) and link-local networks. A forwarder that is open
// to other networks is soon abused for amplification attacks.
func LocalNetworks() (l AccessList) {
	for _, s := range []string{
		"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10",
		"::1/128", "fc00::/7", "fe80::/10",
	} {
		l = append(l, netip.MustParsePrefix(s))
	}
	return l
}

// validate returns an error that names the first invalid element of the list. It returns nil if every element is an
// IPv4 or IPv6 network. An IPv4 network in IPv6 form is invalid: Contains would find no client in it, because Contains
// converts addresses to IPv4 form first.
func (l AccessList) validate() error {
	for _, p := range l {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("forward: Config.Allow has %v; want IPv4 and IPv6 networks, as ParseNetwork returns", p)
		}
	}
	return nil
}

// Contains reports whether the address ip of a client is in one of the networks. An IPv4 address in IPv6 form counts as
// IPv4, and the zone of an address is ignored. The zero Addr is in no network.
func (l AccessList) Contains(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return slices.ContainsFunc(l, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// accessControl decides which clients may send queries, and limits the rate of queries of each client. It is safe for
// concurrent use.
type accessControl struct {
	allowed   AccessList
	perSecond float64 // questions of one client; 0: no limit

	mu        sync.Mutex                   // guards the fields below
	limits    map[netip.Addr]*rate.Limiter // limiters by connlimit.ClientAddress
	oldLimits map[netip.Addr]*rate.Limiter // limiters of clients that have sent nothing since limits was created
}

// maxLimits is the limit of stored limiters in each of the maps limits and oldLimits. A sender with more addresses
// forges them, and its limiters are dropped and created again from time to time.
const maxLimits = 1 << 15

// allowQuestion reports whether the rate limit of a client permits another question now, and counts the question if so.
// at is the network address of the client.
func (a *accessControl) allowQuestion(at net.Addr) bool {
	return a.perSecond == 0 || a.limiterFor(at).Allow()
}

// maxWait limits how long a question over a TCP or TLS connection waits for the rate limit. The shutdown waits for
// these questions.
const maxWait = time.Second

// reserveQuestion counts a question that a client sends over a TCP or TLS connection. It returns how long the question
// must wait for the rate limit of that client. at is the network address of the client.
//
// If the result is longer than maxWait (one second), the question was not counted and must be rejected.
func (a *accessControl) reserveQuestion(at net.Addr) time.Duration {
	if a.perSecond == 0 {
		return 0
	}
	r := a.limiterFor(at).Reserve()
	d := r.Delay()
	if d > maxWait {
		r.Cancel()
	}
	return d
}

// limiterFor returns the rate limiter of the client with the network address at, and creates it if necessary. When the
// map limits has 32,768 limiters (maxLimits), it becomes oldLimits, and a new map takes its place. The limiters that
// were only in the map oldLimits before are dropped.
func (a *accessControl) limiterFor(at net.Addr) *rate.Limiter {
	client := connlimit.ClientAddress(at)
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.limits[client]
	if l == nil {
		l = cmp.Or(a.oldLimits[client], rate.NewLimiter(rate.Limit(a.perSecond), max(1, int(a.perSecond))))
		if a.limits == nil || len(a.limits) >= maxLimits {
			a.limits, a.oldLimits = make(map[netip.Addr]*rate.Limiter), a.limits
		}
		a.limits[client] = l
	}
	return l
}

// clientAddress returns the IP address in at, the network address of a client. For a network other than UDP and TCP, it
// returns the zero Addr, which no AccessList contains.
func clientAddress(at net.Addr) netip.Addr {
	if a, ok := at.(interface{ AddrPort() netip.AddrPort }); ok {
		return a.AddrPort().Addr()
	}
	return netip.Addr{}
}

// admitQuery decides whether a Server answers, refuses or ignores a query from the network address at. Over UDP, a client
// outside the access list gets REFUSED, a response no longer than its query. A query above the rate limit gets no
// response over UDP, so the client sends it again.
//
// Over a connection, admitQuery waits until the rate limit permits the query. If the wait would exceed one second
// (maxWait), it returns Ignore, which closes the connection.
func (a *accessControl) admitQuery(at net.Addr) dnshedge.Verdict {
	if _, udp := at.(*net.UDPAddr); !udp {
		wait := a.reserveQuestion(at)
		if wait > maxWait {
			return dnshedge.Ignore
		}
		time.Sleep(wait)
		return dnshedge.Answer
	}
	switch {
	case !a.allowed.Contains(clientAddress(at)):
		return dnshedge.Refuse
	case !a.allowQuestion(at):
		return dnshedge.Ignore
	}
	return dnshedge.Answer
}
