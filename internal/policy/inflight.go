package policy

import (
	"sync/atomic"

	"github.com/gohedge/hedge/observe"
)

// MaxInFlight is the maximum number of hedges of one key that may be in flight at the same time.
const MaxInFlight = 1000

// An inFlightCheck denies hedges while MaxInFlight hedges of the key are in flight.
type inFlightCheck struct{ hedges atomic.Int64 }

// deny implements [admissionCheck]. It denies hedges while MaxInFlight hedges of the key are in flight.
func (c *inFlightCheck) deny(admission) observe.Reason {
	if c.hedges.Load() >= MaxInFlight {
		return observe.DeniedInFlight
	}
	return None
}
