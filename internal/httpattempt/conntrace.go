package httpattempt

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/loser"
	"github.com/gohedge/hedge/internal/race"
)

// A ConnTrace records how one attempt gets and uses its connection, by hooks of package httptrace. It is also the
// context of the attempt with these hooks. Each attempt needs a new ConnTrace, because net/http may dial on after the
// attempt has ended.
//
// Context sets the fields before the attempt is sent. Goroutines of net/http write getConnAt, connectTime and
// informational one after another. The guard has a lock of its own.
type ConnTrace struct {
	*race.Attempt
	// cancelling the attempt may harm other requests on its connection
	guarded       bool
	callerLimits  bool         // the caller has a hook for 1xx responses, which limits them
	informational atomic.Int64 // header bytes of the 1xx responses
	// delays the cancellation of the attempt while it would harm other requests
	guard       loser.Guard
	trace       httptrace.ClientTrace
	getConnAt   time.Time
	connectTime atomic.Int64 // nanoseconds that a new connection took; 0: the connection was reused
}

// Context returns the context of attempt a with the hooks of l. If guarded is true, cancelling a may harm other
// requests on its connection.
//
// The context of a hedge hides the caller's hooks. The context of a primary calls them through own, which is nil if the
// caller has none. If peer is not nil, it records the primary's address.
func (l *ConnTrace) Context(a *race.Attempt, hedge, guarded bool, own *CallerHooks, peer *Peer) context.Context {
	l.Attempt, l.guarded = a, guarded
	l.guard.Attach(a)
	l.trace.GetConn, l.trace.GotConn = l.getConn, l.gotConn
	if guarded {
		l.trace.GotFirstResponseByte = l.gotFirstByte
	}
	ctx := context.Context(a)
	switch {
	case hedge:
		// Package net finds its hooks by another key; these hide the hooks of the caller.
		l.trace.DNSStart = func(httptrace.DNSStartInfo) { l.guard.Dialing() }
		l.trace.ConnectStart = func(string, string) { l.guard.Dialing() }
		l.trace.TLSHandshakeStart = l.guard.Dialing
		return httptrace.WithClientTrace(withoutTrace{ctx}, &l.trace)
	case peer != nil:
		l.trace.ConnectStart = peer.connectStart
		l.trace.GotConn = func(info httptrace.GotConnInfo) {
			peer.gotConn(info)
			l.gotConn(info)
		}
	}
	switch {
	case own != nil:
		l.callerLimits = own.trace.Got1xxResponse != nil
		ctx = own.Context(a)
	case peer == nil && traceKey != nil:
		return l // neither hooks of the caller nor of package net are needed
	}
	return httptrace.WithClientTrace(ctx, &l.trace)
}

// traceKey is the context key of package httptrace, which exports no name for it. It is nil if the key could not be
// found.
var traceKey = func() any {
	asked := keyRecorder{Context: context.Background()}
	httptrace.ContextClientTrace(&asked)
	return asked.key
}()

// A keyRecorder is a context that records the key with which Value was last called.
type keyRecorder struct {
	context.Context
	key any
}

func (a *keyRecorder) Value(key any) any {
	a.key = key
	return nil
}

// Value returns the hooks of l for the key of package httptrace. For other keys it returns the value of the attempt.
func (l *ConnTrace) Value(key any) any {
	if key == traceKey {
		return &l.trace
	}
	return l.Attempt.Value(key)
}

func (l *ConnTrace) getConn(string) {
	l.getConnAt = time.Now()
	l.guard.GetConn()
}

func (l *ConnTrace) gotConn(info httptrace.GotConnInfo) {
	l.guard.GotConn(l.Attempt, info.Reused && l.cancelAffectsConn(info.Conn), info.IdleTime)
	if !info.Reused {
		l.connectTime.Store(int64(time.Since(l.getConnAt)))
	}
}

