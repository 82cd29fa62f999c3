package dnshedge_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/observe"
)

func TestClientCopiesTraceAtFirstUse(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		var attempts, ends, answers int
		trace := &dnshedge.Trace{}
		*trace = dnshedge.Trace{
			Attempt: func(context.Context, dnshedge.AttemptInfo) { attempts++; trace.Done = nil },
			Done:    func(context.Context, dnshedge.AttemptInfo, time.Duration, error) { ends++; trace.Answer = nil },
			Answer:  func(context.Context, dnshedge.AnswerInfo) { answers++; trace.Attempt = nil },
		}
		c := l.client(&dnshedge.Client{Trace: trace}, l.up("udp", "a"))
		l.must(c, "x.example.")
		l.must(c, "y.example.")
		assert.Equal(t, []int{2, 2, 2}, []int{attempts, ends, answers})
	})
}

func TestTraceReportsWinner(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		l.serve("b", good)
		var mu sync.Mutex
		var attempts []dnshedge.AttemptInfo
		var answers []dnshedge.AnswerInfo
		type done struct {
			dnshedge.AttemptInfo
			took time.Duration
			lost bool
		}
		var ended []done
		c := l.client(&dnshedge.Client{
			Cache: new(dnshedge.Cache),
			Trace: &dnshedge.Trace{
				Attempt: func(_ context.Context, i dnshedge.AttemptInfo) {
					mu.Lock()
					attempts = append(attempts, i)
					mu.Unlock()
				},
				Done: func(_ context.Context, i dnshedge.AttemptInfo, took time.Duration, err error) {
					mu.Lock()
					ended = append(ended, done{i, took, errors.Is(err, context.Canceled)})
					mu.Unlock()
				},
				Answer: func(_ context.Context, i dnshedge.AnswerInfo) { mu.Lock(); answers = append(answers, i); mu.Unlock() },
			},
		}, l.up("udp", "a"), l.up("udp", "b"))
		l.must(c, "x.example.")
		l.must(c, "x.example.")
		require.Len(t, attempts, 2)
		assert.Equal(t, l.up("udp", "a"), attempts[0].Upstream)
		assert.False(t, attempts[0].Hedge)
		assert.Equal(t, dnshedge.AttemptInfo{Name: "x.example.", Type: dns.TypeA, Upstream: l.up("udp", "b"), Attempt: 1, Hedge: true}, attempts[1])
		assert.Equal(t, []dnshedge.AnswerInfo{
			{Name: "x.example.", Type: dns.TypeA, Source: dnshedge.FromServer, Upstream: l.up("udp", "b"), Attempts: 2, HedgeWon: true},
			{Name: "x.example.", Type: dns.TypeA, Source: dnshedge.FromCache},
		}, answers)
		synctest.Wait()
		assert.Equal(t, []done{{attempts[1], 20 * ms, false}, {attempts[0], 120 * ms, true}}, ended)
	})
}

func TestTraceReportsLookupsInContextOfCaller(t *testing.T) {
	bubble(t, func(l *lab) {
		handlers := map[string]dnstest.Handler{
			"x.example.": good, "late.example.": after(time.Second, good), "slow.example.": after(time.Second, good), "none.example.": rcode(dns.RcodeNameError),
			"fails.example.": rcode(dns.RcodeServerFailure), "refused.example.": rcode(dns.RcodeRefused),
		}
		l.serve("a", func(q dnstest.Query) dnstest.Reply { return handlers[q.Question[0].Name](q) })
		type callKey struct{}
		var mu sync.Mutex
		var lookups []observe.DNSLookup
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache), Hedge: dnshedge.Hedge{Off: true}, Trace: &dnshedge.Trace{
			Lookup: func(ctx context.Context, got observe.DNSLookup) {
				mu.Lock()
				defer mu.Unlock()
				if got.Name != "slow.example." { // Go's resolver drops the values of a context that has ended
					assert.Equal(t, "call", ctx.Value(callKey{}), got.Name)
				}
				lookups = append(lookups, got)
			},
		}}, l.up("udp", "a"))
		call := context.WithValue(background, callKey{}, "call")
		for range 2 { // then from the cache
			_, err := c.Resolver().LookupNetIP(call, "ip4", "x.example.")
			require.NoError(t, err)
		}
		for _, name := range []string{"none.example.", "fails.example.", "refused.example."} {
			_, _, err := c.ExchangeContext(call, question(name, dns.TypeA), "")
			require.NoError(t, err)
		}
		impatient, cancel := context.WithTimeout(call, 300*ms)
		defer cancel()
		_, _, err := c.ExchangeContext(impatient, question("late.example.", dns.TypeA), "")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		loser, lose := context.WithCancel(call)
		time.AfterFunc(200*ms, lose)
		_, _, err = c.ExchangeContext(loser, question("late.example.", dns.TypeA), "")
		require.ErrorIs(t, err, context.Canceled)

		impatient, cancel = context.WithTimeout(call, 300*ms)
		defer cancel()
		_, err = c.Resolver().LookupNetIP(impatient, "ip4", "slow.example.")
		require.Error(t, err)
		synctest.Wait()

		mu.Lock()
		defer mu.Unlock()
		require.Len(t, lookups, 8)
		for i := range lookups[3:5] { // failures are asked for again
			lookups[3+i].Duration = 0
		}
		assert.Equal(t, []observe.DNSLookup{
			{Name: "x.example.", Type: dns.TypeA, Duration: 20 * ms},
			{Name: "x.example.", Type: dns.TypeA},
			{Name: "none.example.", Type: dns.TypeA, Duration: 20 * ms, ErrorType: "host_not_found"},
			{Name: "fails.example.", Type: dns.TypeA, ErrorType: "try_again"},
			{Name: "refused.example.", Type: dns.TypeA, ErrorType: "no_recovery"},
			{Name: "late.example.", Type: dns.TypeA, Duration: 300 * ms, ErrorType: "try_again"},
			{Name: "late.example.", Type: dns.TypeA, Duration: 200 * ms, ErrorType: "canceled"},
			{Name: "slow.example.", Type: dns.TypeA, Duration: 300 * ms, ErrorType: "canceled"},
		}, lookups)
	})
}
