package stack_test

import (
	"testing"

	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
)

// BenchmarkDeepCalls measures a goroutine that needs 8 or 16 KiB of stack through many calls. The stack grows by itself, or
// at once.
func BenchmarkDeepCalls(b *testing.B) {
	for _, bm := range []struct {
		name  string
		grow  func()
		calls int
	}{
		{"8 KiB, by itself", func() {}, 25},
		{"8 KiB, at once", stack.GrowTo8KiB, 25},
		{"16 KiB, by itself", func() {}, 55},
		{"16 KiB, at once", stack.GrowTo16KiB, 55},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			done := make(chan byte)
			for b.Loop() {
				go func() {
					bm.grow()
					done <- deep(bm.calls)
				}()
				<-done
			}
		})
	}
}

//go:noinline
func deep(calls int) byte {
	var frame [150]byte
	if calls == 0 {
		return frame[0]
	}
	frame[calls%len(frame)] = deep(calls-1) + 1
	return frame[0] + frame[calls%len(frame)]
}