// cancelAffectsConn reports whether cancelling the attempt may fail an earlier request on conn. Over HTTP/2 it cannot,
// because a cancellation resets one stream. An attempt that is already cancelled only gets a connection for HTTP/2: for
// HTTP/1.1, net/http checks the context first.
func (l *ConnTrace) cancelAffectsConn(conn net.Conn) bool {
	if !l.guarded || l.Attempt.Err() == nil {
		return l.guarded
	}
	c, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	return !ok || c.ConnectionState().NegotiatedProtocol != "h2"
}

// gotFirstByte is the hook for the first byte of an HTTP/1.1 response. From now on [loser.Guard] delays a cancellation
// until RoundTrip has returned.
//
// Reason: for a response without a body, net/http (Go 1.26) puts the connection into its pool before it returns the
// response. A cancellation in between closes the connection, and another request on it fails. If the attempt was
// cancelled before, the hook blocks until net/http has closed the connection.
func (l *ConnTrace) gotFirstByte() { l.guard.ResponseStarted(l.Attempt) }

// CountInformational lets 1xx responses not delay the cancellation of the attempt, and limits their size. It must be
// called before Context. It allocates a closure, so only attempts use it that are cancelled within
// [loser.MaxCancelDelay] after they lose.
//
// With a hook for 1xx responses, net/http leaves the limit of their size to the hook. The methods got1xx and
// EnforceHeaderLimit enforce the default limit. So the transport of the attempt must have that limit, see
// [Pools.HasDefaultHeaderLimit].
func (l *ConnTrace) CountInformational() { l.trace.Got1xxResponse = l.got1xx }

// got1xx is the hook for 1xx responses. It returns an error if their headers exceed defaultHeaderLimit. If the caller
// has a hook as well, net/http ignores the error of got1xx.
func (l *ConnTrace) got1xx(code int, header textproto.MIMEHeader) error {
	l.guard.Got1xx()
	if l.informational.Add(headerSize(http.StatusText(code), header)) > defaultHeaderLimit {
		return errHeaderLimit
	}
	return nil
}

// EnforceHeaderLimit returns resp and err, the result of the attempt. If the headers of resp and of earlier 1xx
// responses exceed defaultHeaderLimit, it closes the body and returns the error of net/http instead. It does nothing if
// the caller has a hook for 1xx responses.
func (l *ConnTrace) EnforceHeaderLimit(resp *http.Response, err error) (*http.Response, error) {
	informational := l.informational.Load()
	if informational == 0 || err != nil || l.callerLimits || informational+headerSize(resp.Status, textproto.MIMEHeader(resp.Header)) <= defaultHeaderLimit {
		return resp, err
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	return nil, errBroken
}

// defaultHeaderLimit is net/http's default limit in bytes for all headers of an HTTP/1.1 response, including 1xx
// responses.
const defaultHeaderLimit = 10 << 20

// errHeaderLimit is the error that the hook returns to net/http, which wraps it as errBroken. They have the texts of net/http's own limit.
var (
	// errHeaderLimit is the error of got1xx. The error for the caller, errBroken, wraps it. Both have the texts of
	// net/http's own errors.
	errHeaderLimit = fmt.Errorf("net/http: server response headers exceeded %d bytes; aborted", defaultHeaderLimit)
	errBroken      = fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", errHeaderLimit)
)

// headerSize returns the size in bytes that an HTTP/1.1 response header has if it is written without extra spaces. The
// reason is the reason phrase.
func headerSize(reason string, header textproto.MIMEHeader) int64 {
	size := len("HTTP/1.1 200 \r\n\r\n") + len(reason)
	for name, values := range header {
		for _, value := range values {
			size += len(name) + len(": \r\n") + len(value)
		}
	}
	return int64(size)
}

// Returned records that the RoundTrip of the attempt has returned. It returns the time that a new connection took, or 0
// if the connection was reused.
func (l *ConnTrace) Returned() time.Duration {
	l.guard.Returned()
	return time.Duration(l.connectTime.Load())
}

// A withoutTrace is a context that hides the caller's httptrace hooks. The caller may not expect calls from two
// attempts at once.
type withoutTrace struct{ context.Context }

func (u withoutTrace) Value(key any) any {
	v := u.Context.Value(key)
	if _, ok := v.(*httptrace.ClientTrace); ok {
		return nil
	}
	return v
}

// CallerHooks are the caller's httptrace hooks, wrapped so that they can be disabled: a primary may continue after
// RoundTrip has returned.
type CallerHooks struct {
	trace *httptrace.ClientTrace

	mu      sync.Mutex // guards the fields below; not held while a hook runs
	running int        // number of running hooks
	muted   bool
	idle    chan struct{} // closed when the last running hook returns; nil: Mute does not wait
}

// CallerHooksFrom returns the httptrace hooks in ctx, or nil if it has none.
func CallerHooksFrom(ctx context.Context) *CallerHooks {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil {
		return &CallerHooks{trace: trace}
	}
	return nil
}

// Context returns the context of the primary a with the caller's hooks.
func (h *CallerHooks) Context(a *race.Attempt) context.Context {
	return httptrace.WithClientTrace(withoutTrace{a}, h.mutableTrace())
}

// mutableTrace returns a copy of the caller's trace in which each hook does nothing after Mute.
func (h *CallerHooks) mutableTrace() *httptrace.ClientTrace {
	trace := *h.trace
	v := reflect.ValueOf(&trace).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() != reflect.Func || f.IsNil() {
			continue
		}
		hook := reflect.ValueOf(f.Interface())
		f.Set(reflect.MakeFunc(f.Type(), func(args []reflect.Value) []reflect.Value {
			if h.beginHook() {
				defer h.endHook()
				return hook.Call(args)
			}
			none := make([]reflect.Value, hook.Type().NumOut())
			for i := range none {
				none[i] = reflect.Zero(hook.Type().Out(i))
			}
			return none
		}))
	}
	return &trace
}

