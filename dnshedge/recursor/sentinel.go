package recursor

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// errRootKeySentinel ends a root key sentinel question whose answer is SERVFAIL.
var errRootKeySentinel = errors.New("recursor: answer to a question of a root key sentinel")

// checkRootKeySentinel returns errRootKeySentinel if q asks for the trust in a root key and the answer is no (RFC 8509
// §3). The answer to q must be secure.
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
