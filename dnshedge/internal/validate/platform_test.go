package validate_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// With GODEBUG=fips140=only package crypto/sha1 panics, and crypto/rsa refuses keys below 2,048 bits. What is not allowed is as an algorithm that is not
// supported, and all else is verified.
func TestForbiddenHashesAreUnsupported(t *testing.T) {
	const only = "HEDGE_TEST_FIPS"
	if os.Getenv(only) == "" {
		c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
		c.Env = append(os.Environ(), only+"=1", "GODEBUG=fips140=only")
		out, err := c.CombinedOutput()
		assert.NoError(t, err, "%s", out)
		return
	}
	s := seeded("example.", ksk, 1)
	_, status, err := judge(t, dnskeys(t, s), s.ds(t, dns.SHA256))
	assert.NoError(t, err)
	assert.NotEqual(t, validate.Insecure, status)
	sha1 := s.ds(t, dns.SHA256)
	sha1.DigestType, sha1.Digest = dns.SHA1, "0000000000000000000000000000000000000000"
	_, status, err = judge(t, dnskeys(t, s), sha1)
	assert.Equal(t, validate.Insecure, status)
	ede(t, dns.ExtendedErrorCodeUnsupportedDSDigestType, err)
	_, _, err = judge(t, dnskeys(t, s), sha1, s.ds(t, dns.SHA256))
	assert.NoError(t, err, "the other digest counts")

	k := trust(t, s)
	nsec3 := set(t, records(t, "0p9mhaveqvm6t7vbl5lop2u3t2rp3tom.example. 300 IN NSEC3 1 0 0 - 2T7B4G4VSA5SMI47K61MV5BV1A22BOJR A"), s)
	w := new(validate.Validation)
	d, err := w.VerifyDenial("no.example.", dns.TypeA, []*validate.RRset{nsec3}, k, now)
	require.NoError(t, err)
	assert.Equal(t, validate.Insecure, d.Status)
	require.NotNil(t, d.Insecure)
	kept := keeping(t, s, nsec3)
	assert.Empty(t, asked(kept, "no.example.", dns.TypeA, now))

	small := dns.Copy(s.key).(*dns.DNSKEY)
	small.Algorithm = dns.RSASHA1
	anchor, err := validate.TrustAnchors(small)
	require.NoError(t, err)
	assert.NotNil(t, anchor.UnsupportedReason(validate.Policy{AllowSHA1: true}))
	for _, algorithm := range []uint8{dns.ECDSAP256SHA256, dns.ECDSAP384SHA384, dns.ED25519} {
		s := newSigner(t, "example.", algorithm, map[uint8]int{dns.ECDSAP256SHA256: 256, dns.ECDSAP384SHA384: 384, dns.ED25519: 256}[algorithm], ksk)
		_, err := verify(set(t, records(t, "a.example. 300 IN A 192.0.2.1"), s), trust(t, s), now)
		assert.NoError(t, err, algorithm)
	}
}
