package policy

import "github.com/gohedge/hedge/observe"

// SlowLimit is the share of slow calls above which no hedge starts: if so many calls are slow, there is an outage.
// Keep it above 0.7: that is the share of slow calls when one of three replicas pauses.
const SlowLimit = 0.75

const slowWeight = 1.0 / 16 // weight of one call in the moving average of slow calls

// An outageCheck denies hedges while most calls are slow, unless the hedge goes to another backend.
type outageCheck struct {
	slowShare float64 // moving average of the calls that reached the slow marker of their schedule
}

func (c *outageCheck) deny(a admission) observe.Reason {
	if c.isOutage() && !a.OtherBackend {
		return observe.DeniedSlow
	}
	return None
}

func (c *outageCheck) isOutage() bool { return c.slowShare > SlowLimit }

// recordSlowCall counts a call that has reached the slow marker of its schedule.
func (c *outageCheck) recordSlowCall() { c.slowShare += (1 - c.slowShare) * slowWeight }

// record counts a call that ended before it reached the slow marker of its schedule.
func (c *outageCheck) record(r *Result) {
	if r.Learned && !r.Slow {
		c.slowShare -= c.slowShare * slowWeight
	}
}
