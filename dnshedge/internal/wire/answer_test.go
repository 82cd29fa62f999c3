package wire_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

func question(name string, typ uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, typ) }

func pack(t testing.TB, m *dns.Msg) []byte {
	b, err := m.Pack()
	require.NoError(t, err)
	return b
}

func TestCheckIgnoresCaseOfQuestion(t *testing.T) {
	q := question("Ex-Ample.COM.", dns.TypeA)
	for name, ok := range map[string]bool{
		"ex-ample.com.": true, "EX-AMPLE.com.": true, "ex-ample.co.": false, "ex-ample.comm.": false,
		"ex\rample.com.": false, "ex-ample.com.com.": false,
	} {
		r := dnstest.Answer(dnstest.Query{Msg: q}, "A 192.0.2.1")
		r.Question[0].Name = name
		_, _, err := wire.CheckResponse(pack(t, q), pack(t, r))
		assert.Equal(t, ok, err == nil, name)
	}
}

func TestCheckAcceptsErrorsWithoutQuestion(t *testing.T) {
	q := question("example.com.", dns.TypeA)
	for code := range 11 {
		r := new(dns.Msg)
		r.SetRcode(q, code)
		r.Question = nil
		m, _, err := wire.CheckResponse(pack(t, q), pack(t, r))
		want := slices.Contains([]int{dns.RcodeFormatError, dns.RcodeServerFailure, dns.RcodeNotImplemented, dns.RcodeRefused, dns.RcodeNotAuth}, code)
		assert.Equal(t, want, err == nil, code)
		if want {
			assert.Equal(t, q.Question, m.Question)
		}
	}
}

func TestAnswerFormatsAreEqual(t *testing.T) {
	q := question("MiXed.Example.", dns.TypeA)
	q.SetEdns0(4096, true)
	q.CheckingDisabled = true
	r := dnstest.EDE(dnstest.Answer(dnstest.Query{Msg: q}, "300 CNAME y.example.", "y.example. 200 A 192.0.2.1", "y.example. 200 A 192.0.2.2"), 4)
	r.AuthenticatedData = true
	m, wire, err := wire.CheckResponse(pack(t, q), pack(t, r))
	require.NoError(t, err)
	got := new(dns.Msg)
	require.NoError(t, got.Unpack(wire))
	assert.Equal(t, m.String(), got.String())
	assert.EqualValues(t, 299, got.Answer[0].Header().Ttl)
	assert.True(t, got.AuthenticatedData)
	assert.True(t, got.CheckingDisabled)
	assert.Equal(t, "MiXed.Example.", got.Question[0].Name)
}

func FuzzResponse(f *testing.F) {
	q := question("example.com.", dns.TypeA)
	q.SetEdns0(1232, true)
	query := pack(f, q)
	good := dnstest.EDE(dnstest.Answer(dnstest.Query{Msg: q}, "CNAME y.example.", "y.example. A 192.0.2.1"), 3)
	f.Add(query, pack(f, good))
	f.Add(query, pack(f, dnstest.Negative(dnstest.Query{Msg: q}, 3, 300, 60)))
	f.Add(query, query)
	f.Add(query, []byte{1, 2})
	loop := append(pack(f, dnstest.Rcode(dnstest.Query{Msg: q}, 0))[:29], 0xc0, 29, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0)
	f.Add(query, loop)
	f.Fuzz(func(t *testing.T, query, resp []byte) { checkMangled(t, query, resp) })
}

