package sketch_test

import (
	"testing"
	"time"

	"github.com/gohedge/hedge/sketch"
)

func BenchmarkWindow(b *testing.B) {
	var w sketch.Window
	for i := range 10_000 {
		w.Add(epoch, time.Duration(i+1)*10*time.Microsecond)
	}
	b.Run("Add", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.Add(epoch, 5*time.Millisecond)
		}
	})
	b.Run("Quantile", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.Quantile(0.99)
		}
	})
}
