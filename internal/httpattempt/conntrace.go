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
// context that carries these hooks to net/http. Its guard delays a cancellation of the attempt as long as it could fail
// other requests. Each attempt needs a new ConnTrace, because net/http may continue to dial after the attempt has
// ended.
//
// The method Context sets the fields before the attempt is sent. Goroutines of net/http then write getConnAt,
// connectTime and informational, one goroutine after another. The guard has a lock of its own.
type ConnTrace struct {
	*race.Attempt
	// cancelling the attempt may fail other requests on its connection
	guarded       bool
	callerLimits  bool         // the caller has a hook for 1xx responses, so the caller limits their size
	informational atomic.Int64 // size of the headers of all 1xx responses, in bytes
	// delays the cancellation of the attempt as long as it could fail other requests
	guard       loser.Guard
	trace       httptrace.ClientTrace // hooks for net/http
	getConnAt   time.Time             // time when net/http began to get a connection
	connectTime atomic.Int64          // time to set up a new connection, in nanoseconds; 0 if the connection was reused
}

// Context prepares l for attempt a, and returns the context with which the attempt's request must be sent. The caller
// must set guarded to true if cancelling a may fail other requests on its connection. The argument hedge says that a is
// a hedge.
//
// The caller's httptrace hooks are disabled for a hedge. For a primary, they are called if they are in own; a nil own
// means that the caller has no hooks. If peer is not nil, the hooks of l store the primary's remote address in peer.
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

// traceKey is the context key under which package httptrace stores hooks. That package does not export the key, so it
// is found by an experiment. It is nil if the experiment failed.
var traceKey = func() any {
	asked := keyRecorder{Context: context.Background()}
	httptrace.ContextClientTrace(&asked)
	return asked.key
}()

// A keyRecorder is a context that records the key of the latest call of Value. It is used to find the key that a
// package does not export, see traceKey.
type keyRecorder struct {
	context.Context
	key any
}

// Value records key and returns nil.
func (a *keyRecorder) Value(key any) any {
	a.key = key
	return nil
}

// Value returns the hooks of l for the context key of package httptrace. For other keys, it returns the value of the
// attempt's context.
func (l *ConnTrace) Value(key any) any {
	if key == traceKey {
		return &l.trace
	}
	return l.Attempt.Value(key)
}

// getConn is the hook that net/http calls before it gets a connection.
func (l *ConnTrace) getConn(string) {
	l.getConnAt = time.Now()
	l.guard.GetConn()
}

// gotConn is the hook that net/http calls when the attempt has got a connection.
func (l *ConnTrace) gotConn(info httptrace.GotConnInfo) {
	l.guard.GotConn(l.Attempt, info.Reused && l.cancelAffectsConn(info.Conn), info.IdleTime)
	if !info.Reused {
		l.connectTime.Store(int64(time.Since(l.getConnAt)))
	}
}

// cancelAffectsConn reports whether cancelling the attempt may fail an earlier request on conn, the reused connection
// that the attempt has got. The result is the argument guarded of Context, with one exception.
//
// It is false if the attempt is already cancelled and conn uses HTTP/2, where a cancellation resets only one stream.
// Only over HTTP/2 can a cancelled attempt get a connection: for HTTP/1.1, net/http checks the context first.
func (l *ConnTrace) cancelAffectsConn(conn net.Conn) bool {
	if !l.guarded || l.Attempt.Err() == nil {
		return l.guarded
	}
	c, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	return !ok || c.ConnectionState().NegotiatedProtocol != "h2"
}

// gotFirstByte is the hook for the first byte of an HTTP/1.1 response. From then on, [loser.Guard] delays a
// cancellation of the attempt until RoundTrip has returned.
//
// The reason is a race in net/http (Go 1.26). It puts the connection of a response without a body into its pool before
// it returns the response. A cancellation at this moment closes the connection and fails another request that already
// uses it. If the attempt was cancelled earlier, the hook blocks until net/http has closed the connection.
func (l *ConnTrace) gotFirstByte() { l.guard.ResponseStarted(l.Attempt) }

// CountInformational installs a hook for 1xx responses. The hook ensures that a 1xx response does not count as the
// start of the response, which would delay the cancellation of the attempt. It also counts the size of the headers,
// because net/http does not limit the size of 1xx responses if there is a hook.
//
// The methods got1xx and EnforceHeaderLimit enforce net/http's default limit instead. So the transport of the attempt
// must have the default limit, see [Pools.HasDefaultHeaderLimit].
//
// CountInformational must be called before Context. It allocates memory, so callers use it only for attempts that are
// cancelled within [loser.MaxCancelDelay] after they lose.
func (l *ConnTrace) CountInformational() { l.trace.Got1xxResponse = l.got1xx }

// got1xx is the hook for 1xx responses. It returns an error if the headers of all 1xx responses together exceed
// defaultHeaderLimit. If the caller has a hook for 1xx responses too, net/http ignores the error of got1xx.
func (l *ConnTrace) got1xx(code int, header textproto.MIMEHeader) error {
	l.guard.Got1xx()
	if l.informational.Add(headerSize(http.StatusText(code), header)) > defaultHeaderLimit {
		return errHeaderLimit
	}
	return nil
}

