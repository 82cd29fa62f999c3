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

// validate returns an error that names the first invalid element of the list, or nil if every element is an IPv4 or
// IPv6 network. An IPv4 network in IPv6 form, such as ::ffff:192.0.2.0/120, is invalid.
func (l AccessList) validate() error {
	for _, p := range l {
		if !p.IsValid() || p.Addr().Is4In6() { // Contains finds no client in a network in IPv6 form
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
// client is the network address of the client.
func (a *accessControl) allowQuestion(client net.Addr) bool {
	return a.perSecond == 0 || a.limiterFor(client).Allow()
}

// maxWait limits how long a question over a TCP or TLS connection waits for the rate limit. The shutdown waits for
// these questions.
const maxWait = time.Second

// reserveQuestion counts a question that a client sends over a connection, and returns how long the question must wait
// for the client's rate limit. If the result is above one second (maxWait), the question is not counted and must be
// rejected.
func (a *accessControl) reserveQuestion(client net.Addr) time.Duration {
	if a.perSecond == 0 {
		return 0
	}
	r := a.limiterFor(client).Reserve()
	d := r.Delay()
	if d > maxWait {
		r.Cancel()
	}
	return d
}

// limiterFor returns the rate limiter of a client, and creates it if necessary. client is the network address of the
// client. If too many limiters are stored (maxLimits), limiters of clients that have sent no question recently are
// dropped.
func (a *accessControl) limiterFor(client net.Addr) *rate.Limiter {
	key := connlimit.ClientAddress(client)
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.limits[key]
	if l == nil {
		l = cmp.Or(a.oldLimits[key], rate.NewLimiter(rate.Limit(a.perSecond), max(1, int(a.perSecond))))
		if a.limits == nil || len(a.limits) >= maxLimits {
			// limiters that are only in oldLimits are dropped
			a.limits, a.oldLimits = make(map[netip.Addr]*rate.Limiter), a.limits
		}
		a.limits[key] = l
	}
	return l
}

// clientAddress returns the IP address in client, the network address of a client. For a network other than UDP and
// TCP, it returns the zero Addr, which no AccessList contains.
func clientAddress(client net.Addr) netip.Addr {
	if a, ok := client.(interface{ AddrPort() netip.AddrPort }); ok {
		return a.AddrPort().Addr()
	}
	return netip.Addr{}
}

// admitQuery decides whether a Server answers, refuses (REFUSED) or ignores a client's query. Over UDP it checks the
// access list and the rate limit. Over a connection it waits for the rate limit, or returns Ignore if the wait would
// exceed one second (maxWait).
func (a *accessControl) admitQuery(client net.Addr) dnshedge.Verdict {
	if _, udp := client.(*net.UDPAddr); !udp {
		wait := a.reserveQuestion(client)
		if wait > maxWait {
			return dnshedge.Ignore
		}
		time.Sleep(wait)
		return dnshedge.Answer
	}
	switch {
	case !a.allowed.Contains(clientAddress(client)):
		return dnshedge.Refuse // a response no longer than the query
	case !a.allowQuestion(client):
		return dnshedge.Ignore // the client sends the query again
	}
	return dnshedge.Answer
}
