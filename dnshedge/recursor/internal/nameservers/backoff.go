package nameservers

import "time"

const (
	minBackoff = 10 * time.Second // of a server that is silent; doubled up to maxRest
	maxBackoff = 5 * time.Minute

	// maxSilence is how many queries about a zone, in a row, have no answer before a server rests for that zone; one if none has
	// ever come. It is also how many zones' queries have none before a server rests for all.
	maxSilence = 2
)

// silence is what is known of queries that had no answer. Times are since Fleet.epoch.
type silence struct {
	avoidUntil  time.Duration // when the server is asked first again
	zone        uint32        // of zones: the last one
	silentCount uint8         // queries in a row, or zones
	backoffs    uint8         // since the last answer
}

// backOff takes that the server rests, unless it does.
func (s *silence) backOff(now time.Duration) {
	if now >= s.avoidUntil {
		s.avoidUntil = now + min(minBackoff<<s.backoffs, maxBackoff)
		s.backoffs = min(s.backoffs+1, 8)
	}
}

// recordMissedZone takes that a zone's query had no answer. Another one about the same zone says no more.
func (s *silence) recordMissedZone(now time.Duration, zone uint32) {
	if s.silentCount > 0 && zone == s.zone {
		return
	}
	s.zone = zone
	if s.silentCount = min(s.silentCount+1, maxSilence); s.silentCount == maxSilence {
		s.backOff(now)
	}
}
