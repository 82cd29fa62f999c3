package sketch_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/DataDog/sketches-go/ddsketch"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/sketch"
)

// newFilledWindow returns a window with n samples between from and from plus 99 milliseconds, which
// came 10 milliseconds apart, and the time of the last.
func newFilledWindow(n int, from time.Duration) (*sketch.Window, time.Time) {
	w, t := new(sketch.Window), epoch
	for i := range n {
		t = t.Add(10 * time.Millisecond)
		w.Add(t, from+time.Duration(i%100)*time.Millisecond)
	}
	return w, t
}

// requireSameWindow asserts that two windows have the same quantiles.
func requireSameWindow(t *testing.T, want, got *sketch.Window) {
	t.Helper()
	assert.Equal(t, want.Len(), got.Len())
	for q := 0.0; q <= 1; q += 0.05 {
		a, _ := want.Quantile(q)
		b, _ := got.Quantile(q)
		assert.Equal(t, a, b, q)
	}
}

func TestDecodeRestoresWindow(t *testing.T) {
	for _, n := range []int{0, 1, 100, 1500, 5000} {
		w, now := newFilledWindow(n, time.Millisecond)
		later := now.Add(time.Hour) // the time until it is read does not count
		got, err := sketch.Decode(w.Append(nil, now), later)
		require.NoError(t, err)
		requireSameWindow(t, w, got)
		assert.InDelta(t, w.Rate(now), got.Rate(later), 1e-9)
		twice, err := sketch.Decode(got.Append(nil, later), later)
		require.NoError(t, err)
		requireSameWindow(t, w, twice)
	}
}

// A window keeps the samples of a rare key, however old they are.
func TestDecodeAcceptsOldWindows(t *testing.T) {
	w, now := newFilledWindow(300, time.Millisecond)
	now = now.Add(10_000 * time.Hour)
	b := w.Append(nil, now)
	got, err := sketch.Decode(b, now)
	require.NoError(t, err)
	requireSameWindow(t, w, got)
	assert.InDelta(t, w.Rate(now.Add(-9_000*time.Hour)), got.Rate(now), 1e-6, "the age is reduced to 1,000 hours")

	// Earlier versions wrote larger ages.
	_, n := binary.Uvarint(b)
	old := append(binary.AppendUvarint(nil, uint64(10_000*time.Hour)), b[n:]...)
	got, err = sketch.Decode(old, now)
	require.NoError(t, err)
	assert.Equal(t, b, got.Append(nil, now))
}

func TestMergeAddsSamplesToPreviousHalf(t *testing.T) {
	w, now := newFilledWindow(100, time.Millisecond)
	past, _ := newFilledWindow(5000, time.Second)
	w.Merge(past)
	assert.Equal(t, 100+past.Len(), w.Len())
	slow, _ := w.Quantile(0.5)
	assert.Greater(t, slow, time.Second)
	for range 1000 {
		now = now.Add(20 * time.Millisecond)
		w.Add(now, time.Millisecond)
	}
	fast, _ := w.Quantile(0.5)
	assert.Less(t, fast, 2*time.Millisecond, "new samples outweigh the merged ones")
	before := past.Len()
	w.Merge(new(sketch.Window))
	assert.Equal(t, before, past.Len())
}

func TestMergeCopiesSamples(t *testing.T) {
	from, now := newFilledWindow(300, time.Millisecond)
	w := new(sketch.Window)
	w.Merge(from)
	requireSameWindow(t, from, w)
	w.Add(now, time.Hour)
	assert.Equal(t, 300, from.Len())
}

func TestDecodeRejectsCorruptWindows(t *testing.T) {
	w, now := newFilledWindow(300, time.Millisecond)
	good := w.Append(nil, now)
	for i := range good {
		_, err := sketch.Decode(good[:i], now)
		assert.Error(t, err, "cut off after %d of %d", i, len(good))
	}
	_, err := sketch.Decode(append(slices.Clone(good), 0), now)
	assert.Error(t, err, "too long")

	other, err := ddsketch.NewDefaultDDSketch(0.05)
	require.NoError(t, err)
	require.NoError(t, other.Add(5e6))
	var b []byte
	other.Encode(&b, false)
	_, err = sketch.Decode(append(append([]byte{0, byte(len(b))}, b...), 0, 0), now)
	assert.ErrorContains(t, err, "another mapping")
}

func FuzzDecode(f *testing.F) {
	for _, n := range []int{0, 1, 100, 1500} {
		w, now := newFilledWindow(n, time.Millisecond)
		f.Add(w.Append(nil, now))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := sketch.Decode(b, epoch)
		if err != nil {
			return
		}
		again, err := sketch.Decode(w.Append(nil, epoch), epoch)
		require.NoError(t, err)
		assert.Equal(t, w.Len(), again.Len())
		w.Merge(again)
		w.Add(epoch.Add(time.Minute), time.Millisecond)
		_, ok := w.Quantile(0.99)
		assert.True(t, ok)
		for _, above := range w.Tail() {
			assert.True(t, above >= 0 && above <= 1)
		}
	})
}
