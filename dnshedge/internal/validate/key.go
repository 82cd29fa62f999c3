package validate

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// A key is a record of a DNSKEY RRset.
type key struct {
	data      []byte // in canonical form
	tag       uint16
	algorithm uint8
	verifier  verifier // nil: it verifies nothing
	reason    uint16   // why not: an extended error
	refused   bool     // it is not: of an algorithm, or of a size, that is not supported
}

// is reports whether two keys are of one record.
func (k *key) is(other key) bool { return &k.data[0] == &other.data[0] }

// readKey reads data of a DNSKEY record (RFC 4034 §2.1).
func (p Policy) readKey(b []byte) (k key) {
	const fixed = 4
	if len(b) < fixed {
		return key{reason: dns.ExtendedErrorCodeDNSBogus}
	}
	flags, protocol := binary.BigEndian.Uint16(b), b[2]
	k = key{data: b, tag: keyTag(b), algorithm: b[3]}
	switch {
	case flags&dns.ZONE == 0:
		k.reason = dns.ExtendedErrorCodeNoZoneKeyBitSet
	case protocol != 3 || flags&dns.REVOKE != 0: // RFC 5011 §2.1
		k.reason = dns.ExtendedErrorCodeDNSBogus
	case !p.verifies(k.algorithm):
		k.reason, k.refused = dns.ExtendedErrorCodeUnsupportedDNSKEYAlgorithm, true
	default:
		v, err := p.newVerifier(k.algorithm, b[fixed:])
		switch err {
		case nil:
			k.verifier = v
		case errUnsupported:
			k.reason, k.refused = dns.ExtendedErrorCodeUnsupportedDNSKEYAlgorithm, true
		default:
			k.reason = dns.ExtendedErrorCodeDNSBogus
		}
	}
	return k
}

// keyTag returns the tag of data of a DNSKEY record (RFC 4034 appendix B).
func keyTag(b []byte) uint16 {
	if b[3] == dns.RSAMD5 {
		if len(b) < 7 {
			return 0
		}
		return binary.BigEndian.Uint16(b[len(b)-3:])
	}
	var sum uint32
	for i, c := range b {
		if i%2 == 0 {
			sum += uint32(c) << 8
		} else {
			sum += uint32(c)
		}
	}
	return uint16(sum + sum>>16)
}
