package policy

import "github.com/gohedge/hedge/observe"

// SlowLimit is the share of slow calls above which no hedge starts: it is an outage then, not a tail.
// Keep it above 0.7: that is the share of slow calls when one of three replicas pauses.
const SlowLimit = 0.75

const slowWeight = 1.0 / 16 // of a call in the share of slow calls

// An outageCheck denies hedges while most calls are slow. A hedge to another backend is no load for the slow one.
type outageCheck struct {
	slowShare float64 // moving average over the calls that end before, or reach, the delay by which a call counts as slow
}

func (c *outageCheck) deny(a admission) observe.Reason {
	if c.isOutage() && !a.OtherBackend {
		return observe.DeniedSlow
	}
	return None
}

func (c *outageCheck) isOutage() bool { return c.slowShare > SlowLimit }

// recordSlowCall counts a call that has reached the delay by which it counts as slow.
func (c *outageCheck) recordSlowCall() { c.slowShare += (1 - c.slowShare) * slowWeight }

// record counts a call that ended before that delay.
func (c *outageCheck) record(r *Result) {
	if r.Learned && !r.Slow {
		c.slowShare -= c.slowShare * slowWeight
	}
}
