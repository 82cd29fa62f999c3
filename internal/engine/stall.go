package engine

import (
	"math"
	"time"
)

const (
	minStall         = 50 * time.Millisecond // no pause that is shorter is a stall
	stallShare       = 0.05                  // of the bodies may have paused for longer than usual, which
	stallFactor      = 2                     // times this is a stall
	rememberedBodies = 500
)

// pauses knows how long the bodies of answers pause: of each of the last few hundred bodies
// the longest time that its reader waited for more, by fourths of an octave.
type pauses struct {
	longest [octaves * 4]float32
	total   float32
}

func (p *pauses) add(d time.Duration) {
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

// stall returns how long a pause is that all but a few bodies never make. It is 0 if too
// few bodies are known.
func (p *pauses) stall() time.Duration {
	if p == nil || p.total < MinSamples {
		return 0
	}
	above := float32(0)
	i := len(p.longest) - 1
	for ; i > 0 && above+p.longest[i] <= stallShare*p.total; i-- {
		above += p.longest[i]
	}
	edge := float64(time.Microsecond) * math.Exp2(float64(i+1)/4)
	return max(minStall, time.Duration(stallFactor*edge))
}
