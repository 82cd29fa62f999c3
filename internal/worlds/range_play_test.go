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

// usualLength is the length of the ranges in the warm-up, and of most later ranges.
const usualLength = 4096

// A rangePlay is one play of a rangeScenario with its observations.
type rangePlay struct {
	w       *rangeScenario
	hedged  bool
	start   time.Time
	store   *rangeread.Store
	results []*rangeResult
	next    *rangeResult
	memory  latencyMemory // of first bytes, and of pauses
	broken  string

	mu    sync.Mutex  // guards the fields below
	tries map[int]int // requests of each read for its part
	open  int         // bodies
	read  int64
	notes []finding
}

// A rangeResult is the result of a read. Times are since its start.
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

func (r *rangeResult) isStuck() bool   { return r.end >= stuckAfter-time.Minute }
func (r *rangeResult) succeeded() bool { return r.err == "" && r.panicked == "" && !r.isStuck() }

func playRange(s *stage, w *rangeScenario, hedged bool) *rangePlay {
	p := &rangePlay{w: w, hedged: hedged, tries: make(map[int]int)}
	p.broken = s.runInBubble(p.run)
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
	giveUp := time.AfterFunc(stuckAfter, cancel)
	past := &rangeRead{length: usualLength, cancel: -1}
	for range p.w.past.calls {
		p.makeRead(root, past, p.store.Open(p.fetchRange))
		time.Sleep(p.w.past.gap)
	}
	p.start = time.Now()
	shared := p.store.Open(p.fetchRange)
	p.results = make([]*rangeResult, len(p.w.reads))
	callAll(p.w.reads, giveUp, func(i int, r *rangeRead) {
		time.Sleep(r.at)
		object := shared
		if !p.w.store.shared {
			object = p.store.Open(p.fetchRange)
		}
		p.results[i] = p.makeRead(root, r, object)
	})
	time.Sleep(2 * forever) // for a Fetch that ignores its context
	synctest.Wait()
	for _, r := range p.results {
		r.later()
	}
	p.next = p.makeRead(root, past, p.store.Open(p.fetchRange))
	cancel()
	time.Sleep(2 * forever)
}

func (p *rangePlay) since() time.Duration { return time.Since(p.start) }

func (p *rangePlay) note(promise, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, finding{promise, fmt.Sprintf(format, args...)})
}

// A readKey is the context key of the read that has caused a request.
type readKey struct{}

// makeRead makes a read, and overwrites its memory after that.
func (p *rangePlay) makeRead(root context.Context, c *rangeRead, object *rangeread.Reader) (r *rangeResult) {
	r = &rangeResult{began: p.since()}
	ctx, stop := newCallerTimes(context.WithValue(root, readKey{}, c), c.deadline, c.cancel)
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

// currentVersion returns the version in the store.
func (p *rangePlay) currentVersion() int64 {
	if r := p.w.store.replaced; r > 0 && p.since() >= r && p.results != nil {
		return 1
	}
	return 0
}

// fillContent writes the content of a version at off to b. No two parts of the object are equal.
func fillContent(version, off int64, b []byte) {
	var word [8]byte
	for i := range b {
		at := off + int64(i)
		binary.BigEndian.PutUint64(word[:], uint64(at/8)<<1|uint64(version))
		b[i] = word[at%8] ^ byte(at%8*37)
	}
}

var errFetch = errors.New("the store's own error")

// fetchRange is the rangeread.Fetch.
func (p *rangePlay) fetchRange(ctx context.Context, asked rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
	c := ctx.Value(readKey{}).(*rangeRead)
	act := p.stepOf(c, asked)
	version, tag := p.currentVersion(), ""
	if !p.w.store.tagless {
		tag = fmt.Sprintf("v%d", version)
	}
	began := time.Now()
	if err := act.sleep(ctx, 5*ms+act.wait+p.w.past.outage); err != nil {
		return nil, rangeread.Info{}, err
	}
	p.memory.addWait(p.since(), time.Since(began))
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

// stepOf returns the behaviour of the store for a request of a read. The hedges for the beginning of the read come
// before the hedges for the rest. A request beyond the end of the object gets a correct answer.
func (p *rangePlay) stepOf(c *rangeRead, asked rangeread.Range) rangeStep {
	part := (asked.Offset - c.offset) / p.w.partSize()
	if c.number == 0 || part != c.part || asked.Offset > c.offset && asked.Offset >= p.w.store.size {
		return rangeStep{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.tries[c.number]
	p.tries[c.number]++
	return c.acts[min(n, len(c.acts)-1)]
}

// sleep waits for d or the end of the context.
func (a rangeStep) sleep(ctx context.Context, d time.Duration) error {
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

// A rangeBody is the body of a response.
type rangeBody struct {
	p       *rangePlay
	ctx     context.Context
	act     rangeStep
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
			if err := b.act.sleep(b.ctx, b.act.stall); err != nil {
				return 0, err
			}
			b.p.memory.addWait(b.p.since(), time.Since(began))
		}
		switch b.act.ends {
		case "cut":
			return 0, io.EOF
		case "broken":
			return 0, errFetch
		}
	}
	n := min(int64(len(buf)), end-b.at)
	fillContent(b.version, b.at, buf[:n])
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
