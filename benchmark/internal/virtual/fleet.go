package virtual

import "time"

// PushedBack is implemented by policies that want to know when a server asks for
// less: an attempt was answered by a refusal.
type PushedBack interface {
	PushedBack(now time.Duration, host int)
}

// fleet is a policy for each host: clients that know nothing of one another.
type fleet struct {
	policy  func() Policy
	clients []Policy
}

func (f *fleet) of(host int) Policy {
	for len(f.clients) <= host {
		f.clients = append(f.clients, f.policy())
	}
	return f.clients[host]
}

func (f *fleet) Begin(now time.Duration, host int) []time.Duration { return f.of(host).Begin(now, 0) }
func (f *fleet) Admit(now time.Duration, host, index int) bool {
	return f.of(host).Admit(now, 0, index)
}
func (f *fleet) Done(now time.Duration, host int, e End) { f.of(host).Done(now, 0, e) }

func (f *fleet) PushedBack(now time.Duration, host int) {
	if p, ok := f.of(host).(PushedBack); ok {
		p.PushedBack(now, 0)
	}
}

// begin returns the policy of an episode.
func (w World) begin(policy func() Policy) Policy {
	if w.Fleet {
		return &fleet{policy: policy}
	}
	return policy()
}

// ClientRate returns the requests per second that one policy sees in an open loop.
func (w World) ClientRate() float64 {
	if w.Fleet {
		return w.Rate / float64(max(w.Hosts, 1))
	}
	return w.Rate
}

// refused reports whether the server refuses the attempt.
func (r *run) refused(index int32, n uint8) bool {
	return r.Refused > 0 && r.draws.at(int(index), -80-int(n)).Float64() < r.Refused
}

// notTaken reports whether the attempt is a hedge whose answer does not end the call.
func (r *run) notTaken(index int32, n uint8) bool {
	return n > 0 && r.Absent > 0 && !r.AbsentEnds && r.draws.at(int(index), -90).Float64() < r.Absent
}

// refuse takes a refusal for an answer to the attempt, and reports whether the
// call goes on: another attempt is out.
func (r *run) refuse(me ref) bool {
	c := &r.live[me.place]
	if p, ok := r.policy.(PushedBack); ok {
		p.PushedBack(r.now, int(c.host))
	}
	c.refused++
	return c.refused < c.started
}
