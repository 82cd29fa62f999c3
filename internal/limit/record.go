package limit

import (
	"math"
	"slices"
)

// levels are the limits that there are: each is about 15 % above the one before. The last one is 913,000.
var levels = func() (all [numLevels]int) {
	n := 1
	for i := range all {
		all[i] = n
		n = max(n+1, int(math.Round(1.15*float64(n))))
	}
	return all
}()

const numLevels = 91

// levelOf returns the lowest level of at least n, or the last one.
func levelOf(n int) int {
	at, _ := slices.BinarySearch(levels[:], n)
	return min(at, len(levels)-1)
}

// sums are those of requests. Each counts the less the longer ago it ended.
type sums struct {
	n            float64 // requests
	root, square float64 // of the root of how long each took, so that one that takes long by its nature does not count for hundreds; and of its square
	together     float64 // request seconds of all that were worked on at the same time
	took         float64 // seconds
	at           float64 // when the last one ended
}

func (s *sums) fade(by float64) {
	s.n, s.root, s.square, s.together, s.took = by*s.n, by*s.root, by*s.square, by*s.together, by*s.took
}

func (s *sums) add(o sums) {
	s.n, s.root, s.square, s.together, s.took = s.n+o.n, s.root+o.root, s.square+o.square, s.together+o.together, s.took+o.took
}

// spread is how much one request says too little or too much, as the variance of the logarithm of the time, and no less than .4: what
// happens to one request happens to those beside it as well.
func (s *sums) spread() float64 {
	mean := s.root / s.n
	return 4 * (math.Max(0, s.square/s.n-mean*mean)/(mean*mean) + .1)
}

// A record has the sums of requests by the level of how many were worked on when each began.
type record struct {
	sums [numLevels]sums
	high int // no level above has any
}

// add adds a request that ended now. During it, together request seconds were worked on.
func (r *record) add(now, horizon float64, level int, took, together float64) {
	r.high = max(r.high, level)
	s := &r.sums[level]
	s.fade(math.Exp((s.at - now) / horizon))
	root := math.Sqrt(took)
	s.add(sums{n: 1, root: root, square: took, together: together, took: took})
	s.at = now
	if s.n > mostKept {
		s.fade(mostKept / s.n)
	}
}

// mostKept is how many requests of a level count at most: else those of a fast time would outweigh for long what follows when all is slow.
const mostKept = 3000

// between returns the sums of the levels from and to, of those where a request has ended after a time.
func (r *record) between(now, horizon, from, to, after float64) (all sums) {
	for i := levelOf(int(math.Ceil(from))); i <= r.high && float64(levels[i]) <= to; i++ {
		if s := r.sums[i]; s.n > 0 && s.at >= after {
			s.fade(math.Exp((s.at - now) / horizon))
			all.add(s)
		}
	}
	return all
}

// top returns the level above which one request in sixteen was, of late.
func (r *record) top(now, horizon float64) float64 {
	rest := r.between(now, horizon, 0, math.MaxInt32, 0).n / 16
	for i := r.high; i > 0; i-- {
		s := &r.sums[i]
		if rest -= s.n * math.Exp((s.at-now)/horizon); rest < 0 {
			return float64(levels[i])
		}
	}
	return 1
}

const (
	leastCompared = 6
	// Requests that are worked on together are slow together. So the variance of a mean is larger than if each were alone.
	likeness = 2
)

// A comparison is what many at work gained over few.
type comparison struct {
	slope    float64 // of the logarithm of what is finished per second, by the logarithm of how many are worked on
	evidence float64 // that the slope is above the one that is wanted, as the logarithm of a likelihood ratio; below 0: that it is below
}

// compare compares requests with few and with many others. The zero comparison says nothing: there are too few, or they had as many others.
func compare(few, many sums, wanted float64) comparison {
	if few.n < leastCompared || many.n < leastCompared {
		return comparison{}
	}
	more := math.Log(many.together / many.took * few.took / few.together)
	if more < .03 {
		return comparison{}
	}
	finished := more - 2*math.Log(many.root/many.n*few.n/few.root)
	variance := likeness * (few.spread()/few.n + many.spread()/many.n)
	return comparison{finished / more, .6 * more * (finished - wanted*more) / variance}
}
