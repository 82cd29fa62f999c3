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

// A handle is what clients of all protocols can be told.
type handle interface {
	SetEnabled(on bool)
	Reset(host, route string) int
	Export(io.Writer) error
	Import(io.Reader) error
	Update(func(*hedge.Config)) error
}

// together makes all calls, which wait for their times by themselves, and returns when they have ended, also by ending their
// goroutine. giveUp is set to fire when that takes too long.
func together[C any](calls []C, giveUp *time.Timer, call func(i int, c C)) {
	var wg sync.WaitGroup
	for i, c := range calls {
		wg.Go(func() { call(i, c) })
	}
	giveUp.Reset(hangs)
	wg.Wait()
	giveUp.Stop()
}

// once returns play, which plays each act only the first time that it is asked for.
func once[P any](play func(act int) P) func(act int) P {
	plays := make(map[int]P)
	return func(act int) P {
		if _, known := plays[act]; !known {
			plays[act] = play(act)
		}
		return plays[act]
	}
}

func change(h handle, what string) {
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

// A memory is what a client can have learned of how long calls take, whichever percentile that is: at most the longest time that a
// caller has waited for an answer, or until it gave up, which is less than the answer would have taken.
type memory struct {
	mu  sync.Mutex // guards all
	all []wait
}

// A wait is how long a caller waited, and when it ended.
type wait struct{ end, took time.Duration }

func (m *memory) learn(end, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, wait{end, took})
}

// usual returns what can have been learned until a moment.
func (m *memory) usual(until time.Duration) (longest time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.all {
		if w.end <= until {
			longest = max(longest, w.took)
		}
	}
	return longest
}

// slack is how much later than plainly something may happen.
const slack = 10 * ms

// heldAtMost is how long rule R2 lets a failure be held for hedges that are out: as long as calls usually take, as far as that was
// known when it came, or else as long as it took to come.
func heldAtMost(took, usual time.Duration, known bool) time.Duration {
	learned := usual + usual/10 // a sketch is inexact
	if !known || learned == 0 {
		learned = max(learned, took)
	}
	return min(max(10*ms, learned), max(time.Second, took))
}

// hedgesAtMost is how many hedges rule R5 lets a client send, however many hosts, methods or keys there are.
func hedgesAtMost(share float64, calls int) float64 {
	return share*float64(calls) + max(20, 200*share) + 3
}

// stops reports whether a deadline (0: none) or a cancellation (-1: never) is no later than t, or about the same.
func stops(deadline, cancel, t time.Duration) bool {
	return deadline > 0 && t+slack >= deadline || cancel >= 0 && t+slack >= cancel
}

// A counter is an observer that counts.
type counter struct {
	hedge.NopObserver
	started, done, requests, refused atomic.Int64
}

func (c *counter) AttemptStart(context.Context, hedge.KeyInfo, hedge.AttemptInfo)  { c.started.Add(1) }
func (c *counter) AttemptDone(context.Context, hedge.KeyInfo, hedge.AttemptResult) { c.done.Add(1) }
func (c *counter) RequestDone(context.Context, hedge.KeyInfo, hedge.RequestResult) { c.requests.Add(1) }

// Denied counts hedges that began and were not sent, of which only those are that could not be prepared.
func (c *counter) Denied(_ context.Context, _ hedge.KeyInfo, r hedge.Reason) {
	if r == hedge.DeniedNotReady {
		c.refused.Add(1)
	}
}

// wrong says what does not add up when a number of calls is over; "": nothing.
func (c *counter) wrong(s hedge.StatsSnapshot, calls int) string {
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
