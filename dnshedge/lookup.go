package dnshedge

import (
	"bufio"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// maxChain is how many CNAMEs are followed.
const maxChain = 16

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

// LookupAddrs looks up the addresses of a host with their TTLs, those of the
// CNAMEs on the way counted. The name is taken as complete: there are no search
// domains and no /etc/hosts. IPv4 addresses come first; an address in place of a
// name is returned with TTL 0.
//
// If one family fails but there are addresses of the other, those are returned
// without an error. Errors are of type *net.DNSError.
func (c *Client) LookupAddrs(ctx context.Context, host string) ([]AddrTTL, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []AddrTTL{{Addr: ip}}, nil
	}
	var (
		addrs [2][]AddrTTL
		errs  [2]error
		wg    sync.WaitGroup
	)
	for i, t := range [...]uint16{dns.TypeA, dns.TypeAAAA} {
		wg.Go(func() { addrs[i], errs[i] = c.lookup(ctx, host, t) })
	}
	wg.Wait()
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

// rcodeError is a response code that is a failure.
type rcodeError int

func (e rcodeError) Error() string {
	return "dnshedge: response code " + dns.RcodeToString[int(e)]
}

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

// Warm makes the first question as fast as the others: it connects to all
// servers, measures how far they are, and looks up the given names if there is a
// cache. It returns when all of that is done or ctx ends. The error joins those
// of servers and names that failed; the others are warm all the same.
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
			if err := s.hello(ctx); err != nil {
				errs[i] = s.fail(rootQuery, err)
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

// learned is what is saved of a server.
type learned struct {
	Server        string
	Answers, Path []time.Duration // quantiles, evenly spaced
	SRTT          float64
	Shake         float64
}

const savedQuantiles = 64

// Save writes the cache, if there is one, and what was learned of the servers'
// times, so that a restarted program begins where this one ended.
func (c *Client) Save(w io.Writer) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	if err := cmp.Or(c.Cache, new(Cache)).Save(w); err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	enc := gob.NewEncoder(out)
	core.mu.Lock()
	var all []learned
	for _, s := range core.servers {
		all = append(all, s.learned())
	}
	core.mu.Unlock()
	if err := errors.Join(enc.Encode(all), out.Flush()); err != nil {
		return fmt.Errorf("dnshedge: save times: %w", err)
	}
	return nil
}

// Load adds what Save wrote. Servers that the Client does not have are left out.
func (c *Client) Load(r io.Reader) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	in := bufio.NewReader(r)
	if err := cmp.Or(c.Cache, new(Cache)).Load(in); err != nil {
		return err
	}
	var all []learned
	if err := gob.NewDecoder(in).Decode(&all); err != nil {
		return fmt.Errorf("dnshedge: load times: %w", err)
	}
	if _, err := core.upstreams(); err != nil { // makes the system's servers known
		return err
	}
	core.mu.Lock()
	defer core.mu.Unlock()
	for _, l := range all {
		if s := core.servers[l.Server]; s != nil {
			s.relive(l)
		}
	}
	return nil
}

func (s *server) learned() learned {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := learned{Server: s.name, SRTT: s.srtt, Shake: s.shake}
	for i := range savedQuantiles {
		q := (float64(i) + 0.5) / savedQuantiles
		if d, ok := s.answers.Quantile(q); ok {
			l.Answers = append(l.Answers, d)
		}
		if d, ok := s.path.Quantile(q); ok {
			l.Path = append(l.Path, d)
		}
	}
	return l
}

// relive learns what was learned before.
func (s *server) relive(l learned) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range l.Answers {
		s.answers.Add(now, d)
		s.sent, s.got = s.sent+1, s.got+1
	}
	for _, d := range l.Path {
		s.path.Add(now, d)
	}
	if l.SRTT > 0 {
		s.srtt, s.srttAt = l.SRTT, now
	}
	if l.Shake > 0 {
		s.shake = l.Shake
	}
	s.relearn()
}
