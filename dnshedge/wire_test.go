package dnshedge_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

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
		_, _, err := dnshedge.CheckWire(pack(t, q), pack(t, r))
		assert.Equal(t, ok, err == nil, name)
	}
}

func TestServersThatCouldNotReadTheQuestionNeedNotRepeatIt(t *testing.T) {
	q := question("example.com.", dns.TypeA)
	for code := range 11 {
		r := new(dns.Msg)
		r.SetRcode(q, code)
		r.Question = nil
		m, _, err := dnshedge.CheckWire(pack(t, q), pack(t, r))
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
	m, wire, err := dnshedge.CheckWire(pack(t, q), pack(t, r))
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
		m, wire, err := dnshedge.CheckWire(query, resp)
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

func FuzzFrames(f *testing.F) {
	frame := func(b []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...) }
	r := dnstest.Rcode(dnstest.Query{Msg: question(".", dns.TypeNS)}, 0)
	f.Add(frame(pack(f, r)))
	f.Add(append(frame(pack(f, r)), frame(pack(f, r))[:9]...))
	f.Add([]byte{0, 3, 1, 2, 3})
	f.Add([]byte{0xff, 0xff, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write(b)
			theirs.Close()
		}()
		ignored := dnshedge.ReadFrames(ours)
		if n := len(b)/(2+12) + 1; ignored > n {
			t.Fatalf("%d messages in %d bytes", ignored, len(b))
		}
	})
}

// model is a cache that is too simple to be wrong: it keeps all, and looks at all.
type model struct{ entries []modelEntry }

type modelEntry struct {
	name       string
	typ        uint16
	nx         bool
	stored     time.Time
	ttl        uint32
	do, absent bool
}

func (m *model) set(e modelEntry) {
	// A new answer takes the place of the old one; that a name does not exist, of the answer for the type asked.
	for i := range m.entries {
		o := &m.entries[i]
		if o.name == e.name && o.do == e.do && (o.typ == e.typ && !o.nx || o.nx && e.nx) {
			o.absent = true
		}
	}
	m.entries = append(m.entries, e)
}

// get returns what is left of the answer, or false.
func (m *model) get(name string, typ uint16, do bool, now time.Time) (left uint32, nx, ok bool) {
	find := func(match func(e modelEntry) bool) (uint32, bool, bool) {
		for _, e := range m.entries {
			if e.name == name && e.do == do && !e.absent && match(e) {
				age := now.Sub(e.stored)
				if age >= time.Duration(e.ttl)*time.Second {
					return 0, false, false
				}
				up := uint32((age + time.Second - 1) / time.Second)
				if up >= e.ttl {
					return 1, e.nx, true
				}
				return e.ttl - up, e.nx, true
			}
		}
		return 0, false, false
	}
	for _, e := range m.entries {
		if e.name == name && e.do == do && !e.absent && e.typ == typ && !e.nx {
			return find(func(e modelEntry) bool { return e.typ == typ && !e.nx })
		}
	}
	return find(func(e modelEntry) bool { return e.nx })
}

func FuzzCacheAgainstAModel(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 200, 201, 202, 203})
	f.Add([]byte("the quick brown fox jumps over the lazy dog"))
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 200 {
			steps = steps[:200]
		}
		bubbleOnly(t, func(t *testing.T) {
			var c dnshedge.Cache
			var m model
			for i := 0; i+3 < len(steps); i += 4 {
				op, who, what, when := steps[i], steps[i+1], steps[i+2], steps[i+3]
				name := fmt.Sprintf("n%d.example.", who%3)
				typ := []uint16{dns.TypeA, dns.TypeAAAA}[what%2]
				do := what&2 != 0
				ask := question(name, typ)
				if who%2 == 0 {
					ask.Question[0].Name = strings.ToUpper(name)
				}
				if do {
					ask.SetEdns0(1232, true)
				}
				now := time.Now()
				ttl := uint32(when%64) + 1
				switch op % 4 {
				case 0: // a good answer
					rr := []string{"A 192.0.2.1", "AAAA 2001:db8::1"}[what%2]
					require.True(t, c.Set(dnstest.Answer(dnstest.Query{Msg: ask}, fmt.Sprint(ttl, " ", rr))))
					m.set(modelEntry{name: name, typ: typ, stored: now, ttl: ttl, do: do})
				case 1:
					require.True(t, c.Set(dnstest.Negative(dnstest.Query{Msg: ask}, dns.RcodeNameError, ttl, 1000)))
					m.set(modelEntry{name: name, typ: typ, nx: true, stored: now, ttl: ttl, do: do})
				case 2:
					time.Sleep(time.Duration(when) * 100 * ms)
				}
				now = time.Now()
				r, ok := c.Get(ask)
				left, nx, want := m.get(name, typ, do, now)
				if ok != want {
					t.Fatalf("step %d: %s %d: found %v, want %v", i, name, typ, ok, want)
				}
				if !ok {
					continue
				}
				got := uint32(0)
				if nx {
					got = r.Ns[0].Header().Ttl
				} else {
					got = r.Answer[0].Header().Ttl
				}
				if nx != (r.Rcode == dns.RcodeNameError) || got != left || r.Question[0] != ask.Question[0] {
					t.Fatalf("step %d: %v; want %d s left, NXDOMAIN %v", i, r, left, nx)
				}
			}
		})
	})
}
