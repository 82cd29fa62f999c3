package dnssec

import (
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const rootAnchors = `<?xml version="1.0" encoding="UTF-8"?>
<TrustAnchor id="380DC50D-484E-40D0-A3AE-68F2B18F61C7" source="http://data.iana.org/root-anchors/root-anchors.xml">
  <Zone>.</Zone>
  <KeyDigest id="Kjqmt7v" validFrom="2010-07-15T00:00:00+00:00" validUntil="2019-01-11T00:00:00+00:00">
    <KeyTag>19036</KeyTag><Algorithm>8</Algorithm><DigestType>2</DigestType>
    <Digest>49AAC11D7B6F6446702E54A1607371607A1A41855200FD2CE1CDDE32F24E8FB5</Digest>
  </KeyDigest>
  <KeyDigest id="Klajeyz" validFrom="2017-02-02T00:00:00+00:00">
    <KeyTag>20326</KeyTag><Algorithm>8</Algorithm><DigestType>2</DigestType>
    <Digest>E06D44B80B8F1D39A95C0B0D7C65D08458E880409BBC683457104237C7F8EC8D</Digest>
  </KeyDigest>
  <KeyDigest id="Kmyv6jo" validFrom="2024-07-18T00:00:00+00:00">
    <KeyTag>38696</KeyTag><Algorithm>8</Algorithm><DigestType>2</DigestType>
    <Digest>683D2D0ACB8C9B712A1948B27F741219298D0A450D612C483AF444A4C0FB2B16</Digest>
  </KeyDigest>
</TrustAnchor>`

func TestReadAnchorsTakesValidKeysOfXML(t *testing.T) {
	for date, want := range map[string][]uint16{
		"2009-01-01": nil, "2015-01-01": {19036}, "2018-06-01": {19036, 20326}, "2019-01-11": {20326}, "2026-11-23": {20326, 38696},
	} {
		now, err := time.Parse(time.DateOnly, date)
		require.NoError(t, err)
		all, err := readAnchors(strings.NewReader(rootAnchors), now)
		var tags []uint16
		for _, rr := range all {
			tags = append(tags, rr.(*dns.DS).KeyTag)
			assert.Equal(t, ".", rr.Header().Name)
		}
		assert.Equal(t, want, tags, date)
		assert.Equal(t, want == nil, err != nil, date)
	}
}

func TestReadAnchorsParsesZoneFile(t *testing.T) {
	all, err := ReadAnchors(strings.NewReader(`; a comment
. 172800 IN DS 20326 8 2 E06D44B80B8F1D39A95C0B0D7C65D08458E880409BBC683457104237C7F8EC8D
example.com. IN DNSKEY 257 3 15 l02Woi0iS8Aa25FQkUd9RMzZHJpBoRQwAQEX1SxZJA4=
`))
	require.NoError(t, err)
	require.Len(t, all, 2)
	assert.Equal(t, "example.com.", all[1].Header().Name)
}

func TestReadAnchorsFailsWithoutAnchors(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "there is none",
		"; nothing":                "there is none",
		"example. A 192.0.2.1":     "neither DS nor DNSKEY",
		"example. DS one":          "dnssec: anchors: ",
		"<TrustAnchor>":            "dnssec: anchors: ",
		"<html></html>":            "dnssec: anchors: ",
		strings.Repeat(";", 2<<20): "larger than 1 MiB",
		strings.Replace(rootAnchors, "2017-02-02T", "yesterday", 1): "dnssec: anchors: ",
		strings.Replace(rootAnchors, "683D", "here", 1):             "dnssec: anchors: ",
	} {
		_, err := ReadAnchors(strings.NewReader(text))
		assert.ErrorContains(t, err, want)
	}
}

func TestSecurityString(t *testing.T) {
	for s, want := range map[Security]string{Unchecked: "unchecked", Secure: "secure", Insecure: "insecure", Bogus: "bogus", 9: "unchecked"} {
		assert.Equal(t, want, s.String())
	}
	assert.EqualError(t, &Error{Text: "no signatures: www.example. A"}, "dnssec: no signatures: www.example. A")
}
