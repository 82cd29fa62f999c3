package cputime

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of times in /proc, which is the same on all Linux systems.
const clockTick = 10 * time.Millisecond

// RunningThreads returns the processor time that the running threads of the process pid have used so far. It is exact
// to a nanosecond, and does not include threads that have ended. known is false on systems other than Linux, and if
// there is no such process.
func RunningThreads(pid int) (used time.Duration, known bool) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		first, _, _ := strings.Cut(string(text), " ")
		nanoseconds, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, false
		}
		used += time.Duration(nanoseconds)
	}
	return used, len(files) > 0
}

// ProcessByID returns the processor time that the process pid has used so far, in multiples of 10 ms. known is false on
// systems other than Linux, and if there is no such process.
func ProcessByID(pid int) (used time.Duration, known bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The second field is a name in parentheses that may contain spaces; utime and stime are fields 14 and 15.
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, false
	}
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, false
		}
		used += time.Duration(n) * clockTick
	}
	return used, true
}
