package sketch_test

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/sketch"
)

// The mapping's own bounds are wrong where int has 32 bits.
func TestBucketsHaveBoundsOfMapping(t *testing.T) {
	for i := sketch.Index(1); i <= sketch.Index(10_000*time.Hour); i++ {
		low := sketch.LowerBound(i)
		require.Equal(t, i, sketch.Mapping.Index(low*(1+1e-12)), "%d", i)
		require.Equal(t, i-1, sketch.Mapping.Index(low*(1-1e-12)), "%d", i)
		edge := sketch.Edge(i)
		if edge >= 1 && edge < 10_000*time.Hour {
			require.LessOrEqual(t, sketch.Index(edge), i)
			require.Greater(t, sketch.Index(edge+1), i)
		}
		if strconv.IntSize == 64 {
			require.InEpsilon(t, sketch.Mapping.LowerBound(i), low, 1e-12)
		}
	}
}

func FuzzQuantileMatchesMapping(f *testing.F) {
	f.Add(int64(1))
	f.Add(int64(5 * time.Millisecond))
	f.Add(int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, ns int64) {
		d := time.Duration(ns)
		var w sketch.Window
		w.Add(epoch, d)
		got, ok := w.Quantile(0.5)
		require.True(t, ok)
		d = min(max(d, 1), 10_000*time.Hour)
		assert.InDelta(t, float64(d), float64(got), sketch.Accuracy*float64(d)+1)
		for edge := range w.Tail() {
			assert.GreaterOrEqual(t, edge, d)
			assert.LessOrEqual(t, float64(edge), float64(d)*(1+2.1*sketch.Accuracy))
		}
		if strconv.IntSize == 64 {
			assert.InDelta(t, sketch.Mapping.Value(sketch.Index(d)), float64(got), 1+1e-9*float64(d))
		}
	})
}

// Windows can be decoded on other architectures. These bytes were encoded where int has 64 bits.
func TestAppendIsSameOnEveryArchitecture(t *testing.T) {
	var w sketch.Window
	for _, d := range []time.Duration{1, time.Microsecond, 5 * time.Millisecond, 5 * time.Millisecond, time.Hour} {
		w.Add(epoch, d)
	}
	assert.Equal(t, golden, string(w.Append(nil, epoch)))
	got, err := sketch.Decode([]byte(golden), epoch)
	require.NoError(t, err)
	assert.Equal(t, 5, got.Len())
	median, _ := got.Quantile(0.5)
	assert.InEpsilon(t, 5*time.Millisecond, median, 0.01)
}

const golden = "\x00\x1e\x0e\xc3\xf1\xe7\xe9\xedQ\xf0?\x00\x00\x00\x00\x00\x00\x00\x00\x05\x04\x00\x02\xb8\x05\x02\xdc\x06\x03\xd2\n\x02\x00\x00"

func TestAddIndexEqualsAdd(t *testing.T) {
	var a, b sketch.Window
	for i := range 1000 {
		d := time.Duration(i*i) * time.Microsecond
		at := epoch.Add(time.Duration(i) * time.Second)
		a.Add(at, d)
		b.AddIndex(at, sketch.Index(d))
	}
	assert.Equal(t, a.Append(nil, epoch), b.Append(nil, epoch))
}

func TestDistributionIsCopyOfWindow(t *testing.T) {
	var w sketch.Window
	var d sketch.Distribution
	_, ok := d.Quantile(0.5)
	assert.False(t, ok)
	for i := range 1000 {
		w.Add(epoch, time.Duration(i)*time.Millisecond)
	}
	w.Distribution(&d)
	for _, q := range []float64{0, 0.5, 0.99, 1} {
		want, _ := w.Quantile(q)
		got, _ := d.Quantile(q)
		assert.Equal(t, want, got)
	}
	w.Add(epoch, time.Hour)
	assert.Equal(t, 1000, d.Len())
	slowest, _ := d.Quantile(1)
	assert.Less(t, slowest, time.Second+time.Second/50)
	w.Distribution(&d)
	assert.Equal(t, 1001, d.Len())
	assert.EqualValues(t, 1001, d.Weight())
}
