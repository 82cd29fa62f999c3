package recursor_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// dice draws numbers from the bytes of a fuzzer, and zeros after the last byte.
type dice struct{ data []byte }

func (d *dice) draw(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return int(b) % n
}

func (d *dice) of(all ...string) string { return all[d.draw(len(all))] }

// refer draws a well-formed referral to any zone, with glue for any name.
func (d *dice) refer(q query) *dns.Msg {
	zone := d.of(q.name, "sub.evil.", "www.evil.", "evil.", "good.", "www.good.", "other.", ".", "nx.good.", "sub.good.")
	ns := d.of("ns.sub.evil.", "ns1.evil.", "ns1.good.", "ns1.other.", "www.good.", "a.root.", "nx.good.", "ns.nx.", "www.evil.")
	glue := d.of(ns, ns, "ns1.good.", "ns1.other.", "www.good.", "a.root.", "ns1.sub.good.")
	return respondWith(fmt.Sprintf("referral | %s NS %s | %s %d A %s", zone, ns, glue, d.draw(256)*256, evil))(q, nil)
}

// record draws a record with any owner.
func (d *dice) record(qname string) dns.RR {
	names := []string{qname, "evil.", "www.evil.", "sub.evil.", "ns.sub.evil.", "ns1.evil.", "a.b.evil.", "*.evil.", ".", "good.", "www.good.", "ns1.good.", "alias.good.", "sub.good.", "ns.sub.good.", "x.old.good.", "nx.good.", "other.", "www.other.", "ns1.other.", "a.root."}
	name := func() string { return names[d.draw(len(names))] }
	owner := name()
	ttl := []uint32{3600, 0, 1, 1 << 31, 1<<32 - 1, 60}[d.draw(6)]
	h := dns.RR_Header{Name: owner, Class: dns.ClassINET, Ttl: ttl}
	if d.draw(16) == 15 {
		h.Class = dns.ClassCHAOS
	}
	h.Rrtype = []uint16{dns.TypeA, dns.TypeNS, dns.TypeCNAME, dns.TypeDNAME, dns.TypeSOA, dns.TypeAAAA, dns.TypeRRSIG, dns.TypeMX, dns.TypeDS, dns.TypeTXT, dns.TypeNSEC}[d.draw(11)]
	switch h.Rrtype {
	case dns.TypeA:
		return record(fmt.Sprintf("%s %d A %s", owner, 60, d.of(evil, "203.0.113.67", "192.0.2.1", "192.0.2.9", "127.0.0.1", "198.41.0.4", "203.0.113.99")))
	case dns.TypeAAAA:
		return record(fmt.Sprintf("%s %d AAAA %s", owner, 60, d.of("2001:db8::66", "::1", "::ffff:192.0.2.1")))
	case dns.TypeNS:
		return &dns.NS{Hdr: h, Ns: name()}
	case dns.TypeCNAME:
		return &dns.CNAME{Hdr: h, Target: name()}
	case dns.TypeDNAME:
		return &dns.DNAME{Hdr: h, Target: name()}
	case dns.TypeSOA:
		return &dns.SOA{Hdr: h, Ns: name(), Mbox: name(), Minttl: ttl}
	case dns.TypeMX:
		return &dns.MX{Hdr: h, Mx: name()}
	case dns.TypeRRSIG:
		return &dns.RRSIG{Hdr: h, TypeCovered: dns.TypeA, SignerName: name(), Signature: "AAAA"}
	case dns.TypeDS:
		return &dns.DS{Hdr: h, Digest: "00"}
	case dns.TypeNSEC:
		return &dns.NSEC{Hdr: h, NextDomain: name()}
	}
	return &dns.TXT{Hdr: h, Txt: []string{"x"}}
}

// respond adds a possible response of a zone's server to m: records, an alias, or a denial.
func (d *dice) respond(q query, m *dns.Msg) {
	data := map[uint16]string{dns.TypeA: "192.0.2.66", dns.TypeTXT: "evil", dns.TypeNS: "ns1.evil.", dns.TypeCNAME: "www.good.", dns.TypeDS: "1 8 2 00"}[q.qtype]
	kind := d.draw(5)
	if kind < 2 && data != "" { // also beside an alias
		m.Answer = append(m.Answer, record(q.name+" "+dns.TypeToString[q.qtype]+" "+data))
	}
	switch kind {
	case 0:
	case 1, 2:
		m.Answer = append(m.Answer, record(q.name+" CNAME "+d.of("www.evil.", "ns1.evil.", "x.evil.", "www.good.", "alias.good.", "x.old.good.", "far.good.", "nx.good.", "www.sub.good.")))
	default:
		m.Ns = append(m.Ns, record("evil. 60 SOA ns1.evil. admin.evil. 1 2 3 4 60"))
		if kind == 4 {
			m.Rcode = dns.RcodeNameError
		}
	}
}

