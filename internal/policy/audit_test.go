package policy_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// audited returns settings with an audit.
func audited() policy.Config {
	c := defaults()
	c.HasShortBucket = true
	c.Audit = true
	return c
}

// A simClient simulates a client of a host. While it hedges, its calls are slower by factor. The clock shows the time of day.
type simClient struct {
	key    *policy.Key
	rate   float64
	factor float64
	rng    *rand.Rand
	now    time.Time // by the engine's clock
	dark   func(at time.Time, rests bool)
}

func newSimClient(c policy.Config, rate, factor float64) *simClient {
	return &simClient{
		key: policy.New(c).Key(policy.Name{Host: "a"}), rate: rate, factor: factor,
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
	k := w.key
	k.Begin(w.now)
	took := float64(5*ms) * math.Exp(w.rng.NormFloat64()/2)
	slow := w.rng.Float64() < 0.1
	if slow {
		took *= 10
		reason := k.Admit(w.now, false, time.Time{}, policy.HedgeRequest{})
		if reason == policy.None {
			k.HedgeEnded()
		}
		if w.dark != nil {
			w.dark(w.now, reason == observe.DeniedAudit)
		}
	}
	if !k.Resting() {
		took *= w.factor
	}
	k.RecordCall(w.now.Add(time.Duration(took)), policy.Result{Latency: time.Duration(took), Answered: true, HasSlowMarker: true})
}

func (w *simClient) verdict() observe.Verdict { return w.key.Snapshot().Audit.Verdict }

func TestAuditKeepsHelpfulHedgingOn(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{2.2, 60} {
		w := newSimClient(audited(), rate, 0.5)
		w.makeCalls(28 * time.Minute)
		v := w.key.Snapshot().Audit
		assert.Equal(t, observe.AuditOn, v.Verdict, "%v/s", rate)
		assert.InDelta(t, 0.5, float64(v.Saved)/float64(v.P99), 0.2, "%+v at %v/s", v, rate)
		resting := w.key.Snapshot().Denied[observe.DeniedAudit]
		w.makeCalls(20 * time.Minute)
		assert.LessOrEqual(t, w.key.Snapshot().Denied[observe.DeniedAudit]-resting, int64(rate*0.1*40*2), "at most two control slots in 20 minutes")
	}
}

func TestShadowModeHasNoAudit(t *testing.T) {
	t.Parallel()
	c := audited()
	c.Shadow = true
	w := newSimClient(c, 60, 1.5)
	w.makeCalls(5 * time.Minute)
	assert.Zero(t, w.key.Snapshot().Audit)
	assert.Zero(t, w.key.Snapshot().Denied[observe.DeniedAudit])
}

func TestRoutesShareVerdictOfHost(t *testing.T) {
	t.Parallel()
	c := audited()
	e := policy.New(c)
	w := newSimClient(c, 60, 1.5)
	w.key = e.Key(policy.Name{Host: "a", Route: "/one"})
	w.makeCalls(15 * time.Minute)
	other := e.Key(policy.Name{Host: "a", Route: "/two"})
	assert.Equal(t, observe.AuditOff, other.Snapshot().Audit.Verdict)
	assert.Equal(t, observe.DeniedAudit, other.Admit(w.now, false, time.Time{}, policy.HedgeRequest{}))
	assert.Equal(t, observe.AuditTrying, e.Key(policy.Name{Host: "b"}).Snapshot().Audit.Verdict)
	e.Reset("a", "/one")
	assert.Equal(t, observe.AuditOff, w.verdict(), "the host's")
	e.Reset("a", "")
	assert.Equal(t, observe.AuditTrying, w.verdict())
	assert.False(t, w.key.Resting())
}

func TestResetAndImportDuringAudit(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	t.Parallel()
	judged := newSimClient(audited(), 60, 1.5)
	judged.makeCalls(15 * time.Minute)
	var export bytes.Buffer
	require.NoError(t, judged.key.Export(&export, judged.now))
	for after := range 80 {
		w := newSimClient(audited(), 60, 1.5)
		w.makeCalls(80*time.Second + time.Duration(after)*time.Second)
		e := w.key.Engine()
		if after%2 == 0 {
			_, err := e.Import(bytes.NewReader(export.Bytes()), judged.now, func(policy.Name) float64 { return 0 })
			require.NoError(t, err)
			assert.Equal(t, observe.AuditOff, w.verdict())
		}
		e.Reset("a", "")
		assert.Equal(t, observe.AuditTrying, w.verdict())
		w.makeCalls(time.Minute)
	}
}

func TestVerdictIsReportedOnce(t *testing.T) {
	t.Parallel()
	c := audited()
	var all []policy.Change
	c.Changed = func(key observe.KeyInfo, change policy.Change) {
		if change.Kind == policy.KindVerdict {
			assert.Equal(t, observe.KeyInfo{Host: "a"}, key)
			all = append(all, change)
		}
	}
	w := newSimClient(c, 60, 1.5)
	w.makeCalls(20 * time.Minute)
	require.Len(t, all, 1)
	assert.True(t, all[0].Bad)
	assert.Equal(t, observe.AuditOff, all[0].Audit.Verdict)
	assert.Negative(t, all[0].Audit.Saved)
}

func TestExportContainsVerdicts(t *testing.T) {
	t.Parallel()
	w := newSimClient(audited(), 60, 1.5)
	w.makeCalls(15 * time.Minute)
	var b bytes.Buffer
	require.NoError(t, w.key.Export(&b, w.now))
	share := func(policy.Name) float64 { return 0 }

	heir := policy.New(audited())
	n, err := heir.Import(bytes.NewReader(b.Bytes()), w.now, share)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	k := heir.Key(policy.Name{Host: "a"})
	want, got := w.key.Snapshot().Audit, k.Snapshot().Audit
	assert.Equal(t, want.Verdict, got.Verdict)
	assert.InDelta(t, want.Confidence, got.Confidence, 0.001)
	assert.InEpsilon(t, want.Saved, got.Saved, 0.01)
	k.Begin(w.now)
	assert.Equal(t, observe.DeniedAudit, k.Admit(w.now, false, time.Time{}, policy.HedgeRequest{}), "from the first call on")

	plain := policy.New(defaults())
	_, err = plain.Import(bytes.NewReader(b.Bytes()), w.now, share)
	require.NoError(t, err, "without an audit")
}

func TestVerdictSurvivesEvictionOfKeys(t *testing.T) {
	t.Parallel()
	w := newSimClient(audited(), 60, 1.5)
	w.makeCalls(15 * time.Minute)
	want, e := w.key.Snapshot().Audit, w.key.Engine()
	require.Equal(t, observe.AuditOff, want.Verdict)
	c := audited()
	c.MaxKeys = 1
	e.SetConfig(c, w.now)
	e.Key(policy.Name{Host: "b"})
	require.Nil(t, e.Lookup(policy.Name{Host: "a"}))

	var b bytes.Buffer
	require.NoError(t, e.Export(&b, w.now))
	heir := policy.New(audited())
	_, err := heir.Import(bytes.NewReader(b.Bytes()), w.now, func(policy.Name) float64 { return 0 })
	require.NoError(t, err)
	for _, e := range []*policy.Engine{e, heir} {
		k := e.Key(policy.Name{Host: "a"})
		assert.Equal(t, want.Verdict, k.Snapshot().Audit.Verdict)
		k.Begin(w.now)
		assert.Equal(t, observe.DeniedAudit, k.Admit(w.now, false, time.Time{}, policy.HedgeRequest{}))
	}
}

func TestImportRejectsInvalidVerdicts(t *testing.T) {
	t.Parallel()
	w := newSimClient(audited(), 60, 1.5)
	w.makeCalls(15 * time.Minute)
	rng := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		b := w.key.ExportChanged(w.now, func(b []byte) { b[rng.IntN(len(b))] ^= 1 << rng.IntN(8) })
		heir := policy.New(audited())
		if _, err := heir.Import(bytes.NewReader(b), w.now, func(policy.Name) float64 { return 0 }); err != nil {
			continue
		}
		for _, v := range heir.Snapshots() {
			a := v.Audit
			assert.False(t, math.IsNaN(a.Confidence))
			assert.True(t, a.Confidence >= 0 && a.Confidence <= 1, "%+v", a)
			assert.Less(t, a.PlusMinus, time.Duration(math.MaxInt64))
		}
		k := heir.Key(policy.Name{Host: "a"})
		heirs := &simClient{key: k, rate: 200, factor: 1, rng: rng, now: w.now}
		heirs.makeCalls(time.Second)
	}
}

