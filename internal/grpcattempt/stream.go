package grpcattempt

import (
	"context"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/race"
)

// A Choice is which attempt is the call. It is made once, and safe for concurrent use after Init.
type Choice struct {
	once sync.Once
	made chan struct{} // closed when the fields below are written

	// Read only after made is closed.
	winner  int
	release func() // ends the winner's context
}

// Init makes a zero Choice ready.
func (c *Choice) Init() { c.made = make(chan struct{}) }

// Make makes attempt n the call, unless the choice is made. release ends its context.
func (c *Choice) Make(n int, release func()) {
	c.once.Do(func() {
		c.winner, c.release = n, release
		close(c.made)
	})
}

// Known reports whether the choice is made.
func (c *Choice) Known() bool {
	select {
	case <-c.made:
		return true
	default:
		return false
	}
}

// Winner waits for the choice, and returns the attempt that is the call.
func (c *Choice) Winner() int {
	<-c.made
	return c.winner
}

// Release ends the winner's context. It waits for the choice.
func (c *Choice) Release() {
	<-c.made
	c.release()
}

// Sent is the message that the caller of a stream has sent. Hedges may copy it until it is known
// which attempt is the call. The zero Sent has none. It is safe for concurrent use.
type Sent struct {
	mu      sync.Mutex // guards the fields below, and is held while the request is copied
	at      time.Time  // when the first message was sent; zero: none was yet
	request Request    // of the message
	closed  bool
	buffers *Buffers // from which memory is; nil: there is no memory
	memory  *[]byte  // for the encoded request
}

// Keep stores the message of r, which the caller sends. With buffers, it encodes the message, because callers may change it once SendMsg has
// returned, and reports false if that fails. Without buffers, no hedge can copy the message.
func (s *Sent) Keep(r Request, buffers *Buffers) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() {
		s.at = time.Now()
	}
	if buffers != nil && !s.closed {
		if s.memory == nil {
			s.buffers, s.memory = buffers, buffers.get()
		}
		*s.memory = r.Encode(*s.memory)
	}
	s.request = r
	return r.Divisible()
}

// At returns when the first message was sent, or zero.
func (s *Sent) At() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// Any reports whether there is a message that can be copied.
func (s *Sent) Any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.request.kept && s.request.Divisible()
}

// Copy returns a copy of the message. It returns false if there is none, or Close was called.
func (s *Sent) Copy() (message any, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.request.kept {
		return nil, false
	}
	return s.request.Copy()
}

// Close ends copying, and gives the memory back. It waits until nobody copies the message.
func (s *Sent) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.request.encoded = true, nil
	if s.memory != nil {
		s.buffers.put(s.memory)
		s.memory = nil
	}
}

// MaxBuffer is the number of bytes that memory for encoded requests has at most when it is kept for another call.
const MaxBuffer = 64 << 10

// Buffers are memory for the encoded requests of streams. The zero Buffers are ready. They are safe for concurrent use.
type Buffers struct{ pool sync.Pool } // of *[]byte

func (b *Buffers) get() *[]byte {
	if memory, ok := b.pool.Get().(*[]byte); ok {
		return memory
	}
	return new([]byte)
}

func (b *Buffers) put(memory *[]byte) {
	if cap(*memory) <= MaxBuffer {
		b.pool.Put(memory)
	}
}

// Once is the end of a call that is sent once, of which somebody is to be told. The zero Once has not begun. It is safe for
// concurrent use.
type Once struct {
	mu   sync.Mutex
	done func(answered bool) // nil: the call has not begun, or has ended
}

// Begin says that the call has begun. Its end is told to done.
func (o *Once) Begin(done func(answered bool)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = done
}

// Done says that the call has ended, if it has begun and not ended before.
func (o *Once) Done(answered bool) {
	o.mu.Lock()
	done := o.done
	o.done = nil
	o.mu.Unlock()
	if done != nil {
		done(answered)
	}
}

// FirstMessage is a stream that calls Done when there is a message, or the end, each time.
type FirstMessage struct {
	grpc.ClientStream
	Done func(error)
}

// RecvMsg calls Done with its error.
func (s *FirstMessage) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.Done(err)
	return err
}

