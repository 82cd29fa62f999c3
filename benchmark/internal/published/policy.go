// Package published is the best-known published policy of adaptive hedging. Others
// are compared with it. It is written from its description, not from anybody's code.
//
// It hedges once, when a call is slower than the 90th percentile of what the
// winners of the last 30 to 60 seconds took. A token bucket limits the
// hedges. It fills by the clock, at a tenth of the requests per second that the
// policy is given as an estimate.
// The first 20 requests of a host, and those after a minute without any, are
// hedged after 10 ms.
package published

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
	guess      = 10 * time.Millisecond
	minDelay   = time.Millisecond
	share      = 0.10 // of the expected requests
	burst      = 2 * time.Second
)

// A Policy is safe for concurrent use. Time comes in as an argument, counted
// from any beginning.
type Policy struct {
	mu      sync.Mutex
	hosts   map[string]*host
	rate    float64 // tokens per second
	full    float64
	tokens  float64
	filled  time.Duration // when tokens was right
	refused int
}

// New returns a policy that expects the given number of requests per second, of all hosts together.
func New(estimatedRPS float64) *Policy {
	rate := estimatedRPS * share
	full := max(1, rate*burst.Seconds())
	return &Policy{hosts: make(map[string]*host), rate: rate, full: full, tokens: full}
}

// DefaultRPS is the policy's default estimate.
const DefaultRPS = 100

// host is what is known of one: two windows that tumble.
type host struct {
	requests int
	turned   time.Duration
	now      *ddsketch.DDSketch
	both     *ddsketch.DDSketch // now and the window before it, merged once and not for each request
}

// Delay counts a request and returns when it is to be hedged.
func (p *Policy) Delay(now time.Duration, name string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.host(now, name)
	h.requests++
	if h.requests <= warmUp || h.both.IsEmpty() {
		return guess
	}
	d, err := h.both.GetValueAtQuantile(percentile)
	if err != nil {
		panic(err) // the sketch is not empty
	}
	return max(minDelay, time.Duration(d))
}

// Admit takes a token for a hedge, or reports false.
func (p *Policy) Admit(now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens = min(p.full, p.tokens+p.rate*(now-p.filled).Seconds())
	p.filled = now
	if p.tokens < 1 {
		p.refused++
		return false
	}
	p.tokens--
	return true
}

// Refused returns how many hedges the bucket refused.
func (p *Policy) Refused() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// Learn records what the winner of a request took, since the request began.
func (p *Policy) Learn(now time.Duration, name string, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.host(now, name)
	for _, s := range [...]*ddsketch.DDSketch{h.now, h.both} {
		if err := s.Add(float64(max(took, 1))); err != nil {
			panic(err) // no duration is outside the sketch's range
		}
	}
}

func (p *Policy) host(now time.Duration, name string) *host {
	h := p.hosts[name]
	switch {
	case h == nil:
		h = &host{turned: now, now: empty(), both: empty()}
		p.hosts[name] = h
	case now-h.turned >= 2*window:
		h.turned += (now - h.turned) / window * window
		h.now, h.both = empty(), empty()
	case now-h.turned >= window:
		h.turned += window
		h.both, h.now = h.now.Copy(), empty()
	}
	return h
}

func empty() *ddsketch.DDSketch {
	s, err := ddsketch.NewDefaultDDSketch(accuracy)
	if err != nil {
		panic(err) // accuracy is in (0, 1)
	}
	return s
}
