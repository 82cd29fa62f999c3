package fleet

import "time"

const (
	minRest = 10 * time.Second // of a server that is silent; doubled up to maxRest
	maxRest = 5 * time.Minute

	// maxSilence is how many queries about a zone, in a row, have no answer before a server rests for that zone; one if none has
	// ever come. It is also how many zones' queries have none before a server rests for all.
	maxSilence = 2
)

// silence is what is known of queries that had no answer. Times are since Fleet.epoch.
type silence struct {
	until  time.Duration // when the server is asked first again
	zone   uint32        // of zones: the last one
	silent uint8         // queries in a row, or zones
	rests  uint8         // since the last answer
}

// rest takes that the server rests, unless it does.
func (s *silence) rest(now time.Duration) {
	if now >= s.until {
		s.until = now + min(minRest<<s.rests, maxRest)
		s.rests = min(s.rests+1, 8)
	}
}

// missZone takes that a zone's query had no answer. Another one about the same zone says no more.
func (s *silence) missZone(now time.Duration, zone uint32) {
	if s.silent > 0 && zone == s.zone {
		return
	}
	s.zone = zone
	if s.silent = min(s.silent+1, maxSilence); s.silent == maxSilence {
		s.rest(now)
	}
}
