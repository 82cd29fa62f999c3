package fleet

import (
	"math"
	"net/netip"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
)

const (
	answerTime = 2 * time.Second // how long an answer is awaited if nobody needs it
	tcpTime    = 4 * time.Second // of a query over TCP, with its connection

	idleHalf = 10 * time.Minute // in which half of what is known of a server's time is forgotten
)

// server is what is known of one address: 64 bytes. The zero server was never met. It is
// guarded by Fleet.mu. Times are since Fleet.epoch.
type server struct {
	rtt     rtt.Estimate[float32] // none: no answer has come
	seen    time.Duration         // when the last answer came
	asked   time.Duration         // when it was asked last
	plain   time.Duration         // until when it is asked without EDNS
	slots   slots                 // queries in flight
	silence                       // about zones that it has answered for
}

// servers is the table of servers, which is guarded by Fleet.mu.
type servers struct {
	max int
	all map[netip.AddrPort]*server
}

// lookUp returns the server with that address.
func (t *servers) lookUp(at netip.AddrPort, now time.Duration) *server {
	s := t.all[at]
	if s == nil {
		if len(t.all) >= t.max {
			// One of which nothing is known, or else the one that was not asked for the longest time.
			forget(t.all, func(s *server) (time.Duration, bool) {
				if !s.met() && s.silent == 0 {
					return -1, s.slots.used == 0
				}
				return s.asked, s.slots.used == 0
			})
		}
		s = &server{asked: now}
		t.all[at] = s
	}
	return s
}

// met reports whether an answer has come from the server.
func (s *server) met() bool { return s.rtt.SRTT > 0 }

// learn takes what an answer took: no less than a nanosecond, though the clock may say so.
func (s *server) learn(now, took, prior time.Duration) {
	if s.met() {
		s.rtt.SRTT = s.expect(now, prior)
	}
	s.rtt.Learn(min(max(took, 1), answerTime), 1./4)
	s.seen = now
	s.silence = silence{}
}

// expect returns the time in ns that an answer of a server that was met is expected to take.
// While the server is idle, what is known of it goes to what is known of others.
func (s *server) expect(now, prior time.Duration) float32 {
	idle := now - s.seen
	if idle < idleHalf/8 {
		return s.rtt.SRTT
	}
	return float32(prior) + (s.rtt.SRTT-float32(prior))*float32(math.Exp2(-float64(idle)/float64(idleHalf)))
}
