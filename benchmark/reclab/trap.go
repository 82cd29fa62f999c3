package reclab

import (
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"

	"github.com/miekg/dns"
)

// alike returns RSA keys of a zone that have one tag. There is nothing that they have signed.
func alike(zone string) (all []dns.RR) {
	rng := rand.New(rand.NewPCG(1, 6))
	for len(all) < trapKeys {
		modulus := make([]byte, 256)
		for i := range modulus {
			modulus[i] = byte(rng.Uint32())
		}
		modulus[0], modulus[255] = modulus[0]|0x80, modulus[255]|1
		k := &dns.DNSKEY{
			Hdr:   dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
			Flags: dns.ZONE, Protocol: 3, Algorithm: dns.RSASHA256,
		}
		with := func(word uint16) bool {
			binary.BigEndian.PutUint16(modulus[100:], word)
			k.PublicKey = base64.StdEncoding.EncodeToString(append([]byte{3, 1, 0, 1}, modulus...))
			return k.KeyTag() == trapTag
		}
		// The tag is a sum of words of 16 bits and its carries (RFC 4034, appendix B).
		with(0)
		if word := trapTag - k.KeyTag(); with(word) || with(word-1) {
			all = append(all, k)
		}
	}
	return all
}

const (
	trapKeys = 32 // and as many signatures
	trapTag  = uint16(12345)
)

// manifold returns as many signatures as there are keys of a trap, made of one: none is right, and each fits all keys by its tag.
func manifold(one *dns.RRSIG, keys []dns.RR) (all []*dns.RRSIG) {
	rng := rand.New(rand.NewPCG(2, 6))
	for range len(keys) - 1 { // the first has signed the keys
		sig := *one
		sig.Algorithm, sig.KeyTag = dns.RSASHA256, trapTag
		b := make([]byte, 256)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		b[0] &= 0x7f // less than all moduli
		sig.Signature = base64.StdEncoding.EncodeToString(b)
		all = append(all, &sig)
	}
	return all
}
