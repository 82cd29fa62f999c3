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

// A WinnerChoice records which attempt of a stream becomes the caller's stream. The first choice is final. It is safe for
// concurrent use after Init.
type WinnerChoice struct {
	once sync.Once
	made chan struct{} // closed when winner and release are set

	// Read only after made is closed.
	winner  int
	release func() // ends the context of the winner
}

// Init prepares a zero WinnerChoice for use.
func (c *WinnerChoice) Init() { c.made = make(chan struct{}) }

// Choose chooses attempt n, unless another attempt is already chosen. The function release must end the context of
// attempt n; ReleaseWinner calls it.
func (c *WinnerChoice) Choose(n int, release func()) {
	c.once.Do(func() {
		c.winner, c.release = n, release
		close(c.made)
	})
}

// HasWinner reports whether an attempt has been chosen. If not, Winner would block.
func (c *WinnerChoice) HasWinner() bool {
	select {
	case <-c.made:
		return true
	default:
		return false
	}
}

// Winner waits until an attempt is chosen, and returns the number of the attempt.
func (c *WinnerChoice) Winner() int {
	<-c.made
	return c.winner
}

// ReleaseWinner waits until an attempt is chosen, and ends the context of the attempt.
func (c *WinnerChoice) ReleaseWinner() {
	<-c.made
	c.release()
}

// A SentRequest stores the request message of a stream, so that hedges can send copies until Close is called. The zero
// value holds no message. It is safe for concurrent use.
type SentRequest struct {
	mu      sync.Mutex // guards the fields below; held while the message is copied
	sentAt  time.Time  // time of the first SendMsg; zero if SendMsg was not called
	request Request    // the stored message
	closed  bool       // Close was called
	buffers *Buffers   // pool from which memory was taken; nil if no memory is in use
	memory  *[]byte    // memory that holds the encoded message; nil if none is in use
}

// StoreMessage stores the message of r, which the caller is sending. The result is false if the message cannot be
// copied; then the call cannot be hedged.
//
// StoreMessage encodes the message into memory of buffers, because the caller may change the message after SendMsg. If
// buffers is nil, it does not encode the message, and hedges cannot copy it.
func (s *SentRequest) StoreMessage(r Request, buffers *Buffers) bool {
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

// SentAt returns the time of the first SendMsg, or the zero time if SendMsg was not called.
func (s *SentRequest) SentAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sentAt
}

// HasMessage reports whether StoreMessage has stored a message that CopyMessage can copy.
func (s *SentRequest) HasMessage() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.request.isEncoded && s.request.IsCloneable()
}

// CopyMessage returns a copy of the stored message. The result ok is false if there is no message, the message cannot
// be copied, or Close was called.
func (s *SentRequest) CopyMessage() (message any, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.request.isEncoded {
		return nil, false
	}
	return s.request.Copy()
}

// Close prevents further copies and releases the memory of the message. It waits for copies in progress.
func (s *SentRequest) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.request.encoded = true, nil
	if s.memory != nil {
		s.buffers.putBuffer(s.memory)
		s.memory = nil
	}
}

// MaxBuffer is the largest capacity of a buffer that is kept for reuse, in bytes. Larger buffers are left to the
// garbage collector.
const MaxBuffer = 64 << 10

// A Buffers is a pool of buffers for encoded requests of streams. The zero value is ready to use. It is safe for
// concurrent use.
type Buffers struct{ pool sync.Pool } // of *[]byte

// getBuffer returns a buffer from the pool, or a new buffer.
func (b *Buffers) getBuffer() *[]byte {
	if memory, ok := b.pool.Get().(*[]byte); ok {
		return memory
	}
	return new([]byte)
}

// putBuffer returns a buffer to the pool, unless it is larger than MaxBuffer. The caller must not use it afterwards.
func (b *Buffers) putBuffer(memory *[]byte) {
	if cap(*memory) <= MaxBuffer {
		b.pool.Put(memory)
	}
}

// An UnhedgedReport makes sure that the end of a call without hedges is reported only once, although several events can
// mark the end. The zero value reports nothing. It is safe for concurrent use.
type UnhedgedReport struct {
	mu   sync.Mutex
	done func(answered bool) // reports the end; nil if Begin was not called or the end was reported
}

// Begin sets the function that reports the end of the call. Done calls it.
func (o *UnhedgedReport) Begin(done func(answered bool)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = done
}

// Done reports the end of the call by the function that Begin has set. The argument answered says whether the call
// succeeded. Only the first Done after Begin has an effect.
func (o *UnhedgedReport) Done(answered bool) {
	o.mu.Lock()
	done := o.done
	o.done = nil
	o.mu.Unlock()
	if done != nil {
		done(answered)
	}
}

// A RecvObserver is a stream that calls the function Done after each RecvMsg of the wrapped stream.
type RecvObserver struct {
	grpc.ClientStream
	Done func(error) // gets the error of RecvMsg, or nil
}

