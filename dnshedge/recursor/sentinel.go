package recursor

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// errRootKeySentinel is why a question ends that asks which keys of the root are trusted: SERVFAIL is one of the two answers.
var errRootKeySentinel = errors.New("recursor: answer to a question of a root key sentinel")

// checkRootKeySentinel returns errSentinel if a question whose answer is secure asks whether a key of the root is trusted, and that is not
// so (RFC 8509 §3).
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
