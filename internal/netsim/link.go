package netsim

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Counters count the packets that were sent over a link.
type Counters struct {
	Packets int64 // packets sent, including lost packets
	Lost    int64 // packets that were lost for any reason
	Bytes   int64 // of Packets, with headers on a kernel network and without on a memory one
	UDP     int64 // packets that were UDP datagrams
	TCP     int64 // packets that were TCP segments
}

// A flow identifies packets whose order a link preserves.
type flow struct {
	from, to netip.AddrPort
	proto    uint8
}

const (
	protoTCP = 6
	protoUDP = 17

	maxQueue = time.Second // maximum time that a packet waits because of Rate
	maxFlows = 4096        // number of flows after which a link deletes flows without packets in transit
)

// A Link carries packets from one host to another.
type Link struct {
	clock *clock

	mu    sync.Mutex // guards the fields below
	rng   *rand.Rand
	prof  Profile
	bad   bool               // state of the burst model
	busy  time.Time          // time at which a link with a Rate is free again
	flows map[flow]time.Time // arrival of the last packet, by flow
	count Counters
}

func newLink(c *clock, seed, stream uint64) *Link {
	return &Link{clock: c, rng: rand.New(rand.NewPCG(seed, stream)), flows: make(map[flow]time.Time)}
}

// Set sets the profile for packets that are sent from now on.
func (l *Link) Set(p Profile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prof, l.bad = p, false
}

// Counters returns the counters of the link.
func (l *Link) Counters() Counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// send sends a packet. If it reports true, deliver will be called when the packet arrives. It reports false if the packet is lost.
func (l *Link) send(f flow, size int, deliver func()) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count.Packets++
	l.count.Bytes += int64(size)
	switch f.proto {
	case protoUDP:
		l.count.UDP++
	case protoTCP:
		l.count.TCP++
	}
	at, ok := l.arrivalTime(now, f, size)
	if !ok {
		l.count.Lost++
		return false
	}
	l.clock.schedule(at, deliver)
	return true
}

// arrivalTime returns the time at which a packet arrives, or false if it is lost. The number of random numbers that it draws does not
// depend on their values. So links with the same seed lose the same packets whatever their delays are. The caller holds l.mu.
func (l *Link) arrivalTime(now time.Time, f flow, size int) (time.Time, bool) {
	p := &l.prof
	loss, reorder := l.rng.Float64() < p.Loss, l.rng.Float64() < p.Reorder
	var delay time.Duration
	if p.Delay != nil {
		delay = max(p.Delay(l.rng), 0)
	}
	if b := p.Burst; b != nil {
		turn, hit := b.GoodToBad, b.LossGood
		if l.bad {
			turn, hit = b.BadToGood, b.LossBad
		}
		if l.rng.Float64() < hit {
			loss = true
		}
		if l.rng.Float64() < turn {
			l.bad = !l.bad
		}
	}
	at := now
	if p.Rate > 0 {
		if l.busy.Before(now) {
			l.busy = now
		}
		if l.busy.Sub(now) >= maxQueue {
			loss = true
		} else {
			l.busy = l.busy.Add(time.Duration(float64(size) / float64(p.Rate) * float64(time.Second)))
		}
		at = l.busy
	}
	if loss || p.BlackHole {
		return at, false
	}
	at = at.Add(delay)
	if reorder {
		return at, true
	}
	if last := l.flows[f]; at.Before(last) {
		at = last
	}
	if len(l.flows) >= maxFlows {
		for k, last := range l.flows {
			if last.Before(now) {
				delete(l.flows, k)
			}
		}
	}
	l.flows[f] = at
	return at, true
}

// timerLag is the maximum delay of the timers of package time: on Linux, Go rounds waiting times up to whole milliseconds.
const timerLag = time.Millisecond

// A clock calls functions at given times, in order, in one goroutine.
type clock struct {
	mu    sync.Mutex // guards queue and seq
	queue events
	seq   uint64 // sequence number of the next event

	precise atomic.Bool // see Network.Precise

	wake chan struct{} // the first event changed
	quit chan struct{}
	done chan struct{}
}

func newClock() *clock {
	c := &clock{wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go c.run()
	return c
}

// schedule arranges that f is called at t. Functions with the same time are called in the order in which they were scheduled.
func (c *clock) schedule(t time.Time, f func()) {
	c.mu.Lock()
	e := event{t, c.seq, f}
	c.seq++
	heap.Push(&c.queue, e)
	first := c.queue[0].seq == e.seq
	c.mu.Unlock()
	if first {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

func (c *clock) run() {
	defer close(c.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		c.mu.Lock()
		wait := time.Hour
		for len(c.queue) > 0 {
			if wait = time.Until(c.queue[0].at); wait > 0 {
				break
			}
			f := heap.Pop(&c.queue).(event).f
			c.mu.Unlock()
			f()
			c.mu.Lock()
			wait = time.Hour
		}
		c.mu.Unlock()
		if c.precise.Load() {
			if wait -= timerLag; wait <= 0 {
				sleep(timerLag + wait)
				continue
			}
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-c.wake:
		case <-c.quit:
			return
		}
	}
}

// close stops the clock, and returns when no function is running any more. It must not be called from a scheduled function.
func (c *clock) close() {
	close(c.quit)
	<-c.done
}

type event struct {
	at  time.Time
	seq uint64
	f   func()
}

type events []event

func (q events) Len() int      { return len(q) }
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q events) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].seq < q[j].seq
	}
	return q[i].at.Before(q[j].at)
}
func (q *events) Push(x any) { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return e
}
