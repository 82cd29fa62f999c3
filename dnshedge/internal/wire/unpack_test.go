package wire_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// withData returns a response to www.example.com. A whose first answer record has the given type and data.
func withData(typ uint16, data []byte) []byte {
	b := append(header(1), 0xc0, 12)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = append(b, 0, dns.ClassINET, 0, 0, 0, 60)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

// Texts of URI and CAA records are octets, and digests and keys are anything.
func TestRecordDataIsWrittenUnchanged(t *testing.T) {
	text := func(value []byte, strings int) (data []byte) {
		for range strings {
			data = append(append(data, byte(len(value))), value...)
		}
		return data
	}
	for c := range 256 {
		value := []byte{'a', byte(c), '0', '3', '2', byte(c)}
		for typ, data := range map[uint16][]byte{
			dns.TypeURI:   append([]byte{0, 10, 0, 1}, value...),
			dns.TypeCAA:   append([]byte{0, 5, 'i', 's', 's', 'u', 'e'}, value...),
			dns.TypeTXT:   text(value, 3),
			dns.TypeSPF:   text(value, 1),
			dns.TypeAVC:   text(value, 2),
			dns.TypeNINFO: text(value, 2),
			dns.TypeHINFO: text(value, 2),
			dns.TypeGPOS:  text(value, 3),
			dns.TypeX25:   text(value, 1),
			dns.TypeISDN:  text(value, 2),
			dns.TypeUINFO: text(value, 1),
			dns.TypeNAPTR: append(append([]byte{0, 1, 0, 1}, text(value, 3)...), 0),
			dns.TypeNULL:  value,
			dns.TypeEID:   value, dns.TypeNIMLOC: value, dns.TypeDHCID: value, dns.TypeOPENPGPKEY: value,
			dns.TypeTLSA: append([]byte{3, 1, 1}, value...), dns.TypeSMIMEA: append([]byte{3, 1, 1}, value...), dns.TypeZONEMD: append([]byte{0, 0, 0, 1, 1, 1}, value...),
			dns.TypeSSHFP: append([]byte{1, 1}, value...), dns.TypeDS: append([]byte{0, 1, 8, 2}, value...), dns.TypeCERT: append([]byte{0, 1, 0, 1, 8}, value...),
			dns.TypeDNSKEY: append([]byte{1, 0, 3, 8}, value...),
			dns.TypeSVCB:   append([]byte{0, 1, 0, 0xff, 0, 0, byte(len(value))}, value...),
			dns.TypeHTTPS:  append([]byte{0, 1, 0, 0, 1, 0, byte(len(value) + 1), byte(len(value))}, value...),
			dns.TypeMX:     append(append([]byte{0, 1}, text(value, 1)...), 0),
			dns.TypeCNAME:  append(text(value, 2), 0),
			65280:          value,
		} {
			b := withData(typ, data)
			m, err := wire.ParseMsg(b)
			require.NoError(t, err, "%s %x", dns.Type(typ), data)
			require.Len(t, m.Answer, 1, "%s %x", dns.Type(typ), data)
			m.Compress = true
			out, err := m.Pack()
			require.NoError(t, err, "%s %x", dns.Type(typ), data)
			require.Equal(t, b, out, "%s %x", dns.Type(typ), data)
		}
	}
}

// Package dns accepts truncated data and adds zero bytes. An ISDN address without a subaddress is complete (RFC 1183
// §3.2).
func TestTruncatedRecordDataIsKeptUnchanged(t *testing.T) {
	const key = "\x01\x00\x03\x08ab"
	for typ, data := range map[uint16]string{
		dns.TypeISDN: "\x03123\x014", dns.TypeHINFO: "\x01a\x01b", dns.TypeGPOS: "\x011\x012\x013", dns.TypeLOC: "\x00\x12\x16\x13aaaabbbbcccc",
		dns.TypeCERT: "\x00\x01\x00\x02\x08ab", dns.TypeKEY: key, dns.TypeDNSKEY: key, dns.TypeCDNSKEY: key, dns.TypeRKEY: key,
		dns.TypeDS: key, dns.TypeCDS: key, dns.TypeDLV: key, dns.TypeTA: key, dns.TypeSSHFP: "\x01\x01ab", dns.TypeTLSA: "\x03\x01\x01ab",
		dns.TypeSMIMEA: "\x03\x01\x01ab", dns.TypeZONEMD: "\x00\x00\x00\x01\x01\x01ab", dns.TypeCSYNC: "\x00\x00\x00\x01\x00\x01\x00\x01\x40",
		dns.TypeIPSECKEY: "\x0a\x01\x02\x01\x02\x03\x04ab", dns.TypeAMTRELAY: "\x0a\x01\x01\x02\x03\x04", dns.TypeHIP: "\x02\x02\x00\x02abcd",
		dns.TypeNSEC3: "\x01\x00\x00\x00\x01s\x02ab\x00\x01\x40", dns.TypeNSEC3PARAM: "\x01\x00\x00\x00\x01s", dns.TypeNID: "\x00\x01abcdefgh",
		dns.TypeL64: "\x00\x01abcdefgh", dns.TypeL32: "\x00\x01abcd", dns.TypeURI: "\x00\x01\x00\x01a", dns.TypeCAA: "\x00\x01ab",
		dns.TypeTXT: "\x01a\x01b", dns.TypeSPF: "\x01a\x01b", dns.TypeNINFO: "\x01a\x01b", dns.TypeAVC: "\x01a\x01b", dns.TypeX25: "\x01a", dns.TypeEUI48: "abcdef", dns.TypeEUI64: "abcdefgh", dns.TypeUID: "abcd", dns.TypeNSEC: "\x01a\x00\x00\x01\x40",
	} {
		for n := range len(data) + 1 {
			b := withData(typ, []byte(data[:n]))
			m, err := wire.ParseMsg(b)
			require.NoError(t, err, "%s %x", dns.Type(typ), data[:n])
			require.Len(t, m.Answer, 1, "%s %x", dns.Type(typ), data[:n])
			m.Compress = true
			out, err := m.Pack()
			require.NoError(t, err, "%s %x", dns.Type(typ), data[:n])
			assert.Equal(t, b, out, "%s %x", dns.Type(typ), data[:n])
		}
	}
}

// Package dns accepts empty ALPN identifiers, which it does not write, and unsorted keys, which it sorts.
func TestSVCBParametersAreWrittenUnchanged(t *testing.T) {
	for name, params := range map[string]string{
		"usual":                "\x00\x01\x00\x06\x02h2\x02h3",
		"empty identifier":     "\x00\x01\x00\x01\x00",
		"no identifier":        "\x00\x01\x00\x00",
		"keys not in order":    "\x00\x00\x00\x04\x00\x03\x00\x01",
		"keys that come twice": "\x00\x00\x00\x04\x00\x01\x00\x01",
		"parameters unsorted":  "\x00\x03\x00\x02\x01\xbb\x00\x01\x00\x03\x02h2",
		"no default with data": "\x00\x02\x00\x01a",
		"no addresses":         "\x00\x04\x00\x00",
		"mapped address":       "\x00\x06\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x01\x02\x03\x04",
		"a path":               "\x00\x07\x00\x06/{?d\\n",
		"reserved":             "\xff\xff\x00\x00",
	} {
		for _, typ := range []uint16{dns.TypeSVCB, dns.TypeHTTPS} {
			requireWrittenAsRead(t, typ, []byte("\x00\x01\x00"+params), name)
		}
	}
}

func requireWrittenAsRead(t *testing.T, typ uint16, data []byte, name string) {
	t.Helper()
	b := withData(typ, data)
	m, err := wire.ParseMsg(b)
	require.NoError(t, err, "%s: %s %x", name, dns.Type(typ), data)
	require.Len(t, m.Answer, 1, "%s: %s %x", name, dns.Type(typ), data)
	m.Compress = true
	out, err := m.Pack()
	require.NoError(t, err, "%s: %s %x", name, dns.Type(typ), data)
	require.Equal(t, b, out, "%s: %s %x", name, dns.Type(typ), data)
}

// named lists types whose data contains names. Package dns accepts compressed names in it and expands them.
var named = []uint16{
	dns.TypeNSEC, dns.TypeSVCB, dns.TypeHTTPS, dns.TypeKX, dns.TypeLP, dns.TypeNSAPPTR, dns.TypeTALINK, dns.TypeHIP, dns.TypeIPSECKEY, dns.TypeAMTRELAY,
	dns.TypeTKEY, dns.TypeTSIG,
}

// FuzzData checks that record data of any type and content is written as it was read.
func FuzzData(f *testing.F) {
	for typ := range dns.TypeToRR {
		f.Add(typ, []byte{})
		f.Add(typ, []byte("\x00\x01\x00\x02\x03\x01a\x00\x00\x01\x40"))
	}
	for _, params := range []string{"\x00\x01\x00\x03\x02h2", "\x00\x00\x00\x04\x00\x01\x00\x03", "\x00\x05\x00\x02ab", "\x00\x04\x00\x04\x01\x02\x03\x04"} {
		f.Add(dns.TypeHTTPS, []byte("\x00\x01\x00"+params))
	}
	f.Add(dns.TypeAPL, []byte("\x00\x01\x18\x03\x0a\x00\x01"))
	f.Add(dns.TypeHIP, []byte("\x02\x02\x00\x02abcd\x01a\x00"))
	f.Add(dns.TypeCAA, []byte("\x00\x05issuea;b"))
	f.Fuzz(func(t *testing.T, typ uint16, data []byte) {
		if typ == dns.TypeOPT || len(data) > 2000 {
			return
		}
		b := withData(typ, data)
		m, err := wire.ParseMsg(b)
		require.NoError(t, err)
		if len(m.Answer) == 0 { // an invalid address or name was dropped
			return
		}
		m.Compress = true
		out, err := m.Pack()
		require.NoError(t, err, "what was read cannot be written: %s %x", dns.Type(typ), data)
		if slices.Contains(named, typ) || wire.MayBeCompressed(typ) {
			return
		}
		require.Equal(t, b, out, "%s %x", dns.Type(typ), data)
	})
}

// Package dns cannot write values of URI and CAA records that are longer than 1,025 bytes.
func TestLongRecordValuesAreWrittenUnchanged(t *testing.T) {
	for _, n := range []int{1000, 1025, 1026, 5000} {
		for typ, head := range map[uint16][]byte{dns.TypeURI: {0, 10, 0, 1}, dns.TypeCAA: {0, 5, 'i', 's', 's', 'u', 'e'}} {
			b := withData(typ, append(head, bytes.Repeat([]byte{'x'}, n)...))
			m, err := wire.ParseMsg(b)
			require.NoError(t, err)
			m.Compress = true
			out, err := m.Pack()
			require.NoError(t, err, "%s of %d octets", dns.Type(typ), n)
			assert.Equal(t, b, out, "%s of %d octets", dns.Type(typ), n)
		}
		requireWrittenAsRead(t, dns.TypeAPL, bytes.Repeat([]byte{0, 1, 8, 1, 10}, n), "prefixes")
	}
}
