package hedge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/pattern"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/internal/upload"
	"github.com/gohedge/hedge/observe"
)

// hedgesRefusedAbove times the limit is how many requests there may be, at work and in the queue,
// before a Limiter turns hedges away. It bounds what the hedges of clients that do not
// cancel can add to the queue. Where losers leave the queue it costs little: simulated at 80 %
// load, p99 is 182 ms with 1, 161 with 4 and 155 without such a bound.
const hedgesRefusedAbove = 4

// A Limiter stands before the handlers of a server, and lets them work on a number of
// requests at a time. The others wait in a queue, first come first served. A request whose
// caller goes away while it waits never reaches the handler. That is what makes hedging
// cheap for a busy server: it works on hedges that nobody waits for any more only if they
// had reached the handler before.
//
// Hedges are turned away while more than four times as many requests are there as are worked
// on at a time. HTTP hedges are recognised by [AttemptHeader], gRPC's by grpc-previous-rpc-attempts,
// which gRPC's retries carry as well. A client that marks all that it sends does that at its
// own cost. Over HTTP the answer is 503 with "Hedge-Refused: 1", and over gRPC UNAVAILABLE
// with that in the trailer. To clients of this package such a hedge has [Lost]: their call goes on,
// it is no push-back, and no latency is learned from it. It has spent its part of their
// budget, and counts as a hedge that did not win.
//
// Nothing else is turned away, so the queue can be as long as it would be without a Limiter.
// Where that is too long, bound what comes to the Limiter.
//
// Answers say "Hedge-Limit: 1", over gRPC in the trailer. A [Transport] then marks its hedges to that host, and over HTTP/1.1 cancels those
// losers there that can be cancelled at once, instead of leaving them to finish, see [WithLinger]. Each of them costs a connection, and spares
// the server the work if it was in the queue.
//
// A request is worked on until its handler returns. A handler that goes on for hours and does
// little, such as that of a WebSocket, an event stream or a gRPC watch, calls
// [Limiter.Release]. gRPC's health checks and reflection need no slot, see
// [WithLimitedHealthChecks]. [WithUnlimited] names others. A server whose handlers call the server itself may need a slot for each
// of those calls as well: its limit must leave room for those calls.
//
// A Limiter is safe for concurrent use, by any number of handlers and by HTTP and gRPC
// together. A request that meets the same Limiter twice takes one slot, until the handlers of
// both have returned, but one that has given its slot back takes another. The zero Limiter is not usable; NewLimiter makes one.
type Limiter struct {
	name      string
	slots     *limit.ConcurrencyLimit
	unlimited *pattern.Set        // what passes; nil: nothing
	watcher   *observers.Notifier // nil: there are no observers
	uploads   upload.MemoryPool

	limitsHealthChecks bool // see WithLimitedHealthChecks

	worked, left, refused atomic.Int64
	panics                atomic.Int64 // of observers
}

// NewLimiter returns a Limiter that lets n requests be worked on at a time: as many as the
// server can work on at full speed, such as a few for each of its processors where they
// compute. NewLimiter panics if n is not positive.
func NewLimiter(n int, opts ...LimiterOption) *Limiter {
	if n <= 0 {
		panic(fmt.Sprintf("hedge: NewLimiter: n is %d, and must be at least 1", n))
	}
	var c config
	applyOptions(&c, opts, LimiterOption.applyLimiter)
	l := &Limiter{name: c.name, slots: limit.New(n), limitsHealthChecks: c.limitsHealthChecks}
	for _, p := range c.unlimited {
		if l.unlimited == nil {
			l.unlimited = new(pattern.Set)
		}
		_ = l.unlimited.Add(p) // WithUnlimited has tried it
	}
	log := ops.NewLog(c.logger, "hedge", "limiter", c.name, &l.panics)
	l.watcher = observers.NewNotifier(c.observers, log.LogObserverPanic)
	return l
}

// A LimiterSnapshot is what a [Limiter] is doing and has done.
type LimiterSnapshot = observe.LimiterSnapshot

// Snapshot returns what the Limiter is doing and has done.
func (l *Limiter) Snapshot() LimiterSnapshot {
	l.mustBeInitialized()
	s := LimiterSnapshot{
		Name: l.name, Limit: int(l.slots.Capacity()),
		Working: l.slots.ActiveCount(), Worked: l.worked.Load(), Left: l.left.Load(), Refused: l.refused.Load(),
	}
	s.Waiting = max(l.slots.RequestCount()-s.Working, 0)
	return s
}

func (l *Limiter) mustBeInitialized() {
	if l.slots == nil {
		panic("hedge: a zero Limiter is not usable: NewLimiter makes one")
	}
}

// Release gives back the slot of the request that ctx belongs to, before its handler
// returns, for handlers that go on for long and do little. Called again, or with the context
// of a request that has no slot, it does nothing.
func (l *Limiter) Release(ctx context.Context) {
	if a := l.admissionOf(ctx); a != nil {
		a.slot.Release()
	}
}

