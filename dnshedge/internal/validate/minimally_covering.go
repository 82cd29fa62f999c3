package validate

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/miekg/dns"
)

// IsMinimallyCovering reports whether an NSEC or NSEC3 RRset covers only the name of one question (RFC 4470, RFC 9824,
// RFC 7129 appendix B). A server generates records of this kind for each response, so that caching them is useless.
func (s *RRset) IsMinimallyCovering() bool {
	if s.Type != dns.TypeNSEC && s.Type != dns.TypeNSEC3 {
		return false
	}
	c := s.canonicalForm()
	if !c.ok || len(c.rdata) != 1 {
		return false
	}
	if s.Type == dns.TypeNSEC {
		n, ok := scanName(c.rdata[0])
		return ok && areAdjacentNames(c.owner, name(c.rdata[0][:n]))
	}
	var one nsec3Set
	one.addRecord(c.owner, c.rdata[0], c.owner.parent(), Verification{})
	return len(one.records) == 1 && one.records[0].hasNarrowSpan()
}

// areAdjacentNames reports whether next follows owner so closely that a server has generated the NSEC record for one
// question (minimally covering, RFC 4470). The owner name is then a predecessor of the question's name, or the next name is
// a successor (RFC 4471).
//
// The first label of a successor begins with a zero byte or ends with one, and that of a predecessor ends with a byte of
// 255.
func areAdjacentNames(owner, next name) bool {
	if strings.HasPrefix(string(next), "\x01\x00") {
		return true
	}
	if next == root || owner == root || next.parent() != owner.parent() {
		return false
	}
	a, b := owner[1:1+owner[0]], next[1:1+next[0]]
	return strings.HasSuffix(string(a), "\xff") || strings.HasSuffix(string(b), "\x00")
}

// hasNarrowSpan reports whether the owner hash and the next hash are so close together that the record was made for a
// single question. Hashes of two existing names differ more.
func (n *nsec3) hasNarrowSpan() bool {
	const head = 12 // bytes that differ by one at most, of 20
	if bytes.Equal(n.owner[:head], n.next[:head]) {
		return bytes.Compare(n.owner[:], n.next[:]) < 0
	}
	a, b := binary.BigEndian.Uint64(n.owner[head-8:]), binary.BigEndian.Uint64(n.next[head-8:])
	return bytes.Equal(n.owner[:head-8], n.next[:head-8]) && b-a == 1
}
