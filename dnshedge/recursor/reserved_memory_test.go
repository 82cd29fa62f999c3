package recursor_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/doubles"
)

// TestWaitingQuestionHoldsLittleMemory has a response of 60 kB that needs 1.2 MB of memory. Its sender also chooses
// how long the next server takes.
func TestWaitingQuestionHoldsLittleMemory(t *testing.T) {
	if doubles.RaceEnabled {
		t.Skip("measures memory, of which the race detector takes some for itself")
	}
	large := func(owner string) dns.RR {
		return &dns.TXT{Hdr: dns.RR_Header{Name: owner, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 3600}, Txt: make([]string, 60000)}
	}
	for name, c := range map[string]struct {
		question string
		answer   func(q query, r *dns.Msg)
	}{
		"a poor answer": {"q%d.evil. TXT", func(q query, r *dns.Msg) {
			r.Authoritative = false
			r.Answer = []dns.RR{large(q.name)}
		}},
		"an alias, and something about others": {"q%d.evil. TXT", func(q query, r *dns.Msg) {
			r.Answer = []dns.RR{record(q.name + " CNAME " + strings.TrimSuffix(q.name, "evil.") + "dead."), large("x." + q.name)}
		}},
		"an alias, and its target": {"q%d.evil. TXT", func(q query, r *dns.Msg) {
			r.Answer = []dns.RR{record(q.name + " CNAME x.dead.evil."), large("x.dead.evil.")}
		}},
		"an alias with signatures": {"q%d.evil. TXT +do", func(q query, r *dns.Msg) {
			r.Answer = []dns.RR{record(q.name + " CNAME " + strings.TrimSuffix(q.name, "evil.") + "dead.")}
			for i := range 1500 {
				r.Answer = append(r.Answer, record(fmt.Sprintf("%s RRSIG CNAME 8 2 3600 20300101000000 20200101000000 %d . AAAA", q.name, i)))
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, `
. served 198.41.0.4
evil. delegated 203.0.113.1 203.0.113.2 203.0.113.3
  dead NS ns.dead
  ns.dead A 203.0.113.6
dead. delegated 203.0.113.4 203.0.113.5
`, func(t *testing.T, w *testNetwork) {
				w.quiet = true
				w.setFault("203.0.113.2 203.0.113.3 203.0.113.4 203.0.113.5", silent)
				w.setFault("203.0.113.1", func(q query, r *dns.Msg) *dns.Msg {
					if !strings.HasPrefix(q.name, "q") {
						return r
					}
					if r.Rcode, r.Ns, r.Truncated = dns.RcodeSuccess, nil, !q.tcp; q.tcp {
						c.answer(q, r)
					}
					return r
				})
				r := w.resolver()
				heap := func() int {
					var m runtime.MemStats
					synctest.Wait() // memory of responses that are being read does not count
					runtime.GC()
					runtime.GC() // frees memory that sync.Pools have dropped
					runtime.ReadMemStats(&m)
					return int(m.HeapAlloc)
				}
				before := heap()
				const n = 100
				ended := make(chan bool)
				for i := range n {
					go func() {
						w.ask(r, fmt.Sprintf(c.question, i))
						ended <- true
					}()
				}
				most := 0
				for range 10 {
					time.Sleep(300 * ms)
					most = max(most, heap()-before)
				}
				for range n {
					<-ended
				}
				t.Logf("%s: %d kB each", name, most/n>>10)
				assert.Less(t, most, 12<<20+n*40<<10, "bytes of %d questions: 8 MiB for all, by an estimate, and the memory of each question", n)
			})
		})
	}
}
