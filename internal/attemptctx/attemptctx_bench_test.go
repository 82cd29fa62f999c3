package attemptctx_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/attemptctx"
)

// BenchmarkKept prints how many bytes of a finished call a caller's context keeps that goes on,
// if the function has asked for Done: where the tie lets go, and where it stays as a plain
// context.AfterFunc does.
//
//	go test -run '^$' -bench Kept -benchtime 10000x ./internal/attemptctx
func BenchmarkKept(b *testing.B) {
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

// heap returns the bytes that are in use when cleanups have run.
func heap() uint64 {
	for range 5 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
