package dnshedge

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/label"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/internal/watch"
	"github.com/gohedge/hedge/observe"
)

const protocol = "dns" // as in observe.KeyInfo

// SetEnabled switches hedging on or off, for questions that are asked from now on.
// Queries that are lost are still sent again, and learning goes on. It does nothing if the
// Client's fields are invalid, and does not override Hedge.Off.
func (c *Client) SetEnabled(on bool) {
	core, err := c.init()
	if err == nil && core.off.Swap(!on) == on {
		core.log.Switched(on, "SetEnabled")
	}
}

func (c *core) isOff() bool { return c.conf.Hedge.Off || c.off.Load() }

// observe reads the environment, and makes the engine, its observer and the log.
func (c *core) observe() error {
	for i, o := range c.conf.Observers {
		if o == nil {
			return fmt.Errorf("dnshedge: Client.Observers[%d] is nil", i)
		}
	}
	environment := ops.ReadEnvironment()
	c.off.Store(environment.Off != "")
	c.shadow = c.conf.Hedge.Shadow || environment.Shadow
	c.records.panics = &c.count.observerPanics
	c.log = ops.NewLog(c.records.logger(c.conf.Logger), "dnshedge", protocol, c.conf.Name, &c.count.observerPanics)
	conf := c.conf.Hedge.engine()
	conf.Shadow = c.shadow
	if !c.log.Silent() {
		conf.Changed = c.log.Changed
	}
	c.watcher = watch.New(c.conf.Observers, c.log.Panicked)
	conf.Client, conf.Protocol, conf.Watcher = c.conf.Name, protocol, c.watcher
	c.log.Started(environment)
	c.engine = engine.New(conf)
	return nil
}

// told is what observers were told of an exchange. What belongs to an attempt is used by
// the attempt's goroutine alone.
type told struct {
	ctx      context.Context
	delay    time.Duration // after which the first hedge is due; 0: none is
	attempts [1 + race.MaxHedges]struct {
		to     *upstreamState // nil: none was asked yet
		began  time.Time
		number int
	}
}

var _ race.Watch = (*exchange)(nil)

// tell returns a new told, or nil if there are no observers.
func (c *core) tell(ctx context.Context) *told {
	if c.watcher == nil {
		return nil
	}
	return &told{ctx: ctx}
}

// watch returns what the race is to tell of attempts: nil if there are no observers.
func (x *exchange) watch() race.Watch {
	if x.told == nil {
		return nil
	}
	return x
}

// info is what observers know the exchange by: the server that is asked first.
func (x *exchange) info() observe.KeyInfo { return x.group[0].key.Info }

// number is what observers call attempt n: 0, or which of the hedges it is.
func (x *exchange) number(n int) (number int) {
	if n < 0 {
		return n
	}
	if x.kinds[n] != hedged {
		return 0
	}
	for _, k := range x.kinds[:n+1] {
		if k == hedged {
			number++
		}
	}
	return number
}

// tellDenied tells why a hedge, or any hedge of the exchange, is not sent.
func (x *exchange) tellDenied(reason observe.Reason) {
	if x.told != nil {
		x.c.watcher.Tell(func(o observe.Observer) { o.Denied(x.told.ctx, x.info(), reason) })
	}
}

// deny counts and tells why a hedge that is due is not sent, for a reason that the
// engine does not know.
func (x *exchange) deny(reason observe.Reason) {
	x.c.count.denied.Add(1)
	x.tellDenied(reason)
}

// due says when hedges are due.
func (x *exchange) due(delays []time.Duration) {
	if x.told == nil || len(delays) == 0 {
		return
	}
	x.told.delay = delays[0]
	x.call.Due(delays[0])
}

// asks tells that attempt n asks a server, and if it asked another one before, that this
// one failed.
func (x *exchange) asks(ctx context.Context, n int, s *upstreamState) {
	if x.told == nil {
		return
	}
	x.Finished(ctx, n, race.Failed)
	a := &x.told.attempts[n]
	a.to, a.began, a.number = s, time.Now(), x.number(n)
	x.c.watcher.Tell(func(o observe.Observer) { o.AttemptStart(ctx, s.key.Info, observe.AttemptInfo{Number: a.number}) })
}

// Started does nothing, because it is not known yet which server is asked.
func (x *exchange) Started(context.Context, int) {}

// Finished tells how attempt n ended.
func (x *exchange) Finished(ctx context.Context, n int, how race.Outcome) {
	if a := &x.told.attempts[n]; a.to != nil {
		r := observe.AttemptResult{AttemptInfo: observe.AttemptInfo{Number: a.number}, Outcome: observe.Outcome(how.String()), Latency: time.Since(a.began)}
		x.c.watcher.Tell(func(o observe.Observer) { o.AttemptDone(ctx, a.to.key.Info, r) })
	}
}

// end learns from the exchange and tells how it ended. The winner is -1 if there is none.
func (x *exchange) end(winner int, r *result) {
	answered := winner >= 0
	switch {
	case x.key != nil:
		x.call.AnsweredBy(x.number(winner))
		x.call.End(answered, answered && r.kind == hedged, r.setup)
	case x.told != nil:
		report := observe.RequestResult{Attempts: 1, Winner: x.number(winner), Latency: time.Since(x.start), Delay: x.told.delay}
		x.mu.Lock()
		for _, k := range x.kinds[:x.tries] {
			if k == hedged {
				report.Attempts++
			}
		}
		x.mu.Unlock()
		x.c.watcher.Tell(func(o observe.Observer) { o.RequestDone(x.told.ctx, x.info(), report) })
	}
}

// hedging adds to v what the engine knows.
func (s *upstreamState) hedging(v *UpstreamStats) {
	known := s.key.View()
	v.Budget, v.Saved, v.ShadowWins = known.Tokens, known.Saved, known.ShadowWins
	v.Denied = known.Denied
}

// logState logs that the server is silent or fails, or answers again, if that is news.
// The caller must not hold mu when it is called.
func (s *upstreamState) logState(now time.Time) {
	if s.c.log.Silent() {
		return
	}
	s.mu.Lock()
	doubtful, silent := s.doubtful(), s.silent.Load()
	dropped, news := s.notice.Update(now, doubtful)
	s.mu.Unlock()
	if !news {
		return
	}
	level, message := slog.LevelWarn, "upstream fails"
	switch {
	case silent:
		message = "upstream is silent"
	case !doubtful:
		level, message = slog.LevelInfo, "upstream answers again"
	}
	attrs := []slog.Attr{slog.String("host", label.Clean(s.name))}
	if dropped > 0 {
		attrs = append(attrs, slog.Int("dropped", dropped))
	}
	s.c.log.Tell(level, message, attrs...)
}

// stats returns how full the cache is.
func (c *Cache) stats() *observe.DNSCacheStats {
	c.init()
	return &observe.DNSCacheStats{Entries: c.store.EstimatedSize(), Bytes: int64(c.store.WeightedSize()), MaxBytes: c.maxBytes()}
}
