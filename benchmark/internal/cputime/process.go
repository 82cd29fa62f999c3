package cputime

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// LiveThreads returns the processor time that the threads of the process pid have used so far. It is exact to a
// nanosecond, and does not include threads that have ended. known is false on systems other than Linux, and if there is
// no such process.
func LiveThreads(pid int) (used time.Duration, known bool) {
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
