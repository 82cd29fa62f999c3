package recursor_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/doubles"
)

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

// delayingAttacks returns the attacks that may delay other questions, and those of costlyAttacks with much CPU time.
func delayingAttacks() []attackCase {
	names := []string{"names of 110 labels by pointers", "2,000 malformed keys of one tag", "RSA keys of 4096 bits, exponents of 31"}
	return append(attacks(), slices.DeleteFunc(costlyAttacks(), func(c attackCase) bool { return !slices.Contains(names, c.name) })...)
}

var inRealTime = flag.Bool("attacks.real", false, "ask questions beside attacks in real time, 20 seconds for each attack")

// TestAttackDelaysNoOtherQuestions loses 1.5 % of the messages, so that the limits on hedges and queries in flight matter. CPU time
// takes no fake time: the attacking questions may take 10 ms of it each, as when they are asked alone. That is two thirds of a core.
func TestAttackDelaysNoOtherQuestions(t *testing.T) {
	if doubles.RaceEnabled || testing.Short() {
		t.Skip("asks thousands of questions")
	}
	for _, c := range delayingAttacks() {
		p99, cpu := measureDelays(t, c)
		limit := c.maxCPU(t)
		for tries := 1; tries < 3 && cpu > limit; tries++ { // the machine is busy
			p99, cpu = measureDelays(t, c)
			limit = c.maxCPU(t)
		}
		t.Logf("%-36s %v, and %v without; %6.2f ms of CPU time for each attacking question", c.name, p99[1], p99[0], cpu.Seconds()*1e3)
		assert.LessOrEqual(t, cpu, limit, c.name)
		assert.LessOrEqual(t, p99[1].Seconds(), 1.2*p99[0].Seconds(), c.name)
	}
}

// measureDelays returns the 99th percentile of the delays of other questions without and with an attack, and the CPU time that each
// question of the attack takes.
func measureDelays(t *testing.T, c attackCase) (p99 [2]time.Duration, cpu time.Duration) {
	var used [2]time.Duration
	for i, isAttacked := range []bool{false, true} {
		run := bubble
		if *inRealTime {
			run = func(t *testing.T, text string, f func(*testing.T, *testNetwork)) { f(t, newTestNetwork(t, text)) }
		}
		run(t, c.text+otherZones(), func(t *testing.T, w *testNetwork) {
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
			start := cpuTime(t)
			took := askOthers(t, r, c, isAttacked)
			used[i] = cpuTime(t) - start
			p99[i] = took[otherQuestions*99/100]
		})
	}
	return p99, (used[1] - used[0]) / (otherQuestions * 2 / 3)
}
