// Package limit finds out how many requests a server should work on at a time.
//
// By Little's law n/T requests are finished per second while n are worked on and each takes T. Where n/T grows with n there is room for
// more. Where it does not, one more makes each of the others slower. A [Finder] compares how long requests took that were worked on together
// with few and with many. The number varies by itself while it is below the limit. While requests always wait, it does not, and the Finder
// lowers the limit for a moment now and then. It raises the limit where more requests were finished with more of them at work; at the start, and where
// nothing at all ends, it doubles it while requests wait.
package limit

import (
	"maps"
	"math"
	"time"

	"github.com/gohedge/hedge/observe"
)

// A Move is a change of a limit.
type Move = observe.LimitMove

// A Stamp is what a Finder remembers of a request that is worked on.
type Stamp struct {
	began time.Duration
	sum   float64 // of load at that time
	level int     // of how many were worked on with it then
}

// A Finder finds a limit. It is not safe for concurrent use. Use [New] to make one. Times are those since any moment, the same one for all calls.
type Finder struct {
	load   load
	pace   pace
	record record
	dip    dip
	peak   peak

	level   int     // of the limit
	queued  float64 // share of the requests that had to wait, of late
	doubles bool    // the start goes on
	since   since   // the last move
	run     int     // moves one after another in one direction; negative: down
	last    Move
	moves   map[observe.LimitReason]int64
}

// load is how many requests are worked on.
type load struct {
	n     int
	at    time.Duration
	sum   float64       // of n over time, in request seconds
	ended time.Duration // the last one
	waits time.Duration // since when requests wait, at the earliest
}

func (l *load) advance(now time.Duration) {
	if now > l.at {
		l.sum += float64(l.n) * (now - l.at).Seconds()
		l.at = now
	}
}

// pace is how long requests take, and how long after each other they end, in seconds.
type pace struct{ mean, square, between float64 }

func (p *pace) add(took, between float64) {
	if p.mean == 0 {
		p.mean, p.square = took, took*took
	}
	p.between += (between - p.between) / 64
	p.mean += (took - p.mean) / 32
	p.square += (took*took - p.square) / 64
}

// times returns k times what a request takes.
func (p *pace) times(k float64) time.Duration { return seconds(k * p.mean) }

// rest returns twice how long it takes, on average, until a request ends that is met at work: E[T²]/E[T].
func (p *pace) rest() time.Duration { return seconds(p.square / max(p.mean, 1e-6)) }

func seconds(s float64) time.Duration { return time.Duration(min(s, math.MaxInt64/2e9) * 1e9) }

// peak is the most that were worked on at a time.
type peak struct {
	most int
	from time.Duration
}

// since is what was seen since the last move.
type since struct {
	at     time.Duration
	ended  int
	looked int // of ended, when the Finder looked at the record last
}

// time returns how long ago the move was, in seconds.
func (s *since) time(now time.Duration) float64 { return (now - s.at).Seconds() }

// dip is a lower limit for a moment, to see what it changes.
type dip struct {
	to      int           // the limit; 0: there is no dip
	reached bool          // no more are worked on
	from    time.Duration // was reached then
	until   time.Duration // it ends then
	ended   time.Duration // the last one
	missed  int           // so many of the last ones were not reached
}

// New returns a Finder whose limit is about start at first.
func New(start int) *Finder {
	none := map[observe.LimitReason]int64{observe.LimitStarts: 0, observe.LimitUnused: 0, observe.LimitStalls: 0, observe.LimitGains: 0, observe.LimitNoGain: 0}
	return &Finder{level: levelOf(start), doubles: true, moves: none}
}

// Limit returns how many requests may be worked on now.
func (f *Finder) Limit() int {
	if f.dip.to > 0 {
		return f.dip.to
	}
	return levels[f.level]
}

// settled returns the limit without dips.
func (f *Finder) settled() int { return levels[f.level] }

// Last returns the last move.
func (f *Finder) Last() Move { return f.last }

// Moves returns how many moves there were, by reason.
func (f *Finder) Moves() map[observe.LimitReason]int64 { return maps.Clone(f.moves) }

// Begin says that one more request is worked on, and whether it has waited for that.
func (f *Finder) Begin(now time.Duration, waited bool) Stamp {
	f.load.advance(now)
	f.load.n++
	f.peak.most = max(f.peak.most, f.load.n)
	if f.dip.to == 0 && f.load.at >= f.dip.ended+f.pace.rest() { // else some wait for the dip alone
		was := 0.
		if waited {
			was = 1
		}
		f.queued += (was - f.queued) / math.Max(16, 2*float64(levels[f.level]))
	}
	return Stamp{f.load.at, f.load.sum, levelOf(f.load.n)}
}

// End says that the request is not worked on any more. Nothing is learned of how long it took unless learn is set.
func (f *Finder) End(now time.Duration, s Stamp, waiting int, learn bool) {
	f.load.advance(now)
	f.load.n--
	if learn {
		f.learn(s)
	}
	f.load.ended = f.load.at
	if f.pace.mean == 0 {
		return
	}
	f.endDip(waiting > 0)
	f.fall()
	if f.since.ended-f.since.looked >= lookEvery {
		f.since.looked = f.since.ended
		f.beginDip()
		f.consider(waiting > 0)
	}
}

