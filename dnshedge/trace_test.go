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
