package recursor

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// errRootKeySentinel is the error of a root key sentinel question that must be answered with SERVFAIL (RFC 8509).
var errRootKeySentinel = errors.New("recursor: root key sentinel question is answered with SERVFAIL")

// checkRootKeySentinel returns errRootKeySentinel if q is a root key sentinel query that must be answered with SERVFAIL
// (RFC 8509 §3). By these queries, a client determines which root keys a resolver trusts. trusted holds the key tags
// of the root's trust anchors. It must only be called if the answer to q is secure.
func checkRootKeySentinel(q question, trusted []uint16) error {
	const prefix, digits = "root-key-sentinel-", 5
	rest, ok := strings.CutPrefix(q.name, prefix)
	if !ok || q.qtype != dns.TypeA && q.qtype != dns.TypeAAAA {
		return nil
	}
	label, _, _ := strings.Cut(rest, ".")
	tag, is := strings.CutPrefix(label, "is-ta-")
	if !is {
		if tag, ok = strings.CutPrefix(label, "not-ta-"); !ok {
			return nil
		}
	}
	n, err := strconv.ParseUint(tag, 10, 16)
	if err != nil || len(tag) != digits || slices.Contains(trusted, uint16(n)) == is {
		return nil
	}
	return errRootKeySentinel
}
