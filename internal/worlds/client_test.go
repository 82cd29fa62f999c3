package worlds_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge"
)

// A clientHandle has the operations of clients of all protocols.
type clientHandle interface {
	SetEnabled(on bool)
	Reset(host, route string) int
	Export(io.Writer) error
	Import(io.Reader) error
	Update(func(*hedge.Config)) error
}

// callAll makes all calls at the same time; each call waits for its own start. It returns when all have ended, also by
// the end of their goroutine. It sets giveUp to fire when that takes too long.
func callAll[C any](calls []C, giveUp *time.Timer, call func(i int, c C)) {
	var wg sync.WaitGroup
	for i, c := range calls {
		wg.Go(func() { call(i, c) })
	}
	giveUp.Reset(stuckAfter)
	wg.Wait()
	giveUp.Stop()
}

// memoize returns play with a cache: each act is played once.
func memoize[P any](play func(act int) P) func(act int) P {
	plays := make(map[int]P)
	return func(act int) P {
		if _, known := plays[act]; !known {
			plays[act] = play(act)
		}
		return plays[act]
	}
}

// applyChange changes the client.
func applyChange(h clientHandle, what string) {
	switch what {
	case "off":
		h.SetEnabled(false)
		time.Sleep(30 * time.Second)
		h.SetEnabled(true)
	case "reset":
		h.Reset("", "")
	case "import":
		var b bytes.Buffer
		_ = h.Export(&b)
		_ = h.Import(&b)
	case "update":
		_ = h.Update(func(c *hedge.Config) { c.MaxHedges, c.Linger = 1, 0 })
	case "closeIdle":
		if t, ok := h.(*hedge.Transport); ok {
			t.CloseIdleConnections()
		}
	}
}

// A latencyMemory has the latencies that a client can have learned, of any percentile. It is at most the longest wait
// of a caller for an answer or until the end of its patience.
type latencyMemory struct {
	mu  sync.Mutex // guards all
	all []callerWait
}

// A callerWait is the time at which a caller stopped waiting, and for how long the caller had waited.
type callerWait struct{ end, took time.Duration }

func (m *latencyMemory) addWait(end, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, callerWait{end, took})
}

// longestUntil returns the longest latency that can have been learned until a time.
func (m *latencyMemory) longestUntil(until time.Duration) (longest time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.all {
		if w.end <= until {
			longest = max(longest, w.took)
		}
	}
	return longest
}

// timeTolerance is the time by which an event may be later than with the plain client.
const timeTolerance = 10 * ms

// maxHoldTime returns the longest time for which rule R2 holds a failure while hedges are in flight: the usual latency
// if it was known when the failure came, else the latency of the failure.
func maxHoldTime(took, usual time.Duration, known bool) time.Duration {
	learned := usual + usual/10 // a sketch is inexact
	if !known || learned == 0 {
		learned = max(learned, took)
	}
	return min(max(10*ms, learned), max(time.Second, took))
}

// An attemptRecord is an attempt that a server has received.
type attemptRecord struct {
	number     int
	endpoint   string        // name of the endpoint that received it
	at         time.Duration // since the play began
	failedHere time.Duration // when the server failed it in a way in which another endpoint may not; 0: it did not
}

// maxFailoverTime returns for how much longer rule R2 holds a failure that came after took, for hedges that failures start at other
// endpoints, one after another. Of the attempts that may have failed, unseen have not reached a server.
func maxFailoverTime(all []attemptRecord, unseen int, took time.Duration) time.Duration {
	failures := unseen
	for _, a := range all {
		if a.failedHere > 0 {
			failures++
		}
	}
	return time.Duration(failures) * max(time.Second, took)
}

// startedByFailure reports whether a failure of an earlier attempt may have started the attempt a. The endpoint of a must be
// new for the call. An earlier attempt must have failed at most late before a arrived, or must not have arrived at all.
func startedByFailure(all []attemptRecord, a attemptRecord, late time.Duration) bool {
	earlier, started := 0, false
	for _, other := range all {
		if other.number >= a.number {
			continue
		}
		if other.endpoint == a.endpoint {
			return false
		}
		earlier++
		started = started || other.failedHere > 0 && a.at >= other.failedHere && a.at <= other.failedHere+late
	}
	return started || earlier < a.number
}

// maxHedgeCount returns the largest number of hedges by rule R5, for any number of hosts, methods and keys.
func maxHedgeCount(share float64, calls int) float64 {
	return share*float64(calls) + max(20, 200*share) + 3
}

// endsBy reports whether a deadline (0: none) or a cancellation (-1: never) is before t or at about t.
func endsBy(deadline, cancel, t time.Duration) bool {
	return deadline > 0 && t+timeTolerance >= deadline || cancel >= 0 && t+timeTolerance >= cancel
}

// A countingObserver counts attempts and calls.
type countingObserver struct {
	hedge.NopObserver
	started, done, requests, refused atomic.Int64
}

func (c *countingObserver) AttemptStart(context.Context, hedge.KeyInfo, hedge.AttemptInfo) {
	c.started.Add(1)
}
func (c *countingObserver) AttemptDone(context.Context, hedge.KeyInfo, hedge.AttemptResult) {
	c.done.Add(1)
}
func (c *countingObserver) RequestDone(context.Context, hedge.KeyInfo, hedge.RequestResult) {
	c.requests.Add(1)
}

// Denied counts hedges that started and were not sent, because they could not be prepared.
func (c *countingObserver) Denied(_ context.Context, _ hedge.KeyInfo, r hedge.Reason) {
	if r == hedge.DeniedNotReady {
		c.refused.Add(1)
	}
}

// findInconsistency returns the counters that contradict each other after a number of calls, or "".
func (c *countingObserver) findInconsistency(s hedge.StatsSnapshot, calls int) string {
	started, done, requests := c.started.Load(), c.done.Load(), c.requests.Load()
	switch {
	case s.HedgeWins+s.PrimaryWins > s.HedgedRequests, s.HedgedRequests > s.HedgesSent+s.Resumes:
		return fmt.Sprintf("a part is larger than its whole: %+v", s)
	case int(s.TotalRequests) != calls:
		return fmt.Sprintf("%d calls are counted of %d", s.TotalRequests, calls)
	case started != done:
		return fmt.Sprintf("%d attempts started and %d are done", started, done)
	case started > 0 && int(requests) != calls:
		return fmt.Sprintf("an observer was told of %d calls of %d", requests, calls)
	case started > 0 && started != int64(calls)+s.HedgesSent:
		return fmt.Sprintf("an observer was told of %d attempts; %d calls sent %d hedges", started, calls, s.HedgesSent)
	}
	return ""
}
