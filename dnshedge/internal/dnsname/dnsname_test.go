package dnsname_test

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
)

func TestParseCanonicalNormalizesEqualNames(t *testing.T) {
	for in, want := range map[string]string{
		"WWW.Example":             "www.example.",
		".":                       ".",
		`\097.example.`:           "a.example.",
		`\065.example.`:           "a.example.",
		`a\.b.example.`:           `a\.b.example.`,
		`a\046b.example.`:         `a\.b.example.`,
		`a\\.example.`:            `a\\.example.`,
		"*.example.":              "*.example.",
		`\*.example.`:             "*.example.",
		"a(b.example.":            `a\(b.example.`,
		`\195\132.example.`:       `\195\132.example.`,
		"Ä.example.":              `\195\132.example.`,
		strings.Repeat("a.", 127): strings.Repeat("a.", 127),
	} {
		got, ok := dnsname.CanonicalName(in)
		assert.True(t, ok, in)
		assert.Equal(t, want, got, in)
	}
	for _, in := range []string{"..", "a..b.", ".a.", strings.Repeat("a", 64) + ".", strings.Repeat("a.", 128), `a\`} {
		_, ok := dnsname.CanonicalName(in)
		assert.False(t, ok, in)
	}
}

func TestEscapedDotDividesNoLabels(t *testing.T) {
	assert.True(t, dnsname.IsWithin("a.example.", "example."))
	assert.True(t, dnsname.IsWithin(`a\\.example.`, "example."))
	assert.False(t, dnsname.IsWithin(`a\.example.`, "example."))
	assert.False(t, dnsname.IsWithin("notexample.", "example."))
	assert.Equal(t, "example.", dnsname.Parent(`a\.b.example.`))
	assert.Equal(t, ".", dnsname.Parent(`a\.b.`))
	assert.Equal(t, ".", dnsname.Parent("."))
}

// FuzzNames compares what is done with names as text with what it does to their bytes.
func FuzzNames(f *testing.F) {
	f.Add([]byte("\x03www\x07example\x00"), uint8(1))
	f.Add([]byte("\x03a.b\x02\\\\\x00"), uint8(1))
	f.Add([]byte("\x04\x00 \xff\"\x01A\x00"), uint8(2))
	f.Fuzz(func(t *testing.T, wire []byte, up uint8) {
		text, end, err := dns.UnpackDomainName(wire, 0)
		if err != nil || strings.Contains(string(wire[:end]), "\xc0") {
			t.Skip()
		}
		name, ok := dnsname.CanonicalName(text)
		require.True(t, ok, text)
		again, _ := dnsname.CanonicalName(name)
		require.Equal(t, name, again)
		require.Equal(t, end, dnsname.WireLength(name))
		zone := name
		for range up % 8 {
			below := zone
			zone = dnsname.Parent(zone)
			require.True(t, dnsname.IsWithin(name, zone), "%s is not in %s", name, zone)
			require.Equal(t, below == zone, dnsname.IsWithin(zone, below), "%s is in %s", zone, below)
		}
		require.Equal(t, max(0, dns.CountLabel(name)-int(up%8)), dns.CountLabel(zone))
	})
}