// RecvMsg receives a message from the wrapped stream, and calls Done with the result.
func (s *RecvObserver) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.Done(err)
	return err
}

// An EarlyContext holds the context that the caller gets from a stream's method Context before an attempt is chosen.
// The zero value is ready to use. It is safe for concurrent use.
type EarlyContext struct {
	mu     sync.Mutex         // guards the fields below
	ctx    context.Context    // nil if Get was not called
	cancel context.CancelFunc // ends ctx
	ended  bool               // End was called
}

// Get returns the context that the caller of a stream gets before an attempt is chosen. All calls return the same
// context. The first call must pass the caller's context and the context of the primary's stream.
//
// The context ends when the caller's context ends, at the deadline of the primary's stream, or when End is called. It
// has the values of the primary's stream, such as the codec for [grpc.PreparedMsg].
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

// ContextOf returns the context of stream s. If s has no context or its method Context panics, as may be with streams
// made for tests, it returns the context caller.
func ContextOf(s grpc.ClientStream, caller context.Context) (ctx context.Context) {
	defer func() {
		if recover() != nil || ctx == nil {
			ctx = caller
		}
	}()
	return s.Context()
}

// A joinedContext ends when the embedded context ends, and has the values of another context.
type joinedContext struct {
	context.Context
	values context.Context
}

// joinContexts returns a context that has the values of one context and ends with another. Its values are those of the
// context values. It ends with the context parent, at the deadline of values, or when the returned function is called.
func joinContexts(parent, values context.Context) (context.Context, context.CancelFunc) {
	stop := func() {}
	if deadline, ok := values.Deadline(); ok {
		parent, stop = context.WithDeadline(parent, deadline)
	}
	parent, cancel := context.WithCancel(parent)
	return &joinedContext{parent, values}, func() { cancel(); stop() }
}

// Value returns the value that the context values has for the key. An exception is the internal key by which package
// context finds the parent of a context. For that key, Value returns the embedded context, so that children end with
// it.
func (c *joinedContext) Value(key any) any {
	if v := c.Context.Value(key); v == any(c.Context) {
		return v
	}
	return c.values.Value(key)
}

// End ends the context. If Get is called later, it returns a context that has ended.
func (e *EarlyContext) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	if e.ctx != nil {
		e.cancel()
	}
}

// A failedStream is the [grpc.ClientStream] of an attempt whose stream could not be opened. Its methods report the
// error.
type failedStream struct {
	ctx context.Context // a context that has ended
	err error           // reason of the failure
}

// NewFailedStream returns a stream for an attempt whose own stream could not be opened because of err. Header and
// RecvMsg return err. Its context is a child of ctx that has ended. If the attempt wins, the caller gets this stream.
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

// A FinishNotifier decides when to call the functions of the caller's [grpc.OnFinish] options. They must be called when
// the winner has ended. A later interceptor in the chain may start several RPCs for the winner; then they must be called
// at the end of each, as without hedging. It is safe for concurrent use.
type FinishNotifier struct {
	Functions []func(error) // the caller's OnFinish functions; must be set before the first attempt starts, and not be changed afterwards

	mu sync.Mutex // guards the fields below
	// errors of the latest RPCs that have ended, by number of the attempt; nil if none has ended, or ClaimResult has returned it
	ended [1 + race.MaxHedges]*error
}

// A UnaryFinishNotifier is a [FinishNotifier] for unary calls. It observes the end of each attempt by the call option
// that Option returns, and calls the caller's OnFinish functions itself. It is safe for concurrent use.
type UnaryFinishNotifier struct {
	FinishNotifier
	winner atomic.Pointer[int] // number of the winning attempt; nil if there is no winner yet
}

// CallOption returns a call option that reports the end of attempt n to f. Each attempt must be made with its option.
func (f *UnaryFinishNotifier) CallOption(n int) grpc.CallOption {
	return grpc.OnFinish(func(err error) {
		f.RecordEnd(n, err)
		f.callIfDue()
	})
}

// Choose records that attempt winner has won. If that attempt has already ended, Choose calls the caller's OnFinish
// functions now. Otherwise they are called when it ends.
func (f *UnaryFinishNotifier) Choose(winner int) {
	f.winner.Store(&winner)
	f.callIfDue()
}

// callIfDue calls the caller's OnFinish functions if the winner is known and has ended. It calls them once for each end.
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

// RecordEnd records that an RPC of attempt n has ended with the status err, which is nil for a success.
func (f *FinishNotifier) RecordEnd(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[n] = &err
}

// ClaimResult decides whether its caller must now call the OnFinish functions. The result due is true if an RPC of
// attempt winner has ended since ClaimResult has last returned true. The functions must then be called with err, the
// status of that RPC.
func (f *FinishNotifier) ClaimResult(winner int) (due bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	end := f.ended[winner]
	if end == nil {
		return false, nil
	}
	f.ended[winner] = nil
	return true, *end
}
