package nameservers

import "time"

const (
	minBackoff = 10 * time.Second // of a silent server; doubles up to maxBackoff
	maxBackoff = 5 * time.Minute

	// backoffThreshold is the number of consecutive unanswered queries about a zone before a server is avoided for it; one
	// suffices if it has never answered. It is also the number of zones before a server is avoided for all.
	backoffThreshold = 2
)

// backoffState counts unanswered queries. Times are since Pool.epoch.
type backoffState struct {
	avoidUntil      time.Duration // until when other servers are asked first
	lastZone        uint32        // the last unanswered zone, when zones are counted
	unansweredCount uint8         // consecutive queries or zones without an answer
	backoffs        uint8         // since the last answer
}

// startBackoff avoids the server for a while, unless it is avoided already.
func (s *backoffState) startBackoff(now time.Duration) {
	if now >= s.avoidUntil {
		s.avoidUntil = now + min(minBackoff<<s.backoffs, maxBackoff)
		s.backoffs = min(s.backoffs+1, 8)
	}
}

// recordUnansweredZone counts a zone without an answer. A further miss in the same zone does not count.
func (s *backoffState) recordUnansweredZone(now time.Duration, zone uint32) {
	if s.unansweredCount > 0 && zone == s.lastZone {
		return
	}
	s.lastZone = zone
	if s.unansweredCount = min(s.unansweredCount+1, backoffThreshold); s.unansweredCount == backoffThreshold {
		s.startBackoff(now)
	}
}
