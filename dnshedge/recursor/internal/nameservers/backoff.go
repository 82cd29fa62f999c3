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

// backoffState decides when an unresponsive server is avoided: it counts missing answers in a row, and holds the end of
// the current backoff. During a backoff, other servers are preferred.
//
// It counts unanswered queries about one zone, or zones in which the server left a query unanswered. Times are
// durations since Pool.epoch.
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

// recordUnansweredZone counts a zone for which the server did not answer. zone is the hash of the zone's name. After
// backoffThreshold zones without an answer in between, it starts a backoff.
//
// The same zone is not counted twice in a row.
func (s *backoffState) recordUnansweredZone(now time.Duration, zone uint32) {
	if s.unansweredCount > 0 && zone == s.lastZone {
		return
	}
	s.lastZone = zone
	if s.unansweredCount = min(s.unansweredCount+1, backoffThreshold); s.unansweredCount == backoffThreshold {
		s.startBackoff(now)
	}
}
