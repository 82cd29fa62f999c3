package hedge

import (
	"context"

	"github.com/gohedge/hedge/internal/funccall"
)

// A Hedger keeps what is learned of the calls of [Do] and [DoDetached], and their
// budgets. It is safe for concurrent use. The zero Hedger is not usable; NewHedger makes one.
type Hedger struct {
	controls
	calls funccall.Client
}

// NewHedger returns a Hedger. It panics if options contradict each other.
func NewHedger(opts ...FuncOption) *Hedger {
	h := new(Hedger)
	if err := h.init(DefaultConfig(), opts); err != nil {
		panic(err)
	}
	return h
}

// NewHedgerWithConfig is [NewHedger] for settings that come from outside the
// program, as [NewWithConfig] is New.
func NewHedgerWithConfig(c Config, opts ...FuncOption) (*Hedger, error) {
	h := new(Hedger)
	if err := h.init(c, opts); err != nil {
		return nil, err
	}
	return h, nil
}

// init applies the settings and the options.
func (h *Hedger) init(settings Config, opts []FuncOption) error {
	c := &config{Config: settings}
	applyOptions(c, opts, FuncOption.applyFunc)
	h.calls.Client = &h.client
	return h.initControls("func", c)
}

// Do calls f, and if that takes longer than usual for key, calls it again at the same
// time. It returns the first result without an error. If every call fails, or the others take
// longer than usual once the first one has failed, it returns what the first one returned. With
// a nil h, it calls f once.
//
// f must be safe to run twice at once. It must return soon after its context is done:
// Do returns only when the first call has returned, even if another one answered. So Do
// gains nothing where f ignores its context, as some database clients do; see [DoDetached]. That is logged once for each key, and counted in
// Stats.HeldBack instead of HedgeWins.
//
// The context of the call that wins ends when ctx does, not before, so that rows or
// a body can be read after Do. Those of the others end when Do returns. A value that
// comes too late is closed if it is an [io.Closer], unless it is nil or equal (==) to the value that Do returns.
// Where each value is to be closed, return pointers: structs of the same content are equal.
func Do[T any](ctx context.Context, h *Hedger, key string, f func(context.Context) (T, error)) (T, error) {
	if h == nil {
		return funccall.CallOnce(ctx, f)
	}
	h.mustBeInitialized()
	return funccall.Do(ctx, &h.calls, key, f)
}

// MaxDetached is how many attempts of a Hedger's [DoDetached] calls there can be
// beside the one of each call that its caller waits for.
const MaxDetached = funccall.MaxDetached

// DoDetached is [Do] for an f that ignores its context. Every call of f runs in a goroutine
// of its own. DoDetached returns with the first result without an error, or as soon as ctx
// is done: with the error of the first call of f if that has failed already, and else with
// ctx.Err(). It leaves behind what still runs, to finish by itself. There are at most
// [MaxDetached] such calls of f and hedges in flight. Beyond that limit no hedge is sent, with
// the reason [DeniedInFlight], and a caller that gives up still waits for the first call of f. So
// does the caller of a call that is not to be hedged: h is nil or disabled, or ctx is that of a
// hedge or of [WithoutHedging]. Then f runs in the caller's goroutine.
//
// What comes too late is given to discard, if it came without an error, also if it is the very
// value that DoDetached returns. A nil discard closes it as [Do] does. discard is called in other goroutines, also after
// DoDetached has returned. Panics in it, and in what is left behind, are counted in
// Stats.HedgePanics. A panic in the first call of f is raised by DoDetached, unless another
// call answers, or it has returned.
//
// Each call that is left behind holds what f holds, such as a connection of a
// pool: make pools larger by that.
func DoDetached[T any](ctx context.Context, h *Hedger, key string, f func(context.Context) (T, error), discard func(T)) (T, error) {
	if h == nil {
		return funccall.CallOnce(ctx, f)
	}
	h.mustBeInitialized()
	return funccall.DoDetached(ctx, &h.calls, key, f, discard)
}
