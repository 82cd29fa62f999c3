package worlds_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/gohedge/hedge/rangeread"
)

// pastLength is that of the ranges that were read before, and of most that are read later.
const pastLength = 4096

// A rangePlay is one performance of a rangeWorld, and what was seen in it.
type rangePlay struct {
	w       *rangeWorld
	hedged  bool
	start   time.Time
	store   *rangeread.Store
	results []*rangeResult
	next    *rangeResult
	memory  memory // of first bytes, and of pauses
	broken  string

	mu    sync.Mutex  // guards the fields below
	tries map[int]int // requests of each read for its part
	open  int         // bodies
	read  int64
	notes []finding
}

// A rangeResult is what a caller saw. Times are since the read began.
type rangeResult struct {
	began, end time.Duration
	got        []byte
	err        string
	panicked   string
	held       int64
	later      func()
}

func (r *rangeResult) String() string {
	return fmt.Sprintf("{%d bytes %s%s end %v}", len(r.got), r.err, r.panicked, r.end)
}

func (r *rangeResult) hung() bool { return r.end >= hangs-time.Minute }
func (r *rangeResult) good() bool { return r.err == "" && r.panicked == "" && !r.hung() }

func playRange(s *stage, w *rangeWorld, hedged bool) *rangePlay {
	p := &rangePlay{w: w, hedged: hedged, tries: make(map[int]int)}
	p.broken = s.bubble(p.run)
	return p
}

func (p *rangePlay) run() {
	p.start = time.Now()
	o := p.w.options
	if !p.hedged {
		o.BudgetPercent = -1
	}
	p.store = rangeread.NewStore(o)
	root, cancel := context.WithCancel(context.Background())
	giveUp := time.AfterFunc(hangs, cancel)
	past := &rangeRead{length: pastLength, cancel: -1}
	for range p.w.past.calls {
		p.call(root, past, p.store.Open(p.fetch))
		time.Sleep(p.w.past.gap)
	}
	p.start = time.Now()
	shared := p.store.Open(p.fetch)
	p.results = make([]*rangeResult, len(p.w.reads))
	together(p.w.reads, giveUp, func(i int, r *rangeRead) {
		time.Sleep(r.at)
		object := shared
		if !p.w.store.shared {
			object = p.store.Open(p.fetch)
		}
		p.results[i] = p.call(root, r, object)
	})
	time.Sleep(2 * forever) // a deaf Fetch that nobody waits for
	synctest.Wait()
	for _, r := range p.results {
		r.later()
	}
	p.next = p.call(root, past, p.store.Open(p.fetch))
	cancel()
	time.Sleep(2 * forever)
}

func (p *rangePlay) since() time.Duration { return time.Since(p.start) }

func (p *rangePlay) note(promise, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, finding{promise, fmt.Sprintf(format, args...)})
}

// A readKey is the key of the read under whose context a request is made.
type readKey struct{}

// call reads, and does with its memory what it likes when it has that back.
func (p *rangePlay) call(root context.Context, c *rangeRead, object *rangeread.Reader) (r *rangeResult) {
	r = &rangeResult{began: p.since()}
	ctx, stop := callerTimes(context.WithValue(root, readKey{}, c), c.deadline, c.cancel)
	defer stop()
	buf := make([]byte, c.length)
	start := time.Now()
	defer func() {
		r.end = time.Since(start)
		if v := recover(); v != nil {
			r.panicked, _, _ = strings.Cut(fmt.Sprint(v), "\n")
		}
		r.got = bytes.Clone(r.got)
		clear(buf)
		r.later = func() {
			r.held = ctx.held.Load()
			if len(bytes.Trim(buf, "\x00")) > 0 {
				p.note("6 touched", "read %d: the caller's memory is written to after the read", c.number)
			}
		}
	}()
	var n int
	var err error
	if c.sequential {
		body := object.NewReader(ctx, c.offset, c.length)
		defer body.Close()
		for n < len(buf) && err == nil {
			var more int
			more, err = body.Read(buf[n:])
			n += more
		}
		if n == len(buf) {
			err = nil
		}
	} else {
		n, err = object.ReadAtContext(ctx, buf, c.offset)
	}
	if r.got = buf[:n]; err != nil {
		r.err = err.Error()
		if errors.Is(err, rangeread.ErrChanged) { // whose text has the tag or the status
			r.err = rangeread.ErrChanged.Error()
		}
	}
	if n < len(buf) && err == nil {
		p.note("1 short", "read %d: %d of %d bytes without an error", c.number, n, len(buf))
	}
	return r
}

