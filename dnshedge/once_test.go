package dnshedge_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

var networks = []string{"udp", "tcp", "tls", "https"}

// message returns a message about example. with an opcode.
func message(opcode int) *dns.Msg {
	m := question("example.", dns.TypeSOA)
	m.Opcode, m.RecursionDesired = opcode, false
	return m
}

// headerOnly returns a response that is only a header.
func headerOnly(q dnstest.Query, rcode int) *dns.Msg {
	m := dnstest.Rcode(q, rcode)
	m.Question, m.Extra = nil, nil
	return m
}

func truncated(q dnstest.Query) dnstest.Reply {
	m := dnstest.Rcode(q, dns.RcodeSuccess)
	m.Truncated = true
	return dnstest.Reply{Msg: m}
}

// cut returns a truncated response of which only n bytes are left.
func cut(q dnstest.Query, n int) dnstest.Reply {
	b, _ := truncated(q).Msg.Pack()
	return dnstest.Reply{Raw: b[:min(n, len(b))]}
}

// A message with an opcode other than QUERY is sent once over each transport, whatever the server does.
func TestClientSendsOtherOpcodesOnce(t *testing.T) {
	for _, network := range networks {
		for _, opcode := range []int{dns.OpcodeUpdate, dns.OpcodeNotify, dns.OpcodeStatus} {
			for name, respond := range map[string]dnstest.Handler{
				"TC": truncated, "silence": drop, "SERVFAIL": rcode(dns.RcodeServerFailure), "FORMERR": rcode(dns.RcodeFormatError),
				"cut":      func(q dnstest.Query) dnstest.Reply { return cut(q, 17) },
				"ends":     func(dnstest.Query) dnstest.Reply { return dnstest.Reply{Close: true} },
				"HTTP 503": func(dnstest.Query) dnstest.Reply { return dnstest.Reply{Status: 503} },
				"a record that is not there": func(q dnstest.Query) dnstest.Reply {
					b, _ := dnstest.Rcode(q, dns.RcodeSuccess).Pack()
					b[7] = 1
					return dnstest.Reply{Raw: b}
				},
			} {
				for _, reused := range []bool{false, true} {
					bubble(t, func(l *lab) {
						var n atomic.Int64
						count := func(q dnstest.Query) dnstest.Reply {
							if q.Opcode == dns.OpcodeQuery {
								return good(q)
							}
							n.Add(1)
							return respond(q)
						}
						l.serve("a", count)
						l.serve("b", count)
						l.serve("c", count)
						c := &dnshedge.Client{Hedge: dnshedge.Hedge{Fixed: 5 * ms}, Fallback: []dnshedge.Upstream{l.up(network, "c")}}
						l.client(c, l.up(network, "a"), l.up(network, "b"))
						if reused {
							l.must(c, "x.example.")
						}
						_, _, _ = c.Exchange(message(opcode), "")
						time.Sleep(10 * time.Second)
						assert.EqualValues(t, 1, n.Load(), "%s, opcode %d, %s, over a connection that was open: %v", network, opcode, name, reused)
					})
				}
			}
		}
	}
}

func TestClientAcceptsBareResponsesToOtherOpcodes(t *testing.T) {
	for _, network := range networks {
		for _, code := range []int{dns.RcodeSuccess, dns.RcodeServerFailure, dns.RcodeNXRrset, dns.RcodeNotZone} {
			bubble(t, func(l *lab) {
				l.serve("a", func(q dnstest.Query) dnstest.Reply { return dnstest.Reply{Msg: headerOnly(q, code)} })
				c := l.client(new(dnshedge.Client), l.up(network, "a"))
				for _, opcode := range []int{dns.OpcodeUpdate, dns.OpcodeNotify} {
					r, _, err := c.Exchange(message(opcode), "")
					require.NoError(t, err, "%s, opcode %d", network, opcode)
					assert.Equal(t, code, r.Rcode)
					assert.Equal(t, opcode, r.Opcode)
				}
				assert.Zero(t, c.Stats().Ignored)
			})
		}
	}
}

// A dns.Client returns a truncated response to an UPDATE too.
func TestClientReturnsTruncatedUpdateResponse(t *testing.T) {
	for n := 12; n < 27; n++ {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply { return cut(q, n) })
			r, took, err := l.client(new(dnshedge.Client), l.up("udp", "a")).Exchange(message(dns.OpcodeUpdate), "")
			require.NoError(t, err, "%d bytes", n)
			assert.True(t, r.Truncated)
			assert.Equal(t, 20*ms, took)
		})
	}
}

func TestClientFindsUpdateResponseAmongForgedMessages(t *testing.T) {
	bubble(t, func(l *lab) {
		pc, err := l.net.Host("a").ListenPacket("udp", ":53")
		require.NoError(t, err)
		defer pc.Close()
		var updates atomic.Int64
		go func() {
			b := make([]byte, 512)
			for {
				n, from, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				updates.Add(1)
				b[2] |= 0x80
				for range 100 {
					b[0]++
					_, _ = pc.WriteTo(b[:n], from)
				}
				b[0] -= 100
				_, _ = pc.WriteTo(b[:n], from)
			}
		}()
		r, _, err := l.client(new(dnshedge.Client), l.up("udp", "a")).Exchange(message(dns.OpcodeUpdate), "")
		require.NoError(t, err)
		assert.Equal(t, dns.RcodeSuccess, r.Rcode)
		assert.EqualValues(t, 1, updates.Load())
	})
}

