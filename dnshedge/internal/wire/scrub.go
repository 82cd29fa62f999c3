package wire

import (
	"strings"

	"github.com/miekg/dns"
)

// maxAliases is how many aliases are followed. Resolvers give up earlier.
const maxAliases = 16

// scrub removes from the answer section what does not answer the question: records
// whose owner is neither its name nor one that it is an alias of (RFC 1034 §4.3.2).
// It reports whether there were any.
func scrub(m *dns.Msg) bool {
	ask := m.Question[0].Name
	clean := true
	for _, rr := range m.Answer {
		clean = clean && strings.EqualFold(rr.Header().Name, ask)
	}
	if clean {
		return false
	}
	// The order of records means nothing; each round follows at least one alias.
	names := map[string]bool{dns.CanonicalName(ask): true}
	for grown := true; grown && len(names) <= maxAliases; {
		grown = false
		for _, rr := range m.Answer {
			owner := dns.CanonicalName(rr.Header().Name)
			var target string
			switch rr := rr.(type) {
			case *dns.CNAME:
				if names[owner] {
					target = dns.CanonicalName(rr.Target)
				}
			case *dns.DNAME:
				target = substitute(names, owner, dns.CanonicalName(rr.Target))
			}
			if target != "" && !names[target] && len(names) <= maxAliases {
				names[target], grown = true, true
			}
		}
	}
	kept := m.Answer[:0]
	for _, rr := range m.Answer {
		owner := dns.CanonicalName(rr.Header().Name)
		if names[owner] || isDNAME(rr) && substitute(names, owner, ".") != "" {
			kept = append(kept, rr)
		}
	}
	dropped := len(kept) < len(m.Answer)
	m.Answer = kept
	return dropped
}

// substitute returns what a name below owner becomes by a DNAME record (RFC 6672
// §2.2), or nothing if no name is below it.
func substitute(names map[string]bool, owner, target string) string {
	for name := range names {
		if name == owner || !dns.IsSubDomain(owner, name) {
			continue
		}
		prefix := name
		if owner != "." {
			prefix = strings.TrimSuffix(name, owner)
		}
		if target == "." {
			return prefix
		}
		return prefix + target
	}
	return ""
}

// isDNAME reports whether a record is a DNAME or the signature of one.
func isDNAME(rr dns.RR) bool {
	if sig, ok := rr.(*dns.RRSIG); ok {
		return sig.TypeCovered == dns.TypeDNAME
	}
	return rr.Header().Rrtype == dns.TypeDNAME
}
