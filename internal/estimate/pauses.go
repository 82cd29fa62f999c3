package estimate

import (
	"math"
	"time"
)

const (
	minBodies        = 10                    // must be known
	MinStall         = 50 * time.Millisecond // no pause that is shorter is a stall
	usualShare       = 0.95                  // of the bodies never pause for longer than what counts as usual;
	stallFactor      = 2                     // a pause of so many times that is a stall
	rememberedBodies = 500
)

// Pauses know how long the bodies of answers pause: of each of the last few hundred bodies
// the longest time that its reader waited for more, by fourths of an octave.
type Pauses struct {
	longest [octaves * 4]float32
	total   float32
}

// Add records the longest pause of a body.
func (p *Pauses) Add(d time.Duration) {
	if p.total >= rememberedBodies {
		p.total = 0
		for i := range p.longest {
			p.longest[i] /= 2
			p.total += p.longest[i]
		}
	}
	p.longest[slot(d)]++
	p.total++
}

// Stall returns how long a pause is that all but a few bodies never make. It is 0 if too
// few bodies are known.
func (p *Pauses) Stall() time.Duration {
	if p == nil || p.total < minBodies {
		return 0
	}
	above := float32(0)
	i := len(p.longest) - 1
	for ; i > 0 && above+p.longest[i] <= (1-usualShare)*p.total; i-- {
		above += p.longest[i]
	}
	edge := float64(time.Microsecond) * math.Exp2(float64(i+1)/4)
	return max(MinStall, time.Duration(stallFactor*edge))
}
