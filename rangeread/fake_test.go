package rangeread_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/rangeread"
)

// period is how often the bytes of an object repeat: a prime, which is no part of any size.
const period = 65_521

// patterns are the first period bytes of the objects of each version, twice.
var patterns = func() (all [64][]byte) {
	for v := range all {
		random := rand.New(rand.NewPCG(uint64(v), 1))
		p := make([]byte, period)
		for i := range p {
			p[i] = byte(random.Uint32())
		}
		all[v] = append(p, p...)
	}
	return all
}()

// fill writes the bytes of that version at offset off to p.
func fill(version int, off int64, p []byte) {
	for len(p) > 0 {
		n := copy(p, patterns[version][off%period:])
		p, off = p[n:], off+int64(n)
	}
}

// same reports whether p has the bytes of that version at offset off.
func same(version int, off int64, p []byte) bool {
	for len(p) > 0 {
		want := patterns[version][off%period:]
		n := min(len(want), len(p))
		if !bytes.Equal(want[:n], p[:n]) {
			return false
		}
		p, off = p[n:], off+int64(n)
	}
	return true
}

// isOf requires that p has the bytes of that version at offset off.
func isOf(t testing.TB, version int, off int64, p []byte) {
	t.Helper()
	require.True(t, same(version, off, p), "%d bytes at %d are not those of version %d", len(p), off, version)
}

// An answer is the behaviour of a fake store for one request. The zero answer is a correct response without delay.
type answer struct {
	first  time.Duration // until Fetch returns
	stall  time.Duration // in the body, once
	after  int64         // bytes of the body before the stall
	every  time.Duration // between two Reads
	cut    int64         // bytes after which the body ends, with err; 0: it is whole
	err    error         // of Fetch, or of the body if cut or broken
	broken bool          // the body fails at once
	deaf   bool          // contexts are ignored
	spoils bool          // what comes after the stall is wrong
	panics bool          // Fetch does
	whole  bool          // the Range is ignored
	blunt  bool          // neither the length nor the size are told
	shift  int64         // the body starts so many bytes later than asked
	blind  bool          // Match is ignored
	next   bool          // another version is there from this request on
	info   func(*rangeread.Info)
}

// A fake is a store with one object.
type fake struct {
	size    int64 // of version 0; each later one is grow larger
	grow    int64
	version atomic.Int64
	tagless bool
	plan    func(n int, r rangeread.Range) answer // of request n, from 0 on; nil: zero

	mu     sync.Mutex // guards the fields below
	asked  []rangeread.Range
	at     []time.Duration // since began
	began  time.Time
	open   int // bodies
	sent   int64
	closed int
}

func newFake(size int64) *fake { return &fake{size: size, began: time.Now()} }

// now returns the present version and its tag.
func (f *fake) now() (version int, tag string) {
	version = int(f.version.Load())
	if f.tagless {
		return version, ""
	}
	return version, fmt.Sprintf(`"%d"`, version)
}

// fetch is a rangeread.Fetch.
func (f *fake) fetch(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
	f.mu.Lock()
	n := len(f.asked)
	f.asked, f.at = append(f.asked, r), append(f.at, time.Since(f.began))
	f.mu.Unlock()
	var a answer
	if f.plan != nil {
		a = f.plan(n, r)
	}
	if a.panics {
		panic("the store is on fire")
	}
	if err := wait(ctx, a.first, a.deaf); err != nil {
		return nil, rangeread.Info{}, err
	}
	if a.next {
		f.version.Add(1)
	}
	version, tag := f.now()
	size := f.size + f.grow*int64(version)
	switch {
	case a.err != nil && a.cut == 0 && !a.broken:
		return nil, rangeread.Info{}, a.err
	case r.Match != "" && r.Match != tag && !a.blind:
		return nil, rangeread.Info{}, fmt.Errorf("status 412: %w", rangeread.ErrChanged)
	case r.Offset >= size && !a.whole:
		return nil, rangeread.Info{}, io.EOF
	}
	if a.whole {
		r.Offset, r.Length = 0, size
	}
	end := min(r.Offset+r.Length, size)
	r.Offset = min(max(r.Offset+a.shift, 0), end)
	length := end - r.Offset
	info := rangeread.Info{Offset: r.Offset, Length: length, Size: size, Tag: tag}
	if a.blunt {
		info.Length, info.Size = -1, -1
	}
	if a.info != nil {
		a.info(&info)
	}
	f.mu.Lock()
	f.open++
	f.mu.Unlock()
	return &fakeBody{f: f, ctx: ctx, a: a, version: version, at: r.Offset, from: r.Offset, end: r.Offset + length}, info, nil
}

// requests returns what was asked, and when.
func (f *fake) requests() ([]rangeread.Range, []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]rangeread.Range(nil), f.asked...), append([]time.Duration(nil), f.at...)
}

// bytesSent returns how many bytes were read from bodies.
func (f *fake) bytesSent() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent
}

// allClosed requires that each body was closed once.
func (f *fake) allClosed(t testing.TB) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Equal(t, f.open, f.closed, "bodies that were closed")
}

type fakeBody struct {
	f             *fake
	ctx           context.Context
	a             answer
	version       int
	at, from, end int64
	stalled       bool
	closed        bool
}

func (b *fakeBody) Read(p []byte) (int, error) {
	if b.closed {
		panic("read after close")
	}
	if b.a.broken {
		return 0, b.a.err
	}
	if err := wait(b.ctx, b.a.every, b.a.deaf); err != nil {
		return 0, err
	}
	end, err := b.end, io.EOF
	if b.a.cut > 0 && b.from+b.a.cut < end {
		end, err = b.from+b.a.cut, b.a.err
		if err == nil {
			err = io.EOF
		}
	}
	if b.a.stall > 0 && !b.stalled {
		if b.at-b.from >= b.a.after {
			b.stalled = true
			if err := wait(b.ctx, b.a.stall, b.a.deaf); err != nil {
				return 0, err
			}
		} else {
			end, err = min(end, b.from+b.a.after), nil
		}
	}
	n := int(min(int64(len(p)), end-b.at))
	fill(b.version, b.at, p[:n])
	if b.stalled && b.a.spoils {
		clear(p)
	}
	b.at += int64(n)
	b.f.mu.Lock()
	b.f.sent += int64(n)
	b.f.mu.Unlock()
	if b.at == end {
		return n, err
	}
	return n, nil
}

func (b *fakeBody) Close() error {
	if b.closed {
		panic("closed twice")
	}
	b.closed = true
	b.f.mu.Lock()
	b.f.closed++
	b.f.mu.Unlock()
	return nil
}

// wait waits, until the context ends unless it is not heard.
func wait(ctx context.Context, d time.Duration, deaf bool) error {
	if deaf {
		time.Sleep(d)
		return nil
	}
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// warm reads ranges of that length until hedging begins: their first byte takes 10 ms.
func warm(t testing.TB, s *rangeread.Store, length int64) {
	t.Helper()
	f := newFake(length)
	f.plan = func(int, rangeread.Range) answer { return answer{first: 10 * time.Millisecond} }
	p := make([]byte, length)
	for range 40 {
		n, err := s.Open(f.fetch).ReadAt(p, 0)
		require.NoError(t, err)
		require.EqualValues(t, length, n)
	}
}
