package virtual

import "time"

// A PushbackRecorder is a policy that reacts to pushback, an answer by which the server asks for less load.
// RecordPushback is called at the time of the answer.
type PushbackRecorder interface {
	RecordPushback(now time.Duration, host int)
}

// A separateClients is a policy that consists of one policy for each host. Each host stands for a client, and clients
// share no state.
type separateClients struct {
	newPolicy func() Policy
	policies  []Policy
}

func (c *separateClients) policyOf(host int) Policy {
	for len(c.policies) <= host {
		c.policies = append(c.policies, c.newPolicy())
	}
	return c.policies[host]
}

func (c *separateClients) Begin(now time.Duration, host int) []time.Duration {
	return c.policyOf(host).Begin(now, 0)
}
func (c *separateClients) Admit(now time.Duration, host, index int) bool {
	return c.policyOf(host).Admit(now, 0, index)
}
func (c *separateClients) Done(now time.Duration, host int, r CallResult) {
	c.policyOf(host).Done(now, 0, r)
}

func (c *separateClients) RecordPushback(now time.Duration, host int) {
	if p, ok := c.policyOf(host).(PushbackRecorder); ok {
		p.RecordPushback(now, 0)
	}
}

// newEpisodePolicy returns the policy for an episode. With SeparateClients, it calls newPolicy for each client, and
// otherwise once.
func (s Simulation) newEpisodePolicy(newPolicy func() Policy) Policy {
	if s.SeparateClients {
		return &separateClients{newPolicy: newPolicy}
	}
	return newPolicy()
}

// ClientRate returns the number of requests that one client sends per second in an open loop.
func (s Simulation) ClientRate() float64 {
	if s.SeparateClients {
		return s.Rate / float64(max(s.Hosts, 1))
	}
	return s.Rate
}

// isPushback reports whether the server answers attempt n of the call with the given index by pushback.
func (r *episodeRun) isPushback(index int32, n uint8) bool {
	return r.PushbackShare > 0 && r.draws.randomOf(int(index), -80-int(n)).Float64() < r.PushbackShare
}

// isIgnored reports whether attempt n of the call with the given index is a hedge that is answered by "not found". This
// answer does not end the call.
func (r *episodeRun) isIgnored(index int32, n uint8) bool {
	return n > 0 && r.NotFoundShare > 0 && !r.NotFoundEndsCall && r.draws.randomOf(int(index), -90).Float64() < r.NotFoundShare
}

// recordPushback records that an attempt of the call id is answered by pushback. It reports whether another attempt of
// the call is in flight.
func (r *episodeRun) recordPushback(id callID) bool {
	c := &r.live[id.slot]
	if p, ok := r.policy.(PushbackRecorder); ok {
		p.RecordPushback(r.now, int(c.host))
	}
	c.pushbacks++
	return c.pushbacks < c.started
}
