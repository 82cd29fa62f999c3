package storelab

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Fate returns what the first request for a whole range meets: when its first byte comes, and how long its body takes from there.
func Fate(name string, seed uint64, read int64) (late, lasts time.Duration) {
	w := worlds[slices.Index(Worlds, name)]
	b := &body{store: &store{world: w}, off: read * Size, size: Size, pace: pace, stalls: -1}
	late = b.draw(rand.New(rand.NewPCG(seed, uint64(read)*(Size/block)<<8)))
	lasts = time.Duration(Size/step-1) * b.pace
	if b.stalls >= 0 {
		lasts += pause
	}
	return late, lasts
}

var (
	Fill  = fill
	Check = check
)
