// Package lookup looks up the addresses of a host, one address family at a time.
package lookup

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	// ResolutionDelay is how long the addresses of one family wait for the addresses of the other family (RFC 8305 §3).
	ResolutionDelay = 50 * time.Millisecond

	// maxCNAMEs limits the length of a CNAME chain.
	maxCNAMEs = 16
)

// An Addr is an address of a host, and the time for which a program may use the address.
type Addr struct {
	Addr netip.Addr
	TTL  time.Duration
}

// An Exchanger answers DNS questions. The interface repeats dnshedge.Exchanger, because this package cannot import
// package dnshedge, which imports it.
type Exchanger interface {
	ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error)
}

var errNothing = errors.New("dnshedge: Exchanger returned neither a response nor an error")

// LookupAddrs asks x for the addresses of a host. typ is dns.TypeA or dns.TypeAAAA. Without addresses, it returns nil
// and no error. It returns errors of x unchanged. A response code other than success, or an invalid host name, is
// returned as an RcodeError.
func LookupAddrs(ctx context.Context, x Exchanger, host string, typ uint16) ([]Addr, error) {
	if !IsHostName(host) {
		return nil, RcodeError(dns.RcodeNameError)
	}
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
		return nil, RcodeError(r.Rcode)
	}
	var out []Addr
	FollowCNAMEs(r, host, 1<<32-1, func(rr dns.RR, ttl uint32) bool {
		var b []byte
		switch rr := rr.(type) {
		case *dns.A:
			b = rr.A.To4()
		case *dns.AAAA:
			b = rr.AAAA.To16()
		}
		ip, ok := netip.AddrFromSlice(b)
		if ok = ok && rr.Header().Rrtype == typ; ok {
			out = append(out, Addr{ip, time.Duration(ttl) * time.Second})
		}
		return ok
	})
	return out, nil
}

// A FamilyResult is the result of the query for the addresses of a host in one address family.
type FamilyResult struct {
	Family int // 0 for IPv4, 1 for IPv6
	Addrs  []Addr
	Err    error     // not nil: the addresses of the family are unknown
	At     time.Time // when the query ended
}

// QueryBothFamilies calls query for the types A and AAAA concurrently, each in a new goroutine. query must set Addrs or
// Err in r, and no other field. The returned channel receives both results, in the order in which the calls end. It is
// never closed.
func QueryBothFamilies(query func(typ uint16, r *FamilyResult)) <-chan *FamilyResult {
	results := make(chan *FamilyResult, 2)
	for family, typ := range [...]uint16{dns.TypeA, dns.TypeAAAA} {
		go func() {
			r := &FamilyResult{Family: family}
			defer func() { // also if query ends the goroutine
				r.At = time.Now()
				results <- r
			}()
			query(typ, r)
		}()
	}
	return results
}

// IsHostName reports whether name is a valid host name: labels of letters, digits, hyphens and underscores. Other DNS
// names may contain characters that are dangerous to show or store, and net.Resolver rejects them as well.
func IsHostName(name string) bool {
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for i := range len(label) {
			switch c := label[i]; {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			default:
				return false
			}
		}
	}
	return true
}

// FollowCNAMEs follows the CNAME chain of name in r, up to 16 names. It calls visit with their other records, and stops
// after a name for which visit returned true. ttl and the result, in seconds, are at most maxTTL and the CNAMEs' TTLs.
func FollowCNAMEs(r *dns.Msg, name string, maxTTL uint32, visit func(rr dns.RR, ttl uint32) bool) uint32 {
	name = dns.CanonicalName(name)
	owners := make([]string, len(r.Answer))
	for i, rr := range r.Answer {
		owners[i] = dns.CanonicalName(rr.Header().Name)
	}
	for range maxCNAMEs {
		next, accepted := "", false
		for i, rr := range r.Answer {
			h := rr.Header()
			if owners[i] != name {
				continue
			}
			if alias, ok := rr.(*dns.CNAME); ok {
				next, maxTTL = dns.CanonicalName(alias.Target), min(maxTTL, h.Ttl)
			} else {
				accepted = visit(rr, min(maxTTL, h.Ttl)) || accepted
			}
		}
		if next == "" || accepted {
			break
		}
		name = next
	}
	return maxTTL
}

// An RcodeError is the error of a lookup whose response has a response code other than success. Its value is the
// response code.
type RcodeError int

func (e RcodeError) Error() string {
	return "dnshedge: response code " + dns.RcodeToString[int(e)]
}

// NewNotFoundError returns a *net.DNSError with the message "no such host" and IsNotFound set. It is for a host that
// does not exist or has no addresses.
func NewNotFoundError(host string) error {
	return &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// NewDNSError converts err, the error of a lookup of host, into a *net.DNSError that wraps err. It sets IsNotFound,
// IsTimeout and IsTemporary as net.Resolver does.
func NewDNSError(host string, err error) error {
	e := &net.DNSError{UnwrapErr: err, Err: err.Error(), Name: host}
	var code RcodeError
	var t net.Error
	switch {
	case errors.As(err, &code) && code == dns.RcodeNameError:
		e.Err, e.IsNotFound = "no such host", true
	case errors.As(err, &code):
		e.IsTemporary = code == dns.RcodeServerFailure
	case errors.Is(err, context.Canceled):
	case errors.As(err, &t):
		again, ok := t.(interface{ Temporary() bool })
		e.IsTimeout, e.IsTemporary = t.Timeout(), ok && again.Temporary()
	}
	return e
}

type cacheBypassKey struct{}

// WithCacheBypass returns a context that makes a dnshedge.Client ask the servers even if its Cache has the answer. The
// Client stores the new answer in the Cache as usual.
func WithCacheBypass(ctx context.Context) context.Context {
	return context.WithValue(ctx, cacheBypassKey{}, true)
}

// HasCacheBypass reports whether ctx was derived from a result of WithCacheBypass.
func HasCacheBypass(ctx context.Context) bool { return ctx.Value(cacheBypassKey{}) != nil }
