package policy_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/policy"
)

// latencies returns a key that knows latencies, and calls for it.
func latencies() (*policy.Key, []time.Duration) {
	k := newKey(func(c *policy.Config) { c.HasShortBucket = true })
	rng := rand.New(rand.NewPCG(1, 2))
	all := make([]time.Duration, 4096)
	for i := range all {
		all[i] = seed(rng)
	}
	for i := range 50_000 {
		now := epoch.Add(time.Duration(i) * ms)
		k.Begin(now)
		k.RecordCall(now, policy.Result{Latency: all[i%4096], Answered: true, HasSlowMarker: true})
	}
	return k, all
}

// BenchmarkDone measures the end of a call, during most of which other calls of the key wait. It makes schedules as often as at a million
// calls per second.
func BenchmarkDone(b *testing.B) {
	k, all := latencies()
	now := epoch.Add(time.Hour)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		k.RecordCall(now.Add(time.Duration(i)*time.Microsecond), policy.Result{Latency: all[i%4096], Answered: true, HasSlowMarker: true})
		i++
	}
}

// BenchmarkContention measures concurrent calls of one key or of many keys. Run it with -cpu 1,2,4,8,16 and -mutexprofile. With fewer cores
// than that, a lock holder can lose its core, and others then wait for milliseconds in place of some tens of nanoseconds.
func BenchmarkContention(b *testing.B) {
	for _, keys := range []int{1, 64} {
		b.Run(fmt.Sprint("keys=", keys), func(b *testing.B) {
			e := policy.New(defaults())
			_, all := latencies()
			var next atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				me := int(next.Add(1))
				k := e.Key(policy.Name{Host: fmt.Sprint(me % keys)})
				for i := me; pb.Next(); i++ {
					now := time.Now()
					k.Begin(now)
					k.RecordCall(now, policy.Result{Latency: all[i%4096], Answered: true, HasSlowMarker: true})
				}
			})
		})
	}
}
