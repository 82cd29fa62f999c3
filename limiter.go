package hedge

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
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

// hedgeRefusalFactor times the limit is the number of requests above which a Limiter refuses hedges. The number
// includes requests in the queue and in handlers.
//
// It bounds the queue if clients do not cancel losing hedges. Otherwise it has little effect: in a simulation at 80 %
// load, p99 is 182 ms with factor 1, 161 ms with factor 4, and 155 ms without this bound.
const hedgeRefusalFactor = 4

// A Limiter limits how many requests the handlers of a server work on at the same time. The other requests wait in a
// first-in, first-out queue.
//
// If the client cancels a request while it waits, the handler never gets the request. This makes hedging cheap for a
// busy server: most losing hedges are cancelled in the queue, before they cause work.
//
// A Limiter refuses hedges while the requests in the queue and in handlers are more than four times the limit. HTTP
// hedges are recognised by [AttemptHeader]. gRPC hedges are recognised by grpc-previous-rpc-attempts, which gRPC's
// own retries carry as well.
//
// Primaries are never refused, so the queue has no maximum length. To bound the queue, limit the requests before they
// reach the Limiter.
//
// A refused HTTP hedge gets status 503 with the header "Hedge-Refused: 1". A refused gRPC hedge gets UNAVAILABLE with
// the same pair in the trailer.
//
// Clients of this package treat a refused hedge as [Lost]: the call goes on, the refusal is no pushback, and its
// latency is not measured. The hedge has used budget, and counts as a hedge that did not win.
//
// Responses carry "Hedge-Limit: 1" in the header, for gRPC in the trailer. A [Transport] that receives this header
// adds [AttemptHeader] to its hedges to that host.
//
// Over HTTP/1.1, the Transport also cancels losers to that host at once where that is safe, in place of [WithLinger].
// Each cancellation costs a connection, but saves the server the work if the loser was in the queue.
//
// A request occupies its slot until its handler returns. A handler that runs for a long time with little work, such
// as for WebSockets, event streams or gRPC watches, can call [Limiter.Release]. Requests of [WithUnlimited] need no
// slot. gRPC health checks and reflection need none either, see [WithLimitedHealthChecks].
//
// If handlers call their own server, these calls may need slots as well; choose the limit accordingly. A request that
// passes the same Limiter twice takes one slot until both handlers have returned. If it has released the slot before
// the second pass, it takes another slot.
//
// A Limiter is safe for concurrent use, by several handlers and by HTTP and gRPC together. The zero Limiter is not
// usable; call NewLimiter.
type Limiter struct {
	name      string                  // name of WithName; "": none
	slots     *limit.ConcurrencyLimit // grants slots in the order of the requests
	unlimited *pattern.Set            // requests without limit; nil: none
	notifier  *observers.Notifier     // notifies observers; nil: there are none
	uploads   upload.MemoryPool       // limits the memory of bodies that are read ahead

	limitsHealthChecks bool // see WithLimitedHealthChecks

	worked, left, refused atomic.Int64 // numbers of requests that got a slot, left the queue early, or were refused
	panics                atomic.Int64 // recovered panics of observers
}

// NewLimiter returns a Limiter that lets handlers work on at most n requests at the same time. Choose the number that
// the server can work on at full speed: for handlers that compute, a few per processor. NewLimiter panics if n is not
// positive.
func NewLimiter(n int, opts ...LimiterOption) *Limiter {
	if n <= 0 {
		panic(fmt.Sprintf("hedge: NewLimiter: n is %d, and must be at least 1", n))
	}
	var c constructorOptions
	applyOptions(&c, opts, LimiterOption.applyLimiter)
	l := &Limiter{name: c.name, slots: limit.New(n), limitsHealthChecks: c.limitsHealthChecks}
	for _, p := range c.unlimited {
		if l.unlimited == nil {
			l.unlimited = new(pattern.Set)
		}
		_ = l.unlimited.Add(p) // WithUnlimited has tried it
	}
	log := ops.NewLog(c.logger, "hedge", "limiter", c.name, &l.panics)
	l.notifier = observers.NewNotifier(c.observers, log.LogObserverPanic)
	return l
}

