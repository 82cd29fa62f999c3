package names

import (
	"time"

	"github.com/gohedge/hedge/dnshedge"
)

const (
	// maxLookups is the number of lookup slots: an eighth of the default MaxInFlight of a Client. A lookup asks two
	// questions. So new and known hosts together use at most half of MaxInFlight within slotTime.
	maxLookups = 256

	// slotTime is the longest time that a lookup keeps its slot. A longer lookup continues without a slot, so that
	// hosts whose servers are dead do not delay others. If too many questions wait then, a Client drops the oldest
	// ones.
	slotTime = time.Second
)

// A lookupSlots limits how many lookups run at a time. It is a semaphore: a send acquires a slot, and a receive releases
// it.
type lookupSlots chan struct{}

// exchangerSlots limits how many lookups through one Exchanger run at a time. Hosts without known addresses (newHosts)
// and hosts with known addresses (knownHosts) have separate slots, so that neither delays the other.
type exchangerSlots struct{ newHosts, knownHosts lookupSlots }

// newExchangerSlots returns the slots for lookups through the Exchanger x: 256 (maxLookups) for hosts without known
// addresses, and as many for hosts with known addresses. If x is a Client with the field MaxInFlight set, each number
// is an eighth of MaxInFlight, at least one.
func newExchangerSlots(x dnshedge.Exchanger) exchangerSlots {
	most := maxLookups
	if c, ok := x.(*dnshedge.Client); ok && c != nil && c.MaxInFlight > 0 {
		most = max(1, c.MaxInFlight/8)
	}
	return exchangerSlots{make(lookupSlots, most), make(lookupSlots, most)}
}