// Handler lets requests through to next. It panics if next is nil.
//
// A body of known length up to 64 KiB, whose client does not wait for a 100 (Continue), is read before its request gets into the
// queue, so that clients that send slowly hold no slot. next reads the same bytes and the same error. Only a caller that
// breaks off, so that the context of its request ends, never reaches next, and counts as Left. Until its body is read, a request is not Waiting. A handler that hijacks the connection finds
// the body in the returned buffer, if w is net/http's own before the Limiter. Requests for an upgrade are not read ahead. A Limiter holds 64 MiB of such bodies, as far as
// they have come and next has not read them; what does not fit in, and larger and chunked bodies, next reads itself. So a client that
// sends the end of its body only when it has a part of the answer must send it chunked, and what next does
// before it reads, such as SetReadDeadline, comes too late: do that in a handler before the Limiter, or use [WithUnlimited].
// A handler before the Limiter that reads r.Body afterwards gets what next has left, of the request that it gave to the Limiter.
//
// The server notices over HTTP/2 that a caller has gone at any time, and over HTTP/1.1 once
// it has read the request's body, or if there is none: see [http.Request.Context]. A request
// over HTTP/1.1 with a larger body that nobody has read waits for its turn, gone or not.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	l.mustBeInitialized()
	if next == nil {
		panic("hedge: Limiter.Handler: Handler is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		free := l.isUnlimited(r)
		p, err := l.joinRequest(ctx, free)
		if err != nil {
			rejectRequest(w, r, err)
			return
		}
		if p != nil || free {
			p.RunHandler(func() { next.ServeHTTP(w, r) })
			return
		}
		w.Header().Set(limit.LimitHeader, "1")
		hedge := race.HedgeNumber(r.Header[AttemptHeader]) > 0 || isGRPC(r) && race.HedgeNumber(r.Header["Grpc-Previous-Rpc-Attempts"]) > 0
		if !upload.ShouldReadAhead(r) {
			l.serveLimited(ctx, w, r, next, hedge, nil)
			return
		}
		if hedge && l.isCrowded(l.slots.RequestCount()) {
			rejectRequest(w, r, l.refuseHedge(ctx))
			return
		}
		body := upload.NewBody(r, &l.uploads)
		defer body.ReleaseMemory()
		body.ReadAhead()
		l.serveLimited(body.CallerContext(ctx), w, r, next, hedge, body)
	})
}

// serveLimited lets a request through to next once it has a slot, unless caller ends before. Its body is body; nil: its own.
func (l *Limiter) serveLimited(caller context.Context, w http.ResponseWriter, r *http.Request, next http.Handler, hedge bool, body *upload.BufferedBody) {
	p := l.slots.NewSlot()
	if err := l.acquireSlot(caller, p, hedge); err != nil {
		rejectRequest(w, r, err)
		return
	}
	inner := r.WithContext(l.withAdmission(r.Context(), &admission{slot: p}))
	upload.CopyTrailers(r, inner)
	if body != nil {
		inner.Body = body
		if r.ProtoMajor == 1 {
			w = withBodyForHijack(w, body)
		}
	}
	defer copyRequestResults(r, inner, body)
	p.RunHandler(func() { next.ServeHTTP(w, inner) })
}

// rejectRequest answers a request that gets no slot because of err.
func rejectRequest(w http.ResponseWriter, r *http.Request, err error) {
	if err == errRefused {
		w.Header().Set(limit.RefusedHeader, "1")
		if isGRPC(r) && len(r.Header[AttemptHeader]) == 0 { // gRPC's clients see nothing of other answers than theirs: this is one with trailers only, UNAVAILABLE
			w.Header()["Content-Type"], w.Header()["Grpc-Status"], w.Header()["Grpc-Message"] = []string{"application/grpc"}, []string{"14"}, []string{err.Error()}
			return
		}
	}
	// No body: a client can use the connection again without reading it.
	w.WriteHeader(http.StatusServiceUnavailable)
}

// copyRequestResults copies the pattern, the forms and the path values that handlers have set in inner, the copy of r, to r. Handlers before the
// Limiter read them when the handler has returned, and net/http removes the files of a form. If body has unread bytes, it becomes the Body of r; nil:
// the body was not read ahead. No other field of r is written, because other goroutines may be reading it.
func copyRequestResults(r, inner *http.Request, body *upload.BufferedBody) {
	if body != nil && body.HasUnread() {
		r.Body = body
	}
	r.Pattern, r.Form, r.PostForm, r.MultipartForm = inner.Pattern, inner.Form, inner.PostForm, inner.MultipartForm
	for _, segment := range strings.Split(inner.Pattern, "{")[1:] {
		name := strings.TrimSuffix(segment[:max(strings.IndexAny(segment, "}:"), 0)], "...") // routers other than ServeMux have {name:regexp}
		if v := inner.PathValue(name); v != r.PathValue(name) {
			r.SetPathValue(name, v)
		}
	}
}