// beginHook reports whether a hook may run. If it returns true, endHook must be called after the hook.
func (h *CallerHooks) beginHook() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.muted {
		h.running++
	}
	return !h.muted
}

// endHook records that a hook has returned.
func (h *CallerHooks) endHook() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running--; h.running == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

// maxHookWait is the longest time for which Mute waits for a running hook.
const maxHookWait = 100 * time.Millisecond

// Mute disables the hooks and waits for running hooks. It waits at most for maxHookWait, because a blocked hook must
// not delay the response of another attempt. It must be called at most once.
func (h *CallerHooks) Mute() {
	h.mu.Lock()
	h.muted = true
	var idle chan struct{}
	if h.running > 0 {
		h.idle = make(chan struct{})
		idle = h.idle
	}
	h.mu.Unlock()
	if idle == nil {
		return
	}
	limit := time.NewTimer(maxHookWait)
	defer limit.Stop()
	select {
	case <-idle:
	case <-limit.C:
	}
}

// A Peer holds the remote address of the primary's connection and the address that the primary has dialed. They may
// differ: after a dial has started, a request may get another connection that becomes idle.
type Peer struct{ got, dialled atomic.Pointer[netip.Addr] }

func (p *Peer) gotConn(info httptrace.GotConnInfo) {
	if info.Conn == nil {
		return
	}
	if addr := info.Conn.RemoteAddr(); addr != nil {
		storeAddr(&p.got, addr.String())
	}
}

func (p *Peer) connectStart(_, addr string) { storeAddr(&p.dialled, addr) }

func storeAddr(to *atomic.Pointer[netip.Addr], addr string) {
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		ip := ap.Addr().Unmap()
		to.Store(&ip)
	}
}

// address returns the address of the connection, or of the dial if there is no connection yet. It returns the zero Addr
// if neither is known or p is nil.
func (p *Peer) address() netip.Addr {
	if p == nil {
		return netip.Addr{}
	}
	if addr := cmp.Or(p.got.Load(), p.dialled.Load()); addr != nil {
		return *addr
	}
	return netip.Addr{}
}
