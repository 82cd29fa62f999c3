// Package bhope implements the adaptive hedging policy of the Go library github.com/bhope/hedge, from which it has its
// name. The benchmark compares other policies with this one. The package is written from the description of the policy
// in that library's documentation, not from the library's code.
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
	delayQuantile  = 0.90
	sketchAccuracy = 0.01
	windowLength   = 30 * time.Second
	warmUpRequests = 20
	initialDelay   = 10 * time.Millisecond
	minDelay       = time.Millisecond
	budgetShare    = 0.10 // of the expected requests
	budgetBurst    = 2 * time.Second
)

// A Policy decides when a request is hedged, by the rules of the library github.com/bhope/hedge. Times are durations
// since a common start. It is safe for concurrent use.
type Policy struct {
	mu         sync.Mutex
	hosts      map[string]*hostLatencies
	rate       float64 // tokens per second
	capacity   float64
	tokens     float64
	lastRefill time.Duration // the time at which tokens was computed
	denied     int
}

// New returns a policy with an empty history. estimatedRPS is the expected number of requests per second to all hosts
// together, of which the hedge budget is a tenth.
func New(estimatedRPS float64) *Policy {
	rate := estimatedRPS * budgetShare
	capacity := max(1, rate*budgetBurst.Seconds())
	return &Policy{hosts: make(map[string]*hostLatencies), rate: rate, capacity: capacity, tokens: capacity}
}

// DefaultRPS is the default of the expected requests per second.
const DefaultRPS = 100

// The hostLatencies are the latencies of one host, in the current window of 30 seconds and in the one before.
type hostLatencies struct {
	requests    int
	windowStart time.Duration
	current     *ddsketch.DDSketch
	merged      *ddsketch.DDSketch // the current and the previous window, merged once and not for each request
}

// StartRequest counts a request that starts at the time now, and returns its hedge delay. name is the name of the host.
func (p *Policy) StartRequest(now time.Duration, name string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.currentLatencies(now, name)
	h.requests++
	if h.requests <= warmUpRequests || h.merged.IsEmpty() {
		return initialDelay
	}
	d, err := h.merged.GetValueAtQuantile(delayQuantile)
	if err != nil {
		panic(err) // the sketch is not empty
	}
	return max(minDelay, time.Duration(d))
}

// AdmitHedge takes a token of the hedge budget for a hedge at the time now. It returns false if there is no token.
func (p *Policy) AdmitHedge(now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens = min(p.capacity, p.tokens+p.rate*(now-p.lastRefill).Seconds())
	p.lastRefill = now
	if p.tokens < 1 {
		p.denied++
		return false
	}
	p.tokens--
	return true
}

// DeniedHedges returns the number of hedges that AdmitHedge has denied.
func (p *Policy) DeniedHedges() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.denied
}

// RecordLatency records the latency of a request to the host name, answered at the time now, for later hedge delays.
func (p *Policy) RecordLatency(now time.Duration, name string, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.currentLatencies(now, name)
	for _, s := range [...]*ddsketch.DDSketch{h.current, h.merged} {
		if err := s.Add(float64(max(took, 1))); err != nil {
			panic(err) // no duration is outside the sketch's range
		}
	}
}

// currentLatencies returns the latencies of the host name. If the host's current window is over, it first starts a new
// one. The caller holds mu.
func (p *Policy) currentLatencies(now time.Duration, name string) *hostLatencies {
	h := p.hosts[name]
	switch {
	case h == nil:
		h = &hostLatencies{windowStart: now, current: newSketch(), merged: newSketch()}
		p.hosts[name] = h
	case now-h.windowStart >= 2*windowLength:
		h.windowStart += (now - h.windowStart) / windowLength * windowLength
		h.current, h.merged = newSketch(), newSketch()
	case now-h.windowStart >= windowLength:
		h.windowStart += windowLength
		h.merged, h.current = h.current.Copy(), newSketch()
	}
	return h
}

func newSketch() *ddsketch.DDSketch {
	s, err := ddsketch.NewDefaultDDSketch(sketchAccuracy)
	if err != nil {
		panic(err) // accuracy is in (0, 1)
	}
	return s
}
