package virtual

import "time"

// A PushbackRecorder is a Policy that reacts to pushback, an answer by which the server asks for less load. The
// simulation calls RecordPushback for each such answer, with the time and the host of the answer.
type PushbackRecorder interface {
	RecordPushback(now time.Duration, host int)
}

// perClientPolicies is a Policy that gives each client a policy of its own. The parameter host is the number of a client.
type perClientPolicies struct {
	newPolicy func() Policy
	policies  []Policy
}

func (c *perClientPolicies) clientPolicy(host int) Policy {
	for len(c.policies) <= host {
		c.policies = append(c.policies, c.newPolicy())
	}
	return c.policies[host]
}

func (c *perClientPolicies) ScheduleHedges(now time.Duration, host int) []time.Duration {
	return c.clientPolicy(host).ScheduleHedges(now, 0)
}
func (c *perClientPolicies) AdmitHedge(now time.Duration, host, index int) bool {
	return c.clientPolicy(host).AdmitHedge(now, 0, index)
}
func (c *perClientPolicies) RecordResult(now time.Duration, host int, r CallResult) {
	c.clientPolicy(host).RecordResult(now, 0, r)
}

func (c *perClientPolicies) RecordPushback(now time.Duration, host int) {
	if p, ok := c.clientPolicy(host).(PushbackRecorder); ok {
		p.RecordPushback(now, 0)
	}
}

// ClientRate returns the number of requests per second that one client sends in an open loop.
func (s Simulation) ClientRate() float64 {
	if s.SeparateClients {
		return s.Rate / float64(max(s.Hosts, 1))
	}
	return s.Rate
}

// isPushback reports whether the server answers attempt n of a call by asking for less load. Chance decides.
func (r *episodeState) isPushback(index int32, n uint8) bool {
	return r.PushbackShare > 0 && r.random.attemptRand(int(index), -80-int(n)).Float64() < r.PushbackShare
}

// recordPushback reports to the policy that an attempt of the call id was answered by pushback, by which the server asks
// for less load. It returns true if another attempt in flight can still answer the call.
func (r *episodeState) recordPushback(id callID) bool {
	c := &r.activeCalls[id.slot]
	if p, ok := r.policy.(PushbackRecorder); ok {
		p.RecordPushback(r.now, int(c.host))
	}
	c.pushbacks++
	return c.pushbacks < c.started
}
