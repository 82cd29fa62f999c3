package grpcattempt

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/race"
)

// A Choice records which attempt becomes the call. It is made once. It is safe for concurrent use after Init.
type Choice struct {
	once sync.Once
	made chan struct{} // closed when the fields below are written

	// Read only after made is closed.
	winner  int
	release func() // ends the winner's context
}

// Init makes a zero Choice ready.
func (c *Choice) Init() { c.made = make(chan struct{}) }

// Choose makes attempt n the call, unless the choice is made. The function release ends the context of the attempt.
func (c *Choice) Choose(n int, release func()) {
	c.once.Do(func() {
		c.winner, c.release = n, release
		close(c.made)
	})
}

// IsMade reports whether the choice is made.
func (c *Choice) IsMade() bool {
	select {
	case <-c.made:
		return true
	default:
		return false
	}
}

// Winner waits for the choice, and returns the chosen attempt.
func (c *Choice) Winner() int {
	<-c.made
	return c.winner
}

// ReleaseWinner ends the context of the chosen attempt. It waits for the choice.
func (c *Choice) ReleaseWinner() {
	<-c.made
	c.release()
}

// SentRequest holds the request of a stream. Hedges may copy it until the choice is made. The zero SentRequest has none. It is safe for concurrent use.
type SentRequest struct {
	mu      sync.Mutex // guards the fields below, and is held while the request is copied
	at      time.Time  // when the first message was sent; zero: none was yet
	request Request    // of the message
	closed  bool
	buffers *Buffers // from which memory is; nil: there is no memory
	memory  *[]byte  // for the encoded request
}

// KeepMessage stores the message of r, which the caller sends. With buffers, it encodes the message, because the caller may change it after SendMsg, and
// reports false if that fails. Without buffers, hedges cannot copy the message.
func (s *SentRequest) KeepMessage(r Request, buffers *Buffers) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() {
		s.at = time.Now()
	}
	if buffers != nil && !s.closed {
		if s.memory == nil {
			s.buffers, s.memory = buffers, buffers.getBuffer()
		}
		*s.memory = r.Encode(*s.memory)
	}
	s.request = r
	return r.IsCloneable()
}

// SentAt returns the time at which the first message was sent; zero: none was.
func (s *SentRequest) SentAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// HasMessage reports whether there is a message that can be copied.
func (s *SentRequest) HasMessage() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.request.isEncoded && s.request.IsCloneable()
}

// CopyMessage returns a copy of the message. It returns false if there is none, or Close was called.
func (s *SentRequest) CopyMessage() (message any, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.request.isEncoded {
		return nil, false
	}
	return s.request.Copy()
}

// Close ends copying, and releases the memory. It waits for copies in progress.
func (s *SentRequest) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.request.encoded = true, nil
	if s.memory != nil {
		s.buffers.putBuffer(s.memory)
		s.memory = nil
	}
}

// MaxBuffer is the largest size in bytes of memory for encoded requests that is kept for another call.
const MaxBuffer = 64 << 10

// Buffers is a pool of memory for the encoded requests of streams. The zero Buffers is ready. It is safe for concurrent use.
type Buffers struct{ pool sync.Pool } // of *[]byte

func (b *Buffers) getBuffer() *[]byte {
	if memory, ok := b.pool.Get().(*[]byte); ok {
		return memory
	}
	return new([]byte)
}

func (b *Buffers) putBuffer(memory *[]byte) {
	if cap(*memory) <= MaxBuffer {
		b.pool.Put(memory)
	}
}

// An UnhedgedReport reports the end of a call without hedges once. The zero UnhedgedReport has not begun. It is safe for concurrent use.
type UnhedgedReport struct {
	mu   sync.Mutex
	done func(answered bool) // nil: the call has not begun, or has ended
}

// Begin sets the function that Done calls.
func (o *UnhedgedReport) Begin(done func(answered bool)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = done
}

// Done calls the function of Begin in the first call after Begin, and has no effect otherwise.
func (o *UnhedgedReport) Done(answered bool) {
	o.mu.Lock()
	done := o.done
	o.done = nil
	o.mu.Unlock()
	if done != nil {
		done(answered)
	}
}

// A FirstMessage is a stream that calls Done after each RecvMsg.
type FirstMessage struct {
	grpc.ClientStream
	Done func(error)
}

// RecvMsg receives a message, and calls Done with the error.
func (s *FirstMessage) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.Done(err)
	return err
}

// An EarlyContext is the context of a stream until the choice is made. The zero EarlyContext is ready. It is safe for concurrent use.
type EarlyContext struct {
	mu     sync.Mutex         // guards the fields below
	ctx    context.Context    // nil: the caller has not asked for it
	cancel context.CancelFunc // ends ctx
	over   bool               // the call has ended
}

// Get returns the context, and makes it in the first call. It ends with the caller's context, at the deadline of the primary's stream, and by End.
// Its values are those of the primary's stream, such as the codec for [grpc.PreparedMsg].
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

// failedStream is the stream of an attempt whose stream could not be opened.
type failedStream struct {
	ctx context.Context // ended
	err error           // why
}

// FailedStream returns an ended stream for an attempt whose stream could not be opened because of err. It can become the call.
func FailedStream(ctx context.Context, err error) grpc.ClientStream {
	ended, cancel := context.WithCancelCause(ctx)
	cancel(err)
	return failedStream{ended, err}
}

func (u failedStream) Header() (metadata.MD, error) { return nil, u.err }
func (u failedStream) Trailer() metadata.MD         { return nil }
func (u failedStream) CloseSend() error             { return nil }
func (u failedStream) Context() context.Context     { return u.ctx }
func (u failedStream) SendMsg(any) error            { return io.EOF } // RecvMsg has the status
func (u failedStream) RecvMsg(any) error            { return u.err }

// Finish calls the functions of the OnFinish options of a caller once, when the chosen attempt has ended. An attempt that has not started does not
// end. It is safe for concurrent use.
type Finish struct {
	Functions []func(error) // written before the first attempt, and not changed after it

	mu       sync.Mutex // guards the fields below
	ended    [1 + race.MaxHedges]*error
	reported bool // Due has reported true
}

// A UnaryFinish is the Finish of a unary call. It reports the end of attempts by options of its own. It is safe for concurrent use.
type UnaryFinish struct {
	Finish
	winner atomic.Pointer[int] // nil: no attempt is chosen yet
}

// Option returns the option that reports the end of attempt n to f.
func (f *UnaryFinish) Option(n int) grpc.CallOption {
	return grpc.OnFinish(func(err error) {
		f.Ended(n, err)
		f.callDue()
	})
}

// Choose sets the chosen attempt. The functions are called now if that has ended, or when it ends.
func (f *UnaryFinish) Choose(winner int) {
	f.winner.Store(&winner)
	f.callDue()
}

// callDue calls the functions if they are due.
func (f *UnaryFinish) callDue() {
	winner := f.winner.Load()
	if winner == nil {
		return
	}
	if due, err := f.Due(*winner); due {
		for _, function := range f.Functions {
			function(err)
		}
	}
}

// Ended records that attempt n has ended with err.
func (f *Finish) Ended(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[n] = &err
}

// Due reports once whether the functions are to be called now: attempt winner has ended. It returns the error of that attempt.
func (f *Finish) Due(winner int) (due bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reported || f.ended[winner] == nil {
		return false, nil
	}
	f.reported = true
	return true, *f.ended[winner]
}