func TestAuditsOfManyHostsUseLittleMemory(t *testing.T) {
	const hosts = 20_000
	begin := func(k *policy.Key) { k.Begin(epoch) }
	with, without := memoryPerKey(audited(), hosts, begin), memoryPerKey(defaults(), hosts, begin)
	t.Logf("%.0f bytes a key, %.0f with an audit", without, with)
	assert.Less(t, with-without, 1000.0)

	c := audited()
	c.MaxKeys = 100
	e := policy.New(c)
	for i := range 1000 {
		e.Key(policy.Name{Host: fmt.Sprint("host-", i)})
	}
	assert.LessOrEqual(t, e.Audits(), 100)
}

// memoryPerKey returns the memory, in bytes, of each of n used keys.
func memoryPerKey(c policy.Config, n int, use func(*policy.Key)) float64 {
	c.MaxKeys = 2 * n
	e := policy.New(c)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range n {
		use(e.Key(policy.Name{Host: fmt.Sprint("host-", i)}))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(e)
	return float64(after.HeapAlloc-before.HeapAlloc) / float64(n)
}

func TestKeyUsesAtMostFiveKilobytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	size := memoryPerKey(defaults(), 1000, func(k *policy.Key) { learn(k, 1000, func(int) time.Duration { return seed(rng) }) })
	t.Logf("%.0f bytes a key that has had a thousand calls", size)
	assert.Less(t, size, 5000.0)
}

