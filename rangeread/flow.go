package rangeread

import (
	"context"
	"io"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
)

// A flow is the bytes of one range in order, from whichever attempt has them first. One goroutine at a time uses it.
type flow struct {
	task   *task
	caller context.Context
	hedged bool
	at     int64  // the next byte
	end    int64  // no byte is wanted from there on
	start  int64  // the first byte of the range
	opened int64  // where the last answer began, if there was one
	tries  int    // answers that were opened
	place  []byte // where all bytes of the range are read to; nil: each piece is where it is until the next

	source *stream // whose pieces are read; nil: there is none now
	failed error   // of the source, while what is missing may still come
	rest   *rest   // what is missing is asked for; nil: it is not
	left   int     // how often it may still be asked for
	number int     // of the next attempt

	began   time.Time     // when the range was asked for
	usual   time.Duration // in which a first byte usually comes; 0: not known
	stall   time.Duration // a pause of so long is a stall; 0: not known, or nothing is hedged
	retry   time.Duration // until a hedge that was denied is asked for again
	longest time.Duration // pause
	timer   *time.Timer
}

// newFlow returns the flow of n bytes from off on; n is at least 1. Its owner closes it.
func newFlow(ctx context.Context, r *Reader, off, n int64) *flow {
	refused := policy.Eligibility{SwitchedOff: r.store.off}.Reason(race.OverridesFrom(ctx))
	f := &flow{
		task:   &task{store: r.store, fetch: r.fetch, version: &r.version, key: r.store.key(n)},
		caller: ctx, hedged: refused == policy.None, at: off, start: off, end: off + n,
	}
	t := f.task
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.untie = context.AfterFunc(r.life, func() { t.cancel(errClosed) })
	f.clip()
	t.begin()
	r.store.ranges.Add(1)
	r.store.asked.Add(f.end - f.at)
	return f
}

// clip takes note of the size of the object.
func (f *flow) clip() {
	if size, known := f.task.version.length(); known {
		f.end = max(min(f.end, size), f.at)
	}
}

// next returns the next bytes, valid until it is called again, and io.EOF at the end of the range or of the object.
func (f *flow) next() ([]byte, error) {
	for f.at < f.end {
		if f.source == nil && f.failed == nil {
			if err := f.open(); err != nil {
				return nil, err
			}
			continue
		}
		b, err := f.await()
		if len(b) > 0 || err != nil {
			return b, err
		}
	}
	return nil, io.EOF
}

// open opens the source, or another one if that has ended too soon, but as it has promised.
func (f *flow) open() error {
	if f.tries > 0 && f.opened == f.at {
		return f.ends() // an answer has brought nothing
	}
	if f.tries == 0 {
		f.began = time.Now()
	}
	s, started, err := open(f.caller, f.task, f.at, f.end, f.hedged)
	switch {
	case err == io.EOF:
		return f.ends()
	case err != nil:
		return err
	}
	if f.tries == 0 && f.hedged {
		f.left, f.number, f.stall = maxHedges, started, f.task.key.Stall()
		if p := f.task.key.Schedule(); p != nil {
			f.usual = p.Usual
		}
	}
	f.tries, f.opened = f.tries+1, f.at
	if err := f.task.version.adopt(s.info); err != nil {
		s.attempt.Release()
		go s.shut() // which may take long
		return err
	}
	f.follow(s)
	return nil
}

// ends says that the store has nothing from here on.
func (f *flow) ends() error {
	size, known := f.task.version.length()
	switch {
	case known && f.at < size:
		return io.ErrUnexpectedEOF
	case !known && (f.at > f.start || f.at == 0): // all before is there
		f.task.version.ends(f.at)
	}
	f.end = f.at
	return nil
}

// follow goes on with s.
func (f *flow) follow(s *stream) {
	f.clip()
	s.out = make(chan piece)
	s.memory.place, s.memory.from = f.place, f.start
	f.source, f.failed, f.retry = s, nil, 0
	go s.pump()
}

