package nameservers

import (
	"math"
	"net/netip"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
	"github.com/gohedge/hedge/sketch"
)

const (
	answerTimeout = 2 * time.Second // time that a query over UDP waits for its answer when no Task waits for it
	tcpTimeout    = 4 * time.Second // time limit of a query over TCP, including the opening of the connection

	rttHalfLife = 10 * time.Minute // idle time after which the expected RTT is halfway between the measured RTT and the RTT of unknown servers
)

// A server is the state of one server address, in 64 bytes: its round trip time, its queries in flight, and its
// backoff. The zero value means that the server has never answered. Times are durations since Pool.epoch. Pool.mu guards
// it.
type server struct {
	rtt          rtt.Estimate[float32] // in nanoseconds; zero if the server has never answered
	lastAnswer   time.Duration         // time of the last answer over UDP
	lastQuery    time.Duration
	noEDNSUntil  time.Duration // the server is queried without EDNS until this time
	slots        semaphore     // limits the queries in flight
	backoffState               // counts unanswered zones for which the server has answered before
}

// serverTable holds the states of at most max servers, by address. Pool.mu guards it.
type serverTable struct {
	max int
	all map[netip.AddrPort]*server
}

// getOrCreateServer returns the state of the server with the given address. If there is none, it adds one at the time
// now. If the table is full, it first evicts a server without queries in flight.
func (t *serverTable) getOrCreateServer(addr netip.AddrPort, now time.Duration) *server {
	s := t.all[addr]
	if s == nil {
		if len(t.all) >= t.max {
			// Evict a server without observations, or else the least recently queried.
			evictOldest(t.all, func(s *server) (time.Duration, bool) {
				if !s.hasAnswered() && s.unansweredCount == 0 {
					return -1, s.slots.used == 0
				}
				return s.lastQuery, s.slots.used == 0
			})
		}
		s = &server{lastQuery: now}
		t.all[addr] = s
	}
	return s
}

// hasAnswered reports whether the round trip time of the server is known, from an answer over UDP or from an import.
func (s *server) hasAnswered() bool { return s.rtt.SRTT > 0 }

// recordRTT adds took, a round trip time that was measured at the time now, to the estimate of the server. It also ends
// the backoff of the server. If the server was idle for long, it first moves the estimate towards unknownRTT, the
// expected round trip time of servers that have never answered (see expectedRTT).
//
// A sample counts as at least 1 ns, because an estimate of 0 means that the server has never answered.
func (s *server) recordRTT(now, took, unknownRTT time.Duration) {
	if s.hasAnswered() {
		s.rtt.SRTT = s.expectedRTT(now, unknownRTT)
	}
	s.rtt.AddSample(min(max(took, 1), answerTimeout), 1./4)
	s.lastAnswer = now
	s.backoffState = backoffState{}
}

// expectedRTT returns the expected round trip time at the time now of a server that has answered, in nanoseconds. The
// longer the server is idle, the closer the result is to unknownRTT, the expected value of servers that have never
// answered.
func (s *server) expectedRTT(now, unknownRTT time.Duration) float32 {
	idle := now - s.lastAnswer
	if idle < rttHalfLife/8 {
		return s.rtt.SRTT
	}
	return float32(unknownRTT) + (s.rtt.SRTT-float32(unknownRTT))*float32(math.Exp2(-float64(idle)/float64(rttHalfLife)))
}

const (
	initialMedian     = 50 * time.Millisecond  // median before there are minSamples samples
	initialHedgeDelay = 60 * time.Millisecond  // hedgeDelay before there are minSamples samples
	maxFirstRTT       = 500 * time.Millisecond // maximum of median and hedgeDelay, so that deliberately slow servers do not delay queries to other servers
	minSamples        = 20                     // samples after which the quantiles of the samples replace the initial values
	updateInterval    = 8                      // number of samples between two updates of the quantiles
)

