package faultlab

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// contender is a resolver at work, on the host of its name.
type contender struct {
	name  string
	ask   func(context.Context, question) (said, error)
	close func()

	mu     sync.Mutex // guards the fields below
	calls  []latency.Call
	asked  int
	denied int
	last   time.Duration
}

// said is what a resolver says of a name.
type said uint8

const (
	nothingFound said = iota // it failed, or has no records of the type
	found
	deniedName
)

// message is the question in a message with EDNS, without which nobody says why a question failed.
func (q question) message() *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(q.name, q.typ)
	m.SetEdns0(1232, false)
	return m
}

// saidBy returns what a response, which may be nil, says.
func saidBy(m *dns.Msg, q question) said {
	switch {
	case m == nil:
		return nothingFound
	case m.Rcode == dns.RcodeNameError:
		return deniedName
	case m.Rcode == dns.RcodeSuccess && slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype == q.typ }):
		return found
	}
	return nothingFound
}

// measure asks question i of a run that began at that time.
func (c *contender) measure(ctx context.Context, began time.Time, i int, q question) {
	start := time.Now()
	told, err := c.ask(ctx, q)
	took := time.Since(start)
	if ctx.Err() != nil {
		return
	}
	call := latency.Call{Start: start.Sub(began), Latency: took, Index: int32(i), Winner: -1}
	right := err == nil && took <= Patience && (told == found || told == deniedName && q.want == answer)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if q.want == nothing {
		return
	}
	if right {
		call.Winner = 0
		c.last = max(c.last, call.Start+took)
		if told == deniedName {
			c.denied++
		}
	}
	c.calls = append(c.calls, call)
}

// row returns what was measured.
func (c *contender) row(b *bench) Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortFunc(c.calls, func(a, b latency.Call) int { return int(a.Index) - int(b.Index) })
	r := Row{Contender: c.name, Calls: c.calls, Denied: c.denied, Last: c.last, Asked: c.asked}
	for _, h := range b.hosts() {
		r.Queries += b.net.Link(c.name, h).Counters().UDP
	}
	return r
}
