package recursor_test

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

func TestCanonicalNamesAreEqualIfTheirBytesAre(t *testing.T) {
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
		got, ok := recursor.Canonical(in)
		assert.True(t, ok, in)
		assert.Equal(t, want, got, in)
	}
	for _, in := range []string{"..", "a..b.", ".a.", strings.Repeat("a", 64) + ".", strings.Repeat("a.", 128), `a\`} {
		_, ok := recursor.Canonical(in)
		assert.False(t, ok, in)
	}
}

func TestADotInALabelDividesNothing(t *testing.T) {
	assert.True(t, recursor.Within("a.example.", "example."))
	assert.True(t, recursor.Within(`a\\.example.`, "example."))
	assert.False(t, recursor.Within(`a\.example.`, "example."))
	assert.False(t, recursor.Within("notexample.", "example."))
	assert.Equal(t, "example.", recursor.Parent(`a\.b.example.`))
	assert.Equal(t, ".", recursor.Parent(`a\.b.`))
	assert.Equal(t, ".", recursor.Parent("."))
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
		name, ok := recursor.Canonical(text)
		require.True(t, ok, text)
		again, _ := recursor.Canonical(name)
		require.Equal(t, name, again)
		require.Equal(t, end, recursor.InWire(name))
		zone := name
		for range up % 8 {
			below := zone
			zone = recursor.Parent(zone)
			require.True(t, recursor.Within(name, zone), "%s is not in %s", name, zone)
			require.Equal(t, below == zone, recursor.Within(zone, below), "%s is in %s", zone, below)
		}
		require.Equal(t, max(0, dns.CountLabel(name)-int(up%8)), dns.CountLabel(zone))
	})
}

func TestNamesWithOddBytesAreAskedAndSpelledAsTheCallerDoes(t *testing.T) {
	bubble(t, ". served 198.41.0.4\nexample. delegated 192.0.2.1\n  a\\.b A 192.0.2.80\n", func(t *testing.T, w *world) {
		r := w.resolver()
		for question, want := range map[string]string{
			`A\.b.Example. A`:          `NOERROR A\.b.Example. A 192.0.2.80`,
			`\065\046B.example. A`:     `NOERROR \065\046B.example. A 192.0.2.80`,
			`a.b.example. A`:           "NXDOMAIN",
			`\000\255\".example. A`:    "NXDOMAIN",
			`x.a\.b.example. A`:        "NXDOMAIN",
			`a\.b.example\.example. A`: "NXDOMAIN",
		} {
			m := w.ask(r, question)
			assert.Equal(t, want, told(m), question)
			b, err := m.Pack()
			require.NoError(t, err)
			require.NoError(t, new(dns.Msg).Unpack(b))
		}
	})
}
