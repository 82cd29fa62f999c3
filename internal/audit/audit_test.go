package audit_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/observe"
)

const ms = time.Millisecond

var epoch = time.Unix(1_700_000_000, 0)

// A simClient simulates a client of a host. While it hedges, its calls are slower by factor. The clock is ahead of the time of day by a
// fixed time.
type simClient struct {
	audit   *audit.Audit
	rate    float64
	factor  float64
	rng     *rand.Rand
	now     time.Time // by the client's clock
	ahead   time.Duration
	dark    func(at time.Time, rests bool)
	denied  int // hedges
	changes int // of the verdict
}

func newSimClient(host string, rate, factor float64) *simClient {
	return &simClient{
		audit: audit.New(host), rate: rate, factor: factor,
		rng: rand.New(rand.NewPCG(1, 2)), now: epoch,
	}
}

// makeCalls makes calls for the given time. A hedge is due for every tenth call.
func (w *simClient) makeCalls(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(time.Duration(w.rng.ExpFloat64() / w.rate * 1e9))
		w.call()
	}
}

func (w *simClient) call() {
	a := w.audit
	a.BeginCall(w.now.UnixNano(), func(now time.Time) time.Time { return now.Add(w.ahead) })
	hedges := 0
	took := float64(5*ms) * math.Exp(w.rng.NormFloat64()/2)
	slow := w.rng.Float64() < 0.1
	if slow {
		took *= 10
		if a.IsHedgingOff() {
			w.denied++
		} else {
			hedges++
		}
		if w.dark != nil {
			w.dark(w.now, a.IsHedgingOff())
		}
	}
	if !a.IsHedgingOff() {
		took *= w.factor
	}
	a.EndCall(w.now.UnixNano(), audit.Result{Latency: time.Duration(took), Hedges: hedges})
	if _, changed, ok := a.TakeNewResults(); ok && changed {
		w.changes++
	}
}

func (w *simClient) verdict() observe.Verdict { return w.audit.Report().Verdict }

func TestAuditSwitchesHarmfulHedgingOff(t *testing.T) {
	t.Parallel()
	w := newSimClient("a", 60, 1.5)
	w.makeCalls(15 * time.Minute)
	v := w.audit.Report()
	assert.Equal(t, observe.AuditOff, v.Verdict)
	assert.Greater(t, v.Confidence, 0.95)
	assert.True(t, w.audit.IsHedgingOff())
	require.Positive(t, v.P99)
	assert.InDelta(t, -0.5, float64(v.Saved)/float64(v.P99), 0.15, "%+v", v)
	assert.Less(t, v.PlusMinus, v.P99/4)
}

func TestAuditChangesVerdictWhenHostChanges(t *testing.T) {
	t.Parallel()
	w := newSimClient("a", 60, 0.5)
	w.makeCalls(15 * time.Minute)
	require.Equal(t, observe.AuditOn, w.verdict())
	w.factor = 3
	w.changes = 0
	w.makeCalls(30 * time.Minute)
	assert.Equal(t, observe.AuditOff, w.verdict())
	assert.LessOrEqual(t, w.changes, 2, "the verdict changes to trying and to off")
}

func TestClientsOfHostShareControlSlots(t *testing.T) {
	t.Parallel()
	const minutes = 40
	slots := func(host string, ahead time.Duration) (rest [minutes * 3]bool) {
		w := newSimClient(host, 20, 1)
		w.now = w.now.Add(ahead)
		w.dark = func(at time.Time, rests bool) {
			if at = at.Add(-ahead); at.Unix()%20 >= 8 && at.Unix()%20 < 17 {
				if i := int(at.Sub(epoch) / (20 * time.Second)); i < len(rest) {
					rest[i] = rests
				}
			}
		}
		w.makeCalls(3 * time.Minute) // no verdict yet
		return rest
	}
	a, ahead, other := slots("a", 0), slots("a", 2*time.Second), slots("b", 0)
	assert.Equal(t, a, ahead, "a clock that is two seconds ahead")
	assert.NotEqual(t, a, other)
	assert.Contains(t, a, true)
}

func TestAuditOfFewCallsHasNoControlSlots(t *testing.T) {
	t.Parallel()
	w := newSimClient("a", 0.3, 2)
	w.makeCalls(5 * time.Hour)
	assert.Equal(t, observe.AuditTrying, w.verdict())
	assert.Zero(t, w.denied)
}

func TestAuditFindsVerdictDespiteClockJumps(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{-time.Hour, -7 * time.Second, 7 * time.Second, time.Hour} {
		w := newSimClient("a", 60, 1.5)
		for range 20 {
			w.makeCalls(55 * time.Second)
			w.ahead += jump
		}
		assert.NotEqual(t, observe.AuditOn, w.verdict(), "jumps of %v", jump)
		w.makeCalls(15 * time.Minute)
		assert.Equal(t, observe.AuditOff, w.verdict(), "jumps of %v", jump)
	}
}

func TestAuditIgnoresSlotsOfSuspendedProcess(t *testing.T) {
	t.Parallel()
	w := newSimClient("a", 60, 1.5)
	for range 12 {
		w.makeCalls(90 * time.Second)
		w.now = w.now.Add(47 * time.Second) // in which there is no call
	}
	assert.Equal(t, observe.AuditOff, w.verdict())
}

func TestAuditsOfOneHostFindSameVerdict(t *testing.T) {
	t.Parallel()
	one, two := newSimClient("a", 60, 1.5), newSimClient("a", 20, 1.5)
	two.rng = rand.New(rand.NewPCG(3, 4))
	one.makeCalls(20 * time.Minute)
	two.makeCalls(20 * time.Minute)
	assert.Equal(t, observe.AuditOff, one.verdict())
	assert.Equal(t, observe.AuditOff, two.verdict())
}

func TestVerdictEndsWithoutComparedPairs(t *testing.T) {
	t.Parallel()
	w := newSimClient("a", 60, 1.5)
	w.makeCalls(15 * time.Minute)
	require.Equal(t, observe.AuditOff, w.verdict())
	w.now = w.now.Add(25 * time.Hour)
	w.makeCalls(30 * time.Second)
	assert.Equal(t, observe.AuditTrying, w.verdict())
}

// TestVerdictThatEndsInRetestIsFoundAgain ends a verdict during a retest, by its age. The audit must find the verdict again.
func TestVerdictThatEndsInRetestIsFoundAgain(t *testing.T) {
	t.Parallel()
	w := newSimClient("a", 60, 1.5)
	w.makeCalls(15 * time.Minute)
	require.Equal(t, observe.AuditOff, w.verdict())
	j, ok := w.audit.ExportState(w.now)
	require.True(t, ok)
	for pair := range 8 { // one is a probe
		heir := newSimClient("a", 60, 1.5)
		heir.audit.ImportState(&j, w.now)
		heir.now = epoch.Truncate(40 * time.Second).Add(time.Duration(pair) * 40 * time.Second)
		next := heir.now.Add(40 * time.Second)
		heir.audit.SetLastPair(next.Add(10*time.Second - 24*time.Hour))
		heir.makeCalls(39 * time.Second)
		for _, at := range []time.Duration{1, 21} {
			heir.now = next.Add(at * time.Second)
			heir.call()
		}
		require.Equal(t, observe.AuditTrying, heir.verdict())
		heir.makeCalls(15 * time.Minute)
		require.Equal(t, observe.AuditOff, heir.verdict())
	}
}
