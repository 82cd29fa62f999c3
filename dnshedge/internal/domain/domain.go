// Package domain finds the entry of the longest domain that contains a name.
package domain

import (
	"errors"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// ParseKey returns a domain in wire format and lower case.
func ParseKey(domain string) (string, error) {
	var buf [wire.MaxName]byte
	n, err := dns.PackDomainName(dns.CanonicalName(domain), buf[:], 0, nil, false)
	if err == nil && domain == "" {
		err = errors.New("dnshedge: the domain is empty")
	}
	return string(buf[:max(n, 0)]), err
}

// LongestMatch returns the value of the longest domain that q's name is in, and the domain's
// length in wire format; 0: there is none. The domains are as Key returns them. A question for DS records is
// in the domain above its name: the parent of a zone has them (RFC 4035 §3.1.4.1).
func LongestMatch[T any](domains map[string]T, q *wire.Query) (value T, n int) {
	if len(domains) == 0 {
		return value, 0
	}
	var buf [wire.MaxKey]byte
	name := q.AppendKey(buf[:0])[:len(q.Name)] // in lower case
	if q.Type == dns.TypeDS && len(name) > 1 {
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
