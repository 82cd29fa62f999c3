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

// RunWithoutLeaks implements TestMain of a package: it runs the tests and then clean. It fails if more goroutines run than before the
// tests. It does not return.
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

// PreloadNetConfig makes package net read its configuration outside of all bubbles of testing/synctest. Package net keeps a channel for the
// configuration, and a channel of one bubble cannot be used in another.
func PreloadNetConfig() {
	own := net.Resolver{PreferGo: true}
	_, _ = own.LookupHost(context.Background(), "localhost")
}

// SkipManyGoroutinesWithRace skips a test with more than a thousand concurrent goroutines if the race detector is on. The detector then
// sometimes crashes ("ThreadSanitizer: CHECK failed") although there is no race.
func SkipManyGoroutinesWithRace(t *testing.T) {
	if RaceEnabled {
		t.Skip("the race detector cannot follow thousands of goroutines")
	}
}

// SkipSimulation skips a test that simulates many calls if -short is set. The race detector makes simulations ten times slower, and finds
// no errors in their results.
func SkipSimulation(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("simulations do not run with -short")
	}
}
