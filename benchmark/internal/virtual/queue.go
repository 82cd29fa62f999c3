package virtual

// A QueueConfig configures the servers of a simulated backend, at which attempts wait in the order of their arrival.
type QueueConfig struct {
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

// MaxQueuePerServer is the number of attempts per server, in work or queued, above which a Limiter rejects hedges.
const MaxQueuePerServer = 4

// A station is a service station of queueing theory: a queue of attempts and the servers that serve the queue.
type station struct {
	queued    []job
	head      int // index of the first job in queued
	abandoned int // jobs from head on whose attempts were cancelled
	servers   int
	idle      []*server
}

// isFull reports whether so many attempts wait or are served at the station that a hedge.Limiter would reject a hedge.
func (s *station) isFull() bool {
	working, waiting := s.servers-len(s.idle), len(s.queued)-s.head-s.abandoned
	return working+waiting > MaxQueuePerServer*s.servers
}

// A server of a simulated backend processes one attempt at a time. It takes the next from the queue of its station.
type server struct {
	station    *station
	generation uint32 // changes with the job
	job        job
}

// A job is an attempt of a call in a queue or at a server.
type job struct {
	call  callID
	index int32
	host  int16
	n     uint8
}

// newStations returns idle servers: one station if all share a queue, and otherwise a station for each server.
func (q *QueueConfig) newStations() []station {
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

// dispatchJob gives the attempt j to an idle server or to a queue. It drops a hedge that the servers' Limiter rejects.
func (r *episodeState) dispatchJob(j job) {
	s := &r.stations[0]
	if n := len(r.stations); n > 1 {
		s = &r.stations[r.random.attemptRand(int(j.index), -3-int(j.n)).IntN(n)]
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
	r.activeCalls[j.call.slot].queues[j.n] = s
}

func (r *episodeState) startJob(s *server, j job) {
	s.job = j
	s.generation++
	d := r.Model(r.random, Attempt{Request: int(j.index), N: int(j.n), Host: int(j.host), At: r.now})
	r.events.pushEvent(event{at: r.now + d, kind: jobFinished, server: s, call: callID{generation: s.generation}})
	if c := &r.activeCalls[j.call.slot]; c.generation == j.call.generation {
		c.servers[j.n], c.queues[j.n] = s, nil
	}
}

// finishJob ends the job of server s and answers its call, unless generation is old: then the job was cancelled before.
func (r *episodeState) finishJob(s *server, generation uint32) {
	if s.generation != generation {
		return
	}
	j := s.job
	r.startNextJob(s)
	if r.activeCalls[j.call.slot].generation == j.call.generation {
		r.activeCalls[j.call.slot].servers[j.n] = nil
		r.endCall(j.call, int(j.n))
	}
}

// startNextJob gives server s the next job of its queue, or leaves s idle.
func (r *episodeState) startNextJob(s *server) {
	s.generation++
	st := s.station
	for st.head < len(st.queued) {
		j := st.queued[st.head]
		if st.head++; st.head > 1024 && st.head > len(st.queued)/2 {
			st.queued = st.queued[:copy(st.queued, st.queued[st.head:])]
			st.head = 0
		}
		if r.activeCalls[j.call.slot].generation != j.call.generation {
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

// cancelLosers cancels all attempts of call c except the winner. An attempt that waits leaves its queue if
// Queue.Limited is set. A server stops working on its attempt if Queue.Cancel is set, and otherwise finishes it.
func (r *episodeState) cancelLosers(c *activeCall, winner int) {
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
