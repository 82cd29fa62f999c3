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

// A Link is what net/http tells of the connection of one attempt. Each attempt has a new
// one, because a dial may outlive its attempt. It is also the attempt's context with
// these hooks in it.
//
// Context writes all fields before the attempt is sent, but for guard, which locks itself, and
// asked, setup and notes, which net/http's goroutines write, one after another.
type Link struct {
	*race.Attempt
	guarded      bool
	callerLimits bool         // the caller has a hook for statuses of 1xx
	notes        atomic.Int64 // bytes of statuses of 1xx
	guard        loser.Guard
	trace        httptrace.ClientTrace
	asked        time.Time
	setup        atomic.Int64 // ns to set the connection up; 0: it was not new
}

// Context returns the context of attempt a, with the hooks of l in it. Guarded says that
// cancelling the attempt may harm others that use its connection. A hedge's context hides the
// caller's hooks. A primary's calls own, which are the caller's; nil: the caller has none. Peer, if that is not
// nil, learns which address the primary goes to.
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
		// Package net keeps its hooks under a key of its own; these hide the caller's.
		l.trace.DNSStart = func(httptrace.DNSStartInfo) { l.guard.Dialing() }
		l.trace.ConnectStart = func(string, string) { l.guard.Dialing() }
		l.trace.TLSHandshakeStart = l.guard.Dialing
		return httptrace.WithClientTrace(untraced{ctx}, &l.trace)
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
		return l // no hooks of the caller to call as well, and none that package net must find
	}
	return httptrace.WithClientTrace(ctx, &l.trace)
}

// traceKey is what httptrace finds hooks by in a context; nil if that cannot be told.
var traceKey = func() any {
	asked := askedFor{Context: context.Background()}
	httptrace.ContextClientTrace(&asked)
	return asked.key
}()

// askedFor is a context that keeps the last key that was asked for.
type askedFor struct {
	context.Context
	key any
}

func (a *askedFor) Value(key any) any {
	a.key = key
	return nil
}

// Value finds the hooks of l, and else what the attempt's context holds.
func (l *Link) Value(key any) any {
	if key == traceKey {
		return &l.trace
	}
	return l.Attempt.Value(key)
}

func (l *Link) getConn(string) {
	l.asked = time.Now()
	l.guard.GetConn()
}

func (l *Link) gotConn(info httptrace.GotConnInfo) {
	l.guard.GotConn(l.Attempt, info.Reused && l.harms(info.Conn), info.IdleTime)
	if !info.Reused {
		l.setup.Store(int64(time.Since(l.asked)))
	}
}

// harms reports whether the attempt may harm the last user of conn when it is cancelled. Over HTTP/2 it ends its own
// stream alone. An attempt that ended before it was sent gets a connection only there: net/http asks for one of
// HTTP/1.1 after it has looked.
func (l *Link) harms(conn net.Conn) bool {
	if !l.guarded || l.Attempt.Err() == nil {
		return l.guarded
	}
	c, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	return !ok || c.ConnectionState().NegotiatedProtocol != "h2"
}

// gotFirstByte is called by net/http before the connection of an HTTP/1.1 request is idle
// again. After an empty response, net/http (Go 1.26) makes the connection idle before it
// hands the response over, and a request that is cancelled in between closes it under the
// next one, or under the one before. [loser.Guard] keeps both from happening: it does not
// cancel a request whose response has begun to arrive, nor one whose connection was idle
// for too short; and if the request was cancelled before, this waits until net/http has
// closed the connection, so that it does not become idle.
func (l *Link) gotFirstByte() { l.guard.ResponseStarted(l.Attempt) }

// HearNotes has statuses of 1xx not put off the cancellation of the attempt. It costs a closure, so
// it is for attempts that are cancelled sooner than [loser.MaxCancelDelay] after they have lost. It is called before Context.
//
// Where there is a hook for statuses of 1xx, net/http leaves it to the hook to bound them. So it is for transports that have
// the default bound, which got1xx and LimitHeaders keep, see [Pools.HasDefaultHeaderLimit].
func (l *Link) HearNotes() { l.trace.Got1xxResponse = l.got1xx }

// got1xx counts a status of 1xx. Where the caller has a hook as well, net/http gets that hook's error instead.
func (l *Link) got1xx(code int, header textproto.MIMEHeader) error {
	l.guard.Got1xx()
	if l.notes.Add(headerSize(http.StatusText(code), header)) > defaultHeaderLimit {
		return errHeaderLimit
	}
	return nil
}