// await waits for the next piece, and asks for what is missing if that takes too long. It may return nothing.
func (f *flow) await() ([]byte, error) {
	var pieces chan piece
	if f.source != nil {
		pieces = f.source.out
	}
	var answer chan outcome
	if f.rest != nil {
		answer = f.rest.answer
	}
	since := time.Now()
	select {
	case p := <-pieces:
		f.longest = max(f.longest, time.Since(since))
		return f.take(p), f.judge(p.err)
	case a := <-answer:
		return nil, f.answered(a)
	case <-f.alarm():
		f.longest = max(f.longest, time.Since(since))
		return nil, f.late()
	case <-f.task.ctx.Done():
		return nil, f.task.ctx.Err()
	}
}

// take takes a piece. The source goes on, so nothing is missing.
func (f *flow) take(p piece) []byte {
	if len(p.bytes) == 0 {
		return nil
	}
	f.drop()
	f.retry = 0
	b := f.put(p.bytes[:min(int64(len(p.bytes)), f.end-f.at)])
	f.at += int64(len(b))
	f.task.used.Add(int64(len(b)))
	return b
}

// put returns bytes where they belong, if they have a place.
func (f *flow) put(b []byte) []byte {
	if f.place == nil {
		return b
	}
	to := f.place[f.at-f.start:][:len(b)]
	if len(b) > 0 && &to[0] != &b[0] { // the first of an answer
		copy(to, b)
	}
	return to
}

// move gives the range another place: a Read that nobody waits for may write to this one.
func (f *flow) move() {
	if f.place == nil {
		return
	}
	place := make([]byte, cap(f.place))[:len(f.place)]
	copy(place, f.place[:f.at-f.start])
	f.place = place
}

// judge takes note of why the source has ended, nil if it has not.
func (f *flow) judge(err error) error {
	if err == nil {
		return nil
	}
	f.source = nil
	if err == io.EOF || f.at >= f.end {
		return nil
	}
	f.failed = err
	if f.rest == nil {
		return f.late()
	}
	return nil
}

// late asks for what is missing. It returns why the flow has failed, if it has.
func (f *flow) late() error {
	if f.rest == nil && f.left > 0 {
		r, later := ask(f.task, f.at, f.end, f.number)
		switch {
		case r != nil:
			f.rest = r
			f.number++
			f.left--
			return nil
		case later:
			f.retry = max(2*f.retry, f.stall)
		default:
			f.left = 0
		}
	}
	if f.failed != nil {
		f.drop()
		return f.failed
	}
	return nil
}

// answered takes the answer to the request for what is missing.
func (f *flow) answered(a outcome) error {
	if a.err == nil {
		if a.err = f.task.version.adopt(a.stream.info); a.err != nil {
			go a.stream.shut() // which may take long
		}
	}
	if a.err != nil { // the source goes on alone
		f.drop()
		f.left = 0
		return f.failed
	}
	if f.source != nil {
		f.source.attempt.Lose()
		f.move()
	}
	f.rest.won()
	f.rest = nil
	f.opened = f.at
	f.follow(a.stream)
	return nil
}

// drop ends the request for what is missing, if there is one.
func (f *flow) drop() {
	if f.rest != nil {
		f.rest.lose()
		f.rest = nil
	}
}

// alarm returns the channel of the timer until late is to be called; nil: it is not.
func (f *flow) alarm() <-chan time.Time {
	var d time.Duration
	switch {
	case f.failed != nil:
		d = race.Bound(f.usual, time.Since(f.began)) - time.Since(f.rest.asked)
	case f.rest != nil || f.left == 0 || f.stall == 0:
		return nil
	default:
		d = max(f.stall, f.retry)
	}
	if f.timer == nil {
		f.timer = time.NewTimer(d)
	} else {
		f.timer.Reset(d)
	}
	return f.timer.C
}

// close ends all attempts, and learns how the range paused.
func (f *flow) close() {
	f.drop()
	if f.timer != nil {
		f.timer.Stop()
	}
	if f.source != nil {
		f.source.attempt.Lose()
	}
	if f.tries > 0 && (f.at == f.end || f.stall > 0 && f.longest > f.stall) {
		f.task.key.Paused(f.longest)
	}
	f.task.store.bytes.EarnN(f.at - f.start)
	f.task.end()
}
