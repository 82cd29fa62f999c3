package wire_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// read parses the packed response b to the query m.
func read(t *testing.T, m *dns.Msg, b []byte) (*wire.Answer, error) {
	q, err := wire.NewQuery(m)
	require.NoError(t, err)
	return wire.ParseAnswer(b, q)
}

func TestStorableResponseIsKeptUnchanged(t *testing.T) {
	m := question("www.example.com.", dns.TypeA)
	m.SetEdns0(1232, true)
	q := dnstest.Query{Msg: m}
	for name, r := range map[string]*dns.Msg{
		"address": dnstest.Answer(q, "A 192.0.2.1"),
		"aliases": dnstest.Answer(q, "CNAME a.example.net.", "a.example.net. CNAME b.example.net.", "b.example.net. A 192.0.2.1", "b.example.net. A 192.0.2.2"),
		"signed":  dnstest.Answer(q, "A 192.0.2.1", "RRSIG A 8 2 3600 20300101000000 20200101000000 1 example.com. AAAA"),
		"others":  dnstest.Answer(q, "MX 1 mx.example.com.", "SRV 1 2 3 srv.example.com.", "TXT x", "HTTPS 1 . alpn=h2"),
		"nothing": dnstest.Negative(q, dns.RcodeNameError, 300, 60),
	} {
		r.Compress = true
		b := pack(t, r)
		a, err := read(t, m, b)
		require.NoError(t, err)
		opt := len(b) - 11
		assert.Equal(t, b[12:opt], a.Packed()[12:], name)
		assert.Equal(t, []byte{0, 0}, a.Packed()[:2], "the ID")
		assert.Equal(t, binary.BigEndian.Uint16(b[10:])-1, binary.BigEndian.Uint16(a.Packed()[10:]), name)
		assert.True(t, a.EDNS, name)
	}
}

// header returns the header and question of a response to www.example.com. A with the given number of answer records,
// which the caller must append.
func header(answers byte) []byte {
	b := []byte{0, 0, 0x81, 0x80, 0, 1, 0, answers, 0, 0, 0, 0}
	return append(b, "\x03www\x07example\x03com\x00\x00\x01\x00\x01"...)
}

// Compression pointers refer to bytes that are no earlier label, for example a TTL, an address, or the pointer itself.
func TestCheckStorableRejectsPointersToOtherData(t *testing.T) {
	m := question("www.example.com.", dns.TypeA)
	m.SetEdns0(1232, false)
	address := []byte{0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 1, 'x', 0, 0}
	at := len(header(2)) + 12 // of the address, which could be a name
	alias := func(target ...byte) []byte {
		return append([]byte{0xc0, 12, 0, 5, 0, 1, 0, 0, 1, 44, 0, byte(len(target))}, target...)
	}
	for name, tc := range map[string]struct {
		second []byte
		ok     bool
	}{
		"an address":        {alias(0xc0, byte(at)), true},
		"the middle":        {alias(0xc0, 14), false},
		"itself":            {alias(1, 'a', 0xc0, byte(at+4+12)), false},
		"what follows":      {alias(0xc0, 0xff), false},
		"a name's label":    {alias(1, 'a', 0xc0, 16), true},
		"a name too long":   {alias(bytes.Repeat([]byte{63}, 260)...), false},
		"an unknown label":  {alias(0x80, 1, 0), false},
		"data that is long": {append(alias(0xc0, 12), 0), true}, // the missing byte would be beyond the end of the message
	} {
		b := append(append(header(2), address...), tc.second...)
		a, err := read(t, m, b)
		if !tc.ok {
			if err == nil { // package dns has parsed the message
				_, err = wire.Unpack(a.Packed())
				assert.NoError(t, err, name)
			}
			continue
		}
		require.NoError(t, err, name)
		before := a.Message(m, must(wire.NewQuery(m)), wire.ResponseOptions{}).Answer
		a.LimitTTLs(&wire.TTLLimits{Max: 7 * time.Second})
		after := a.Message(m, must(wire.NewQuery(m)), wire.ResponseOptions{Age: time.Second, Rotation: 1}).Answer
		for i := range before {
			assert.Equal(t, before[i].Header().Name, after[i].Header().Name, name)
		}
		assert.Equal(t, before[1].(*dns.CNAME).Target, after[1].(*dns.CNAME).Target, name)
	}
}

// Package dns accepts compressed names in data where RFC 3597 forbids compression. These names must be expanded.
func TestUncompressibleNamesKeepValueWhenTTLsChange(t *testing.T) {
	m := question("www.example.com.", dns.TypeA)
	at := byte(len(header(2)) + 6)
	first := []byte{0xc0, 12, 0, 1, 0, 1, 1, 'a', 0, 0, 0, 4, 1, 'x', 0, 0} // the TTL could be read as a name
	for name, rr := range map[string][]byte{
		"NSEC":  {0xc0, 12, 0, 47, 0, 1, 0, 0, 1, 44, 0, 5, 0xc0, at, 0, 1, 0x40},
		"HTTPS": {0xc0, 12, 0, 65, 0, 1, 0, 0, 1, 44, 0, 4, 0, 1, 0xc0, at},
		"KX":    {0xc0, 12, 0, 36, 0, 1, 0, 0, 1, 44, 0, 4, 0, 1, 0xc0, at},
	} {
		a, err := read(t, m, append(append(header(2), first...), rr...))
		require.NoError(t, err)
		a.LimitTTLs(&wire.TTLLimits{Max: 7 * time.Second})
		got := new(dns.Msg)
		require.NoError(t, got.Unpack(a.Append(nil, must(wire.NewQuery(m)), wire.ResponseOptions{Age: time.Second}, 0)), name)
		assert.Regexp(t, `\sa\.`, got.Answer[1].String(), name)
	}
}

