package nameservers

import "time"

const (
	minBackoff = 10 * time.Second // first backoff of an unresponsive server; each further one lasts twice as long
	maxBackoff = 5 * time.Minute

	// backoffThreshold is the number of consecutive unanswered queries about a zone after which a server is avoided
	// for the zone. One query suffices if the server has never answered for the zone. It is also the number of
	// unanswered zones after which a server is avoided for all zones.
	backoffThreshold = 2
)

// backoffState counts consecutive unanswered queries or zones of a server, and holds the backoff that they cause.
// Times are durations since Pool.epoch.
type backoffState struct {
	avoidUntil      time.Duration // other servers are preferred until then
	lastZone        uint32        // hash of the zone counted last; zero if queries are counted
	unansweredCount uint8         // consecutive unanswered queries or zones, at most backoffThreshold
	backoffs        uint8         // number of backoffs since the last answer
}

// startBackoff starts a backoff, unless one is running. Each backoff without an answer in between lasts twice as
// long as the one before, up to maxBackoff.
func (s *backoffState) startBackoff(now time.Duration) {
	if now >= s.avoidUntil {
		s.avoidUntil = now + min(minBackoff<<s.backoffs, maxBackoff)
		s.backoffs = min(s.backoffs+1, 8)
	}
}

// recordUnansweredZone counts a zone, given by its hash, as unanswered, unless it is the zone counted last. At
// backoffThreshold zones, it starts a backoff.
func (s *backoffState) recordUnansweredZone(now time.Duration, zone uint32) {
	if s.unansweredCount > 0 && zone == s.lastZone {
		return
	}
	s.lastZone = zone
	if s.unansweredCount = min(s.unansweredCount+1, backoffThreshold); s.unansweredCount == backoffThreshold {
		s.startBackoff(now)
	}
}
