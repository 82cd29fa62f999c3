// Package deadline implements the deadlines of in-memory connections, see [net.Conn.SetDeadline].
package deadline

import (
	"sync"
	"time"
)

// A Deadline closes a channel when a time has come. The time can be changed. The zero value has no time, so its channel stays open. It is
// safe for concurrent use, and must not be copied.
type Deadline struct {
	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	ch    chan struct{}
}

// Passed returns a channel that is closed when the deadline passes. After that, the next Set replaces the channel.
func (d *Deadline) Passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ch == nil {
		d.ch = make(chan struct{})
	}
	return d.ch
}

// Set changes the deadline; the zero time removes it. If the old deadline has not passed, channels that Passed has returned before apply to
// the new deadline.
func (d *Deadline) Set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	stopped := d.timer == nil || d.timer.Stop()
	d.timer = nil
	over := false
	if d.ch != nil {
		select {
		case <-d.ch:
			over = true
		default:
		}
	}
	if d.ch == nil || !stopped || over {
		d.ch = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	ch := d.ch
	if wait := time.Until(t); wait > 0 {
		d.timer = time.AfterFunc(wait, func() { close(ch) })
	} else {
		close(ch)
	}
}