// LimitHeaders returns the attempt's response and error, or an error if the header of the response and statuses of 1xx before it are
// together above net/http's default limit. It closes the body then. A caller that has a hook for 1xx bounds them itself.
func (l *Link) LimitHeaders(resp *http.Response, err error) (*http.Response, error) {
	notes := l.notes.Load()
	if notes == 0 || err != nil || l.callerLimits || notes+headerSize(resp.Status, textproto.MIMEHeader(resp.Header)) <= defaultHeaderLimit {
		return resp, err
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	return nil, errBroken
}

// defaultHeaderLimit is the limit in bytes of net/http for all headers of a response over HTTP/1.1, statuses of 1xx included.
const defaultHeaderLimit = 10 << 20

// errHeaderLimit is what the hook returns to net/http, which makes errBroken of it. They have the texts of net/http's own limit.
var (
	errHeaderLimit = fmt.Errorf("net/http: server response headers exceeded %d bytes; aborted", defaultHeaderLimit)
	errBroken      = fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", errHeaderLimit)
)

// headerSize returns the size of a header over HTTP/1.1 in bytes, as servers usually write it.
func headerSize(reason string, header textproto.MIMEHeader) int64 {
	size := len("HTTP/1.1 200 \r\n\r\n") + len(reason)
	for name, values := range header {
		for _, value := range values {
			size += len(name) + len(": \r\n") + len(value)
		}
	}
	return int64(size)
}

// Returned says that the attempt has its response, or has failed. It returns how long the
// attempt waited for a new connection; 0: its connection was not new.
func (l *Link) Returned() time.Duration {
	l.guard.Returned()
	return time.Duration(l.setup.Load())
}

// untraced hides the caller's httptrace hooks: they may not expect calls from two
// attempts at once.
type untraced struct{ context.Context }

func (u untraced) Value(key any) any {
	v := u.Context.Value(key)
	if _, ok := v.(*httptrace.ClientTrace); ok {
		return nil
	}
	return v
}

// Hooks are the caller's, of a primary that may run on after RoundTrip has returned.
type Hooks struct {
	trace *httptrace.ClientTrace

	mu      sync.Mutex // guards the fields below; a hook runs without it
	running int        // hooks
	mutes   bool
	idle    chan struct{} // closed when none runs any more; nil: nobody waits for that
}

// HooksFrom returns the hooks of a caller's context; nil if it has none.
func HooksFrom(ctx context.Context) *Hooks {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil {
		return &Hooks{trace: trace}
	}
	return nil
}

// Context returns the context of attempt a, a primary, with hooks that call the caller's until Mute is called.
func (h *Hooks) Context(a *race.Attempt) context.Context {
	return httptrace.WithClientTrace(untraced{a}, h.muted())
}

// muted returns hooks that call the caller's until Mute is called.
func (h *Hooks) muted() *httptrace.ClientTrace {
	trace := *h.trace
	v := reflect.ValueOf(&trace).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() != reflect.Func || f.IsNil() {
			continue
		}
		hook := reflect.ValueOf(f.Interface())
		f.Set(reflect.MakeFunc(f.Type(), func(args []reflect.Value) []reflect.Value {
			if h.enter() {
				defer h.leave()
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

// enter reports whether a hook may run, which then calls leave.
func (h *Hooks) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.mutes {
		h.running++
	}
	return !h.mutes
}

func (h *Hooks) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running--; h.running == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

// hookTime is how long RoundTrip waits for a hook that runs when another attempt's response is returned.
const hookTime = 100 * time.Millisecond

// Mute lets no hook begin any more, and waits until no hook runs, or for hookTime: a hook that blocks must not
// keep the response of another attempt. It is called once.
func (h *Hooks) Mute() {
	h.mu.Lock()
	h.mutes = true
	var idle chan struct{}
	if h.running > 0 {
		h.idle = make(chan struct{})
		idle = h.idle
	}
	h.mu.Unlock()
	if idle == nil {
		return
	}
	limit := time.NewTimer(hookTime)
	defer limit.Stop()
	select {
	case <-idle:
	case <-limit.C:
	}
}

// A Peer is the address that a primary went to, or is connecting to. The two are kept apart:
// a dial can go on after its request has found another connection.
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

// get returns the address; the zero Addr if it is not known, or if p is nil.
func (p *Peer) get() netip.Addr {
	if p == nil {
		return netip.Addr{}
	}
	if addr := cmp.Or(p.got.Load(), p.dialled.Load()); addr != nil {
		return *addr
	}
	return netip.Addr{}
}
