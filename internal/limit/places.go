package limit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/semaphore"
	"github.com/gohedge/hedge/observe"
)

// Places lets as many requests work at a time as a limit says, first come first served. It is safe for concurrent use. Use [Fixed] or [Found] to
// make one.
type Places struct {
	semaphore *semaphore.Semaphore
	limit     atomic.Int64 // without dips
	made      time.Time

	// Every request adds to these, in the order of its stages.
	inside, working atomic.Int64

	mu     sync.Mutex  // guards what follows
	finder *Finder     // nil: the limit is fixed
	places int         // of semaphore
	watch  *time.Timer // runs while requests wait; nil: none has waited yet
	runs   bool
}

// Fixed returns n places.
func Fixed(n int) *Places {
	p := &Places{semaphore: semaphore.New(n)}
	p.limit.Store(int64(n))
	return p
}

// Found returns as many places as a [Finder] says, about start at first.
func Found(start int) *Places {
	f := New(start)
	p := Fixed(f.Limit())
	p.finder, p.places, p.made = f, f.Limit(), time.Now()
	return p
}

// Limit returns how many places there are.
func (p *Places) Limit() int64 { return p.limit.Load() }

// Moves returns the last move and how many there were. The map is nil if the limit is fixed.
func (p *Places) Moves() (Move, map[observe.LimitReason]int64) {
	if p.finder == nil {
		return Move{}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.finder.Last(), p.finder.Moves()
}

// Come says that a request has come, and returns how many were there before it: it calls [Places.Leave] or [Places.Acquire] next.
func (p *Places) Come() (before int64) { return p.inside.Add(1) - 1 }

// Leave says that it has gone without a place.
func (p *Places) Leave() { p.inside.Add(-1) }

// Inside returns how many requests have come, and have neither left nor given their place back.
func (p *Places) Inside() int64 { return p.inside.Load() }

// Working returns how many requests have a place.
func (p *Places) Working() int64 { return p.working.Load() }

// waiting is how many have none yet, about.
func (p *Places) waiting() int { return int(max(p.inside.Load()-p.working.Load(), 0)) }

// A Place is the right to work on one request. Several may work on it, such as a handler that goes on when the one around it has returned: it is
// given back when none does any more. A nil Place is that of a request that needs none.
type Place struct {
	of      *Places
	stamp   Stamp
	holders atomic.Int32 // who work on it; 0: it was given back
	mute    atomic.Bool  // nothing is learned from it
}

// Acquire waits for a place. The error is that of ctx, if it ended before: the request has left then.
func (p *Places) Acquire(ctx context.Context) (*Place, error) {
	waited, err := p.acquire(ctx)
	if err != nil {
		p.Leave()
		return nil, err
	}
	p.working.Add(1)
	place := &Place{of: p}
	place.holders.Store(1)
	if p.finder != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		place.stamp = p.finder.Begin(time.Since(p.made), waited)
	}
	return place, nil
}

func (p *Places) acquire(ctx context.Context) (waited bool, err error) {
	if p.finder == nil || ctx.Err() != nil {
		return false, p.semaphore.Acquire(ctx)
	}
	if p.semaphore.TryAcquire() {
		return false, nil
	}
	p.look()
	return true, p.semaphore.Acquire(ctx)
}

// Join has one more work on the request, who calls [Place.Work]. It reports false if the place was given back.
func (p *Place) Join() bool {
	for {
		n := p.holders.Load()
		if n == 0 {
			return false
		}
		if p.holders.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Work has the one who has got the place, or has joined, work on the request, and lets go of the place, however that ends. Nothing is learned of
// how long the request took unless all work reports that it may be.
func (p *Place) Work(work func() (learn bool)) {
	learn := false
	if p != nil {
		defer func() { p.leave(learn) }()
	}
	learn = work()
}

func (p *Place) leave(learn bool) {
	if !learn {
		p.mute.Store(true)
	}
	for {
		n := p.holders.Load()
		if n == 0 {
			return
		}
		if p.holders.CompareAndSwap(n, n-1) {
			if n == 1 {
				p.giveBack(!p.mute.Load())
			}
			return
		}
	}
}

// Release gives the place back, whoever works on, unless that was done. Nothing is learned of how long the work took.
func (p *Place) Release() {
	if p.holders.Swap(0) > 0 {
		p.giveBack(false)
	}
}

func (p *Place) giveBack(learn bool) {
	p.of.working.Add(-1)
	p.of.inside.Add(-1)
	if p.of.finder != nil {
		p.of.learn(p.stamp, learn)
	}
	p.of.semaphore.Release()
}

func (p *Places) learn(s Stamp, learn bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finder.End(time.Since(p.made), s, p.waiting(), learn)
	p.resize()
}

// look has the Finder woken up for as long as requests wait.
func (p *Places) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs {
		return
	}
	p.runs = true
	p.finder.Wait(time.Since(p.made))
	p.resize()
	if p.watch == nil {
		p.watch = time.AfterFunc(p.finder.again(), p.wake)
	} else {
		p.watch.Reset(p.finder.again())
	}
}

func (p *Places) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	again := p.finder.Wake(time.Since(p.made), p.waiting())
	p.resize()
	if p.runs = p.waiting() > 0; p.runs {
		p.watch.Reset(again)
	}
}

// resize makes as many places as the Finder says. The caller holds mu.
func (p *Places) resize() {
	p.limit.Store(int64(p.finder.settled()))
	if n := p.finder.Limit(); n != p.places {
		p.places = n
		p.semaphore.Resize(n)
	}
}
