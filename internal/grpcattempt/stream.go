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

// A Choice records which attempt of a stream becomes the caller's stream. It is made once. It is safe for concurrent
// use after Init.
type Choice struct {
	once sync.Once
	made chan struct{} // closed when winner and release are set

	// Read only after made is closed.
	winner  int
	release func() // ends the context of the winner
}

// Init prepares a zero Choice for use.
func (c *Choice) Init() { c.made = make(chan struct{}) }

// Choose chooses attempt n, unless an attempt is chosen already. The function release ends the context of attempt n.
func (c *Choice) Choose(n int, release func()) {
	c.once.Do(func() {
		c.winner, c.release = n, release
		close(c.made)
	})
}

// IsMade reports whether an attempt is chosen.
func (c *Choice) IsMade() bool {
	select {
	case <-c.made:
		return true
	default:
		return false
	}
}

// Winner waits until an attempt is chosen, and returns its number.
func (c *Choice) Winner() int {
	<-c.made
	return c.winner
}

// ReleaseWinner waits until an attempt is chosen, and ends its context.
func (c *Choice) ReleaseWinner() {
	<-c.made
	c.release()
}

// A SentRequest stores the request message of a stream. Hedges copy it until Close is called. The zero value has no
// message. It is safe for concurrent use.
type SentRequest struct {
	mu      sync.Mutex // guards the fields below; held while the message is copied
	sentAt  time.Time  // time of the first SendMsg; zero: there was none
	request Request    // of the message
	closed  bool
	buffers *Buffers // pool of memory; nil: no memory is in use
	memory  *[]byte  // memory of the encoded message
}

// KeepMessage stores the message of r, which the caller sends now. It encodes the message into memory of buffers,
// because the caller may change the message after SendMsg. It reports false if the message cannot be copied. If buffers
// is nil, it does not encode, and hedges cannot copy the message.
func (s *SentRequest) KeepMessage(r Request, buffers *Buffers) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sentAt.IsZero() {
		s.sentAt = time.Now()
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

// SentAt returns the time of the first SendMsg, or the zero time.
func (s *SentRequest) SentAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sentAt
}

// HasMessage reports whether CopyMessage can copy a message.
func (s *SentRequest) HasMessage() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.request.isEncoded && s.request.IsCloneable()
}

// CopyMessage returns a copy of the message. It reports false if there is no message, the message cannot be copied, or
// Close was called.
func (s *SentRequest) CopyMessage() (message any, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.request.isEncoded {
		return nil, false
	}
	return s.request.Copy()
}

// Close prevents further copies and releases the memory. It waits for copies in progress.
func (s *SentRequest) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.request.encoded = true, nil
	if s.memory != nil {
		s.buffers.putBuffer(s.memory)
		s.memory = nil
	}
}

// MaxBuffer is the largest size in bytes of memory that is returned to the pool.
const MaxBuffer = 64 << 10

// A Buffers is a pool of memory for encoded requests of streams. The zero value is ready to use. It is safe for
// concurrent use.
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

// An UnhedgedReport reports the end of a call without hedges at most once. The zero value reports nothing. It is safe
// for concurrent use.
type UnhedgedReport struct {
	mu   sync.Mutex
	done func(answered bool) // nil: Begin was not called, or the end is reported
}

// Begin sets the function that the next Done calls.
func (o *UnhedgedReport) Begin(done func(answered bool)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = done
}

// Done calls the function that Begin has set, in the first call after Begin. It does nothing otherwise.
func (o *UnhedgedReport) Done(answered bool) {
	o.mu.Lock()
	done := o.done
	o.done = nil
	o.mu.Unlock()
	if done != nil {
		done(answered)
	}
}

// A RecvObserver is a stream that calls the function Done after each RecvMsg.
type RecvObserver struct {
	grpc.ClientStream
	Done func(error)
}

// RecvMsg receives a message, and calls Done with the error or nil.
func (s *RecvObserver) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.Done(err)
	return err
}

// An EarlyContext is the context that the caller gets from a stream before an attempt is chosen. The zero value is
// ready to use. It is safe for concurrent use.
type EarlyContext struct {
	mu     sync.Mutex         // guards the fields below
	ctx    context.Context    // nil: Get was not called
	cancel context.CancelFunc // ends ctx
	ended  bool               // End was called
}

