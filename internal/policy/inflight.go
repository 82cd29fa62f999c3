package policy

import (
	"sync/atomic"

	"github.com/gohedge/hedge/observe"
)

// MaxInFlight bounds the hedges of one key in flight.
const MaxInFlight = 1000

// An inFlightCheck counts the hedges in flight, and denies more than MaxInFlight.
type inFlightCheck struct{ hedges atomic.Int64 }

func (c *inFlightCheck) deny(admission) observe.Reason {
	if c.hedges.Load() >= MaxInFlight {
		return observe.DeniedInFlight
	}
	return None
}
