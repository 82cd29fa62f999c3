package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	pretty "github.com/jedib0t/go-pretty/v6/progress"
)

// progress shows how far each strategy is: bars on a terminal, plain lines
// elsewhere. A nil progress shows nothing.
type progress struct {
	bars pretty.Writer // nil: plain lines
	mu   sync.Mutex    // guards plain lines
	to   io.Writer
}

func newProgress(to io.Writer, terminal bool) *progress {
	p := &progress{to: to}
	if terminal {
		p.bars = pretty.NewWriter()
		p.bars.SetOutputWriter(to)
		p.bars.SetStyle(pretty.StyleBlocks)
		p.bars.SetTrackerLength(30)
		p.bars.SetMessageLength(34)
		p.bars.SetUpdateFrequency(100 * time.Millisecond)
		p.bars.SetSortBy(pretty.SortByNone)
		p.bars.Style().Visibility.ETA = true
		p.bars.Style().Visibility.Value = true
		go p.bars.Render()
	}
	return p
}

// stop puts the last state on the screen.
func (p *progress) stop() {
	if p == nil || p.bars == nil {
		return
	}
	time.Sleep(150 * time.Millisecond) // the bars draw ten times a second
	p.bars.Stop()
	for p.bars.IsRenderInProgress() {
		time.Sleep(10 * time.Millisecond)
	}
}

// say writes a line.
func (p *progress) say(format string, args ...any) {
	switch {
	case p == nil:
	case p.bars != nil:
		p.bars.Log(format, args...)
	default:
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprintf(p.to, format+"\n", args...)
	}
}

// A task is one strategy in one run of a scenario. A nil task shows nothing.
type task struct {
	p     *progress
	name  string
	total int
	bar   *pretty.Tracker
	mu    sync.Mutex
	said  time.Time // when the last plain line was written; guarded by mu
}

func (p *progress) begin(scenario, strategy string, total int) *task {
	t := &task{p: p, name: scenario + " " + strategy, total: total}
	if p != nil && p.bars != nil {
		t.bar = &pretty.Tracker{Message: t.name, Total: int64(total), DeferStart: true}
		p.bars.AppendTracker(t.bar)
	}
	return t
}

const everyLine = 10 * time.Second

// set shows how many requests are done. It may be called from several goroutines.
func (t *task) set(n int) {
	if t == nil || t.p == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.said.IsZero() {
		t.said = time.Now()
	}
	switch {
	case t.bar != nil:
		t.bar.SetValue(int64(min(n, t.total-1))) // the last one ends the bar
	case time.Since(t.said) > everyLine:
		t.said = time.Now()
		t.p.say("%-32s %3d %%", t.name, 100*n/max(t.total, 1))
	}
}

// end shows that all is done, and how long it took.
func (t *task) end(took time.Duration) {
	switch {
	case t.p == nil:
	case t.bar != nil:
		t.bar.SetValue(int64(t.total))
		t.bar.MarkAsDone()
	default:
		t.p.say("%-32s done in %.1f s", t.name, took.Seconds())
	}
}

// drop shows that it will not be done.
func (t *task) drop() {
	if t.bar != nil {
		t.bar.MarkAsErrored()
	}
}
