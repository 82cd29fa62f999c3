package worlds_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/gohedge/hedge"
)

// A doPlay is one play of a doScenario with its observations.
type doPlay struct {
	w       *doScenario
	hedged  bool
	shift   int // the function treats attempt n as n + shift
	start   time.Time
	hedger  *hedge.Hedger
	stats   *hedge.Stats
	counter countingObserver

	results []*doResult
	next    *doResult
	memory  latencyMemory
	broken  string
	hedges  atomic.Int64

	mu    sync.Mutex // guards the fields below
	runs  map[int][]*doAttempt
	notes []finding
}

// A doAttempt is the record of one attempt of a call.
type doAttempt struct {
	attempt    int
	at, failed time.Duration // since the play began; failed is 0 if it did not
}

// A closableValue is a value that its receiver must close.
type closableValue struct {
	attempt int
	ctx     context.Context
	p       *doPlay
	taken   bool // the caller has it
	closed  int
}

func (x *closableValue) Close() error {
	x.p.mu.Lock() // a nil thing panics here, as typed nil pointers do
	defer x.p.mu.Unlock()
	if x.closed++; x.taken {
		x.p.notes = append(x.p.notes, finding{"6 closed", "a value that was returned is closed"})
	}
	return nil
}

// A doResult is the result of a call. Times are since its start.
type doResult struct {
	began, end  time.Duration
	err         string
	panicked    string
	exited      bool // the caller's goroutine ended
	value       string
	attempt     int
	values      []*closableValue
	shared      *closableValue
	held        int64
	later       func()
	contextOver bool // the winner's context had ended when the call returned
	callerOver  bool
}

func (r *doResult) String() string {
	return fmt.Sprintf("{%s%s exited %v value %q of attempt %d end %v}", r.err, r.panicked, r.exited, r.value, r.attempt, r.end)
}

func (r *doResult) isStuck() bool { return r.end >= stuckAfter-time.Minute }
func (r *doResult) succeeded() bool {
	return r.err == "" && r.panicked == "" && !r.exited && !r.isStuck()
}

func playDo(s *stage, w *doScenario, hedged bool, shift int) *doPlay {
	p := &doPlay{w: w, hedged: hedged, shift: shift, runs: make(map[int][]*doAttempt)}
	p.broken = s.runInBubble(p.run)
	return p
}

func (p *doPlay) run() {
	p.start = time.Now()
	if p.hedged {
		options := []hedge.FuncOption{hedge.WithBudgetPercent(100 * p.w.client.share), hedge.WithStats(&p.stats)}
		if p.w.client.counts {
			options = append(options, hedge.WithObserver(&p.counter))
		}
		for _, option := range p.w.client.options {
			options = append(options, option())
		}
		p.hedger = hedge.NewHedger(options...)
	}
	root, cancel := context.WithCancel(context.Background())
	giveUp := time.AfterFunc(stuckAfter, cancel)
	for i := range p.w.past.calls {
		past := &doCall{cancel: -1, key: i % p.w.past.hosts, value: "text"}
		past.acts[0].wait = 10*ms + p.w.past.outage
		past.acts[1].wait = past.acts[0].wait
		if p.w.past.outage > 0 {
			past.delay = 20 * ms
		}
		p.call(root, past)
		time.Sleep(p.w.past.gap)
	}
	if p.hedged && p.w.client.change != "" {
		time.AfterFunc(13*ms, func() { applyChange(p.hedger, p.w.client.change) })
	}
	p.results = make([]*doResult, len(p.w.calls))
	callAll(p.w.calls, giveUp, func(i int, c *doCall) {
		time.Sleep(c.at)
		r := &doResult{exited: true}
		p.results[i] = r
		p.makeCall(root, c, r)
	})
	time.Sleep(2 * forever) // for functions that ignore their context
	synctest.Wait()
	for _, r := range p.results {
		if r.later != nil {
			r.later()
		}
	}
	p.next = p.call(root, &doCall{cancel: -1, value: "text"})
	cancel()
	time.Sleep(2 * forever)
}

func (p *doPlay) since() time.Duration { return time.Since(p.start) }