// A LimiterSnapshot holds the name, the limit and the counters of a [Limiter] at one time. [Limiter.Snapshot] returns
// it.
type LimiterSnapshot = observe.LimiterSnapshot

// Snapshot returns the name, the limit and the counters of the Limiter. Use it for metrics and debug pages. It panics
// for a zero Limiter.
func (l *Limiter) Snapshot() LimiterSnapshot {
	l.mustBeInitialized()
	s := LimiterSnapshot{
		Name: l.name, Limit: int(l.slots.Capacity()),
		Working: l.slots.ActiveCount(), Worked: l.worked.Load(), Left: l.left.Load(), Refused: l.refused.Load(),
	}
	s.Waiting = max(l.slots.RequestCount()-s.Working, 0)
	return s
}

// mustBeInitialized panics if l is a zero Limiter, which NewLimiter has not made.
func (l *Limiter) mustBeInitialized() {
	if l.slots == nil {
		panic("hedge: a zero Limiter is not usable: NewLimiter makes one")
	}
}

// Release frees the slot of a request before its handler returns, so that another request can use the slot. Use it in
// handlers that run for a long time with little work. The argument ctx must be the context of the request. Release does
// nothing if the request has no slot, or has released it.
func (l *Limiter) Release(ctx context.Context) {
	if a := l.admissionFromContext(ctx); a != nil {
		a.slot.Release()
	}
}

// Handler returns a handler that calls next for each request that gets a slot. It panics if next is nil.
//
// A body of known length up to 64 KiB is read before the request enters the queue, so that a slow upload holds no
// slot. Exceptions are upgrades, and requests with "Expect: 100-continue".
//
// The bodies that are read ahead take up to 64 MiB of memory per Limiter. If that memory is in use, and for larger or
// chunked bodies, next reads the body itself.
//
// next sees the same bytes and the same error as without a Limiter. A request that the client cancels during the
// upload never reaches next, and counts as Left. During the upload a request does not count as Waiting. A handler
// that hijacks the connection gets the unread body in the returned buffer, if w is net/http's own ResponseWriter.
//
// Reading ahead changes the following, unless the body is chunked or the request is exempt by [WithUnlimited]:
//
//   - A client may send the end of its body only after it has received a part of the response. It must send the body
//     chunked.
//   - next may prepare for reading, for example by SetReadDeadline, but that is too late. Do so in a handler before
//     the Limiter.
//   - A handler before the Limiter that reads r.Body after next has returned gets the bytes that next has not read.
//
// Over HTTP/2 the server detects at any time that a client has gone. Over HTTP/1.1 it detects that only after the
// body of the request has been read (see [http.Request.Context]). So an HTTP/1.1 request with a body that is not read
// ahead waits for its slot even if its client has gone.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	l.mustBeInitialized()
	if next == nil {
		panic("hedge: Limiter.Handler: Handler is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		exempt := l.isUnlimited(r)
		p, err := l.joinRequest(ctx, exempt)
		if err != nil {
			rejectRequest(w, r, err)
			return
		}
		if p != nil || exempt {
			p.RunHandler(func() { next.ServeHTTP(w, r) })
			return
		}
		w.Header().Set(limit.LimitHeader, "1")
		hedge := race.HedgeNumber(r.Header[AttemptHeader]) > 0 || isGRPC(r) && race.HedgeNumber(r.Header["Grpc-Previous-Rpc-Attempts"]) > 0
		if !upload.ShouldReadAhead(r) {
			l.serveLimited(ctx, w, r, next, hedge, nil)
			return
		}
		if hedge && l.shouldRefuseHedges(l.slots.RequestCount()) {
			rejectRequest(w, r, l.refuseHedge(ctx))
			return
		}
		body := upload.NewBody(r, &l.uploads)
		defer body.ReleaseMemory()
		body.ReadAhead()
		l.serveLimited(body.CallerContext(ctx), w, r, next, hedge, body)
	})
}

// serveLimited waits for a slot, and then calls next. If the context caller ends before there is a slot, it rejects
// the request. The argument hedge is true if the request is a hedge.
//
// The argument body is the body of the request if it was read ahead. If body is nil, next reads the original body.
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
	defer copyHandlerFields(r, inner, body)
	p.RunHandler(func() { next.ServeHTTP(w, inner) })
}

