package recursor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/doubles"
	keys "github.com/gohedge/hedge/internal/signer"
)

// An attackCase is an attack by questions to a Resolver.
type attackCase struct {
	name, text string
	signed     bool // by setUp
	setUp      func(w *testNetwork)
	question   string // with the number of the question
}

// number returns the i-th question.
func (c *attackCase) number(i int) string { return strings.Replace(c.question, "%d", fmt.Sprint(i), 1) }

// attacks returns the attacks whose cost is measured. The first is none.
func attacks() []attackCase {
	chain, bad := repeatedValidation()
	trapped := func(algorithm uint8, ofKeys bool) func(*testNetwork) {
		all := withTag("broken.tld.", algorithm, 4711, 16)
		return func(w *testNetwork) {
			signZones(w)
			w.setFault("192.0.3.4", nil)
			w.withLock(func() { trap(w, all, ofKeys) })
		}
	}
	hostile := func(messages func(query) [][]byte) func(*testNetwork) {
		return func(w *testNetwork) { w.updateServers("203.0.113.66", func(s *server) { s.raw = messages }) }
	}
	return []attackCase{
		{"no attack", signed, true, signZones, "n%d.example.tld. A"},
		{"NXNS, 1,500 names of servers", attack, false, func(w *testNetwork) { nameservers(w, 1500, "victim.") }, "www%d.sub.attack. A"},
		{"aliases times names of servers", aliasAttack, false, setUpAliasAttack, "x.z%d00.attack. A"},
		{"1,000 addresses as glue", addressAttack, false, func(w *testNetwork) { setUpAddressAttack(w, true, respondRcode(dns.RcodeServerFailure)) }, "www%d.sub.attack. A"},
		{"1,000 addresses of a name", addressAttack, false, func(w *testNetwork) { setUpAddressAttack(w, false, respondRcode(dns.RcodeServerFailure)) }, "www%d.sub.attack. A"},
		{"servers with forged signatures", chain, true, func(w *testNetwork) { w.sign(); w.setFault(bad, forged) }, "www.z0.tld. A"},
		{"KeyTrap, Ed25519", signed, true, trapped(dns.ED25519, false), "n%d.broken.tld. A"},
		{"KeyTrap, P-384", signed, true, trapped(dns.ECDSAP384SHA384, false), "n%d.broken.tld. A"},
		{"KeyTrap of keys, P-384", signed, true, trapped(dns.ECDSAP384SHA384, true), "n%d.broken.tld. A"},
		{"NSEC3 of 50 iterations, long salt", replayed, true, func(w *testNetwork) {
			w.sign()
			w.zone("evil.tld.").proveBy(keys.NSEC3, keys.NSEC3Params{Iterations: 50, Salt: strings.Repeat("ab", 255)})
		}, strings.Repeat("a.", 100) + "n%d.evil.tld. A"},
		{"unsigned answers to a long name", replayed, true, func(w *testNetwork) {
			w.sign()
			w.setFault("192.0.3.3 192.0.3.4", onlyForType(dns.TypeA, func(q query, r *dns.Msg) *dns.Msg { return respondWith(q.name+" A 203.0.113.66")(q, r) }))
		}, strings.Repeat("a.", 100) + "n%d.evil.tld. A"},
		{"a silent zone", hostileZones, false, func(w *testNetwork) { w.setFault("203.0.113.66", silent) }, "www%d.evil. A"},
		{"silent zones of eight servers", hostileZones, false, func(w *testNetwork) {
			w.setFault("203.0.113.66", func(q query, r *dns.Msg) *dns.Msg {
				labels := dns.SplitDomainName(q.name)
				zone, number := dns.Fqdn(labels[max(len(labels)-2, 0)]+".evil"), 0
				_, _ = fmt.Sscanf(zone, "z%d.", &number)
				ns, glue := "", ""
				for i := range 8 {
					ns += fmt.Sprintf("%s NS ns%d.%[1]s;", zone, i)
					glue += fmt.Sprintf("ns%d.%s A 203.1.%d.%d;", i, zone, number%250, 1+i+8*(number/250))
				}
				return respondWith("referral|"+ns+"|"+glue)(q, r)
			})
		}, "www.z%d.evil. A"},
		{"16,000 options", hostileZones, false, hostile(message([3]uint16{0, 0, 1}, func(query) []byte { return raw([]byte{0}, dns.TypeOPT, make([]byte, 64000)) })), "www%d.evil. A"},
		{"60,000 empty texts", hostileZones, false, hostile(message([3]uint16{0, 1}, func(query) []byte { return raw(nil, dns.TypeTXT, make([]byte, 60000)) })), "www%d.evil. A"},
		{"3,200 names in 64 kB", hostileZones, false, hostile(stream(1<<10, func(query) (s [3][][]byte) {
			for i := range 3200 {
				s[0] = append(s[0], raw(nil, dns.TypeSRV, []byte{0, 0, 0, 0, byte(i >> 8), byte(i), 0xc0, 12}))
			}
			return s
		})), "www%d.evil. SRV"},
	}
}

