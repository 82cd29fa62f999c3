package wire_test

import (
	"encoding/binary"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/dnstest"
)

func question(name string, typ uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, typ) }

func pack(t testing.TB, m *dns.Msg) []byte {
	b, err := m.Pack()
	require.NoError(t, err)
	return b
}

func TestTheQuestionIsComparedWithoutCase(t *testing.T) {
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

func TestServersThatCouldNotReadTheQuestionNeedNotRepeatIt(t *testing.T) {
	q := question("example.com.", dns.TypeA)
	for code := range 11 {
		r := new(dns.Msg)
		r.SetRcode(q, code)
		r.Question = nil
		m, _, err := wire.CheckResponse(pack(t, q), pack(t, r))
		want := code == dns.RcodeFormatError || code == dns.RcodeNotImplemented || code == dns.RcodeRefused
		assert.Equal(t, want, err == nil, code)
		if want {
			assert.Equal(t, q.Question, m.Question)
		}
	}
}

func TestBothFormatsOfAnAnswerAreTheSame(t *testing.T) {
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
	f.Fuzz(func(t *testing.T, query, resp []byte) {
		m, wire, err := wire.CheckResponse(query, resp)
		if err != nil {
			return
		}
		if m.Id != binary.BigEndian.Uint16(query) || !m.Response || len(m.Question) != 1 {
			t.Fatalf("not the caller's: %v", m)
		}
		again := new(dns.Msg)
		if err := again.Unpack(wire); err != nil {
			t.Fatalf("what is passed on cannot be read: %v", err)
		}
		if len(again.Answer) != len(m.Answer) || again.Rcode != m.Rcode || again.Truncated {
			t.Fatalf("formats differ:\n%v\n%v", m, again)
		}
	})
}
