package policy

import "github.com/gohedge/hedge/observe"

// SlowLimit is the share of slow calls above which hedges are denied, because so many slow calls indicate an outage. It must be
// above 0.7: that share of calls is slow when one of three replicas pauses.
const SlowLimit = 0.75

const slowWeight = 1.0 / 16 // weight of one call in the moving average of slow calls, about the last 16 calls

// An outageCheck denies hedges in an outage, that is, while most calls of the key are slow. Hedges to a server other than
// that of the primary are not denied.
type outageCheck struct {
	slowShare float64 // moving average of the share of calls that reached the slow marker of their schedule
}

// deny implements [admissionCheck]. It denies hedges in an outage, except hedges to another server.
func (c *outageCheck) deny(a admission) observe.Reason {
	if c.isOutage() && !a.OtherBackend {
		return observe.DeniedSlow
	}
	return None
}

// isOutage reports whether there is an outage: the share of slow calls exceeds SlowLimit.
func (c *outageCheck) isOutage() bool { return c.slowShare > SlowLimit }

// recordSlowCall raises the share of slow calls. It must be called when a call reaches the slow marker of its schedule: the
// delay from which a call counts as slow.
func (c *outageCheck) recordSlowCall() { c.slowShare += (1 - c.slowShare) * slowWeight }

// record lowers the share of slow calls after a call that was not slow. It does nothing after a slow call, for which
// recordSlowCall has raised the share.
func (c *outageCheck) record(r *Result) {
	if r.HasSlowMarker && !r.Slow {
		c.slowShare -= c.slowShare * slowWeight
	}
}
