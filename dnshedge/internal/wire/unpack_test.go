package wire_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// withData returns a response to www.example.com. A with one record of a type, which stands first in ANSWER.
func withData(typ uint16, data []byte) []byte {
	b := append(header(1), 0xc0, 12)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = append(b, 0, dns.ClassINET, 0, 0, 0, 60)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

// Texts of URI and CAA records are octets, and digests and keys are anything.
func TestDataIsWrittenAsItWasRead(t *testing.T) {
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

// Package dns takes data that ends early for whole, and fills it up. An ISDN address without a subaddress is whole (RFC 1183 §3.2).
func TestDataThatEndsEarlyStaysAsItIs(t *testing.T) {
	const key = "\x01\x00\x03\x08ab"
	for typ, data := range map[uint16]string{
		dns.TypeISDN: "\x03123\x014", dns.TypeHINFO: "\x01a\x01b", dns.TypeGPOS: "\x011\x012\x013", dns.TypeLOC: "\x00\x12\x16\x13aaaabbbbcccc",
		dns.TypeCERT: "\x00\x01\x00\x02\x08ab", dns.TypeKEY: key, dns.TypeDNSKEY: key, dns.TypeCDNSKEY: key, dns.TypeRKEY: key,
		dns.TypeDS: key, dns.TypeCDS: key, dns.TypeDLV: key, dns.TypeTA: key, dns.TypeSSHFP: "\x01\x01ab", dns.TypeTLSA: "\x03\x01\x01ab",
		dns.TypeSMIMEA: "\x03\x01\x01ab", dns.TypeZONEMD: "\x00\x00\x00\x01\x01\x01ab", dns.TypeCSYNC: "\x00\x00\x00\x01\x00\x01\x00\x01\x40",
		dns.TypeIPSECKEY: "\x0a\x01\x02\x01\x02\x03\x04ab", dns.TypeAMTRELAY: "\x0a\x01\x01\x02\x03\x04", dns.TypeHIP: "\x02\x02\x00\x02abcd",
		dns.TypeNSEC3: "\x01\x00\x00\x00\x01s\x02ab\x00\x01\x40", dns.TypeNSEC3PARAM: "\x01\x00\x00\x00\x01s", dns.TypeNID: "\x00\x01abcdefgh",
		dns.TypeL64: "\x00\x01abcdefgh", dns.TypeL32: "\x00\x01abcd", dns.TypeURI: "\x00\x01\x00\x01a", dns.TypeCAA: "\x00\x01ab",
		dns.TypeTXT: "\x01a\x01b", dns.TypeX25: "\x01a", dns.TypeEUI48: "abcdef", dns.TypeEUI64: "abcdefgh", dns.TypeUID: "abcd", dns.TypeNSEC: "\x01a\x00\x00\x01\x40",
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

// Package dns does not write the value of a URI or CAA record that is longer than 1,025 octets.
func TestLongValuesAreWrittenAsTheyWereRead(t *testing.T) {
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
	}
}
