package nameservers

import (
	"math"
	"net/netip"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const (
	answerTimeout = 2 * time.Second // how long an answer is awaited if nobody needs it
	tcpTimeout    = 4 * time.Second // of a query over TCP, with its connection

	rttHalfLife = 10 * time.Minute // in which half of what is known of a server's time is forgotten
)

// server is what is known of one address: 64 bytes. The zero server was never met. It is
// guarded by Fleet.mu. Times are since Fleet.epoch.
type server struct {
	rtt         rtt.Estimate[float32] // none: no answer has come
	lastAnswer  time.Duration         // when the last answer came
	lastQuery   time.Duration         // when it was asked last
	noEDNSUntil time.Duration         // until when it is asked without EDNS
	slots       slots                 // queries in flight
	silence                           // about zones that it has answered for
}

// serverTable is the table of servers, which is guarded by Fleet.mu.
type serverTable struct {
	max int
	all map[netip.AddrPort]*server
}

// lookUpServer returns the server with that address.
func (t *serverTable) lookUpServer(at netip.AddrPort, now time.Duration) *server {
	s := t.all[at]
	if s == nil {
		if len(t.all) >= t.max {
			// One of which nothing is known, or else the one that was not asked for the longest time.
			evictOldest(t.all, func(s *server) (time.Duration, bool) {
				if !s.hasAnswered() && s.silentCount == 0 {
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

// hasAnswered reports whether an answer has come from the server.
func (s *server) hasAnswered() bool { return s.rtt.SRTT > 0 }

// learn takes what an answer took: no less than a nanosecond, though the clock may say so.
func (s *server) recordRTT(now, took, prior time.Duration) {
	if s.hasAnswered() {
		s.rtt.SRTT = s.expectedRTT(now, prior)
	}
	s.rtt.Learn(min(max(took, 1), answerTimeout), 1./4)
	s.lastAnswer = now
	s.silence = silence{}
}

// expectedRTT returns the time in ns that an answer of a server that was met is expected to take.
// While the server is idle, what is known of it goes to what is known of others.
func (s *server) expectedRTT(now, prior time.Duration) float32 {
	idle := now - s.lastAnswer
	if idle < rttHalfLife/8 {
		return s.rtt.SRTT
	}
	return float32(prior) + (s.rtt.SRTT-float32(prior))*float32(math.Exp2(-float64(idle)/float64(rttHalfLife)))
}
