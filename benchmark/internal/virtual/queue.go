package virtual

// A Queue has the servers of a backend in a simulation. Attempts wait for a server, first come, first served.
type Queue struct {
	Servers int
	// Shared servers take jobs from one queue. Otherwise each server has a queue of its own, and each attempt goes to a
	// random server.
	Shared bool
	// Cancel makes servers stop working on cancelled attempts. Without it, a loser occupies a server for as long as a
	// winner does.
	Cancel bool
	// Limited servers have a hedge.Limiter. A cancelled attempt leaves the queue, but a server that has started it goes
	// on unless Cancel is set. A hedge is rejected while more than [MaxQueuePerServer] attempts per server are in work
	// or queued.
	Limited bool
}

// MaxQueuePerServer is the number of attempts per server, in work or queued, above which a hedge.Limiter rejects hedges.
const MaxQueuePerServer = 4

// A station is a queue of attempts with the servers that work on them.
type station struct {
	queued    []job
	head      int // index of the first job in queued
	abandoned int // jobs from head on whose attempts were cancelled
	servers   int
	idle      []*server
}

// isFull reports whether a hedge.Limiter in front of the servers would reject a hedge.
func (s *station) isFull() bool {
	working, waiting := s.servers-len(s.idle), len(s.queued)-s.head-s.abandoned
	return working+waiting > MaxQueuePerServer*s.servers
}

// A server works on one attempt at a time, and takes the next one from its station.
type server struct {
	station    *station
	generation uint32 // changes when the job does
	job        job
}

// A job is an attempt that a server works on, or that waits for a server.
type job struct {
	call  callID
	index int32
	host  int16
	n     uint8
}

// newStations returns the queues of a backend with idle servers: one queue if the servers share it, and otherwise one
// for each server.
func (q *Queue) newStations() []station {
	count, servers := q.Servers, 1
	if q.Shared {
		count, servers = 1, q.Servers
	}
	all := make([]station, count)
	for i := range all {
		all[i].servers = servers
		for range servers {
			all[i].idle = append(all[i].idle, &server{station: &all[i]})
		}
	}
	return all
}

// enqueueJob gives an attempt to an idle server, or appends it to a queue. It drops a hedge that a hedge.Limiter would
// reject.
func (r *episodeRun) enqueueJob(j job) {
	s := &r.stations[0]
	if n := len(r.stations); n > 1 {
		s = &r.stations[r.draws.randomOf(int(j.index), -3-int(j.n)).IntN(n)]
	}
	if r.Queue.Limited && j.n > 0 && s.isFull() {
		return // the call goes on without this hedge
	}
	if n := len(s.idle); n > 0 {
		free := s.idle[n-1]
		s.idle = s.idle[:n-1]
		r.startJob(free, j)
		return
	}
	s.queued = append(s.queued, j)
	r.live[j.call.slot].queues[j.n] = s
}

// startJob makes server s work on the attempt j. It schedules the end of the work.
func (r *episodeRun) startJob(s *server, j job) {
	s.job = j
	s.generation++
	d := r.Model(r.draws, Attempt{Request: int(j.index), N: int(j.n), Host: int(j.host), At: r.now})
	r.events.pushEvent(event{at: r.now + d, kind: serverDone, server: s, call: callID{generation: s.generation}})
	if c := &r.live[j.call.slot]; c.generation == j.call.generation {
		c.servers[j.n], c.queues[j.n] = s, nil
	}
}

// finishJob ends the work of server s on an attempt, which answers the call. generation identifies the attempt: if it
// was cancelled before, nothing happens.
func (r *episodeRun) finishJob(s *server, generation uint32) {
	if s.generation != generation {
		return
	}
	j := s.job
	r.startNextJob(s)
	if r.live[j.call.slot].generation == j.call.generation {
		r.live[j.call.slot].servers[j.n] = nil
		r.endCall(j.call, int(j.n))
	}
}

// startNextJob makes server s work on the next attempt in its queue. If there is none, the server becomes idle.
func (r *episodeRun) startNextJob(s *server) {
	s.generation++
	st := s.station
	for st.head < len(st.queued) {
		j := st.queued[st.head]
		if st.head++; st.head > 1024 && st.head > len(st.queued)/2 {
			st.queued = st.queued[:copy(st.queued, st.queued[st.head:])]
			st.head = 0
		}
		if r.live[j.call.slot].generation != j.call.generation {
			if r.Queue.Limited {
				st.abandoned--
			}
			if r.Queue.Limited || r.Queue.Cancel {
				continue
			}
		}
		r.startJob(s, j)
		return
	}
	st.idle = append(st.idle, s)
}

// cancelAttempts cancels the attempts of a call that ends, except the winner. They leave their queues and servers as
// far as the Queue supports that.
func (r *episodeRun) cancelAttempts(c *liveCall, winner int) {
	if r.Queue.Limited {
		for n, st := range c.queues[:c.started] {
			if st != nil {
				st.abandoned++
				c.queues[n] = nil
			}
		}
	}
	if r.Queue.Cancel {
		for n, s := range c.servers[:c.started] {
			if s != nil && n != winner {
				c.servers[n] = nil
				r.startNextJob(s)
			}
		}
	}
}
