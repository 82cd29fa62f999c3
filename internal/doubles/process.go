package doubles

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// RunTool runs the program name with the given arguments for at most 30 s, and returns its output and error output. It skips
// the test if the program is not installed, and fails the test if the program fails.
func RunTool(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// FreeAddress returns an address of the loopback interface that is free for TCP and for UDP. Its port is smaller than the
// ports that the kernel assigns to clients. Otherwise a client could take the port before a server does.
func FreeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		at := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))
		l, err := net.Listen("tcp", at)
		if err != nil {
			continue
		}
		_ = l.Close()
		pc, err := net.ListenPacket("udp", at)
		if err != nil {
			continue
		}
		_ = pc.Close()
		return at
	}
	t.Fatal("no port is free")
	return ""
}

// SoakTime returns the duration of a soak test. It is the value of the environment variable HEDGE_TEST_SOAK, such as "10m", or
// usual if the variable is not set. An invalid value fails the test.
func SoakTime(t *testing.T, usual time.Duration) time.Duration {
	t.Helper()
	s := os.Getenv("HEDGE_TEST_SOAK")
	if s == "" {
		return usual
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("HEDGE_TEST_SOAK: %v", err)
	}
	return d
}

// A Usage holds the amounts of resources that the process uses at one point in time. Tests compare two of them to detect leaks.
type Usage struct {
	Goroutines int    // number of goroutines
	Files      int    // number of open file descriptors; 0 if the system does not report it
	Heap       uint64 // bytes on the heap after a garbage collection
}

// MeasureUsage runs a garbage collection, and returns the resources that the process uses after it.
func MeasureUsage() Usage {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := Usage{Goroutines: runtime.NumGoroutine(), Heap: m.HeapAlloc}
	if all, err := os.ReadDir("/proc/self/fd"); err == nil {
		u.Files = len(all)
	}
	return u
}

// String returns the amounts as text for failure messages.
func (u Usage) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors, %.1f MB", u.Goroutines, u.Files, float64(u.Heap)/1e6)
}
