package doubles

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"
)

// RunWithoutLeaks is a package's TestMain. It runs the tests, then clean, and fails if a
// goroutine stays. It does not return.
func RunWithoutLeaks(m *testing.M, clean func()) {
	before := runtime.NumGoroutine()
	code := m.Run()
	clean()
	deadline := time.Now().Add(5 * time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before && code == 0 {
		fmt.Fprintf(os.Stderr, "%d goroutines before the tests, %d after\n", before, n)
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		code = 1
	}
	os.Exit(code)
}

// PreloadNetConfig makes package net read the system's configuration, outside of all bubbles: net
// keeps a channel for it, and a channel made in one bubble cannot be used in another.
func PreloadNetConfig() {
	own := net.Resolver{PreferGo: true}
	_, _ = own.LookupHost(context.Background(), "localhost")
}

// NeedsManyGoroutines skips a test that has more than a thousand goroutines at once if the race detector is on: its runtime
// breaks down now and then ("ThreadSanitizer: CHECK failed", or a fault in it) without having told of a race.
func NeedsManyGoroutines(t *testing.T) {
	if RaceEnabled {
		t.Skip("the race detector cannot follow thousands of goroutines")
	}
}

// SkipSimulation skips a test that simulates many calls, if the tests are short: the race detector makes it ten times slower and
// judges none of its figures.
func SkipSimulation(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("a simulation: tests that are not short have it")
	}
}
