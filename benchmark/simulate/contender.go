package main

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/cputime"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/internal/race"
)

// A contender is a strategy with a client, connections and a server of its own.
type contender struct {
	strategy strategy
	protocol string
	lab      *lab // nil: loopback
	fake     bool // time
	world    virtual.World
	seed     uint64
	rate     float64 // requests per second, for strategies that are given it
	hidden   bool    // runs only because oracles need its calls

	// From open to close.
	backend *backend
	request func(ctx context.Context, id int) (attempt int, err error)
	refused func() int  // hedges
	shut    func()      // closes the client's connections
	style   *race.Style // how requests are raced after delays; nil: the client hedges by itself

	sent   []atomic.Int32  // attempts, by request
	won    []atomic.Int32  // the winning attempt, by request; nil: the server says which it is
	delays []time.Duration // before each hedge, where style is set; written between rounds
	watch  stopwatch
	calls  []virtual.Call // by request
	done   int            // of them
	used   time.Duration  // processor time
	denied int            // hedges, by clients that are closed
	opened int            // connections, to servers that are closed
	task   *task
}

// newContender starts a strategy's server and client. rate is the true rate of
// requests per second, for strategies that are given it.
func newContender(s strategy, protocol string, j job, w virtual.World, requests int, rate float64) (*contender, error) {
	c := &contender{
		strategy: s, protocol: protocol, lab: j.scenario.lab, fake: j.fake, world: w, seed: j.seed, rate: rate,
		sent: make([]atomic.Int32, requests), calls: make([]virtual.Call, requests),
	}
	return c, c.open()
}

// episode returns the number of requests that one client makes.
func (c *contender) episode() int {
	if c.world.Episodes > 0 {
		return c.world.Requests
	}
	return len(c.calls)
}

// open starts a server and a client.
func (c *contender) open() error {
	var at *site
	var err error
	if c.lab != nil {
		at, err = c.lab.site(c.protocol, c.done/c.episode(), c.watch.read)
		if err == nil && !c.fake {
			at.net.Precise()
		}
	} else {
		at, err = loopbackSite()
	}
	if err != nil {
		return err
	}
	c.backend, c.refused, c.shut = newBackend(c, at), func() int { return 0 }, func() {}
	if c.protocol == "grpc" {
		err = c.connectGRPC()
	} else {
		err = c.connectHTTP()
	}
	if err != nil {
		c.close()
		return err
	}
	if c.style != nil {
		c.schedule()
	}
	return nil
}

// close ends what open started. It does nothing if that has ended already.
func (c *contender) close() {
	if c.backend == nil {
		return
	}
	c.denied += c.refused()
	c.opened += int(c.backend.opened.Load())
	c.shut()
	c.backend.stop()
	c.backend.site.close()
	c.backend = nil
}

// round sends the next n requests, with a new client for each episode.
func (c *contender) round(ctx context.Context, n int, arrivals *virtual.Draws) error {
	runtime.GC() // each contender pays for its own garbage
	to := min(c.done+n, len(c.calls))
	for c.done < to && ctx.Err() == nil {
		if c.done > 0 && c.done%c.episode() == 0 {
			c.close()
			if err := c.open(); err != nil {
				return err
			}
		}
		at, stop := c.done%c.episode(), c.episode()
		if c.lab != nil && at < c.lab.freeze {
			stop = c.lab.freeze
		}
		c.play(ctx, min(to, c.done-at+stop), arrivals)
	}
	return nil
}

// play sends requests until so many are done: from as many callers as there are
// workers, or, if there are none, at random times at the world's rate.
func (c *contender) play(ctx context.Context, to int, arrivals *virtual.Draws) {
	before, _ := cputime.Used()
	c.watch.start()
	defer func() {
		c.watch.stop()
		after, _ := cputime.Used()
		c.used += after - before
	}()
	if w := &c.world; w.Episodes > 0 && c.done%w.Requests == 0 {
		c.call(c.done) // alone, for clients to have one connection, if they can share it
		c.done++
	}
	from := c.done
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.world.Workers == 0 {
		due := time.Now()
		for id := from; id < to && ctx.Err() == nil; id++ {
			due = due.Add(arrivals.Gap(id, c.world.Rate))
			time.Sleep(time.Until(due))
			wg.Go(func() { c.call(id) })
			c.done = id + 1
		}
		return
	}
	var next atomic.Int64
	next.Store(int64(from))
	for range c.world.Workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				id := int(next.Add(1)) - 1
				if id >= to {
					return
				}
				c.call(id)
			}
		})
	}
	wg.Wait()
	c.done = min(int(next.Load()), to)
}

// call makes request id and notes what its caller saw. It is not interrupted:
// the request would count as a failure.
func (c *contender) call(id int) {
	call := virtual.Call{Index: int32(id % c.episode()), Start: c.watch.read()}
	ctx := context.Background()
	if c.lab != nil {
		ctx = context.WithValue(ctx, requestKey{}, id)
		if n := len(c.lab.rtts); n > 0 {
			call.Host = int16(id / c.episode() % n)
		}
	}
	if c.world.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.world.Timeout)
		defer cancel()
	}
	start := time.Now()
	attempt, err := c.request(ctx, id)
	call.Latency = time.Since(start)
	if c.won != nil {
		attempt = int(c.won[id].Load())
	}
	call.Winner = int8(min(attempt, math.MaxInt8))
	if err != nil {
		call.Winner = -1
	}
	c.calls[id] = call
}

// finished returns the calls that were made.
func (c *contender) finished() []virtual.Call {
	calls := c.calls[:c.done]
	for i := range calls {
		calls[i].Hedges = uint8(max(c.sent[i].Load()-1, 0))
	}
	return calls
}

// trial returns the results of the contender, which must be closed.
func (c *contender) trial(protocol string, sc scenario, seed uint64) trial {
	t := trial{engine: protocol, scenario: sc, strategy: c.strategy.name, seed: seed, calls: c.finished(), refused: c.denied}
	t.conns = &c.opened
	if _, known := cputime.Used(); known && c.done > 0 {
		each := round(float64(c.used.Microseconds()) / float64(c.done))
		t.cpu = &each
	}
	return t
}
