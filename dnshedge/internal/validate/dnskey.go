package validate

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// A dnskey is a parsed DNSKEY record.
type dnskey struct {
	data        []byte // record data in canonical form; nil if it is too short
	tag         uint16 // key tag
	algorithm   uint8
	verifier    verifier // public key; nil if the record must not be used to verify signatures
	unusableEDE uint16   // extended error code that describes why verifier is nil
	unsupported bool     // verifier is nil because the algorithm or the key size is not supported
}

// isSameRecord reports whether k and other were parsed from the same record in memory. Equal data in two records is not
// enough.
func (k *dnskey) isSameRecord(other dnskey) bool { return &k.data[0] == &other.data[0] }

// parseDNSKEY parses the data of a DNSKEY record (RFC 4034 §2.1). If the record cannot verify signatures, the verifier
// of the result is nil, and its unusableEDE is set. If the data is too short, the data of the result is nil.
func (p Policy) parseDNSKEY(b []byte) (k dnskey) {
	const fixed = 4
	if len(b) < fixed {
		return dnskey{unusableEDE: dns.ExtendedErrorCodeDNSBogus}
	}
	flags, protocol := binary.BigEndian.Uint16(b), b[2]
	k = dnskey{data: b, tag: computeKeyTag(b), algorithm: b[3]}
	switch {
	case flags&dns.ZONE == 0:
		k.unusableEDE = dns.ExtendedErrorCodeNoZoneKeyBitSet
	case protocol != 3 || flags&dns.REVOKE != 0: // RFC 5011 §2.1
		k.unusableEDE = dns.ExtendedErrorCodeDNSBogus
	case !p.supportsAlgorithm(k.algorithm):
		k.unusableEDE, k.unsupported = dns.ExtendedErrorCodeUnsupportedDNSKEYAlgorithm, true
	default:
		v, err := p.newVerifier(k.algorithm, b[fixed:])
		switch err {
		case nil:
			k.verifier = v
		case errUnsupported:
			k.unusableEDE, k.unsupported = dns.ExtendedErrorCodeUnsupportedDNSKEYAlgorithm, true
		default:
			k.unusableEDE = dns.ExtendedErrorCodeDNSBogus
		}
	}
	return k
}

// computeKeyTag returns the key tag of the data of a DNSKEY record (RFC 4034 appendix B). b must have at least 4 bytes.
func computeKeyTag(b []byte) uint16 {
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