// Only the last server can be reached.
func TestClientSendsUpdateToFirstReachableServer(t *testing.T) {
	for _, network := range networks {
		bubble(t, func(l *lab) {
			s := l.serve("c", good)
			c := l.client(new(dnshedge.Client), l.up(network, "a"), l.up(network, "b"), l.up(network, "c"))
			_, _, err := c.Exchange(message(dns.OpcodeUpdate), "")
			require.NoError(t, err, network)
			assert.EqualValues(t, 1, s.Queries.Load(), network)
		})
	}
}

func TestClientRefusesSignedMessages(t *testing.T) {
	sig := &dns.SIG{RRSIG: dns.RRSIG{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSIG, Class: dns.ClassANY}, SignerName: "key.example."}}
	tsig := &dns.TSIG{Hdr: dns.RR_Header{Name: "key.example.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY}, Algorithm: dns.HmacSHA256}
	opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
	bubble(t, func(l *lab) {
		s := l.serve("a", good)
		c := l.client(new(dnshedge.Client), l.up("udp", "a"))
		l.startServer(&dnshedge.Server{Client: c})
		for _, m := range []*dns.Msg{message(dns.OpcodeQuery), message(dns.OpcodeUpdate), message(dns.OpcodeNotify)} {
			for _, extra := range [][]dns.RR{{sig}, {tsig}, {opt, sig}, {sig, opt}, {tsig, opt}} {
				m.Extra = extra
				_, _, err := c.Exchange(m, "")
				require.ErrorContains(t, err, "TSIG or SIG(0)")
				if m.Opcode == dns.OpcodeQuery {
					conn := l.connect("tcp")
					b, err := m.Pack() // the Client of package dns would sign the message
					require.NoError(t, err)
					_, err = conn.Write(b)
					require.NoError(t, err)
					r, err := conn.ReadMsg()
					require.NoError(t, err)
					assert.Equal(t, dns.RcodeRefused, r.Rcode)
					assert.Equal(t, dns.RcodeRefused, serve(t, c, "udp", m).Rcode)
				}
			}
		}
		covers := *sig
		covers.TypeCovered = dns.TypeA
		m := message(dns.OpcodeUpdate)
		m.Ns = []dns.RR{&covers}
		_, _, err := c.Exchange(m, "")
		require.NoError(t, err, "the signature of a record is data")
		assert.EqualValues(t, 1, s.Queries.Load())
	})
}

func TestClientRefusesQueriesWithRecords(t *testing.T) {
	rr, err := dns.NewRR("x.example. 60 IN A 192.0.2.1")
	require.NoError(t, err)
	bubble(t, func(l *lab) {
		s := l.serve("a", good)
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
		l.startServer(&dnshedge.Server{Client: c})
		for _, section := range []func(m *dns.Msg) *[]dns.RR{
			func(m *dns.Msg) *[]dns.RR { return &m.Answer }, func(m *dns.Msg) *[]dns.RR { return &m.Ns }, func(m *dns.Msg) *[]dns.RR { return &m.Extra },
		} {
			m := question("x.example.", dns.TypeA)
			*section(m) = []dns.RR{rr}
			_, _, err := c.Exchange(m, "")
			require.ErrorContains(t, err, "want none but OPT")
			assert.Equal(t, dns.RcodeFormatError, put(t, l.connect("tcp"), m).Rcode)
			assert.Equal(t, dns.RcodeFormatError, serve(t, c, "udp", m).Rcode)
			m.SetEdns0(1232, true)
			m.Extra[0], m.Extra[len(m.Extra)-1] = m.Extra[len(m.Extra)-1], m.Extra[0]
			_, _, err = c.Exchange(m, "")
			require.ErrorContains(t, err, "want none but OPT")
		}
		assert.Zero(t, s.Queries.Load())
	})
}

// The records of a truncated response are not used.
func TestClientRetriesTruncatedAnswersOverTCP(t *testing.T) {
	full := len(question("x00.example.", dns.TypeA).Question[0].Name) + 1 + 4 + 12
	for n := 11; n < full; n++ {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				switch {
				case q.Net != "udp":
					return good(q)
				case n == 11:
					m := headerOnly(q, dns.RcodeSuccess)
					m.Truncated = true
					return dnstest.Reply{Msg: m}
				}
				return cut(q, n)
			})
			c := l.client(new(dnshedge.Client), l.up("udp", "a"))
			for i := range 6 {
				r, took := l.must(c, fmt.Sprintf("x%02d.example.", i))
				assert.Equal(t, "192.0.2.1", addr(r))
				assert.LessOrEqual(t, took, 60*ms, "%d bytes", n)
			}
			assert.Zero(t, c.Stats().Ignored)
		})
	}
}