// learn learns from a request that has ended.
func (f *Finder) learn(s Stamp) {
	took := math.Max((f.load.at - s.began).Seconds(), 1e-6)
	f.pace.add(took, (f.load.at - f.load.ended).Seconds())
	f.since.ended++
	f.record.add(f.load.at.Seconds(), f.horizon(), s.level, took, math.Max(f.load.sum-s.sum, took))
}

// horizon is how far back the record goes, in seconds: after it, a request counts as 1/e of one. It has 3,000 requests where these end within a minute.
func (f *Finder) horizon() float64 {
	return math.Max(math.Max(8, 50*f.pace.mean), math.Min(60, 3000*f.pace.between))
}

// patience is how long it may take until a request ends, while others wait.
func (f *Finder) patience() time.Duration { return max(100*time.Millisecond, f.pace.times(8)) }

// Wait says that a request waits, and that none did before. A dip that would have ended in the meantime, had any been there, ends.
func (f *Finder) Wait(now time.Duration) {
	f.load.advance(now)
	f.load.waits = f.load.at
	if f.dip.to > 0 && f.over() {
		f.dip = dip{ended: f.load.at, missed: f.dip.missed}
	}
}

// Wake is for the time in which nothing ends: it ends a dip that lasts for too long, and raises the limit where requests wait and none that is worked
// on ends: they may be such as go on for hours, or wait for those that wait. It returns when to call it again, while any wait.
func (f *Finder) Wake(now time.Duration, waiting int) time.Duration {
	f.load.advance(now)
	switch {
	case waiting == 0:
		f.load.waits = f.load.at
	case f.load.n < f.Limit(): // who waits is about to begin
	case f.dip.to > 0 && f.over():
		f.endDip(true)
	case f.dip.to == 0 && f.load.at-max(f.load.waits, f.load.ended) > f.patience():
		f.load.ended = f.load.at
		f.move(levelOf(2*levels[f.level]), observe.LimitStalls)
	}
	return f.again()
}

// again is when to call Wake, while requests wait. It is soon even where requests take long, because those that come next may not.
func (f *Finder) again() time.Duration { return min(f.patience()/4, time.Second) }

// move moves the limit to a level.
func (f *Finder) move(level int, why observe.LimitReason) {
	level = min(max(level, 0), len(levels)-1)
	if level != f.level {
		f.last = Move{From: levels[f.level], To: levels[level], Reason: why}
		f.moves[why]++
	}
	f.level = level
	f.since = since{at: f.load.at}
}

// leastFall is the limit that is low enough for any server that has little to do: so many may come at once, and who waits teaches only slowly.
const leastFall = 32

// fall lowers a limit of which less than half was used for a minute; the first one, which nobody needs, at once.
func (f *Finder) fall() {
	age := f.load.at - f.peak.from
	if age <= max(time.Minute, f.pace.times(8)) && !(f.doubles && f.since.ended > 32 && age > f.pace.times(8)) {
		return
	}
	if twice := levelOf(max(leastFall, 2*f.peak.most)); twice < f.level {
		f.move(twice, observe.LimitUnused)
		f.doubles = false
	}
	f.peak = peak{f.load.n, f.load.at}
}

const (
	lookEvery = 16    // requests that end
	dipTo     = .62   // times the most that are used
	fewBelow  = .4    // few are from here
	fewAbove  = .68   // to here times the limit
	manyBelow = .85   // and many from here
	dipShare  = .05   // as many requests of the record as this, of those with many others, are with few at most, for the sake of dips
	dipLeast  = 20    // but so many are
	sure      = .0065 // variance of the mean logarithm of the time with few, below which no more of them are needed
)

// endDip ends a dip that lasts for long enough, or for which nobody waits any more.
func (f *Finder) endDip(waits bool) {
	d := &f.dip
	switch {
	case d.to == 0:
	case !d.reached && f.load.n <= d.to:
		d.reached, d.from, d.until, d.missed = true, f.load.at, f.load.at+f.settling(), 0
	case !d.reached && f.load.at > d.until:
		*d = dip{ended: f.load.at, missed: min(d.missed+1, 10)}
	case d.reached && (!waits || f.over()):
		*d = dip{ended: f.load.at}
	}
}

// over reports whether a dip has lasted for long enough. One request that takes an hour makes all seem to take long, until some more have ended.
func (f *Finder) over() bool {
	d := &f.dip
	return f.load.at > d.until || d.reached && f.load.at-d.from > 4*f.settling()
}

// settling is how long it takes until requests show what fewer beside them change: twice as long as those that are met at work go on, but for
// such as take so much longer than others that all would wait for them.
func (f *Finder) settling() time.Duration { return min(2*f.pace.rest(), f.pace.times(10)) }

