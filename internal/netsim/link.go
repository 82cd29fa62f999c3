package netsim

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Counters counts the packets that were sent over one link.
type Counters struct {
	Packets int64 // number of packets sent, including lost packets
	Lost    int64 // number of packets that were lost for any reason
	Bytes   int64 // bytes of all packets sent, with IP headers in a kernel network and without headers in a memory network
	UDP     int64 // number of packets that were UDP datagrams
	TCP     int64 // number of packets that were TCP segments
}

// A flow identifies packets that a link delivers in the order in which they were sent: those with the same addresses, ports and
// protocol.
type flow struct {
	from, to netip.AddrPort // addresses and ports of sender and receiver
	proto    uint8          // IP protocol number
}

const (
	protoTCP = 6  // IP protocol number of TCP
	protoUDP = 17 // IP protocol number of UDP

	maxQueue = time.Second // maximum time that a packet waits for a link with a limited rate; packets that would wait longer are lost
	maxFlows = 4096        // number of flows from which a link deletes flows that have no packets in transit
)

// A Link carries packets from one host to another, in one direction. It is safe for concurrent use.
type Link struct {
	clock *clock // delivers the packets at their arrival times

	mu    sync.Mutex         // guards the fields that follow
	rng   *rand.Rand         // source of all random numbers of the link
	prof  Profile            // delays and losses
	bad   bool               // the link is in the bad state of Profile.Burst
	busy  time.Time          // time from which a link with a limited rate can carry the next packet
	flows map[flow]time.Time // arrival time of the last packet of each flow
	count Counters
}

// newLink returns a link with the zero Profile. The arguments seed and stream determine its random numbers.
func newLink(c *clock, seed, stream uint64) *Link {
	return &Link{clock: c, rng: rand.New(rand.NewPCG(seed, stream)), flows: make(map[flow]time.Time)}
}

// Set sets the profile for packets that are sent after Set. The link is then in the good state of Profile.Burst.
func (l *Link) Set(p Profile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prof, l.bad = p, false
}

// Counters returns the present values of the link's counters.
func (l *Link) Counters() Counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// send sends a packet of the given size in bytes, which belongs to the flow f. It returns false if the packet is lost.
// Otherwise it returns true, and deliver is called when the packet arrives.
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

// arrivalTime returns the time at which a packet that is sent at the time now arrives. It returns false if the packet is lost.
// The caller must hold l.mu.
//
// The number of random numbers that it takes does not depend on their values. Therefore links with the same seed lose the same
// packets, whatever their delays are.
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

// timerLag is the maximum time by which timers of package time expire too late: on Linux, Go rounds waiting times up to whole
// milliseconds.
const timerLag = time.Millisecond

// A clock calls functions at given times, in the order of these times, in one goroutine. It is safe for concurrent use.
type clock struct {
	mu    sync.Mutex // guards queue and seq
	queue events     // functions that were not called yet
	seq   uint64     // sequence number of the next event that is scheduled

	precise atomic.Bool // set by Network.EnablePreciseTiming

	wake chan struct{} // receives a value when a new event is the first one; has capacity 1
	quit chan struct{} // closed by close to stop the goroutine
	done chan struct{} // closed when the goroutine has ended
}

// newClock returns a clock and starts its goroutine. The caller must call close.
func newClock() *clock {
	c := &clock{wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go c.run()
	return c
}

// schedule arranges that f is called at the time t. Functions with the same time are called in the order in which they were
// scheduled.
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

// run calls the functions at their times until close is called.
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

// close stops the clock. When it returns, no function is running. It must not be called from a scheduled function.
func (c *clock) close() {
	close(c.quit)
	<-c.done
}

// An event is a function that a clock calls at a given time.
type event struct {
	at  time.Time // time at which f is called
	seq uint64    // orders events with the same time
	f   func()    // function to call
}

// events is a heap of events, which container/heap orders by time and then by sequence number.
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
