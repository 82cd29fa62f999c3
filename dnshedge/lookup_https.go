package dnshedge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/lookup"
)

// maxAliases limits the records in AliasMode that are followed (RFC 9460 §2.4.2 demands a limit).
const maxAliases = 8

// HTTPSService is one server and port at which an origin can be reached over HTTPS, from an HTTPS record (RFC 9460).
type HTTPSService struct {
	Priority uint16        // from 1; the lowest is tried first; 0: the record only names an alias of the origin
	Target   string        // host to connect to, as a complete name with a final dot
	Port     uint16        // to connect to; 0: the origin's
	ALPN     []string      // protocols that the service speaks, such as "h2"; nil: not known
	Hints    []netip.Addr  // addresses of Target, for use until Target has been looked up
	ECH      []byte        // ECHConfigList, for tls.Config.EncryptedClientHelloConfigList; nil: none
	TTL      time.Duration // time for which the service, and the aliases that lead to it, may be used
}

// LookupHTTPS looks up the HTTPS records of the origin https://host:port (RFC 9460). host is a complete name, and port
// 0 means 443. The services are in the order in which clients try them, and random among equal priorities. The result
// is empty, without an error, if there are no records or one is malformed. Records with mandatory parameters that
// [HTTPSService] does not support are omitted.
//
// Errors are of type *net.DNSError. If DNSSEC or TLS protects the responses, a client should not connect after an error
// (§3.1).
func (c *Client) LookupHTTPS(ctx context.Context, host string, port uint16) ([]HTTPSService, error) {
	if !lookup.IsHostName(host) {
		return nil, lookup.NewNotFoundError(host)
	}
	name := dns.Fqdn(host)
	if port != 0 && port != 443 {
		name = fmt.Sprintf("_%d._https.%s", port, name) // §9.1
	}
	target, maxTTL := "", uint32(1<<32-1)
	for range maxAliases {
		records, err := c.lookupHTTPS(ctx, name, &maxTTL)
		if err != nil {
			return nil, lookup.NewDNSError(host, err)
		}
		alias := slices.IndexFunc(records, func(r *dns.HTTPS) bool { return r.Priority == 0 })
		if alias < 0 {
			services := parseServices(records, maxTTL)
			if len(records) == 0 && target != "" {
				services = []HTTPSService{{Target: target, TTL: time.Duration(maxTTL) * time.Second}} // §3
			}
			return services, nil
		}
		target, maxTTL = records[alias].Target, min(maxTTL, records[alias].Hdr.Ttl)
		if target == "." {
			return nil, &net.DNSError{Err: "no such service", Name: host, IsNotFound: true} // §2.5.1
		}
		name = target
	}
	return nil, &net.DNSError{Err: fmt.Sprintf("more than %d aliases", maxAliases), Name: host}
}

// lookupHTTPS queries the HTTPS records of a name, and returns the records at the end of its CNAME chain. It lowers
// *maxTTL, in seconds, to the TTLs of the CNAMEs. The result is nil if there are no records, or one is malformed.
func (c *Client) lookupHTTPS(ctx context.Context, name string, maxTTL *uint32) (out []*dns.HTTPS, err error) {
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeHTTPS)
	r, _, err := c.ExchangeContext(ctx, m, "")
	switch {
	case err != nil:
		return nil, err
	case r.Rcode == dns.RcodeNameError:
		return nil, nil
	case r.Rcode != dns.RcodeSuccess:
		return nil, lookup.RcodeError(r.Rcode)
	}
	malformed := false
	*maxTTL = lookup.FollowCNAMEs(r, name, *maxTTL, func(rr dns.RR, _ uint32) bool {
		https, ok := rr.(*dns.HTTPS)
		if ok {
			out = append(out, https)
		}
		malformed = malformed || !ok && rr.Header().Rrtype == dns.TypeHTTPS
		return ok
	})
	if malformed {
		return nil, nil // RFC 9460 §2.2: as if there were none of them
	}
	return out, nil
}

// parseServices converts HTTPS records whose priority is not 0 to HTTPSServices, by priority and in random order within
// a priority. TTLs are limited to maxTTL, in seconds. Records that a client must not use are omitted (RFC 9460 §7.1.1,
// §8).
func parseServices(records []*dns.HTTPS, maxTTL uint32) (out []HTTPSService) {
	for _, r := range records {
		if s, err := parseService(r); err == nil {
			s.TTL = time.Duration(min(maxTTL, r.Hdr.Ttl)) * time.Second
			out = append(out, s)
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	slices.SortStableFunc(out, func(a, b HTTPSService) int { return cmp.Compare(a.Priority, b.Priority) })
	return out
}

// errUnusableRecord is the error for an HTTPS record that a client must not use (RFC 9460 §7.1.1, §8).
var errUnusableRecord = errors.New("dnshedge: HTTPS record cannot be used")

func parseService(r *dns.HTTPS) (HTTPSService, error) {
	s := HTTPSService{Priority: r.Priority, Target: r.Target}
	if s.Target == "." {
		s.Target = r.Hdr.Name // §2.5.2
	}
	noDefault := false
	hint := func(ips []net.IP) {
		for _, ip := range ips {
			if a, ok := netip.AddrFromSlice(ip); ok {
				s.Hints = append(s.Hints, a.Unmap())
			}
		}
	}
	for _, v := range r.Value {
		switch v := v.(type) {
		case *dns.SVCBMandatory:
			for _, key := range v.Code {
				has := slices.ContainsFunc(r.Value, func(v dns.SVCBKeyValue) bool { return v.Key() == key })
				if key > dns.SVCB_IPV6HINT || !has { // §8: what is demanded must be understood, and be there
					return s, errUnusableRecord
				}
			}
		case *dns.SVCBAlpn:
			s.ALPN = append(s.ALPN, v.Alpn...)
		case *dns.SVCBNoDefaultAlpn:
			noDefault = true
		case *dns.SVCBPort:
			s.Port = v.Port
		case *dns.SVCBIPv4Hint:
			hint(v.Hint)
		case *dns.SVCBIPv6Hint:
			hint(v.Hint)
		case *dns.SVCBECHConfig:
			s.ECH = v.ECH
		}
	}
	switch {
	case noDefault && s.ALPN == nil:
		return s, errUnusableRecord // §7.1.1
	case !noDefault && !slices.Contains(s.ALPN, "http/1.1"):
		s.ALPN = append(s.ALPN, "http/1.1") // §9
	}
	return s, nil
}