// beginDip begins a dip where too little is known of fewer at work: often while requests always wait, who lose little by it, and hardly ever
// where none wait and yet as many are worked on all the time.
func (f *Finder) beginDip() {
	top := float64(levels[f.level])
	never := f.queued < .01
	if f.dip.to > 0 || f.doubles || !never && (f.queued <= .8 || f.since.ended <= int(top)) {
		return
	}
	pause := 4 * f.pace.rest()
	if never {
		all := f.between(0, math.MaxInt32)
		pause = max(10*time.Second, seconds(400*all.took/math.Max(all.n, 1)))
	}
	if f.load.at < max(f.dip.ended, f.since.at)+pause<<f.dip.missed {
		return
	}
	if never {
		top = f.used(top)
	}
	if top < 2 {
		return
	}
	few, many := f.compared(top)
	enough := 0.
	if few.n >= leastCompared {
		enough = few.spread() / sure
	}
	if few.n < math.Max(dipLeast, math.Min(dipShare*many.n, enough)) {
		f.dip.to, f.dip.until = max(1, int(math.Round(dipTo*top))), f.load.at+max(f.pace.times(2), time.Millisecond)
	}
}

// used returns how many are worked on together at most, but for rare moments, or limit if that is less.
func (f *Finder) used(limit float64) float64 {
	return math.Min(limit, f.record.top(f.load.at.Seconds(), f.horizon()))
}

// compared returns the requests that were worked on with few and with many others, of up to top.
func (f *Finder) compared(top float64) (few, many sums) {
	limit := float64(levels[f.level])
	if top < 3 {
		return f.between(.5*top, .99*top), f.between(top, limit)
	}
	return f.between(fewBelow*top, fewAbove*top), f.between(manyBelow*top, math.Max(top, limit))
}

// between returns what is known of the levels from and to.
func (f *Finder) between(from, to float64) sums {
	return f.record.between(f.load.at.Seconds(), f.horizon(), from, to, 0)
}

// consider moves the limit if the record says so.
func (f *Finder) consider(waits bool) {
	limit := levels[f.level]
	patience := 4.
	if f.doubles {
		patience = 2
	}
	if f.load.at-f.since.at < f.pace.times(patience) || f.since.ended < max(8, limit/2) {
		return
	}
	if f.doubles {
		f.double(waits)
		return
	}
	top := float64(limit)
	if f.queued < .01 {
		top = f.used(top)
	}
	few, many := f.compared(top)
	switch c := compare(few, many, f.wanted()); {
	case limit == 1 && f.queued > .8 && !f.knownAbove(top, many, 30): // there are no fewer to compare with
		f.move(f.level+1, observe.LimitStarts)
	case c.evidence < -2.5:
		f.down(top, c.slope)
	case c.evidence > .8*math.Exp(-f.since.time(f.load.at)/(100*f.pace.mean)) && f.queued > .15 && !f.knownAbove(top, many, math.Max(1, 20*f.pace.mean)):
		f.up(c.slope)
	}
}

// wanted is by what part of its own share one more request must raise what is finished, to be worth it. Less is asked for where requests always wait.
func (f *Finder) wanted() float64 {
	return .22 - .07*math.Min(1, math.Max(0, (f.queued-.5)/.45))
}

// double doubles the limit, or ends the start.
func (f *Finder) double(waits bool) {
	few, many := f.compared(float64(levels[f.level]))
	c := compare(few, many, .5)
	switch {
	case f.queued < .3 && f.since.ended > 64:
		f.doubles = false
	case c.evidence < -.3-2.4/float64(levels[f.level]): // few are too low a limit to stop at by chance
		f.doubles = false
		to := levelOf(levels[f.level] / 2)
		if c.slope >= 0 {
			to = f.level - 2
		}
		f.move(to, observe.LimitNoGain)
	case waits && f.queued > .3:
		f.move(levelOf(2*levels[f.level]), observe.LimitStarts)
	}
}

// down lowers a limit, of which up to top is used.
func (f *Finder) down(top, slope float64) {
	steps := 1
	switch {
	case top < .8*float64(levels[f.level]):
		steps = min(3, max(1, (f.level-levelOf(int(top)))/2))
	case slope < -.4:
		steps = 3
	case slope < -.2 || f.run < -1:
		steps = 2
	}
	f.run = min(f.run, 0) - 1
	f.move(f.level-steps, observe.LimitNoGain)
}

// up raises the limit.
func (f *Finder) up(slope float64) {
	steps := 1
	if slope > .6 || f.run > 1 {
		steps = 3
	}
	f.run = max(f.run, 0) + 1
	f.move(f.level+steps, observe.LimitGains)
}

// knownAbove reports whether more than top were worked on within so many seconds, and gained nothing.
func (f *Finder) knownAbove(top float64, many sums, within float64) bool {
	now := f.load.at.Seconds()
	above := f.record.between(now, f.horizon(), 1.12*top, math.Max(1.7*top, top+1), now-within)
	c := compare(many, above, f.wanted())
	return above.n > 10 && c.evidence < -.3 && c.slope < .22
}
