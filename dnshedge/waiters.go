package dnshedge

import (
	"cmp"
	"context"
	"math"
	"net"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/seats"
)

// waiters bounds the questions of clients that wait for answers. Copies of one question are one exchange for the Client, but
// each takes a goroutine and its memory.
type waiters struct {
	datagrams line // in lanes by the domain of the question, because addresses of datagrams can be forged
	streams   line // in lanes by the client
}

// init sets the bounds: twice as many questions as Client.MaxInFlight over datagrams, and as many over streams.
func (w *waiters) init(maxInFlight int) {
	n := 2 * min(cmp.Or(max(0, maxInFlight), defaultInFlight), math.MaxInt/8)
	w.datagrams.max, w.streams.max = n, n
}

// choose returns the line for a question of a client, and the lane in it.
func (w *waiters) choose(client net.Addr, q *wire.Query) (l *line, lane string) {
	if _, datagram := client.(*net.UDPAddr); datagram {
		return &w.datagrams, q.Zone()
	}
	return &w.streams, streamLane(client)
}

// streamLane returns the lane of a client: its IPv4 address, or its IPv6 network of 64 bits. Clients without an IP address have one lane.
func streamLane(client net.Addr) string {
	b, _ := seats.Of(client).MarshalBinary() // which never fails
	return string(b)
}

// waiter is a question of a client that waits in a line.
type waiter struct {
	core   *core
	line   *line
	place  *place
	ctx    context.Context // of the question; ends when a later question takes the place
	cancel context.CancelFunc
}

// enter adds a question to a line. If the line is full, the question that has waited longest, of those in the longest lane, is
// cancelled. The caller calls answer, and then the waiter's cancel.
func (c *core) enter(ctx context.Context, l *line, lane string) *waiter {
	w := &waiter{core: c, line: l}
	w.ctx, w.cancel = context.WithCancel(ctx)
	w.place = l.enter(cancelFunc(func() {
		w.cancel()
		c.count.dropped.Add(1)
	}), lane)
	return w
}

// answer is core.answer. If a later question has taken the place meanwhile, displaced is true, and the result is
// ErrTooManyQuestions unless there is an answer.
func (w *waiter) answer(stay context.Context, q *wire.Query) (r *result, displaced bool) {
	defer w.line.leave(w.place) // also if code of the user ends the goroutine
	r = w.core.answer(w.ctx, stay, q, "")
	if displaced = w.line.leave(w.place); displaced && r.err != nil {
		r = &result{err: &Error{Name: q.Text(), Type: q.Type, Err: ErrTooManyQuestions}}
	}
	return r, displaced
}

// A cancelFunc waits in a line.
type cancelFunc func()

func (f cancelFunc) Cancel() { f() }
