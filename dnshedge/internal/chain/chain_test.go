package chain

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// The servers of a zone may also serve a child zone that has a trust anchor, and refer from the zone to a grandchild.
func TestExpectsSignaturesBelowAnchorThatReferralSkips(t *testing.T) {
	record := func(owner string) dns.RR {
		rr, err := dns.NewRR(owner + " 3600 IN DS 20326 8 2 E06D44B80B8F1D39A95C0B0D7C65D08458E880409BBC683457104237C7F8EC8D")
		require.NoError(t, err)
		return rr
	}
	anchor, err := validate.TrustAnchors(record("a.one."))
	require.NoError(t, err)
	c := NewValidator(Config{Anchors: []*validate.DSSet{anchor}, MaxBytes: 1 << 16})
	one := &Zone{Name: "one."}
	assert.False(t, c.ExpectsSignatures(one), "it is above the anchor")
	assert.True(t, c.ExpectsSignatures(&Zone{Name: "a.one.", Parent: one}))
	assert.True(t, c.ExpectsSignatures(&Zone{Name: "sub.a.one.", Parent: one, DSEvidence: []dns.RR{record("sub.a.one.")}}))
	assert.False(t, c.ExpectsSignatures(&Zone{Name: "sub.a.one.", Parent: one}), "it has no DS records")
	assert.False(t, c.ExpectsSignatures(&Zone{Name: "b.one.", Parent: one, DSEvidence: []dns.RR{record("b.one.")}}), "no anchor is above it")
}
