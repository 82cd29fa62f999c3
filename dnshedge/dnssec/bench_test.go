package dnssec_test

import (
	"context"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// instant answers from a world in no time, with messages that are made once.
type instant struct{ answers map[dns.Question]*dns.Msg }

func (i *instant) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	r := *i.answers[m.Question[0]]
	r.Id, r.Response, r.RecursionDesired, r.RecursionAvailable, r.Question = m.Id, true, true, true, m.Question
	return &r, 0, nil
}

// BenchmarkQuestions is what a question costs a forwarder that has its answer in the Cache (hot) and one that has not (asked), with a
// Validator that knows the keys and without.
func BenchmarkQuestions(b *testing.B) {
	t := &testing.T{}
	w := newWorld(t, estate)
	up := &instant{answers: make(map[dns.Question]*dns.Msg)}
	for _, q := range []struct {
		name  string
		qtype uint16
	}{{"www.example.", dns.TypeA}, {".", dns.TypeDNSKEY}, {"example.", dns.TypeDNSKEY}, {"example.", dns.TypeDS}, {"www.plain.", dns.TypeA}, {"plain.", dns.TypeDNSKEY}, {"plain.", dns.TypeDS}, {"www.plain.", dns.TypeDS}} {
		up.answers[dns.Question{Name: q.name, Qtype: q.qtype, Qclass: dns.ClassINET}] = w.resolve(q.name, q.qtype)
	}
	for _, name := range []string{"www.example.", "www.plain."} {
		for _, kept := range []bool{true, false} {
			for _, validates := range []bool{false, true} {
				kind, with := "asked", "without"
				if kept {
					kind = "hot"
				}
				if validates {
					with = "with"
				}
				b.Run(name+"/"+kind+"/"+with, func(b *testing.B) {
					c := &dnshedge.Client{Exchanger: up}
					if validates {
						v := &dnssec.Validator{Exchanger: up, Trust: dnssec.Trust{Anchors: []dns.RR{w.anchor()}}}
						defer v.Close()
						c.Exchanger = v
					}
					if kept {
						c.Cache = new(dnshedge.Cache)
					}
					defer c.Close()
					m := new(dns.Msg).SetQuestion(name, dns.TypeA)
					m.SetEdns0(1232, true)
					b.ReportAllocs()
					for b.Loop() {
						r, _, err := c.ExchangeContext(context.Background(), m, "")
						if err != nil || len(r.Answer) == 0 {
							b.Fatal(r, err)
						}
					}
				})
			}
		}
	}
}