// rejectRequest responds to a request that got no slot. A hedge that was refused (err is errRefused) gets status 503
// with the header Hedge-Refused, or UNAVAILABLE over gRPC. Any other error gets a plain 503, because the client has
// gone.
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

// copyHandlerFields copies the pattern, forms and path values that handlers have set in inner, a copy of r, to r. They
// are needed in r because handlers before the Limiter read them afterwards, and net/http removes the temporary files of
// a form.
//
// If body has unread bytes, it becomes the Body of r. A nil body means that the body was not read ahead. Other fields
// of r are not written, because other goroutines may be reading them.
func copyHandlerFields(r, inner *http.Request, body *upload.BufferedBody) {
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

// errRefused is the error of a hedge that a Limiter rejects without queueing, because too many requests are in the
// queue and in handlers.
var errRefused = errors.New("hedge: the hedge was turned away: the server has too much to do")

// shouldRefuseHedges reports whether the Limiter is so crowded that hedges must be refused. This is so if
// requestCount is more than hedgeRefusalFactor times the limit. The argument requestCount is the number of requests
// in the queue and in handlers. The comparison cannot overflow.
func (l *Limiter) shouldRefuseHedges(requestCount int64) bool {
	return (requestCount-1)/hedgeRefusalFactor >= l.slots.Capacity()
}

// refuseHedge counts a refused hedge, reports it to observers, and returns errRefused. The argument ctx is the context
// of the request.
func (l *Limiter) refuseHedge(ctx context.Context) error {
	l.refused.Add(1)
	l.notifyObservers(ctx, observe.LimiterRefused, time.Time{})
	return errRefused
}

// acquireSlot waits until the slot p is free for a request, and reports the outcome to observers. The argument hedge
// is true if the request is a hedge.
//
// It returns errRefused for a hedge if the Limiter is too crowded. It returns the error of ctx if ctx ends first.
func (l *Limiter) acquireSlot(ctx context.Context, p *limit.Slot, hedge bool) error {
	if before := l.slots.AddRequest(); hedge && l.shouldRefuseHedges(before) {
		l.slots.RemoveRequest()
		return l.refuseHedge(ctx)
	}
	var begun time.Time
	if l.notifier != nil {
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

// notifyObservers reports to observers with which outcome the wait of a request for a slot has ended. The argument
// begun is the time when the wait began; it is zero if the request did not wait.
func (l *Limiter) notifyObservers(ctx context.Context, outcome observe.LimiterOutcome, begun time.Time) {
	if l.notifier == nil {
		return
	}
	r := observe.LimiterResult{Outcome: outcome}
	if !begun.IsZero() {
		r.Waited = time.Since(begun)
	}
	l.notifier.Notify(func(o observe.Observer) { o.Limited(ctx, l.name, r) })
}

// An admission holds the slot that a request, or a gRPC stream, has at a Limiter. It is stored in the request's
// context, so that a request that passes the Limiter twice takes only one slot.
type admission struct {
	slot *limit.Slot
	// acquireStreamSlot takes the slot of a stream before its first message. It returns the error if the stream gets no slot. It is
	// nil if the slot is already taken.
	acquireStreamSlot func() error
}

// An admissionKey is the key under which a context stores the admission at a Limiter. Each Limiter has its own key.
type admissionKey struct{ *Limiter }

// withAdmission returns a copy of ctx that stores the admission a under the key of this Limiter.
func (l *Limiter) withAdmission(ctx context.Context, a *admission) context.Context {
	return context.WithValue(ctx, admissionKey{l}, a)
}

// admissionFromContext returns the admission that this Limiter has stored in ctx, or nil if the request has not passed
// this Limiter before.
func (l *Limiter) admissionFromContext(ctx context.Context) *admission {
	a, _ := ctx.Value(admissionKey{l}).(*admission)
	return a
}

// willTakeSlot reports whether ctx belongs to a stream at this Limiter that will take its slot with its first message.
// It is false if the stream already has its slot.
func (l *Limiter) willTakeSlot(ctx context.Context) bool {
	a := l.admissionFromContext(ctx)
	return a != nil && a.acquireStreamSlot != nil && a.slot.IsPending()
}

// joinRequest registers a further handler for a request that already has a slot, so that the slot is freed only after
// the last of its handlers. It returns that slot. If ctx belongs to a stream that has not taken its slot yet,
// joinRequest takes it first. It returns an error if the stream gets no slot.
//
// The result is nil without an error if the request has no slot or has released it. It is also nil if exempt is true,
// because the handler then needs no slot.
func (l *Limiter) joinRequest(ctx context.Context, exempt bool) (*limit.Slot, error) {
	a := l.admissionFromContext(ctx)
	if a == nil || exempt {
		return nil, nil
	}
	if a.acquireStreamSlot != nil {
		if err := a.acquireStreamSlot(); err != nil {
			return nil, err
		}
	}
	if a.slot.AddHandler() {
		return a.slot, nil
	}
	return nil, nil
}

// isUnlimited reports whether an HTTP request needs no slot: it matches a pattern of WithUnlimited, or is an exempt
// gRPC health check or reflection call.
func (l *Limiter) isUnlimited(r *http.Request) bool {
	return isGRPC(r) && r.Method == http.MethodPost && r.URL.RawPath == "" && l.isUnlimitedMethod(r.URL.Path) ||
		l.unlimited != nil && l.unlimited.Match(r.Method, httpattempt.HostName("", r.Host), r.URL)
}

// isUnlimitedMethod reports whether calls of a gRPC method need no slot, whatever their authority is. method is the
// full name, such as "/pkg.Service/Method".
func (l *Limiter) isUnlimitedMethod(method string) bool {
	return !l.limitsHealthChecks && limit.IsExemptMethod(method) || l.unlimited.MatchMethod(method)
}

// isGRPC reports whether grpc.Server.ServeHTTP accepts r as a gRPC call, judged by HTTP/2 and the Content-Type. The
// HTTP method is not checked. gRPC-Web requests are not gRPC calls.
func isGRPC(r *http.Request) bool {
	subtype, ok := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return r.ProtoMajor == 2 && ok && (subtype == "" || subtype[0] == '+' || subtype[0] == ';')
}

// A serverWriter has the methods of the ResponseWriter that net/http passes to handlers over HTTP/1.1.
type serverWriter interface {
	http.ResponseWriter
	http.Flusher
	http.Hijacker
	io.ReaderFrom
	io.StringWriter
	CloseNotify() <-chan bool
}

// withBodyForHijack returns a ResponseWriter whose Hijack first delivers the unread bytes of body, which was read
// ahead. It only wraps net/http's own ResponseWriter. Any other w is returned unchanged, because handlers may depend on
// the type of a middleware's writer.
func withBodyForHijack(w http.ResponseWriter, body *upload.BufferedBody) http.ResponseWriter {
	own, ok := w.(serverWriter)
	if t := reflect.TypeOf(w); !ok || t.Kind() != reflect.Pointer || t.Elem().PkgPath() != "net/http" {
		return w
	}
	return &hijackWriter{own, body}
}

// A hijackWriter wraps net/http's ResponseWriter, so that Hijack also returns the unread bytes of a body that was read
// ahead.
type hijackWriter struct {
	serverWriter
	body *upload.BufferedBody
}

// Unwrap returns the wrapped ResponseWriter, on which [http.ResponseController] sets deadlines.
func (w *hijackWriter) Unwrap() http.ResponseWriter { return w.serverWriter }

// FlushError flushes the wrapped ResponseWriter, and returns the error of the flush.
func (w *hijackWriter) FlushError() error { return http.NewResponseController(w.serverWriter).Flush() }

// Hijack takes over the connection. The returned reader first delivers the unread bytes of the body, and then the bytes
// that the server has buffered.
func (w *hijackWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.serverWriter.Hijack()
	if err != nil {
		return conn, rw, err
	}
	pending := w.body.TakeUnread()
	if len(pending) == 0 {
		return conn, rw, nil
	}
	buffered, _ := rw.Reader.Peek(rw.Reader.Buffered())
	pending = append(pending, buffered...)
	_, _ = rw.Reader.Discard(len(buffered))
	reader := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(pending), rw.Reader), max(len(pending), rw.Reader.Size()))
	_, _ = reader.Peek(len(pending))
	return conn, bufio.NewReadWriter(reader, rw.Writer), nil
}
