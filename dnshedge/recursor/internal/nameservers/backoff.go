package nameservers

import "time"

const (
	minBackoff = 10 * time.Second // of a silent server; doubles up to maxBackoff
	maxBackoff = 5 * time.Minute

	// maxSilence is the number of consecutive unanswered queries about a zone before a server is avoided for it; one
	// suffices if it has never answered. It is also the number of zones before a server is avoided for all.
	maxSilence = 2
)

// silence counts unanswered queries. Times are since Pool.epoch.
type silence struct {
	avoidUntil  time.Duration // until when other servers are asked first
	zone        uint32        // the last unanswered zone, when zones are counted
	silentCount uint8         // consecutive queries or zones without an answer
	backoffs    uint8         // since the last answer
}

// backOff avoids the server for a while, unless it is avoided already.
func (s *silence) backOff(now time.Duration) {
	if now >= s.avoidUntil {
		s.avoidUntil = now + min(minBackoff<<s.backoffs, maxBackoff)
		s.backoffs = min(s.backoffs+1, 8)
	}
}

// recordMissedZone counts a zone without an answer. A further miss in the same zone does not count.
func (s *silence) recordMissedZone(now time.Duration, zone uint32) {
	if s.silentCount > 0 && zone == s.zone {
		return
	}
	s.zone = zone
	if s.silentCount = min(s.silentCount+1, maxSilence); s.silentCount == maxSilence {
		s.backOff(now)
	}
}
