package aggressive_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/aggressive"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/internal/signer"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// A zone has a key that is trusted.
type zone struct {
	name string
	key  *signer.Key
	keys *validate.Keys
	work *validate.Validation
}

func newZone(t testing.TB, name string) *zone {
	z := &zone{name: name, key: signer.NewKey(name, signer.KSK, dns.ED25519, "seed"), work: &validate.Validation{Policy: validate.Policy{Verifications: 1 << 20}}}
	ds, err := validate.TrustAnchors(z.key.ToDS(dns.SHA256))
	require.NoError(t, err)
	var status validate.Status
	z.keys, status, err = z.work.VerifyDNSKEY(ds, z.set(z.key.DNSKEY), now)
	require.NoError(t, err)
	require.Equal(t, validate.Secure, status)
	return z
}

func (z *zone) set(rr dns.RR) *validate.RRset {
	return validate.NewRRset([]dns.RR{rr}, z.key.Sign([]dns.RR{rr}, signer.SignatureOptions{}))
}

func (z *zone) record(t testing.TB, line string) *validate.RRset {
	rr, err := dns.NewRR(line)
	require.NoError(t, err)
	return z.set(rr)
}

// learn has a range between two labels kept, and the SOA record.
func (z *zone) learn(t testing.TB, r *aggressive.Cache, from, to string, at time.Time) {
	soa := z.record(t, z.name+" 86400 IN SOA ns. admin. 1 2 3 4 86400")
	r.VerifyAndAdd(z.work, z.keys, at, []*validate.RRset{soa, z.record(t, fmt.Sprintf("%s.%s 86400 IN NSEC %s.%s A RRSIG NSEC", from, z.name, to, z.name))})
}

func (z *zone) knows(r *aggressive.Cache, label string, at time.Time) bool {
	_, ok := r.Synthesize(z.work, z.name, label+"."+z.name, dns.TypeDS, at)
	return ok
}

// A stranger's questions in 100 gaps of a zone, or 100 referrals of a zone, end nothing that was proven before.
func TestCacheKeepsUnusedRecords(t *testing.T) {
	r, z := aggressive.NewCache(1<<20), newZone(t, "example.")
	r.VerifyAndAdd(z.work, z.keys, now, []*validate.RRset{z.record(t, "example. 86400 IN NSEC a.example. NS SOA RRSIG NSEC")}) // covers the wildcard
	for i := range 100 {
		z.learn(t, r, fmt.Sprintf("n%03d", i), fmt.Sprintf("n%03dz", i), now)
	}
	for i := range 100 {
		assert.True(t, z.knows(r, fmt.Sprintf("n%03da", i), now))
	}
}

// Records that were made for one question take no memory.
func TestCacheRejectsMinimallyCoveringRecords(t *testing.T) {
	for _, line := range []string{
		`no.example. 86400 IN NSEC \000.no.example. RRSIG NSEC TYPE128`,
		`nn\255.example. 86400 IN NSEC no\000.example. RRSIG NSEC`,
		`nn~.example. 86400 IN NSEC \000.\000.no.example. RRSIG NSEC`,
		"0p9mhaveqvm6t7vbl5lop2u3t2rp3tom.example. 86400 IN NSEC3 1 0 0 - 0P9MHAVEQVM6T7VBL5LOP2U3T2RP3TOO",
		"0p9mhaveqvm6t7vbl5lvvvvvvvvvvvvv.example. 86400 IN NSEC3 1 0 0 - 0P9MHAVEQVM6T7VBL5M0000000000001",
	} {
		r, z := aggressive.NewCache(1<<20), newZone(t, "example.")
		set := z.record(t, line)
		assert.False(t, r.IsReusable(set), line)
		before := r.MemoryBytes()
		r.VerifyAndAdd(z.work, z.keys, now, []*validate.RRset{set})
		assert.LessOrEqual(t, r.MemoryBytes()-before, int64(300), line)
	}
	for _, line := range []string{
		"example. 86400 IN NSEC example. NS SOA RRSIG NSEC",
		"a.example. 86400 IN NSEC a.a.example. A RRSIG NSEC",
		"a.example. 86400 IN NSEC b.example. A RRSIG NSEC",
		"0p9mhaveqvm6t7vbl5lop2u3t2rp3tom.example. 86400 IN NSEC3 1 0 0 - 0P9MHAVEQVM6T7VBL5LOP2U3T2RP3TOM",
		"0p9mhaveqvm6t7vbl5lop2u3t2rp3tom.example. 86400 IN NSEC3 1 0 0 - 0P9MHAVEQVM7T7VBL5LOP2U3T2RP3TOM",
	} {
		r, z := aggressive.NewCache(1<<20), newZone(t, "example.")
		assert.True(t, r.IsReusable(z.record(t, line)), line)
	}
}

func TestCacheIsBoundedOverManyZones(t *testing.T) {
	const most = 64 << 10
	r := aggressive.NewCache(most)
	often := newZone(t, "often.")
	often.learn(t, r, "a", "c", now)
	at := now
	for i := range 300 {
		at = at.Add(time.Second)
		z := newZone(t, fmt.Sprintf("z%d.", i))
		for j := range 3 {
			z.learn(t, r, fmt.Sprint("a", j), fmt.Sprint("b", j), at)
		}
		r.Synthesize(often.work, "often.", "b.often.", dns.TypeA, at)
		require.LessOrEqual(t, r.MemoryBytes(), int64(most))
	}
	assert.Greater(t, r.MemoryBytes(), int64(most/2))
	assert.True(t, r.HasZone("often."), "what is asked for often stays")
	assert.False(t, r.HasZone("z0."))

	off := aggressive.NewCache(0)
	often.learn(t, off, "a", "c", now)
	assert.False(t, off.HasZone("often."))
	assert.Zero(t, off.MemoryBytes())
}

func TestZoneTakesQuarterOfCacheAtMost(t *testing.T) {
	r, z := aggressive.NewCache(64<<10), newZone(t, "example.")
	r.VerifyAndAdd(z.work, z.keys, now, []*validate.RRset{z.record(t, "example. 86400 IN NSEC n000.example. NS SOA RRSIG NSEC")})
	for i := range 300 {
		z.learn(t, r, fmt.Sprintf("n%03d", i), fmt.Sprintf("n%03dz", i), now)
		z.knows(r, fmt.Sprintf("n%03da", i), now)
		require.LessOrEqual(t, r.MemoryBytes(), int64(16<<10+512))
	}
}
