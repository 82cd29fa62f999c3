package netsim

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Counters count what a link did since it was made.
type Counters struct {
	Packets int64 // given to the link, lost ones included
	Lost    int64 // for any reason
	Bytes   int64 // of Packets, with headers on a kernel network and without on a memory one
	UDP     int64 // packets that were UDP datagrams
	TCP     int64 // packets that were TCP segments
}

// flow is a sequence of packets that keeps its order on a link.
type flow struct {
	from, to netip.AddrPort
	proto    uint8
}

const (
	protoTCP = 6
	protoUDP = 17

	maxQueue = time.Second // the longest that a packet waits for a limited rate
	maxFlows = 4096        // that a link remembers before it forgets those without packets under way
)

// Link carries packets in one direction.
type Link struct {
	clock *clock

	mu    sync.Mutex // guards the fields below
	rng   *rand.Rand
	prof  Profile
	bad   bool               // the burst model's state
	busy  time.Time          // when a limited link is free again
	flows map[flow]time.Time // when the last packet of a flow arrives
	count Counters
}

func newLink(c *clock, seed, stream uint64) *Link {
	return &Link{clock: c, rng: rand.New(rand.NewPCG(seed, stream)), flows: make(map[flow]time.Time)}
}

// Set changes what happens to packets from now on. Those under way are not affected.
func (l *Link) Set(p Profile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prof, l.bad = p, false
}

// Counters returns what the link did so far.
func (l *Link) Counters() Counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// send has deliver called when the packet arrives, or reports false if it is lost.
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
	at, ok := l.arrival(now, f, size)
	if !ok {
		l.count.Lost++
		return false
	}
	l.clock.at(at, deliver)
	return true
}

// arrival decides whether a packet arrives, and when. How many random numbers it
// draws does not depend on their values, so that links of one seed lose the same
// packets whatever their delays are. The caller holds l.mu.
func (l *Link) arrival(now time.Time, f flow, size int) (time.Time, bool) {
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

// timerLag is how late the timers of package time may be: on Linux, Go rounds waits
// up to whole milliseconds.
const timerLag = time.Millisecond

// clock calls functions at their times, in order, from one goroutine.
type clock struct {
	mu    sync.Mutex // guards queue and seq
	queue events
	seq   uint64 // of the next event

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

// at has f called at t. Events of one time are called in the order they came in.
func (c *clock) at(t time.Time, f func()) {
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

// close returns once no event is called any more. It must not be called from an event.
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