// checkMangled checks that a damaged message is handled without a panic and consistently. It reports whether the
// message was accepted as the response.
func checkMangled(t *testing.T, query, resp []byte) bool {
	if m, err := wire.ParseMsg(resp); err == nil && m.Opcode == dns.OpcodeQuery {
		b, err := m.Pack()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v\n%x", err, resp)
		}
		if again, err := wire.ParseMsg(b); err != nil || len(again.Answer)+len(again.Ns)+len(again.Extra) != len(m.Answer)+len(m.Ns)+len(m.Extra) {
			t.Fatalf("what was written is something else: %v\n%x\n%x", err, resp, b)
		}
	}
	m, packed, err := wire.CheckResponse(query, resp)
	if err != nil {
		return false
	}
	if m.Id != binary.BigEndian.Uint16(query) || !m.Response || len(m.Question) != 1 {
		t.Fatalf("not the caller's: %v", m)
	}
	again, err := wire.Unpack(packed)
	if err != nil {
		t.Fatalf("what is passed on cannot be read: %v\n%x\n%x", err, resp, packed)
	}
	if len(again.Answer) != len(m.Answer) || again.Rcode != m.Rcode || again.Truncated != m.Truncated {
		t.Fatalf("formats differ:\n%v\n%v\n%x", m, again, resp)
	}
	return true
}

func TestParseAnswerSurvivesMangledMessages(t *testing.T) {
	q := question("www.example.com.", dns.TypeHTTPS)
	q.SetEdns0(1232, true)
	q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{192, 0, 2, 0}}}
	query := pack(t, q)
	var good [][]byte
	for _, m := range []*dns.Msg{
		dnstest.EDE(dnstest.Answer(dnstest.Query{Msg: q}, "CNAME y.example.", "y.example. HTTPS 1 . alpn=h2 ipv4hint=192.0.2.1", "y.example. TXT x"), 3),
		dnstest.Answer(dnstest.Query{Msg: q}, "example.com. DNAME example.", "CNAME www.example.", "www.example. HTTPS 0 z."),
		dnstest.Answer(dnstest.Query{Msg: q}, "HTTPS 1 .", "MX 1 mx.example.", "SRV 1 2 3 srv.example.", "NAPTR 1 2 \"u\" \"x\" \"!a!b!\" .", "A 192.0.2.1"),
		dnstest.Negative(dnstest.Query{Msg: q}, dns.RcodeNameError, 300, 60),
	} {
		for _, m.Compress = range []bool{false, true} {
			good = append(good, pack(t, m))
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	question := 12 + len("www.example.com.") + 1 + 4
	taken, total := 0, 100_000
	if doubles.RaceEnabled {
		total /= 5
	}
	for range total {
		b := bytes.Clone(good[rng.IntN(len(good))])
		ask := query
		if rng.IntN(10) == 0 {
			ask = mangle(rng, bytes.Clone(query), 0)
		}
		from := question // or nearly none gets further than the question
		if rng.IntN(10) == 0 {
			from = 0
		}
		b = mangle(rng, b, from)
		if checkMangled(t, ask, b) {
			taken++
		}
	}
	t.Logf("%d were taken for responses", taken)
	assert.Greater(t, taken, 1000)
}

func TestParseMsgDropsMalformedRecords(t *testing.T) {
	odd := func(typ uint16, data string) dns.RR {
		return &dns.RFC3597{Hdr: dns.RR_Header{Name: "x.example.", Rrtype: typ, Class: dns.ClassINET, Ttl: 60}, Rdata: data}
	}
	good := dnstest.Answer(dnstest.Query{Msg: question("x.example.", dns.TypeA)}, "A 192.0.2.1").Answer[0]
	m := question("x.example.", dns.TypeA)
	m.Answer = []dns.RR{odd(dns.TypeA, "010203"), good, odd(dns.TypeA, "0102030405"), odd(dns.TypeHTTPS, "00"), odd(dns.TypeAAAA, "")}
	m.Ns = []dns.RR{odd(dns.TypeNS, "0161"), odd(dns.TypeSOA, "0000"), odd(dns.TypeMX, "")}
	m.Extra = []dns.RR{odd(dns.TypeA, "01"), good}
	got, err := wire.ParseMsg(pack(t, m))
	require.NoError(t, err)
	if assert.Len(t, got.Answer, 2) {
		assert.Equal(t, good.String(), got.Answer[0].String())
		assert.Equal(t, dns.TypeHTTPS, got.Answer[1].Header().Rrtype) // for the caller to judge
	}
	assert.Empty(t, got.Ns)
	if assert.Len(t, got.Extra, 1) {
		assert.Equal(t, good.String(), got.Extra[0].String())
	}

	b := pack(t, question("x.example.", dns.TypeA).SetEdns0(1232, false))
	b[len(b)-1] = 2
	_, err = wire.ParseMsg(append(b, 0, 10))
	assert.Error(t, err, "half an option")
	b = pack(t, question("x.example.", dns.TypeA))
	b[7] = 1
	_, err = wire.ParseMsg(b)
	assert.Error(t, err, "an answer that is not there")
}

func TestParseAnswerLimitsAliases(t *testing.T) {
	q := question("x.example.", dns.TypeA)
	m := dnstest.Answer(dnstest.Query{Msg: q})
	for i := range 1500 { // in the worst order
		m.Answer = append(m.Answer,
			&dns.DNAME{Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeDNAME, Class: 1}, Target: "d."},
			&dns.CNAME{Hdr: dns.RR_Header{Name: fmt.Sprintf("n%d.example.", 1500-i), Rrtype: dns.TypeCNAME, Class: 1}, Target: fmt.Sprintf("n%d.example.", 1501-i)})
	}
	m.Compress = true
	resp := pack(t, m)
	start := time.Now()
	_, _, err := wire.CheckResponse(pack(t, q), resp)
	require.NoError(t, err)
	assert.Less(t, time.Since(start), 3*time.Second, "a few milliseconds on a machine at rest; minutes if every alias were followed")
}

