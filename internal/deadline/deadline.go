// Package deadline implements read and write deadlines for in-memory connections, see [net.Conn.SetDeadline].
package deadline

import (
	"sync"
	"time"
)

// A Deadline ends blocked reads or writes: it closes a channel at a point in time, which can be changed. The zero value is a
// deadline that never passes. A Deadline is safe for concurrent use, and must not be copied.
type Deadline struct {
	mu    sync.Mutex    // guards the fields that follow
	timer *time.Timer   // closes ch at the deadline; nil: there is no deadline or it has passed
	ch    chan struct{} // channel that Passed returns; nil: not created yet
}

// Passed returns a channel that is closed when the deadline passes. If Set is called after that, the next call of Passed
// returns a new channel.
func (d *Deadline) Passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ch == nil {
		d.ch = make(chan struct{})
	}
	return d.ch
}

// Set changes the deadline to t. The zero time removes the deadline. If the old deadline has not passed, the new one also
// applies to channels that Passed has already returned.
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
