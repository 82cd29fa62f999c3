package recursor

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/fleet"
)

// rootServers are the addresses of a.root-servers.net to m.root-servers.net
// (https://www.internic.net/domain/named.root, b since 2023-11-27).
var rootServers = sync.OnceValue(func() []netip.Addr {
	var addrs []netip.Addr
	for _, s := range []string{
		"198.41.0.4", "2001:503:ba3e::2:30", // a
		"170.247.170.2", "2801:1b8:10::b", // b
		"192.33.4.12", "2001:500:2::c", // c
		"199.7.91.13", "2001:500:2d::d", // d
		"192.203.230.10", "2001:500:a8::e", // e
		"192.5.5.241", "2001:500:2f::f", // f
		"192.112.36.4", "2001:500:12::d0d", // g
		"198.97.190.53", "2001:500:1::53", // h
		"192.36.148.17", "2001:7fe::53", // i
		"192.58.128.30", "2001:503:c27::2:30", // j
		"193.0.14.129", "2001:7fd::1", // k
		"199.7.83.42", "2001:500:9f::42", // l
		"202.12.27.33", "2001:dc3::35", // m
	} {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	return addrs
})

// primer is the question that pays for priming.
type primer interface {
	chain.Bill
	spend(hedge bool) error
}

// primeAgain is how long the hints are used when priming has failed.
const primeAgain = time.Minute

// root returns where the root is served. The first who asks waits until a server of the hints
// has said so (RFC 9609 §3); when that is too old, it is used until there is news.
func (c *core) root(ctx context.Context, b primer) (*delegation, error) {
	c.primeMu.Lock()
	now := time.Now()
	z := c.primed
	if z != nil && now.Before(z.expires) && z.expires.Before(now.Add(maxTTL+maxSkew)) { // later: the clock was set back
		c.primeMu.Unlock()
		return z, nil
	}
	f := c.priming
	if f == nil {
		f = make(chan struct{})
		c.priming = f
		c.running.Go(func() { c.prime(b) })
	}
	c.primeMu.Unlock()
	if z != nil {
		return z, nil
	}
	select {
	case <-f:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c.primeMu.Lock()
	defer c.primeMu.Unlock()
	return c.primed, nil
}

// doubt ends what is known of the root's servers, z, when none of them answers: what was said of them, or
// imported, may be wrong.
func (c *core) doubt(z *delegation) {
	c.primeMu.Lock()
	defer c.primeMu.Unlock()
	if c.primed == z && len(z.names) > 0 { // otherwise they are hints, which end soon
		old := *z
		old.expires = time.Now()
		c.primed = &old
	}
}

// prime asks for the root's servers.
func (c *core) prime(b primer) {
	ctx, cancel := context.WithTimeout(c.ctx, maxFlight)
	defer cancel()
	z := c.unprimed()
	var said *chain.Said // to be proven; nil: nothing is validated
	m, err := c.fleet.Ask(ctx, &fleet.Task{
		Name: ".", Type: dns.TypeNS, DO: c.signed(), Zone: ".", Part: true, Servers: c.hints, Any: true,
		Judge: func(m *dns.Msg, from netip.AddrPort) (err error) {
			if m.Rcode != dns.RcodeSuccess {
				return fleet.ErrLame
			}
			said, err = c.weighPriming(b, m, from)
			return err
		},
		Spend: b.spend,
	})
	now := primed(m)
	if err != nil || now == nil {
		said = nil
	}
	if said != nil { // keys come beside
		short, stop := context.WithTimeout(ctx, keysTime)
		_ = c.chains.Prove(short, b, said) // without keys, nothing is known yet
		switch end := time.Now().Add(time.Duration(said.TTL) * time.Second).Round(0); {
		case said.Status == validate.Bogus:
			now = nil
		case said.Status == validate.Secure && end.Before(now.expires):
			now.expires = end
		}
		stop()
	}
	c.primeMu.Lock()
	if err == nil && now != nil {
		z = now
	} else if c.primed != nil {
		z.addrs = c.primed.addrs // those of before are better than hints
	}
	c.primed = z
	close(c.priming)
	c.priming = nil
	c.primeMu.Unlock()
	if said == nil || said.Status != validate.Unchecked || c.chains.Prove(ctx, b, said) != nil || said.Status != validate.Bogus {
		return
	}
	c.primeMu.Lock()
	defer c.primeMu.Unlock()
	if c.primed == z {
		c.primed = c.unprimed()
	}
}

// keysTime is how long what a server says of the root's servers waits for the root's keys. If they come later, it is believed until then.
const keysTime = 250 * time.Millisecond

// unprimed returns the root as the hints have it, for a while.
func (c *core) unprimed() *delegation {
	z := newZone(".")
	z.addrs, z.expires, z.any = c.hints, time.Now().Add(primeAgain), true
	return z
}

// weighPriming looks at the signature of the root's NS records, as far as that is possible at once. Their addresses have none (RFC 9609 §3.3). It returns
// what is left to prove, or why another server is asked.
func (c *core) weighPriming(b primer, m *dns.Msg, from netip.AddrPort) (*chain.Said, error) {
	if c.chains == nil {
		return nil, nil
	}
	q := question{name: ".", qtype: dns.TypeNS, do: true}
	r := read(m, c.hinted, q, true, time.Now())
	r.zone, r.from = c.hinted, from
	s := r.said(q.name, q.qtype)
	if c.chains.Judge(b.Work(), s, nil) != nil {
		return nil, fleet.ErrUnsigned
	}
	return s, nil
}

// primed returns what a response says of the root's servers, or nil if that is nothing.
func primed(m *dns.Msg) *delegation {
	if m == nil {
		return nil
	}
	z := newDelegation(".", ".", m.Answer, m.Extra, time.Now())
	if z == nil || len(z.addrs) == 0 {
		return nil
	}
	z.any = true
	return z
}
