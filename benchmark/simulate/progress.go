package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// A progressDisplay shows how many requests each strategy has finished: by bars on a terminal, and otherwise by lines
// of text. A nil *progressDisplay shows nothing.
type progressDisplay struct {
	to   io.Writer
	bars bool
	end  chan struct{} // closed by stop

	mu    sync.Mutex      // guards to and the fields below
	tasks []*progressTask // that have a bar
	drawn int             // bars on the screen
}

// newProgressDisplay returns a progress that writes to the writer to. terminal says whether to is a terminal, on which
// bars are drawn until stopBars is called.
func newProgressDisplay(to io.Writer, terminal bool) *progressDisplay {
	p := &progressDisplay{to: to, bars: terminal, end: make(chan struct{})}
	if terminal {
		go p.redrawLoop()
	}
	return p
}

// redrawLoop redraws the bars ten times per second, until stopBars is called.
func (p *progressDisplay) redrawLoop() {
	often := time.NewTicker(100 * time.Millisecond)
	defer often.Stop()
	for {
		select {
		case <-p.end:
			return
		case <-often.C:
			p.writeText("")
		}
	}
}

// stopBars draws the bars for the last time.
func (p *progressDisplay) stopBars() {
	if p != nil && p.bars {
		p.writeText("")
		close(p.end)
	}
}

// printLine writes a line of text above the bars.
func (p *progressDisplay) printLine(format string, args ...any) {
	if p != nil {
		p.writeText(fmt.Sprintf(format+"\n", args...))
	}
}

// writeText writes text in place of the bars, and draws the bars below the text. text is empty or ends with a line
// break.
func (p *progressDisplay) writeText(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	if p.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", p.drawn) // up to the first bar, and clear what is below
	}
	b.WriteString(text)
	for _, t := range p.tasks {
		b.WriteString(t.formatBar() + "\n")
	}
	p.drawn = len(p.tasks)
	_, _ = io.WriteString(p.to, b.String()) // there is nowhere to report an error
}

// A progressTask is the work of one strategy in one run of a scenario, for the display of progress.
type progressTask struct {
	p     *progressDisplay // nil: the task is not shown
	name  string
	total int // requests

	done     int // requests; p.mu guards this field and those below
	began    time.Time
	lastLine time.Time // when the last plain line was written
}

// addTask adds a task with a bar for one strategy in one run of a scenario. total is the number of the task's requests.
func (p *progressDisplay) addTask(scenario, strategy string, total int) *progressTask {
	t := &progressTask{p: p, name: scenario + " " + strategy, total: total}
	if p != nil && p.bars {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.tasks = append(p.tasks, t)
	}
	return t
}

const lineInterval = 10 * time.Second

// setDone sets the number of finished requests of the task to n, and updates the display. It may be called from several
// goroutines, and for a nil *task.
func (t *progressTask) setDone(n int) {
	if t == nil || t.p == nil {
		return
	}
	t.p.mu.Lock()
	t.done = n
	if t.began.IsZero() {
		t.began, t.lastLine = time.Now(), time.Now()
	}
	isLineDue := !t.p.bars && time.Since(t.lastLine) > lineInterval
	if isLineDue {
		t.lastLine = time.Now()
	}
	t.p.mu.Unlock()
	if isLineDue {
		t.p.printLine("%-32s %3d %%", t.name, 100*n/max(t.total, 1))
	}
}

// formatBar returns the bar of the task as text: the name, the share of finished requests, and the expected time for
// the rest. The caller holds p.mu.
func (t *progressTask) formatBar() string {
	const width = 24
	share := min(float64(t.done)/float64(max(t.total, 1)), 1)
	full := int(share * width)
	bar := fmt.Sprintf("%-32s %s%s %3.0f %%", t.name, strings.Repeat("█", full), strings.Repeat("░", width-full), 100*share)
	if share > 0 {
		bar += fmt.Sprintf(", %v left", time.Duration(float64(time.Since(t.began))*(1/share-1)).Round(time.Second))
	}
	return bar
}

// finishAfter ends the display of the task. It writes that all requests are finished, and the time that they took.
func (t *progressTask) finishAfter(took time.Duration) {
	t.replaceBar(fmt.Sprintf("done in %.1f s", took.Seconds()))
}

// markStopped ends the display of the task. It writes that the task was stopped before its end.
func (t *progressTask) markStopped() {
	if t.p != nil && t.p.bars {
		t.replaceBar("stopped")
	}
}

// replaceBar removes the bar of the task, and writes a line with the name of the task and the text how.
func (t *progressTask) replaceBar(how string) {
	if t.p == nil {
		return
	}
	t.p.mu.Lock()
	t.p.tasks = slices.DeleteFunc(t.p.tasks, func(other *progressTask) bool { return other == t })
	t.p.mu.Unlock()
	t.p.printLine("%-32s %s", t.name, how)
}
