//go:build !unix

package recursor_test

import (
	"testing"
	"time"
)

// cpuTime returns zero, as this system has no getrusage.
func cpuTime(*testing.T) time.Duration { return 0 }