// version returns the one that is in the store now.
func (p *rangePlay) version() int64 {
	if r := p.w.store.replaced; r > 0 && p.since() >= r && p.results != nil {
		return 1
	}
	return 0
}

// content writes to b what is at off in a version. No two parts are the same.
func content(version, off int64, b []byte) {
	var word [8]byte
	for i := range b {
		at := off + int64(i)
		binary.BigEndian.PutUint64(word[:], uint64(at/8)<<1|uint64(version))
		b[i] = word[at%8] ^ byte(at%8*37)
	}
}

var errFetch = errors.New("the store's own error")

// fetch is the rangeread.Fetch.
func (p *rangePlay) fetch(ctx context.Context, asked rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
	c := ctx.Value(readKey{}).(*rangeRead)
	act := p.act(c, asked)
	version, tag := p.version(), ""
	if !p.w.store.tagless {
		tag = fmt.Sprintf("v%d", version)
	}
	began := time.Now()
	if err := act.pass(ctx, 5*ms+act.wait+p.w.past.outage); err != nil {
		return nil, rangeread.Info{}, err
	}
	p.memory.learn(p.since(), time.Since(began))
	size := p.w.store.size + 1000*version
	switch {
	case act.ends == "fails":
		return nil, rangeread.Info{}, errFetch
	case act.ends == "panics":
		panic("the Fetch panics")
	case asked.Match != "" && asked.Match != tag:
		return nil, rangeread.Info{}, fmt.Errorf("412: %w", rangeread.ErrChanged)
	case asked.Offset >= size && !p.w.store.ignores:
		return nil, rangeread.Info{}, io.EOF
	}
	b := &rangeBody{p: p, ctx: ctx, act: act, version: version, at: asked.Offset, end: min(asked.Offset+asked.Length, size)}
	if p.w.store.ignores {
		b.at, b.end = 0, size
	}
	b.middle = b.at + (b.end-b.at)/2
	info := rangeread.Info{Offset: b.at, Length: b.end - b.at, Size: size, Tag: tag}
	if p.w.store.unsized {
		info.Length, info.Size = -1, -1
	}
	p.mu.Lock()
	p.open++
	p.mu.Unlock()
	return b, info, nil
}

// act returns what the store does with a request of a read: the hedges of its beginning come before those for the rest of it. To a question
// whether there is more behind the end of the object it says the truth.
func (p *rangePlay) act(c *rangeRead, asked rangeread.Range) rangeAct {
	part := (asked.Offset - c.offset) / p.w.partSize()
	if c.number == 0 || part != c.part || asked.Offset > c.offset && asked.Offset >= p.w.store.size {
		return rangeAct{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.tries[c.number]
	p.tries[c.number]++
	return c.acts[min(n, len(c.acts)-1)]
}

// pass lets time pass, until the context ends.
func (a rangeAct) pass(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	done := ctx.Done()
	if a.deaf {
		done = nil
	}
	select {
	case <-t.C:
		return nil
	case <-done:
		return ctx.Err()
	}
}

// A rangeBody is the body of an answer.
type rangeBody struct {
	p       *rangePlay
	ctx     context.Context
	act     rangeAct
	version int64
	at, end int64
	middle  int64
	closed  bool
}

func (b *rangeBody) Read(buf []byte) (int, error) {
	if b.closed {
		b.p.note("6 closed", "a body is read that was closed")
	}
	if !b.act.deaf && b.ctx.Err() != nil {
		return 0, b.ctx.Err()
	}
	end := b.end
	if b.at < b.middle && (b.act.stall > 0 || b.act.ends != "") {
		end = b.middle
	} else if b.at == b.middle {
		if b.act.stall > 0 {
			began := time.Now()
			if err := b.act.pass(b.ctx, b.act.stall); err != nil {
				return 0, err
			}
			b.p.memory.learn(b.p.since(), time.Since(began))
		}
		switch b.act.ends {
		case "cut":
			return 0, io.EOF
		case "broken":
			return 0, errFetch
		}
	}
	n := min(int64(len(buf)), end-b.at)
	content(b.version, b.at, buf[:n])
	b.p.mu.Lock()
	b.p.read += n
	b.p.mu.Unlock()
	if b.at += n; b.at == b.end {
		return int(n), io.EOF
	}
	return int(n), nil
}

func (b *rangeBody) Close() error {
	if b.closed {
		b.p.note("6 closed", "a body is closed twice")
	}
	b.closed = true
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	b.p.open--
	return nil
}