// mangle changes, cuts or doubles some bytes, counts of records among them.
func mangle(rng *rand.Rand, b []byte, from int) []byte {
	for range 1 + rng.IntN(4) {
		if len(b) <= max(from, 12) {
			return b
		}
		i := from + rng.IntN(len(b)-from)
		switch rng.IntN(6) {
		case 0:
			b = b[:i]
		case 1:
			b = append(b[:i:i], b[i-rng.IntN(min(i, 20)+1):]...)
		case 2:
			b[6+rng.IntN(6)] ^= byte(rng.IntN(4))
		case 3:
			b[i] = 0xc0
		default:
			b[i] = byte(rng.IntN(256))
		}
	}
	return b
}

func TestParseAnswerDropsUnrequestedOptions(t *testing.T) {
	for _, asked := range []bool{true, false} {
		m := question("x.example.", dns.TypeA)
		m.SetEdns0(1232, false)
		unknown := &dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART, Data: make([]byte, 60_000)}
		r := dnstest.Answer(dnstest.Query{Msg: m}, "A 192.0.2.1")
		r.Extra = nil
		r.SetEdns0(1232, false)
		r.IsEdns0().Option = append(r.IsEdns0().Option, unknown)
		if asked {
			m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART})
		}
		q, err := wire.NewQuery(m)
		require.NoError(t, err)
		a, err := wire.ParseAnswer(pack(t, r), q)
		require.NoError(t, err)
		assert.Equal(t, asked, len(a.Options()) > 60_000, "asked %v", asked)
	}
}

// Offsets in a message have 16 bits.
func TestParseAnswerRejectsOversizedMessage(t *testing.T) {
	q := question("example.com.", dns.TypeSRV)
	r := new(dns.Msg).SetReply(q)
	target := strings.Repeat(strings.Repeat("a", 50)+".", 4)
	for i := range 400 {
		r.Answer = append(r.Answer, &dns.SRV{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeSRV, Class: dns.ClassINET, Ttl: 60}, Port: uint16(i), Target: target})
	}
	b := pack(t, r)
	require.Greater(t, len(b), wire.MaxMsg)
	_, err := wire.ParseAnswer(b, nil)
	require.ErrorContains(t, err, "do not fit a message")
}