// A firstRTTEstimator estimates the round trip time and the hedge delay of unknown servers, which have not answered yet.
// It has one sample of each server that has answered: the round trip time of its first answer. Pool.mu guards it.
type firstRTTEstimator struct {
	quantile    float64 // hedgeDelay is this quantile of the samples, between 0 and 1
	window      sketch.Window
	newSamples  int           // samples since the last update of the quantiles
	sampleCount int           // number of samples, at most minSamples
	median      time.Duration // expected RTT of an unknown server
	hedgeDelay  time.Duration // hedge delay of an unknown server
}

// newFirstRTTEstimator returns a firstRTTEstimator without samples. A sample is the round trip time of the first answer
// of a server. The given quantile of the samples, between 0 and 1, becomes the hedge delay of servers that have not
// answered yet.
func newFirstRTTEstimator(quantile float64) *firstRTTEstimator {
	return &firstRTTEstimator{quantile: quantile, median: initialMedian, hedgeDelay: initialHedgeDelay}
}

// addSample adds took, the round trip time of the first answer of a server, at the time now. It updates the estimates
// after each updateInterval samples.
func (e *firstRTTEstimator) addSample(now time.Time, took time.Duration) {
	e.window.Add(now, took)
	e.newSamples++
	if e.sampleCount = min(e.sampleCount+1, minSamples); e.sampleCount == minSamples && e.newSamples >= updateInterval {
		e.updateQuantiles()
	}
}

// mergeSamples adds the exported samples in window, so that a new Pool has estimates at once. It does nothing if e
// already has as many samples as window.
func (e *firstRTTEstimator) mergeSamples(window *sketch.Window) {
	if e.window.Len() >= window.Len() {
		return
	}
	e.window.Merge(window)
	if e.sampleCount = min(e.window.Len(), minSamples); e.sampleCount == minSamples {
		e.updateQuantiles()
	}
}

// updateQuantiles recomputes the expected round trip time (median) and the hedge delay of unknown servers from the
// samples. Neither exceeds maxFirstRTT.
func (e *firstRTTEstimator) updateQuantiles() {
	e.newSamples = 0
	e.median, _ = e.window.Quantile(0.5)
	e.hedgeDelay, _ = e.window.Quantile(e.quantile)
	e.median, e.hedgeDelay = min(e.median, maxFirstRTT), min(e.hedgeDelay, maxFirstRTT)
}

// A semaphore limits the queries in flight. It has a number of slots, and each query in flight uses one of them. Waiting
// queries get slots in the order of their arrival. The number of slots is not stored, but passed to the methods as max.
// Pool.mu guards it.
type semaphore struct {
	used int32   // slots in use
	last *waiter // last waiter of the circular queue, whose next is the first waiter; nil if the queue is empty
}

// A waiter is an entry in the queue of a semaphore: it stands for one query that waits for a slot. Pool.mu guards its
// fields. Without the lock, a goroutine may only receive from ready.
type waiter struct {
	ready    chan struct{} // closed when the waiter gets a slot
	granted  bool          // the waiter got a slot
	canceled bool          // cancelWait was called
	next     *waiter
}

// hasFreeSlot reports whether a query gets a slot at once: fewer than max slots are in use, and no query waits for a
// slot.
func (s *semaphore) hasFreeSlot(max int32) bool { return s.used < max && s.last == nil }

// acquireOrEnqueue acquires one of max slots and returns nil. If no slot is free, it appends a waiter to the queue and
// returns the waiter.
func (s *semaphore) acquireOrEnqueue(max int32) *waiter {
	if s.hasFreeSlot(max) {
		s.used++
		return nil
	}
	w := &waiter{ready: make(chan struct{})}
	if s.last == nil {
		w.next = w
	} else {
		w.next, s.last.next = s.last.next, w
	}
	s.last = w
	return w
}

// releaseSlot releases a slot. The first waiter that is not canceled gets the slot.
func (s *semaphore) releaseSlot() {
	for s.last != nil {
		w := s.last.next
		if w == s.last {
			s.last = nil
		} else {
			s.last.next = w.next
		}
		if !w.canceled {
			w.granted = true
			close(w.ready)
			return
		}
	}
	s.used--
}

// cancelWait removes the waiter w from the queue. If w already has a slot, cancelWait releases the slot.
func (s *semaphore) cancelWait(w *waiter) {
	if w.granted {
		s.releaseSlot()
	}
	w.canceled = true
}
