// Package domain finds the longest domain in a table that contains a name.
package domain

import (
	"errors"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// ParseKey converts a domain name to wire format and lower case, which is the form of the keys of LongestMatch. It
// returns an error if the name is empty or invalid.
func ParseKey(domain string) (string, error) {
	var buf [wire.MaxName]byte
	n, err := dns.PackDomainName(dns.CanonicalName(domain), buf[:], 0, nil, false)
	if err == nil && domain == "" {
		err = errors.New("dnshedge: the domain is empty")
	}
	return string(buf[:max(n, 0)]), err
}

// LongestMatch finds the longest domain that contains the name of q, or its parent for type DS. It returns the domain's
// value, and n, its length in bytes in wire format (0: no match). The keys of domains must be results of ParseKey.
func LongestMatch[T any](domains map[string]T, q *wire.Query) (value T, n int) {
	if len(domains) == 0 {
		return value, 0
	}
	var buf [wire.MaxKey]byte
	name := q.AppendKey(buf[:0])[:len(q.Name)] // in lower case
	if q.Type == dns.TypeDS && len(name) > 1 { // the parent zone has the DS records (RFC 4035 §3.1.4.1)
		name = name[1+int(name[0]):]
	}
	for {
		if v, ok := domains[string(name)]; ok {
			return v, len(name)
		}
		if len(name) <= 1 {
			return value, 0
		}
		name = name[1+int(name[0]):]
	}
}
