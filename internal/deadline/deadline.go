// Package deadline is what the in-memory connections of this module have for
// SetDeadline.
package deadline

import (
	"sync"
	"time"
)

// A Deadline is a time after which a channel is closed. The zero value is no
// deadline. It is safe for concurrent use, and must not be copied.
type Deadline struct {
	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	ch    chan struct{}
}

// Passed returns a channel that is closed once the deadline has passed.
func (d *Deadline) Passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ch == nil {
		d.ch = make(chan struct{})
	}
	return d.ch
}

// Set moves the deadline; the zero time removes it. Those who already wait for a
// deadline that has not passed yet wait for the new one.
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
