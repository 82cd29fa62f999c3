package serviceconfig

import (
	"sync"
	"sync/atomic"
)

// A Throttle is the token bucket of one target (gRFC A6, Throttling Retry Attempts and Hedged RPCs). It starts full. A
// nil Throttle allows all hedges. It is safe for concurrent use.
type Throttle struct {
	target   string
	settings RetryThrottling
	tokens   atomic.Int64 // in millionths of a token
}

// AllowsHedge reports whether a hedge may be sent. It may if the bucket is more than half full.
func (t *Throttle) AllowsHedge() bool { return t == nil || t.tokens.Load() > t.settings.MaxTokens/2 }

// RecordFailure takes one token, for an attempt that failed with a non-fatal status or got pushback.
func (t *Throttle) RecordFailure() { t.addTokens(-oneToken) }

// RecordSuccess adds TokenRatio tokens, for a successful call.
func (t *Throttle) RecordSuccess() {
	if t != nil && t.tokens.Load() < t.settings.MaxTokens { // most throttles are full: this avoids a shared write
		t.addTokens(t.settings.TokenRatio)
	}
}

func (t *Throttle) addTokens(d int64) {
	for t != nil {
		old := t.tokens.Load()
		if t.tokens.CompareAndSwap(old, min(max(old+d, 0), t.settings.MaxTokens)) {
			return
		}
	}
}

// maxTargets is the largest number of targets with a config or throttle of their own.
const maxTargets = 4096

// evictIfFull deletes arbitrary targets until a map has fewer than maxTargets entries.
func evictIfFull[V any](all map[string]V) {
	for target := range all {
		if len(all) < maxTargets {
			return
		}
		delete(all, target)
	}
}

// A throttleMap holds the throttles of all targets of one service config.
type throttleMap struct {
	settings RetryThrottling
	lastUsed atomic.Pointer[Throttle] // result of the last throttleFor
	mu       sync.Mutex               // guards byTarget
	byTarget map[string]*Throttle
}

// throttleFor returns the throttle of a target, and creates it if necessary.
func (t *throttleMap) throttleFor(target string) *Throttle {
	if last := t.lastUsed.Load(); last != nil && last.target == target {
		return last
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	throttle := t.byTarget[target]
	if throttle == nil {
		if t.byTarget == nil {
			t.byTarget = make(map[string]*Throttle)
		}
		evictIfFull(t.byTarget)
		throttle = &Throttle{target: target, settings: t.settings}
		throttle.tokens.Store(t.settings.MaxTokens)
		t.byTarget[target] = throttle
	}
	t.lastUsed.Store(throttle)
	return throttle
}
