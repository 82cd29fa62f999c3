package dnshedge

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/lookup"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// AddrTTL is an address of a host, and the time for which a program may use the address without another lookup.
type AddrTTL struct {
	Addr netip.Addr
	TTL  time.Duration
}

// LookupNetIP looks up the addresses of a host through this Client, with search domains and /etc/hosts, as
// net.Resolver.LookupNetIP does. The network must be "ip", "ip4" or "ip6".
func (c *Client) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	return c.Resolver().LookupNetIP(ctx, network, host)
}

// LookupAddrs looks up the addresses of a host with their TTLs, IPv4 first. host is a complete name: Client.Hosts is
// used, but search domains and /etc/hosts are not. An address as host is returned with TTL 0.
//
// If one family has addresses, an error of the other is ignored, and also an answer that comes more than 50 ms later
// (RFC 8305 §3). Errors are of type *net.DNSError.
func (c *Client) LookupAddrs(ctx context.Context, host string) ([]AddrTTL, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []AddrTTL{{Addr: ip}}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := lookup.QueryBothFamilies(func(typ uint16, r *lookup.FamilyResult) { // ends soon after ctx does
		r.Addrs, r.Err = lookup.LookupAddrs(ctx, c, host, typ)
	})
	var both [2]lookup.FamilyResult
	first := <-results
	both[first.Family] = *first
	var late <-chan time.Time
	if len(first.Addrs) > 0 {
		t := time.NewTimer(lookup.ResolutionDelay)
		defer t.Stop()
		late = t.C
	}
	select {
	case second := <-results:
		both[second.Family] = *second
	case <-late:
	}
	if all := append(both[0].Addrs, both[1].Addrs...); len(all) > 0 {
		out := make([]AddrTTL, len(all))
		for i, a := range all {
			out[i] = AddrTTL(a)
		}
		return out, nil
	}
	for _, r := range both {
		if r.Err != nil {
			return nil, lookup.NewDNSError(host, cmp.Or(ctx.Err(), r.Err)) // the error of a cancelled context has precedence
		}
	}
	return nil, lookup.NewNotFoundError(host)
}

// Warm prepares the Client for its first question. It connects to the default and the fallback servers, measures their
// round trip times, and then looks up the addresses of names. It returns when this is done, or when ctx ends. The error
// joins the errors of all servers and names that failed.
func (c *Client) Warm(ctx context.Context, names ...string) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	servers, err := core.servers.defaultServers()
	if err != nil {
		return err
	}
	servers = append(servers[:len(servers):len(servers)], core.servers.fallback...)
	errs := make([]error, len(servers)+len(names))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() {
			if _, err := s.RunProbe(ctx, nil); err != nil {
				errs[i] = newNoAnswerError(wire.RootServers, s, err)
			}
		})
	}
	wg.Wait()
	for i, name := range names {
		wg.Go(func() { _, errs[len(servers)+i] = c.LookupAddrs(ctx, name) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
