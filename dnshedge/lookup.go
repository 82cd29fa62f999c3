package dnshedge

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	maxChain        = 16                    // CNAMEs that are followed
	resolutionDelay = 50 * time.Millisecond // for the other address family (RFC 8305 §3)
)

// AddrTTL is an address and how long it may be used.
type AddrTTL struct {
	Addr netip.Addr
	TTL  time.Duration
}

// LookupNetIP looks up a host's addresses as net.Resolver's does, search
// domains and /etc/hosts included. The network is ip, ip4 or ip6.
func (c *Client) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	return c.Resolver().LookupNetIP(ctx, network, host)
}

// LookupAddrs looks up the addresses of a host, with their TTLs. A TTL is not longer
// than those of the CNAMEs that lead to the address. The host is a complete name:
// search domains and /etc/hosts are not used, but Client.Hosts is. IPv4 addresses come
// first. If host is an address, it is returned with TTL 0.
//
// If one address family fails and the other has addresses, those are returned
// without an error; so they are if the other family's answer is 50 ms later (RFC 8305
// §3). Errors are of type *net.DNSError.
func (c *Client) LookupAddrs(ctx context.Context, host string) ([]AddrTTL, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []AddrTTL{{Addr: ip}}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var addrs [2][]AddrTTL
	var errs [2]error
	var done [2]chan struct{}
	for i, t := range [...]uint16{dns.TypeA, dns.TypeAAAA} {
		done[i] = make(chan struct{})
		go func() { // ends soon after ctx does
			defer close(done[i])
			addrs[i], errs[i] = c.lookup(ctx, host, t)
		}()
	}
	first, second := 0, 1
	select {
	case <-done[0]:
	case <-done[1]:
		first, second = 1, 0
	}
	if len(addrs[first]) == 0 {
		<-done[second]
	} else {
		late := time.NewTimer(resolutionDelay)
		defer late.Stop()
		select {
		case <-done[second]:
		case <-late.C:
			return addrs[first], nil
		}
	}
	if all := append(addrs[0], addrs[1]...); len(all) > 0 {
		return all, nil
	}
	for _, err := range errs {
		if err != nil {
			return nil, dnsError(host, err)
		}
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// dnsError returns the error of a lookup as net.Resolver has it.
func dnsError(host string, err error) error {
	e := &net.DNSError{UnwrapErr: err, Err: err.Error(), Name: host}
	var code rcodeError
	var t net.Error
	switch {
	case errors.As(err, &code) && code == dns.RcodeNameError:
		e.Err, e.IsNotFound = "no such host", true
	case errors.As(err, &code):
		e.IsTemporary = code == dns.RcodeServerFailure
	case errors.As(err, &t) && t.Timeout():
		e.IsTimeout = true
	}
	return e
}

// lookup looks up addresses of one family.
func (c *Client) lookup(ctx context.Context, host string, typ uint16) ([]AddrTTL, error) {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(host), typ)
	r, _, err := c.ExchangeContext(ctx, m, "")
	if err != nil {
		return nil, err
	}
	if r.Rcode != dns.RcodeSuccess {
		return nil, rcodeError(r.Rcode)
	}
	var out []AddrTTL
	name, least := dns.CanonicalName(host), uint32(1<<32-1)
	for range maxChain {
		next := ""
		for _, rr := range r.Answer {
			h := rr.Header()
			if dns.CanonicalName(h.Name) != name {
				continue
			}
			ttl := time.Duration(min(least, h.Ttl)) * time.Second
			switch rr := rr.(type) {
			case *dns.CNAME:
				next, least = dns.CanonicalName(rr.Target), min(least, h.Ttl)
			case *dns.A:
				if ip, ok := netip.AddrFromSlice(rr.A.To4()); ok && typ == dns.TypeA {
					out = append(out, AddrTTL{ip, ttl})
				}
			case *dns.AAAA:
				if ip, ok := netip.AddrFromSlice(rr.AAAA.To16()); ok && typ == dns.TypeAAAA {
					out = append(out, AddrTTL{ip, ttl})
				}
			}
		}
		if next == "" || len(out) > 0 {
			break
		}
		name = next
	}
	return out, nil
}

// Warm makes the first question as fast as the others: it connects to all servers,
// measures their round trip times, and looks up the given names. It returns when all
// of that is done, or when ctx ends. The error joins those of the servers and names
// that failed, and does not affect the others.
func (c *Client) Warm(ctx context.Context, names ...string) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	group, err := core.upstreams()
	if err != nil {
		return err
	}
	group = append(group[:len(group):len(group)], core.fallback...)
	errs := make([]error, len(group)+len(names))
	var wg sync.WaitGroup
	for i, s := range group {
		wg.Go(func() {
			if _, err := s.probe(ctx); err != nil {
				errs[i] = s.fail(wire.RootServers, err)
			}
		})
	}
	wg.Wait()
	for i, name := range names {
		wg.Go(func() { _, errs[len(group)+i] = c.LookupAddrs(ctx, name) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