// EnforceHeaderLimit checks the result of the attempt, resp and err. The headers of resp and of earlier 1xx responses
// together must not exceed net/http's default limit of 10 MiB. If they do, EnforceHeaderLimit closes the body of resp
// and returns the same error as net/http. Otherwise it returns resp and err unchanged.
//
// It does not check the size if the caller has a hook for 1xx responses.
func (l *ConnTrace) EnforceHeaderLimit(resp *http.Response, err error) (*http.Response, error) {
	informational := l.informational.Load()
	if informational == 0 || err != nil || l.callerLimits || informational+headerSize(resp.Status, textproto.MIMEHeader(resp.Header)) <= defaultHeaderLimit {
		return resp, err
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	return nil, errConnBroken
}

// defaultHeaderLimit is net/http's default limit in bytes for all headers of an HTTP/1.1 response, including 1xx
// responses.
const defaultHeaderLimit = 10 << 20

var (
	// errHeaderLimit is the error of got1xx. The error for the caller, errConnBroken, wraps it. Both have the texts of
	// net/http's own errors.
	errHeaderLimit = fmt.Errorf("net/http: server response headers exceeded %d bytes; aborted", defaultHeaderLimit)
	errConnBroken  = fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", errHeaderLimit)
)

// headerSize returns the size of an HTTP/1.1 response header in bytes, assuming that it is sent without optional
// spaces. The argument reason is the text after the status code.
func headerSize(reason string, header textproto.MIMEHeader) int64 {
	size := len("HTTP/1.1 200 \r\n\r\n") + len(reason)
	for name, values := range header {
		for _, value := range values {
			size += len(name) + len(": \r\n") + len(value)
		}
	}
	return int64(size)
}

// ReportsConn reports whether the RoundTripper of the attempt has called one of the hooks of l, see [loser.Guard].
func (l *ConnTrace) ReportsConn() bool { return l.guard.ReportsConn() }

// RecordReturn records that the RoundTrip of the attempt has returned, which ends a delay of its cancellation. It returns
// the time that the set-up of a new connection took, or 0 if the connection was reused.
func (l *ConnTrace) RecordReturn() time.Duration {
	l.guard.Returned()
	return time.Duration(l.connectTime.Load())
}

// A withoutTrace is a context that hides the caller's httptrace hooks. It is used for attempts other than the primary,
// because the caller's hooks may not be safe for concurrent use by two attempts.
type withoutTrace struct{ context.Context }

// Value returns nil for httptrace hooks, and the value of the wrapped context for other keys.
func (u withoutTrace) Value(key any) any {
	v := u.Context.Value(key)
	if _, ok := v.(*httptrace.ClientTrace); ok {
		return nil
	}
	return v
}

// CallerHooks are the caller's httptrace hooks, wrapped so that Mute can disable them. A primary may continue after
// RoundTrip has returned to the caller, and must then call no hooks. CallerHooks are safe for concurrent use.
type CallerHooks struct {
	trace *httptrace.ClientTrace

	mu       sync.Mutex    // guards the fields below; not held while a hook runs
	running  int           // number of running hooks
	disabled bool          // the hooks are disabled
	idle     chan struct{} // closed when the last running hook returns; nil unless Mute is waiting
}

// CallerHooksFrom returns the httptrace hooks that ctx, the caller's context, carries. It returns nil if ctx carries
// none.
func CallerHooksFrom(ctx context.Context) *CallerHooks {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil {
		return &CallerHooks{trace: trace}
	}
	return nil
}

// Context returns a context for primary a that carries the wrapped hooks of h instead of the caller's hooks.
func (h *CallerHooks) Context(a *race.Attempt) context.Context {
	return httptrace.WithClientTrace(withoutTrace{a}, h.wrapHooks())
}

// wrapHooks returns a copy of the caller's hooks that do nothing after Mute has been called.
func (h *CallerHooks) wrapHooks() *httptrace.ClientTrace {
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

// beginHook reports whether a hook may run, and if so, counts it as running. The caller must then call endHook after
// the hook. The result is false if Mute has disabled the hooks.
func (h *CallerHooks) beginHook() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.disabled {
		h.running++
	}
	return !h.disabled
}

// endHook records that a hook has returned for which beginHook returned true. The last running hook wakes Mute.
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

// Disable disables the hooks and waits until no hook is running. It waits for at most 100 milliseconds, because a blocked
// hook must not delay the response of another attempt. It must be called at most once.
func (h *CallerHooks) Disable() {
	h.mu.Lock()
	h.disabled = true
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

// A Peer holds the remote address of a primary, so that a hedge can connect to another address. It holds the address of
// the primary's connection and the address that the primary has dialed. They may differ: while a dial is running, a
// request may get another connection that becomes idle. It is safe for concurrent use.
type Peer struct{ connAddr, dialedAddr atomic.Pointer[netip.Addr] }

// gotConn stores the remote address of the primary's connection, which is in info. It is a hook that net/http calls
// when the primary has got a connection.
func (p *Peer) gotConn(info httptrace.GotConnInfo) {
	if info.Conn == nil {
		return
	}
	if addr := info.Conn.RemoteAddr(); addr != nil {
		storeAddr(&p.connAddr, addr.String())
	}
}

// connectStart stores the IP address in addr, an IP address and port. It is a hook that package net calls when the
// primary begins to dial.
func (p *Peer) connectStart(_, addr string) { storeAddr(&p.dialedAddr, addr) }

// storeAddr parses addr, an IP address and port, and stores the IP address in stored. It does nothing if addr cannot be
// parsed.
func storeAddr(stored *atomic.Pointer[netip.Addr], addr string) {
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		ip := ap.Addr().Unmap()
		stored.Store(&ip)
	}
}

// address returns the address of the primary's connection. If there is no connection yet, it returns the address that
// the primary has dialed. It returns the zero Addr if neither is known or p is nil.
func (p *Peer) address() netip.Addr {
	if p == nil {
		return netip.Addr{}
	}
	if addr := cmp.Or(p.connAddr.Load(), p.dialedAddr.Load()); addr != nil {
		return *addr
	}
	return netip.Addr{}
}
