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

// A Link has the trace hooks by which net/http reports the connection of one attempt. It is also the context of the attempt, with the hooks in it.
// Each attempt has a new Link, because a dial may go on after its attempt.
//
// Context writes all fields before the attempt is sent, except guard, which locks itself, and asked, setup and informational, which goroutines of
// net/http write one after another.
type Link struct {
	*race.Attempt
	guarded       bool
	callerLimits  bool         // the caller has a hook for statuses of 1xx
	informational atomic.Int64 // bytes of 1xx responses
	guard         loser.Guard
	trace         httptrace.ClientTrace
	getConnAt     time.Time
	setup         atomic.Int64 // time to set up the connection in ns; 0: it was not new
}

// Context returns the context of attempt a with the hooks of l. If guarded is true, the cancellation of a may harm other requests on its connection.
// The context of a hedge hides the hooks of the caller. That of a primary calls them through own; nil: the caller has none. A peer that is not nil
// gets the address of the primary.
func (l *Link) Context(a *race.Attempt, hedge, guarded bool, own *Hooks, peer *Peer) context.Context {
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

// traceKey is the key by which httptrace finds hooks in a context; nil if it is not known.
var traceKey = func() any {
	asked := keyRecorder{Context: context.Background()}
	httptrace.ContextClientTrace(&asked)
	return asked.key
}()

// A keyRecorder is a context that records the last key of Value.
type keyRecorder struct {
	context.Context
	key any
}

func (a *keyRecorder) Value(key any) any {
	a.key = key
	return nil
}

// Value returns the trace hooks of l for the key of httptrace, and for any other key the value in the context of the attempt.
func (l *Link) Value(key any) any {
	if key == traceKey {
		return &l.trace
	}
	return l.Attempt.Value(key)
}

func (l *Link) getConn(string) {
	l.getConnAt = time.Now()
	l.guard.GetConn()
}

func (l *Link) gotConn(info httptrace.GotConnInfo) {
	l.guard.GotConn(l.Attempt, info.Reused && l.cancelAffectsConn(info.Conn), info.IdleTime)
	if !info.Reused {
		l.setup.Store(int64(time.Since(l.getConnAt)))
	}
}

// cancelAffectsConn reports whether the cancellation of the attempt can make the request before it on conn fail. Over HTTP/2 it cannot: a cancellation
// ends one stream. An attempt that is already cancelled gets a connection only over HTTP/2: for HTTP/1.1, net/http checks the context first.
func (l *Link) cancelAffectsConn(conn net.Conn) bool {
	if !l.guarded || l.Attempt.Err() == nil {
		return l.guarded
	}
	c, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	return !ok || c.ConnectionState().NegotiatedProtocol != "h2"
}

// gotFirstByte is called by net/http before the connection of an HTTP/1.1 request becomes idle. After a response without a body, net/http (Go 1.26)
// makes the connection idle before it returns the response. A request that is cancelled in between closes the connection under the next request, or
// under the one before. [loser.Guard] prevents both: it does not cancel a request whose response arrives, nor one whose connection was idle for too
// short a time. If the request was cancelled before, it waits until net/http has closed the connection.
func (l *Link) gotFirstByte() { l.guard.ResponseStarted(l.Attempt) }

// CountInformational lets 1xx responses not put off the cancellation of the attempt. It allocates a closure, so it is for attempts that are cancelled
// sooner than [loser.MaxCancelDelay] after they have lost. It is called before Context.
//
// With a hook for 1xx responses, net/http leaves their limit to the hook. So it is for transports that have the default limit, which got1xx and
// LimitHeaders enforce, see [Pools.HasDefaultHeaderLimit].
func (l *Link) CountInformational() { l.trace.Got1xxResponse = l.got1xx }

// got1xx counts a 1xx response. If the caller has a hook as well, net/http uses the error of that hook.
func (l *Link) got1xx(code int, header textproto.MIMEHeader) error {
	l.guard.Got1xx()
	if l.informational.Add(headerSize(http.StatusText(code), header)) > defaultHeaderLimit {
		return errHeaderLimit
	}
	return nil
}

// LimitHeaders returns resp and err, the result of the attempt. If the header of the response and the 1xx responses before it exceed the default
// limit of net/http, it closes the body and returns an error. A hook of the caller for 1xx responses bounds them itself.
func (l *Link) LimitHeaders(resp *http.Response, err error) (*http.Response, error) {
	informational := l.informational.Load()
	if informational == 0 || err != nil || l.callerLimits || informational+headerSize(resp.Status, textproto.MIMEHeader(resp.Header)) <= defaultHeaderLimit {
		return resp, err
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	return nil, errBroken
}

// defaultHeaderLimit is the limit of net/http in bytes for all headers of an HTTP/1.1 response, 1xx responses included.
const defaultHeaderLimit = 10 << 20

// errHeaderLimit is the error that the hook returns to net/http, which wraps it as errBroken. They have the texts of net/http's own limit.
var (
	errHeaderLimit = fmt.Errorf("net/http: server response headers exceeded %d bytes; aborted", defaultHeaderLimit)
	errBroken      = fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", errHeaderLimit)
)

// headerSize returns the usual size of an HTTP/1.1 response header in bytes.
func headerSize(reason string, header textproto.MIMEHeader) int64 {
	size := len("HTTP/1.1 200 \r\n\r\n") + len(reason)
	for name, values := range header {
		for _, value := range values {
			size += len(name) + len(": \r\n") + len(value)
		}
	}
	return int64(size)
}

// Returned records that the attempt has a response or has failed. It returns the time that the attempt waited for a new connection; 0: the connection
// was not new.
func (l *Link) Returned() time.Duration {
	l.guard.Returned()
	return time.Duration(l.setup.Load())
}

// withoutTrace is a context that hides the httptrace hooks of the caller, which may not expect calls from two attempts at once.
type withoutTrace struct{ context.Context }

func (u withoutTrace) Value(key any) any {
	v := u.Context.Value(key)
	if _, ok := v.(*httptrace.ClientTrace); ok {
		return nil
	}
	return v
}

// Hooks are the trace hooks of the caller, for a primary that may run on after RoundTrip.
type Hooks struct {
	trace *httptrace.ClientTrace

	mu      sync.Mutex // guards the fields below; a hook runs without it
	running int        // number of hooks that run
	muted   bool
	idle    chan struct{} // closed when the last hook has returned; nil: Mute does not wait
}

// HooksFrom returns the trace hooks in ctx; nil if it has none.
func HooksFrom(ctx context.Context) *Hooks {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil {
		return &Hooks{trace: trace}
	}
	return nil
}

// Context returns the context of attempt a, a primary, with the hooks. They have no effect after Mute.
func (h *Hooks) Context(a *race.Attempt) context.Context {
	return httptrace.WithClientTrace(withoutTrace{a}, h.mutableTrace())
}

// mutableTrace returns a copy of the hooks that have no effect after Mute.
func (h *Hooks) mutableTrace() *httptrace.ClientTrace {
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

// beginHook reports whether a hook may run. If so, the caller calls endHook after it.
func (h *Hooks) beginHook() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.muted {
		h.running++
	}
	return !h.muted
}

// endHook ends a hook.
func (h *Hooks) endHook() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running--; h.running == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

// maxHookWait is the longest time for which Mute waits for a running hook.
const maxHookWait = 100 * time.Millisecond

// Mute makes further hooks have no effect, and waits for running hooks, at most for maxHookWait: a hook that blocks must not delay the response of
// another attempt. It is called once.
func (h *Hooks) Mute() {
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

// A Peer holds the address of the connection that a primary uses, and the address that it dials. They can differ: a dial goes on after its request
// has got another connection.
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

// address returns the address of the connection, or else of the dial; the zero Addr if neither is known, or p is nil.
func (p *Peer) address() netip.Addr {
	if p == nil {
		return netip.Addr{}
	}
	if addr := cmp.Or(p.got.Load(), p.dialled.Load()); addr != nil {
		return *addr
	}
	return netip.Addr{}
}
