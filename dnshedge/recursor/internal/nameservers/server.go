package nameservers

import (
	"math"
	"net/netip"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const (
	answerTimeout = 2 * time.Second // wait for an answer over UDP that no task waits for
	tcpTimeout    = 4 * time.Second // time limit of a query over TCP, including its connection

	rttHalfLife = 10 * time.Minute // idle time after which the expected RTT is halfway between the measured RTT and that of unknown servers
)

// server is the state of one server address, in 64 bytes. The zero value has never answered. Times are durations
// since Pool.epoch. Pool.mu guards it.
type server struct {
	rtt          rtt.Estimate[float32] // zero: it has never answered
	lastAnswer   time.Duration
	lastQuery    time.Duration
	noEDNSUntil  time.Duration // it is queried without EDNS until then
	slots        slots         // limit of queries in flight
	backoffState               // counts zones that it has answered for before
}

// serverTable has the servers by address. Pool.mu guards it.
type serverTable struct {
	max int
	all map[netip.AddrPort]*server
}

// getOrCreateServer returns the server with an address, which it adds if there is none. If the table is full, it
// evicts a server without queries in flight.
func (t *serverTable) getOrCreateServer(at netip.AddrPort, now time.Duration) *server {
	s := t.all[at]
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
		t.all[at] = s
	}
	return s
}

// hasAnswered reports whether the RTT of the server is known, from an answer over UDP or an import.
func (s *server) hasAnswered() bool { return s.rtt.SRTT > 0 }

// recordRTT adds a sample to the RTT estimate and ends the backoff. unknownRTT is the expected RTT of servers that
// have never answered. The sample is at least 1 ns, because an estimate of zero means that no answer has come.
func (s *server) recordRTT(now, took, unknownRTT time.Duration) {
	if s.hasAnswered() {
		s.rtt.SRTT = s.expectedRTT(now, unknownRTT)
	}
	s.rtt.AddSample(min(max(took, 1), answerTimeout), 1./4)
	s.lastAnswer = now
	s.backoffState = backoffState{}
}

// expectedRTT returns the expected RTT, in ns, of a server that has answered. The longer the server is idle, the
// closer the result is to unknownRTT, the expected RTT of servers that have never answered.
func (s *server) expectedRTT(now, unknownRTT time.Duration) float32 {
	idle := now - s.lastAnswer
	if idle < rttHalfLife/8 {
		return s.rtt.SRTT
	}
	return float32(unknownRTT) + (s.rtt.SRTT-float32(unknownRTT))*float32(math.Exp2(-float64(idle)/float64(rttHalfLife)))
}
