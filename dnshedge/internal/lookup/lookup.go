// Package lookup asks for the addresses of a host, one family at a time.
package lookup

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

const (
	// Delay is how long the addresses of one family wait for those of the other (RFC 8305 §3).
	Delay = 50 * time.Millisecond

	// MaxChain is how many CNAMEs are followed.
	MaxChain = 16
)

// An Addr is an address and how long it may be used.
type Addr struct {
	Addr netip.Addr
	TTL  time.Duration
}

// An Exchanger is dnshedge's.
type Exchanger interface {
	ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error)
}

var errNothing = errors.New("dnshedge: Exchanger returned neither a response nor an error")

// Addrs looks up the addresses of a host that have a type, TypeA or TypeAAAA. No
// addresses and no error mean that the host has none of that type. A response code that
// is a failure is an Rcode.
func Addrs(ctx context.Context, x Exchanger, host string, typ uint16) ([]Addr, error) {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(host), typ)
	r, _, err := x.ExchangeContext(ctx, m, "")
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, errNothing
	}
	if r.Rcode != dns.RcodeSuccess {
		return nil, Rcode(r.Rcode)
	}
	var out []Addr
	name, least := dns.CanonicalName(host), uint32(1<<32-1)
	for range MaxChain {
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
					out = append(out, Addr{ip, ttl})
				}
			case *dns.AAAA:
				if ip, ok := netip.AddrFromSlice(rr.AAAA.To16()); ok && typ == dns.TypeAAAA {
					out = append(out, Addr{ip, ttl})
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

// Rcode is a response code that is a failure.
type Rcode int

func (e Rcode) Error() string {
	return "dnshedge: response code " + dns.RcodeToString[int(e)]
}

// NotFound returns the error of a host without addresses.
func NotFound(host string) error {
	return &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// Error returns the error of a lookup as net.Resolver has it.
func Error(host string, err error) error {
	e := &net.DNSError{UnwrapErr: err, Err: err.Error(), Name: host}
	var code Rcode
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

type serversKey struct{}

// FromServers returns a context under which a Client does not answer from its Cache.
func FromServers(ctx context.Context) context.Context {
	return context.WithValue(ctx, serversKey{}, true)
}

// IsFromServers reports whether FromServers made ctx, or one that it stands on.
func IsFromServers(ctx context.Context) bool { return ctx.Value(serversKey{}) != nil }