// hostile draws the messages that answer a query.
func (d *dice) hostile(q query) [][]byte {
	if d.draw(32) == 31 {
		return nil
	}
	if d.draw(4) == 3 {
		b, err := d.refer(q).Pack()
		if err != nil {
			return nil
		}
		return [][]byte{b}
	}
	m := new(dns.Msg).SetReply(q.Msg)
	m.Authoritative = d.draw(4) != 3
	switch d.draw(3) {
	case 1:
		d.respond(q, m)
	case 2:
		m.Rcode = d.draw(12)
	}
	m.Truncated = d.draw(16) == 15
	m.AuthenticatedData = d.draw(4) == 3
	for i := range 3 {
		section := []*[]dns.RR{&m.Answer, &m.Ns, &m.Extra}[i]
		for range d.draw(5) {
			*section = append(*section, d.record(q.name))
		}
	}
	if d.draw(4) != 3 {
		m.SetEdns0(1232, false)
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return [][]byte{b}
}

const stage = `
. served 198.41.0.4
  @ NS a.root.
  a.root A 198.41.0.4
good. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.80
  alias CNAME www
  old DNAME new
  x.new A 192.0.2.82
  far CNAME www.other.
sub.good. delegated 192.0.2.3
  www A 192.0.2.83
other. delegated 192.0.2.9
  www A 192.0.2.90
evil. delegated 203.0.113.66 203.0.113.67
`

// truth has the answers of the zones in stage that are not hostile.
var truth = []struct{ question, want string }{
	{"www.good. A", "NOERROR www.good. A 192.0.2.80"},
	{"alias.good. A", "NOERROR alias.good. CNAME www.good., www.good. A 192.0.2.80"},
	{"x.old.good. A", "NOERROR old.good. DNAME new.good., x.new.good. A 192.0.2.82, x.old.good. CNAME x.new.good."},
	{"far.good. A", "NOERROR far.good. CNAME www.other., www.other. A 192.0.2.90"},
	{"www.sub.good. A", "NOERROR www.sub.good. A 192.0.2.83"},
	{"ns1.sub.good. A", "NOERROR ns1.sub.good. A 192.0.2.3"},
	{"good. NS", "NOERROR good. NS ns1.good., good. NS ns2.good."},
	{"ns1.good. A", "NOERROR ns1.good. A 192.0.2.1"},
	{"ns1.other. A", "NOERROR ns1.other. A 192.0.2.9"},
	{"nx.good. A", "NXDOMAIN"},
	{"www.good. TXT", "NOERROR"},
	{"other. NS", "NOERROR other. NS ns1.other."},
	{". NS", "NOERROR . NS a.root."},
	{"a.root. A", "NOERROR a.root. A 198.41.0.4"},
}

// FuzzHostileZone gives the servers of a zone any responses. Names in other zones get the answers of their own
// servers, as soon as without questions about the zone, and without queries to the servers of the zone.
//
// If these servers always send the same response to the same question, names in the zone get the answers of a
// careful.
func FuzzHostileZone(f *testing.F) {
	f.Add([]byte{})
	for i := range 40 {
		b := make([]byte, 100+i*4)
		for j := range b {
			b[j] = byte((j*j*7 + j*(13+i*31) + i*i) >> 3)
		}
		f.Add(b)
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		b := make([]byte, 300)
		for j := range b {
			b[j] = byte(random.Uint32())
		}
		b[0] |= 4 // the same response to the same question
		f.Add(b)
	}
	f.Fuzz(hostileZone)
}

func hostileZone(t *testing.T, data []byte) {
	d := &dice{data}
	drawn := d.draw(8)
	h := &hostility{settings: func(r *recursor.Resolver) { r.NoMinimise, r.Hedge.Off = drawn&1 > 0, drawn&2 > 0 }, steady: drawn&4 > 0}
	for range 8 {
		h.turns = append(h.turns, turn{choice: d.draw(len(hostileQuestions) + len(truth)), pause: d.draw(8)})
	}
	h.data = d.data
	var known []moment // questions about other zones
	bubble(t, stage, func(t *testing.T, w *testNetwork) { known = h.play(t, w) })
	bubble(t, stage, func(t *testing.T, w *testNetwork) { h.replay(t, w, known) })
	if h.steady {
		bubble(t, stage, h.compare)
	}
}

// hostility describes how the servers of a zone respond, and the questions of the test.
type hostility struct {
	settings func(*recursor.Resolver)
	steady   bool // responses depend only on the question
	turns    []turn
	data     []byte // bytes from which responses are drawn
}

// turn is a question and the time after its answer, as indexes.
type turn struct{ choice, pause int }

// pauses has no pause equal to a TTL, because then a difference of a millisecond would change the answer.
var pauses = []time.Duration{0, 0, 0, 0, ms, time.Second, time.Minute, 61 * time.Minute}

var hostileQuestions = []string{"www.evil. A", "evil. NS", "evil. A", "a.b.evil. A", "www.sub.evil. A", "x.evil. CNAME", "evil. DS", "www.evil. TXT", "ns1.evil. A", "sub.evil. NS"}

// moment is a question about another zone, with the time of the question and the time to the answer.
type moment struct {
	at, took time.Duration
	question string
}

// raw returns the function that makes the responses of the zone's servers.
func (h *hostility) raw() func(query) [][]byte {
	if !h.steady {
		return (&dice{h.data}).hostile
	}
	return func(q query) [][]byte {
		d := &dice{h.data}
		if n := len(h.data); n > 0 {
			k := fnv.New32a()
			fmt.Fprint(k, q.name, q.qtype)
			at := int(k.Sum32() % uint32(n))
			d.data = slices.Concat(h.data[at:], h.data[:at])
		}
		return d.hostile(q)
	}
}

// play asks about the zone and other zones. It returns the questions about other zones.
func (h *hostility) play(t *testing.T, w *testNetwork) (all []moment) {
	w.updateServers("203.0.113.66 203.0.113.67", func(s *server) { s.raw = h.raw() })
	known := map[string]bool{"x.old.good. CNAME x.new.good.": true}
	for _, addr := range []string{"198.41.0.4", "192.0.2.1", "192.0.2.3", "192.0.2.9"} {
		for _, z := range w.server(addr).zones {
			for _, types := range z.sets {
				for _, rrs := range types {
					for _, rr := range rrs {
						known[fact(rr)] = true
					}
				}
			}
		}
	}
	r := w.resolver(h.settings)
	ask := func(q string) *dns.Msg {
		n, start := w.countQueries(), time.Now()
		m := w.ask(r, q)
		require.LessOrEqual(t, w.countQueries()-n, 64+1, q)
		require.LessOrEqual(t, time.Since(start), 15*time.Second, q)
		return m
	}
	askTruth := func(i int) {
		c, start := truth[i], time.Now()
		require.Equal(t, c.want, formatResponse(ask(c.question)), c.question)
		all = append(all, moment{start.Sub(w.start), time.Since(start), c.question})
	}
	for _, turn := range h.turns {
		if i := turn.choice - len(hostileQuestions); i >= 0 {
			askTruth(i)
		} else {
			for _, rr := range ask(hostileQuestions[turn.choice]).Answer {
				if !dns.IsSubDomain("evil.", dns.CanonicalName(rr.Header().Name)) {
					require.True(t, known[fact(rr)] || synthesized(rr), "%v", rr)
				}
			}
		}
		time.Sleep(pauses[turn.pause])
	}
	for i := range truth {
		askTruth(i)
	}
	for _, a := range w.queriesSince(0) {
		if strings.HasPrefix(a.to.String(), "203.0.113.") {
			require.True(t, dns.IsSubDomain("evil.", a.name), "%v", a)
		}
	}
	require.NoError(t, r.Close())
	return all
}

// replay asks the same questions about other zones at the same times, but none about the hostile zone. It requires
// that the answers come no sooner.
func (h *hostility) replay(t *testing.T, w *testNetwork, all []moment) {
	w.updateServers("203.0.113.66 203.0.113.67", func(s *server) { s.raw = h.raw() })
	r := w.resolver(h.settings)
	for _, m := range all {
		time.Sleep(time.Until(w.start.Add(m.at)))
		start := time.Now()
		w.ask(r, m.question)
		require.LessOrEqual(t, m.took, time.Since(start), "%s takes longer after questions about the zone", m.question)
	}
	require.NoError(t, r.Close())
}

// fact returns a record without its TTL, in lower case.
func fact(rr dns.RR) string {
	h := rr.Header()
	return dns.CanonicalName(h.Name) + " " + dns.TypeToString[h.Rrtype] + " " + strings.ToLower(strings.TrimPrefix(rr.String(), h.String()))
}

// synthesized reports whether a record follows from the DNAME record of stage.
func synthesized(rr dns.RR) bool {
	c, ok := rr.(*dns.CNAME)
	return ok && strings.TrimSuffix(dns.CanonicalName(c.Hdr.Name), "old.good.") == strings.TrimSuffix(dns.CanonicalName(c.Target), "new.good.")
}

// faults returns the fault number k of a server, for zones that have at least one server without fault.
func faults(k int) func(query, *dns.Msg) *dns.Msg {
	return []func(query, *dns.Msg) *dns.Msg{
		silent,
		respondRcode(dns.RcodeServerFailure), respondRcode(dns.RcodeRefused), respondRcode(dns.RcodeNotAuth), respondRcode(dns.RcodeFormatError), respondRcode(dns.RcodeNotImplemented), respondRcode(dns.RcodeBadVers),
		respondWith(""), respondWith("referral"), respondWith("referral | . NS a.root."), respondWith("referral | evil. NS ns1.evil."), respondWith("referral | example. NS ns1.example."),
		func(_ query, r *dns.Msg) *dns.Msg { r.Authoritative = false; return r },
		func(_ query, r *dns.Msg) *dns.Msg { r.Response = false; return r },
		func(_ query, r *dns.Msg) *dns.Msg { r.Id++; return r },
		func(_ query, r *dns.Msg) *dns.Msg { r.Question[0].Name = "x" + r.Question[0].Name; return r },
		func(_ query, r *dns.Msg) *dns.Msg { r.Question = nil; return r },
		func(_ query, r *dns.Msg) *dns.Msg { r.Opcode = dns.OpcodeNotify; return r },
		func(q query, r *dns.Msg) *dns.Msg { r.Truncated = !q.tcp; r.Answer = nil; return r },
		func(q query, r *dns.Msg) *dns.Msg { r.Truncated, r.Answer, r.Ns = true, nil, nil; return r },
		func(q query, r *dns.Msg) *dns.Msg {
			if q.tcp {
				return nil
			}
			r.Truncated, r.Answer, r.Ns = true, nil, nil
			return r
		},
		func(q query, r *dns.Msg) *dns.Msg {
			if q.IsEdns0() != nil {
				return nil
			}
			return r
		},
		func(q query, r *dns.Msg) *dns.Msg {
			if q.IsEdns0() != nil {
				return &dns.Msg{MsgHdr: dns.MsgHdr{Id: q.Id, Response: true, Rcode: dns.RcodeFormatError}}
			}
			return r
		},
		func(q query, r *dns.Msg) *dns.Msg { r.Extra = nil; return r }, // EDNS is ignored: no fault
		nil,
	}[k]
}

const kinds = 25 // of faults

// deniesWithoutProof reports whether r is a denial, but not an authoritative one with the zone's SOA record.
func deniesWithoutProof(r *dns.Msg) bool {
	if r == nil || len(r.Answer) > 0 || r.Rcode != dns.RcodeSuccess && r.Rcode != dns.RcodeNameError {
		return false
	}
	return !r.Authoritative || !slices.ContainsFunc(r.Ns, func(rr dns.RR) bool {
		return rr.Header().Rrtype == dns.TypeSOA && strings.EqualFold(rr.Header().Name, "example.")
	})
}

// FuzzOneFaultlessServer gives all servers of a zone but one any faults. Names still get correct answers within the
// limits. Only an unproven denial by two servers is accepted, as by other resolvers.
func FuzzOneFaultlessServer(f *testing.F) {
	for i := range kinds {
		f.Add([]byte{byte(i), byte(i), 0, byte(i), byte(i), byte(i), byte(i)})
		f.Add([]byte{4, byte(i), 1, byte(i + 1), byte(i + 5), 0, byte(i + 7), byte(i * 3)})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			d := &dice{data}
			n := 2 + d.draw(4)
			text := ". served 198.41.0.4\nexample. delegated"
			for i := range n {
				text += fmt.Sprintf(" 192.0.2.%d", i+1)
			}
			w := newTestNetwork(t, text+"\n  www A 192.0.2.80\n  a.b.c A 192.0.2.81\n  alias CNAME www\n")
			good := d.draw(n)
			deniers := make(map[int]bool)
			for i := range n {
				if i == good {
					continue
				}
				change := func(q query, r *dns.Msg) *dns.Msg { // another fault for each query
					if f := faults(d.draw(kinds)); f != nil {
						return f(q, r)
					}
					return r
				}
				if k := d.draw(kinds + 1); k < kinds {
					change = faults(k)
				}
				fault := change
				change = func(q query, r *dns.Msg) *dns.Msg {
					if fault != nil {
						r = fault(q, r)
					}
					if deniesWithoutProof(r) {
						deniers[i] = true
					}
					return r
				}
				noTCP, slow := d.draw(4) == 3, d.draw(4) == 3
				w.updateServers(fmt.Sprintf("192.0.2.%d", i+1), func(s *server) {
					s.change, s.noTCP = change, noTCP
					if slow {
						s.rtt = 1500 * ms
					}
				})
			}
			b := d.draw(4)
			r := w.resolver(func(r *recursor.Resolver) { r.NoMinimise, r.Hedge.Off = b&1 > 0, b&2 > 0 })
			for _, c := range []struct{ question, want string }{
				{"www.example. A", "NOERROR www.example. A 192.0.2.80"},
				{"a.b.c.example. A", "NOERROR a.b.c.example. A 192.0.2.81"},
				{"alias.example. A", "NOERROR alias.example. CNAME www.example., www.example. A 192.0.2.80"},
				{"nx.example. A", "NXDOMAIN"},
				{"www.example. TXT", "NOERROR"},
			} {
				n, start := w.countQueries(), time.Now()
				if got := formatResponse(w.ask(r, c.question)); len(deniers) < 2 || got != "NOERROR" && got != "NXDOMAIN" {
					require.Equal(t, c.want, got, c.question)
				}
				require.LessOrEqual(t, w.countQueries()-n, 32+1, c.question)
				require.LessOrEqual(t, time.Since(start), 5*time.Second, c.question)
			}
			require.NoError(t, r.Close())
		})
	})
}