// BenchmarkAuditedCall measures a call with an audit, which costs less than 80 ns more.
func BenchmarkAuditedCall(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(fmt.Sprint("audit=", on), func(b *testing.B) {
			c := defaults()
			if on {
				c = audited()
			}
			w := newSimClient(c, 60, 0.5)
			w.makeCalls(10 * time.Minute)
			k, now := w.key, w.now
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				at := now.Add(time.Duration(i) * 10 * time.Microsecond)
				k.Begin(at)
				k.RecordCall(at, policy.Result{Latency: time.Duration(5+i%20) * ms, Answered: true, HasSlowMarker: true})
				i++
			}
		})
	}
}

// clockSet returns t as shown by a clock that was set ahead afterwards.
func clockSet(t time.Time, ahead time.Duration) time.Time {
	const second = 1 << 30 // in the first word of a Time that has a monotonic reading
	*(*uint64)(unsafe.Pointer(&t)) += uint64(ahead/time.Second) * second
	return t
}

func TestExportKeepsAgeOfVerdict(t *testing.T) {
	t.Parallel()
	share := func(policy.Name) float64 { return 0 }
	w := newSimClient(audited(), 60, 1.5)
	w.now = time.Now()
	w.makeCalls(15 * time.Minute)
	require.Equal(t, observe.AuditOff, w.verdict())
	later := clockSet(w.now, 30*time.Hour)
	require.Equal(t, 30*time.Hour, later.Round(0).Sub(w.now.Round(0)))
	require.Zero(t, later.Sub(w.now))
	var b bytes.Buffer
	require.NoError(t, w.key.Export(&b, later))

	heir := newSimClient(audited(), 60, 1.5) // that started after the clock was set
	heir.now = later.Round(0)
	_, err := heir.key.Engine().Import(bytes.NewReader(b.Bytes()), heir.now, share)
	require.NoError(t, err)
	heir.makeCalls(30 * time.Second)
	assert.Equal(t, observe.AuditOff, heir.verdict())

	old := newSimClient(audited(), 60, 1.5) // that started before
	old.now = time.Now()
	_, err = old.key.Engine().Import(bytes.NewReader(b.Bytes()), clockSet(old.now, 30*time.Hour), share)
	require.NoError(t, err)
	require.Equal(t, observe.AuditOff, old.verdict())
	old.now = old.now.Add(25 * time.Hour)
	old.makeCalls(30 * time.Second)
	assert.Equal(t, observe.AuditTrying, old.verdict(), "no pair was compared for a day")
}
