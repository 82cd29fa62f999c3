package nameservers

import (
	"math"
	"net/netip"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const (
	answerTimeout = 2 * time.Second // of an answer that no task needs
	tcpTimeout    = 4 * time.Second // of a query over TCP, with its connection

	rttHalfLife = 10 * time.Minute // after which an idle server's RTT has moved halfway to that of unknown servers
)

// server is the state of one address, in 64 bytes. The zero server has never answered. Pool.mu guards it. Times are since
// Pool.epoch.
type server struct {
	rtt          rtt.Estimate[float32] // zero: no answer has come
	lastAnswer   time.Duration
	lastQuery    time.Duration
	noEDNSUntil  time.Duration // until when it is asked without EDNS
	slots        slots         // queries in flight
	backoffState               // in zones that it has answered for
}

// serverTable has the known servers. Pool.mu guards it.
type serverTable struct {
	max int
	all map[netip.AddrPort]*server
}

// getOrCreateServer returns the server with an address. It adds a missing one.
func (t *serverTable) getOrCreateServer(at netip.AddrPort, now time.Duration) *server {
	s := t.all[at]
	if s == nil {
		if len(t.all) >= t.max {
			// Evict a server without observations, or else the least recently asked.
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

// hasAnswered reports whether an answer has come from the server.
func (s *server) hasAnswered() bool { return s.rtt.SRTT > 0 }

// recordRTT updates the RTT estimate. It counts at least a nanosecond, because a coarse clock may measure none.
func (s *server) recordRTT(now, took, prior time.Duration) {
	if s.hasAnswered() {
		s.rtt.SRTT = s.expectedRTT(now, prior)
	}
	s.rtt.AddSample(min(max(took, 1), answerTimeout), 1./4)
	s.lastAnswer = now
	s.backoffState = backoffState{}
}

// expectedRTT returns the expected RTT in ns of a server that has answered. While the server is idle, it approaches prior,
// the RTT of unknown servers.
func (s *server) expectedRTT(now, prior time.Duration) float32 {
	idle := now - s.lastAnswer
	if idle < rttHalfLife/8 {
		return s.rtt.SRTT
	}
	return float32(prior) + (s.rtt.SRTT-float32(prior))*float32(math.Exp2(-float64(idle)/float64(rttHalfLife)))
}
