package virtual

// A Queue is where attempts wait for a server, first come first served.
type Queue struct {
	Servers int
	// Shared servers take from one queue. Otherwise each has its own, and
	// attempts are spread among them at random.
	Shared bool
	// Cancel says that servers stop working on what the client has cancelled.
	// Without it, a loser occupies a server for as long as a winner does.
	Cancel bool
	// Limited says that servers have a hedge.Limiter: what the client has cancelled
	// leaves its line, though a server that has begun goes on unless Cancel is set; and a
	// hedge is turned away while more than [Full] attempts per server are at work or in line.
	Limited bool
}

// Full is how many attempts per server a hedge.Limiter works on, or lets wait, before it
// turns hedges away.
const Full = 4

// station is a queue and the servers that take from it.
type station struct {
	waiting []job
	head    int // of waiting
	gone    int // of those from head on, how many have left the line
	servers int
	idle    []*slot
}

// full reports whether a Limiter would turn a hedge away.
func (s *station) full() bool {
	working, inLine := s.servers-len(s.idle), len(s.waiting)-s.head-s.gone
	return working+inLine > Full*s.servers
}

// slot is a server.
type slot struct {
	station *station
	gen     uint32 // changes when the job does
	job     job
}

type job struct {
	call  ref
	index int32
	host  int16
	n     uint8
}

func (q *Queue) stations() []station {
	count, servers := q.Servers, 1
	if q.Shared {
		count, servers = 1, q.Servers
	}
	all := make([]station, count)
	for i := range all {
		all[i].servers = servers
		for range servers {
			all[i].idle = append(all[i].idle, &slot{station: &all[i]})
		}
	}
	return all
}

// join puts a job in line, or turns it away.
func (r *run) join(j job) {
	s := &r.stations[0]
	if n := len(r.stations); n > 1 {
		s = &r.stations[r.draws.at(int(j.index), -3-int(j.n)).IntN(n)]
	}
	if r.Queue.Limited && j.n > 0 && s.full() {
		return // the call has lost nothing but a hedge
	}
	if n := len(s.idle); n > 0 {
		free := s.idle[n-1]
		s.idle = s.idle[:n-1]
		r.serve(free, j)
		return
	}
	s.waiting = append(s.waiting, j)
	r.live[j.call.place].waits[j.n] = s
}

func (r *run) serve(s *slot, j job) {
	s.job = j
	s.gen++
	d := r.Model(r.draws, Attempt{Request: int(j.index), N: int(j.n), Host: int(j.host), At: r.now})
	r.events.push(event{at: r.now + d, kind: served, slot: s, call: ref{gen: s.gen}})
	if c := &r.live[j.call.place]; c.gen == j.call.gen {
		c.served[j.n], c.waits[j.n] = s, nil
	}
}

// leave is called when the job in s is done, unless it was cancelled before.
func (r *run) leave(s *slot, gen uint32) {
	if s.gen != gen {
		return
	}
	j := s.job
	r.release(s)
	if r.live[j.call.place].gen == j.call.gen {
		r.live[j.call.place].served[j.n] = nil
		r.end(j.call, int(j.n))
	}
}

// release gives s its next job.
func (r *run) release(s *slot) {
	s.gen++
	st := s.station
	for st.head < len(st.waiting) {
		j := st.waiting[st.head]
		if st.head++; st.head > 1024 && st.head > len(st.waiting)/2 {
			st.waiting = st.waiting[:copy(st.waiting, st.waiting[st.head:])]
			st.head = 0
		}
		if r.live[j.call.place].gen != j.call.gen {
			if r.Queue.Limited {
				st.gone--
			}
			if r.Queue.Limited || r.Queue.Cancel {
				continue
			}
		}
		r.serve(s, j)
		return
	}
	st.idle = append(st.idle, s)
}

// over takes the attempts of a call that ends out of their lines and from their servers,
// as far as those notice.
func (r *run) over(c *live, winner int) {
	if r.Queue.Limited {
		for n, st := range c.waits[:c.started] {
			if st != nil {
				st.gone++
				c.waits[n] = nil
			}
		}
	}
	if r.Queue.Cancel {
		for n, s := range c.served[:c.started] {
			if s != nil && n != winner {
				c.served[n] = nil
				r.release(s)
			}
		}
	}
}