// Get returns the context; all calls return the same one. It ends with the caller's context, at the deadline of the
// primary's stream, and by End. It has the values of the primary's stream, such as the codec for [grpc.PreparedMsg].
func (e *EarlyContext) Get(caller, primary context.Context) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx == nil {
		e.ctx, e.cancel = joinContexts(caller, primary)
		if e.ended {
			e.cancel()
		}
	}
	return e.ctx
}

// ContextOf returns the context of the stream s, or caller if s has none. A stream made for a test may panic or return
// nil.
func ContextOf(s grpc.ClientStream, caller context.Context) (ctx context.Context) {
	defer func() {
		if recover() != nil || ctx == nil {
			ctx = caller
		}
	}()
	return s.Context()
}

// A joinedContext ends with one context and has the values of another.
type joinedContext struct {
	context.Context
	values context.Context
}

// joinContexts returns a context with the values of the context values. It ends with the context ends, at the deadline
// of values, and by the returned function.
func joinContexts(ends, values context.Context) (context.Context, context.CancelFunc) {
	stop := func() {}
	if deadline, ok := values.Deadline(); ok {
		ends, stop = context.WithDeadline(ends, deadline)
	}
	ends, cancel := context.WithCancel(ends)
	return &joinedContext{ends, values}, func() { cancel(); stop() }
}

// Value returns a value of the context values. Exception: package context looks for the cancellable parent of c by an
// internal key, for which that parent returns itself.
func (c *joinedContext) Value(key any) any {
	if v := c.Context.Value(key); v == any(c.Context) {
		return v
	}
	return c.values.Value(key)
}

// End ends the context, even if Get is called later.
func (e *EarlyContext) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	if e.ctx != nil {
		e.cancel()
	}
}

// A failedStream is the stream of an attempt that could not open a stream.
type failedStream struct {
	ctx context.Context // has ended
	err error           // reason of the failure
}

// NewFailedStream returns an ended stream for an attempt that could not open a stream because of err. Its RecvMsg
// returns err. It can become the caller's stream.
func NewFailedStream(ctx context.Context, err error) grpc.ClientStream {
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

// A FinishNotifier decides when to call the functions of the caller's [grpc.OnFinish] options: once, when the winner
// has ended. It is safe for concurrent use.
type FinishNotifier struct {
	Functions []func(error) // set before the first attempt starts, and not changed afterwards

	mu sync.Mutex // guards the fields below
	// errors of the attempts that have ended, by number
	ended    [1 + race.MaxHedges]*error
	reported bool // ClaimResult has returned true
}

// A UnaryFinishNotifier is a [FinishNotifier] for unary calls. It observes the end of attempts by call options and
// calls the functions itself. It is safe for concurrent use.
type UnaryFinishNotifier struct {
	FinishNotifier
	winner atomic.Pointer[int] // nil: no attempt is chosen yet
}

// Option returns a call option for attempt n that reports the end of the attempt to f.
func (f *UnaryFinishNotifier) Option(n int) grpc.CallOption {
	return grpc.OnFinish(func(err error) {
		f.RecordEnd(n, err)
		f.callIfDue()
	})
}

// Choose sets the winner. The functions are called at once if the winner has ended, or when it ends.
func (f *UnaryFinishNotifier) Choose(winner int) {
	f.winner.Store(&winner)
	f.callIfDue()
}

// callIfDue calls the functions if the winner is known and has ended, and they were not called before.
func (f *UnaryFinishNotifier) callIfDue() {
	winner := f.winner.Load()
	if winner == nil {
		return
	}
	if due, err := f.ClaimResult(*winner); due {
		for _, function := range f.Functions {
			function(err)
		}
	}
}

// RecordEnd records that attempt n has ended with err, which may be nil.
func (f *FinishNotifier) RecordEnd(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[n] = &err
}

// ClaimResult returns true and the error of the winner once, if the winner has ended. The caller must then call the
// functions with the error.
func (f *FinishNotifier) ClaimResult(winner int) (due bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reported || f.ended[winner] == nil {
		return false, nil
	}
	f.reported = true
	return true, *f.ended[winner]
}
