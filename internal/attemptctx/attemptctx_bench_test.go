package attemptctx_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/attemptctx"
)

// BenchmarkRetainedBytes prints the bytes per finished call that a long-lived caller's context keeps in memory, if the
// function has called Done. It compares a callerLink with a plain context.AfterFunc.
//
//	go test -run '^$' -bench RetainedBytes -benchtime 10000x ./internal/attemptctx
func BenchmarkRetainedBytes(b *testing.B) {
	for name, letsGo := range map[string]bool{"lets go": true, "stays": false} {
		call := func(caller context.Context) {
			c := attemptctx.NewPrimary()
			c.Attempt().Context = caller
			c.Done()
			if letsGo {
				c.MarkWon()
			}
		}
		b.Run(name, func(b *testing.B) {
			caller, cancel := context.WithCancel(context.Background())
			defer cancel()
			before := heap()
			for b.Loop() {
				call(caller)
			}
			b.ReportMetric(max(0, float64(heap())-float64(before))/float64(b.N), "kept-B/op")
			runtime.KeepAlive(caller)
		})
	}
}

// heap returns the bytes in use after all cleanups have run.
func heap() uint64 {
	for range 5 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
