package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// A progressDisplay shows how many requests each strategy has finished, by one line at a time. On a terminal each line
// replaces the line before, until a strategy has finished. A nil *progressDisplay shows nothing.
type progressDisplay struct {
	to       io.Writer
	erase    string        // the control sequence that erases the current line; empty: to is not a terminal
	interval time.Duration // between two lines about unfinished tasks

	mu       sync.Mutex // guards to and the fields below
	lastLine time.Time  // when the last line about an unfinished task was written
}

// newProgressDisplay returns a display that writes to the writer to. terminal says whether to is a terminal.
func newProgressDisplay(to io.Writer, terminal bool) *progressDisplay {
	if terminal {
		return &progressDisplay{to: to, erase: "\r\x1b[K", interval: 100 * time.Millisecond}
	}
	return &progressDisplay{to: to, interval: 10 * time.Second}
}

// printLine writes a line of text in place of the current progress.
func (p *progressDisplay) printLine(format string, args ...any) {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprintf(p.to, p.erase+format+"\n", args...)
	}
}

// A progressTask is the work of one strategy in one run of a scenario, for the display of progress.
type progressTask struct {
	p     *progressDisplay // nil: the task is not shown
	name  string
	total int // requests
}

// addTask returns a task for one strategy in one run of a scenario. total is the number of the task's requests.
func (p *progressDisplay) addTask(scenario, strategy string, total int) *progressTask {
	return &progressTask{p: p, name: scenario + " " + strategy, total: total}
}

// setDone shows that n requests of the task are finished. It redraws at most once in each interval of the display. It is safe
// for concurrent use, and does nothing for a nil task.
func (t *progressTask) setDone(n int) {
	if t == nil || t.p == nil {
		return
	}
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	if t.p.lastLine.IsZero() {
		t.p.lastLine = time.Now()
	}
	if time.Since(t.p.lastLine) < t.p.interval {
		return
	}
	t.p.lastLine = time.Now()
	end := "\n"
	if t.p.erase != "" {
		end = ""
	}
	fmt.Fprintf(t.p.to, "%s%-32s %3d %%%s", t.p.erase, t.name, 100*n/max(t.total, 1), end)
}

// reportFinished prints that all requests of the task are finished, and the time that they took.
func (t *progressTask) reportFinished(took time.Duration) {
	t.p.printLine("%-32s done in %.1f s", t.name, took.Seconds())
}

// markStopped writes that the task was stopped before its end.
func (t *progressTask) markStopped() { t.p.printLine("%-32s stopped", t.name) }
