package nameservers

import "time"

const (
	minBackoff = 10 * time.Second // first backoff of an unresponsive server; each further backoff lasts twice as long
	maxBackoff = 5 * time.Minute  // maximum backoff of an unresponsive server

	// backoffThreshold is the number of consecutive unanswered queries about a zone after which a server is avoided for
	// the zone. If the server has never answered for the zone, one query suffices.
	//
	// It is also the number of consecutive unanswered zones after which a server is avoided for all zones.
	backoffThreshold = 2
)

// backoffState counts the consecutive unanswered queries, or unanswered zones, of a server, and holds the resulting
// backoff. During a backoff, other servers are preferred. Times are durations since Pool.epoch.
type backoffState struct {
	avoidUntil      time.Duration // end of the backoff
	lastZone        uint32        // hash of the unanswered zone that was counted last; zero if queries are counted
	unansweredCount uint8         // consecutive unanswered queries or zones, at most backoffThreshold
	backoffs        uint8         // number of backoffs since the last answer, at most 8
}

// startBackoff starts a backoff at the time now, unless one is running. It lasts minBackoff, doubled for each backoff
// since the last answer, but at most maxBackoff.
func (s *backoffState) startBackoff(now time.Duration) {
	if now >= s.avoidUntil {
		s.avoidUntil = now + min(minBackoff<<s.backoffs, maxBackoff)
		s.backoffs = min(s.backoffs+1, 8)
	}
}

// recordUnansweredZone counts an unanswered zone, which is given by the hash of its name. A zone is not counted twice
// in a row. After backoffThreshold zones, it starts a backoff.
func (s *backoffState) recordUnansweredZone(now time.Duration, zone uint32) {
	if s.unansweredCount > 0 && zone == s.lastZone {
		return
	}
	s.lastZone = zone
	if s.unansweredCount = min(s.unansweredCount+1, backoffThreshold); s.unansweredCount == backoffThreshold {
		s.startBackoff(now)
	}
}