func TestClientFailsOverAfterTruncatedHeaderOverStream(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				m := headerOnly(q, dns.RcodeSuccess)
				m.Truncated = true
				return dnstest.Reply{Msg: m}
			})
			l.serve("b", good)
			r, took := l.must(l.client(off(), l.up(network, "a"), l.up(network, "b")), "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r))
			assert.LessOrEqual(t, took, 150*ms, network)
		})
	}
}

// wishes returns a question for the A records of name that uses EDNS options and the flags DO, AD and CD.
func wishes(name string) *dns.Msg {
	m := question(name, dns.TypeA)
	m.SetEdns0(1232, true)
	m.AuthenticatedData, m.CheckingDisabled = true, true
	m.IsEdns0().Option = []dns.EDNS0{
		&dns.EDNS0_NSID{Code: dns.EDNS0NSID}, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{198, 51, 100, 0}},
	}
	return m
}

func TestClientDropsFlagsForServersWithoutEDNS(t *testing.T) {
	only := func(change func(m *dns.Msg)) func(name string) *dns.Msg {
		return func(name string) *dns.Msg {
			m := question(name, dns.TypeA)
			change(m)
			return m
		}
	}
	for _, network := range networks {
		for _, code := range []int{dns.RcodeFormatError, dns.RcodeNotImplemented} {
			for wish, ask := range map[string]func(string) *dns.Msg{
				"all": wishes,
				"DO":  only(func(m *dns.Msg) { m.SetEdns0(1232, true) }),
				"AD":  only(func(m *dns.Msg) { m.AuthenticatedData = true }),
				"CD":  only(func(m *dns.Msg) { m.CheckingDisabled = true }),
				"NSID": only(func(m *dns.Msg) {
					m.SetEdns0(1232, false)
					m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
				}),
			} {
				bubble(t, func(l *lab) {
					l.serve("a", func(q dnstest.Query) dnstest.Reply {
						if q.IsEdns0() == nil && !q.AuthenticatedData && !q.CheckingDisabled {
							return good(q)
						}
						return dnstest.Reply{Msg: headerOnly(q, code)}
					})
					c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up(network, "a"))
					for i := range 3 {
						r, _, err := c.Exchange(ask(fmt.Sprintf("x%d.example.", i)), "")
						require.NoError(t, err)
						assert.Equal(t, "192.0.2.1", addr(r), "%s, %s, %s: %s", network, wish, dns.RcodeToString[code], strings.ToUpper(r.String()))
						assert.Equal(t, ask("x.").IsEdns0() != nil, r.IsEdns0() != nil)
					}
				})
			}
		}
	}
}

// A forged FORMERR must not put answers without signatures into the cache of a validating client.
func TestClientKeepsDOForServersWithEDNS(t *testing.T) {
	bubble(t, func(l *lab) {
		var stripped atomic.Int64
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if q.IsEdns0() == nil {
				stripped.Add(1)
			}
			if strings.HasPrefix(q.Question[0].Name, "bad") {
				return dnstest.Reply{Msg: headerOnly(q, dns.RcodeFormatError)}
			}
			return good(q)
		})
		c := l.client(off(), l.up("udp", "a"))
		l.withDO(c, "x.example.")
		assert.Equal(t, dns.RcodeFormatError, l.withDO(c, "bad.example.").Rcode)
		assert.Zero(t, stripped.Load())
		time.Sleep(16 * time.Minute)
		l.withDO(c, "bad2.example.")
		assert.EqualValues(t, 1, stripped.Load(), "it may be another server by now")
	})
}

// A probe repeats a question that the server has answered before. It must not repeat a message with another opcode.
func TestProbesDoNotRepeatOtherOpcodes(t *testing.T) {
	for _, opcode := range []int{dns.OpcodeUpdate, dns.OpcodeNotify} {
		for _, response := range []int{dns.RcodeSuccess, dns.RcodeRefused, dns.RcodeNotAuth} {
			bubble(t, func(l *lab) {
				var messages, probes atomic.Int64
				fail := func(q dnstest.Query) dnstest.Reply {
					if q.Opcode != dns.OpcodeQuery {
						messages.Add(1)
						return dnstest.Reply{Msg: headerOnly(q, response)}
					}
					if q.Question[0].Name == "." {
						probes.Add(1)
					}
					return rcode(dns.RcodeServerFailure)(q)
				}
				l.serve("a", fail)
				l.serve("b", good)
				c := l.client(&dnshedge.Client{Order: dnshedge.OrderStrict}, l.up("udp", "a"), l.up("udp", "b"))
				_, _, err := c.Exchange(message(opcode), "")
				require.NoError(t, err)
				for i := range 100 {
					l.must(c, fmt.Sprintf("x%d.example.", i))
					time.Sleep(time.Second)
				}
				assert.EqualValues(t, 1, messages.Load(), "opcode %d, response code %d", opcode, response)
				assert.Positive(t, probes.Load())
			})
		}
	}
}
