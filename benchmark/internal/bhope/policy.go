// Package bhope is the adaptive hedging policy of github.com/bhope/hedge, the reference that others are compared with.
// It is written from the description of that policy, not from its code.
//
// The policy sends one hedge when a call is slower than the 90th percentile of the winners' latencies in the last 30 to
// 60 seconds. The first 20 requests of a host, and the requests after a minute without any, are hedged after 10 ms.
//
// A token bucket limits the hedges. It fills by the clock, at a tenth of the requests per second that the policy
// expects.
package bhope

import (
	"sync"
	"time"

	"github.com/DataDog/sketches-go/ddsketch"
)

const (
	percentile = 0.90
	accuracy   = 0.01
	window     = 30 * time.Second
	warmUp     = 20 // requests
	coldDelay  = 10 * time.Millisecond
	minDelay   = time.Millisecond
	share      = 0.10 // of the expected requests
	burst      = 2 * time.Second
)

// A Policy decides when a request is hedged, and whether the budget admits the hedge. It is safe for concurrent use.
// Times are durations since any common start.
type Policy struct {
	mu     sync.Mutex
	hosts  map[string]*host
	rate   float64 // tokens per second
	full   float64
	tokens float64
	filled time.Duration // the time at which tokens was computed
	denied int
}

// New returns a policy that expects the given number of requests per second to all hosts together. Its budget is a
// tenth of them.
func New(estimatedRPS float64) *Policy {
	rate := estimatedRPS * share
	full := max(1, rate*burst.Seconds())
	return &Policy{hosts: make(map[string]*host), rate: rate, full: full, tokens: full}
}

// DefaultRPS is the default of the expected requests per second.
const DefaultRPS = 100

// A host has the latencies of one host's requests, in the current and in the previous window of 30 seconds.
type host struct {
	requests    int
	windowStart time.Duration
	current     *ddsketch.DDSketch
	both        *ddsketch.DDSketch // the current and the previous window, merged once and not for each request
}

// HedgeDelay counts a request to the host with the given name, and returns the delay after which it is hedged. now is
// the time of the request.
func (p *Policy) HedgeDelay(now time.Duration, name string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.currentHost(now, name)
	h.requests++
	if h.requests <= warmUp || h.both.IsEmpty() {
		return coldDelay
	}
	d, err := h.both.GetValueAtQuantile(percentile)
	if err != nil {
		panic(err) // the sketch is not empty
	}
	return max(minDelay, time.Duration(d))
}

// AdmitHedge takes a token for a hedge from the budget, at the time now. It reports false if there is none.
func (p *Policy) AdmitHedge(now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens = min(p.full, p.tokens+p.rate*(now-p.filled).Seconds())
	p.filled = now
	if p.tokens < 1 {
		p.denied++
		return false
	}
	p.tokens--
	return true
}

// DeniedHedges returns the number of hedges for which there was no token.
func (p *Policy) DeniedHedges() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.denied
}

// RecordLatency records the latency of a request to the host with the given name, from its start to its first answer.
// now is the time of the answer.
func (p *Policy) RecordLatency(now time.Duration, name string, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.currentHost(now, name)
	for _, s := range [...]*ddsketch.DDSketch{h.current, h.both} {
		if err := s.Add(float64(max(took, 1))); err != nil {
			panic(err) // no duration is outside the sketch's range
		}
	}
}

// currentHost returns the host with the given name, whose windows it has moved to the time now. The caller holds mu.
func (p *Policy) currentHost(now time.Duration, name string) *host {
	h := p.hosts[name]
	switch {
	case h == nil:
		h = &host{windowStart: now, current: newSketch(), both: newSketch()}
		p.hosts[name] = h
	case now-h.windowStart >= 2*window:
		h.windowStart += (now - h.windowStart) / window * window
		h.current, h.both = newSketch(), newSketch()
	case now-h.windowStart >= window:
		h.windowStart += window
		h.both, h.current = h.current.Copy(), newSketch()
	}
	return h
}

func newSketch() *ddsketch.DDSketch {
	s, err := ddsketch.NewDefaultDDSketch(accuracy)
	if err != nil {
		panic(err) // accuracy is in (0, 1)
	}
	return s
}
