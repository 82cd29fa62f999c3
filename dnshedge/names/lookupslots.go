package names

import (
	"time"

	"github.com/gohedge/hedge/dnshedge"
)

const (
	// maxLookups is how many lookups have their turn at a time: an eighth of a Client's MaxInFlight, as it is
	// by default. Each asks two questions, so new and known hosts have half of it in a turnTime.
	maxLookups = 256

	// slotTime is how long a lookup keeps its turn. One that takes longer goes on without: hosts whose
	// servers are dead must not hold up the others. What becomes too many then, a Client ends, the oldest first.
	slotTime = time.Second
)

// A lookupSlots is had by sending to it, and is over when that is received.
type lookupSlots chan struct{}

// exchangerSlots are the lookup slots of one Exchanger. New hosts and known hosts have separate slots, so that neither
// delays the other.
type exchangerSlots struct{ fresh, known lookupSlots }

func slotsOf(x dnshedge.Exchanger) exchangerSlots {
	most := maxLookups
	if c, ok := x.(*dnshedge.Client); ok && c != nil && c.MaxInFlight > 0 {
		most = max(1, c.MaxInFlight/8)
	}
	return exchangerSlots{make(lookupSlots, most), make(lookupSlots, most)}
}
