package reclab

import (
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"

	"github.com/miekg/dns"
)

// newKeyTrapKeys returns RSA keys with equal key tags, of which a validator must try all (KeyTrap, CVE-2023-50387).
func newKeyTrapKeys(zone string) (all []dns.RR) {
	rng := rand.New(rand.NewPCG(1, 6))
	for len(all) < trapKeyCount {
		modulus := make([]byte, 256)
		for i := range modulus {
			modulus[i] = byte(rng.Uint32())
		}
		modulus[0], modulus[255] = modulus[0]|0x80, modulus[255]|1
		k := &dns.DNSKEY{
			Hdr:   dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
			Flags: dns.ZONE, Protocol: 3, Algorithm: dns.RSASHA256,
		}
		hasTagWith := func(word uint16) bool {
			binary.BigEndian.PutUint16(modulus[100:], word)
			k.PublicKey = base64.StdEncoding.EncodeToString(append([]byte{3, 1, 0, 1}, modulus...))
			return k.KeyTag() == trapKeyTag
		}
		// The tag is a sum of words of 16 bits and its carries (RFC 4034, appendix B).
		hasTagWith(0)
		if word := trapKeyTag - k.KeyTag(); hasTagWith(word) || hasTagWith(word-1) {
			all = append(all, k)
		}
	}
	return all
}

const (
	trapKeyCount = 32 // in a zone, and signatures of a record
	trapKeyTag   = uint16(12345)
)

// newKeyTrapSignatures returns a copy of template with an invalid signature for each of keys except the first, which
// has signed the others. Together with newKeyTrapKeys they make a validator try many keys (KeyTrap, CVE-2023-50387).
func newKeyTrapSignatures(template *dns.RRSIG, keys []dns.RR) (all []*dns.RRSIG) {
	rng := rand.New(rand.NewPCG(2, 6))
	for range len(keys) - 1 { // the first has signed the keys
		sig := *template
		sig.Algorithm, sig.KeyTag = dns.RSASHA256, trapKeyTag
		b := make([]byte, 256)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		b[0] &= 0x7f // smaller than all moduli
		sig.Signature = base64.StdEncoding.EncodeToString(b)
		all = append(all, &sig)
	}
	return all
}
