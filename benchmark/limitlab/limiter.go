package limitlab

import (
	"math"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"

	"github.com/gohedge/hedge/internal/limit"
)

// A limiter says how many requests may be worked on at a time.
type limiter interface {
	// begin asks whether one more request may be worked on beside those that are, while others wait. If so, ended, which may be nil,
	// is called when it is finished.
	begin(now float64, working, waiting int) (ended func(now float64, waiting int), ok bool)
	// limit is how many may be, at the moment.
	limit() int
}

// fixed is a limit that stays, or that is changed once.
type fixed struct {
	most   int
	before int     // what it is
	from   float64 // until then
}

func (f fixed) begin(now float64, working, _ int) (func(float64, int), bool) {
	if now < f.from {
		return nil, working < f.before
	}
	return nil, working < f.most
}

func (f fixed) limit() int { return f.most }

var unlimited = fixed{most: math.MaxInt}

// adaptive is this library's.
type adaptive struct{ *limit.Finder }

func (a adaptive) begin(now float64, working, waiting int) (func(float64, int), bool) {
	if working >= a.Limit() {
		if a.Wake(duration(now), waiting+1); working >= a.Limit() {
			return nil, false
		}
	}
	stamp := a.Begin(duration(now), waiting > 0)
	return func(now float64, waiting int) { a.End(duration(now), stamp, waiting, true) }, true
}

func (a adaptive) limit() int { return a.Limit() }

// failsafe is failsafe-go's AdaptiveLimiter, with nothing configured: from 1 to 200, 20 at first. By itself it rejects what it does not permit. Its own line
// rejects as well when it is as long as two to three times the limit. Here nobody is rejected: all contenders have the same requests to work on, and those that
// it does not permit wait before it as before the others. It reads the clock itself, so it needs one that is fake.
type failsafe struct {
	adaptivelimiter.AdaptiveLimiter[any]
	began time.Time
}

func newFailsafe() limiter { return failsafe{adaptivelimiter.NewWithDefaults[any](), time.Now()} }

// sleep has the clock show a moment.
func (f failsafe) sleep(now float64) { time.Sleep(time.Until(f.began.Add(duration(now)))) }

func (f failsafe) begin(now float64, _, _ int) (func(float64, int), bool) {
	f.sleep(now)
	permit, ok := f.TryAcquirePermit()
	if !ok {
		return nil, false
	}
	return func(now float64, _ int) {
		f.sleep(now)
		permit.Record()
	}, true
}

func (f failsafe) limit() int { return f.Limit() }
