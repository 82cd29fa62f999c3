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

// RunWithoutLeaks implements the TestMain function of a package. It runs the tests and then clean, and exits the process. The
// exit code is not 0 if a test has failed, or if more goroutines run after 5 seconds than before the tests.
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

// PreloadNetConfig makes package net read its DNS configuration outside of every bubble of testing/synctest. It must be called
// before the first bubble. Package net stores a channel with the configuration, and a channel of one bubble cannot be used in
// another.
func PreloadNetConfig() {
	own := net.Resolver{PreferGo: true}
	_, _ = own.LookupHost(context.Background(), "localhost")
}

// SkipManyGoroutinesWithRace skips a test that runs more than a thousand goroutines at the same time, if the race detector is
// on. The detector would sometimes crash ("ThreadSanitizer: CHECK failed") although there is no race.
func SkipManyGoroutinesWithRace(t *testing.T) {
	if RaceEnabled {
		t.Skip("the race detector cannot follow thousands of goroutines")
	}
}

// SkipSimulation skips a test that simulates many calls if the flag -short is set. It is meant for runs with the race detector,
// which makes simulations ten times slower without finding errors in their results.
func SkipSimulation(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("simulations do not run with -short")
	}
}
