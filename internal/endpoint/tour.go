package endpoint

import (
	"sync/atomic"

	"github.com/gohedge/hedge/internal/race"
)

// A Tour is where the attempts of a gRPC call go: its primary over the caller's own connection, which is endpoint 0, and its hedges over
// those that there are for hedges, which are endpoints 1 and on. The goroutine of the call begins it. Hedges are added one at
// a time, before they start, and each attempt uses its own elements. The zero Tour is that of a call without such connections.
type Tour struct {
	health *Health
	had    Mask
	full   atomic.Uint32            // a Mask: the endpoints whose servers have pushed back
	away   [1 + race.MaxHedges]bool // the attempts that go to another target than the primary
	at     [1 + race.MaxHedges]uint8
}

// Begin makes t the tour of a call whose own connection is among those endpoints.
func (t *Tour) Begin(h *Health, own Mask) { *t = Tour{health: h, had: own} }

// Next returns where the next hedge goes, of the endpoints that can have it now: to the next one that the call has not been to and that is not ejected, and
// again to the first one that is not ejected if it has been to all these. None goes where a server has pushed back. 0 is nowhere.
func (t *Tour) Next(ready Mask) int {
	ready &^= Mask(t.full.Load())
	if ready&^t.had == 0 {
		t.had = 0
	}
	if to := t.health.hedge(ready, t.had, 0); to > 0 {
		return to
	}
	to := t.health.again(ready)
	if to == 0 && ready != 0 {
		t.health.passed()
	}
	return to
}

// Add says that attempt n, a hedge, goes to an endpoint, and whether that has another target than the primary's.
func (t *Tour) Add(n, endpoint int, elsewhere bool) {
	t.at[n], t.had = uint8(endpoint), t.had.with(endpoint)
	t.away[n] = elsewhere
	t.health.tried(endpoint)
	t.health.hedged(endpoint)
}

// Endpoint returns where attempt n goes.
func (t *Tour) Endpoint(n int) int { return int(t.at[n]) }

// Elsewhere reports whether attempt n goes to another target than the primary.
func (t *Tour) Elsewhere(n int) bool { return t.away[n] }

// PushedBack says that the server of attempt n wants no more hedges of the call: none goes to that endpoint any more.
func (t *Tour) PushedBack(n int) { t.full.Or(1 << t.at[n]) }

// Refused says that attempt n was not sent.
func (t *Tour) Refused(n int) { t.health.refused(t.Endpoint(n)) }

// Ended learns how attempt n ended: with an answer, by itself without one, or in a way that is not its connection's: it was cancelled, or its server
// does not want hedges now.
func (t *Tour) Ended(n int, answered, excused bool) {
	if n == 0 {
		t.health.primary(1)
	}
	if answered || !excused {
		t.health.outcome(t.Endpoint(n), answered)
	}
}
