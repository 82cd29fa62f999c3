package nameservers

import (
	"math"
	"net/netip"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const (
	answerTimeout = 2 * time.Second // time that a query over UDP waits for its answer when no task waits for it
	tcpTimeout    = 4 * time.Second // time limit of a query over TCP, including the opening of the connection

	rttHalfLife = 10 * time.Minute // idle time after which the expected RTT is halfway between the measured RTT and the RTT of unknown servers
)

// server is the state of one server address, in 64 bytes. In the zero value, the server has never answered. Times are
// durations since Pool.epoch. Pool.mu guards it.
type server struct {
	rtt          rtt.Estimate[float32] // in nanoseconds; zero if the server has never answered
	lastAnswer   time.Duration         // time of the last answer over UDP
	lastQuery    time.Duration
	noEDNSUntil  time.Duration // the server is queried without EDNS until this time
	slots        slots         // limits the queries in flight
	backoffState               // counts unanswered zones for which the server has answered before
}

// serverTable holds the states of at most max servers, by address. Pool.mu guards it.
type serverTable struct {
	max int
	all map[netip.AddrPort]*server
}

// getOrCreateServer returns the server with the given address. If there is none, it adds one. If the table is full, it
// first evicts a server without queries in flight.
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

// recordRTT adds the round trip time took to the estimate, and ends the backoff. unknownRTT is the expected round trip
// time of servers that have never answered.
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

// expectedRTT returns the expected round trip time of a server that has answered, in nanoseconds. The longer the server
// is idle, the closer the result is to unknownRTT, the expected value of servers that have never answered.
func (s *server) expectedRTT(now, unknownRTT time.Duration) float32 {
	idle := now - s.lastAnswer
	if idle < rttHalfLife/8 {
		return s.rtt.SRTT
	}
	return float32(unknownRTT) + (s.rtt.SRTT-float32(unknownRTT))*float32(math.Exp2(-float64(idle)/float64(rttHalfLife)))
}
