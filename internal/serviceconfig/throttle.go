package serviceconfig

import (
	"sync"
	"sync/atomic"
)

// A Throttle is the token bucket of retryThrottling for one target (gRFC A6, Throttling Retry Attempts and Hedged
// RPCs). It allows hedges only while it is more than half full. It starts full. A nil Throttle allows all hedges. It is
// safe for concurrent use.
type Throttle struct {
	target   string
	settings RetryThrottling
	tokens   atomic.Int64 // content of the bucket, in millionths of a token
}

// AllowsHedge reports whether a hedge may be sent, because the bucket is more than half full. It returns true for a nil
// Throttle.
func (t *Throttle) AllowsHedge() bool { return t == nil || t.tokens.Load() > t.settings.MaxTokens/2 }

// RecordFailure removes one token. It must be called for each attempt that failed with a non-fatal status, or whose
// server asked for no more hedges. It does nothing for a nil Throttle.
func (t *Throttle) RecordFailure() { t.addTokens(-microTokensPerToken) }

// RecordSuccess adds TokenRatio to the bucket, up to its capacity. It must be called for each successful call. It does
// nothing for a nil Throttle.
func (t *Throttle) RecordSuccess() {
	if t != nil && t.tokens.Load() < t.settings.MaxTokens { // most throttles are full: this avoids a shared write
		t.addTokens(t.settings.TokenRatio)
	}
}

// addTokens adds d to the bucket, in millionths of a token; d may be negative. The content stays between 0 and the
// capacity. It does nothing for a nil Throttle.
func (t *Throttle) addTokens(d int64) {
	for t != nil {
		old := t.tokens.Load()
		if t.tokens.CompareAndSwap(old, min(max(old+d, 0), t.settings.MaxTokens)) {
			return
		}
	}
}

// maxTargets is the largest number of targets for which a config or a throttle is stored.
const maxTargets = 4096

// evictIfFull makes room for one more target in a map. It deletes arbitrary targets until fewer than maxTargets are
// left.
func evictIfFull[V any](all map[string]V) {
	for target := range all {
		if len(all) < maxTargets {
			return
		}
		delete(all, target)
	}
}

// A throttleMap holds the throttles of all targets for one service config. It is safe for concurrent use.
type throttleMap struct {
	settings RetryThrottling
	lastUsed atomic.Pointer[Throttle] // result of the most recent throttleFor, which most calls want again; nil if there was none
	mu       sync.Mutex               // guards byTarget
	byTarget map[string]*Throttle
}

// throttleFor returns the throttle of a target. It creates a full throttle if there is none.
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