// errRefused is the error of a hedge that gets no slot because of the load.
var errRefused = errors.New("hedge: the hedge was turned away: the server has too much to do")

// isCrowded reports whether so many requests inside are too many for a hedge: more than hedgesRefusedAbove times the limit, which may overflow.
func (l *Limiter) isCrowded(inside int64) bool {
	return (inside-1)/hedgesRefusedAbove >= l.slots.Capacity()
}

// refuseHedge counts a refused hedge, reports it to observers, and returns errRefused.
func (l *Limiter) refuseHedge(ctx context.Context) error {
	l.refused.Add(1)
	l.notifyObservers(ctx, observe.LimiterRefused, time.Time{})
	return errRefused
}

// acquireSlot waits until p can be taken. The error is errRefused, or that of ctx if it ended before.
func (l *Limiter) acquireSlot(ctx context.Context, p *limit.Slot, hedge bool) error {
	if before := l.slots.AddRequest(); hedge && l.isCrowded(before) {
		l.slots.RemoveRequest()
		return l.refuseHedge(ctx)
	}
	var begun time.Time
	if l.watcher != nil {
		begun = time.Now()
	}
	if err := p.Acquire(ctx); err != nil {
		l.left.Add(1)
		l.notifyObservers(ctx, observe.LimiterLeft, begun)
		return err
	}
	l.worked.Add(1)
	reported := false
	defer func() { // an observer may end the goroutine
		if !reported {
			p.Release()
		}
	}()
	l.notifyObservers(ctx, observe.LimiterWorked, begun)
	reported = true
	return nil
}

// notifyObservers reports the outcome of a request that began to wait at begun to observers; zero: it did not wait.
func (l *Limiter) notifyObservers(ctx context.Context, how observe.LimiterOutcome, begun time.Time) {
	if l.watcher == nil {
		return
	}
	r := observe.LimiterResult{Outcome: how}
	if !begun.IsZero() {
		r.Waited = time.Since(begun)
	}
	l.watcher.Notify(func(o observe.Observer) { o.Limited(ctx, l.name, r) })
}

// admission is the slot of a request at a Limiter, in the context of the request.
type admission struct {
	slot    *limit.Slot
	acquire func() error // takes the slot of a stream, once, and returns why it got none; nil: the slot is taken
}

// admissionKey is the key of the admission by a Limiter.
type admissionKey struct{ *Limiter }

// withAdmission returns the context of a request that has the admission a.
func (l *Limiter) withAdmission(ctx context.Context, a *admission) context.Context {
	return context.WithValue(ctx, admissionKey{l}, a)
}

// admissionOf returns the admission of the request that ctx belongs to, or nil.
func (l *Limiter) admissionOf(ctx context.Context) *admission {
	a, _ := ctx.Value(admissionKey{l}).(*admission)
	return a
}

// willTakeSlot reports whether ctx belongs to a stream that takes its slot with its first message.
func (l *Limiter) willTakeSlot(ctx context.Context) bool {
	a := l.admissionOf(ctx)
	return a != nil && a.acquire != nil && a.slot.IsPending()
}

// joinRequest returns the slot of the request that ctx belongs to, with one more handler that works on it. The slot of a stream is taken
// first. It returns nil if there is no slot, if it was given back, or if the handler is free, that is, needs none. The error says why a
// stream got no slot.
func (l *Limiter) joinRequest(ctx context.Context, free bool) (*limit.Slot, error) {
	a := l.admissionOf(ctx)
	if a == nil || free {
		return nil, nil
	}
	if a.acquire != nil {
		if err := a.acquire(); err != nil {
			return nil, err
		}
	}
	if a.slot.AddHandler() {
		return a.slot, nil
	}
	return nil, nil
}

// isUnlimited reports whether a Limiter lets a request pass.
func (l *Limiter) isUnlimited(r *http.Request) bool {
	return isGRPC(r) && r.Method == http.MethodPost && r.URL.RawPath == "" && l.isUnlimitedMethod(r.URL.Path) ||
		l.unlimited != nil && l.unlimited.Match(r.Method, httpattempt.HostName("", r.Host), r.URL)
}

// isUnlimitedMethod reports whether a Limiter lets calls of a gRPC method pass, whichever server they are sent to.
func (l *Limiter) isUnlimitedMethod(method string) bool {
	return !l.limitsHealthChecks && limit.IsExemptMethod(method) || l.unlimited.MatchMethod(method)
}

// isGRPC reports whether grpc.Server.ServeHTTP takes a request for a gRPC call, but for its method. gRPC-Web is none.
func isGRPC(r *http.Request) bool {
	subtype, ok := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return r.ProtoMajor == 2 && ok && (subtype == "" || subtype[0] == '+' || subtype[0] == ';')
}