// FuzzResponse sends any bytes as a response.
func FuzzResponse(f *testing.F) {
	for i, c := range truth {
		q := parseQuestion(c.question)
		w := newTestNetwork(f, stage)
		m := answer(w.server("192.0.2.1").zones, query{q, q.Question[0].Name, q.Question[0].Qtype, false})
		b, err := m.Pack()
		require.NoError(f, err)
		f.Add(uint8(i), b)
		f.Add(uint8(i+4), b[12:])
	}
	f.Add(uint8(2), []byte{0x84, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, mode uint8, data []byte) {
		if len(data) > 60000 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			w := newTestNetwork(t, stage)
			w.updateServers("203.0.113.66 203.0.113.67", func(s *server) {
				s.raw = func(q query) [][]byte {
					b := make([]byte, 0, len(data)+300)
					switch mode % 4 {
					case 0: // unchanged
						b = append(b, data...)
					case 1: // with the ID
						b = append(b, data...)
						if len(b) >= 2 {
							binary.BigEndian.PutUint16(b, q.Id)
						}
					case 2: // with the ID and the question; the flags and the counts are data's
						bare := *q.Msg
						bare.Extra = nil
						p, err := bare.Pack()
						if err != nil || len(data) < 10 {
							return nil
						}
						b = append(append(binary.BigEndian.AppendUint16(b, q.Id), data[:10]...), p[12:]...)
						b[2] |= 0x80
						binary.BigEndian.PutUint16(b[4:], 1)
						b = append(b, data[10:]...)
					case 3: // over TCP
						if !q.tcp {
							m := new(dns.Msg).SetReply(q.Msg)
							m.Truncated = true
							b, _ := m.Pack()
							return [][]byte{b}
						}
						b = append(b, data...)
						if len(b) >= 2 {
							binary.BigEndian.PutUint16(b, q.Id)
						}
					}
					if q.tcp || len(b) < 1<<14 {
						return [][]byte{b}
					}
					return nil
				}
			})
			r := w.resolver(func(r *recursor.Resolver) { r.NoMinimise, r.Hedge.Off = mode&16 > 0, mode&32 > 0 })
			for _, q := range []string{"www.evil. A", "evil. NS", "a.b.evil. TXT"} {
				n, start := w.countQueries(), time.Now()
				w.ask(r, q)
				require.LessOrEqual(t, w.countQueries()-n, 64+1, q)
				require.LessOrEqual(t, time.Since(start), 15*time.Second, q)
			}
			for _, c := range truth[:4] {
				require.Equal(t, c.want, formatResponse(w.ask(r, c.question)), c.question)
			}
			for _, a := range w.queriesSince(0) {
				if strings.HasPrefix(a.to.String(), "203.0.113.") {
					require.True(t, dns.IsSubDomain("evil.", a.name), "%v", a)
				}
			}
			require.NoError(t, r.Close())
		})
	})
}
