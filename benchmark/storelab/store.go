package storelab

import (
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A world is what a store does.
type world struct {
	name, about string
	faulty      bool
	slow        bool // for the reads that Slow says
}

var worlds = []world{
	{name: "storage", faulty: true, about: "reads of 1 MiB from a store 15 ms away; 1 % of the first bytes are 1 s late, and 1 % of the bodies stall for 1 s"},
	{name: "storage-still", about: "the same store without faults"},
	{name: "storage-slow", slow: true, about: "the same without faults, but three reads in ten come while the whole store takes eight times as long"},
}

// Worlds are their names, and About says what each is.
var Worlds, About = func() (names []string, about map[string]string) {
	about = make(map[string]string)
	for _, w := range worlds {
		names, about[w.name] = append(names, w.name), w.about
	}
	return names, about
}()

// What the store takes.
const (
	near   = 15 * time.Millisecond // to the first byte, normally distributed
	spread = 2 * time.Millisecond  // the deviation of that
	step   = 128 << 10             // bytes of a body that come together
	pace   = time.Millisecond / 2  // between two of these
	pause  = time.Second           // of a fault
	often  = 100                   // one request in so many is late, and one stalls
	slower = 8                     // times, while the store is slow
)

// Slow reports whether the whole store is slow when that range is read, in the world of that name.
func Slow(read int32) bool { return read%1000 >= 400 && read%1000 < 700 }

// block is how far apart ranges are at least that meet faults of their own.
const block = Size / 4

// A store is an object store as one contender meets it.
type store struct {
	world
	seed  uint64
	size  int64          // of its object
	part  int64          // of a read, that has a request of its own
	tries []atomic.Int32 // requests for ranges that begin in a block
	reads []account
	open  sync.WaitGroup // requests
}

// An account is what was done for a read.
type account struct {
	requests, asked, sent atomic.Int64
	replaced              atomic.Bool // its last byte came by a request that took the place of another one
}

func newStore(w world, seed uint64, reads, parts int) *store {
	return &store{
		world: w, seed: seed, size: int64(reads) * Size, part: Size / int64(max(parts, 1)),
		tries: make([]atomic.Int32, reads*Size/block), reads: make([]account, reads),
	}
}

// get sends a request for n bytes from off on, within one read. It returns when the first byte is there.
func (s *store) get(ctx context.Context, off, n int64) (*body, error) {
	try := s.tries[off/block].Add(1) - 1
	b := &body{
		store: s, ctx: ctx, account: &s.reads[off/Size], off: off, size: n, pace: pace, stalls: -1,
		first: try == 0 && off%s.part == 0,
	}
	b.account.requests.Add(1)
	b.account.asked.Add(n)
	late := b.draw(rand.New(rand.NewPCG(s.seed, uint64(off/block)<<8|uint64(try))))
	s.open.Add(1)
	if err := sleep(ctx, late); err != nil {
		s.open.Done()
		return nil, err
	}
	b.began = time.Now()
	b.untie = context.AfterFunc(ctx, b.end)
	return b, nil
}

// draw says what happens to a request, and returns when its first byte comes. Stalls begin where a page does.
func (b *body) draw(random *rand.Rand) time.Duration {
	late := max(near+time.Duration(random.NormFloat64()*float64(spread)), near/2)
	kind, share := random.IntN(often), random.Float64()
	switch {
	case b.store.faulty && kind == 0:
		late += pause
	case b.store.faulty && kind == 1:
		b.stalls = int64(share*float64(b.size)) / page * page
	}
	if b.store.slow && Slow(int32(b.off/Size)) {
		late, b.pace = late*slower, b.pace*slower
	}
	return late
}

// sleep returns the error of ctx if that ends sooner.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A body comes in steps, the first one at once.
type body struct {
	store   *store
	ctx     context.Context // of the request
	account *account
	off     int64 // in the object
	size    int64
	first   bool // nobody has asked for the range before
	pace    time.Duration
	stalls  int64 // before that byte; -1: it does not
	began   time.Time
	at      atomic.Int64 // the next byte
	untie   func() bool
	once    sync.Once
}

// when returns at what time a byte of the body comes.
func (b *body) when(at int64) time.Time {
	d := time.Duration(at/step) * b.pace
	if b.stalls >= 0 && at >= b.stalls {
		d += pause
	}
	return b.began.Add(d)
}

// after returns the first byte that may come later than that one.
func (b *body) after(at int64) int64 {
	next := min((at/step+1)*step, b.size)
	if at < b.stalls {
		next = min(next, b.stalls)
	}
	return next
}

func (b *body) Read(p []byte) (int, error) {
	at := b.at.Load()
	if at == b.size {
		return 0, io.EOF
	}
	if err := sleep(b.ctx, time.Until(b.when(at))); err != nil {
		return 0, err
	}
	n := min(int64(len(p)), b.after(at)-at)
	fill(p[:n], b.off+at)
	b.at.Store(at + n)
	if at+n == b.size && (b.off+b.size)%Size == 0 && !b.first {
		b.account.replaced.Store(true)
	}
	return int(n), nil
}

func (b *body) Close() error {
	b.untie()
	b.end()
	return nil
}

// end counts what has come until now.
func (b *body) end() {
	b.once.Do(func() {
		sent, now := b.at.Load(), time.Now()
		for sent < b.size && !b.when(sent).After(now) {
			sent = b.after(sent)
		}
		b.account.sent.Add(sent)
		b.store.open.Done()
	})
}