func (p *doPlay) call(root context.Context, c *doCall) *doResult {
	r := &doResult{exited: true}
	p.makeCall(root, c, r)
	return r
}

// makeCall makes a call and records its result.
func (p *doPlay) makeCall(root context.Context, c *doCall, r *doResult) {
	r.began = p.since()
	ctx, stop := newCallerTimes(root, c.deadline, c.cancel)
	defer stop()
	if c.value == "shared" {
		r.shared = &closableValue{p: p}
	}
	r.later = func() { r.held = ctx.held.Load() }
	start := time.Now()
	defer func() {
		r.end = time.Since(start)
		if v := recover(); v != nil {
			r.exited = false
			r.panicked, _, _ = strings.Cut(fmt.Sprint(v), "\n")
		}
	}()
	value, err := p.invoke(ctx, c, r)
	r.exited = false
	r.callerOver = ctx.Err() != nil
	if err == nil || r.callerOver {
		p.memory.addWait(p.since(), time.Since(start))
	}
	if err != nil {
		r.err = err.Error()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r.value = fmt.Sprint(value)
	if x, ok := value.(*closableValue); ok && x != nil {
		x.taken = true
		r.attempt, r.value = x.attempt, "thing"
		if x.closed > 0 {
			p.notes = append(p.notes, finding{"6 closed", fmt.Sprintf("call %d: the value was closed when it was returned", c.number)})
		}
		r.contextOver = x.ctx != nil && x.ctx.Err() != nil
	} else if text, ok := value.(string); ok {
		fmt.Sscanf(text, "attempt %d", &r.attempt)
	}
}

// invoke calls the function, plainly or hedged.
func (p *doPlay) invoke(ctx context.Context, c *doCall, r *doResult) (any, error) {
	f := func(ctx context.Context) (any, error) { return p.runAttempt(ctx, c, r) }
	if !p.hedged {
		return f(ctx)
	}
	if c.delay > 0 {
		ctx = hedge.WithDelay(ctx, c.delay)
	}
	key := fmt.Sprintf("key%d", c.key)
	if !c.detached {
		return hedge.Do(ctx, p.hedger, key, f)
	}
	var discard func(any)
	if c.discards {
		discard = func(v any) {
			if x, ok := v.(*closableValue); ok && x != nil && c.value != "shared" {
				x.Close()
			}
		}
	}
	return hedge.DoDetached(ctx, p.hedger, key, f, discard)
}

var errFunction = errors.New("the function's own error")

// runAttempt is the function of the caller.
func (p *doPlay) runAttempt(ctx context.Context, c *doCall, r *doResult) (any, error) {
	info, _ := hedge.AttemptFromContext(ctx)
	run := &doAttempt{attempt: info.Number, at: p.since()}
	if info.Number > 0 {
		p.hedges.Add(1)
	}
	p.mu.Lock()
	p.runs[c.number] = append(p.runs[c.number], run)
	p.mu.Unlock()
	act := c.acts[min(info.Number+p.shift, len(c.acts)-1)]
	failed := func(err error) (any, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		run.failed = p.since()
		return nil, err
	}
	t := time.NewTimer(5*ms + act.wait)
	defer t.Stop()
	done := ctx.Done()
	if act.deaf {
		done = nil
	}
	select {
	case <-t.C:
	case <-done:
		return nil, ctx.Err() // not a failure of its own
	}
	switch act.ends {
	case "error":
		return failed(errFunction)
	case "canceled":
		return failed(context.Canceled)
	case "panic":
		panic("the function panics")
	case "goexit":
		_, _ = failed(nil)
		runtime.Goexit()
	}
	return p.newValue(ctx, c, r, info.Number), nil
}

// newValue returns a value of the kind that the call asks for.
func (p *doPlay) newValue(ctx context.Context, c *doCall, r *doResult, attempt int) any {
	switch c.value {
	case "shared":
		return r.shared
	case "nil":
		return (*closableValue)(nil)
	case "text":
		return fmt.Sprintf("attempt %d", attempt)
	}
	x := &closableValue{attempt: attempt, ctx: ctx, p: p}
	p.mu.Lock()
	r.values = append(r.values, x)
	p.mu.Unlock()
	return x
}

var _ io.Closer = (*closableValue)(nil)
