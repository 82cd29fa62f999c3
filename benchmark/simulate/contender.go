package main

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/cputime"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A contender is a strategy in a run over sockets, with a client and a server of its own.
type contender struct {
	strategy   strategy
	protocol   string
	network    *networkConfig // nil: loopback
	fake       bool           // time
	simulation virtual.Simulation
	seed       uint64
	hidden     bool // runs only because the best static delays are computed from its calls

	config  clientSetup
	backend *backend // from open to close
	request sendFunc

	watch  stopwatch
	calls  []latency.Call // by request
	done   int            // of them
	used   time.Duration  // processor time
	denied int            // hedges, by clients that are closed
	opened int            // connections, to servers that are closed
	worked int            // attempts, by closed servers with queues
	task   *progressTask
}

// newContender starts a client and a server of strategy s, over protocol http or grpc, for the traffic of w in the given
// run. requests is the number of calls. rate is the requests per second, for strategies that must be given this rate.
func newContender(s strategy, protocol string, run scenarioRun, w virtual.Simulation, requests int, rate float64) (*contender, error) {
	c := &contender{
		strategy: s, protocol: protocol, network: run.scenario.network, fake: run.fake, simulation: s.withLimiters(w), seed: run.seed,
		calls: make([]latency.Call, requests),
	}
	c.config = clientSetup{clock: c.watch.read, sent: &attemptCounter{attempts: make([]atomic.Int32, requests)}}
	if s.needsRate {
		c.config.rate = rate
	}
	return c, c.startEpisode()
}

// requestsPerEpisode returns how many requests a client sends before a new one replaces it. It is the number of all
// requests, except in scenarios about new clients.
func (c *contender) requestsPerEpisode() int {
	if c.simulation.Episodes > 0 {
		return c.simulation.Requests
	}
	return len(c.calls)
}

// startEpisode starts a new server and a new client, for an episode: a part of the requests, or in most scenarios all.
func (c *contender) startEpisode() error {
	var at *serverLocation
	var err error
	if c.network != nil {
		at, err = c.network.newSimulatedLocation(c.protocol, c.done/c.requestsPerEpisode(), c.watch.read)
		if err == nil && !c.fake {
			at.net.EnablePreciseTiming()
		}
	} else {
		at, err = newLoopbackLocation()
	}
	if err != nil {
		return err
	}
	c.backend = startBackend(at, c.protocol, c.simulation, c.strategy, c.seed, len(c.calls), c.requestsPerEpisode())
	c.config.denied, c.config.closeClient = func() int { return 0 }, func() {}
	if c.network != nil {
		c.config.serverLocation = at
	}
	if c.request, err = c.strategy.newClient(c.protocol, at, &c.config); err != nil {
		c.endEpisode()
	}
	return err
}

// endEpisode stops the client and the server of the episode. It adds their numbers of denied hedges, connections and
// attempts to c. If no episode runs, it does nothing.
func (c *contender) endEpisode() {
	if c.backend == nil {
		return
	}
	c.denied += c.config.denied()
	c.opened += int(c.backend.acceptedConns.Load())
	c.worked += int(c.backend.processed.Load())
	c.config.closeClient()
	for _, stop := range c.backend.stops {
		stop()
	}
	c.backend.serverLocation.closeNetwork()
	c.backend = nil
}

// sendRound sends the next n requests of the contender, while the others wait. When an episode has all its requests,
// the next one begins, with a new client and server. arrivals has the random times between requests in an open loop.
func (c *contender) sendRound(ctx context.Context, n int, arrivals *virtual.RandomSource) error {
	runtime.GC() // each contender pays for its own garbage
	to := min(c.done+n, len(c.calls))
	for c.done < to && ctx.Err() == nil {
		if c.done > 0 && c.done%c.requestsPerEpisode() == 0 {
			c.endEpisode()
			if err := c.startEpisode(); err != nil {
				return err
			}
		}
		at, stop := c.done%c.requestsPerEpisode(), c.requestsPerEpisode()
		if c.network != nil && at < c.network.freeze {
			stop = c.network.freeze
		}
		c.sendUntil(ctx, min(to, c.done-at+stop), arrivals)
	}
	return nil
}

// sendUntil sends requests until c has sent total requests since the start of the run. It adds their processor time to
// c.used.
func (c *contender) sendUntil(ctx context.Context, total int, arrivals *virtual.RandomSource) {
	before, _ := cputime.Process()
	c.watch.start()
	defer func() {
		c.watch.stop()
		after, _ := cputime.Process()
		c.used += after - before
	}()
	if w := &c.simulation; w.Episodes > 0 && c.done%w.Requests == 0 {
		c.sendRequest(c.done) // alone, for clients to have one connection, if they can share it
		c.done++
	}
	from := c.done
	load := lab.Load{Workers: c.simulation.Workers, Interarrival: func(i int) time.Duration { return arrivals.InterarrivalTime(from+i, c.simulation.Rate) }}
	c.done += load.Run(ctx, total-from, func(i int) { c.sendRequest(from + i) })
}

// sendRequest sends the request with the given ID and stores its latency and outcome in c.calls. Interrupting the
// benchmark does not cancel it.
func (c *contender) sendRequest(id int) {
	call := latency.Call{Index: int32(id % c.requestsPerEpisode()), Start: c.watch.read()}
	ctx := context.Background()
	if c.network != nil {
		ctx = context.WithValue(ctx, requestIDKey{}, id)
		if n := len(c.network.rtts); n > 0 {
			call.Host = int16(id / c.requestsPerEpisode() % n)
		}
	}
	if c.simulation.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.simulation.Timeout)
		defer cancel()
	}
	start := time.Now()
	attempt, err := c.request(ctx, id)
	call.Latency = time.Since(start)
	if won := c.config.sent.winners; won != nil {
		attempt = int(won[id].Load())
	}
	call.Winner = int8(min(attempt, math.MaxInt8))
	if err != nil {
		call.Winner = -1
	}
	c.calls[id] = call
}

// finishedCalls returns the calls of the strategy so far, each with the number of its hedges.
func (c *contender) finishedCalls() []latency.Call {
	calls := c.calls[:c.done]
	for i := range calls {
		calls[i].Hedges = uint8(max(c.config.sent.attempts[i].Load()-1, 0))
	}
	return calls
}

// toTrial returns the measurements of c in scenario sc, for the results. The server and the client must have stopped.
// protocol is the engine's name, http or grpc.
func (c *contender) toTrial(protocol string, sc *scenario, seed uint64) trial {
	t := trial{engine: protocol, scenario: sc, strategy: c.strategy.name, seed: seed, calls: c.finishedCalls(), denied: c.denied}
	t.conns = &c.opened
	if c.simulation.Queue != nil {
		each := roundToFourDecimals(float64(c.worked) / float64(max(c.done, 1)))
		t.sent = &each
	}
	if _, known := cputime.Process(); known && c.done > 0 {
		each := roundToFourDecimals(float64(c.used.Microseconds()) / float64(c.done))
		t.cpu = &each
	}
	return t
}

// A stopwatch measures the time that a strategy runs, without the pauses in which others run. The zero value is stopped at 0.
type stopwatch struct {
	mu    sync.Mutex
	ran   time.Duration
	since time.Time // zero: stopped
}

func (w *stopwatch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = time.Now()
}

func (w *stopwatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran += time.Since(w.since)
	w.since = time.Time{}
}

func (w *stopwatch) read() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return w.ran
	}
	return w.ran + time.Since(w.since)
}
