package engine

import (
	"context"
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

// Paused learns from the body of an answer, whose reader waited for more of it for d at most.
func (k *Key) Paused(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pauses == nil {
		k.pauses = new(pauses)
	}
	k.pauses.add(d)
}

// Stall returns how long a body must pause to have stalled: twice as long as nineteen
// bodies in twenty ever do, and at least 50 ms, and as long as a call waits for its first
// hedge. It is 0 until ten bodies and ten calls are known.
func (k *Key) Stall() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stall()
}

// stall is Stall. The caller holds mu.
func (k *Key) stall() time.Duration {
	p, d := k.plan.Load(), k.pauses.stall()
	if p == nil || d == 0 {
		return 0
	}
	return max(d, p.usual)
}

// BeginRest makes c the request for the rest of an answer that is being read, which is a
// hedge of a call that has ended. It is no call of its own: it earns no budget and teaches no
// latency. It is admitted, started and finished as other hedges are, and EndRest ends it.
func (c *Call) BeginRest(ctx context.Context, k *Key) {
	*c = Call{ctx: ctx, key: k, start: k.engine.now(), watcher: k.engine.setup.Watcher}
}

// EndRest says that the request for the rest has ended, and whether its answer is read.
func (c *Call) EndRest(won bool) {
	c.key.Ended()
	if won {
		c.key.mu.Lock()
		defer c.key.mu.Unlock()
		c.key.wins++
		c.key.won++
	}
}