// An EarlyContext is the context of a stream until it is known which attempt is the call. The zero EarlyContext is ready. It is
// safe for concurrent use.
type EarlyContext struct {
	mu     sync.Mutex         // guards the fields below
	ctx    context.Context    // nil: the caller has not asked for it
	cancel context.CancelFunc // ends ctx
	over   bool               // the call has ended
}

// Get returns the context. The first call makes it: it ends with the caller's context, with the deadline of the primary's stream, and by
// End. Its values are those of the context of the primary's stream, such as the codec by which [grpc.PreparedMsg] is encoded.
func (e *EarlyContext) Get(caller, primary context.Context) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx == nil {
		e.ctx, e.cancel = joinContexts(caller, primary)
		if e.over {
			e.cancel()
		}
	}
	return e.ctx
}

// ContextOf returns the context of a stream. It is the context of the caller if the stream has none, as a stream made for a test may have.
func ContextOf(s grpc.ClientStream, caller context.Context) (ctx context.Context) {
	defer func() {
		if recover() != nil || ctx == nil {
			ctx = caller
		}
	}()
	return s.Context()
}

// A joinedContext ends with one context, and has the values of another.
type joinedContext struct {
	context.Context
	values context.Context
}

// joinContexts returns a context that ends with ends, by its cancel function, and when the deadline of values has passed.
func joinContexts(ends, values context.Context) (context.Context, context.CancelFunc) {
	stop := func() {}
	if deadline, ok := values.Deadline(); ok {
		ends, stop = context.WithDeadline(ends, deadline)
	}
	ends, cancel := context.WithCancel(ends)
	return &joinedContext{ends, values}, func() { cancel(); stop() }
}

// Value returns values of the other context. Package context finds the end of c by a key for which a cancellable context returns itself.
func (c *joinedContext) Value(key any) any {
	if v := c.Context.Value(key); v == any(c.Context) {
		return v
	}
	return c.values.Value(key)
}

// End ends the context, also if it is made later.
func (e *EarlyContext) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	if e.ctx != nil {
		e.cancel()
	}
}

// unopened is the stream of an attempt that could not open one.
type unopened struct {
	ctx context.Context // ended
	err error           // why
}

// Unopened returns the stream of an attempt that could not open one because of err. It has ended. It may be the call: a
// hedge's failure may end that.
func Unopened(ctx context.Context, err error) grpc.ClientStream {
	ended, cancel := context.WithCancelCause(ctx)
	cancel(err)
	return unopened{ended, err}
}

func (u unopened) Header() (metadata.MD, error) { return nil, u.err }
func (u unopened) Trailer() metadata.MD         { return nil }
func (u unopened) CloseSend() error             { return nil }
func (u unopened) Context() context.Context     { return u.ctx }
func (u unopened) SendMsg(any) error            { return io.EOF } // RecvMsg has the status
func (u unopened) RecvMsg(any) error            { return u.err }

// Finish says when to call the functions of a caller's OnFinish: once, when the attempt that is the call has ended. An
// attempt that was never started does not end. It is safe for concurrent use.
type Finish struct {
	Functions []func(error) // written before the first attempt, and not changed after it

	mu     sync.Mutex // guards the fields below
	ended  [1 + race.MaxHedges]*error
	chosen bool // winner is known
	winner int
	told   bool // Due has reported true
}

// Option returns what tells of the end of attempt n of a unary call.
func (f *Finish) Option(n int) grpc.CallOption {
	return grpc.OnFinish(func(err error) {
		f.Ended(n, err)
		f.call()
	})
}

// Choose says which attempt a unary call is, and calls the functions if that has ended. Otherwise they are called when it does.
func (f *Finish) Choose(winner int) {
	f.mu.Lock()
	f.chosen, f.winner = true, winner
	f.mu.Unlock()
	f.call()
}

// call calls the functions if they are due.
func (f *Finish) call() {
	f.mu.Lock()
	chosen, winner := f.chosen, f.winner
	f.mu.Unlock()
	if !chosen {
		return
	}
	if due, err := f.Due(winner); due {
		for _, function := range f.Functions {
			function(err)
		}
	}
}

// Ended says that attempt n has ended with err.
func (f *Finish) Ended(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[n] = &err
}

// Due reports whether the functions are to be called now, with the winner's error: it has ended,
// and Due has not reported true before.
func (f *Finish) Due(winner int) (due bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told || f.ended[winner] == nil {
		return false, nil
	}
	f.told = true
	return true, *f.ended[winner]
}
