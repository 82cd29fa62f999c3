package serviceconfig

import (
	"sync"
	"sync/atomic"
)

// A Throttle is the bucket of one target (gRFC A6, Throttling Retry Attempts and Hedged RPCs). It begins full. A nil Throttle
// holds nothing back. It is safe for concurrent use.
type Throttle struct {
	target string
	terms  Throttling
	tokens atomic.Int64 // in units of terms
}

// Open reports whether a hedge may be sent.
func (t *Throttle) Open() bool { return t == nil || t.tokens.Load() > t.terms.Max/2 }

// Failed counts an attempt that has failed with a non-fatal code, or whose server asked for no more.
func (t *Throttle) Failed() { t.add(-oneToken) }

// Succeeded counts a call that has succeeded.
func (t *Throttle) Succeeded() {
	if t != nil && t.tokens.Load() < t.terms.Max { // most are full, and need not be written
		t.add(t.terms.Ratio)
	}
}

func (t *Throttle) add(d int64) {
	for t != nil {
		old := t.tokens.Load()
		if t.tokens.CompareAndSwap(old, min(max(old+d, 0), t.terms.Max)) {
			return
		}
	}
}

// maxTargets is how many targets are known.
const maxTargets = 4096

// makeRoom takes a target out of a map that has as many as there may be, whichever it is.
func makeRoom[V any](all map[string]V) {
	for target := range all {
		if len(all) < maxTargets {
			return
		}
		delete(all, target)
	}
}

// throttles are the buckets of targets.
type throttles struct {
	terms Throttling
	last  atomic.Pointer[Throttle] // that was asked for
	mu    sync.Mutex               // guards all
	all   map[string]*Throttle
}

func (t *throttles) of(target string) *Throttle {
	if last := t.last.Load(); last != nil && last.target == target {
		return last
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	bucket := t.all[target]
	if bucket == nil {
		if t.all == nil {
			t.all = make(map[string]*Throttle)
		}
		makeRoom(t.all)
		bucket = &Throttle{target: target, terms: t.terms}
		bucket.tokens.Store(t.terms.Max)
		t.all[target] = bucket
	}
	t.last.Store(bucket)
	return bucket
}