func TestRotationKeepsAddressesOfDifferentOwners(t *testing.T) {
	m := question("www.example.com.", dns.TypeA)
	b := header(4)
	alias := []byte{0xc0, 12, 0, 5, 0, 1, 0, 0, 1, 44, 0, 3, 1, 'a', 0}
	at := len(b) + 12 // of the name a
	b = append(b, alias...)
	long := append([]byte{0xc0, 12, 0, 16, 0, 1, 0, 0, 1, 44}, 0, 0)
	n := 1<<14 + at - (len(b) + 12) // so that the offset of the next name modulo 2^14 is the offset of the name a
	binary.BigEndian.PutUint16(long[10:], uint16(n))
	b = append(append(b, long...), make([]byte, n)...)
	require.Equal(t, 1<<14+at, len(b))
	b = append(b, 0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
	b = append(b, 0xc0, byte(at), 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 2)
	a, err := read(t, m, b)
	require.NoError(t, err)
	got := a.Message(m, must(wire.NewQuery(m)), wire.ResponseOptions{Rotation: 1})
	require.Len(t, got.Answer, 4)
	assert.Equal(t, "192.0.2.1", got.Answer[2].(*dns.A).A.String())
}

func TestParseAnswerRejectsMalformedOptions(t *testing.T) {
	m := question("www.example.com.", dns.TypeA)
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{192, 0, 2, 0}}}
	b := append(header(1), 0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
	b[11] = 1
	subnet := func(data ...byte) []byte {
		opt := append([]byte{0, 0, 41, 4, 208, 0, 0, 0, 0, 0, byte(4 + len(data)), 0, 8, 0, byte(len(data))}, data...)
		return append(b[:len(b):len(b)], opt...)
	}
	_, err := read(t, m, subnet(0, 1, 9))
	assert.Error(t, err)
	a, err := read(t, m, subnet(0, 1, 24, 0, 192, 0, 2))
	require.NoError(t, err)
	assert.Len(t, a.Options(), 11)
}

// Over HTTPS, a hostile server may send an Age header with such a response.
func TestParseAnswerAcceptsUpdateWithEmptyAlias(t *testing.T) {
	m := new(dns.Msg).SetUpdate("example.com.")
	b := append([]byte{0, 0, 0xa8, dns.RcodeNameError, 0, 1, 0, 1, 0, 0, 0, 0}, "\x07example\x03com\x00\x00\x06\x00\x01"...)
	b = append(b, 0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 0)
	a, err := read(t, m, b)
	require.NoError(t, err)
	a.SubtractTTL(time.Second)
	assert.EqualValues(t, 8, binary.BigEndian.Uint32(a.Packed()[len(b)-6:]))
}

func must(q *wire.Query, err error) *wire.Query {
	if err != nil {
		panic(err)
	}
	return q
}

func TestParseAnswerRemovesOPTRecordAtAnyPosition(t *testing.T) {
	m := question("www.example.com.", dns.TypeA)
	m.SetEdns0(1232, false)
	r := dnstest.EDE(dnstest.Answer(dnstest.Query{Msg: m}, "A 192.0.2.1"), 3)
	r.Extra = append(r.Extra, &dns.A{Hdr: dns.RR_Header{Name: "ns.example.com.", Rrtype: dns.TypeA, Class: 1, Ttl: 9}, A: []byte{192, 0, 2, 3}})
	r.Compress = true
	a, err := read(t, m, pack(t, r))
	require.NoError(t, err)
	assert.True(t, a.EDNS)
	require.Len(t, a.EDE, 1)
	assert.EqualValues(t, 3, a.EDE[0].Code)
	got := new(dns.Msg)
	require.NoError(t, got.Unpack(a.Packed()))
	require.Len(t, got.Extra, 1)
	assert.Equal(t, "ns.example.com.", got.Extra[0].Header().Name)
}

func TestParseAnswerTakesThreeAllocations(t *testing.T) {
	if doubles.RaceEnabled {
		t.Skip("counts allocations")
	}
	m := question("www.example.com.", dns.TypeA)
	m.SetEdns0(1232, false)
	r := dnstest.Answer(dnstest.Query{Msg: m}, "CNAME a.example.net.", "a.example.net. A 192.0.2.1", "a.example.net. A 192.0.2.2")
	r.Compress = true
	b := pack(t, r)
	q := must(wire.NewQuery(m))
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		a, err := wire.ParseAnswer(b, q)
		if err != nil {
			t.Fatal(err)
		}
		a.LimitTTLs(&wire.TTLLimits{Max: time.Hour})
	}), 3.0)
}