// otherQuestions is the number of questions about otherZones, each of which has a name of its own.
const otherQuestions, otherZoneCount = 1000, 20

// otherZones returns zones that are not attacked.
func otherZones() (text string) {
	for i := range otherZoneCount {
		text += fmt.Sprintf("other%d. delegated 198.51.100.%d 198.51.100.%d\n", i, 10*i+1, 10*i+2)
		for k := i; k < otherQuestions; k += otherZoneCount {
			text += fmt.Sprintf("  n%d A 192.0.2.80\n", k)
		}
	}
	return text
}

// askOthers asks the otherQuestions, one every 10 ms. If isAttacked is true, it also asks two attacking questions for every
// three others. It returns the sorted times of the other answers.
func askOthers(t *testing.T, r *recursor.Resolver, c attackCase, isAttacked bool) []time.Duration {
	took := make([]time.Duration, otherQuestions)
	var all sync.WaitGroup
	ask := func(question string) (*dns.Msg, error) {
		m, _, err := r.ExchangeContext(context.Background(), parseQuestion(question), "")
		return m, err
	}
	for i := range took {
		if isAttacked && i%3 > 0 {
			all.Go(func() { _, _ = ask(c.number(i)) })
		}
		all.Go(func() {
			start := time.Now()
			m, err := ask(fmt.Sprintf("n%d.other%d. A", i, i%otherZoneCount))
			took[i] = time.Since(start)
			if assert.NoError(t, err) {
				assert.Len(t, m.Answer, 1)
			}
		})
		time.Sleep(10 * time.Millisecond)
	}
	all.Wait()
	slices.Sort(took)
	return took
}

// TestAttackDelaysNoOtherQuestions loses 1.5 % of the messages, so that the limits on hedges and queries in flight matter. It does not measure CPU
// time, which takes no fake time: see TestAttackTakes10MillisecondsOfCPU.
func TestAttackDelaysNoOtherQuestions(t *testing.T) {
	if doubles.RaceEnabled || testing.Short() {
		t.Skip("asks thousands of questions")
	}
	for _, c := range attacks() {
		var p99 [2]time.Duration
		for i, isAttacked := range []bool{false, true} {
			bubble(t, c.text+otherZones(), func(t *testing.T, w *testNetwork) {
				c.setUp(w)
				w.quiet = true
				r := w.resolver()
				if c.signed {
					r = newValidatingResolver(w)
				}
				for i := range 5 * otherZoneCount { // so that the servers are known
					w.ask(r, fmt.Sprintf("warm%d.other%d. A", i, i%otherZoneCount))
				}
				w.withLock(func() { w.loss = 0.015 })
				took := askOthers(t, r, c, isAttacked)
				p99[i] = took[otherQuestions*99/100]
			})
		}
		t.Logf("%-36s %v, and %v without", c.name, p99[1], p99[0])
		assert.LessOrEqual(t, p99[1].Seconds(), 1.2*p99[0].Seconds(), c.name)
	}
}
